package engine

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/driver"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

// run does all possible work of a queue pair that this thread owns. It begins with packets, which have just arrived.
func (p *pass) run(qp *QP, a *link.Arrival, packets [][]byte) {
	if qp.dev.broken.Load() {
		p.forgiveOne(qp)
		return // the queue pair keeps its state
	}
	p.last = qp
	p.runs++
	p.hold(qp.dev)
	qp.activity.begin()
	if t := qp.trace.requestLog(); t != nil {
		t.began, t.spent = qp.dev.tick(), false
	}
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
			qp.receiveTrain(p, e.train)
		case e.waiting != nil:
			p.spent += len(e.waiting.buf) + trainCost
			qp.receive(p, &e.waiting.Arrival, e.waiting.Packets)
			qp.lane.uncharge(len(e.waiting.buf))
			e.waiting.free()
		default:
			if i > 0 || packets != nil { // send first: the task may destroy the queue pair
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
	if qp.srd != nil && qp.srd.more {
		more = true
	}
	p.spent += qp.failures * failCost
	qp.failures = 0
	qp.publish()
	if more || !qp.activity.rest() {
		p.todo = append(p.todo, qp)
	}
}

// taken takes a train out of the count of its sender, before a queue pair receives the train. It wakes a sender that
// waits for this.
func (p *pass) taken(t *train) {
	if !t.charged && t.from.egress.handed.Add(-1) == maxHanded-1 {
		p.wake(t.from)
	}
	t.from = nil
}

// receive handles packets of the network for the queue pair.
func (qp *QP) receive(p *pass, a *link.Arrival, packets [][]byte) {
	if qp.dev.stopped.Load() {
		return
	}
	for _, b := range packets {
		k := packet{packets: 1, src: a.Src, dst: a.Dst, tos: a.TOS, ttl: a.TTL}
		qp.receiveSpan(p, &k, b, nil)
	}
	qp.settle(p)
}

// receiveTrain handles a train from a device of the Fabric, and frees it.
func (qp *QP) receiveTrain(p *pass, t *train) {
	p.spent += len(t.Buf) + trainCost
	if !qp.dev.stopped.Load() {
		for i := range t.spans {
			b, s := t.span(i), &t.spans[i]
			k := packet{packets: s.packets, src: t.path.from.addr, dst: t.Dst, tos: t.TOS, ttl: cmp.Or(t.TTL, defaultTTL)}
			qp.receiveSpan(p, &k, b[:len(b)-link.ICRCLen], s.mem)
		}
		qp.settle(p)
		p.split.payload = nil // the payload may be in memory that goes away
	}
	if t.charged {
		qp.lane.uncharge(len(t.Buf))
		t.charged = false
	}
	t.free()
}

// settle stores the data of the received packets.
func (qp *QP) settle(p *pass) {
	if qp.srd != nil {
		qp.srd.settle(p)
	} else {
		p.settle(qp)
	}
}

// packet is a received packet, or a span of several with the headers of the first and the payload of all.
type packet struct {
	roce.Packet // Data ends before the ICRC
	psn         roce.PSN
	packets     int // number in the span
	src, dst    netip.Addr
	tos, ttl    uint8
}

// receiveSpan handles a span. mem, if not nil, is the payload. Several packets are handled at once if they only have
// to be stored, and one by one otherwise.
func (qp *QP) receiveSpan(p *pass, k *packet, b, mem []byte) {
	if why := qp.parse(k, b); why != accept {
		qp.take(p, k, b, why)
		return
	}
	if mem != nil {
		k.Payload = mem
	}
	n, why := 0, qp.check(k)
	switch {
	case k.packets == 1:
		qp.take(p, k, b, why)
		return
	case why != accept || qp.trace.protocolOn():
	case k.Flags&roce.FlagResponse != 0:
		n = qp.req.receiveSpan(p, k)
	default:
		n = qp.resp.receiveSpan(p, k)
	}
	s := &p.split
	if n < k.packets {
		s.set(b[:k.Opcode.HeaderLen()], k.Payload, k.packets)
	}
	for packets := k.packets; n < packets; n++ {
		k.packets = 1
		k.Data, k.Payload = s.packet(n)
		k.psn = k.BTH().PSN()
		qp.take(p, k, k.Data, qp.check(k))
	}
}

// take handles a packet, or drops it if why is not accept.
func (qp *QP) take(p *pass, k *packet, b []byte, why counter) {
	if why != accept {
		qp.dev.counters.add(why, 1)
		qp.trace.packet(traceDrop, b, uint32(why))
		qp.report().drop(b, k.src, why)
		if k.Flags&(roce.FlagRequest|roce.FlagSRDETH) == roce.FlagRequest|roce.FlagSRDETH && qp.srd != nil {
			switch {
			case why == cntDropState && qp.state == ib.QPErr:
				qp.srd.refuseUnknown(k, roce.SRDAborted)
			case why == cntDropQKey: // in a train with packets that have the right Q_Key
				qp.srd.refuseUnknown(k, roce.SRDBadDestQPN)
			}
		}
		return
	}
	if t := qp.trace; t != nil {
		t.packet(traceReceive, b, 0)
		if t.requests != nil {
			t.requests.packetArrived(k)
		}
	}
	switch {
	case qp.srd != nil:
		qp.srd.receive(p, k)
	case k.Flags&roce.FlagResponse != 0:
		qp.req.receiveResponse(p, k)
	default:
		qp.req.waits.heard = true
		qp.resp.receive(p, k)
	}
}

// parse checks that a packet is well-formed. It returns the reason to drop it, or accept.
func (qp *QP) parse(k *packet, b []byte) counter {
	var err error
	if k.Packet, err = roce.ParseBody(b); err != nil {
		return malformed(err)
	}
	k.psn = k.BTH().PSN()
	return accept
}

// check checks that the queue pair may receive a packet in its present state: service, state, partition, and the
// addresses of a connection or the Q_Key. It returns the reason to drop the packet, or accept. (hdr_check)
func (qp *QP) check(k *packet) counter {
	switch {
	case k.Opcode.Service() != qp.wire:
		return cntDropService
	case k.BTH().PKey()&^pkeyFull != roce.DefaultPKey&^pkeyFull:
		return cntDropPKey
	}
	response := k.Flags&roce.FlagResponse != 0
	if qp.typ == ib.QPTypeXRCInit && !response || qp.typ == ib.QPTypeXRCTgt && response {
		return cntDropService // initiators only receive responses, and targets only requests
	}
	ready := qp.state == ib.QPRTR || qp.state == ib.QPRTS || qp.state == ib.QPSQD || qp.state == ib.QPSQE
	if response {
		ready = qp.state == ib.QPRTS || qp.state == ib.QPSQD
	}
	switch {
	case !ready || qp.life == destroyed:
		return cntDropState
	case !qp.datagram && (qp.path == nil || k.src != qp.path.dst || k.dst != qp.path.from.addr):
		return cntDropSource
	case response && qp.datagram: // the identifier of the flow takes the place of the key
	case qp.datagram && k.DETH().QKey() != qkeyOf(qp):
		return cntDropQKey
	case qp.datagram && echoes(qp, k):
		return cntDropEcho
	}
	return accept
}

// accept is the result of check for a packet that is not dropped.
const accept = numCounters

// pkeyFull is the bit of a P_Key that distinguishes full from limited members.
const pkeyFull = 0x8000

// advance does the work that is possible now, and adds packets to the egress queue, for the pass to send.
func (qp *QP) advance(p *pass) {
	stopped := qp.dev.stopped.Load()
	if stopped {
		qp.egress.drop()
	}
	if qp.life >= detached {
		return // its last packets have been sent
	}
	if qp.life == ringless && qp.state != ib.QPErr && qp.state != ib.QPReset {
		qp.enterError(driver.StateCause{Reason: driver.ByQueueMemory})
	}
	if !stopped {
		if qp.srd != nil {
			qp.srd.answer(p)
		}
		qp.resp.answer(p)
	} else if qp.state != ib.QPErr {
		return
	}
	if qp.state == ib.QPRTS || qp.state == ib.QPSQD {
		qp.req.run(p)
	}
	if qp.state != ib.QPRTS && qp.state != ib.QPSQD {
		p.fill(qp) // before completions return the memory to the consumer
	}
	if qp.state == ib.QPSQE {
		qp.req.flush() // enters ERR if a completion is lost
	}
	if qp.state == ib.QPErr {
		qp.flush()
	}
	qp.timer.rearm()
}

// flush completes all work requests with a flush error. It does not wait for the memory of a program.
func (qp *QP) flush() {
	qp.req.flush()
	qp.resp.flush()
}

// sendAll sends the trains of the egress queue, and reports whether there may be more to send now.
func (p *pass) sendAll(qp *QP) (more bool) {
	e := &qp.egress
	if e.blocked {
		e.fill()
		return false
	}
	e.bytes = 0
	for _, t := range e.queue {
		e.bytes += len(t.Buf)
	}
	port := qp.sport
	if qp.srd != nil && len(e.queue) > 0 { // the number of runs without packets depends on the scheduler
		port = qp.srd.sourcePort()
	}
	for _, t := range e.queue {
		t.QP, t.SPort = qp.num, port
	}
	for i := 0; i < len(e.queue); {
		n, ok := p.send(qp, e.queue[i:])
		i += n
		if !ok {
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

// maxUrgent is the maximum number of bytes that one thread moves faster than two.
const maxUrgent = 128 << 10

// urgent reports whether a program waits for the packets in the egress queue. A program always waits for responses.
func (qp *QP) urgent() bool {
	w := &qp.req.waits
	switch {
	case qp.egress.bytes > maxUrgent:
		return false
	case w.answers:
		return true
	case qp.reliable:
		return qp.req.snd.Len() == 0 || w.polls && qp.sendCQ.hasPolled(0)
	}
	return w.polls && qp.sendCQ.hasPolled(1) // the queue already has its own completion
}

// send hands the first trains of a list to their destination, a device of the Fabric or the network, and frees them.
// It returns their number, and false if the socket has no room for the next train.
func (p *pass) send(qp *QP, list []*train) (int, bool) {
	t := list[0]
	if qp.trace != nil {
		qp.trace.packet(traceSend, t.span(0), uint32(t.packets))
	}
	from := t.path.from
	d, peer := from.dev, t.path.peer()
	var to *QP
	if peer != nil {
		if to = peer.qp(t.to); intrudes(qp, to) {
			peer.counters.add(cntDropSource, t.packets)
			to.report().intruder(t)
			t.free()
			return 1, true
		}
	}
	p.spent += len(t.Buf) + trainCost
	if !from.ready() { // as without a route (rxe_find_route)
		d.counters.add(cntSendErr, t.packets-t.sent)
		qp.report().unsent(t)
		t.free()
		return 1, true
	}
	if t.sent == 0 && peer != nil && d.allowsShortcut() && peer.allowsShortcut() && peer.at.Load().up() {
		d.counters.add(cntSentPkts, t.packets)
		d.counters.add(cntSentShortcut, t.packets)
		d.countTrain(cntTxBytes, t)
		if d.taps.On() || peer.taps.On() {
			tapShortcut(d, peer, from.addr, t)
		}
		p.hand(qp, peer, to, t)
		return 1, true
	}
	p.claim(qp, t.path)
	if t.mixed { // the path has changed since then: the rest goes over the network
		if !t.each(t.sent, func(x *link.Train) bool {
			ok := from.transmit(qp, x, 1)
			if ok {
				t.sent++
			}
			return ok
		}) {
			return 0, false
		}
		t.free()
		return 1, true
	}
	n := 1
	for ; n < min(len(list), len(p.batch)) && list[n].path == t.path && list[n].to == t.to && !list[n].mixed; n++ {
		p.spent += len(list[n].Buf) + trainCost
		p.claim(qp, t.path)
	}
	n, ok := from.transmitAll(p, qp, list[:n])
	for i, t := range list[:n] {
		if i > 0 && qp.trace != nil {
			qp.trace.packet(traceSend, t.span(0), uint32(t.packets))
		}
		t.free()
	}
	return n, ok
}

// refuses returns the reason for which a train does not reach the queue pair to, which may be nil, or accept.
func (p *pass) refuses(qp, to *QP, t *train) counter {
	switch {
	case to == nil:
		return cntDropNobody
	case qp.datagram:
		return to.refusesTrain(t)
	}
	return accept
}

// hand adds a train to the events of its destination, to, on a device of the Fabric. to is nil if there is none.
func (p *pass) hand(qp *QP, peer *Device, to *QP, t *train) {
	peer.counters.add(cntRcvdPkts, t.packets)
	peer.countTrain(cntRxBytes, t)
	if why := p.refuses(qp, to, t); why != accept {
		peer.countRefused(t.span(0), t.packets, why)
		if to == nil {
			peer.observeUnknown(t.to, t.path.from.addr, t.span(0), t.packets)
		} else {
			to.report().refused(t.span(0), t.path.from.addr, t.packets, why)
		}
		if qp.srd != nil {
			qp.srd.unknown(t)
			p.wake(qp)
		}
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

// deliver makes a queue pair receive a train that refers to memory. It returns false if the train must wait: another
// thread runs the receiver, another event precedes the train, or the receiver stores to memory where a copy may
// block.
func (p *pass) deliver(to *QP, t *train) bool {
	if to != p.receiver {
		if p.receiver != nil || !p.acquire(to) {
			return false
		}
		p.receiver = to
	}
	if to.dev.broken.Load() || to.events.any.Load() || !to.storesDirectly(t.key) {
		return false
	}
	p.hold(to.dev)
	p.inline = true
	to.receiveTrain(p, t)
	p.inline = false
	return true
}

// storesDirectly reports whether a write by a key waits for no program, and for no data of earlier writes. If the key
// refers to other memory by the time of the store, the store may fail: in between, the key has referred to no memory,
// and the peer is refused as at that time.
func (qp *QP) storesDirectly(key uint32) bool {
	g := qp.memory(qp.resp.domain(), key, ib.AccessRemoteWrite)
	if g == nil {
		return true
	}
	defer g.put()
	return qp.writes == nil && g.direct(g.first, g.length) != nil
}

// endDelivery puts the receiver into the run queue. Earlier, the watchdog could have given it from the run queue to
// another thread.
func (p *pass) endDelivery() {
	if p.receiver != nil {
		p.todo = append(p.todo, p.receiver)
		p.receiver = nil
	}
}

// tapShortcut reports a train to the taps in its form on the wire: one device sends it, then the other receives it.
func tapShortcut(d, peer *Device, src netip.Addr, t *train) {
	now, from := d.clock.Now(), netip.AddrPortFrom(src, cmp.Or(t.SPort, link.Port))
	t.each(0, func(x *link.Train) bool {
		d.taps.Train(&link.Tapped{Out: true, Unsealed: true}, now, from, x, 0)
		peer.taps.Train(&link.Tapped{Unsealed: true}, now, from, x, 0)
		return true
	})
}

// defaultTTL is the TTL of packets if the address vector has none.
const defaultTTL = 64

// publish stores the PSNs for other threads.
func (qp *QP) publish() {
	psns := uint64(qp.resp.rcv.PSN())<<32 | uint64(qp.req.snd.Place())
	if psns != qp.psns.Load() {
		qp.psns.Store(psns)
	}
}

// expired does the due work after the timer has fired. The pass runs the queue pair.
func (t *timer) expired(p *pass) {
	qp := t.qp
	t.fired.Store(false)
	t.at = noTime
	if qp.life >= detached || qp.dev.stopped.Load() && qp.state != ib.QPErr {
		return
	}
	now := qp.dev.clock.Now()
	due := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = noTime
		return true
	}
	if due(&t.unblock) {
		qp.egress.blocked = false
	}
	if due(&t.reflush) {
		t.quiet++
	}
	if qp.srd != nil {
		qp.srd.expire(qp.dev.tick())
	}
	switch qp.req.snd.Tick(now) {
	case transport.AckTimeout:
		qp.req.timedOut()
	case transport.ProbeDue:
		qp.req.probe(p)
	}
}

// rearm sets the timer for the earliest deadline.
func (t *timer) rearm() {
	qp := t.qp
	if qp.state == ib.QPErr && qp.ctx != nil && qp.life == whole {
		if t.reflush.IsZero() {
			t.reflush = qp.dev.clock.Now().Add(reflushPeriod << min(t.quiet, reflushPatience))
		}
	} else {
		t.reflush, t.quiet = noTime, 0
	}
	at := earliest(qp.req.snd.Deadline(), earliest(t.unblock, t.reflush))
	if qp.srd != nil {
		if d := qp.srd.timers.next(); d != 0 {
			at = earliest(at, qp.dev.clock.Now().Add(time.Duration(d-qp.dev.tick())))
		}
	}
	if at.IsZero() || !t.at.IsZero() && !at.Before(t.at) {
		return
	}
	t.at = at
	t.t.Reset(at.Sub(qp.dev.clock.Now()))
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// activity is the scheduling state of a queue pair: resting, running (or in a run queue), or running with a new event.
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

// wake records an event. It reports whether the queue pair was resting; if so, the caller must run it.
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

// begin is called before the thread that runs the queue pair takes its events.
func (a *activity) begin() { a.state.Store(running) }

// rest ends the run, unless an event has come since begin. It reports whether the run has ended.
func (a *activity) rest() bool { return a.state.CompareAndSwap(running, resting) }

// event is an event of a queue pair. Exactly one field is set.
type event struct {
	train   *train   // packets from a device of the Fabric
	waiting *waiting // packets from the network that came while another thread ran the queue pair
	task    *task
}

// events holds the unhandled events of a queue pair, in order. A wake follows each addition.
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

// addTrain adds a train. Until it is taken, the train counts as handed over by its sender or, if the program is slow,
// among the waiting packets of the program (lane.charge). addTrain returns false if there is no room for the train.
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

// remove removes a task that has not been taken yet.
func (e *events) remove(t *task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = slices.DeleteFunc(e.list, func(v event) bool { return v.task == t })
}

// take returns all events. recycle takes the list back.
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
