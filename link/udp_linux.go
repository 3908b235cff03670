package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/netdev"
	"verbena/roce"
)

// Errors of Send, besides [ErrAgain], [ErrTrain] and error numbers of the system.
var (
	ErrNoRoute   = errors.New("no route to the destination")
	ErrTooLong   = errors.New("packet too long for the path")
	ErrForbidden = errors.New("sending is forbidden by the host's packet filter")
	ErrClosed    = errors.New("endpoint is closed")
)

// UDPOptions holds the options of [UDP]. The zero value is a valid choice.
type UDPOptions struct {
	// Spin is the longest time for which an endpoint polls for packets before it sleeps. 0 is 50 microseconds, the time
	// to wake the other end of a ping-pong. A negative value disables polling. The endpoint polls less where polling
	// does not help.
	Spin time.Duration
	// Taps get the packets on the sockets, including damaged packets; nil: none.
	Taps *Taps

	stop  time.Duration // stopTime, except in tests
	delay time.Duration // deferTime, except in tests
}

const (
	// bufferSize is the size of the socket buffers in bytes. The limits net.core.rmem_max and wmem_max apply to an
	// unprivileged process.
	bufferSize  = 8 << 20
	defaultSpin = 50 * time.Microsecond
	defaultTTL  = 64
)

// UDP returns the network of the host. It needs no privilege. Its endpoints are of type [*UDPEndpoint].
func UDP(opts UDPOptions) Network {
	if opts.Spin == 0 {
		opts.Spin = defaultSpin
	}
	if opts.stop == 0 {
		opts.stop = stopTime
	}
	if opts.delay == 0 {
		opts.delay = deferTime
	}
	return udp{opts}
}

type udp struct{ opts UDPOptions }

// UDPEndpoint is an endpoint on a UDP socket: a [RawEndpoint] and a [StatsReader].
type UDPEndpoint struct {
	addr netip.Addr
	fd   int
	opts UDPOptions
	taps *Taps

	// The interface that has addr, if known: its name, and its index as text and as a number.
	ifname, ifnumber string
	ifindex          uint32

	// users is the number of calls that use fd. Close adds closed, which makes it permanently negative.
	users   atomic.Int64
	closing atomic.Bool
	drops   atomic.Uint64 // packets that the socket dropped; set by Close

	peers  [peerSlots]atomic.Pointer[peer]
	ports  sourcePorts
	bound  portSet // ports of the sockets fd and ports
	groups groups
	tx     sendCounters
	_      [64]byte // separates the counters of the receiving thread

	rx   recvCounters
	turn turn
	done chan struct{} // closed at the end of the receive thread

	sockets groupSockets // only in a reader of groups
}

// Listen implements [Network.Listen].
func (n udp) Listen(addr netip.Addr, r Receiver) (Endpoint, error) {
	e, err := openUDP(addr, n.opts)
	if err != nil {
		return nil, err
	}
	e.register()
	if err := e.start(r, n.opts.Spin); err != nil {
		e.unregister()
		unix.Close(e.fd)
		return nil, fmt.Errorf("listen on %v: %w", addr, err)
	}
	return e, nil
}

// openUDP opens an endpoint without a receive thread.
func openUDP(addr netip.Addr, opts UDPOptions) (*UDPEndpoint, error) {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast():
		return nil, fmt.Errorf("listen on %v: RoCEv2 needs one address of this host, not a group or none: %w", addr, unix.EADDRNOTAVAIL)
	case addr.IsLinkLocalUnicast() && addr.Is6() && addr.Zone() == "":
		return nil, fmt.Errorf("listen on %v: a link-local address needs its interface, as in %v%%eth0: %w", addr, addr, unix.EADDRNOTAVAIL)
	}
	e := &UDPEndpoint{addr: addr, opts: opts, taps: opts.Taps, done: make(chan struct{})}
	// An address can be usable by a local route, without an interface that lists it. Then only link-local destinations
	// are unreachable.
	if ifi, err := netdev.ByAddr(addr); err == nil {
		e.ifname, e.ifnumber, e.ifindex = ifi.Name, strconv.Itoa(ifi.Index), uint32(ifi.Index)
		if addr.Zone() != "" {
			e.addr = addr.WithZone(ifi.Name)
		}
	} else if addr.Zone() != "" {
		return nil, fmt.Errorf("listen on %v: %w", addr, err)
	}
	return e, e.open()
}

