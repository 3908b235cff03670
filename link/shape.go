package link

import (
	"cmp"
	"errors"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"verbena/internal/fault"
	"verbena/internal/timeq"
)

// Types of package fault, which documents them.
type (
	// Shape describes the rate limit and the delay of the link of a device.
	Shape = fault.Shape
	// Rate is a number of bits per second.
	Rate = fault.Rate
)

// Limits of a Shape.
const (
	MinRate      = fault.MinRate
	MaxRate      = fault.MaxRate
	DefaultQueue = fault.DefaultQueue
	MaxQueue     = fault.MaxQueue
)

// maxShaped limits the packets that a device holds in total, in bytes. Further packets are dropped.
const maxShaped = 2 * MaxQueue

// shaperQuantum is the longest interval between packets that are sent together. Segmentation offload applies only to
// packets that are sent together.
const shaperQuantum = 200 * time.Microsecond

// ErrShape is wrapped by the errors for invalid shapes.
var ErrShape = fault.ErrShape

// shaper is an active Shape. It only computes the times at which packets leave. The queues of the endpoints hold the
// packets.
type shaper struct {
	Shape
	rate, limit, ecn uint64 // the rate; the limit of the queue; the length of the queue above which packets are marked

	mu   sync.Mutex
	rand *rand.Rand
	// flows counts the packets while there is a Decider.
	flows flowTable
	free  time.Time // time at which all accepted packets have left
	rest  uint64    // rounding error of free, in bits times nanoseconds; less than rate
	// leaves holds the times at which the packets leave the queue, in order. It is used only if QueuePackets is set.
	leaves []time.Time
}

