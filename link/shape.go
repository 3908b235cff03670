package link

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"verbena/internal/timeq"
)

// Shape says how the link of a device limits and delays what it sends. Packets wait in one queue for all addresses of the
// device until the rate lets them go, and are then on their way for the delay. The zero Shape does nothing.
type Shape struct {
	// Rate is how much leaves, in bits per second of packets with their IP headers; 0: no limit.
	Rate uint64 `json:"rate_bps,omitempty"`
	// Delay is the time on the way, and Jitter a random time up to it in addition, by which packets may overtake each
	// other.
	Delay  time.Duration `json:"delay_ns,omitempty"`
	Jitter time.Duration `json:"jitter_ns,omitempty"`
	// QueueBytes and QueuePackets bound what waits for the rate; what does not fit is dropped. 0: the one does not bound;
	// if both are, DefaultQueue bytes do.
	QueueBytes   uint64 `json:"queue_bytes,omitempty"`
	QueuePackets uint64 `json:"queue_packets,omitempty"`
	// ECN is the length of the queue, in bytes, above which packets of transports that say that they understand it (ECT)
	// are marked with "congestion experienced"; 0: never.
	ECN uint64 `json:"ecn_bytes,omitempty"`
	// Loss is the probability that a packet is lost on the way, by random numbers that follow from Seed; 0: a seed that
	// differs each time.
	Loss float64 `json:"loss,omitempty"`
	Seed uint64  `json:"seed,omitempty"`
}

// Limits of a Shape.
const (
	MinRate      = 1_000             // a kilobit per second
	MaxRate      = 1_000_000_000_000 // a terabit per second
	DefaultQueue = 4 << 20           // four windows of a queue pair of driver/rxe
	MaxQueue     = 64 << 20          // bytes
)

// maxShaped bounds what a device holds up in all, in bytes; more is dropped.
const maxShaped = 2 * MaxQueue

// shaperQuantum is how far apart packets leave that are sent together: segmentation offload is for them alone.
const shaperQuantum = 200 * time.Microsecond

// ErrShape: the shape makes no sense.
var ErrShape = errors.New("bad shape of the link")

// Validate checks the values. Its error wraps [ErrShape].
func (s *Shape) Validate() error {
	switch {
	case s.Rate != 0 && (s.Rate < MinRate || s.Rate > MaxRate):
		return fmt.Errorf("%w: rate of %d bit/s is not from %d to %d", ErrShape, s.Rate, uint64(MinRate), uint64(MaxRate))
	case s.Delay < 0 || s.Delay > maxFaultDelay:
		return fmt.Errorf("%w: delay %v is not from 0 to %v", ErrShape, s.Delay, maxFaultDelay)
	case s.Jitter < 0 || s.Jitter > maxFaultDelay:
		return fmt.Errorf("%w: jitter %v is not from 0 to %v", ErrShape, s.Jitter, maxFaultDelay)
	case s.QueueBytes > MaxQueue:
		return fmt.Errorf("%w: queue of %d bytes exceeds %d", ErrShape, s.QueueBytes, MaxQueue)
	case s.QueuePackets > maxHeld:
		return fmt.Errorf("%w: queue of %d packets exceeds %d", ErrShape, s.QueuePackets, maxHeld)
	case s.ECN > MaxQueue:
		return fmt.Errorf("%w: ecn threshold of %d bytes exceeds %d", ErrShape, s.ECN, MaxQueue)
	case s.Rate == 0 && (s.QueueBytes != 0 || s.QueuePackets != 0 || s.ECN != 0):
		return fmt.Errorf("%w: a queue and an ecn threshold need a rate, for which packets wait", ErrShape)
	case !(s.Loss >= 0 && s.Loss <= 1):
		return fmt.Errorf("%w: loss %v is not a probability from 0 to 1", ErrShape, s.Loss)
	case s.Seed != 0 && s.Jitter == 0 && s.Loss == 0:
		return fmt.Errorf("%w: a seed is for jitter and loss", ErrShape)
	}
	return nil
}

// shapes reports whether the Shape does anything.
func (s *Shape) shapes() bool { return s.Rate > 0 || s.Delay > 0 || s.Jitter > 0 || s.Loss > 0 }

