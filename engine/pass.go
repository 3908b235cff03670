package engine

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/link"
)

// The way of a message, from the event that begins it to the trains that it leaves as:
//
//	doorbell, packets, timer, task
//	        |
//	      begin        a pass: the thread's working memory, and its run queue
//	        |
//	      wake         the queue pair rests: into the run queue. It is being run: noted, for the thread that does
//	        |
//	      end, drain   the run queue, until it is empty or the budget is spent; then a goroutine goes on
//	        |
//	      run          one queue pair: its events (receive: recv.go, resp.go, comp.go), then what is possible
//	        |          now (advance: answers, then new requests), then the trains that have come of it
//	        |
//	      send ------> the network (endpoint.send), whose other end begins with Receive
//	        |
//	      hand         a device of the same Fabric: the train is an event of the peer, which wakes it
//
// At most one thread runs a queue pair at a time, and no thread waits for that: one that has an event for a queue pair that
// is being run leaves it there and goes on. So no lock is held while payload is copied, while packets are sent, and while
// completions are reported, and memory that does not answer stops only the queue pairs of its own program (stall.go).

// pass is one run of the engine to completion, on the thread that had an event for it. It holds the thread's working
// memory and the queue pairs that it has to run.
type pass struct {
	dev   *Device
	todo  []*QP // the run queue; their activity says running
	done  int   // todo[:done] have been run
	spent int   // bytes sent and received since the thread began, and trainCost for each train
	runs  int   // since the pass was made

	workspace
	delivery
	copying

	method *QP      // the pass works for a method of this queue pair that may not sleep; nil: for none
	last   *QP      // the queue pair that was run last
	lane   *lane    // the slow program that the pass works for; nil: none
	held   *ib.Hold // holds the callbacks of the devices; nil: the callbacks run on other threads
	own    ib.Hold  // for held
}

// workspace is the memory that a pass needs to send and to receive.
type workspace struct {
	build   builder
	gather  gather
	ahead   ahead
	scatter scatter
	posted  queue.Send // the work request that is being posted
	grh     [grhLen]byte
	split   splitter
}

const (
	// passBudget is what a pass may spend on the thread that it borrowed, a millisecond at most; then a goroutine goes on. A
	// message between devices of a Fabric counts at both ends.
	passBudget = 4 << 20
	// trainCost is what a train counts for beside its bytes: about as long as it takes.
	trainCost = 4 << 10
)

// newPass makes a pass for the device's pool.
func newPass(d *Device) *pass {
	p := &pass{dev: d}
	p.gather.p = p
	d.watchdog.add(p)
	return p
}

// begin starts a pass. With callbacks it runs the completion handlers that come due at its end, on this thread,
// which therefore must not be in a consumer's call.
func (d *Device) begin(callbacks bool) *pass {
	p := d.passes.Get().(*pass)
	if callbacks {
		p.held = &p.own
	}
	p.hold(d)
	return p
}

// hold makes the callbacks of the device wait for the thread of this pass.
func (p *pass) hold(d *Device) { p.held.Add(d.obj) }

// letGo runs the callbacks that wait for this pass. Those of a doorbell its caller runs.
func (p *pass) letGo() {
	p.held = nil
	p.own.Run()
}

// activity says whether a thread runs a queue pair, or has it in its run queue, and whether there has been an event since it
// began to.
//
//	         wake             wake
//	resting -----> running -----------> woken
//	   ^            |   ^                 |
//	   +--- rest ---+   +----- begin -----+
type activity struct{ state atomic.Uint32 }

const (
	resting uint32 = iota
	running
	woken
)

// wake notes that there is an event. It reports whether the queue pair rested; then the caller must run it.
func (a *activity) wake() bool {
	for {
		switch s := a.state.Load(); {
		case s == woken:
			return false
		case a.state.CompareAndSwap(s, s+1):
			return s == resting
		}
	}
}

