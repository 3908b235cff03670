package link

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// portSet is the set of UDP ports to which the sockets of an endpoint are bound. It is safe for concurrent use.
type portSet [1 << 16 / 64]atomic.Uint64

func (s *portSet) add(port uint16)      { s[port/64].Or(1 << (port % 64)) }
func (s *portSet) remove(port uint16)   { s[port/64].And(^uint64(1 << (port % 64))) }
func (s *portSet) has(port uint16) bool { return s[port/64].Load()&(1<<(port%64)) != 0 }

// own holds the open endpoints of this process by address, without zones.
//
// A process of another user can bind a socket to an address of this process, with any free port, and send from it. The
// process cannot use a port to which a socket of this process is bound. Therefore a packet from an address of this
// process is genuine only if its source port belongs to the endpoint.
var own struct {
	mu   sync.Mutex
	view atomic.Pointer[ownView] // replaced, never modified
}

type ownView map[[16]byte][]*UDPEndpoint

func keyOf(a netip.Addr) [16]byte { return a.WithZone("").As16() }

// register adds the endpoint to own.
func (e *UDPEndpoint) register() {
	changeOwn(func(v ownView) { v[keyOf(e.addr)] = append(slices.Clone(v[keyOf(e.addr)]), e) })
}

// unregister removes the endpoint from own.
func (e *UDPEndpoint) unregister() {
	changeOwn(func(v ownView) {
		k := keyOf(e.addr)
		if v[k] = slices.DeleteFunc(slices.Clone(v[k]), func(x *UDPEndpoint) bool { return x == e }); len(v[k]) == 0 {
			delete(v, k)
		}
	})
}

func changeOwn(change func(ownView)) {
	own.mu.Lock()
	defer own.mu.Unlock()
	v := ownView{}
	if old := own.view.Load(); old != nil {
		for k, list := range *old {
			v[k] = list
		}
	}
	change(v)
	own.view.Store(&v)
}

// forged reports whether packets from a port of the host are forged: the host address belongs to this process, and no
// endpoint has the port.
func (h *hostEntry) forged(port uint16) bool {
	if v := own.view.Load(); h.view != v {
		h.view, h.own = v, nil
		if v != nil {
			h.own = (*v)[h.addr]
		}
	}
	for _, e := range h.own {
		if e.bound.has(port) {
			return false
		}
	}
	return len(h.own) > 0
}
