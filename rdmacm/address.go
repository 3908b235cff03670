package rdmacm

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"verbena/ib"
)

// place is where on this host a connection begins: an entry of the GID table of a device.
type place struct {
	agent    *agent // nil: not known yet
	gidIndex int
	gid      ib.GID
	mtu      ib.MTU
}

// sourceOf asks the kernel by which address it reaches another. Nothing is sent.
func sourceOf(dst netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 9)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	a, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("no address leads to %v: %w", dst, syscall.EHOSTUNREACH)
	}
	return a.AddrPort().Addr().Unmap(), nil
}

// find returns the place of an address of this host, EADDRNOTAVAIL if no device has it, ENODEV if there is no device at
// all. An address of the loopback interface stands for the first active device, unless one has it.
//
//verbena:held mu
func (m *Manager) find(addr netip.Addr) (place, error) {
	if len(m.agents) == 0 {
		return place{}, fmt.Errorf("address %v: there is no RDMA device: %w", addr, syscall.ENODEV)
	}
	g := ib.GIDFromAddr(addr.WithZone(""))
	for _, a := range m.agents {
		if i, err := a.gidIndex(g); err == nil {
			return a.place(i, g)
		}
	}
	if !addr.IsLoopback() || m.cfg.NoLoopback {
		return place{}, fmt.Errorf("address %v: no RDMA device has it: %w", addr, syscall.EADDRNOTAVAIL)
	}
	for _, a := range m.agents {
		port, err := a.dev.QueryPort(a.port)
		if err != nil || port.State != ib.PortActive {
			continue
		}
		best := -1
		var gid ib.GID
		for i := range port.GIDTableLen {
			e, err := a.dev.QueryGID(a.port, i)
			if err != nil {
				break
			}
			if e.GID.IsZero() || e.Type != ib.GIDTypeRoCEv2 {
				continue
			}
			same := netip.AddrFrom16(e.GID).Unmap().Is4() == addr.Is4()
			if best < 0 || same {
				best, gid = i, e.GID
			}
			if same && i > 0 { // 0 is the one made from the interface's MAC
				break
			}
		}
		if best >= 0 {
			return a.place(best, gid)
		}
	}
	return place{}, fmt.Errorf("address %v: no RDMA device is active: %w", addr, syscall.ENODEV)
}

// has reports whether a device has an address.
func (m *Manager) has(addr netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.agents {
		if _, err := a.gidIndex(ib.GIDFromAddr(addr.WithZone(""))); err == nil {
			return true
		}
	}
	return false
}

func (a *agent) place(index int, gid ib.GID) (place, error) {
	p, err := a.dev.QueryPort(a.port)
	return place{agent: a, gidIndex: index, gid: gid, mtu: p.ActiveMTU}, err
}

// peerGID is the GID that stands for an address of the peer: an address of the loopback interface is the place itself.
//
//verbena:held mu
func (m *Manager) peerGID(p place, dst netip.Addr) ib.GID {
	g := ib.GIDFromAddr(dst.WithZone(""))
	if !dst.IsLoopback() || m.cfg.NoLoopback {
		return g
	}
	for _, a := range m.agents {
		if _, err := a.gidIndex(g); err == nil {
			return g
		}
	}
	return p.gid
}