// begin is called before the thread that runs the queue pair looks at its events.
func (a *activity) begin() { a.state.Store(running) }

// rest ends the run, unless there has been an event since begin. It reports whether it did.
func (a *activity) rest() bool { return a.state.CompareAndSwap(running, resting) }

// event is something that a queue pair has to deal with: exactly one of these.
type event struct {
	train   *train   // packets from a device of the Fabric
	waiting *waiting // packets from the network, which came while another thread ran the queue pair
	task    *task
}

// events are what a queue pair has still to deal with, in order. Each is followed by a wake.
type events struct {
	any atomic.Bool // list is not empty

	mu    sync.Mutex
	list  []event
	spare []event // empty
}

func (e *events) add(v event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, v)
	e.any.Store(true)
}

// addTrain adds a train, which counts among those that its sender has handed over until it is taken; of a slow program, in
// its lane instead. It reports false where there is no room for it.
func (e *events) addTrain(t *train, l *lane) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.slow.Load() {
		if !l.charge(len(t.Buf)) {
			return false
		}
		t.charged = true
		t.shrink()
	} else {
		t.from.egress.handed.Add(1)
	}
	e.list = append(e.list, event{train: t})
	e.any.Store(true)
	return true
}

// remove takes a task out again, if it is still there.
func (e *events) remove(t *task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = slices.DeleteFunc(e.list, func(v event) bool { return v.task == t })
}

// take returns all events, which recycle gives back.
func (e *events) take() []event {
	if !e.any.Load() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list, e.spare = e.spare, nil
	e.any.Store(false)
	return list
}

func (e *events) recycle(list []event) {
	if list == nil {
		return
	}
	clear(list)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spare = list[:0]
}

// wake makes the pass run the queue pair, unless another thread, or another place in its run queue, is going to.
func (p *pass) wake(qp *QP) {
	if qp.activity.wake() {
		p.todo = append(p.todo, qp)
	}
}

// end runs what is in the run queue, and gives the pass back. A pass that takes long is finished by a goroutine, unless the
// thread has nothing else to do.
func (p *pass) end() {
	if finished := p.drain(passBudget); !finished {
		if p.held.Resume(p) {
			return
		}
		p.letGo()
		p.dev.workers.start(p.goOn)
		return
	}
	p.letGo()
	p.release()
}

// goOn finishes the pass on a goroutine.
func (p *pass) goOn() {
	defer p.caughtHolding()
	p.method = nil
	for finished := false; !finished; {
		p.held = &p.own
		finished = p.drain(passBudget)
		p.letGo()
	}
	p.release()
}

// Run implements ib.Work: the end of a doorbell.
func (p *pass) Run() { p.finish() }

func (p *pass) release() {
	clear(p.todo)
	p.todo, p.done, p.spent, p.at, p.last, p.lane, p.method, p.takes = p.todo[:0], 0, 0, nil, nil, nil, nil, false
	p.dev.passes.Put(p)
}

// drain runs queue pairs until none is left, and reports true, or until the budget is spent.
func (p *pass) drain(budget int) bool {
	p.takes = true
	p.spent = 0
	for p.take(); p.done < len(p.todo); p.take() {
		if p.spent > budget {
			return false
		}
		p.step()
		if p.done > 64 {
			p.todo = append(p.todo[:0], p.todo[p.done:]...)
			p.done = 0
		}
	}
	return true
}

// step runs the next queue pair.
func (p *pass) step() {
	qp := p.todo[p.done]
	p.done++
	if p.avoids(qp) {
		p.forgiveOne(qp)
		qp.lane.add(qp)
	} else {
		p.run(qp, nil, nil)
	}
}

