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

// Errors of Send besides [ErrAgain] and [ErrTrain]; any other is the system's error number.
var (
	ErrNoRoute   = errors.New("no route to the destination")
	ErrTooLong   = errors.New("packet too long for the path")
	ErrForbidden = errors.New("sending is forbidden by the host's packet filter")
	ErrClosed    = errors.New("endpoint is closed")
)

// UDPOptions are the options of [UDP]. The zero value is good.
type UDPOptions struct {
	// Spin is how long an endpoint at most looks for more packets before it sleeps; 0 is 50 microseconds, which is
	// what it takes to wake the other end of a ping-pong, and negative not at all. It learns to do without where it
	// does not help.
	Spin time.Duration
	// Taps see what goes through the sockets, damaged packets included; nil: nobody does.
	Taps *Taps

	stop  time.Duration // stopTime, but in tests
	delay time.Duration // deferTime, but in tests
}

const (
	// bufferSize is the size of the socket buffers in bytes. The kernel gives an unprivileged process no more than its
	// limits net.core.rmem_max and wmem_max.
	bufferSize  = 8 << 20
	defaultSpin = 50 * time.Microsecond
	defaultTTL  = 64
)

// UDP returns the network of the host. It needs no privilege. Its endpoints are [*UDPEndpoint]s.
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

	// The interface that has addr, if known: its name, and its index in both forms.
	ifname, ifnumber string
	ifindex          uint32

	// users counts the calls that use fd; adding closed makes it negative for good.
	users   atomic.Int64
	closing atomic.Bool
	drops   atomic.Uint64 // what the socket dropped, once it is closed

	peers  [peerSlots]atomic.Pointer[peer]
	ports  sourcePorts
	bound  portSet // ports of e.fd and of ports
	groups groups
	tx     sendCounters
	_      [64]byte // the counters below are those of who receives

	rx   recvCounters
	turn turn
	done chan struct{} // closed when the receive thread is gone

	sockets groupSockets // of a reader of groups
}

// Listen is [Network.Listen].
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

// openUDP makes an endpoint without its receive thread.
func openUDP(addr netip.Addr, opts UDPOptions) (*UDPEndpoint, error) {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast():
		return nil, fmt.Errorf("listen on %v: RoCEv2 needs one address of this host, not a group or none: %w", addr, unix.EADDRNOTAVAIL)
	case addr.IsLinkLocalUnicast() && addr.Is6() && addr.Zone() == "":
		return nil, fmt.Errorf("listen on %v: a link-local address needs its interface, as in %v%%eth0: %w", addr, addr, unix.EADDRNOTAVAIL)
	}
	e := &UDPEndpoint{addr: addr, opts: opts, taps: opts.Taps, done: make(chan struct{})}
	// An address may be usable without being listed on an interface, by a local route; then only link-local
	// destinations are out of reach.
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

// open makes the socket.
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

// sendOptions sets the options that sending needs.
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
			// Linux's rxe sends no checksum over IPv6 either. We do: segmentation offload insists on it.
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

// receiveOptions sets those that receiving can use. Without receive offload packets come one by one, and without the
// others they seem to have the usual values.
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

// socketAddress is an address for bind(2); a link-local one is on the interface.
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

// bind sets the socket's options and binds it.
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

// setBuffer sizes a socket buffer as far as the process may.
func setBuffer(fd, force, ordinary, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, ordinary, size)
	}
}

// Addr is [Endpoint.Addr].
func (e *UDPEndpoint) Addr() netip.Addr { return e.addr }

// Stats returns the endpoint's counters. It may be called at any time from anywhere.
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

// Buffers returns how much the kernel lets wait in the socket, in bytes and counted with the overhead of its
// buffers: what was asked for may be more than a process is given.
func (e *UDPEndpoint) Buffers() (recv, send int) {
	if !e.enter() {
		return 0, 0
	}
	defer e.leave()
	recv, _ = unix.GetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	send, _ = unix.GetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	return recv, send
}

// Close is [Endpoint.Close]. What it returns for an endpoint that is closed already is [ErrClosed].
func (e *UDPEndpoint) Close() error {
	if !e.closing.CompareAndSwap(false, true) {
		<-e.done
		return ErrClosed
	}
	groups := e.closeGroups()
	e.users.Add(closed)
	// Shutting down wakes the receive thread, though there is no connection that could be shut down: inet_shutdown
	// of the kernel does so on purpose, and then says ENOTCONN.
	sender := e.turn.close()
	_ = unix.Shutdown(e.fd, unix.SHUT_RD)
	<-e.done
	<-sender
	for e.users.Load() != closed {
		runtime.Gosched() // a few microseconds: nobody sleeps between enter and leave
	}
	e.drops.Store(uint64(socketDrops(e.fd)))
	e.closePorts()
	e.unregister()
	if err := errors.Join(unix.Close(e.turn.epoll), unix.Close(e.fd), groups); err != nil {
		return fmt.Errorf("close endpoint %v: %w", e.addr, err)
	}
	return nil
}

// closed as number of users says that there shall be no more.
const closed = -1 << 62

// enter keeps fd open until leave, unless it reports false. Between them there may be no sleeping.
func (e *UDPEndpoint) enter() bool {
	if e.users.Add(1) > 0 {
		return true
	}
	e.users.Add(-1)
	return false
}

func (e *UDPEndpoint) leave() { e.users.Add(-1) }

// peer is a destination from a source port, never changed but for one flag.
type peer struct {
	addr    netip.Addr
	sport   uint16 // as asked for
	fd      int
	socket  *portSocket // that fd belongs to; nil: the endpoint's
	flow    roce.Flow
	sa      sockaddr
	saLen   uint32
	noSplit atomic.Bool // the kernel does not segment on this route
}

// from is the port that packets to the destination leave from.
func (p *peer) from() uint16 {
	if p.socket == nil {
		return Port
	}
	return p.sport
}

// peerSlots is the size of the table of destinations, which is direct-mapped: two whose hashes collide throw each
// other out, which costs an allocation.
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
		// A device has one interface: what is on another link cannot be reached from this address.
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

// enter keeps the socket open until leave, unless it reports false.
func (p *peer) enter() bool { return p.socket == nil || p.socket.enter() }

func (p *peer) leave() {
	if p.socket != nil {
		p.socket.leave()
	}
}

// sendError maps an error number of sendmsg(2) to an error, and counts it.
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
