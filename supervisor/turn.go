package supervisor

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/sched"
)

// turn is the right of a session's threads to receive. Each notification wakes all that wait for one. So as a rule one
// thread has the right: it receives and answers, and receives again; only if its answer may take long, while somebody
// else may be calling, it lets another thread go on. That one has to be woken, which takes as long as to answer a few
// calls; so:
//
//   - As long as only one thread of the program calls, its calls are answered without passing the turn, but if one takes
//     longer than once or twice patience (doorbellPatience for a doorbell), the turn is passed by a watchdog, which runs
//     while there are calls.
//   - While several call, two workers have a turn: the calls of programs that talk to each other come in pairs. A turn is
//     passed before each call that may take long (any but a doorbell, and doorbells too if they have taken longer than
//     worthPassing lately) unless another worker is there to receive.
//
// A worker's way:
//
//	waiting --take--> idle, has a turn <--begin, end--> busy, has a turn
//	|  ^                    |                              |      |
//	|  | surplus            |                         pass |      | claimed by the watchdog, which passes
//	|  +--------------------+----------------- end ------- busy without a turn
//	+--workerIdle--> ended
type turn struct {
	free      uint32       // futex word: turns that nobody has
	turns     atomic.Int32 // that there are
	waiting   atomic.Int32 // workers in take
	receiving atomic.Int32 // workers that wait for a call
	passing   sched.Mutex
	workers   atomic.Int32
	start     func()      // starts another worker
	user      *quota.User // to whom workers are charged, but the first

	// Who calls, as those who receive see it.
	lastCaller atomic.Uint32
	mixture    atomic.Int32 // of callers, lately
	doorbell   atomic.Int64 // the processor time that one took lately, in nanoseconds

	watching [2]atomic.Bool // the watchdog's timers run: for doorbells, and for other calls
	mu       sync.Mutex
	all      map[*worker]bool
}

const (
	patience         = 5 * time.Millisecond
	doorbellPatience = 25 * time.Millisecond
	worthPassing     = 20 * time.Microsecond
	// Each change of callers counts for so many calls of one caller, up to a limit.
	changeCounts = 64
	mixtureLimit = 16 * changeCounts
	// mixed is when a program counts as one that calls from several threads: not for one stray call among others.
	mixed = 2 * changeCounts
	// sharedTurns is how many turns there are while several threads call.
	sharedTurns = 2
	// maxWorkers bounds how many calls of one session are answered at a time.
	maxWorkers = 16
	// workerIdle is how long a worker waits for a turn before it ends.
	workerIdle = time.Second
)

// busyState tells the watchdog whether it may pass a worker's turn; see turn.
type busyState = uint32

const (
	idle busyState = iota
	busy
	claimed
)

// init makes a turn and starts the first worker.
func (t *turn) init(start func(), user *quota.User) {
	t.user = user
	t.free = 1
	t.turns.Store(1)
	t.all = map[*worker]bool{}
	t.start = start
	t.workers.Add(1)
	start()
}

// join and leave are for the watchdog.
func (t *turn) join(w *worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[w] = true
}

func (t *turn) leave(w *worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, w)
}

// take waits for a turn. It returns false where there is none for so long that the worker is not needed.
func (t *turn) take() bool {
	t.waiting.Add(1)
	for {
		n := atomic.LoadUint32(&t.free)
		if n == 0 {
			if !futexWait(&t.free, 0, workerIdle) && t.retire() {
				return false
			}
			continue
		}
		// First it waits no more: pass may start a worker too many, but not rely on one that has what it wants.
		t.waiting.Add(-1)
		if atomic.CompareAndSwapUint32(&t.free, n, n-1) {
			return true
		}
		t.waiting.Add(1)
	}
}

// retire takes a waiting worker out, unless there is a turn that pass relies on it to take.
func (t *turn) retire() bool {
	t.passing.Lock()
	defer t.passing.Unlock()
	if atomic.LoadUint32(&t.free) > 0 {
		return false
	}
	t.waiting.Add(-1)
	t.workers.Add(-1)
	t.user.Give(quota.Workers, 1)
	return true
}

