package rdmacm

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"verbena/ib"
)

// Group is a membership of an ID in a multicast group (struct cma_multicast).
type Group struct {
	id   *ID
	addr netip.Addr
	mgid ib.GID
}

// Addr returns the address of the group.
func (g *Group) Addr() netip.Addr { return g.addr }

// Join joins a multicast group and causes MulticastJoin. That event has the data that a queue pair needs to send to
// the group. To receive, the queue pair must be attached to the group. The ID needs a device. (rdma_join_multicast)
func (id *ID) Join(addr netip.Addr) (*Group, error) {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	addr = addr.Unmap().WithZone("")
	switch {
	case !addr.IsMulticast():
		return nil, fmt.Errorf("join %v: not a multicast address: %w", addr, syscall.EINVAL)
	case id.opts.Type != ib.QPTypeUD:
		return nil, fmt.Errorf("join %v: the ID is not of a datagram service: %w", addr, syscall.EINVAL)
	case id.at.agent == nil || id.state != idBound && id.state != idAddrResolved:
		return nil, id.newStateError("join a multicast group")
	}
	g := &Group{id: id, addr: addr, mgid: ib.GIDFromAddr(addr)}
	id.groups = append(id.groups, g)
	m.events.enqueue(id, Event{Type: MulticastJoin, Group: g, Param: Param{QPN: multicastQPN, QKey: udpQKey},
		AH: ib.AHAttr{
			HasGRH: true, Port: uint8(id.at.agent.port), GRH: ib.GlobalRoute{
				// The traffic class is not set (cma_iboe_join_multicast).
				DGID: g.mgid, SGIDIndex: uint8(id.at.gidIndex), HopLimit: hopLimit,
			},
		}})
	return g, nil
}

const multicastQPN = 0xffffff

// Leave ends a membership. (rdma_leave_multicast)
func (g *Group) Leave() {
	g.id.m.mu.Lock()
	defer g.id.m.mu.Unlock()
	g.id.m.leaveGroup(g)
}

//verbena:held mu
func (m *Manager) leaveGroup(g *Group) {
	g.id.groups = slices.DeleteFunc(g.id.groups, func(o *Group) bool { return o == g })
}
