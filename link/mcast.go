package link

import (
	"fmt"
	"net/netip"
	"syscall"
)

// Multicaster is an Endpoint that can join multicast groups. Packets to its groups then also arrive, including its own.
// They arrive with the group as Arrival.Dst, on another thread than unicast packets.
type Multicaster interface {
	// Join makes packets to a group arrive. A second Join of the same group has no effect. Join may sleep.
	Join(group netip.Addr) error
	// Leave leaves a group. No packet for the group arrives after Leave has returned. Leave may sleep, and must not be
	// called from the Receiver.
	Leave(group netip.Addr) error
}

// Join makes an endpoint join a group. The error wraps EOPNOTSUPP if the network has no multicast.
func Join(e Endpoint, group netip.Addr) error {
	if m, ok := e.(Multicaster); ok {
		return m.Join(group)
	}
	return fmt.Errorf("endpoint %v: join group %v: %w", e.Addr(), group, syscall.EOPNOTSUPP)
}

// Leave makes an endpoint leave a group.
func Leave(e Endpoint, group netip.Addr) error {
	if m, ok := e.(Multicaster); ok {
		return m.Leave(group)
	}
	return nil
}

// Join implements [Multicaster.Join].
func (e *faultEndpoint) Join(group netip.Addr) error { return Join(e.RawEndpoint, group) }

// Leave implements [Multicaster.Leave].
func (e *faultEndpoint) Leave(group netip.Addr) error { return Leave(e.RawEndpoint, group) }