// open opens the socket.
func (e *UDPEndpoint) open() error {
	family := unix.AF_INET6
	if e.addr.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return fmt.Errorf("listen on %v: %w", e.addr, os.NewSyscallError("socket", err))
	}
	if err := e.bind(fd); err != nil {
		unix.Close(fd)
		return err
	}
	e.fd = fd
	e.bound.add(Port)
	return nil
}

type sockopt struct {
	name              string
	level, opt, value int
}

// sendOptions sets the options for sending.
func (e *UDPEndpoint) sendOptions(fd int) error {
	required := []sockopt{
		{"IP_MTU_DISCOVER", unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{"IP_TTL", unix.SOL_IP, unix.IP_TTL, defaultTTL},
	}
	if e.addr.Is6() {
		required = []sockopt{
			{"IPV6_V6ONLY", unix.SOL_IPV6, unix.IPV6_V6ONLY, 1},
			{"IPV6_MTU_DISCOVER", unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
			{"IPV6_UNICAST_HOPS", unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, defaultTTL},
			// Like Linux's rxe, accept packets over IPv6 without a checksum. Send one: segmentation offload requires
			// it.
			{"UDP_NO_CHECK6_RX", unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	for _, o := range required {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return fmt.Errorf("set socket option %s: %w", o.name, err)
		}
	}
	setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, bufferSize)
	e.multicastOptions(fd)
	return nil
}

// receiveOptions sets the options for receiving, as far as the kernel supports them. Without receive offload, packets
// come one by one. Without the other options, packets seem to have the default values.
func receiveOptions(fd int, ip4 bool) {
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	if ip4 {
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVTOS, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVTTL, 1)
		return
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
}

// socketAddress returns an address for bind(2). A link-local address gets the scope of the interface.
func socketAddress(a netip.Addr, port uint16, ifindex uint32) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
	if a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() {
		sa.ZoneId = ifindex
	}
	return sa
}

// bind sets the options of the socket and binds it.
func (e *UDPEndpoint) bind(fd int) error {
	if err := e.sendOptions(fd); err != nil {
		return fmt.Errorf("listen on %v: %w", e.addr, err)
	}
	receiveOptions(fd, e.addr.Is4())
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, bufferSize)
	switch err := unix.Bind(fd, socketAddress(e.addr, Port, e.ifindex)); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("listen on %v: UDP port %d (RoCEv2) is held by another RDMA service or by the kernel's rdma_rxe: "+
			"stop the service, remove the kernel's device (rdma link delete; modprobe -r rdma_rxe), or use another address: %w",
			e.addr, Port, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("listen on %v: no interface of this host has this address, or it is not ready yet: %w",
			e.addr, err)
	default:
		return fmt.Errorf("listen on %v: UDP port %d: %w", e.addr, Port, os.NewSyscallError("bind", err))
	}
}

// setBuffer sets the size of a socket buffer, within the limits of the process.
func setBuffer(fd, force, ordinary, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, ordinary, size)
	}
}

// Addr implements [Endpoint.Addr].
func (e *UDPEndpoint) Addr() netip.Addr { return e.addr }

// Stats returns the counters of the endpoint. It may be called at any time from any thread.
func (e *UDPEndpoint) Stats() Stats {
	var s Stats
	s.read(&e.tx, &e.rx)
	e.groupStats(&s)
	s.Overflows = e.drops.Load()
	if e.enter() {
		s.Overflows = uint64(socketDrops(e.fd))
		e.leave()
	}
	return s
}

// Buffers returns the sizes of the socket buffers in bytes, including the kernel's overhead. The kernel can give a
// process less than it requests.
func (e *UDPEndpoint) Buffers() (recv, send int) {
	if !e.enter() {
		return 0, 0
	}
	defer e.leave()
	recv, _ = unix.GetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	send, _ = unix.GetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	return recv, send
}

