package link

import (
	"fmt"
	"net/netip"
	"syscall"
)

// Multicaster is an Endpoint that can be in multicast groups. Packets to its groups, its own too, then arrive as well:
// with the group as Arrival.Dst, and on another thread than packets to the endpoint alone.
type Multicaster interface {
	// Join has what is sent to a group arrive; doing so twice is the same as once. It may sleep.
	Join(group netip.Addr) error
	// Leave ends that; when it returns nothing arrives any more. It may sleep, and must not be called from the
	// Receiver.
	Leave(group netip.Addr) error
}

// Join has an endpoint join a group. EOPNOTSUPP if its network has none.
func Join(e Endpoint, group netip.Addr) error {
	if m, ok := e.(Multicaster); ok {
		return m.Join(group)
	}
	return fmt.Errorf("endpoint %v: join group %v: %w", e.Addr(), group, syscall.EOPNOTSUPP)
}

// Leave has an endpoint leave a group.
func Leave(e Endpoint, group netip.Addr) error {
	if m, ok := e.(Multicaster); ok {
		return m.Leave(group)
	}
	return nil
}

// Join is [Multicaster.Join].
func (e *faultEndpoint) Join(group netip.Addr) error { return Join(e.RawEndpoint, group) }

// Leave is [Multicaster.Leave].
func (e *faultEndpoint) Leave(group netip.Addr) error { return Leave(e.RawEndpoint, group) }
