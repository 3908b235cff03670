package supervisor

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/sched"
)

// workerTokens manages the receive tokens of a session's threads. Each notification wakes all threads that wait for a
// notification. Normally one thread therefore holds the only token. It receives a call, answers the call, and
// receives again. The thread passes the token to another thread only if the answer may take long while others may
// be making calls. Waking another thread takes as long as answering a few calls. The rules are:
//
//   - While only one thread of the program calls, its calls are answered without passing the token. A watchdog, which
//     runs while there are calls, passes the token of a call that takes longer than once or twice 5 ms (25 ms for a
//     doorbell).
//   - While several threads call, there are two tokens, since the calls of programs that communicate come in pairs. A
//     worker passes its token before each call that may take long, unless another worker is receiving. Doorbells count
//     as such calls only if recent ones took longer than worthPassing.
//
// The states of a worker:
//
//	waiting --take--> idle, has a token <--begin, end--> busy, has a token
//	|  ^                    |                                |      |
//	|  | surplus            |                           pass |      | claimed by the watchdog, which passes
//	|  +--------------------+----------------- end --------- busy without a token
//	+--workerIdle--> ended
type workerTokens struct {
	free      uint32       // futex word with the number of free tokens
	total     atomic.Int32 // number of tokens
	waiting   atomic.Int32 // number of workers in take
	receiving atomic.Int32 // number of workers that wait for a call
	passing   sched.Mutex
	workers   atomic.Int32
	start     func()      // starts another worker
	user      *quota.User // user charged for workers, except the first

	// The receiving workers record the callers in the fields below.
	lastCaller atomic.Uint32
	mixture    atomic.Int32 // measure of recent changes of the calling thread
	doorbell   atomic.Int64 // average processor time of recent doorbells, in nanoseconds

	watching [2]atomic.Bool // whether the watchdog's timers run, for doorbells and for other calls
	mu       sync.Mutex
	all      map[*tokenHolder]bool
}

const (
	timeout         = 5 * time.Millisecond
	doorbellTimeout = 25 * time.Millisecond
	passThreshold   = 20 * time.Microsecond
	// callerChangeWeight is the weight of a change of callers, relative to another call of the same caller.
	// mixtureLimit limits the sum.
	callerChangeWeight = 64
	mixtureLimit       = 16 * callerChangeWeight
	// mixtureThreshold is the sum above which several threads of a program are considered to make calls. A single call
	// of another thread does not exceed this sum.
	mixtureThreshold = 2 * callerChangeWeight
	// sharedTokens is the number of tokens while several threads make calls.
	sharedTokens = 2
	// maxWorkers limits the number of calls of a session in progress.
	maxWorkers = 16
	// workerIdle is the time for which a worker waits for a token before the worker ends.
	workerIdle = time.Second
)

// busyState shows the watchdog whether it may pass a worker's token; see tokens.
type busyState = uint32

const (
	idle busyState = iota
	busy
	claimed
)

// init makes the first token and starts the first worker.
func (t *workerTokens) init(start func(), user *quota.User) {
	t.user = user
	t.free = 1
	t.total.Store(1)
	t.all = map[*tokenHolder]bool{}
	t.start = start
	t.workers.Add(1)
	start()
}

// joinWatchdog registers a worker with the watchdog, and leave ends the registration.
func (t *workerTokens) joinWatchdog(h *tokenHolder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[h] = true
}

func (t *workerTokens) leaveWatchdog(h *tokenHolder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, h)
}

// signalWorkers interrupts the system calls of all workers, by the only signal that they do not block (blockSignals).
// Go's handler ignores a SIGPROF that no timer has caused.
func (t *workerTokens) signalWorkers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := range t.all {
		_ = unix.Tgkill(unix.Getpid(), h.tid, unix.SIGPROF)
	}
}

// awaitToken waits for a token. It returns false after workerIdle, when the worker is not needed.
func (t *workerTokens) awaitToken() bool {
	t.waiting.Add(1)
	for {
		n := atomic.LoadUint32(&t.free)
		if n == 0 {
			if !futexWait(&t.free, 0, workerIdle) && t.tryRetire() {
				return false
			}
			continue
		}
		// awaitToken decrements waiting before it takes the token. Therefore passToken may start one worker too many,
		// but never relies on a worker that already has a token.
		t.waiting.Add(-1)
		if atomic.CompareAndSwapUint32(&t.free, n, n-1) {
			return true
		}
		t.waiting.Add(1)
	}
}

// tryRetire ends a waiting worker, unless pass relies on that worker to take a free token.
func (t *workerTokens) tryRetire() bool {
	t.passing.Lock()
	defer t.passing.Unlock()
	if atomic.LoadUint32(&t.free) > 0 {
		return false
	}
	t.waiting.Add(-1)
	t.workers.Add(-1)
	t.user.Release(quota.Workers, 1)
	return true
}

// releaseToken frees a token for a worker that is waiting or will wait.
func (t *workerTokens) releaseToken() {
	atomic.AddUint32(&t.free, 1)
	futexWake(&t.free, 1)
}

