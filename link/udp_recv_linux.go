package link

import (
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/roce"
)

const (
	recvMessages = 16      // messages per system call
	recvBuffer   = 1 << 16 // bytes per message: the maximum of receive offload
	recvControl  = 128     // bytes of control messages per message
	// recvPackets and recvBytes limit a batch for the Receiver, which copies and acknowledges each batch at once. The
	// limits are large enough to make the acknowledgements cheap. A batch still fits into the private cache of a core.
	recvPackets = 256
	recvBytes   = 4 * recvBuffer
)

// receiver receives from an endpoint. Only the holder of the receive token uses it.
type receiver struct {
	e     *UDPEndpoint
	to    Receiver
	base  time.Time   // reference of all durations in this type
	late  atomic.Bool // set when the receiver is replaced; read by the Receiver
	ended bool        // copy of late for the holder

	msgs    [recvMessages]mmsghdr
	iovs    [recvMessages]unix.Iovec
	names   [recvMessages]sockaddr
	control [recvMessages][recvControl]byte
	bufs    []byte

	// Destination of the packets: the address of the endpoint or, if group is not 0, a multicast group.
	dst   netip.Addr
	group uint32

	arrival Arrival
	bytes   int // in arrival
	flows   [flowSlots]flowEntry
	hosts   [hostSlots]hostEntry
}

// Both tables are direct-mapped. A miss costs the computation of an entry, and no allocation. A host that was evicted
// from its slot counts as a new host.
const (
	flowSlots = 1024
	hostSlots = 256
	groupHash = 61 // distributes the groups of one sender
)

// flowEntry holds the constant part of the ICRC of packets from one port of a sender to the endpoint or a group.
type flowEntry struct {
	src   source
	group uint32
	flow  roce.Flow
}

// hostEntry is a sender to the endpoint or to a group. Linux counts the packets to each destination separately.
type hostEntry struct {
	addr  [16]byte
	group uint32
	ip    netip.Addr // in the form for the Receiver; invalid: the slot is empty
	ident idents

	// The endpoints of this process that have the address, according to view.
	own  []*UDPEndpoint
	view *ownView
}

func newReceiver(e *UDPEndpoint, to Receiver) *receiver {
	r := &receiver{
		e:    e,
		to:   to,
		dst:  e.addr,
		base: time.Now(),
		bufs: make([]byte, recvMessages*recvBuffer),
	}
	r.arrival = Arrival{Packets: make([][]byte, 0, recvPackets), Late: &r.late}
	for i := range r.msgs {
		r.iovs[i] = unix.Iovec{Base: &r.bufs[i*recvBuffer], Len: recvBuffer}
		r.msgs[i].hdr = unix.Msghdr{Name: &r.names[i][0], Iov: &r.iovs[i], Iovlen: 1, Control: &r.control[i][0]}
		r.rearm(i)
	}
	return r
}

// rearm resets the fields that the kernel has overwritten.
func (r *receiver) rearm(i int) {
	r.msgs[i].hdr.Namelen = uint32(len(r.names[i]))
	r.msgs[i].hdr.Controllen = recvControl
	r.msgs[i].hdr.Flags = 0
}

// batch hands over n messages.
func (r *receiver) batch(n int) {
	now := time.Since(r.base)
	for i := range n {
		r.message(i, now)
		r.rearm(i)
	}
	r.flush()
}

// drain hands over all packets of the endpoint. It reports false if the receiver has been replaced. A call that returns
// fewer messages than it could has emptied the socket. Later packets make the socket readable again.
func (r *receiver) drain() bool {
	for r.e.users.Load() >= 0 {
		if n, ok := r.take(r.e.fd, nil); n < len(r.msgs) || !ok {
			return ok
		}
	}
	return true
}

// take hands over the packets that one system call receives from a socket: the socket of g, or of the endpoint if g is
// nil. It returns the number of messages. It reports false if the receiver has been replaced.
func (r *receiver) take(fd int, g *group) (n int, ok bool) {
	for r.e.users.Load() >= 0 {
		if !g.enter() {
			return 0, true
		}
		n, errno := tryRecvmmsg(fd, r.msgs[:])
		g.exit()
		switch errno {
		case 0:
			r.batch(n)
			return n, !r.ended
		case unix.EAGAIN:
			return 0, true
		case unix.EINTR:
		default:
			// No error of the kernel ends an endpoint. An error that would recur immediately, such as lack of memory,
			// must not occupy a processor.
			r.e.rx.errors.Add(1)
			time.Sleep(time.Millisecond)
			if !r.e.turn.alive(r, false) {
				return 0, false
			}
		}
	}
	return 0, true
}

