package link

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"verbena/internal/fault"
	"verbena/internal/timeq"
	"verbena/roce"
)

// Faults is a network that applies rules to outgoing packets. Rules with Stop also apply to incoming packets. Rules can
// be added and removed at any time. Without rules, packets pass at full speed. After the rules, packets enter the link,
// which can be down (SetLink), and can limit and delay them (Shape).
//
// The decisions are repeatable. If two Faults have the same seed, their n-th rules make the same decisions on the
// first, second and all further packets that they see.
type Faults struct {
	inner Network
	kinds atomic.Uint32 // bits of the active effects: actsOnSent and so on

	precise bool
	shaper  atomic.Pointer[shaper] // written under mu; nil: no shape
	held    atomic.Int64           // bytes that the shaper holds
	moment  atomic.Pointer[moment] // written under mu; nil: no moment

	mu    sync.Mutex
	down  bool
	ends  map[*faultEndpoint]struct{} // the open endpoints
	rules []*activeRule
	ids   *atomic.Int64 // the last ID
	seeds rand.Source

	deciders atomic.Pointer[[]Decider] // written under mu; nil: none
	// numbered is the number of the last rule for the deciders, and shapeFlows the flows of the last shape. Under mu.
	numbered   int
	shapeFlows flowTable

	onImpairment func(Impairment) // see OnImpairment
}

// Bits of Faults.kinds: the objects of the rules, and the states of the link.
const (
	actsOnSent uint32 = 1 << iota
	actsOnReceived
	actsOnReceives // availability of receives for a message: RNR
	actsCut        // the link is down
	actsShape      // Shape
	actsMoment     // AtPacket
)

func (r *activeRule) kinds() uint32 {
	switch {
	case r.RNR > 0:
		return actsOnReceives
	case r.Stop:
		return actsOnSent | actsOnReceived
	}
	return actsOnSent
}

// NewFaults puts faults in front of a network. The endpoints of the network must be [RawEndpoint]s. The seeds of the
// rules come from src, which must have no other use. If src is nil, the faults differ from run to run.
func NewFaults(inner Network, src rand.Source) *Faults {
	if src == nil {
		src = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	return &Faults{inner: inner, seeds: src, ids: new(atomic.Int64), ends: map[*faultEndpoint]struct{}{}}
}

// Precise makes held packets leave within microseconds of their time. For this, each endpoint that holds packets uses a
// thread. Otherwise packets leave up to a millisecond late, like the timers of package time. Precise must be called
// before the first Listen, and does not work in virtual time.
func (f *Faults) Precise() { f.precise = true }

// NumberBy takes the IDs of rules from the counter n. Several Faults can share n, and then no two of their rules have
// the same ID. NumberBy must be called before the first Add.
func (f *Faults) NumberBy(n *atomic.Int64) { f.ids = n }

// Impairment describes packets of one queue pair that rules, or the shape of the link, have impaired.
type Impairment struct {
	Kind     ImpairmentKind
	QP       uint32 // the sender; the receiver if Received is set
	Received bool   // when the packets arrived
	Packets  int
	Delay    time.Duration // the longest, for Delayed
}

// ImpairmentKind is a kind of impairment.
type ImpairmentKind uint8

const (
	Dropped    ImpairmentKind = iota // by a rule
	Damaged                          // by a rule; the receiver drops them
	Delayed                          // by a rule or the shape
	Lost                             // by the loss rate of the shape
	Overflowed                       // the queue of the shape was full
	NumImpairments
)

// reportedDelay is the shortest delay that counts as an impairment.
const reportedDelay = time.Millisecond

// OnImpairment sets a function that is called after each impairment. It must be called before the first Listen. The
// function is called with locks held, and may not sleep.
func (f *Faults) OnImpairment(fn func(Impairment)) { f.onImpairment = fn }

// report calls the function set by OnImpairment.
func (f *Faults) report(x Impairment) {
	if f.onImpairment != nil && x.Packets > 0 {
		f.onImpairment(x)
	}
}

// reportDelay reports a delay of at least reportedDelay.
func (f *Faults) reportDelay(qp uint32, packets int, d time.Duration) {
	if d >= reportedDelay {
		f.report(Impairment{Kind: Delayed, QP: qp, Packets: packets, Delay: d})
	}
}

// Add activates a rule. The error wraps [ErrRule].
func (f *Faults) Add(r Rule) error {
	if err := r.Validate(); err != nil {
		return err
	}
	r.Peer, r.GID = r.Peer.Unmap(), r.GID.Unmap()
	f.mu.Lock()
	defer f.mu.Unlock()
	seed1, seed2 := f.seeds.Uint64(), f.seeds.Uint64() // drawn in any case, to keep the seeds of other rules
	if r.Seed != 0 {
		seed1, seed2 = r.Seed, 0
	}
	a := &activeRule{
		RuleState: RuleState{ID: int(f.ids.Add(1)), Rule: r},
		rand:      rand.New(rand.NewPCG(seed1, seed2)),
	}
	a.selector = a.Rule.Selector()
	f.numbered++
	a.flows.rule = f.numbered
	f.rules = append(f.rules, a)
	f.changed()
	return nil
}

//verbena:held mu
func (f *Faults) changed() {
	var kinds uint32
	for _, r := range f.rules {
		kinds |= r.kinds()
	}
	if f.down {
		kinds |= actsCut
	}
	if f.shaper.Load() != nil {
		kinds |= actsShape
	}
	if f.moment.Load() != nil {
		kinds |= actsMoment
	}
	f.kinds.Store(kinds)
}

// Remove ends the rule with this ID (see List), and reports whether the rule existed. Packets that the rule holds up
// stay held until their time.
func (f *Faults) Remove(id int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.rules)
	f.rules = slices.DeleteFunc(f.rules, func(r *activeRule) bool { return r.ID == id })
	f.changed()
	return len(f.rules) < n
}

