package engine

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// path is a resolved address vector: the source endpoint and the destination address. Both are constant.
type path struct {
	from     *endpoint
	dst      netip.Addr
	tos, ttl uint8
	attr     ib.AHAttr
	resolved atomic.Pointer[resolved] // as of the latest lookup
}

// resolve returns the path of an address vector. The error is EINVAL for an invalid vector, for example if the source
// is not in the GID table, and ENETUNREACH for a destination that no endpoint of the device can reach.
func resolve(d *Device, a *ib.AHAttr) (*path, error) {
	g, at := &a.GRH, d.at.Load()
	switch dgid := g.DGID; {
	case a.Port != 1:
		return nil, fmt.Errorf("address vector: no port %d: %w", a.Port, syscall.EINVAL)
	case !a.HasGRH:
		return nil, fmt.Errorf("address vector: RoCE needs a global route: %w", syscall.EINVAL)
	case int(g.SGIDIndex) >= len(at.gids) || at.gids[g.SGIDIndex].GID.IsZero():
		return nil, fmt.Errorf("address vector: source GID index %d is empty: %w", g.SGIDIndex, syscall.EINVAL)
	case dgid.IsZero():
		return nil, fmt.Errorf("address vector: no destination GID: %w", syscall.EINVAL)
	}
	p := &path{attr: *a, tos: g.TrafficClass, ttl: g.HopLimit}
	p.dst = g.DGID.Addr()
	if peer := d.aliased(g.DGID); peer != nil {
		if _, to := meet(d, peer); to != nil {
			p.dst = to.addr
		}
	} else if p.dst.Is6() && p.dst.IsLinkLocalUnicast() {
		p.dst = p.dst.WithZone(at.netdev.Name)
	}
	// Use the endpoint of the source GID. The default GID may be no address of the interface. For it, use an endpoint
	// of the destination's family.
	own := at.gids[g.SGIDIndex].GID
	for _, e := range at.endpoints {
		if ib.GIDFromAddr(e.addr) == own && e.addr.Is4() == p.dst.Is4() {
			p.from = e
			return p, nil
		}
	}
	for _, e := range at.endpoints {
		if g.SGIDIndex == 0 && e.addr.Is4() == p.dst.Is4() {
			p.from = e
			return p, nil
		}
	}
	return nil, fmt.Errorf("address vector: no way from %v to %v: %w", own, p.dst, syscall.ENETUNREACH)
}

// aliased returns the device with the default GID g if g is not also an address that can receive packets. Otherwise
// aliased returns nil.
func (d *Device) aliased(g ib.GID) *Device {
	peer := d.fabric.load().byGID[g]
	if g == d.at.Load().gids[0].GID {
		peer = d
	}
	if peer == nil {
		return nil
	}
	for _, e := range peer.at.Load().endpoints {
		if ib.GIDFromAddr(e.addr) == g {
			return nil
		}
	}
	return peer
}

// meet returns the endpoints for packets between two devices without a named address: the first pair of one family.
func meet(a, b *Device) (from, to *endpoint) {
	for _, from = range a.at.Load().endpoints {
		for _, to = range b.at.Load().endpoints {
			if from.addr.Is4() == to.addr.Is4() {
				return from, to
			}
		}
	}
	return nil, nil
}

// vector caches the address vector of a queue pair's latest datagram, and its path. The provider of rdma-core before
// v39 does not know the numbers of address handles, and writes the vector into each work request.
type vector struct {
	av ib.AHAttr
	to *path // nil: there is no path, or there was no vector yet
}

// path returns the path of an address vector, or nil if there is none. The vector comes from the program. path uses
// only the fields that [resolve] checks.
func (v *vector) path(d *Device, av *ib.AHAttr) *path {
	if v.to == nil || v.av != *av {
		v.av = *av
		v.to, _ = resolve(d, av)
	}
	return v.to
}

// ah is an address handle.
type ah struct {
	dev    *Device
	pd     *pd
	num    uint32
	shared *destination // nil: the handle has a number of its own
	counts *objectCounts
	path   atomic.Pointer[path]
}

// maxAH is RXE_MAX_AH.
const maxAH = 1<<15 - 1

