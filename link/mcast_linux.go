package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// groups are the multicast groups of an endpoint. Each has a socket and a receive thread of its own: a socket that is
// bound to a unicast address does not receive what is sent to a group.
type groups struct {
	mu     sync.Mutex
	closed bool
	m      map[netip.Addr]*UDPEndpoint
}

// Join is [Multicaster.Join], by IGMP or MLD on the endpoint's interface.
func (e *UDPEndpoint) Join(group netip.Addr) error {
	fail := func(err error) error { return fmt.Errorf("endpoint %v: join group %v: %w", e.addr, group, err) }
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() || group.Is4() != e.addr.Is4() {
		return fail(unix.EINVAL)
	}
	e.groups.mu.Lock()
	defer e.groups.mu.Unlock()
	switch {
	case e.groups.closed:
		return fail(ErrClosed)
	case e.groups.m[group] != nil:
		return nil
	}
	g := &UDPEndpoint{addr: group, opts: e.opts, taps: e.taps, ifname: e.ifname, ifnumber: e.ifnumber, ifindex: e.ifindex, done: make(chan struct{})}
	var err error
	if g.fd, err = e.groupSocket(group); err != nil {
		return fail(err)
	}
	if err := g.start(e.turn.to, -1); err != nil {
		unix.Close(g.fd)
		return fail(err)
	}
	if e.groups.m == nil {
		e.groups.m = map[netip.Addr]*UDPEndpoint{}
	}
	e.groups.m[group] = g
	return nil
}

// groupSocket makes a socket that receives what is sent to a group. Others may have the same, for their endpoints.
func (e *UDPEndpoint) groupSocket(group netip.Addr) (int, error) {
	family := unix.AF_INET6
	if group.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = e.bindGroup(fd, group)
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

func (e *UDPEndpoint) bindGroup(fd int, group netip.Addr) error {
	// Without the last, a socket would receive what others on this host have joined, by other interfaces.
	options := []sockopt{
		{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
		{"IP_MULTICAST_ALL", unix.SOL_IP, unix.IP_MULTICAST_ALL, 0},
	}
	if group.Is6() {
		options = []sockopt{
			{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
			{"IPV6_V6ONLY", unix.SOL_IPV6, unix.IPV6_V6ONLY, 1},
			{"UDP_NO_CHECK6_RX", unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1},
			{"IPV6_MULTICAST_ALL", unix.SOL_IPV6, unix.IPV6_MULTICAST_ALL, 0},
		}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return fmt.Errorf("set socket option %s: %w", o.name, err)
		}
	}
	receiveOptions(fd, group.Is4())
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, bufferSize)
	if err := unix.Bind(fd, socketAddress(group, Port, e.ifindex)); err != nil {
		return fmt.Errorf("UDP port %d: %w", Port, os.NewSyscallError("bind", err))
	}
	var err error
	if group.Is4() {
		err = unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: group.As4(), Address: e.addr.As4(), Ifindex: int32(e.ifindex)})
	} else {
		err = unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, unix.IPV6_ADD_MEMBERSHIP,
			&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: e.ifindex})
	}
	return os.NewSyscallError("setsockopt", err)
}

// multicastOptions have what a socket sends to groups leave by the endpoint's interface, as far as it should.
func (e *UDPEndpoint) multicastOptions(fd int) {
	// They fail where the address has no interface; then so does sending to a group.
	if e.addr.Is4() {
		_ = unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: e.addr.As4(), Ifindex: int32(e.ifindex)})
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MULTICAST_TTL, defaultTTL)
		return
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, int(e.ifindex))
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, defaultTTL)
}

// Leave is [Multicaster.Leave].
func (e *UDPEndpoint) Leave(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	e.groups.mu.Lock()
	g := e.groups.m[group]
	delete(e.groups.m, group)
	e.groups.mu.Unlock()
	if g == nil {
		return nil
	}
	if err := e.leaveGroup(g); err != nil {
		return fmt.Errorf("endpoint %v: leave group %v: %w", e.addr, group, err)
	}
	return nil
}

// leaveGroup closes a group's socket; what it has counted stays with the endpoint.
func (e *UDPEndpoint) leaveGroup(g *UDPEndpoint) error {
	err := g.Close()
	e.left.add(&g.rx)
	return err
}

// closeGroups leaves all groups, for good.
func (e *UDPEndpoint) closeGroups() error {
	e.groups.mu.Lock()
	m := e.groups.m
	e.groups.m, e.groups.closed = nil, true
	e.groups.mu.Unlock()
	var errs []error
	for _, g := range m {
		errs = append(errs, e.leaveGroup(g))
	}
	return errors.Join(errs...)
}

// groupStats adds what has arrived for groups.
func (e *UDPEndpoint) groupStats(s *Stats) {
	e.groups.mu.Lock()
	defer e.groups.mu.Unlock()
	s.received(&e.left)
	for _, g := range e.groups.m {
		s.received(&g.rx)
	}
}
