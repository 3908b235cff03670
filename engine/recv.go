package engine

import (
	"slices"
	"sync"

	"verbena/link"
	"verbena/roce"
)

// Receive implements link.Receiver: it handles packets from the network.
func (e *endpoint) Receive(a *link.Arrival) {
	if !e.dev.at.Load().up() {
		e.dev.counters.add(cntDropPortDown, len(a.Packets)) // the port receives nothing
		return
	}
	if p, ok := a.By.(*pass); ok {
		p.spent += lenOf(a.Packets) + trainCost
		p.receive(e.dev, a)
		return
	}
	//verbena:allow nosleep this is a receive thread: a method that also receives has Arrival.By
	//verbena:allow callback this is a receive thread: a method that also receives has Arrival.By
	e.receive(a)
}

// receive handles packets on a receive thread of the network.
func (e *endpoint) receive(a *link.Arrival) {
	p := e.dev.begin(true)
	defer p.caughtHolding()
	p.takes = true
	p.receive(e.dev, a)
	p.end()
}

// receive hands packets to their queue pairs, each run of packets for one queue pair at once. (rxe_rcv)
func (p *pass) receive(d *Device, a *link.Arrival) {
	packets, multicast := a.Packets, a.Dst.IsMulticast()
	d.counters.add(cntRcvdPkts, len(packets))
	if d.traits.MessageCounters {
		n := 0
		for _, k := range packets {
			n += len(k) + roce.ICRCLen
		}
		d.counters.add(cntRxBytes, n)
	}
	for len(packets) > 0 && !a.Dropped() {
		if len(packets[0]) < roce.BTHLen {
			d.counters.add(malformed(roce.DropTooShort), 1)
			packets = packets[1:]
			continue
		}
		num := roce.BTH(packets[0]).DestQPN()
		qp, why := d.qp(num), counter(accept)
		if qp != nil {
			why = qp.refuses(packets[0])
		}
		n := 1
		for n < len(packets) && len(packets[n]) >= roce.BTHLen && roce.BTH(packets[n]).DestQPN() == num &&
			(qp == nil || qp.refuses(packets[n]) == why) {
			n++
		}
		switch {
		case multicast:
			if num == roce.QPNMulticast {
				p.receiveGroup(d, a, packets[:n])
			} else {
				d.counters.add(cntDropNobody, n)
			}
		case qp != nil && why == accept:
			p.arrive(qp, a, packets[:n])
		case qp != nil:
			d.countRefused(packets[0], n, why)
			qp.report().refused(packets[0], a.Src, n, why)
			d.refusesUnknown(num, a, packets[:n])
		default:
			d.counters.add(cntDropNobody, n)
			d.observeUnknown(num, a.Src, packets[0], n)
			d.refusesUnknown(num, a, packets[:n])
		}
		packets = packets[n:]
	}
}

// arrive hands packets from the network to a queue pair. If the pass cannot run the queue pair now, the packets wait.
func (p *pass) arrive(qp *QP, a *link.Arrival, packets [][]byte) {
	if qp.dev.stopped.Load() {
		return
	}
	if p.acquire(qp) {
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

// waiting holds packets from the network that wait for the queue pair, in memory of their own.
type waiting struct {
	link.Arrival
	buf []byte
}

var waitingPool = sync.Pool{New: func() any { return new(waiting) }}

// copyOf returns a copy of packets of an arrival. The caller must free the copy.
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
