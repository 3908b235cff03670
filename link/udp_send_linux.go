package link

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RawEndpoint is an Endpoint that can send sealed packets unchanged. With it, [Faults] can damage a packet after the
// computation of its ICRC.
type RawEndpoint interface {
	Endpoint
	// Seal fills in the ICRCs of a valid train for SendRaw.
	Seal(t *Train) error
	// SendRaw sends the packets of a train one by one, with the ICRCs in the buffer. Otherwise it has the guarantees
	// and errors of Send.
	SendRaw(t *Train) error
}

// Send implements [Endpoint.Send].
func (e *UDPEndpoint) Send(t *Train) error {
	p, err := e.prepare(t)
	if err != nil {
		return err
	}
	defer e.sentTo(p)
	n := t.NumPackets()
	at := e.tapTime()
	if n > 1 && !p.noSplit.Load() {
		t.seal(p.flow, 1)
		errno := e.sendOne(t, p, t.Size)
		switch errno {
		case 0:
			e.sent(p, t, n, at, 1)
			return nil
		case unix.EIO, unix.EINVAL, unix.EMSGSIZE:
			// The kernel can have refused the segmentation: the device or the protocol does not support it, or the
			// packets are too long for the path. In the last case sending them one by one fails, too.
		default:
			return e.sendError(errno)
		}
	}
	t.seal(p.flow, 0)
	if n == 1 {
		if errno := e.sendOne(t, p, 0); errno != 0 {
			return e.sendError(errno)
		}
		e.sent(p, t, 1, at, 0)
		return nil
	}
	if err := e.sendEach(t, p); err != nil {
		return err
	}
	p.noSplit.Store(true)
	return nil
}

// SendSome implements [BatchSender.SendSome].
func (e *UDPEndpoint) SendSome(list []*Train) int {
	first := list[0]
	if !e.enter() {
		return 0
	}
	defer e.leave()
	p, err := e.peer(first.Dst, first.SPort)
	if err != nil {
		return 0
	}
	defer p.leave()
	var c [MaxBatch]controls
	var iov [MaxBatch]unix.Iovec
	var v [MaxBatch]mmsghdr
	at := e.tapTime()
	n := 0
	for ; n < min(len(list), MaxBatch); n++ {
		t := list[n]
		if t.Validate() != nil || t.Dst != first.Dst || t.SPort != first.SPort || idStep(t) > 0 && p.noSplit.Load() {
			break
		}
		t.seal(p.flow, idStep(t))
		v[n].hdr = e.header(&iov[n], &c[n], t, p, segment(t))
	}
	if n < 2 {
		return 0
	}
	sent, errno := sendmmsg(p.fd, v[:n])
	for errno == unix.EINTR || errno == unix.ECONNREFUSED { // see sendOne
		sent, errno = sendmmsg(p.fd, v[:n])
	}
	for _, t := range list[:sent] {
		e.sent(p, t, t.NumPackets(), at, idStep(t))
	}
	return sent
}

// idStep returns the difference between the identifications of successive packets that the kernel cuts from a train.
func idStep(t *Train) uint16 {
	if t.NumPackets() > 1 {
		return 1
	}
	return 0
}

// segment returns the size of the packets that the kernel cuts from a train, or 0 for a train of one packet.
func segment(t *Train) int {
	if t.NumPackets() > 1 {
		return t.Size
	}
	return 0
}

// Seal implements [RawEndpoint.Seal].
func (e *UDPEndpoint) Seal(t *Train) error {
	p, err := e.prepare(t)
	if err != nil {
		return err
	}
	defer e.sentTo(p)
	t.seal(p.flow, 0)
	return nil
}

// SendRaw implements [RawEndpoint.SendRaw].
func (e *UDPEndpoint) SendRaw(t *Train) error {
	p, err := e.prepare(t)
	if err != nil {
		return err
	}
	defer e.sentTo(p)
	return e.sendEach(t, p)
}

// prepare validates a train and finds its destination. After a success, the caller must call sentTo.
func (e *UDPEndpoint) prepare(t *Train) (*peer, error) {
	if err := t.Validate(); err != nil {
		e.tx.invalid.Add(1)
		return nil, err
	}
	if !e.enter() {
		return nil, ErrClosed
	}
	p, err := e.peer(t.Dst, t.SPort)
	if err != nil {
		e.tx.noRoute.Add(1)
		e.leave()
	}
	return p, err
}

// sentTo releases the endpoint and the destination after prepare.
func (e *UDPEndpoint) sentTo(p *peer) {
	p.leave()
	e.leave()
}