// release gives a turn to whoever waits or will wait.
func (t *turn) release() {
	atomic.AddUint32(&t.free, 1)
	futexWake(&t.free, 1)
}

// pass releases a turn and sees to it that somebody takes it, as far as there may be more workers.
func (t *turn) pass() {
	t.passing.Lock()
	defer t.passing.Unlock()
	if t.waiting.Load() <= int32(atomic.LoadUint32(&t.free)) && t.workers.Load() < maxWorkers &&
		t.user.Take(quota.Workers, 1) == nil {
		t.workers.Add(1)
		t.start()
	}
	t.release()
}

// ended gives back what the workers of a session are charged that have not retired, but the first. No worker is left.
func (t *turn) ended() {
	if n := t.workers.Swap(0); n > 1 {
		t.user.Give(quota.Workers, uint64(n-1))
	}
}

// adapt makes another turn when several threads have begun to call.
func (t *turn) adapt() {
	if t.shared() && t.turns.CompareAndSwap(1, sharedTurns) {
		t.pass()
	}
}

// surplus takes a turn away when they have stopped; another worker is there to receive.
func (t *turn) surplus() bool {
	return t.turns.Load() > 1 && !t.shared() && t.receiving.Load() > 0 && t.turns.CompareAndSwap(sharedTurns, 1)
}

// note takes down who calls. Several workers may do so at once, and miss some.
func (t *turn) note(tid uint32) {
	m := t.mixture.Load()
	switch {
	case t.lastCaller.Load() != tid:
		t.lastCaller.Store(tid)
		t.mixture.Store(min(m+changeCounts, mixtureLimit))
	case m > 0:
		t.mixture.Store(m - 1)
	}
}

// shared reports whether several threads of the program call.
func (t *turn) shared() bool { return t.mixture.Load() > mixed }

// begin is called before what may take long of an answer, as often as there is such. end must follow.
func (w *worker) begin(c call) {
	if !w.hasTurn || w.busy.Load() != idle {
		return // passed already, or watched: to pass it again would make another turn
	}
	t := &w.session.turn
	shared := t.shared()
	pass := shared && t.receiving.Load() == 0
	if c == callWrite {
		if shared {
			w.timed = true
			w.used = threadTime()
		}
		// Most are doorbells.
		pass = pass && t.doorbell.Load() >= int64(worthPassing)
	}
	if !pass {
		w.calls.Add(1)
		w.busy.Store(busy)
		t.watch(c == callWrite && w.n.args[2] == doorbellSize)
		return
	}
	w.hasTurn = false
	t.pass()
}

// end is called when the answer has been made.
func (w *worker) end() {
	t := &w.session.turn
	if w.timed {
		w.timed = false
		last := t.doorbell.Load()
		t.doorbell.Store(last + (threadTime()-w.used-last)/8)
	}
	if w.busy.Load() != idle && !w.busy.CompareAndSwap(busy, idle) {
		w.busy.Store(idle)
		w.hasTurn = false // claimed
	}
}

// threadTime is the processor time of the calling thread, in nanoseconds.
func threadTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}

// doorbellSize is that of nearly every write(2) on a device file.
const doorbellSize = 32

// watch starts the watchdog, if it is not running. While there are nothing but doorbells it comes seldom: a timer takes
// a processor from the program.
func (t *turn) watch(doorbell bool) {
	i, after := 0, doorbellPatience
	if !doorbell {
		i, after = 1, patience
	}
	if !t.watching[i].Load() && t.watching[i].CompareAndSwap(false, true) {
		time.AfterFunc(after, func() { t.bark(i) })
	}
}

// bark passes the turns of those who have been busy with the same call since it barked last.
func (t *turn) bark(i int) {
	t.watching[i].Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	again := false
	for w := range t.all {
		n := w.calls.Load()
		seen := w.seen
		w.seen = n
		if w.busy.Load() != busy {
			again = again || n != seen
			continue
		}
		if n != seen {
			again = true
		} else if w.busy.CompareAndSwap(busy, claimed) {
			t.pass()
		}
	}
	if again {
		t.watch(i == 0)
	}
}
