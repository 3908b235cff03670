package rxe

import (
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"verbena/internal/clock"
	"verbena/link"
)

// Memory that does not answer. A copy into or out of a program's memory may take for ever: a page may be that of a FUSE
// file, or of userfaultfd(2), whatever it was when it was registered. The copy is made under the lock of a queue pair,
// by the thread that had a packet or a doorbell for it, which may be another program's or the endpoint's. So:
//
//   - A pass says so when it is in a copy (pass.enter, leave). The device's watchdog finds those that have been for stallTick
//     or longer, gives what else they have to do to a goroutine, and marks the program as slow.
//   - Nobody waits for a lock of a slow program's queue pair: packets for it, and its turn to send, go to its lane, a queue
//     that a goroutine works off. What does not fit is lost, as in a network that is too slow.
//   - The network's receive thread that is stopped in a copy is replaced by another (package link).
//
// A program that is slow costs each thread that meets it one stall of up to 2*stallTick. After that it is let alone
// until nothing of it has been stopped for a time that doubles with each stall.

const (
	stallTick = 10 * time.Millisecond
	// A program stays slow for minPenalty after its first stall, up to maxPenalty after its last.
	minPenalty = time.Second
	maxPenalty = time.Minute
	// maxLaneBytes and maxLaneJobs bound what waits for a slow program.
	maxLaneBytes = 1 << 20
	maxLaneJobs  = 1 << 10
)

// lane is where the queue pairs of one program are served from while it is slow.
//
//	        a pass is stopped                            none is, the penalty is over and the queue is empty
//	fast ---------------------> slow (jobs go to a goroutine) -----------------------------------------> fast
type lane struct {
	slow atomic.Bool // written under mu

	mu      sync.Mutex
	jobs    []job
	bytes   int // of packets in jobs
	running bool
	stopped int // passes that are stopped in the program's memory; a broken device counts as one
	until   time.Time
	penalty time.Duration
}

// job is something to be done with a queue pair when it can be locked.
type job struct {
	qp      *QP
	arrival link.Arrival  // packets to receive; none: there is something else to do
	do      func(p *pass) // under the lock; nil: send what is in the egress queue, whose drainer the job is
}

// stall notes that a pass is stopped in the program's memory, as long as it does not call resume.
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

// add queues a job. It reports false where there is no room for packets. It drops a job for a device that has failed.
func (l *lane) add(j job) bool {
	if j.qp.dev.broken.Load() {
		return true
	}
	n := 0
	for _, b := range j.arrival.Packets {
		n += len(b)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && (l.bytes+n > maxLaneBytes || len(l.jobs) >= maxLaneJobs) {
		return false
	}
	l.jobs = append(l.jobs, j)
	l.bytes += n
	if !l.running {
		l.running = true
		go l.run()
	}
	return true
}

// run works the queue off.
func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.jobs) == 0 {
			l.jobs, l.running = nil, false
			l.mu.Unlock()
			return
		}
		j := l.jobs[0]
		l.jobs = l.jobs[1:]
		for _, b := range j.arrival.Packets {
			l.bytes -= len(b)
		}
		l.mu.Unlock()
		j.run(l)
	}
}

func (j *job) run(l *lane) {
	qp := j.qp
	p := qp.dev.begin(false)
	defer p.caught()
	p.lane, p.last = l, qp
	switch {
	case len(j.arrival.Packets) > 0:
		qp.receive(p, &j.arrival, j.arrival.Packets)
	case j.do != nil:
		if p.lock(qp) {
			j.do(p)
			qp.mu.Unlock()
		}
	default:
		p.todo = append(p.todo, qp)
	}
	p.end()
}

// lock locks a queue pair for the pass, false where the pass may not wait for it: its program is slow.
func (p *pass) lock(qp *QP) bool {
	l := qp.lane
	if l == p.lane {
		if !qp.lockOwn() {
			return false
		}
	} else if l.slow.Load() && !l.recovered() || !qp.mu.LockUnless(&l.slow) {
		return false
	}
	p.last = qp
	return true
}

