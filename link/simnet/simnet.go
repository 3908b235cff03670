// Package simnet is a RoCEv2 network in memory, for tests of packages that use package link.
//
//	n := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
//	a, err := n.Listen(netip.MustParseAddr("10.0.0.1"), receiverA)
//	b, err := n.Listen(netip.MustParseAddr("10.0.0.2"), receiverB)
//
// All endpoints are on one link. Only package time measures time, and all waiting goroutines are durably blocked. In a
// bubble of testing/synctest a network is therefore exact and fast. Otherwise the network behaves like UDP. It computes
// the ICRCs for the same IPv4 identifications, and checks them on receipt. It drops packets to unused addresses. It
// delivers packets in batches on a goroutine of the endpoint, and returns the same errors. But a [link.Train] that
// violates the rules causes a panic.
//
// The rules of [Net.Faults] lose, repeat, damage, delay and reorder packets at random. [Net.SetFilter] does so
// deterministically. [Net.SetLink] takes the link down. [Net.Packets] returns the packets on the wire.
package simnet

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/internal/timeq"
	"verbena/link"
	"verbena/roce"
)

// Config describes a network. The zero value has no latency, no limits and no faults.
type Config struct {
	// Latency is the time from the departure of a packet to its arrival.
	Latency time.Duration
	// Bandwidth limits the outgoing traffic of each endpoint, in bytes per second; 0: no limit. Only the bytes of
	// link.Train.Buf count.
	Bandwidth int64
	// SendBuffer is the largest number of bytes that may wait for the bandwidth. If there are more, Send returns
	// link.ErrAgain; 0: no limit.
	SendBuffer int
	// MaxPacket is the largest length of a packet from the BTH to the ICRC, in bytes. For longer ones, Send returns
	// link.ErrTooLong; 0: no limit.
	MaxPacket int
	// Rand provides the seeds of Faults; nil: PCG(1, 2).
	Rand rand.Source
	// Record makes the network store all packets for Packets.
	Record bool
}

// Fate is the outcome of a packet.
type Fate uint8

// The fates.
const (
	Delivered   Fate = iota // passed to the Receiver
	InFlight                // not yet arrived
	LostFilter              // dropped by the filter
	LostLink                // the link of the sender or of the receiver was down
	LostNobody              // no endpoint has the address
	LostICRC                // the ICRC was wrong
	LostClosing             // the endpoint was closed before the delivery
)

func (f Fate) String() string {
	names := [...]string{"delivered", "in flight", "lost by filter", "lost by link", "lost, nobody there",
		"lost by ICRC", "lost by closing"}
	if int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("Fate(%d)", uint8(f))
}

// Packet is a packet on the wire.
type Packet struct {
	Sent     time.Time
	Src, Dst netip.Addr
	ID       uint16 // IPv4 identification
	TOS, TTL uint8
	SPort    uint16 // UDP source port
	Data     []byte // from the BTH to the ICRC
	Fate     Fate
}

// Net is a network. It need not be closed, but its endpoints must be.
type Net struct {
	cfg    Config
	faults *link.Faults

	mu        sync.Mutex
	endpoints map[netip.Addr]*endpoint
	groups    map[netip.Addr][]*endpoint // the members
	down      map[netip.Addr]bool
	filter    func(*Packet) bool
	packets   []*Packet
}

// New returns a network without endpoints.
func New(cfg Config) *Net {
	if cfg.Rand == nil {
		cfg.Rand = rand.NewPCG(1, 2)
	}
	n := &Net{
		cfg:       cfg,
		endpoints: make(map[netip.Addr]*endpoint),
		groups:    make(map[netip.Addr][]*endpoint),
		down:      make(map[netip.Addr]bool),
	}
	n.faults = link.NewFaults(bare{n}, cfg.Rand)
	return n
}

// Faults returns the faults in front of all endpoints. For other faults at one endpoint, open the endpoint with a
// separate [link.NewFaults] in front of the network.
func (n *Net) Faults() *link.Faults { return n.faults }

// SetFilter makes the network call f for each packet before the packet leaves. If f returns false, the packet is lost.
// Calls of f do not overlap. f may change the Data, but must not use the network. If f is nil, all packets pass.
func (n *Net) SetFilter(f func(*Packet) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.filter = f
}

// SetLink connects or disconnects an address. Packets to and from a disconnected address are lost, including those in
// flight.
func (n *Net) SetLink(addr netip.Addr, up bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if up {
		delete(n.down, addr.Unmap())
	} else {
		n.down[addr.Unmap()] = true
	}
}

// Packets returns all packets so far in the order of sending, if Config.Record is set.
func (n *Net) Packets() []Packet {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]Packet, len(n.packets))
	for i, p := range n.packets {
		list[i] = *p
	}
	return list
}

// Listen implements [link.Network.Listen]. It accepts any address.
func (n *Net) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	return n.faults.Listen(addr, r)
}

// bare is the network without faults.
type bare struct{ net *Net }