// String is the shape in words: "rate 10Gbit delay 20µs"; empty if it does nothing.
func (s Shape) String() string {
	var w []string
	word := func(show bool, format string, args ...any) {
		if show {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	word(s.Rate > 0, "rate %s", RateString(s.Rate))
	word(s.Delay > 0, "delay %v", s.Delay)
	word(s.Jitter > 0, "jitter %v", s.Jitter)
	word(s.QueueBytes > 0, "queue %d bytes", s.QueueBytes)
	word(s.QueuePackets > 0, "queue %d packets", s.QueuePackets)
	word(s.ECN > 0, "ecn above %d bytes", s.ECN)
	word(s.Loss > 0, "loss %v", s.Loss)
	word(s.Seed > 0, "seed %d", s.Seed)
	return strings.Join(w, " ")
}

// RateString is a rate as it is written for tc(8): "100Mbit".
func RateString(rate uint64) string {
	for _, u := range []struct {
		n    uint64
		name string
	}{{1e12, "Tbit"}, {1e9, "Gbit"}, {1e6, "Mbit"}, {1e3, "Kbit"}} {
		if rate >= u.n && rate%(u.n/1000) == 0 {
			return strconv.FormatFloat(float64(rate)/float64(u.n), 'f', -1, 64) + u.name
		}
	}
	return fmt.Sprintf("%dbit", rate)
}

// shaper is a Shape in force. It only computes when a packet is to leave: what waits is in the queues of the endpoints.
type shaper struct {
	Shape
	limit uint64 // of the queue, in bytes

	mu   sync.Mutex
	rand *rand.Rand
	free time.Time // when all that was accepted has left by the rate
	rest uint64    // what free lacks, in bits times nanoseconds; below Rate
	// leaves are the packets in the queue, by the time at which they leave it, if they are counted.
	leaves []time.Time
}

func newShaper(s Shape) *shaper {
	h := &shaper{Shape: s, limit: s.QueueBytes}
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
	if h.Rate > 0 {
		var queued uint64
		if wait := h.free.Sub(now); wait > 0 {
			hi, lo := bits.Mul64(uint64(wait), h.Rate)
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
		f.mark = ect && h.ECN > 0 && queued > h.ECN
	}
	f.leaves = h.queue(now, size)
	f.at = h.arrival(f.leaves)
	f.lost = h.Loss > 0 && h.rand.Float64() < h.Loss
	return f
}

// queue puts a packet of so many bytes behind all others, and returns when it leaves.
//
//verbena:held mu
func (h *shaper) queue(now time.Time, size int) time.Time {
	if h.Rate == 0 {
		return now
	}
	if h.free.Before(now) {
		h.free, h.rest = now, 0
	}
	n := uint64(size)*8*uint64(time.Second) + h.rest
	h.free, h.rest = h.free.Add(time.Duration(n/h.Rate)), n%h.Rate
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

// Shape limits and delays the packets that are sent from now on. Packets queued for the rate of an earlier Shape are queued for
// the new rate, in the same order and without loss, even if the new queue is shorter; packets past the queue keep their time of
// arrival. The zero Shape sends all held packets at once; one that is sent meanwhile may overtake them. The error wraps
// [ErrShape].
func (f *Faults) Shape(s Shape) error {
	if err := s.Validate(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var h *shaper
	if s.shapes() {
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
func (e *faultEndpoint) emit(t *Train, corrupt bool, bit uint32) error {
	for h := e.faults.shaper.Load(); h != nil; h = e.faults.shaper.Load() {
		if e.shape(h, t, corrupt, bit) {
			return nil
		}
	}
	if !corrupt {
		return e.RawEndpoint.Send(t)
	}
	if err := e.Seal(t); err != nil {
		return err
	}
	flip(t.Buf, bit)
	return e.SendRaw(t)
}

// shape holds a train up as the shaper decides; false: it is no longer in force. Packets that leave at about the same time stay
// together.
func (e *faultEndpoint) shape(h *shaper, t *Train, corrupt bool, bit uint32) bool {
	n, below, ect := t.NumPackets(), headersBelow(t.Dst), ect(t.TOS)
	var run struct {
		start, end int
		first      time.Time
		fate
	}
	flush := func() {
		if run.start < run.end {
			p := newHeld(t, run.start, run.end)
			p.corrupt, p.bit, p.leaves = corrupt, bit, run.leaves
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
			} else {
				e.losses.Add(1)
			}
			continue
		}
		joins := run.start < run.end && run.end == i && run.mark == f.mark && h.Jitter == 0 && f.at.Sub(run.first) < shaperQuantum
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
	case !p.corrupt:
		return e.RawEndpoint.Send(&p.train)
	case !p.sealed:
		if err := e.Seal(&p.train); err != nil {
			return err
		}
		flip(p.train.Buf, p.bit)
		p.sealed = true
	}
	return e.SendRaw(&p.train)
}

// Held returns how much is held up for the shape, in bytes of memory.
func (f *Faults) Held() int64 { return f.held.Load() }
