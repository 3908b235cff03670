package engine

import (
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

// An RDMA WRITE whose memory this process has mapped at both ends (umem.Region.Direct) is copied once. The requester
// lays its packets out as ever, with a place in the train for each payload, but a span may refer to the payload in
// memory instead of having a copy there. The thread that sends the train runs the receiver as well, which stores the
// payload from memory to memory, before it goes on with the sender:
//
//	advance      the train is built and refers to memory, to which an access has begun
//	   |
//	sendAll      if the receiver rests, the thread takes it, and it stores the payload (pass.deliver); for whatever else
//	   |         becomes of the train its payload is copied to its place first (train.fill)
//	   |
//	endDelivery  no train refers to memory; the receiver is in the run queue
//
// A train refers to memory only while its queue pair is run by the thread that has built it. Meanwhile
//   - no work request of the queue pair completes, and its state does not change: where that may happen, pass.fill
//     precedes it;
//   - a thread that takes a key away (grant.revoke) waits for these copies alone: pass.fill precedes a copy that may be
//     stopped, and the receiver stores into direct memory alone (scatter.flush).

// minRefer is the smallest number of bytes to refer to. Fewer are cheaper to copy than to account for.
const minRefer = 16 << 10

// begin notes that the first packet of the train is of a work request.
func (t *train) begin(qp *QP, w *sendWQE) {
	t.writes, t.key = t.mixed && qp.typ == ib.QPTypeRC && w.kind == transport.Write, w.RKey
}

// joins reports whether packets of a work request may follow in the train. One that refers to memory has RDMA WRITEs by
// one key alone, so that it is known where they go.
func (t *train) joins(w *sendWQE) bool {
	if !t.writes || w.kind == transport.Write && w.RKey == t.key {
		return true
	}
	if t.refers() {
		return false
	}
	t.writes = false
	return true
}

// refers reports whether a span refers to memory, to which an access has begun then.
func (t *train) refers() bool { return len(t.held) > 0 }

// refer makes the open train refer to what was gathered, which is in mem. It reports false where it must have a copy.
func (p *pass) refer(g *gather, mem []byte) bool {
	t := p.build.t
	if !t.writes || g.n < minRefer {
		return false
	}
	for _, place := range g.vec {
		n := len(place)
		if k := t.spanOf(place); k != nil {
			k.mem = mem[:n]
		} else {
			copy(place, mem) // part of a packet
		}
		mem = mem[n:]
	}
	t.held = append(t.held, g.from)
	g.from = nil
	g.reset()
	p.build.middle = false // the last span is complete
	return true
}

// spanOf returns the span of a train that has all of its payload at a place in Buf, nil if there is none.
func (t *train) spanOf(place []byte) *span {
	start := cap(t.Buf) - cap(place)
	for i := len(t.spans) - 1; i >= 0; i-- {
		if k := &t.spans[i]; k.start < start {
			if t.payload(k) == start && start+len(place)+roce.BTH(t.Buf[k.start:]).PadCount()+link.ICRCLen == k.end {
				return k
			}
			break
		}
	}
	return nil
}

// payload returns the offset in Buf of the payload of a span.
func (t *train) payload(k *span) int { return k.start + roce.BTH(t.Buf[k.start:]).Opcode().HeaderLen() }

// fill copies what the train refers to to its place.
func (t *train) fill() {
	if !t.refers() {
		return
	}
	for i := range t.spans {
		if k := &t.spans[i]; k.mem != nil {
			copy(t.Buf[t.payload(k):], k.mem)
		}
	}
	t.release()
}

// release ends the accesses to memory.
func (t *train) release() {
	if !t.refers() {
		return
	}
	for i := range t.spans {
		t.spans[i].mem = nil
	}
	for _, g := range t.held {
		g.put()
	}
	clear(t.held)
	t.held = t.held[:0]
}

func (e *egress) fill() {
	for _, t := range e.queue {
		t.fill()
	}
}

// fill makes the trains of the queue pair, which the pass runs, refer to memory no longer.
func (p *pass) fill(qp *QP) {
	if p.build.t != nil {
		p.build.t.fill()
	}
	qp.egress.fill()
}

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