// run does all that there is to do for a queue pair, whose activity says running; packets that have arrived for it
// just now come first.
func (p *pass) run(qp *QP, a *link.Arrival, packets [][]byte) {
	if qp.dev.broken.Load() {
		p.forgiveOne(qp)
		return // it stays as it is
	}
	p.last = qp
	p.runs++
	p.hold(qp.dev)
	qp.activity.begin()
	if packets != nil {
		qp.receive(p, a, packets)
	}
	list := qp.events.take()
	for i := range list {
		if t := list[i].train; t != nil {
			p.taken(t)
		}
	}
	for i := range list {
		switch e := &list[i]; {
		case e.train != nil:
			p.receiveTrain(qp, e.train)
		case e.waiting != nil:
			p.spent += len(e.waiting.buf) + trainCost
			qp.receive(p, &e.waiting.Arrival, e.waiting.Packets)
			qp.lane.uncharge(len(e.waiting.buf))
			e.waiting.free()
		default:
			if i > 0 || packets != nil { // what those before it have led to is sent, even if it destroys the queue pair
				qp.advance(p)
				p.sendAll(qp)
			}
			e.task.run(p)
		}
	}
	qp.events.recycle(list)
	if qp.timer.fired.Load() {
		qp.timer.expired(p)
	}
	qp.advance(p)
	more := p.sendAll(qp)
	qp.publish()
	if more || !qp.activity.rest() {
		p.todo = append(p.todo, qp)
	}
}

// sendAll sends the trains of the egress queue, and reports whether there may be more to send now.
func (p *pass) sendAll(qp *QP) (more bool) {
	e := &qp.egress
	if e.blocked {
		e.fill()
		return false
	}
	p.urgent = len(e.queue) > 0 && qp.urgent()
	for i, t := range e.queue {
		t.QP, t.SPort = qp.num, qp.sport
		if qp.trace != nil {
			qp.trace.packet(traceSend, t.span(0), uint32(t.packets))
		}
		if !p.send(qp, t) {
			e.cut(i)
			e.fill()
			p.endDelivery()
			qp.timer.block()
			return false
		}
	}
	e.cut(len(e.queue))
	p.endDelivery()
	if !e.short || e.full() {
		return false
	}
	e.short = false
	return true
}

// send hands a train of the queue pair to the device that it is for, or to the network, and frees it. It reports
// false, and does not free it, when the socket is full.
func (p *pass) send(qp *QP, t *train) bool {
	from := t.path.from
	d, peer := from.dev, t.path.peer()
	if peer != nil && peer.intruded(qp, t) {
		t.free()
		return true
	}
	p.spent += len(t.Buf) + trainCost
	if !from.ready() { // as without a route (rxe_find_route)
		d.counters.add(cntSendErr, t.packets-t.sent)
		t.free()
		return true
	}
	if t.sent == 0 && peer != nil && d.allowsShortcut() && peer.allowsShortcut() && peer.at.Load().up() {
		d.counters.add(cntSentPkts, t.packets)
		d.counters.add(cntSentShortcut, t.packets)
		if d.taps.On() || peer.taps.On() {
			tapShortcut(d, peer, from.addr, t)
		}
		p.hand(qp, peer, t)
		return true
	}
	p.claim(t.path)
	if t.mixed { // the way has changed since it was built; what is left then follows by the network, come what may
		if !t.each(t.sent, func(x *link.Train) bool {
			ok := from.transmit(x, 1)
			if ok {
				t.sent++
			}
			return ok
		}) {
			return false
		}
	} else if !from.transmit(&t.Train, t.packets) {
		return false
	}
	t.free()
	return true
}

// transmit sends packets to the network, and counts them. It reports false if the socket is full.
func (e *endpoint) transmit(t *link.Train, packets int) bool {
	switch err := e.send(t); {
	case err == nil:
		e.dev.counters.add(cntSentPkts, packets)
	case errors.Is(err, link.ErrAgain):
		return false
	default:
		e.dev.counters.add(cntSendErr, packets)
	}
	return true
}

