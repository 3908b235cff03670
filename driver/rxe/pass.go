package rxe

import (
	"cmp"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"verbena/link"
)

// pass is one run of the engine to completion, on the thread that had a reason for it: a doorbell, packets that
// came, a timer. It holds the thread's working memory and the queue pairs whose egress queues it drains.
//
// At most one queue pair is locked at a time: under its lock a queue pair turns work requests into packets, or
// packets into completions and answers, and leaves what is to be sent in its egress queue; the packets are sent
// after unlocking, by the one pass that drains that queue. A packet for a device of the same Fabric is not sent
// but handled right here, which may give another queue pair something to send, and so on until nothing is left.
type pass struct {
	dev   *Device
	todo  []*QP // whose egress queues this pass drains
	done  int   // todo[:done] have been looked at
	batch []*train
	spent int // bytes sent since the thread began, and trainCost for each train

	build   builder
	gather  gather
	scatter scatter
	slot    [max(maxSendWQESize, maxRecvWQESize)]byte // a private copy of a work request
	grh     [grhLen]byte
	packets [][]byte
	arrival link.Arrival

	holds   bool      // callbacks run at the end of this pass
	holding []*Device // whose callbacks wait for it

	// Where it is stopped; see stall.go.
	copies atomic.Uint32 // odd while it is in a copy
	at     *QP           // whose program's memory that is
	last   *QP           // that it has locked
	lane   *lane         // that it belongs to
	theft  sync.Mutex    // held while the watchdog takes todo
	seen   uint32        // copies at the watchdog's last look; under watchdog.mu
}

const (
	// passBudget is what a pass may spend on the thread that it borrowed, a fraction of a millisecond; then a
	// goroutine goes on.
	passBudget = 2 << 20
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
	p.holds = callbacks
	p.hold(d)
	return p
}

// hold has the callbacks of the device wait for the end of this pass.
func (p *pass) hold(d *Device) {
	if !p.holds {
		return
	}
	for _, h := range p.holding {
		if h == d {
			return
		}
	}
	d.obj.HoldCallbacks()
	p.holding = append(p.holding, d)
}

func (p *pass) runCallbacks() {
	for i, d := range p.holding {
		d.obj.RunCallbacks()
		p.holding[i] = nil
	}
	p.holding = p.holding[:0]
}

// end drains the egress queues and gives the pass back. A pass that takes long is finished by a goroutine.
func (p *pass) end() {
	if p.drain(passBudget) {
		p.runCallbacks()
		p.release()
		return
	}
	holds := p.holds
	p.runCallbacks()
	p.dev.workers.start(func() {
		defer p.caught()
		for p.holds = true; ; {
			p.hold(p.dev)
			finished := p.drain(passBudget)
			p.runCallbacks()
			if finished {
				break
			}
		}
		p.holds = holds
		p.release()
	})
}

func (p *pass) release() {
	clear(p.todo)
	p.todo, p.done, p.spent, p.at, p.last, p.lane = p.todo[:0], 0, 0, nil, nil, nil
	p.dev.passes.Put(p)
}

// owe makes the pass drain the queue pair's egress queue, unless somebody does it already. qp.mu is held.
func (p *pass) owe(qp *QP) {
	if e := &qp.egress; len(e.queue) > 0 && !e.draining && !e.blocked {
		e.draining = true
		p.todo = append(p.todo, qp)
	}
}

// drain sends until nothing is left, and reports true, or until the budget is spent.
func (p *pass) drain(budget int) bool {
	for p.spent = 0; p.done < len(p.todo); {
		if p.spent > budget {
			return false
		}
		qp := p.todo[p.done]
		p.done++
		p.drainQP(qp)
		if p.done > 64 {
			p.todo = append(p.todo[:0], p.todo[p.done:]...)
			p.done = 0
		}
	}
	return true
}

func (p *pass) drainQP(qp *QP) {
	if !p.lock(qp) {
		qp.lane.add(job{qp: qp})
		return
	}
	qp.advance(p)
	p.batch = qp.egress.take(p.batch[:0])
	if len(p.batch) == 0 {
		qp.egress.draining = false
		qp.idle.Broadcast()
		qp.mu.Unlock()
		return
	}
	sport := qp.sport
	if qp.traced.Load() {
		for _, t := range p.batch {
			qp.trace.packet(traceSend, t.Buf, uint32(t.packets))
		}
	}
	qp.mu.Unlock()
	for i, t := range p.batch {
		t.QP, t.SPort = qp.num, sport
		if p.send(qp, t) {
			continue
		}
		if !p.lock(qp) {
			for _, t := range p.batch[i:] {
				t.free() // as lost
			}
			clear(p.batch)
			qp.lane.add(job{qp: qp})
			return
		}
		qp.egress.putBack(p.batch[i:])
		qp.egress.draining = false
		qp.idle.Broadcast()
		qp.timer.block()
		qp.mu.Unlock()
		clear(p.batch)
		return
	}
	clear(p.batch)
	p.todo = append(p.todo, qp)
}

// send hands a train of the queue pair to the device that it is for, or to the network, and frees it. It reports
// false, and does not free it, when the socket is full.
func (p *pass) send(qp *QP, t *train) bool {
	from := t.path.from
	d := from.dev
	if d.intrudes(qp, t) {
		t.free()
		return true
	}
	if !from.ready() { // as without a route (rxe_find_route)
		p.spent += len(t.Buf) + trainCost
		d.counters.add(cntSendErr, 1)
		t.free()
		return true
	}
	if peer := d.shortcut(t.Dst); peer != nil {
		p.spent += len(t.Buf) + trainCost
		d.counters.add(cntSentPkts, t.packets)
		if d.taps.On() || peer.taps.On() {
			tapShortcut(d, peer, from.addr, t)
		}
		p.deliver(peer, from.addr, t)
		t.free()
		return true
	}
	err := from.send(&t.Train)
	if err != nil && errors.Is(err, link.ErrAgain) {
		return false
	}
	p.spent += len(t.Buf) + trainCost
	if err != nil {
		d.counters.add(cntSendErr, 1)
	} else {
		d.counters.add(cntSentPkts, t.packets)
	}
	t.free()
	return true
}

// tapShortcut shows a train as it would look on the wire: one device sends it, then the other gets it.
func tapShortcut(d, peer *Device, src netip.Addr, t *train) {
	now, from := d.clock.Now(), netip.AddrPortFrom(src, cmp.Or(t.SPort, link.Port))
	d.taps.Train(&link.Tapped{Out: true, Unsealed: true}, now, from, &t.Train, 0)
	peer.taps.Train(&link.Tapped{Unsealed: true}, now, from, &t.Train, 0)
}

// deliver has a device of the Fabric receive a train.
func (p *pass) deliver(d *Device, src netip.Addr, t *train) {
	p.hold(d)
	p.packets = p.packets[:0]
	for i := range t.packets {
		b := t.Packet(i)
		p.packets = append(p.packets, b[:len(b)-link.ICRCLen])
	}
	p.arrival = link.Arrival{Src: src, Dst: t.Dst, TOS: t.TOS, TTL: t.TTL, Packets: p.packets}
	if p.arrival.TTL == 0 {
		p.arrival.TTL = defaultTTL
	}
	p.receive(d, &p.arrival)
}

// defaultTTL is that of packets whose address vector does not say.
const defaultTTL = 64

// egressRetry is when to try again after the socket was full. It drains in well less than that.
const egressRetry = 100 * time.Microsecond
