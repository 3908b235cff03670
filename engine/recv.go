package engine

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

// packet is a packet that has arrived, or a span of several, with the headers of the first and the payload of all.
type packet struct {
	roce.Packet // Data ends before the ICRC
	psn         roce.PSN
	packets     int // in the span
	src, dst    netip.Addr
	tos, ttl    uint8
}

// Receive implements link.Receiver: packets that came from the network.
func (e *endpoint) Receive(a *link.Arrival) {
	if !e.dev.at.Load().up() {
		e.dev.counters.add(cntDropPortDown, len(a.Packets)) // it gets nothing
		return
	}
	if p, ok := a.By.(*pass); ok {
		p.spent += lenOf(a.Packets) + trainCost
		p.receive(e.dev, a)
		return
	}
	//verbena:allow nosleep a method that sends and receives comes as Arrival.By: this is a receive thread
	//verbena:allow callback a method that sends and receives comes as Arrival.By: this is a receive thread
	e.receive(a)
}

// receive does it on a thread of the network's.
func (e *endpoint) receive(a *link.Arrival) {
	p := e.dev.begin(true)
	defer p.caughtHolding()
	p.takes = true
	p.receive(e.dev, a)
	p.end()
}

// receive hands packets to the queue pairs that they are for, each run of packets for one of them at once.
// (rxe_rcv)
func (p *pass) receive(d *Device, a *link.Arrival) {
	packets, multicast := a.Packets, a.Dst.IsMulticast()
	d.counters.add(cntRcvdPkts, len(packets))
	for len(packets) > 0 && !a.Dropped() {
		if len(packets[0]) < roce.BTHLen {
			d.counters.add(malformed(roce.DropTooShort), 1)
			packets = packets[1:]
			continue
		}
		num := roce.BTH(packets[0]).DestQPN()
		n := 1
		for n < len(packets) && len(packets[n]) >= roce.BTHLen && roce.BTH(packets[n]).DestQPN() == num {
			n++
		}
		switch qp := d.qp(num); {
		case multicast:
			if num == roce.QPNMulticast {
				p.receiveGroup(d, a, packets[:n])
			} else {
				d.counters.add(cntDropNobody, n)
			}
		case qp != nil:
			p.arrive(qp, a, packets[:n])
		default:
			d.counters.add(cntDropNobody, n)
		}
		packets = packets[n:]
	}
}

// arrive has a queue pair receive packets of the network: now, or, if it is being run, later.
func (p *pass) arrive(qp *QP, a *link.Arrival, packets [][]byte) {
	if qp.dev.stopped.Load() {
		return
	}
	if !p.avoids(qp) && p.mayRun(qp) && qp.activity.wake() {
		p.run(qp, a, packets)
		return
	}
	if !qp.lane.charge(lenOf(packets)) {
		qp.dev.counters.add(cntDropStalled, len(packets))
		return
	}
	qp.events.add(event{waiting: copyOf(a, packets)})
	p.wake(qp)
}

// lenOf returns the number of bytes of packets.
func lenOf(packets [][]byte) (n int) {
	for _, b := range packets {
		n += len(b)
	}
	return n
}

// waiting is packets of the network that wait for the queue pair, in memory of their own.
type waiting struct {
	link.Arrival
	buf []byte
}

var waitingPool = sync.Pool{New: func() any { return new(waiting) }}

// copyOf returns a copy of packets of an arrival, to be freed.
func copyOf(a *link.Arrival, packets [][]byte) *waiting {
	w := waitingPool.Get().(*waiting)
	w.Src, w.Dst, w.TOS, w.TTL = a.Src, a.Dst, a.TOS, a.TTL
	w.buf = slices.Grow(w.buf[:0], lenOf(packets))
	w.Packets = w.Packets[:0]
	for _, b := range packets {
		w.buf = append(w.buf, b...)
		w.Packets = append(w.Packets, w.buf[len(w.buf)-len(b):len(w.buf):len(w.buf)])
	}
	return w
}

func (w *waiting) free() { waitingPool.Put(w) }