func newShaper(s Shape) *shaper {
	h := &shaper{Shape: s, rate: uint64(s.Rate), limit: uint64(s.QueueBytes), ecn: uint64(s.ECN)}
	if s.QueueBytes == 0 {
		h.limit = MaxQueue
		if s.QueuePackets == 0 {
			h.limit = DefaultQueue
		}
	}
	h.rand = rand.New(rand.NewPCG(s.Seed, 1))
	if s.Seed == 0 {
		h.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return h
}

// fate is the decision of the shaper on a packet.
type fate struct {
	leaves time.Time // when it leaves the queue
	jitter time.Duration
	mark   bool // with congestion experienced
	drop   bool // the queue is full
	lost   bool // lost by the loss rate
}

// admit decides on a packet of a given size in bytes that comes now. The last argument reports whether the transport of
// the packet understands ECN.
//
//verbena:held mu
func (h *shaper) admit(now time.Time, size int, ect bool) (f fate) {
	if h.rate > 0 {
		var queued uint64
		if wait := h.free.Sub(now); wait > 0 {
			hi, lo := bits.Mul64(uint64(wait), h.rate)
			queued, _ = bits.Div64(hi, lo, 8*uint64(time.Second))
		}
		if h.QueuePackets > 0 {
			n := 0
			for n < len(h.leaves) && !h.leaves[n].After(now) {
				n++
			}
			h.leaves = h.leaves[n:]
		}
		// An empty queue accepts any packet.
		if queued > 0 && queued+uint64(size) > h.limit || h.QueuePackets > 0 && uint64(len(h.leaves)) >= h.QueuePackets {
			f.drop = true
			return f
		}
		f.mark = ect && h.ecn > 0 && queued > h.ecn
	}
	f.leaves = h.queue(now, size)
	f.jitter = h.drawJitter()
	f.lost = h.Loss > 0 && Share(h.rand.Float64()) < h.Loss
	return f
}

// decide replaces the random parts of a decision.
//
//verbena:held mu
func (h *shaper) decide(list []Decider, qp uint32, pkt []byte, f *fate) {
	d, ok := h.flows.next(qp, isResponse(pkt))
	if !ok || f.drop {
		return
	}
	if isRandom(h.Loss) {
		f.lost = decide(list, &d, DecideDrop, boolValue(f.lost)) != 0
	}
	if h.Jitter > 0 && !f.lost {
		f.jitter = min(time.Duration(decide(list, &d, DecideJitter, uint64(f.jitter))), h.Jitter)
	}
}

// queue appends a packet of a given size in bytes, and returns the time at which the packet leaves.
//
//verbena:held mu
func (h *shaper) queue(now time.Time, size int) time.Time {
	if h.rate == 0 {
		return now
	}
	if h.free.Before(now) {
		h.free, h.rest = now, 0
	}
	n := uint64(size)*8*uint64(time.Second) + h.rest
	h.free, h.rest = h.free.Add(time.Duration(n/h.rate)), n%h.rate
	if h.QueuePackets > 0 {
		h.leaves = append(h.leaves, h.free)
	}
	return h.free
}

// drawJitter draws the additional delay of a packet.
//
//verbena:held mu
func (h *shaper) drawJitter() time.Duration {
	if h.Jitter == 0 {
		return 0
	}
	return time.Duration(h.rand.Int64N(int64(h.Jitter) + 1))
}

// arrival returns the arrival time of a packet that leaves the queue at a given time.
func (h *shaper) arrival(leaves time.Time, jitter time.Duration) time.Time {
	return leaves.Add(h.Delay).Add(jitter)
}

// ECN codes, in the two low bits of the traffic class (RFC 3168).
const (
	ecnMask = 3
	ecnCE   = 3
)

// ect reports whether a traffic class declares support of ECN by the transport.
func ect(tos uint8) bool { return tos&ecnMask == 1 || tos&ecnMask == 2 }

// headersBelow returns the length of the headers below the BTH that count for the rate: UDP and IP.
func headersBelow(dst netip.Addr) int {
	if dst.Unmap().Is4() {
		return 8 + 20
	}
	return 8 + 40
}

// Shape sets the rate limit and the delay for the packets that are sent from now on. Packets in the queue of an earlier
// Shape move to the queue of the new Shape, in the same order. No such packet is lost, even if the new queue is
// shorter. Packets that have left the queue keep their time of arrival. The zero Shape sends all held packets
// immediately. A packet that is sent at the same time can overtake them. The error wraps [ErrShape].
func (f *Faults) Shape(s Shape) error {
	if err := s.Validate(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var h *shaper
	if s.HasEffect() {
		h = newShaper(s)
	}
	old := f.shaper.Load()
	if old != nil {
		old.mu.Lock() // all admitted packets are queued, and no more are admitted
	}
	if old != nil {
		f.shapeFlows = old.flows
	}
	if h != nil {
		h.flows = f.shapeFlows
	}
	if old != nil && h != nil {
		f.requeue(h)
	}
	f.shaper.Store(h)
	if old != nil {
		old.mu.Unlock()
	}
	f.changed()
	for e := range f.ends {
		e.runner.Wake()
	}
	return nil
}

// requeue moves the packets in the queue of the active shaper to the queue of h, which is not active yet.
//
//verbena:held mu
func (f *Faults) requeue(h *shaper) {
	type waiting struct {
		e    *faultEndpoint
		item *timeq.Item[*heldPacket]
	}
	var list []waiting
	now := time.Now()
	for e := range f.ends {
		e.mu.Lock()
		defer e.mu.Unlock()
		for i := range e.shaped.All() {
			if i.Value.leaves.After(now) {
				list = append(list, waiting{e, i})
			}
		}
	}
	slices.SortFunc(list, func(a, b waiting) int {
		return cmp.Or(a.item.Value.leaves.Compare(b.item.Value.leaves), cmp.Compare(a.item.Seq(), b.item.Seq()))
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range list {
		p := w.item.Value
		for i := range p.train.NumPackets() {
			p.leaves = h.queue(now, len(p.train.Packet(i))+headersBelow(p.train.Dst))
		}
		w.e.shaped.Put(w.item, h.arrival(p.leaves, h.drawJitter()))
	}
}

// Shaped returns the active Shape.
func (f *Faults) Shaped() Shape {
	if h := f.shaper.Load(); h != nil {
		return h.Shape
	}
	return Shape{}
}

// emit sends a train to which no further rule applies, through the shaper if there is one.
func (e *faultEndpoint) emit(t *Train, d damage) error {
	for h := e.faults.shaper.Load(); h != nil; h = e.faults.shaper.Load() {
		if e.shape(h, t, d) {
			return nil
		}
	}
	if d == (damage{}) {
		return e.RawEndpoint.Send(t)
	}
	if err := e.Seal(t); err != nil {
		return err
	}
	d.apply(t)
	return e.SendRaw(t)
}

// shape holds a train as the shaper decides. It reports false if the shaper is no longer active. Packets that leave at
// about the same time stay together.
func (e *faultEndpoint) shape(h *shaper, t *Train, d damage) bool {
	n, below, ect := t.NumPackets(), headersBelow(t.Dst), ect(t.TOS)
	var run struct {
		start, end int
		first, at  time.Time // arrivals of the first and the last packet
		fate
	}
	var lost, overflowed int
	defer func() {
		e.faults.report(Impairment{Kind: Lost, QP: t.QP, Packets: lost})
		e.faults.report(Impairment{Kind: Overflowed, QP: t.QP, Packets: overflowed})
	}()
	flush := func() {
		if run.start < run.end {
			e.faults.reportDelay(t.QP, run.end-run.start, time.Until(run.at))
			p := newHeld(t, run.start, run.end)
			p.damage, p.leaves = d, run.leaves
			if run.mark {
				p.train.TOS |= ecnCE
				e.marked.Add(uint64(run.end - run.start))
			}
			e.delay(p, run.at)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.faults.shaper.Load() != h {
		return false
	}
	now, deciders := time.Now(), e.faults.listDeciders()
	for i := range n {
		f := h.admit(now, len(t.Packet(i))+below, ect)
		if len(deciders) > 0 {
			h.decide(deciders, t.QP, t.Packet(i), &f)
		}
		at := h.arrival(f.leaves, f.jitter)
		if f.drop || f.lost {
			if f.drop {
				e.overflows.Add(1)
				overflowed++
			} else {
				e.losses.Add(1)
				lost++
			}
			continue
		}
		joins := run.start < run.end && run.end == i && run.mark == f.mark && h.Jitter == 0 &&
			at.Sub(run.first) < shaperQuantum
		if !joins {
			flush()
			run.start, run.first = i, at
		}
		run.end, run.fate, run.at = i+1, f, at
	}
	flush()
	return true
}

// delay holds a packet until a given time. If the device holds too many bytes, the packet is dropped.
func (e *faultEndpoint) delay(p *heldPacket, at time.Time) {
	packets := uint64(p.train.NumPackets())
	if held := e.faults.held.Add(int64(cap(p.train.Buf))); held > maxShaped {
		e.faults.held.Add(-int64(cap(p.train.Buf)))
		e.overflows.Add(packets)
		p.free()
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		e.faults.held.Add(-int64(cap(p.train.Buf)))
		p.free()
		return
	}
	if item := e.shaped.Push(at, p); item == e.shaped.First() {
		e.runner.Wake()
	}
}

// socketFull is the delay of a retry after the socket was full.
const socketFull = 100 * time.Microsecond

// sendShaped sends the due packets. It returns the time until the next packet is due, or 0 if there is none.
func (e *faultEndpoint) sendShaped() time.Duration {
	for {
		e.mu.Lock()
		first := e.shaped.First()
		if first == nil {
			e.mu.Unlock()
			return 0
		}
		if d := time.Until(first.Due()); d > 0 && e.faults.shaper.Load() != nil {
			e.mu.Unlock()
			return d
		}
		e.shaped.Pop()
		e.mu.Unlock()
		p := first.Value
		err := e.sendHeld(p)
		if errors.Is(err, ErrAgain) {
			e.mu.Lock()
			kept := !e.closed.Load()
			if kept {
				e.shaped.Put(first, first.Due())
			}
			e.mu.Unlock()
			if kept {
				return socketFull
			}
		}
		if err != nil {
			e.lost.Add(uint64(p.train.NumPackets()))
		}
		e.faults.held.Add(-int64(cap(p.train.Buf)))
		p.free()
	}
}

func (e *faultEndpoint) sendHeld(p *heldPacket) error {
	switch {
	case e.faults.kinds.Load()&actsCut != 0:
		e.cut.Add(uint64(p.train.NumPackets()))
		return nil
	case p.damage == (damage{}):
		return e.RawEndpoint.Send(&p.train)
	case !p.sealed:
		if err := e.Seal(&p.train); err != nil {
			return err
		}
		p.damage.apply(&p.train)
		p.sealed = true
	}
	return e.SendRaw(&p.train)
}

// Held returns the memory of the packets that the shaper holds, in bytes.
func (f *Faults) Held() int64 { return f.held.Load() }