// Clear ends all rules.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	f.changed()
}

// List returns the active rules in the order of their addition.
func (f *Faults) List() []RuleState {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]RuleState, len(f.rules))
	for i, r := range f.rules {
		list[i] = r.RuleState
		list[i].HitAt = slices.Clone(r.HitAt)
	}
	return list
}

// Active reports whether packets can be affected by a rule, the link, its shape, or AtPacket. It neither sleeps nor
// locks. A driver may call it before it bypasses the network. Active of a nil Faults returns false.
func (f *Faults) Active() bool { return f != nil && f.kinds.Load() != 0 }

// NotReady reports whether a responder must behave as if no receive were posted for a message; see [Rule].RNR. p holds
// the properties of the packet that are not in its BTH. NotReady may not sleep. A nil Faults has no rules.
func (f *Faults) NotReady(p Packet, pkt []byte) (rnr bool) {
	if f == nil || f.kinds.Load()&actsOnReceives == 0 {
		return false
	}
	describe(&p, pkt)
	p.Peer, p.Local = p.Peer.Unmap(), p.Local.Unmap()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.RNR > 0 && r.notReady(&p, f.listDeciders()) {
			return true
		}
	}
	return false
}

// stopped reports whether a rule stops a received packet. p holds the properties of the packet that are not in its BTH.
func (f *Faults) stopped(p Packet, pkt []byte) bool {
	describe(&p, pkt)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.Stop && r.stop(&p) {
			return true
		}
	}
	return false
}

// judge applies the rules to the packets of a train from an address. It reports whether any packet is affected.
func (f *Faults) judge(from netip.Addr, t *Train, v []verdict) (any bool) {
	p := Packet{Local: from.Unmap(), Peer: t.Dst.Unmap(), QP: t.QP, TOS: t.TOS, SL: t.SL}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.kinds()&actsOnSent == 0 {
			continue
		}
		for i := range v {
			if !v[i].drop {
				describe(&p, t.Packet(i))
				r.judge(&p, t.Packet(i), f.listDeciders(), &v[i])
			}
		}
	}
	return slices.ContainsFunc(v, func(v verdict) bool { return !v.clean() })
}