// soon does something under the lock of a queue pair: now, or if the program is slow when it can be.
func (p *pass) soon(qp *QP, f func(p *pass)) {
	if qp.mu.TryLock() || p.lock(qp) || qp.dev.broken.Load() && qp.lockOwn() {
		p.last = qp
		f(p)
		qp.mu.Unlock()
		return
	}
	qp.lane.add(job{qp: qp, do: f})
}

// receiveLater leaves packets for the queue pair to the lane. They are copied.
func (l *lane) receiveLater(qp *QP, a *link.Arrival, packets [][]byte) {
	n := 0
	for _, b := range packets {
		n += len(b)
	}
	j := job{qp: qp, arrival: link.Arrival{Src: a.Src, Dst: a.Dst, TOS: a.TOS, TTL: a.TTL}}
	if n <= maxLaneBytes {
		buf := make([]byte, 0, n)
		for _, b := range packets {
			buf = append(buf, b...)
			j.arrival.Packets = append(j.arrival.Packets, buf[len(buf)-len(b):len(buf):len(buf)])
		}
	}
	if len(j.arrival.Packets) == 0 || !l.add(j) {
		qp.dev.counters.add(cntDropStalled, len(packets))
	}
}

// robbed is set in pass.copies when the watchdog has taken what the pass has to do.
const robbed = 1 << 31

// enter says that the pass is going to copy from or to the memory of a queue pair's program, or waits for somebody who
// does; leave follows.
func (p *pass) enter(qp *QP) {
	p.at = qp
	p.copies.Store((p.copies.Load() + 1) &^ robbed)
	if w := &p.dev.watchdog; !w.on.Load() {
		w.start(p.dev)
	}
}

func (p *pass) leave() {
	n := p.copies.Load() &^ robbed
	if p.copies.CompareAndSwap(n, (n+1)&^robbed) {
		return
	}
	p.theft.Lock() // the watchdog may still be at it
	p.copies.Store((n + 1) &^ robbed)
	p.theft.Unlock()
	p.at.lane.resume()
}

// watchdog finds passes of a device that are stopped in a copy. Its timer runs while there are copies.
type watchdog struct {
	on atomic.Bool

	mu     sync.Mutex
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
		time.AfterFunc(stallTick, func() { w.look(d) })
	}
}

// look takes the work of passes that are in the same copy as at the last look.
func (w *watchdog) look(d *Device) {
	busy, stuck := w.find()
	for _, p := range stuck {
		p.rob(p.seen)
	}
	if !busy {
		w.on.Store(false)
		busy = w.entered() && w.on.CompareAndSwap(false, true) // meanwhile
	}
	if busy {
		time.AfterFunc(stallTick, func() { w.look(d) })
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
		if n == p.seen || n&robbed != 0 {
			if n&1 != 0 && n&robbed == 0 {
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
			if n := p.copies.Load(); n != p.seen && n&robbed == 0 && n&1 != 0 {
				return true
			}
		}
	}
	return false
}

// rob has a goroutine do what the pass has still to do, but for the queue pair that it is at. n is what copies was.
func (p *pass) rob(n uint32) {
	p.theft.Lock()
	defer p.theft.Unlock()
	if !p.copies.CompareAndSwap(n, n|robbed) {
		return
	}
	p.at.lane.stall()
	takeOver(p.dev, p)
}

// takeOver gives what a pass that is stopped has still to send to a goroutine.
func takeOver(d *Device, p *pass) {
	if p.done == len(p.todo) {
		return
	}
	q := d.begin(false)
	q.todo = append(q.todo, p.todo[p.done:]...)
	clear(p.todo[p.done:])
	p.todo = p.todo[:p.done]
	d.workers.start(func() {
		defer q.caught()
		q.end()
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