func (b bare) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	n, addr := b.net, addr.Unmap()
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return nil, fmt.Errorf("listen on %v: %w", addr, syscall.EADDRNOTAVAIL)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.endpoints[addr] != nil {
		return nil, fmt.Errorf("listen on %v: %w", addr, syscall.EADDRINUSE)
	}
	e := &endpoint{net: n, addr: addr, receiver: r}
	e.runner = timeq.NewRunner(e.deliver)
	n.endpoints[addr] = e
	return e, nil
}

// endpoint is an open address with its receiver.
type endpoint struct {
	net      *Net
	addr     netip.Addr
	receiver link.Receiver
	stats    counters

	runner *timeq.Runner // calls deliver

	// Guarded by net.mu.
	closed bool
	free   time.Time            // time at which all waiting packets have left
	queue  timeq.Queue[*Packet] // by time of arrival
}

type counters struct {
	sentTrains, sentPackets, sentBytes atomic.Uint64
	again, noRoute, tooLong            atomic.Uint64
	batches, packets, bytes            atomic.Uint64
	icrc                               atomic.Uint64
}

var (
	_ link.RawEndpoint = (*endpoint)(nil)
	_ link.Multicaster = (*endpoint)(nil)
)

func (e *endpoint) Addr() netip.Addr { return e.addr }

func (e *endpoint) Send(t *link.Train) error {
	if err := e.seal(t, 1); err != nil {
		return err
	}
	return e.transmit(t, 1)
}

func (e *endpoint) Seal(t *link.Train) error    { return e.seal(t, 0) }
func (e *endpoint) SendRaw(t *link.Train) error { return e.transmit(t, 0) }

// flow returns the flow from a source port between two addresses.
func flow(src, dst netip.Addr, sport uint16) roce.Flow {
	return roce.NewFlow(netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, link.Port))
}

// sourcePort returns the source port of a train.
func sourcePort(t *link.Train) uint16 {
	if t.SPort == 0 {
		return link.Port
	}
	return t.SPort
}

// seal fills in the ICRCs. The identifications increase by step.
func (e *endpoint) seal(t *link.Train, step uint16) error {
	if err := t.Validate(); err != nil {
		panic(fmt.Sprintf("simnet: send from %v to %v: %v", e.addr, t.Dst, err))
	}
	dst := t.Dst.Unmap()
	if dst.Is4() != e.addr.Is4() {
		e.stats.noRoute.Add(1)
		return link.ErrNoRoute
	}
	f := flow(e.addr, dst, sourcePort(t))
	for i := range t.NumPackets() {
		f.Seal(uint16(i)*step, t.Packet(i))
	}
	return nil
}

// transmit sends a sealed train.
func (e *endpoint) transmit(t *link.Train, step uint16) error {
	n, now := e.net, time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case e.closed:
		return link.ErrClosed
	case n.cfg.MaxPacket > 0 && min(t.Size, len(t.Buf)) > n.cfg.MaxPacket:
		e.stats.tooLong.Add(1)
		return link.ErrTooLong
	}
	if e.free.Before(now) {
		e.free = now
	}
	if n.cfg.Bandwidth > 0 && n.cfg.SendBuffer > 0 {
		waiting := int64(e.free.Sub(now)) * n.cfg.Bandwidth / int64(time.Second)
		if waiting+int64(len(t.Buf)) > int64(n.cfg.SendBuffer) {
			e.stats.again.Add(1)
			return link.ErrAgain
		}
	}
	e.stats.sentTrains.Add(1)
	e.stats.sentBytes.Add(uint64(len(t.Buf)))
	e.stats.sentPackets.Add(uint64(t.NumPackets()))
	ttl := t.TTL
	if ttl == 0 {
		ttl = 64
	}
	for i := range t.NumPackets() {
		p := &Packet{
			Sent: now, Src: e.addr, Dst: t.Dst.Unmap(), ID: uint16(i) * step, TOS: t.TOS, TTL: ttl, SPort: sourcePort(t),
			Data: slices.Clone(t.Packet(i)), Fate: InFlight,
		}
		if p.Dst.Is6() {
			p.ID = 0
		}
		if n.cfg.Record {
			n.packets = append(n.packets, p)
		}
		if n.cfg.Bandwidth > 0 {
			e.free = e.free.Add(time.Duration(int64(len(p.Data)) * int64(time.Second) / n.cfg.Bandwidth))
		}
		n.route(p, e.free.Add(n.cfg.Latency))
	}
	return nil
}

// route queues a packet for arrival at a given time, or drops it.
//
//verbena:held n.mu
func (n *Net) route(p *Packet, at time.Time) {
	to := n.endpoints[p.Dst]
	if p.Dst.IsMulticast() {
		n.routeGroup(p, at)
		return
	}
	switch {
	case n.down[p.Src] || n.down[p.Dst]:
		p.Fate = LostLink
	case n.filter != nil && !n.filter(p):
		p.Fate = LostFilter
	case to == nil:
		p.Fate = LostNobody
	default:
		to.enqueue(p, at)
	}
}