// CreateAH implements ib.AHDriver. It may not sleep.
func (o ops) CreateAH(in ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	d := o.dev
	p, err := resolve(d, attr)
	if err != nil {
		return nil, err
	}
	c := d.context(u)
	h, ok := &ah{dev: d, pd: domain(in), counts: d.counts(c)}, false
	if err := h.counts.add(countAH); err != nil {
		return nil, err
	}
	h.path.Store(p)
	if c != nil && h.pd.destinations != nil {
		ok = h.pd.destinations.share(h, p.dst)
	} else if h.num, ok = d.ahs.reserve(); ok {
		d.ahs.set(h.num, h)
	}
	if !ok {
		h.counts.remove(countAH)
		return nil, fmt.Errorf("%d address handles exist: %w", d.ahs.limit-1, syscall.ENOMEM)
	}
	if c != nil {
		c.queues.RespondAH(h.num, u)
	}
	return h, nil
}

// destinations holds the addresses to which a domain has handles, each with one number. Lookups take no lock.
type destinations [1 << 6]struct {
	mu sync.Mutex
	m  atomic.Pointer[map[netip.Addr]*destination] // replaced, not changed
}

// destination is the number of an address, in use by refs handles. The lock of its part of destinations guards it.
type destination struct {
	to   netip.Addr
	num  uint32
	refs int
}

// part returns the index of the part for an address.
func (d *destinations) part(a netip.Addr) (i int) {
	b := a.As16()
	for _, x := range b {
		i = i*31 + int(x)
	}
	return i & (len(d) - 1)
}

// find returns the number of an address, or 0 if the domain has no handle for it.
func (d *destinations) find(a netip.Addr) uint32 {
	if m := d[d.part(a)].m.Load(); m != nil {
		if to := (*m)[a]; to != nil {
			return to.num
		}
	}
	return 0
}

// replace sets or, if to is nil, removes the number of an address. The caller holds the lock of part i.
func (d *destinations) replace(i int, a netip.Addr, to *destination) {
	m := map[netip.Addr]*destination{}
	if old := d[i].m.Load(); old != nil {
		maps.Copy(m, *old)
	}
	if m[a] = to; to == nil {
		delete(m, a)
	}
	d[i].m.Store(&m)
}

// share assigns the number of its address to the handle. It returns false if no number is left.
func (d *destinations) share(h *ah, a netip.Addr) (ok bool) {
	i := d.part(a)
	p := &d[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.m.Load(); m != nil {
		h.shared = (*m)[a]
	}
	if h.shared == nil {
		n, ok := h.dev.ahs.reserve()
		if !ok {
			return false
		}
		h.shared = &destination{to: a, num: n}
		h.dev.ahs.set(n, h)
		d.replace(i, a, h.shared)
	}
	h.num = h.shared.num
	h.shared.refs++
	return true
}

// leave undoes share. It reports whether the number is free.
func (d *destinations) leave(h *ah) (free bool) {
	i := d.part(h.shared.to)
	d[i].mu.Lock()
	defer d[i].mu.Unlock()
	if h.shared.refs--; h.shared.refs == 0 {
		d.replace(i, h.shared.to, nil)
	}
	return h.shared.refs == 0
}

// pathFor returns the present path of the handle, or nil if the queue pair belongs to another domain.
func (h *ah) pathFor(qp *QP) *path {
	if h.pd != qp.pd {
		return nil
	}
	return h.path.Load()
}

// Modify implements ib.DriverAH.
func (h *ah) Modify(attr *ib.AHAttr) error {
	p, err := resolve(h.dev, attr)
	if err == nil && h.shared != nil {
		return fmt.Errorf("address handles of this device cannot be changed: %w", syscall.EOPNOTSUPP)
	}
	if err == nil {
		h.path.Store(p)
	}
	return err
}

// Query implements ib.DriverAH.
func (h *ah) Query() (ib.AHAttr, error) { return h.path.Load().attr, nil }

// Destroy implements ib.DriverAH.
func (h *ah) Destroy() error {
	if h.shared == nil || h.pd.destinations.leave(h) {
		h.dev.ahs.drop(h.num)
	}
	h.counts.remove(countAH)
	return nil
}
