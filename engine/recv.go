package engine

import (
	"slices"
	"sync"

	"verbena/link"
	"verbena/roce"
)

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
			d.observeUnknown(num, a.Src, packets[0], n)
			d.refusesUnknown(num, a, packets[:n])
		}
		packets = packets[n:]
	}
}

// arrive has a queue pair receive packets of the network: now, or, if it is being run, later.
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
