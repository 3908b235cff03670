package link

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Tap gets the packets of a device, for a capture.
type Tap interface {
	// Packet is called for each packet, by several threads concurrently. It may not sleep, and may not keep p or the
	// memory to which p refers. The calls for the packets of one thread are in order. The call for a sent packet can
	// come after the call for the answer. Only Tapped.Time gives the order of the packets.
	Packet(p *Tapped)
}

// Tapped is a packet at a Tap.
type Tapped struct {
	Time     time.Time
	Out      bool // the device sends it
	Src, Dst netip.AddrPort
	// QP is the number of the sending queue pair, or 0 if it is not known. A packet from another host does not contain
	// this number.
	QP uint32
	// ID is the IPv4 identification. "Don't fragment" is set.
	ID       uint16
	TOS, TTL uint8
	// Data is the packet from the BTH to the ICRC.
	Data []byte
	// Unsealed reports that the packet takes a path without ICRC. Data then only has room for the ICRC.
	Unsealed bool
}

// Taps holds the taps of a device. The zero Taps has no taps, and a nil Taps never has any. Without taps, the cost is
// one branch per train. Taps is safe for concurrent use.
type Taps struct {
	mu   sync.Mutex            // serialises changes
	list atomic.Pointer[[]Tap] // replaced, never modified; nil: empty
}

// Add adds a tap.
func (t *Taps) Add(tap Tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := append(slices.Clone(t.load()), tap)
	t.list.Store(&list)
}

// Remove removes a tap. A call of the tap that has already begun can still be running when Remove returns.
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

// On reports whether there are taps.
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

// Packet passes a packet to all taps.
func (t *Taps) Packet(p *Tapped) {
	for _, tap := range t.load() {
		tap.Packet(p)
	}
}

// Train passes the packets of a valid train from src to all taps. The identifications count up from 0 by step. p is
// scratch memory.
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