// receive handles packets of the network for the queue pair.
func (qp *QP) receive(p *pass, a *link.Arrival, packets [][]byte) {
	if qp.dev.stopped.Load() {
		return
	}
	for _, b := range packets {
		k := packet{packets: 1, src: a.Src, dst: a.Dst, tos: a.TOS, ttl: a.TTL}
		qp.receiveSpan(p, &k, b, nil)
	}
	p.settle(qp)
}

// receiveTrain handles a train of a device of the Fabric.
func (qp *QP) receiveTrain(p *pass, t *train) {
	if qp.dev.stopped.Load() {
		return
	}
	for i := range t.spans {
		b, s := t.span(i), &t.spans[i]
		k := packet{packets: s.packets, src: t.path.from.addr, dst: t.Dst, tos: t.TOS, ttl: cmp.Or(t.TTL, defaultTTL)}
		qp.receiveSpan(p, &k, b[:len(b)-link.ICRCLen], s.mem)
	}
	p.settle(qp)
	p.split.payload = nil // which may have been in memory that goes away
}

// receiveSpan handles a span. mem, if it is not nil, is its payload. Several packets are handled at once if each has
// only to be stored, and one by one otherwise.
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
	case why != accept || qp.trace != nil:
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

// take handles a packet, unless it is to be dropped.
func (qp *QP) take(p *pass, k *packet, b []byte, why counter) {
	if why != accept {
		qp.dev.counters.add(why, 1)
		qp.trace.packet(traceDrop, b, uint32(why))
		return
	}
	qp.trace.packet(traceReceive, b, 0)
	if k.Flags&roce.FlagResponse != 0 {
		qp.req.receiveResponse(p, k)
	} else {
		qp.req.waits.heard = true
		qp.resp.receive(p, k)
	}
}

// serviceOf is the transport service of a type of queue pair.
func serviceOf(t ib.QPType) roce.Service {
	switch t {
	case ib.QPTypeUC:
		return roce.UC
	case ib.QPTypeUD, ib.QPTypeGSI:
		return roce.UD
	case ib.QPTypeXRCInit, ib.QPTypeXRCTgt:
		return roce.XRC
	}
	return roce.RC
}

// accept is what check returns for a packet that is not to be dropped.
const accept = numCounters

// parse checks that a packet is well-formed. What it returns says why it is to be dropped.
func (qp *QP) parse(k *packet, b []byte) counter {
	var err error
	if k.Packet, err = roce.ParseBody(b); err != nil {
		return malformed(err)
	}
	k.psn = k.BTH().PSN()
	return accept
}

// check checks that a packet may be for this queue pair as it is now: service, state, partition, and the addresses of a
// connection or the Q_Key. What it returns says why the packet is to be dropped. (hdr_check)
func (qp *QP) check(k *packet) counter {
	switch {
	case k.Opcode.Service() != serviceOf(qp.typ):
		return cntDropService
	case k.BTH().PKey()&^pkeyFull != roce.DefaultPKey&^pkeyFull:
		return cntDropPKey
	}
	response := k.Flags&roce.FlagResponse != 0
	if qp.typ == ib.QPTypeXRCInit && !response || qp.typ == ib.QPTypeXRCTgt && response {
		return cntDropService // each has one half of it
	}
	ready := qp.state == ib.QPRTR || qp.state == ib.QPRTS || qp.state == ib.QPSQD || qp.state == ib.QPSQE
	if response {
		ready = qp.state == ib.QPRTS || qp.state == ib.QPSQD
	}
	switch {
	case !ready || qp.life == destroyed:
		return cntDropState
	case !datagram(qp.typ) && (qp.path == nil || k.src != qp.path.dst || k.dst != qp.path.from.addr):
		return cntDropSource
	case datagram(qp.typ) && k.DETH().QKey() != qkeyOf(qp):
		return cntDropQKey
	case datagram(qp.typ) && echoes(qp, k):
		return cntDropEcho
	}
	return accept
}

// pkeyFull is the bit of a P_Key that tells full from limited members.
const pkeyFull = 0x8000
