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

// groups are the multicast groups of an endpoint. Each has a socket of its own: a socket that is bound to a unicast
// address does not receive what is sent to a group. One thread receives from all of these sockets, since users choose
// the number of groups.
type groups struct {
	mu     sync.Mutex // one change at a time
	closed bool
	last   uint32                // group.num of the last one
	reader *UDPEndpoint          // nil: no group was joined yet
	m      map[netip.Addr]*group // by address
}

// group is a multicast group that an endpoint has joined.
type group struct {
	num  uint32 // not 0, and not another group's of the endpoint
	addr netip.Addr
	fd   int

	users   atomic.Int64 // calls that use fd now; a thread that was given up may be in one
	leaving atomic.Bool
	left    chan struct{} // closed by the receive thread, which does not use fd any more
}

// groupSockets are the groups that a reader receives from, by the descriptor of the socket.
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

// leave ends the use of the socket of a group by the receive thread. It does nothing if that has been done.
func (s *groupSockets) leave(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[g.fd] == g {
		delete(s.m, g.fd)
		close(g.left)
	}
}

// leaveAll does so for all, after the end of the thread.
func (s *groupSockets) leaveAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for fd, g := range s.m {
		delete(s.m, fd)
		close(g.left)
	}
}

// Join is [Multicaster.Join], by IGMP or MLD on the endpoint's interface.
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

// newGroupReader returns an endpoint whose receive thread receives from the sockets of groups. Nothing arrives at its
// own socket, which is not bound; Close wakes the thread by it.
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

// groupBufferSize is the size of the receive buffer of a group in bytes. The kernel allows twice as much, with
// overhead.
const groupBufferSize = 1 << 20

// GroupMemory is the memory of the kernel in bytes that one group of one endpoint takes at most.
const GroupMemory = 2 * groupBufferSize

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

// enter keeps the socket open until exit, unless it reports false. Between them there may be no sleeping. The nil group
// is the endpoint itself.
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

// leave closes the socket when the receive thread does not use it any more.
func (g *group) leave() error {
	g.leaving.Store(true)
	_ = unix.Shutdown(g.fd, unix.SHUT_RD) // wakes the thread, and reports ENOTCONN
	<-g.left
	for g.users.Load() != 0 {
		runtime.Gosched() // no call sleeps
	}
	return unix.Close(g.fd)
}

// closeGroups leaves all groups, for good.
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

// groupStats adds what has arrived for groups.
func (e *UDPEndpoint) groupStats(s *Stats) {
	e.groups.mu.Lock()
	defer e.groups.mu.Unlock()
	if r := e.groups.reader; r != nil {
		s.received(&r.rx)
	}
}

// receiveGroup hands over some of what there is for the group of a socket. It reports false when the receiver was given
// up.
//
// It is not all that there is: a group with many packets must not keep the thread from the others.
func (r *receiver) receiveGroup(fd int) bool {
	g := r.e.sockets.get(fd)
	switch {
	case g == nil:
		return true
	case g.leaving.Load():
		_ = unix.EpollCtl(r.e.turn.epoll, unix.EPOLL_CTL_DEL, fd, nil) // which can only fail if it was done
		r.e.sockets.leave(g)
		return true
	}
	r.dst, r.group = g.addr, g.num
	_, ok := r.take(fd, g)
	return ok
}
