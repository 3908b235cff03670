package engine

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

// Limits of multicast. The number of groups is less than in the kernel, since each group costs a socket for each
// address. The others are RXE_MAX_MCAST_QP_ATTACH and RXE_MAX_TOT_MCAST_QP_ATTACH.
const (
	maxMcastGrp      = 256  // advertised
	maxGroups        = 1024 // actual
	maxMcastQPAttach = 56   // advertised
	maxMembers       = 1024
	maxTotMcastQP    = maxMcastGrp * maxMcastQPAttach
)

// groups holds the multicast groups of the device's queue pairs. While a group has a queue pair, one address of the
// device is a member of the group in the network. Each queue pair of the group receives the packets. The network
// returns the packets that the device itself sends to a group; the Fabric takes no part.
type groups struct {
	mu   sync.Mutex // serialises changes; also held while addresses join and leave, which may sleep
	view atomic.Pointer[map[netip.Addr][]*QP]
}

// load returns the present groups. The caller must not change them.
func (g *groups) load() map[netip.Addr][]*QP {
	if v := g.view.Load(); v != nil {
		return *v
	}
	return nil
}

// set replaces the members of a group.
//
//verbena:held mu
func (g *groups) set(group netip.Addr, qps []*QP) {
	v := maps.Clone(g.load())
	if v == nil {
		v = map[netip.Addr][]*QP{}
	}
	if len(qps) == 0 {
		delete(v, group)
	} else {
		v[group] = qps
	}
	g.view.Store(&v)
}

// AttachMcast implements ib.McastQP. (rxe_attach_mcast)
func (qp *QP) AttachMcast(gid ib.GID, _ uint16) error {
	d, group := qp.dev, gid.Addr()
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.load()
	qps := v[group]
	switch {
	case slices.Contains(qps, qp):
		return fmt.Errorf("it is in the group already: %w", syscall.EINVAL)
	case len(qps) >= maxMembers:
		return fmt.Errorf("the group has %d queue pairs: %w", len(qps), syscall.ENOMEM)
	case len(qps) == 0 && len(v) >= maxGroups:
		return fmt.Errorf("%d groups are in use: %w", len(v), syscall.ENOMEM)
	}
	if len(qps) == 0 {
		if err := joinGroup(d, group); err != nil {
			return err
		}
	}
	g.set(group, append(slices.Clone(qps), qp))
	return nil
}

// groupEndpoint returns the endpoint that receives the groups of a family, or nil. It is the first one of the family.
// If several addresses of an interface joined a group, each would receive a copy of its packets.
func groupEndpoint(d *Device, is4 bool) link.Endpoint {
	all := d.Endpoints()
	i := slices.IndexFunc(all, func(e link.Endpoint) bool { return e.Addr().Is4() == is4 })
	if i < 0 {
		return nil
	}
	return all[i]
}

// joinGroup makes the device a member of a group in the network.
func joinGroup(d *Device, group netip.Addr) error {
	e := groupEndpoint(d, group.Is4())
	if e == nil {
		return fmt.Errorf("the device has no address of the group's family: %w", syscall.EADDRNOTAVAIL)
	}
	return link.Join(e, group)
}

// leaveGroup ends the membership of every address in a group, except that of keep. Errors of the network are ignored,
// since no queue pair receives the packets any more.
func leaveGroup(d *Device, group netip.Addr, keep link.Endpoint) {
	for _, e := range d.Endpoints() {
		if e.Addr().Is4() == group.Is4() && e != keep {
			_ = link.Leave(e, group)
		}
	}
}

// rejoinGroups moves the memberships after a change of addresses. The new address joins before the former one leaves.
func rejoinGroups(d *Device) {
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	for group := range g.load() {
		e := groupEndpoint(d, group.Is4())
		if e == nil {
			continue
		}
		if err := link.Join(e, group); err != nil {
			d.logf("%v does not receive multicast group %v: %v", e.Addr(), group, err)
			continue
		}
		leaveGroup(d, group, e)
	}
}

// DetachMcast implements ib.McastQP. (rxe_detach_mcast)
func (qp *QP) DetachMcast(gid ib.GID, _ uint16) error {
	d, group := qp.dev, gid.Addr()
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	qps := slices.Clone(g.load()[group])
	i := slices.Index(qps, qp)
	if i < 0 {
		return fmt.Errorf("it is not in the group: %w", syscall.EINVAL)
	}
	qps = slices.Delete(qps, i, i+1)
	g.set(group, qps)
	if len(qps) == 0 {
		leaveGroup(d, group, nil)
	}
	return nil
}

// receiveGroup hands packets for a group to every queue pair in it. (rxe_rcv_mcast_pkt)
func (p *pass) receiveGroup(d *Device, a *link.Arrival, packets [][]byte) {
	for _, qp := range d.groups.load()[a.Dst] {
		if a.Dropped() {
			return
		}
		p.arrive(qp, a, packets)
	}
}

// echoes reports whether a packet for a group comes from the queue pair itself. A sender gets no copy of its packets.
func echoes(qp *QP, k *packet) bool {
	if !k.dst.IsMulticast() || k.Flags&roce.FlagDETH == 0 || k.DETH().SrcQPN() != qp.num {
		return false
	}
	return slices.ContainsFunc(qp.dev.at.Load().endpoints, func(e *endpoint) bool { return e.addr == k.src })
}
