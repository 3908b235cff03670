// Package stepnet is a RoCEv2 network in memory that advances when a [clock.Virtual] is stepped. All actions, including
// those of the receivers, run on the stepping thread. A run is therefore exactly repeatable. The package is for
// checkers and fuzzing. Other tests use package simnet: its endpoints have goroutines, like the endpoints of a real
// network.
//
//	c := clock.NewVirtual(time.Unix(0, 0))
//	n := stepnet.New(c)
//	n.Route = func(p *stepnet.Packet) { p.Arrive(10 * time.Microsecond) }
//	for c.Step() {
//	}
//
// [Net.Route] decides the outcome of each packet. ICRCs are computed and checked as on a real network.
package stepnet

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"verbena/internal/clock"
	"verbena/link"
	"verbena/roce"
)

// Net is a network. Only the thread that steps the clock may call its methods and those of its endpoints.
type Net struct {
	clock     *clock.Virtual
	endpoints map[netip.Addr]*endpoint
	groups    map[netip.Addr][]*endpoint // in the order of joining

	// Route decides the outcome of a packet; nil: the packet arrives immediately. Route may change Data, which includes
	// the ICRC.
	Route func(p *Packet)
	// Full, if not nil, makes Send return link.ErrAgain if it returns true.
	Full func(from netip.Addr) bool

	// Sent, Delivered, LostICRC and LostNobody count packets. Each copy of a duplicated packet counts. LostICRC
	// includes packets that are too short for an ICRC.
	Sent, Delivered, LostICRC, LostNobody int
}

// New returns a network without endpoints.
func New(c *clock.Virtual) *Net {
	return &Net{clock: c, endpoints: map[netip.Addr]*endpoint{}, groups: map[netip.Addr][]*endpoint{}}
}

// Packet is a packet at the time of sending.
type Packet struct {
	Src, Dst netip.Addr
	ID       uint16 // IPv4 identification
	Data     []byte // from the BTH to the ICRC
	TOS, TTL uint8  // TTL 0: 64
	net      *Net
}

// Arrive makes a copy of the packet arrive after d. A second call duplicates the packet. Without a call, the packet is
// lost. Packets from one source to one destination that arrive at the same time form one batch.
func (p *Packet) Arrive(d time.Duration) {
	n := p.net
	if p.Dst.IsMulticast() {
		for _, e := range n.groups[p.Dst] {
			p.arriveAt(e, d)
		}
	} else if e := n.endpoints[p.Dst]; e != nil {
		p.arriveAt(e, d)
	} else {
		n.LostNobody++
	}
}

func (p *Packet) arriveAt(to *endpoint, d time.Duration) {
	n := p.net
	at := n.clock.Now().Add(d)
	i := len(to.queue)
	for i > 0 && to.queue[i-1].at.After(at) {
		i--
	}
	v := arrival{at: at, src: p.Src, dst: p.Dst, tos: p.TOS, ttl: cmp.Or(p.TTL, 64)}
	if end := len(p.Data) - link.ICRCLen; end >= roce.BTHLen {
		f := flow(p.Src, p.Dst)
		v.data = slices.Clone(p.Data[:end])
		v.intact = f.ICRC(p.ID, p.Data) == binary.LittleEndian.Uint32(p.Data[end:])
	}
	to.queue = slices.Insert(to.queue, i, v)
	n.clock.AfterFunc(d, to.deliver)
}

// Listen implements link.Network. It accepts any address.
func (n *Net) Listen(addr netip.Addr, r link.Receiver) (link.Endpoint, error) {
	if n.endpoints[addr] != nil {
		return nil, fmt.Errorf("listen on %v: %w", addr, syscall.EADDRINUSE)
	}
	e := &endpoint{net: n, addr: addr, receiver: r}
	n.endpoints[addr] = e
	return e, nil
}