// hand makes a train an event of the queue pair that it is for, on a device of the Fabric.
func (p *pass) hand(qp *QP, peer *Device, t *train) {
	peer.counters.add(cntRcvdPkts, t.packets)
	to := peer.qp(t.to)
	if to == nil {
		peer.counters.add(cntDropNobody, t.packets)
		t.free()
		return
	}
	if t.refers() {
		if p.deliver(to, t) {
			return
		}
		t.fill()
	}
	t.from = qp
	if !to.events.addTrain(t, to.lane) {
		peer.counters.add(cntDropStalled, t.packets)
		t.free()
		return
	}
	p.wake(to)
}

// taken notes that a queue pair is about to receive a train that was handed to it. Its sender goes on if it has waited for
// that.
func (p *pass) taken(t *train) {
	if !t.charged && t.from.egress.handed.Add(-1) == maxHanded-1 {
		p.wake(t.from)
	}
	t.from = nil
}

// receiveTrain has a queue pair receive a train of a device of the Fabric.
func (p *pass) receiveTrain(qp *QP, t *train) {
	p.spent += len(t.Buf) + trainCost
	qp.receiveTrain(p, t)
	if t.charged {
		qp.lane.uncharge(len(t.Buf))
		t.charged = false
	}
	t.free()
}

// tapShortcut shows a train as it would look on the wire: one device sends it, then the other gets it.
func tapShortcut(d, peer *Device, src netip.Addr, t *train) {
	now, from := d.clock.Now(), netip.AddrPortFrom(src, cmp.Or(t.SPort, link.Port))
	t.each(0, func(x *link.Train) bool {
		d.taps.Train(&link.Tapped{Out: true, Unsealed: true}, now, from, x, 0)
		peer.taps.Train(&link.Tapped{Unsealed: true}, now, from, x, 0)
		return true
	})
}

// defaultTTL is that of packets whose address vector does not say.
const defaultTTL = 64

// egressRetry is when to try again after the socket was full. It drains in well less than that.
const egressRetry = 100 * time.Microsecond

// deliver makes a queue pair receive a train that refers to memory. It reports false where the train has to wait:
// another thread runs the receiver, another event precedes it, or the receiver has to store where a copy may be
// stopped.
func (p *pass) deliver(to *QP, t *train) bool {
	if to != p.receiver {
		if p.receiver != nil || p.avoids(to) || !p.mayRun(to) || !to.activity.wake() {
			return false
		}
		p.receiver = to
	}
	if to.dev.broken.Load() || to.events.any.Load() || !to.storesDirectly(t.key) {
		return false
	}
	p.hold(to.dev)
	p.inline = true
	p.receiveTrain(to, t)
	p.inline = false
	return true
}

// endDelivery puts the queue pair that has received into the run queue. Before, the watchdog could have given it from
// there to another thread.
func (p *pass) endDelivery() {
	if p.receiver != nil {
		p.todo = append(p.todo, p.receiver)
		p.receiver = nil
	}
}

// storesDirectly reports whether writing by a key waits for no program. If the key stands for other memory when the
// receiver stores, there has been a time in between when it stood for none, and the peer is refused as then.
func (qp *QP) storesDirectly(key uint32) bool {
	g := qp.memory(qp.resp.domain(), key, ib.AccessRemoteWrite)
	if g == nil {
		return true
	}
	defer g.put()
	return g.direct(g.first, g.length) != nil
}

// maxUrgent is the largest number of bytes that one thread moves sooner than two.
const maxUrgent = 128 << 10

// urgent reports whether a program waits for the packets in the egress queue. A program always waits for responses.
func (qp *QP) urgent() bool {
	n := 0
	for _, t := range qp.egress.queue {
		n += len(t.Buf)
	}
	w := &qp.req.waits
	switch {
	case n > maxUrgent:
		return false
	case w.answers:
		return true
	case reliable(qp.typ):
		return qp.req.snd.Len() == 0 || w.polls && qp.sendCQ.hasPolled(0)
	}
	return w.polls && qp.sendCQ.hasPolled(1) // its own is there by now
}
