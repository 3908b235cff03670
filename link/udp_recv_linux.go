package link

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/sched"
	"verbena/roce"
)

const (
	recvMessages = 16      // messages taken from the kernel at once
	recvBuffer   = 1 << 16 // bytes for one: the longest that receive offload makes
	recvControl  = 128     // bytes for its control messages
	// recvPackets and recvBytes bound a batch for the Receiver, which copies and acknowledges each batch at once: enough
	// for that to cost little, and no more than a core's own cache holds.
	recvPackets = 256
	recvBytes   = 4 * recvBuffer
)

// receiver is the receive thread of an endpoint. Nothing in it is shared but what is atomic.
//
//	receiving --Receive--> inside --returns--> receiving
//	                         |
//	                         | after stopTime: another takes its place
//	                         v
//	                        late --returns--> ended
type receiver struct {
	e    *UDPEndpoint
	to   Receiver
	idle idleness
	base time.Time // of all durations here

	calls atomic.Uint64 // of Receive, begun and ended: odd inside
	late  atomic.Bool   // another receives; for the Receiver
	ended bool          // the same; for the thread
	seen  uint64        // calls when the timer last looked; the timer's

	msgs    [recvMessages]mmsghdr
	iovs    [recvMessages]unix.Iovec
	names   [recvMessages]sockaddr
	control [recvMessages][recvControl]byte
	bufs    []byte

	arrival Arrival
	bytes   int // in arrival
	flows   [flowSlots]flowEntry
	hosts   [hostSlots]hostEntry
}

// Both tables are direct-mapped. A miss costs the computation of an entry, not an allocation; a host that was
// pushed out of its slot is met as a new one.
const (
	flowSlots = 1024
	hostSlots = 256
)

// flowEntry is what the ICRC needs for packets of one sender's port.
type flowEntry struct {
	src  source
	flow roce.Flow
}

// hostEntry is a sender.
type hostEntry struct {
	addr  [16]byte
	ip    netip.Addr // as the Receiver gets it; invalid: the slot is empty
	ident idents
}

func newReceiver(e *UDPEndpoint, to Receiver, spin time.Duration) *receiver {
	r := &receiver{
		e:    e,
		to:   to,
		idle: idleness{most: max(spin, 0), pass: 1, fail: 1},
		base: time.Now(),
		bufs: make([]byte, recvMessages*recvBuffer),
	}
	r.arrival = Arrival{Dst: e.addr, Packets: make([][]byte, 0, recvPackets), Late: &r.late}
	for i := range r.msgs {
		r.iovs[i] = unix.Iovec{Base: &r.bufs[i*recvBuffer], Len: recvBuffer}
		r.msgs[i].hdr = unix.Msghdr{Name: &r.names[i][0], Iov: &r.iovs[i], Iovlen: 1, Control: &r.control[i][0]}
		r.rearm(i)
	}
	return r
}

// rearm resets what the kernel overwrote.
func (r *receiver) rearm(i int) {
	r.msgs[i].hdr.Namelen = uint32(len(r.names[i]))
	r.msgs[i].hdr.Controllen = recvControl
	r.msgs[i].hdr.Flags = 0
}

// stopTime is how long a call of Receive may take, and up to twice that, before another thread takes over.
const stopTime = 10 * time.Millisecond

// start makes r the endpoint's receive thread.
func (r *receiver) start() {
	e := r.e
	e.receiver.Store(r)
	go func() {
		runtime.LockOSThread()
		sched.Prompt()
		defer runtime.UnlockOSThread()
		r.run()
		if !r.ended {
			close(e.done)
		}
	}()
}

// watch has the endpoint's timer run while packets arrive.
func (e *UDPEndpoint) watch() {
	if e.watching.CompareAndSwap(false, true) {
		time.AfterFunc(stopTime, e.look)
	}
}

// look replaces the receive thread if it is in the same call of Receive as at the last look. A thread that has been replaced
// ends when the call returns; until then it costs its stack and buffers. That there are not too many is the business of
// whoever stops them.
func (e *UDPEndpoint) look() {
	r := e.receiver.Load()
	n := r.calls.Load()
	switch {
	case n != r.seen:
		r.seen = n
	case n&1 != 0:
		if r.calls.CompareAndSwap(n, n+2) {
			r.late.Store(true)
			newReceiver(e, r.to, r.idle.most).start()
		}
	default:
		e.watching.Store(false)
		if r.calls.Load() == n || !e.watching.CompareAndSwap(false, true) {
			return
		}
	}
	time.AfterFunc(stopTime, e.look)
}

