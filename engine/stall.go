package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"verbena/internal/clock"
)

// Memory that does not answer. A copy from or to a program's memory may block forever: a page may belong to a FUSE
// file or to userfaultfd(2), even if it did not at its registration. The thread that runs the queue pair of that
// program makes the copy, and may be a thread of another program or of the endpoint. The queue pairs of others must
// not wait for it. So:
//
//   - A pass marks the begin and the end of a copy (pass.enter, leave). The device's watchdog finds passes that have
//     been in a copy for stallTick or longer, gives their run queue to a goroutine, and marks the program as slow.
//   - Each slow program has a goroutine that runs its queue pairs (QP.lane). The packets that wait for them are
//     bounded. Further packets are lost, as in a network that is too slow.
//   - Package link replaces a receive thread of the network that is blocked in a copy.
//   - The watchdog answers a doorbell that is blocked in another program's memory (ib.Hold.Stalled).
//   - A method that may not sleep, or that concerns another program's queue pair, leaves the work on such memory to a
//     goroutine (pass.endMethod, endElsewhere).
//
// A slow program costs each thread that meets it one stall of up to 2*stallTick. After that, no other thread runs its
// queue pairs until its memory has blocked no pass for a time that doubles with each stall.

const (
	stallTick = 10 * time.Millisecond
	// A program stays slow for minPenalty after its first stall, and for up to maxPenalty after later ones.
	minPenalty = time.Second
	maxPenalty = time.Minute
	// maxLaneBytes is the maximum size of the packets that wait for the queue pairs of one program. Packets from fast
	// programs of the same Fabric do not count; egress bounds them.
	maxLaneBytes = 1 << 20
)

// lane runs the queue pairs of one program while it is slow.
//
//	        a pass is blocked                            none is, the penalty is over and the queue is empty
//	fast ---------------------> slow (a goroutine runs its queue pairs) -------------------------------------> fast
type lane struct {
	slow  atomic.Bool  // written under mu
	bytes atomic.Int64 // size of the packets that wait for its queue pairs

	mu      sync.Mutex
	queue   []*QP // queue pairs to run; their activity is running
	running bool
	stopped int // passes that are blocked in the program's memory; a broken device counts as one
	until   time.Time
	penalty time.Duration
}

// stall records that a pass is blocked in the program's memory, until resume is called.
func (l *lane) stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped++
	l.penalty = min(max(2*l.penalty, minPenalty), maxPenalty)
	l.slow.Store(true)
}

func (l *lane) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped--
	l.until = time.Now().Add(l.penalty)
}

// recovered ends the slow state if the penalty is over. It reports whether the slow state has ended.
func (l *lane) recovered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped > 0 || l.running || time.Now().Before(l.until) {
		return false
	}
	l.slow.Store(false)
	return true
}

// charge counts n bytes of packets that will wait. It returns false if there is no room for them.
func (l *lane) charge(n int) bool {
	if l.bytes.Add(int64(n)) > maxLaneBytes {
		l.bytes.Add(-int64(n))
		return false
	}
	return true
}

// uncharge undoes charge.
func (l *lane) uncharge(n int) { l.bytes.Add(-int64(n)) }

// add queues a queue pair for the program's goroutine.
func (l *lane) add(qp *QP) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, qp)
	if !l.running {
		l.running = true
		go l.run()
	}
}

// run runs the queue pairs in the queue until the queue is empty.
func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.queue, l.running = nil, false
			l.mu.Unlock()
			return
		}
		qp := l.queue[0]
		l.queue = l.queue[1:]
		l.mu.Unlock()
		p := qp.dev.begin(false)
		p.lane = l
		p.todo = append(p.todo, qp)
		p.finish()
	}
}

// unresponsive reports whether the memory of the queue pair's program does not answer.
func (qp *QP) unresponsive() bool { return qp.lane.slow.Load() }

// watchdog finds passes of a device that are blocked in a copy. Its timer runs while there are copies.
type watchdog struct {
	on atomic.Bool

	mu     sync.Mutex
	timer  *time.Timer          // nil until the first copy
	passes []weak.Pointer[pass] // all passes of the device's pool
}

func (w *watchdog) add(p *pass) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passes = append(w.passes, weak.Make(p))
}