// Close implements [Endpoint.Close]. A second call returns [ErrClosed].
func (e *UDPEndpoint) Close() error {
	if !e.closing.CompareAndSwap(false, true) {
		<-e.done
		return ErrClosed
	}
	groups := e.closeGroups()
	e.users.Add(closed)
	// shutdown(2) wakes the receive thread, although the socket is not connected: the kernel's inet_shutdown does so on
	// purpose, and then returns ENOTCONN.
	sender := e.turn.close()
	_ = unix.Shutdown(e.fd, unix.SHUT_RD)
	<-e.done
	<-sender
	for e.users.Load() != closed {
		runtime.Gosched() // a few microseconds: no thread sleeps between enter and leave
	}
	e.drops.Store(uint64(socketDrops(e.fd)))
	e.closePorts()
	e.unregister()
	if err := errors.Join(unix.Close(e.turn.epoll), unix.Close(e.fd), groups); err != nil {
		return fmt.Errorf("close endpoint %v: %w", e.addr, err)
	}
	return nil
}

// closed is the value that Close adds to a number of users, to refuse further users.
const closed = -1 << 62

// enter keeps fd open until leave, or reports false. The caller may not sleep before leave.
func (e *UDPEndpoint) enter() bool {
	if e.users.Add(1) > 0 {
		return true
	}
	e.users.Add(-1)
	return false
}

func (e *UDPEndpoint) leave() { e.users.Add(-1) }

// peer is the entry of a destination and a source port. Only noSplit can change.
type peer struct {
	addr    netip.Addr
	sport   uint16 // the requested source port
	fd      int
	socket  *portSocket // owner of fd; nil: the endpoint
	flow    roce.Flow
	sa      sockaddr
	saLen   uint32
	noSplit atomic.Bool // the kernel does not segment on this route
}

// from returns the source port of packets to the destination.
func (p *peer) from() uint16 {
	if p.socket == nil {
		return Port
	}
	return p.sport
}

// peerSlots is the size of the table of destinations. The table is direct-mapped: each of two destinations with
// colliding hashes evicts the other, at the cost of an allocation.
const peerSlots = 256

// peer finds or makes the entry of a destination, and enters its socket.
func (e *UDPEndpoint) peer(dst netip.Addr, sport uint16) (*peer, error) {
	dst = dst.Unmap()
	b := dst.As16()
	slot := &e.peers[source{b, sport}.hash()%peerSlots]
	if p := slot.Load(); p != nil && p.addr == dst && p.sport == sport && p.enter() {
		return p, nil
	}
	if dst.Is4() != e.addr.Is4() || dst.IsUnspecified() {
		return nil, ErrNoRoute
	}
	var scope uint32
	if dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsLinkLocalMulticast()) {
		// A device has one interface: hosts on another link cannot be reached from this address.
		if z := dst.Zone(); e.ifindex == 0 || z != "" && z != e.ifname && z != e.ifnumber {
			return nil, ErrNoRoute
		}
		scope = e.ifindex
	}
	from, to := netip.AddrPortFrom(e.addr, Port), netip.AddrPortFrom(dst, Port)
	p := &peer{addr: dst, sport: sport, fd: e.fd}
	if sport != 0 && sport != Port {
		if s := e.sourcePort(sport); s != nil && s.enter() {
			p.socket, p.fd, from = s, s.fd, netip.AddrPortFrom(e.addr, sport)
		}
	}
	p.flow = roce.NewFlow(from, to)
	p.sa, p.saLen = makeSockaddr(to, scope)
	slot.Store(p)
	return p, nil
}

// enter keeps the socket open until leave, or reports false.
func (p *peer) enter() bool { return p.socket == nil || p.socket.enter() }

func (p *peer) leave() {
	if p.socket != nil {
		p.socket.leave()
	}
}

// sendError maps an error number of sendmsg(2) to an error, and counts the error.
func (e *UDPEndpoint) sendError(errno syscall.Errno) error {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		e.tx.again.Add(1)
		return ErrAgain
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.ENODEV, unix.EADDRNOTAVAIL:
		e.tx.noRoute.Add(1)
		return ErrNoRoute
	case unix.EMSGSIZE:
		e.tx.tooLong.Add(1)
		return ErrTooLong
	case unix.EPERM, unix.EACCES:
		e.tx.forbidden.Add(1)
		return ErrForbidden
	}
	e.tx.other.Add(1)
	return errno
}
