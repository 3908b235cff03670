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
	// Shape describes how the link of a device limits and delays what it sends.
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

// maxShaped bounds what a device holds up in all, in bytes; more is dropped.
const maxShaped = 2 * MaxQueue

// shaperQuantum is how far apart packets leave that are sent together: segmentation offload is for them alone.
const shaperQuantum = 200 * time.Microsecond

// ErrShape is wrapped by the errors of shapes that make no sense.
var ErrShape = fault.ErrShape

// shaper is a Shape in force. It only computes when a packet is to leave: what waits is in the queues of the endpoints.
type shaper struct {
	Shape
	rate, limit, ecn uint64 // the rate; the length of the queue, and the one above which packets are marked

	mu   sync.Mutex
	rand *rand.Rand
	free time.Time // when all that was accepted has left by the rate
	rest uint64    // what free lacks, in bits times nanoseconds; below rate
	// leaves are the packets in the queue, by the time at which they leave it, if they are counted.
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

// fate is what becomes of a packet.
type fate struct {
	leaves time.Time // when it leaves the queue
	at     time.Time // when it arrives
	mark   bool      // with congestion experienced
	drop   bool      // for want of room
	lost   bool      // on the way
}

// admit decides on a packet of so many bytes that comes now. ect: its transport understands ECN.
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
		// An empty queue takes any packet.
		if queued > 0 && queued+uint64(size) > h.limit || h.QueuePackets > 0 && uint64(len(h.leaves)) >= h.QueuePackets {
			f.drop = true
			return f
		}
		f.mark = ect && h.ecn > 0 && queued > h.ecn
	}
	f.leaves = h.queue(now, size)
	f.at = h.arrival(f.leaves)
	f.lost = h.Loss > 0 && Share(h.rand.Float64()) < h.Loss
	return f
}

// queue puts a packet of so many bytes behind all others, and returns when it leaves.
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

// arrival returns when a packet arrives that leaves the queue then.
//
//verbena:held mu
func (h *shaper) arrival(leaves time.Time) time.Time {
	at := leaves.Add(h.Delay)
	if h.Jitter > 0 {
		at = at.Add(time.Duration(h.rand.Int64N(int64(h.Jitter) + 1)))
	}
	return at
}

// ECN, in the two low bits of the traffic class. (RFC 3168)
const (
	ecnMask = 3
	ecnCE   = 3
)

// ect reports whether a traffic class says that the transport understands ECN.
func ect(tos uint8) bool { return tos&ecnMask == 1 || tos&ecnMask == 2 }

// headersBelow is the length of the headers below the BTH that count for the rate: UDP and IP.
func headersBelow(dst netip.Addr) int {
	if dst.Unmap().Is4() {
		return 8 + 20
	}
	return 8 + 40
}

// Shape limits and delays the packets that are sent from now on. Packets queued for the rate of an earlier Shape are
// queued for the new rate, in the same order and without loss, even if the new queue is shorter; packets past the queue
// keep their time of arrival. The zero Shape sends all held packets at once; one that is sent meanwhile may overtake
// them. The error wraps [ErrShape].
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
		old.mu.Lock() // what it admits has been queued, and it admits no more
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

// requeue moves the packets that are queued for the rate in force to the queue of h, which is not in force yet.
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
		w.e.shaped.Put(w.item, h.arrival(p.leaves))
	}
}

// Shaped returns the Shape in force.
func (f *Faults) Shaped() Shape {
	if h := f.shaper.Load(); h != nil {
		return h.Shape
	}
	return Shape{}
}

// emit sends a train that nothing else happens to, by way of the shaper if there is one.
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

// shape holds a train up as the shaper decides; false: it is no longer in force. Packets that leave at about the same
// time stay together.
func (e *faultEndpoint) shape(h *shaper, t *Train, d damage) bool {
	n, below, ect := t.NumPackets(), headersBelow(t.Dst), ect(t.TOS)
	var run struct {
		start, end int
		first      time.Time
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
	now := time.Now()
	for i := range n {
		f := h.admit(now, len(t.Packet(i))+below, ect)
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
			f.at.Sub(run.first) < shaperQuantum
		if !joins {
			flush()
			run.start, run.first = i, f.at
		}
		run.end, run.fate = i+1, f
	}
	flush()
	return true
}

// delay has a packet leave at a time, unless too much is held up already.
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

// socketFull is when to try again what the socket had no room for.
const socketFull = 100 * time.Microsecond

// sendShaped sends what has been held up for long enough, and returns the time until there is more; 0 if there is none.
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

// Held returns how much is held up for the shape, in bytes of memory.
func (f *Faults) Held() int64 { return f.held.Load() }
