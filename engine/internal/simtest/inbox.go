package simtest

import (
	"time"

	"verbena/ib"
)

// inbox is a queue of receives: the receive queue of one end, or a shared receive queue. With XRC, a shared queue can
// belong to one end. Otherwise all ends of the host share it.
type inbox struct {
	host  *host
	ends  []*end
	srq   *ib.SRQ // nil: the receive queue of the queue pair
	depth int
	late  bool // the receives are posted late

	receives []*receive
	offered  int // receives[:offered] are posted
	complete int
}

func (w *world) newInbox(h *host) *inbox {
	in := &inbox{host: h, depth: 1 << w.rng.IntN(6), late: w.rng.IntN(3) == 0}
	if w.travels() {
		in.depth, in.late = 64, false
	}
	w.boxes = append(w.boxes, in)
	return in
}

// shared reports whether several ends use the queue.
func (in *inbox) shared() bool { return in == in.host.shares }

// makeReceives chooses the receives for the messages of the peers.
func (in *inbox) makeReceives() {
	w, most, head := in.host.w, 0, 0
	if w.service == UD {
		head = grhLen
	}
	var messages []*request
	for _, e := range in.ends {
		for _, q := range e.peer.requests {
			if q.completes() {
				messages = append(messages, q)
				most = max(most, len(q.data))
			}
		}
	}
	for i := range len(messages) + w.rng.IntN(3) {
		v := &receive{n: i, id: uint64(w.rng.Uint32())<<16 | uint64(i)<<1 | 1}
		w.byID[v.id] = v
		n := most
		if w.service.reliable() && !in.shared() && i < len(messages) {
			q := messages[i]
			n, v.fault = len(q.data)+w.rng.IntN(2), q.fault
			switch q.fault {
			case shortReceive:
				n = w.rng.IntN(len(q.data))
			case badReceive:
				n = len(q.data)
			default:
				v.fault = sound
			}
		}
		v.span = in.host.alloc(head + n)
		in.receives = append(in.receives, v)
	}
}

// create creates the queue, unless it belongs to a queue pair.
func (in *inbox) create() {
	w, h := in.host.w, in.host
	if w.service != XRC && !in.shared() {
		return
	}
	init := ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: uint32(in.depth), MaxSGE: 2}}
	if w.service == XRC {
		init.Type, init.XRCD, init.CQ = ib.SRQXRC, h.xrcd, h.recvCQ.cq
	}
	var err error
	in.srq, err = h.pd.CreateSRQ(init)
	w.check(err)
	// An end that is ahead of the others can take their receives for a while.
	in.late = in.late || len(in.receives) > in.depth
}

// schedule plans the times at which the receives are posted.
func (in *inbox) schedule() {
	w, when, planned := in.host.w, time.Duration(0), 0
	for planned < len(in.receives) {
		n := len(in.receives)
		if in.late {
			n = min(n, planned+1+w.rng.IntN(8))
			when += time.Duration(w.rng.Int64N(int64(3 * time.Millisecond)))
		}
		planned = n
		w.clock.AfterFunc(when, func() { in.offer(n, 0) })
	}
}

// offer posts receives, as far as there is room. If there has been no room for a long time, the remaining receives are
// not needed.
func (in *inbox) offer(upTo, tries int) {
	w := in.host.w
	post := in.ends[0].qp.PostRecv
	if in.srq != nil {
		post = in.srq.PostRecv
	}
	for in.offered < min(upTo, len(in.receives)) {
		v := in.receives[in.offered]
		wr := ib.RecvWR{ID: v.id, SGList: in.host.sges(v.span, 1+v.n%2)}
		for i := range wr.SGList {
			if v.fault == badReceive {
				wr.SGList[i].LKey ^= 1 << 10
			}
		}
		if n, err := post(wr); n == 0 {
			if in.offered == in.complete {
				w.failf("no room in an empty receive queue: %v", err)
			}
			if tries == 100 {
				in.receives = in.receives[:in.offered]
				return
			}
			w.clock.AfterFunc(50*time.Microsecond<<min(tries, 8), func() { in.offer(upTo, tries+1) })
			return
		}
		w.note("host %v: receive %d of %d bytes", in.host.addr, v.n, v.span.n)
		in.offered++
		tries = 0
	}
}

// completed checks the completion of a receive at one of the ends. The receive must be the next one if the queue is not
// shared. Otherwise it must come after the last receive of this end.
func (in *inbox) completed(e *end, v *receive) {
	if v.n >= len(in.receives) || in.receives[v.n] != v || v.n >= in.offered || v.ended || v.n <= e.last ||
		!in.shared() && v.n != in.complete {
		e.w.failf("qp %d: receive %d completes (again %t) after %d, of %d posted %d are complete", e.rqp.Num(), v.n, v.ended, e.last, in.offered, in.complete)
	}
	e.last, v.ended = v.n, true
	in.complete++
}

// over checks the remaining receives after all queue pairs have been flushed. In the queue of a queue pair there must
// be none. In a shared queue, only the last receives may be unused.
func (in *inbox) over() {
	w := in.host.w
	if in.srq == nil && in.complete != len(in.receives) {
		w.failf("qp %d: %d of %d receives have completed", in.ends[0].rqp.Num(), in.complete, len(in.receives))
	}
	for _, v := range in.receives {
		switch {
		case v.ended != (v.n < in.complete):
			w.failf("shared receive queue %d: %d receives have completed; the one with number %d has: %t", in.srq.Num(), in.complete, v.n, v.ended)
		case v.ended:
			in.ends[0].keeps(in.host, v.span, "receive", v.n)
		default:
			for i, b := range in.host.at(v.span) {
				if b != unused {
					w.failf("receive %d: byte %d was written, and it did not complete", v.n, i)
				}
			}
		}
	}
}