// Inject makes a packet from outside of the network arrive now. data is the packet from the BTH to the ICRC, and is not
// changed.
func (n *Net) Inject(src, dst netip.Addr, data []byte) {
	p := Packet{Src: src, Dst: dst, Data: data, net: n}
	p.Arrive(0)
}

// Seal computes the ICRC of a packet for Inject.
func Seal(src, dst netip.Addr, data []byte) {
	f := flow(src, dst)
	f.Seal(0, data)
}

func flow(src, dst netip.Addr) roce.Flow {
	return roce.NewFlow(netip.AddrPortFrom(src, link.Port), netip.AddrPortFrom(dst, link.Port))
}

type arrival struct {
	at     time.Time
	src    netip.Addr
	dst    netip.Addr // address of the endpoint, or a group
	tos    uint8
	ttl    uint8
	data   []byte // without the ICRC; nil: too short for an ICRC
	intact bool
}

// from reports whether the packet can belong to the batch.
func (v *arrival) from(a *link.Arrival) bool {
	return v.src == a.Src && v.dst == a.Dst && v.tos == a.TOS && v.ttl == a.TTL
}

type endpoint struct {
	net      *Net
	addr     netip.Addr
	receiver link.Receiver
	closed   bool
	queue    []arrival // by time of arrival
}

func (e *endpoint) Addr() netip.Addr { return e.addr }

// Send implements link.Endpoint. It panics if the train violates the rules.
func (e *endpoint) Send(t *link.Train) error {
	if err := t.Validate(); err != nil {
		panic(fmt.Sprintf("stepnet: send from %v to %v: %v", e.addr, t.Dst, err))
	}
	n := e.net
	switch {
	case e.closed:
		return link.ErrClosed
	case t.Dst.Is4() != e.addr.Is4():
		return link.ErrNoRoute
	case n.Full != nil && n.Full(e.addr):
		return link.ErrAgain
	}
	f := flow(e.addr, t.Dst)
	for i := range t.NumPackets() {
		p := Packet{Src: e.addr, Dst: t.Dst, Data: slices.Clone(t.Packet(i)), TOS: t.TOS, TTL: t.TTL, net: n}
		if p.Dst.Is4() {
			p.ID = uint16(i)
		}
		f.Seal(p.ID, p.Data)
		n.Sent++
		if n.Route == nil {
			p.Arrive(0)
		} else {
			n.Route(&p)
		}
	}
	return nil
}

// deliver passes the arrived packets to the receiver.
func (e *endpoint) deliver() {
	now := e.net.clock.Now()
	for len(e.queue) > 0 && !e.queue[0].at.After(now) && !e.closed {
		v := &e.queue[0]
		a := &link.Arrival{Src: v.src, Dst: v.dst, TOS: v.tos, TTL: v.ttl}
		for len(e.queue) > 0 && !e.queue[0].at.After(now) && e.queue[0].from(a) {
			if e.queue[0].intact {
				a.Packets = append(a.Packets, e.queue[0].data)
				e.net.Delivered++
			} else {
				e.net.LostICRC++
			}
			e.queue = e.queue[1:]
		}
		if len(a.Packets) > 0 {
			e.receiver.Receive(a)
		}
	}
}

// Join implements link.Multicaster. A member also receives its own packets to the group.
func (e *endpoint) Join(group netip.Addr) error {
	if g := e.net.groups; !slices.Contains(g[group], e) {
		g[group] = append(g[group], e)
	}
	return nil
}

// Leave implements link.Multicaster.
func (e *endpoint) Leave(group netip.Addr) error {
	g := e.net.groups
	g[group] = slices.DeleteFunc(g[group], func(o *endpoint) bool { return o == e })
	return nil
}

// Close implements link.Endpoint.
func (e *endpoint) Close() error {
	for group := range e.net.groups {
		_ = e.Leave(group)
	}
	e.closed = true
	delete(e.net.endpoints, e.addr)
	return nil
}