// run receives until the endpoint is closed, or another thread does.
func (r *receiver) run() {
	for {
		n, errno := r.wait()
		if r.e.users.Load() < 0 {
			return
		}
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		default:
			// No error of the kernel's ends an endpoint. One that would come again at once, such as want of
			// memory, must not occupy a processor.
			r.e.rx.errors.Add(1)
			time.Sleep(time.Millisecond)
			continue
		}
		now := time.Since(r.base)
		for i := range n {
			r.message(i, now)
			r.rearm(i)
		}
		r.flush()
		if r.ended {
			return
		}
	}
}

// wait returns messages, at best without sleeping.
func (r *receiver) wait() (n int, errno syscall.Errno) {
	n, errno = tryRecvmmsg(r.e.fd, r.msgs[:])
	if errno != unix.EAGAIN {
		return n, errno
	}
	start := time.Now()
	spin := r.idle.next()
	for spin > 0 && time.Since(start) < spin {
		if n, errno = tryRecvmmsg(r.e.fd, r.msgs[:]); errno != unix.EAGAIN {
			r.idle.waited(time.Since(start), true)
			return n, errno
		}
	}
	n, errno = recvmmsg(r.e.fd, r.msgs[:])
	r.idle.waited(time.Since(start), spin > 0)
	return n, errno
}

// idleness learns whether it pays to spin before sleeping.
//
// It spins as long as that finds packets. When it did not, it sleeps at once, until there was a wait that spinning
// might have bridged: then it tries again, but the more tries have failed, the more such waits it lets pass.
type idleness struct {
	most time.Duration // longest spin
	pass int           // short waits to let pass before the next try
	fail int           // pass after the next failure
}

const (
	// idleWake is about what it takes to wake a thread: a wait that was slept through seems longer by that.
	idleWake = 50 * time.Microsecond
	// idlePatience is the largest number of waits to let pass.
	idlePatience = 255
)

// next is how long to spin now.
func (s *idleness) next() time.Duration {
	if s.pass > 0 {
		return 0
	}
	return s.most
}

// waited takes note of a wait, which may have begun with spinning.
func (s *idleness) waited(d time.Duration, spun bool) {
	switch {
	case spun && d <= s.most:
		s.fail = 1
	case spun:
		s.pass = s.fail
		s.fail = min(2*s.fail+1, idlePatience)
	case s.pass > 0 && d <= s.most+idleWake:
		s.pass--
	}
}

// message takes the i-th message apart.
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
		if !ok || r.e.addr.Is4() && !host.ident.accept(k, id, now) {
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

// tap shows a packet to the taps, a damaged one too.
func (r *receiver) tap(src source, c *received, id uint16, pkt []byte) {
	r.e.taps.Packet(&Tapped{
		Time: time.Now(), Src: netip.AddrPortFrom(netip.AddrFrom16(src.addr).Unmap(), src.port),
		Dst: netip.AddrPortFrom(r.e.addr, Port), ID: id, TOS: c.tos, TTL: c.ttl, Data: pkt,
	})
}

// flush hands over what has gathered.
func (r *receiver) flush() {
	n := len(r.arrival.Packets)
	if n == 0 || r.ended {
		return
	}
	r.e.rx.batches.Add(1)
	r.e.rx.packets.Add(uint64(n))
	r.e.rx.bytes.Add(uint64(r.bytes))
	if !r.e.watching.Load() {
		r.e.watch()
	}
	calls := r.calls.Load() + 1
	r.calls.Store(calls)
	r.to.Receive(&r.arrival)
	r.ended = !r.calls.CompareAndSwap(calls, calls+1)
	r.arrival.Dst = r.e.addr
	r.arrival.Packets = r.arrival.Packets[:0]
	r.bytes = 0
}

func (r *receiver) flow(src source) roce.Flow {
	f := &r.flows[src.hash()%flowSlots]
	if f.src != src {
		from := netip.AddrPortFrom(netip.AddrFrom16(src.addr).Unmap(), src.port)
		*f = flowEntry{src, roce.NewFlow(from, netip.AddrPortFrom(r.e.addr, Port))}
	}
	return f.flow
}

func (r *receiver) host(addr *[16]byte) *hostEntry {
	h := &r.hosts[hashAddr(addr)%hostSlots]
	if h.addr != *addr || !h.ip.IsValid() {
		ip := netip.AddrFrom16(*addr).Unmap()
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(r.e.ifname)
		}
		*h = hostEntry{addr: *addr, ip: ip}
	}
	return h
}