// passToken frees a token. If no waiting worker can take the token, passToken starts another worker, within the limits.
func (t *workerTokens) passToken() {
	t.passing.Lock()
	defer t.passing.Unlock()
	if t.waiting.Load() <= int32(atomic.LoadUint32(&t.free)) && t.workers.Load() < maxWorkers &&
		t.user.Charge(quota.Workers, 1) == nil {
		t.workers.Add(1)
		t.start()
	}
	t.releaseToken()
}

// releaseWorkers ends the charges for workers that have not retired, except the first. It is called after the last
// worker has ended.
func (t *workerTokens) releaseWorkers() {
	if n := t.workers.Swap(0); n > 1 {
		t.user.Release(quota.Workers, uint64(n-1))
	}
}

// addTokenIfShared adds a token when several threads have begun to make calls.
func (t *workerTokens) addTokenIfShared() {
	if t.isShared() && t.total.CompareAndSwap(1, sharedTokens) {
		t.passToken()
	}
}

// removeSurplusToken removes a token when only one thread makes calls. Another worker must be receiving.
func (t *workerTokens) removeSurplusToken() bool {
	return t.total.Load() > 1 && !t.isShared() && t.receiving.Load() > 0 && t.total.CompareAndSwap(sharedTokens, 1)
}

// recordCaller records the calling thread. Concurrent workers may miss some calls.
func (t *workerTokens) recordCaller(tid uint32) {
	m := t.mixture.Load()
	switch {
	case t.lastCaller.Load() != tid:
		t.lastCaller.Store(tid)
		t.mixture.Store(min(m+callerChangeWeight, mixtureLimit))
	case m > 0:
		t.mixture.Store(m - 1)
	}
}

// isShared reports whether several threads of the program make calls.
func (t *workerTokens) isShared() bool { return t.mixture.Load() > mixtureThreshold }

// tokenHolder is a worker's share of the receive tokens: the token that the worker holds, if any, and the progress of
// its current answer.
type tokenHolder struct {
	tokens *workerTokens
	tid    int // thread ID of the worker
	held   bool
	timed  bool
	used   int64 // processor time of the thread before a timed call

	// The watchdog uses the following fields.
	busy  atomic.Uint32 // busyState
	calls atomic.Uint64 // number of calls begun
	seen  uint64        // value of calls that the watchdog saw last; guarded by tokens.mu
}

// beginBusy must be called before each part of an answer that may take long. The caller must call endBusy afterwards.
func (h *tokenHolder) beginBusy() { h.beginCommand(callOther, false) }

// beginCommand is beginBusy for a command on a device file, which is a doorbell in most cases of write(2).
func (h *tokenHolder) beginCommand(c call, doorbell bool) {
	if !h.held || h.busy.Load() != idle {
		return // passed already, or watched; a second pass would create another token
	}
	t := h.tokens
	shared := t.isShared()
	pass := shared && t.receiving.Load() == 0
	if c == callWrite {
		if shared {
			h.timed = true
			h.used = threadCPUTime()
		}
		pass = pass && t.doorbell.Load() >= int64(passThreshold)
	}
	if !pass {
		h.calls.Add(1)
		h.busy.Store(busy)
		t.startWatchdog(c == callWrite && doorbell)
		return
	}
	h.held = false
	t.passToken()
}

// beginLateWork must be called before work after an answer. The caller must call endBusy afterwards.
func (h *tokenHolder) beginLateWork() {
	if !h.held {
		return
	}
	h.calls.Add(1)
	h.busy.Store(busy)
	h.tokens.startWatchdog(true)
}

// endBusy is called after the answer, or work after it, is complete.
func (h *tokenHolder) endBusy() {
	t := h.tokens
	if h.timed {
		h.timed = false
		last := t.doorbell.Load()
		t.doorbell.Store(last + (threadCPUTime()-h.used-last)/8)
	}
	if h.busy.Load() != idle && !h.busy.CompareAndSwap(busy, idle) {
		h.busy.Store(idle)
		h.held = false // claimed by the watchdog
	}
}

// threadCPUTime returns the processor time of the calling thread, in nanoseconds.
func threadCPUTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}

// doorbellSize is the size of nearly all write(2) calls on a device file.
const doorbellSize = 32

// startWatchdog starts the watchdog if it is not running. For doorbells alone the watchdog runs rarely, because a timer
// takes processor time from the program.
func (t *workerTokens) startWatchdog(doorbell bool) {
	i, after := 0, doorbellTimeout
	if !doorbell {
		i, after = 1, timeout
	}
	if !t.watching[i].Load() && t.watching[i].CompareAndSwap(false, true) {
		time.AfterFunc(after, func() { t.passStalledTokens(i) })
	}
}

// passStalledTokens passes the tokens of workers that have been busy with the same call since its last run.
func (t *workerTokens) passStalledTokens(i int) {
	t.watching[i].Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	again := false
	for h := range t.all {
		n := h.calls.Load()
		seen := h.seen
		h.seen = n
		if h.busy.Load() != busy {
			again = again || n != seen
			continue
		}
		if n != seen {
			again = true
		} else if h.busy.CompareAndSwap(busy, claimed) {
			t.passToken()
		}
	}
	if again {
		t.startWatchdog(i == 0)
	}
}
