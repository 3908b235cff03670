package guest

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// turn is the right of one of a session's threads to receive. Two that waited for the same notification would both be
// woken by each. So one receives and answers, and receives again; only if its answer may take long, while somebody
// else may be calling, it lets another thread go on. That one has to be woken, which takes as long as to answer a few
// calls; so:
//
//   - As long as only one thread calls, its calls are answered without passing the turn, but if one takes longer
//     than patience, the turn is passed by a watchdog.
//   - While several threads of the program call, the turn is passed before each call that may take long: any but a
//     doorbell, and doorbells too if they have taken longer than worthPassing lately.
//
// A worker's way:
//
//	waiting --take--> holder, idle <--begin, end--> holder, busy
//	   ^                                             |      |
//	   |                                        pass |      | claimed by the watchdog, which passes
//	   +------------------ end --------- busy without the turn
type turn struct {
	free    uint32       // futex word; 1: nobody has the turn
	waiting atomic.Int32 // workers in take
	workers atomic.Int32
	start   func() // starts another worker

	watching atomic.Bool // the watchdog's timer runs

	// Who calls; written by the holder.
	lastCaller atomic.Uint32
	mixture    atomic.Int32 // of callers, lately
	doorbell   atomic.Int64 // the processor time that one took lately, in nanoseconds

	holder atomic.Pointer[worker]
}

const (
	patience     = 5 * time.Millisecond
	worthPassing = 20 * time.Microsecond
	// Each change of callers counts for so many calls of one caller, up to a limit.
	changeCounts = 64
	mixtureLimit = 16 * changeCounts
	// mixed is when a program counts as one that calls from several threads: not for one stray call among others.
	mixed = 2 * changeCounts
	// maxWorkers bounds how many calls of one session are answered at a time.
	maxWorkers = 16
)

// busyState tells the watchdog whether it may pass a worker's turn; see turn.
type busyState = uint32

const (
	idle busyState = iota
	busy
	claimed
)

// init makes the turn free and starts the first worker.
func (t *turn) init(start func()) {
	t.free = 1
	t.start = start
	t.workers.Add(1)
	start()
}

// take waits for the turn.
func (t *turn) take(w *worker) {
	t.waiting.Add(1)
	for !atomic.CompareAndSwapUint32(&t.free, 1, 0) {
		futexWait(&t.free, 0)
	}
	t.waiting.Add(-1)
	t.holder.Store(w)
}

// release gives the turn to whoever waits or will wait.
func (t *turn) release() {
	t.holder.Store(nil)
	atomic.StoreUint32(&t.free, 1)
	futexWake(&t.free, 1)
}

// pass releases the turn and sees to it that somebody takes it, as far as there may be more workers.
func (t *turn) pass() {
	if t.waiting.Load() == 0 {
		if t.workers.Add(1) <= maxWorkers {
			t.start()
		} else {
			t.workers.Add(-1)
		}
	}
	t.release()
}

// note takes down who calls.
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

// begin is called by the holder before a call is answered that may take long. end must follow.
func (w *worker) begin(c call) {
	t := &w.session.turn
	if !t.shared() {
		if c != callWrite {
			w.began.Store(time.Now().UnixNano())
			w.busy.Store(busy)
			t.watch()
		}
		return
	}
	if c == callWrite {
		w.timed = true
		w.used = threadTime()
		if t.doorbell.Load() < int64(worthPassing) {
			return
		}
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

// watch starts the watchdog, if it is not running.
func (t *turn) watch() {
	if t.watching.CompareAndSwap(false, true) {
		time.AfterFunc(patience, t.bark)
	}
}

// bark passes the turn if its holder has been busy for too long.
func (t *turn) bark() {
	t.watching.Store(false)
	w := t.holder.Load()
	if w == nil || w.busy.Load() != busy {
		return
	}
	if time.Now().UnixNano()-w.began.Load() < int64(patience) {
		t.watch()
	} else if w.busy.CompareAndSwap(busy, claimed) {
		t.pass()
	}
}
