package rdmacm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"verbena/ib"
	"verbena/rdmacm/msg"
)

// gidSource is a local source of a connection, which is an entry of the GID table of a device.
type gidSource struct {
	agent    *agent // nil until the agent is known
	gidIndex int
	gid      ib.GID
	mtu      ib.MTU
}

// agentTable holds the agents of the devices. Manager.mu guards it.
type agentTable struct {
	list       []*agent // in the order of registration
	noLoopback bool     // Config.NoLoopback
}

// routeSource asks the kernel for the source address of its route to dst. routeSource sends no packets.
func routeSource(dst netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 9)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	a, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok || dst.Is4In6() {
		return netip.Addr{}, fmt.Errorf("no address leads to %v: %w", dst, syscall.ENETUNREACH)
	}
	return a.AddrPort().Addr().Unmap(), nil
}

// findSourceOfAddr returns the place of a local address. findSourceOfAddr returns EADDRNOTAVAIL if no device has the
// address, ENODEV if there is no device. 127.0.0.1 and ::1 stand for the first active device, unless a device has them.
func (t *agentTable) findSourceOfAddr(addr netip.Addr) (gidSource, error) {
	if len(t.list) == 0 {
		return gidSource{}, fmt.Errorf("address %v: no RDMA device exists: %w", addr, syscall.ENODEV)
	}
	g := ib.GIDFromAddr(addr.WithZone(""))
	for _, a := range t.list {
		if i, err := a.gidIndex(g); err == nil {
			return a.newGIDSource(i, g)
		}
	}
	if !t.representsDevice(addr) {
		return gidSource{}, fmt.Errorf("address %v: no RDMA device has it: %w", addr, syscall.EADDRNOTAVAIL)
	}
	return t.firstActiveSource(addr)
}

// firstActiveSource returns a place on the first active device, preferably of the family of addr.
func (t *agentTable) firstActiveSource(addr netip.Addr) (gidSource, error) {
	for _, a := range t.list {
		port, err := a.dev.QueryPort(a.port)
		if err != nil || port.State != ib.PortActive {
			continue
		}
		if p, ok := a.firstSource(addr); ok {
			return p, nil
		}
	}
	return gidSource{}, fmt.Errorf("address %v: no RDMA device is active: %w", addr, syscall.ENODEV)
}

// findSourceForID returns the place of an address for an ID. (cma_acquire_dev_by_src_ip)
func (t *agentTable) findSourceForID(id *ID, addr netip.Addr) (gidSource, error) {
	p, err := t.findSourceOfAddr(addr)
	foreign := addr.Zone() == "" && errors.Is(err, syscall.EADDRNOTAVAIL) // a zone determines the interface
	switch {
	case addr.Is4In6():
		return gidSource{}, fmt.Errorf("address %v: no interface has it: %w", addr, syscall.EADDRNOTAVAIL)
	case id.opts.Space == msg.PortSpaceIPoIB && !foreign:
		return gidSource{}, fmt.Errorf("address %v: IPoIB needs InfiniBand: %w", addr, syscall.EINVAL)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && !foreign:
		return gidSource{}, fmt.Errorf("address %v: no RDMA device has it: %w", addr, syscall.ENODEV)
	}
	return p, err
}

// sourceFor returns the place from which a peer is reached. Its address is the source of
// the kernel's route.
func (t *agentTable) sourceFor(id *ID, from, dst netip.Addr) (gidSource, error) {
	p, err := t.findSourceForID(id, from)
	if errors.Is(err, syscall.EADDRNOTAVAIL) && from.IsLoopback() && from != dst {
		return t.firstActiveSource(from) // 127.0.0.1 is the source for all of 127.0.0.0/8
	}
	return p, err
}

// representsDevice reports whether an address represents a device that does not have the address. Other addresses of
// 127.0.0.0/8 represent no device, because devices may have them, including devices of other services.
func (t *agentTable) representsDevice(a netip.Addr) bool {
	return !t.noLoopback && isLoopback(a)
}

var localhostIPv4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// isLoopback reports whether an address is 127.0.0.1 or ::1. The kernel binds an ID to such an address in the same
// way as to an unspecified address. (cma_any_addr)
func isLoopback(a netip.Addr) bool { return a == localhostIPv4 || a == netip.IPv6Loopback() }

// deviceAddress returns the address of the device at a place. Peers on other hosts use that address to reach an ID
// that is bound to a loopback address. If the device has no address of the same family, deviceAddress returns the
// loopback address.
func deviceAddress(at gidSource, loopback netip.Addr) netip.Addr {
	own := netip.AddrFrom16(at.gid).Unmap()
	if at.agent == nil || own.Is4() != loopback.Is4() || own.IsLinkLocalUnicast() {
		return loopback
	}
	return own
}

// findSourceOnDevice returns a place on a device from which an address of its family is reached.
func (t *agentTable) findSourceOnDevice(dev *ib.Device, addr netip.Addr) (gidSource, error) {
	for _, a := range t.list {
		if !a.dev.Same(dev) {
			continue
		}
		p, ok := a.firstSource(addr)
		from := netip.AddrFrom16(p.gid).Unmap()
		if !ok || from.Is4() != addr.Is4() || from.IsLinkLocalUnicast() && addr.IsGlobalUnicast() {
			return gidSource{}, fmt.Errorf("device %s has no address to reach %v from: %w", dev.Name(), addr,
				syscall.EADDRNOTAVAIL)
		}
		return p, nil
	}
	return gidSource{}, fmt.Errorf("device %s: %w", dev.Name(), syscall.ENODEV)
}

// firstSource returns the first place of the agent's port, preferably of the family of like. The GID derived from the
// interface's MAC address is the last choice, because the interface may not have that address.
func (a *agent) firstSource(like netip.Addr) (gidSource, bool) {
	port, err := a.dev.QueryPort(a.port)
	if err != nil {
		return gidSource{}, false
	}
	best, rank := -1, -1
	var gid ib.GID
	for i := range port.GIDTableLen {
		e, err := a.dev.QueryGID(a.port, i)
		if err != nil {
			break
		}
		if e.GID.IsZero() || e.Type != ib.GIDTypeRoCEv2 {
			continue
		}
		r := 0
		switch {
		case i == 0: // derived from the interface's MAC address
		case netip.AddrFrom16(e.GID).Unmap().Is4() == like.Is4():
			r = 2
		default:
			r = 1
		}
		if r > rank {
			best, rank, gid = i, r, e.GID
		}
	}
	return gidSource{agent: a, gidIndex: best, gid: gid, mtu: port.ActiveMTU}, best >= 0
}

// hasAddr reports whether a device has an address.
func (t *agentTable) hasAddr(addr netip.Addr) bool {
	if addr.Is4In6() {
		return false
	}
	for _, a := range t.list {
		if _, err := a.gidIndex(ib.GIDFromAddr(addr.WithZone(""))); err == nil {
			return true
		}
	}
	return false
}

func (a *agent) newGIDSource(index int, gid ib.GID) (gidSource, error) {
	p, err := a.dev.QueryPort(a.port)
	return gidSource{agent: a, gidIndex: index, gid: gid, mtu: p.ActiveMTU}, err
}

// peerGID returns the GID of a peer's address. For 127.0.0.1 and ::1, it returns the GID of the place itself.
func (t *agentTable) peerGID(p gidSource, dst netip.Addr) ib.GID {
	g := ib.GIDFromAddr(dst.WithZone(""))
	if !t.representsDevice(dst) {
		return g
	}
	for _, a := range t.list {
		if _, err := a.gidIndex(g); err == nil {
			return g
		}
	}
	return p.gid
}