func (w *watchdog) start(d *Device) {
	if d.clock != clock.System {
		return // in a simulation, memory answers
	}
	if w.on.CompareAndSwap(false, true) {
		w.lookLater(d)
	}
}

func (w *watchdog) lookLater(d *Device) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Reset(stallTick)
		return
	}
	w.timer = time.AfterFunc(stallTick, func() { w.look(d) })
}

// look reassigns the work of passes that are in the same copy as at the last look.
func (w *watchdog) look(d *Device) {
	busy, stuck := w.find()
	for _, p := range stuck {
		p.reassign(p.seen)
	}
	if !busy {
		w.on.Store(false)
		busy = w.entered() && w.on.CompareAndSwap(false, true) // a copy has begun meanwhile
	}
	if busy {
		w.lookLater(d)
	}
}

// find reports whether there was a copy since the last look, and returns the passes that are still in the same copy.
func (w *watchdog) find() (busy bool, stuck []*pass) {
	w.mu.Lock()
	defer w.mu.Unlock()
	live := w.passes[:0]
	for _, ref := range w.passes {
		p := ref.Value()
		if p == nil {
			continue
		}
		live = append(live, ref)
		n := p.copies.Load()
		if n == p.seen || n&reassigned != 0 {
			if n&1 != 0 && n&reassigned == 0 {
				stuck = append(stuck, p)
			}
			continue
		}
		p.seen = n
		busy = true
	}
	clear(w.passes[len(live):])
	w.passes = live
	return busy, stuck
}

// entered reports whether a pass is in a copy that the watchdog has not seen yet.
func (w *watchdog) entered() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ref := range w.passes {
		if p := ref.Value(); p != nil {
			if n := p.copies.Load(); n != p.seen && n&reassigned == 0 && n&1 != 0 {
				return true
			}
		}
	}
	return false
}

// reassign gives the run queue of a pass to a goroutine. n is the last observed value of copies.
func (p *pass) reassign(n uint32) {
	p.reassigning.Lock()
	defer p.reassigning.Unlock()
	if !p.copies.CompareAndSwap(n, n|reassigned) {
		return
	}
	p.at.lane.stall()
	p.abandon()

	p.held.Stalled()
	q := p.dev.begin(false)
	q.forgive(p.at)
	takeOver(p, q)
}

// takeOver moves the run queue of a pass that cannot continue to another pass, which a goroutine runs.
func takeOver(p, q *pass) {
	q.todo = append(q.todo, p.todo[p.done:]...)
	clear(p.todo[p.done:])
	p.todo = p.todo[:p.done]
	q.dev.workers.start(q.finish)
}

// forgive wakes the senders that wait for queue pairs of a program that has become slow. From now on the trains of
// these senders count in QP.lane of the program. Trains that do not fit are lost. A queue pair that is about to be
// destroyed is in no table; pass.step does the same for it.
func (p *pass) forgive(slow *QP) {
	p.forgiveOne(slow) // it may be about to be destroyed, and in no table
	for qp := range slow.dev.qps.all() {
		if qp.lane == slow.lane {
			p.forgiveOne(qp)
		}
	}
}

func (p *pass) forgiveOne(qp *QP) {
	e := &qp.events
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = slices.DeleteFunc(e.list, func(v event) bool {
		t := v.train
		if t == nil || t.charged {
			return false
		}
		fits := qp.lane.charge(len(t.Buf))
		if t.from.egress.handed.Add(-1) == maxHanded-1 {
			p.wake(t.from)
		}
		if t.charged = fits; !fits {
			qp.dev.counters.add(cntDropStalled, t.packets)
			t.from = nil
			t.free()
			return true
		}
		t.shrink()
		return false
	})
}

// crew counts the goroutines that the device has started.
type crew struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0; nil: no thread waits
}

// start runs f on a goroutine.
func (c *crew) start(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.done()
		f()
	}()
}

func (c *crew) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// wait returns when no goroutine is left, or after a time with the number of goroutines that are left. Only one call
// at a time is allowed.
func (c *crew) wait(most time.Duration) (left int) {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return 0
	}
	c.idle = make(chan struct{})
	idle := c.idle
	c.mu.Unlock()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