// tapTime returns the time for the taps of the next packets, or the zero time without taps. The taps get the packets
// after the send. By then an answer can have arrived.
func (e *UDPEndpoint) tapTime() (at time.Time) {
	if e.taps.On() {
		at = time.Now()
	}
	return at
}

// sent counts sent packets and passes them to the taps. Their identifications count up by step.
func (e *UDPEndpoint) sent(p *peer, t *Train, packets int, at time.Time, step uint16) {
	if !at.IsZero() {
		e.taps.Train(&Tapped{Out: true}, at, netip.AddrPortFrom(e.addr, p.from()), t, step)
	}
	e.tx.trains.Add(1)
	e.tx.packets.Add(uint64(packets))
	e.tx.bytes.Add(uint64(len(t.Buf)))
}

// sendOne sends the train with one call. The kernel cuts the train into packets of segment bytes, unless segment is 0.
func (e *UDPEndpoint) sendOne(t *Train, p *peer, segment int) syscall.Errno {
	var c controls
	var iov unix.Iovec
	h := e.header(&iov, &c, t, p, segment)
	for {
		// An interrupted call has sent nothing. An earlier packet can cause an error, such as an ICMP message. The
		// kernel reports this error once, instead of sending. Linux does so only for connected sockets.
		if errno := sendmsg(p.fd, &h); errno != unix.EINTR && errno != unix.ECONNREFUSED {
			return errno
		}
	}
}

// header describes a train for sendmsg(2). The kernel cuts the train into packets of segment bytes, unless segment is
// 0. iov and c are memory for the description.
func (e *UDPEndpoint) header(iov *unix.Iovec, c *controls, t *Train, p *peer, segment int) unix.Msghdr {
	e.addControls(c, t)
	if segment != 0 {
		c.add(unix.SOL_UDP, unix.UDP_SEGMENT, 2, uint32(segment))
	}
	iov.Base, iov.Len = &t.Buf[0], uint64(len(t.Buf))
	h := unix.Msghdr{Name: &p.sa[0], Namelen: p.saLen, Iov: iov, Iovlen: 1}
	if c.n > 0 {
		h.Control, h.Controllen = &c.buf[0], uint64(c.n)
	}
	return h
}

// addControls adds the values that differ from the defaults of the socket.
func (e *UDPEndpoint) addControls(c *controls, t *Train) {
	if e.addr.Is4() {
		if t.TOS != 0 {
			c.add(unix.SOL_IP, unix.IP_TOS, 4, uint32(t.TOS))
		}
		if t.TTL != 0 && t.TTL != defaultTTL {
			c.add(unix.SOL_IP, unix.IP_TTL, 4, uint32(t.TTL))
		}
		return
	}
	if t.TOS != 0 {
		c.add(unix.SOL_IPV6, unix.IPV6_TCLASS, 4, uint32(t.TOS))
	}
	if t.TTL != 0 && t.TTL != defaultTTL {
		c.add(unix.SOL_IPV6, unix.IPV6_HOPLIMIT, 4, uint32(t.TTL))
	}
}

// sendEach sends the packets of a sealed train as separate messages. If the socket accepts only the first packets, the
// train counts as sent, and the rest as lost.
func (e *UDPEndpoint) sendEach(t *Train, p *peer) error {
	var c controls
	e.addControls(&c, t)
	var iov [MaxTrainPackets]unix.Iovec
	var v [MaxTrainPackets]mmsghdr
	n := t.NumPackets()
	at := e.tapTime()
	for i := range n {
		b := t.Packet(i)
		iov[i] = unix.Iovec{Base: &b[0], Len: uint64(len(b))}
		v[i].hdr = unix.Msghdr{Name: &p.sa[0], Namelen: p.saLen, Iov: &iov[i], Iovlen: 1}
		if c.n > 0 {
			v[i].hdr.Control, v[i].hdr.Controllen = &c.buf[0], uint64(c.n)
		}
	}
	done := 0
	for done < n {
		k, errno := sendmmsg(p.fd, v[done:n])
		switch {
		case errno == 0:
			done += k
		case errno == unix.EINTR || errno == unix.ECONNREFUSED:
		case done == 0:
			return e.sendError(errno)
		default:
			e.tx.cutOff.Add(uint64(n - done))
			rest := t.cut(0, done)
			e.sent(p, &rest, done, at, 0)
			e.tx.singly.Add(1)
			return nil
		}
	}
	e.sent(p, t, n, at, 0)
	e.tx.singly.Add(1)
	return nil
}
