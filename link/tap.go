package link

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Tap sees the packets that pass a device, for a capture.
type Tap interface {
	// Packet is called with each packet, by several threads at once. It may not sleep, and does not keep p or what it
	// refers to. Calls are in order for the packets of one thread; that of a packet sent may come after the call for
	// the answer to it, so that only Tapped.Time tells the order.
	Packet(p *Tapped)
}

// Tapped is a packet at a Tap.
type Tapped struct {
	Time     time.Time
	Out      bool // the device sends it
	Src, Dst netip.AddrPort
	// QP is the number of the queue pair that sends it, 0 where that is not known: a packet that came from another host
	// does not tell.
	QP uint32
	// ID is the IPv4 identification; do not fragment is set.
	ID       uint16
	TOS, TTL uint8
	// Data is the packet from the BTH to the ICRC.
	Data []byte
	// Unsealed: the packet takes a way without ICRC, and there is only room for it in Data.
	Unsealed bool
}

// Taps are the taps of a device. The zero Taps has none, a nil one will never have any; while there are none they cost
// one branch a train. Safe for concurrent use.
type Taps struct {
	mu   sync.Mutex            // one change at a time
	list atomic.Pointer[[]Tap] // replaced, not changed; nil: empty
}

// Add puts a tap on.
func (t *Taps) Add(tap Tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := append(slices.Clone(t.load()), tap)
	t.list.Store(&list)
}

// Remove takes it off. A call that has begun by then may still be running.
func (t *Taps) Remove(tap Tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(t.load()), func(o Tap) bool { return o == tap })
	if len(list) == 0 {
		t.list.Store(nil)
		return
	}
	t.list.Store(&list)
}

// On reports whether there are any.
func (t *Taps) On() bool { return t != nil && t.list.Load() != nil }

func (t *Taps) load() []Tap {
	if t == nil {
		return nil
	}
	if l := t.list.Load(); l != nil {
		return *l
	}
	return nil
}

// Packet shows a packet to all of them.
func (t *Taps) Packet(p *Tapped) {
	for _, tap := range t.load() {
		tap.Packet(p)
	}
}

// Train shows the packets of a valid train that is, or seems to be, sent at a time from src; their identifications
// count up from 0 by step. p is scratch.
func (t *Taps) Train(p *Tapped, at time.Time, src netip.AddrPort, train *Train, step uint16) {
	p.Time, p.Src, p.Dst, p.QP = at, src, netip.AddrPortFrom(train.Dst, Port), train.QP
	p.TOS, p.TTL, p.ID = train.TOS, train.TTL, 0
	if p.TTL == 0 {
		p.TTL = defaultTTL
	}
	for i := range train.NumPackets() {
		p.Data = train.Packet(i)
		t.Packet(p)
		p.ID += step
	}
	p.Data = nil
}