// Take implements [Turn.Take].
func (r *receiver) Take(by any, trains int) bool {
	if r.ended || !r.e.turn.alive(r, false) || !r.e.enter() {
		return false
	}
	n, errno := tryRecvmmsg(r.e.fd, r.msgs[:min(trains+1, recvMessages)])
	r.e.leave()
	if n != trains {
		r.e.turn.expect()
	}
	if errno != 0 {
		return false
	}
	r.arrival.By = by
	whole := false
	defer func() {
		r.arrival.By = nil
		if !whole { // a panic: the state of the receiver is unknown
			r.e.turn.abandon(r)
		}
	}()
	r.batch(n)
	whole = true
	return n > 0
}

// Yield implements [Turn.Yield].
func (r *receiver) Yield() { r.e.turn.yield(r) }

// Abandon implements [Turn.Abandon].
func (r *receiver) Abandon() { r.e.turn.abandon(r) }

// message splits the i-th message into packets and checks them.
func (r *receiver) message(i int, now time.Duration) {
	m := &r.msgs[i]
	b := r.bufs[i*recvBuffer:][:min(int(m.len), recvBuffer)]
	src, ok := r.names[i].source(m.hdr.Namelen)
	if !ok || len(b) == 0 || m.hdr.Flags&unix.MSG_TRUNC != 0 {
		r.e.rx.malformed.Add(1)
		return
	}
	c := parseControls(r.control[i][:min(m.hdr.Controllen, recvControl)])
	size := c.size
	if size == 0 {
		size = len(b)
	}
	if r.bytes+len(b) > recvBytes {
		r.flush()
	}
	flow := r.flow(src)
	host := r.host(&src.addr)
	taps := r.e.taps.On()
	forged := host.forged(src.port)
	if forged && !taps {
		r.e.rx.forged.Add(uint64((len(b) + size - 1) / size))
		return
	}
	for k := 0; len(b) > 0; k++ {
		n := min(size, len(b))
		pkt := b[:n:n]
		b = b[n:]
		if n < minPacket {
			r.e.rx.malformed.Add(1)
			continue
		}
		id, ok := flow.Verify(host.ident.guess(k), pkt)
		if taps {
			r.tap(src, &c, id, pkt)
		}
		if forged {
			r.e.rx.forged.Add(1)
			continue
		}
		if !ok || r.dst.Is4() && !host.ident.accept(k, id, now) {
			r.e.rx.icrc.Add(1)
			continue
		}
		if a := &r.arrival; host.ip != a.Src || c.tos != a.TOS || c.ttl != a.TTL || len(a.Packets) == recvPackets {
			r.flush()
			a.Src, a.TOS, a.TTL = host.ip, c.tos, c.ttl
		}
		r.arrival.Packets = append(r.arrival.Packets, pkt[:n-ICRCLen])
		r.bytes += n
	}
}

// tap passes a packet to the taps, even if it is damaged.
func (r *receiver) tap(src source, c *received, id uint16, pkt []byte) {
	r.e.taps.Packet(&Tapped{
		Time: time.Now(), Src: netip.AddrPortFrom(netip.AddrFrom16(src.addr).Unmap(), src.port),
		Dst: netip.AddrPortFrom(r.dst, Port), ID: id, TOS: c.tos, TTL: c.ttl, Data: pkt,
	})
}

// flush passes the collected packets to the Receiver.
func (r *receiver) flush() {
	n := len(r.arrival.Packets)
	if n == 0 || r.ended {
		return
	}
	if r.e.turn.alive(r, true) {
		r.e.rx.batches.Add(1)
		r.e.rx.packets.Add(uint64(n))
		r.e.rx.bytes.Add(uint64(r.bytes))
		r.arrival.Dst = r.dst
		r.to.Receive(&r.arrival)
	}
	r.ended = !r.e.turn.alive(r, false)
	r.arrival.Packets = r.arrival.Packets[:0]
	r.bytes = 0
}

func (r *receiver) flow(src source) roce.Flow {
	f := &r.flows[(src.hash()+r.group*groupHash)%flowSlots]
	if f.src != src || f.group != r.group {
		from := netip.AddrPortFrom(netip.AddrFrom16(src.addr).Unmap(), src.port)
		*f = flowEntry{src, r.group, roce.NewFlow(from, netip.AddrPortFrom(r.dst, Port))}
	}
	return f.flow
}

func (r *receiver) host(addr *[16]byte) *hostEntry {
	h := &r.hosts[(hashAddr(addr)+r.group*groupHash)%hostSlots]
	if h.addr != *addr || h.group != r.group || !h.ip.IsValid() {
		ip := netip.AddrFrom16(*addr).Unmap()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(r.e.ifname)
		}
		*h = hostEntry{addr: *addr, group: r.group, ip: ip}
	}
	return h
}