// routeGroup sends a copy of a packet to all members of a group, including the sender. The recorded packet counts as
// delivered as soon as it is sent. The copy of each member has a separate fate.
func (n *Net) routeGroup(p *Packet, at time.Time) {
	members := n.groups[p.Dst]
	switch {
	case n.down[p.Src]:
		p.Fate = LostLink
	case n.filter != nil && !n.filter(p):
		p.Fate = LostFilter
	case len(members) == 0:
		p.Fate = LostNobody
	default:
		for _, to := range members {
			c := *p
			to.enqueue(&c, at)
		}
		p.Fate = Delivered
	}
}

// enqueue makes a packet arrive at a given time.
//
//verbena:held net.mu
func (e *endpoint) enqueue(p *Packet, at time.Time) {
	if e.queue.Push(at, p) == e.queue.First() {
		e.runner.Wake()
	}
}

// Join implements link.Multicaster.
func (e *endpoint) Join(group netip.Addr) error {
	n, group := e.net, group.Unmap().WithZone("")
	if !group.IsMulticast() || group.Is4() != e.addr.Is4() {
		return fmt.Errorf("endpoint %v: join group %v: %w", e.addr, group, syscall.EINVAL)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.closed {
		return link.ErrClosed
	}
	if !slices.Contains(n.groups[group], e) {
		n.groups[group] = append(n.groups[group], e)
	}
	return nil
}

// Leave implements link.Multicaster.
func (e *endpoint) Leave(group netip.Addr) error {
	n, group := e.net, group.Unmap().WithZone("")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leave(e, group)
	return nil
}

//verbena:held mu
func (n *Net) leave(e *endpoint, group netip.Addr) {
	n.groups[group] = slices.DeleteFunc(n.groups[group], func(o *endpoint) bool { return o == e })
	if len(n.groups[group]) == 0 {
		delete(n.groups, group)
	}
}

// deliver passes arrived packets to the receiver. It returns the time until the next arrival, or 0 if no packet is in
// flight.
func (e *endpoint) deliver() time.Duration {
	for {
		a, next := e.arrivals()
		if a == nil {
			return next
		}
		e.receiver.Receive(a)
	}
}

// maxBatch is the largest number of packets in an Arrival.
const maxBatch = 64

// arrivals removes arrived packets of one source from the queue and returns them. If there are none, it returns the
// time until the next arrival, or 0 if no packet is in flight.
func (e *endpoint) arrivals() (*link.Arrival, time.Duration) {
	n, now := e.net, time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	a := &link.Arrival{}
	for e.queue.Len() > 0 && len(a.Packets) < maxBatch && !e.closed {
		head := e.queue.First()
		if d := head.Due().Sub(now); d > 0 {
			if len(a.Packets) > 0 {
				break
			}
			return nil, d
		}
		p := head.Value
		if len(a.Packets) > 0 && (p.Src != a.Src || p.Dst != a.Dst || p.TOS != a.TOS || p.TTL != a.TTL) {
			break
		}
		e.queue.Pop()
		f, end := flow(p.Src, p.Dst, p.SPort), len(p.Data)-link.ICRCLen
		switch {
		case n.down[p.Src] || n.down[e.addr]:
			p.Fate = LostLink
		case f.ICRC(p.ID, p.Data) != binary.LittleEndian.Uint32(p.Data[end:]):
			e.stats.icrc.Add(1)
			p.Fate = LostICRC
		default:
			p.Fate = Delivered
			a.Src, a.Dst, a.TOS, a.TTL = p.Src, p.Dst, p.TOS, p.TTL
			// The Receiver gets a copy, since it may change the packet, and the recorded packet must not change.
			a.Packets = append(a.Packets, slices.Clone(p.Data)[:end])
			e.stats.packets.Add(1)
			e.stats.bytes.Add(uint64(len(p.Data)))
		}
	}
	if len(a.Packets) == 0 {
		return nil, 0
	}
	e.stats.batches.Add(1)
	return a, 0
}

// Stats implements link.StatsReader.
func (e *endpoint) Stats() link.Stats {
	c := &e.stats
	return link.Stats{
		SentTrains:      c.sentTrains.Load(),
		SentPackets:     c.sentPackets.Load(),
		SentBytes:       c.sentBytes.Load(),
		SendAgain:       c.again.Load(),
		SendNoRoute:     c.noRoute.Load(),
		SendTooLong:     c.tooLong.Load(),
		ReceivedBatches: c.batches.Load(),
		ReceivedPackets: c.packets.Load(),
		ReceivedBytes:   c.bytes.Load(),
		ICRCErrors:      c.icrc.Load(),
	}
}

// Close implements [link.Endpoint.Close]. Packets in flight to the endpoint are lost.
func (e *endpoint) Close() error {
	n := e.net
	n.mu.Lock()
	if e.closed {
		n.mu.Unlock()
		e.runner.Stop()
		return link.ErrClosed
	}
	e.closed = true
	for i := range e.queue.All() {
		i.Value.Fate = LostClosing
	}
	e.queue.Clear()
	delete(n.endpoints, e.addr)
	for group := range n.groups {
		n.leave(e, group)
	}
	n.mu.Unlock()
	e.runner.Stop()
	return nil
}
