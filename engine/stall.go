package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"verbena/internal/clock"
)

// Memory that does not answer. A copy into or out of a program's memory may take for ever: a page may be that of a FUSE
// file, or of userfaultfd(2), whatever it was when it was registered. The copy is made by the thread that runs the queue pair
// of that program, which may be another program's or the endpoint's; the queue pairs of others are not held meanwhile. So:
//
//   - A pass says so when it is in a copy (pass.enter, leave). The device's watchdog finds those that have been for stallTick
//     or longer, gives their run queue to a goroutine, and marks the program as slow.
//   - The queue pairs of a slow program are run by a goroutine of its own, from its lane. The packets that wait for them are
//     bounded; more are lost, as in a network that is too slow.
//   - The network's receive thread that is stopped in a copy is replaced by another (package link).
//
//   - A doorbell that is stopped so in another program's memory is answered by the watchdog (ib.Hold.Stalled).
//   - A method that may not sleep, or is about another program's queue pair, leaves what leads to such memory to a goroutine
//     (pass.endMethod, endElsewhere).
//
// A slow program costs each thread that meets it one stall of up to 2*stallTick. After that no other thread runs its queue
// pairs until nothing of it has been stopped for a time that doubles with each stall.

const (
	stallTick = 10 * time.Millisecond
	// A program stays slow for minPenalty after its first stall, up to maxPenalty after its last.
	minPenalty = time.Second
	maxPenalty = time.Minute
	// maxLaneBytes bounds the packets that are kept for the queue pairs of one program while they cannot be received, those
	// from fast programs of the same Fabric excepted, which egress bounds.
	maxLaneBytes = 1 << 20
)

// lane is where the queue pairs of one program are run from while it is slow.
//
//	        a pass is stopped                            none is, the penalty is over and the queue is empty
//	fast ---------------------> slow (a goroutine runs its queue pairs) -------------------------------------> fast
type lane struct {
	slow  atomic.Bool  // written under mu
	bytes atomic.Int64 // of packets that wait for its queue pairs

	mu      sync.Mutex
	queue   []*QP // to be run; their activity says running
	running bool
	stopped int // passes that are stopped in the program's memory; a broken device counts as one
	until   time.Time
	penalty time.Duration
}

// stall notes that a pass is stopped in the program's memory, until resume is called.
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

// recovered ends the slow state when it is time.
func (l *lane) recovered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped > 0 || l.running || time.Now().Before(l.until) {
		return false
	}
	l.slow.Store(false)
	return true
}

// charge counts n bytes of packets that are going to wait. It reports false where there is no room for them.
func (l *lane) charge(n int) bool {
	if l.bytes.Add(int64(n)) > maxLaneBytes {
		l.bytes.Add(-int64(n))
		return false
	}
	return true
}

// uncharge is the opposite of charge.
func (l *lane) uncharge(n int) { l.bytes.Add(-int64(n)) }

// add queues a queue pair, to be run by the program's goroutine.
func (l *lane) add(qp *QP) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, qp)
	if !l.running {
		l.running = true
		go l.run()
	}
}

// run works the queue off.
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

// unresponsive reports whether memory of the queue pair's program does not answer.
func (qp *QP) unresponsive() bool { return qp.lane.slow.Load() }

// watchdog finds passes of a device that are stopped in a copy. Its timer runs while there are copies.
type watchdog struct {
	on atomic.Bool

	mu     sync.Mutex
	timer  *time.Timer          // nil: there was none yet
	passes []weak.Pointer[pass] // all that the device's pool has made
}

func (w *watchdog) add(p *pass) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passes = append(w.passes, weak.Make(p))
}

func (w *watchdog) start(d *Device) {
	if d.clock != clock.System {
		return // a simulation, whose memory answers
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

// look takes the work of passes that are in the same copy as at the last look.
func (w *watchdog) look(d *Device) {
	busy, stuck := w.find()
	for _, p := range stuck {
		p.reassign(p.seen)
	}
	if !busy {
		w.on.Store(false)
		busy = w.entered() && w.on.CompareAndSwap(false, true) // meanwhile
	}
	if busy {
		w.lookLater(d)
	}
}

// find reports whether there was a copy since the last look, and returns the passes that are in the same one as then.
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

// reassign gives the run queue of a pass to a goroutine. n is the last value of copies.
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

// takeOver adds the run queue of a pass that is stopped to that of another, which a goroutine works off.
func takeOver(p, q *pass) {
	q.todo = append(q.todo, p.todo[p.done:]...)
	clear(p.todo[p.done:])
	p.todo = p.todo[:p.done]
	q.dev.workers.start(q.finish)
}

// forgive lets the senders go on whose trains wait for queue pairs of a program that has become slow. From now on the trains
// count in its lane; those that do not fit are lost. For a queue pair that is about to be destroyed, and in no table, step
// does it.
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
	idle chan struct{} // closed when n is 0; nil: nobody waits
}

// start has a goroutine do f.
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

// wait returns when no goroutine is left, or with their number after a time. There is one call at a time.
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
