package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// groups holds the multicast groups of an endpoint. Each group has a separate socket: a socket bound to a unicast
// address does not receive packets to a group. One thread receives from all these sockets, since users choose the
// number of groups.
type groups struct {
	mu     sync.Mutex // serialises Join and Leave
	closed bool
	last   uint32                // group.num of the newest group
	reader *UDPEndpoint          // nil until the first Join
	m      map[netip.Addr]*group // by address
}

// group is a multicast group that an endpoint has joined.
type group struct {
	num  uint32 // not 0; unique within the endpoint
	addr netip.Addr
	fd   int

	users   atomic.Int64 // calls that use fd; a replaced thread can be in one
	leaving atomic.Bool
	left    chan struct{} // closed when the receive thread no longer uses fd
}

// groupSockets holds the groups of a reader, by the descriptor of the socket.
type groupSockets struct {
	mu sync.Mutex
	m  map[int]*group
}

func (s *groupSockets) get(fd int) *group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[fd]
}

func (s *groupSockets) set(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[int]*group{}
	}
	s.m[g.fd] = g
}

// leave removes a group from the sockets of the receive thread. A second call for a group does nothing.
func (s *groupSockets) leave(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[g.fd] == g {
		delete(s.m, g.fd)
		close(g.left)
	}
}

// leaveAll removes all groups, after the end of the receive thread.
func (s *groupSockets) leaveAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for fd, g := range s.m {
		delete(s.m, fd)
		close(g.left)
	}
}

// Join implements [Multicaster.Join], by IGMP or MLD on the interface of the endpoint.
func (e *UDPEndpoint) Join(addr netip.Addr) error {
	fail := func(err error) error { return fmt.Errorf("endpoint %v: join group %v: %w", e.addr, addr, err) }
	addr = addr.Unmap().WithZone("")
	if !addr.IsMulticast() || addr.Is4() != e.addr.Is4() {
		return fail(unix.EINVAL)
	}
	j := &e.groups
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.closed:
		return fail(ErrClosed)
	case j.m[addr] != nil:
		return nil
	}
	if j.reader == nil {
		r, err := e.newGroupReader()
		if err != nil {
			return fail(err)
		}
		j.reader, j.m = r, map[netip.Addr]*group{}
	}
	fd, err := e.groupSocket(addr)
	if err != nil {
		return fail(err)
	}
	j.last++
	g := &group{num: j.last, addr: addr, fd: fd, left: make(chan struct{})}
	j.reader.sockets.set(g)
	if err := epollAdd(j.reader.turn.epoll, fd); err != nil {
		j.reader.sockets.leave(g)
		unix.Close(fd)
		return fail(err)
	}
	j.m[addr] = g
	return nil
}

// newGroupReader returns an endpoint for the receive thread of the groups. Its own socket is not bound and receives
// nothing. Close uses the socket to wake the thread.
func (e *UDPEndpoint) newGroupReader() (*UDPEndpoint, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	r := &UDPEndpoint{
		addr: e.addr, fd: fd, opts: e.opts, taps: e.taps, ifname: e.ifname, ifnumber: e.ifnumber, ifindex: e.ifindex,
		done: make(chan struct{}),
	}
	if err := r.start(e.turn.to, -1); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return r, nil
}

// groupBufferSize is the size of the receive buffer of a group in bytes. The kernel allows twice as much, including
// overhead.
const groupBufferSize = 1 << 20

// GroupMemory is the largest amount of kernel memory for one group of one endpoint, in bytes.
const GroupMemory = 2 * groupBufferSize

// groupSocket opens a socket that receives the packets to a group. Other endpoints can have sockets for the same group.
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
	// Without MULTICAST_ALL = 0, a socket also receives the groups that other sockets of this host joined on other
	// interfaces.
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
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, groupBufferSize)
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

// multicastOptions makes packets to groups leave through the interface of the endpoint.
func (e *UDPEndpoint) multicastOptions(fd int) {
	// The calls fail if the address has no interface. Sending to a group then fails, too.
	if e.addr.Is4() {
		_ = unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: e.addr.As4(), Ifindex: int32(e.ifindex)})
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MULTICAST_TTL, defaultTTL)
		return
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, int(e.ifindex))
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, defaultTTL)
}

// Leave implements [Multicaster.Leave].
func (e *UDPEndpoint) Leave(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	e.groups.mu.Lock()
	g := e.groups.m[addr]
	delete(e.groups.m, addr)
	e.groups.mu.Unlock()
	if g == nil {
		return nil
	}
	if err := g.leave(); err != nil {
		return fmt.Errorf("endpoint %v: leave group %v: %w", e.addr, addr, err)
	}
	return nil
}

// enter keeps the socket open until exit, or reports false. The caller may not sleep before exit. The nil group is the
// endpoint itself.
func (g *group) enter() bool {
	if g == nil {
		return true
	}
	g.users.Add(1)
	if g.leaving.Load() {
		g.users.Add(-1)
		return false
	}
	return true
}

func (g *group) exit() {
	if g != nil {
		g.users.Add(-1)
	}
}

// leave waits until the receive thread no longer uses the socket, and closes the socket.
func (g *group) leave() error {
	g.leaving.Store(true)
	_ = unix.Shutdown(g.fd, unix.SHUT_RD) // wakes the thread, and returns ENOTCONN
	<-g.left
	for g.users.Load() != 0 {
		runtime.Gosched() // these calls do not sleep
	}
	return unix.Close(g.fd)
}

// closeGroups leaves all groups. Later calls of Join fail.
func (e *UDPEndpoint) closeGroups() error {
	j := &e.groups
	j.mu.Lock()
	j.closed = true
	r, m := j.reader, j.m
	j.m = nil
	j.mu.Unlock()
	if r == nil {
		return nil
	}
	err := r.Close()
	r.sockets.leaveAll()
	for _, g := range m {
		err = errors.Join(err, g.leave())
	}
	return err
}

// groupStats adds the counters of packets to groups.
func (e *UDPEndpoint) groupStats(s *Stats) {
	e.groups.mu.Lock()
	defer e.groups.mu.Unlock()
	if r := e.groups.reader; r != nil {
		s.received(&r.rx)
	}
}

// receiveGroup hands over a part of the packets in the socket of a group. A group with many packets must not delay the
// other groups. receiveGroup reports false if the receiver has been replaced.
func (r *receiver) receiveGroup(fd int) bool {
	g := r.e.sockets.get(fd)
	switch {
	case g == nil:
		return true
	case g.leaving.Load():
		_ = unix.EpollCtl(r.e.turn.epoll, unix.EPOLL_CTL_DEL, fd, nil) // fails only if already removed
		r.e.sockets.leave(g)
		return true
	}
	r.dst, r.group = g.addr, g.num
	_, ok := r.take(fd, g)
	return ok
}