// Listen implements [Network.Listen].
func (f *Faults) Listen(addr netip.Addr, r Receiver) (Endpoint, error) {
	e := &faultEndpoint{faults: f, receiver: r}
	inner, err := f.inner.Listen(addr, e)
	if err != nil {
		return nil, err
	}
	raw, ok := inner.(RawEndpoint)
	if !ok {
		return nil, errors.Join(
			fmt.Errorf("listen on %v: faults cannot be put before a %T: it is no RawEndpoint", addr, inner),
			inner.Close())
	}
	e.RawEndpoint = raw
	if f.precise {
		e.runner = newPacer(e.sendDue)
	} else {
		e.runner = timeq.NewRunner(e.sendDue)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends[e] = struct{}{}
	return e, nil
}

// faultEndpoint is an endpoint with faults in front of it.
type faultEndpoint struct {
	RawEndpoint
	faults *Faults

	receiver Receiver

	runner runner // calls sendDue

	lost      atomic.Uint64 // no room in queue, or a failed send
	cut       atomic.Uint64 // the link was down
	overflows atomic.Uint64 // no room in the queue of the shaper
	losses    atomic.Uint64 // lost by Shape.Loss
	marked    atomic.Uint64 // marked with congestion experienced
	waiting   atomic.Int64  // number of packets in queue with behind > 0; written under mu

	closed atomic.Bool // written under mu

	mu     sync.Mutex
	queue  timeq.Queue[*heldPacket] // held by rules
	shaped timeq.Queue[*heldPacket] // held by the shaper, after the rules
}

// runner is a timeq.Runner or a pacer.
type runner interface {
	Wake()
	Stop()
}

// maxHeld limits the number of packets that an endpoint holds. Further packets are lost.
const maxHeld = fault.MaxQueuePackets

// Receive implements [Receiver]. It filters the packets between the inner endpoint and the receiver.
func (e *faultEndpoint) Receive(a *Arrival) {
	kinds := e.faults.kinds.Load()
	if kinds&actsCut != 0 {
		e.cut.Add(uint64(len(a.Packets)))
		return
	}
	if kinds&actsOnReceived != 0 {
		kept := *a
		kept.Packets = nil
		about := Packet{Peer: a.Src, Local: a.Dst, TOS: a.TOS}
		for _, p := range a.Packets {
			if !e.faults.stopped(about, p) {
				kept.Packets = append(kept.Packets, p)
			} else if len(p) >= roce.BTHLen {
				e.faults.report(Impairment{QP: roce.BTH(p).DestQPN(), Packets: 1, Received: true})
			}
		}
		if a = &kept; len(a.Packets) == 0 {
			return
		}
	}
	e.receiver.Receive(a)
}

// Claim implements [Taker.Claim]. A packet without delay can be received immediately.
func (e *faultEndpoint) Claim() Turn {
	if t, ok := e.RawEndpoint.(Taker); ok {
		return t.Claim()
	}
	return nil
}

// Expect implements [Taker.Expect].
func (e *faultEndpoint) Expect() {
	if t, ok := e.RawEndpoint.(Taker); ok {
		t.Expect()
	}
}

// SendSome implements [BatchSender.SendSome]. If rules are active, it returns 0, since rules apply to single trains.
func (e *faultEndpoint) SendSome(list []*Train) int {
	b, ok := e.RawEndpoint.(BatchSender)
	if !ok || e.faults.kinds.Load()&actsOnSend != 0 || e.waiting.Load() != 0 {
		return 0
	}
	return b.SendSome(list)
}

// actsOnSend holds the bits of the effects that Send applies.
const actsOnSend = actsOnSent | actsCut | actsShape | actsMoment

// Send implements [Endpoint.Send].
func (e *faultEndpoint) Send(t *Train) error {
	kinds := e.faults.kinds.Load() & actsOnSend
	if kinds == 0 && e.waiting.Load() == 0 || t.Validate() != nil {
		return e.RawEndpoint.Send(t)
	}
	if e.closed.Load() {
		return ErrClosed
	}
	if kinds&actsMoment != 0 {
		if n := e.faults.count(t.NumPackets()); n < t.NumPackets() { // the link goes down in front of the n-th
			e.cut.Add(uint64(t.NumPackets() - n))
			if n == 0 {
				return nil
			}
			before := t.cut(0, n)
			t = &before
		}
	} else if kinds&actsCut != 0 {
		e.cut.Add(uint64(t.NumPackets()))
		return nil
	}
	if kinds&actsOnSent == 0 && e.waiting.Load() == 0 {
		return e.emit(t, damage{})
	}
	var verdicts [MaxTrainPackets]verdict
	v := verdicts[:t.NumPackets()]
	if !e.faults.judge(e.Addr(), t, v) && e.waiting.Load() == 0 {
		return e.emit(t, damage{})
	}
	return e.sendFaulty(t, v)
}

// sendFaulty sends a train as the verdicts require. Consecutive unaffected packets stay together.
func (e *faultEndpoint) sendFaulty(t *Train, verdicts []verdict) error {
	var first error
	acted := false // a packet was sent, lost or kept: ErrAgain is no longer possible
	start := 0     // first packet of the current run
	dropped, damaged := 0, 0
	defer func() {
		e.faults.report(Impairment{Kind: Dropped, QP: t.QP, Packets: dropped})
		e.faults.report(Impairment{Kind: Damaged, QP: t.QP, Packets: damaged})
	}()
	send := func(end int) bool {
		if start < end {
			run := t.cut(start, end)
			err := e.emit(&run, damage{})
			switch {
			case errors.Is(err, ErrAgain) && !acted:
				first = err
				return false
			case err != nil:
				e.lost.Add(uint64(end - start))
				if first == nil && !errors.Is(err, ErrAgain) {
					first = err
				}
			}
		}
		acted = true
		start = end
		return true
	}
	for i := range verdicts {
		v := &verdicts[i]
		if v.clean() {
			if gone := e.overtake(t.Dst); len(gone) > 0 {
				if !send(i + 1) {
					// The unsent packet had already released the packets in gone. Sending them now is harmless.
					e.transmitAll(gone)
					return first
				}
				e.transmitAll(gone)
			}
			continue
		}
		if !send(i) {
			return first
		}
		start = i + 1
		if v.drop {
			dropped++
			continue
		}
		if v.damage.corrupt {
			damaged++
		}
		copies := 1
		if v.duplicate {
			copies = 2
		}
		for range copies {
			p := newHeld(t, i, i+1)
			p.behind, p.damage = v.behind, v.damage
			if v.delay > 0 || v.behind > 0 {
				e.faults.reportDelay(t.QP, 1, v.delay)
				e.hold(p, v.delay+v.hold)
				continue
			}
			e.transmit(p)
			e.transmitAll(e.overtake(t.Dst))
		}
	}
	send(len(verdicts))
	return first
}

// hold keeps a packet for a time, or until enough packets have overtaken it.
func (e *faultEndpoint) hold(p *heldPacket, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() || e.queue.Len() >= maxHeld {
		e.lost.Add(1)
		return
	}
	item := e.queue.Push(time.Now().Add(d), p)
	if p.behind > 0 {
		e.waiting.Add(1)
	}
	if item == e.queue.First() {
		e.runner.Wake()
	}
}

// overtake counts a packet sent to dst. It returns the held packets that enough packets have overtaken now.
func (e *faultEndpoint) overtake(dst netip.Addr) (list []*heldPacket) {
	if e.waiting.Load() == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var gone []*timeq.Item[*heldPacket]
	for i := range e.queue.All() {
		if p := i.Value; p.behind > 0 && p.train.Dst == dst {
			if p.behind--; p.behind == 0 {
				gone = append(gone, i)
			}
		}
	}
	slices.SortFunc(gone, func(a, b *timeq.Item[*heldPacket]) int { return cmp.Compare(a.Seq(), b.Seq()) })
	for _, i := range gone {
		e.queue.Remove(i)
		e.waiting.Add(-1)
		list = append(list, i.Value)
	}
	return list
}

func (e *faultEndpoint) transmitAll(list []*heldPacket) {
	for _, p := range list {
		e.transmit(p)
	}
}

// transmit sends a packet that the rules have released.
func (e *faultEndpoint) transmit(p *heldPacket) {
	if e.faults.kinds.Load()&actsCut != 0 {
		e.cut.Add(1)
	} else if err := e.emit(&p.train, p.damage); err != nil {
		e.lost.Add(1)
	}
	p.free()
}

// sendDue sends all due packets. It returns the time until the next packet is due, or 0 if there is none.
func (e *faultEndpoint) sendDue() time.Duration {
	for {
		p, next := e.pop()
		if p == nil {
			shaped := e.sendShaped()
			if next == 0 || shaped > 0 && shaped < next {
				return shaped
			}
			return next
		}
		e.transmit(p)
	}
}

// pop removes and returns the first packet of the queue if it is due. Otherwise it returns the time until the packet is
// due, or 0 if the queue is empty.
func (e *faultEndpoint) pop() (*heldPacket, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.queue.First()
	if first == nil {
		return nil, 0
	}
	if d := time.Until(first.Due()); d > 0 {
		return nil, d
	}
	p := e.queue.Pop().Value
	if p.behind > 0 {
		e.waiting.Add(-1)
	}
	return p, 0
}

// Stats returns the counters of the inner endpoint, with the counters of the faults added. SendCutOff includes the
// packets that the faults could not hold or send.
func (e *faultEndpoint) Stats() Stats {
	var s Stats
	if r, ok := e.RawEndpoint.(StatsReader); ok {
		s = r.Stats()
	}
	s.SendCutOff += e.lost.Load()
	s.LinkDown += e.cut.Load()
	s.ShaperOverflows += e.overflows.Load()
	s.ShaperLosses += e.losses.Load()
	s.ShaperMarked += e.marked.Load()
	return s
}

// Close implements [Endpoint.Close]. It drops held packets.
func (e *faultEndpoint) Close() error {
	e.mu.Lock()
	if !e.closed.Swap(true) {
		e.queue.Clear()
		e.waiting.Store(0)
		for i := range e.shaped.All() {
			e.faults.held.Add(-int64(cap(i.Value.train.Buf)))
		}
		e.shaped.Clear()
	}
	e.mu.Unlock()
	e.faults.mu.Lock()
	delete(e.faults.ends, e)
	e.faults.mu.Unlock()
	e.runner.Stop()
	return e.RawEndpoint.Close()
}
