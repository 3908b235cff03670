package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"verbena/verbs"
)

// Conn is a connection. It implements net.Conn, with the semantics of a TCP connection: see the package's
// documentation.
type Conn struct {
	local, remote Addr
	linger        time.Duration
	probes        time.Duration // how often a peer that sends nothing is probed; 0: never
	stall         time.Duration // how long a probe may take, longer than the device's retries do

	pd     *verbs.PD
	ownPD  bool
	cq     *verbs.CQ
	qp     *verbs.QP
	ring   *verbs.MR    // where the peer writes to
	send   *verbs.MR    // where this end's bytes lie until the device has sent them
	there  verbs.Remote // the peer's ring
	ended  func()       // releases the device
	link   link         // what has connected the queue pair, until the end; nil: nothing does
	to     []byte       // send's memory
	from   []byte       // ring's
	ticker *time.Timer  // of probes

	// readers, writers and ops are held throughout a call. Close takes all three.
	//
	//verbena:program those who read from one connection
	readers sync.Mutex
	//verbena:program those who write to one connection
	writers sync.Mutex
	ops     chan struct{} // has an element while no one-sided operation runs
	wr      verbs.SendWR  // scratch; under writers

	//verbena:program the callers of one connection, and its timers
	mu       sync.Mutex
	in       receiver
	out      sender
	rd, wd   deadline
	fin      bool      // the peer sends no more
	gone     bool      // the peer reads no more
	shut     bool      // CloseWrite
	closed   bool      // Close
	err      error     // why the connection has failed
	dead     bool      // and the device has gone
	broken   bool      // the peer does not keep to the protocol: nothing of it counts any more
	released bool      // its objects were closed
	due      bool      // a credit could not be sent yet
	received int       // completions that show that the peer lives
	seen     int       // received, at the last tick
	probed   time.Time // when the first probe was posted since; zero: none was

	controls, controlsDone uint64 // messages without data: how many were posted, and have completed
	lastControl            uint64 // number of the message that Close has sent

	sleeping bool // a goroutine waits at the completion channel, for all others
	waiters  []*waiter
	reader   waiter
	writer   waiter
	closer   waiter
	oper     waiter
	op       operation
	scratch  verbs.SendWR
	recv     verbs.RecvWR // without memory, as all receives
	wcs      [16]verbs.WC
}

var _ net.Conn = (*Conn)(nil)

// The kinds of work requests, in the upper bits of their IDs; the lower ones have a position or a number.
const (
	kindReceive = iota << 60
	kindData
	kindControl
	kindOp
	kindMask = 15 << 60
)

const (
	// maxControls is how many messages without data may be in flight: beyond them, credits are sent later.
	maxControls = 2*fraction + 8
	// maxChunk is the most that one message carries: the device sends one while the next is copied.
	maxChunk = 64 << 10
)

// start makes the rest of a Conn of what it has agreed with the peer.
func (c *Conn) start(own, peer params) {
	messages := int(min(own.messages, peer.messages)) // either end has room for so many that it sends, and receives
	c.in = newReceiver(int(own.ring), messages)
	c.out = newSender(c.send.Len(), int(peer.ring), messages)
	c.there = verbs.Remote{Addr: peer.addr, RKey: peer.rkey}
	c.to, c.from = c.send.Bytes(), c.ring.Bytes()
	c.rd.lock, c.wd.lock = &c.mu, &c.mu
	c.ops = make(chan struct{}, 1)
	c.ops <- struct{}{}
	c.reader.init(c.readable)
	c.writer.init(c.writable)
	c.closer.init(c.delivered)
	c.oper.init(c.op.ready)
	c.op.c = c
	c.waiters = []*waiter{&c.reader, &c.writer, &c.closer, &c.oper}
	if c.probes > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ticker = time.AfterFunc(c.probes, c.tick)
	}
}

// LocalAddr returns this end's Addr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// PD returns the protection domain of the connection: memory for one-sided operations is registered with it.
func (c *Conn) PD() *verbs.PD { return c.pd }

// Read reads what has come of the stream, at least one byte, into b, and waits for it until the read deadline. The
// error is io.EOF when the peer has called CloseWrite or Close and everything was read, else a *net.OpError.
func (c *Conn) Read(b []byte) (int, error) {
	c.readers.Lock()
	defer c.readers.Unlock()
	n, err := c.read(b)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *Conn) read(b []byte) (int, error) {
	c.mu.Lock()
	if c.rd.err != nil || len(b) == 0 {
		err := c.rd.err
		c.mu.Unlock()
		return 0, err
	}
	if c.in.available() < len(b) {
		c.poll()
	}
	if !c.readable() {
		c.mu.Unlock()
		if err := c.await(&c.reader, &c.rd); err != nil {
			return 0, err
		}
		c.mu.Lock()
	}
	if c.in.available() == 0 {
		defer c.mu.Unlock()
		if c.fin {
			return 0, io.EOF
		}
		return 0, c.err
	}
	n := 0
	for n < len(b) && c.in.available() > 0 { // twice at the end of the ring
		from, to := c.in.next(len(b) - n)
		c.mu.Unlock()
		k := copy(b[n:], c.from[from:to]) // which only a reader gives back
		n += k
		c.mu.Lock()
		if c.in.consume(k) {
			c.control(0)
		}
	}
	c.mu.Unlock()
	return n, nil
}

func (c *Conn) readable() bool { return c.in.available() > 0 || c.fin || c.err != nil }

// Write writes b to the stream. It waits until the write deadline while the peer's ring is full. Bytes that were
// written are the connection's own copy: what the caller does with b afterwards changes nothing, also where Write has
// timed out. The error is a *net.OpError.
func (c *Conn) Write(b []byte) (int, error) {
	c.writers.Lock()
	defer c.writers.Unlock()
	n, err := c.write(b)
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *Conn) write(b []byte) (n int, err error) {
	for {
		c.mu.Lock()
		c.poll()
		err := c.wd.err
		switch {
		case err != nil:
		case c.gone:
			err = errPeerClosed
		case c.err != nil:
			err = c.err
		}
		room := c.out.room()
		c.mu.Unlock()
		if err != nil || n == len(b) {
			return n, err
		}
		if room == 0 {
			if err := c.await(&c.writer, &c.wd); err != nil {
				return n, err
			}
			continue
		}
		at := int(c.out.sent % c.out.own) // only writers change sent
		k := copy(c.to[at:at+min(room, maxChunk)], b[n:])
		if err := c.post(at, k); err != nil {
			return n, err
		}
		if n += k; n == len(b) {
			return n, nil
		}
	}
}

func (c *Conn) writable() bool { return c.out.room() > 0 || c.gone || c.err != nil }

// post sends bytes that lie in the ring of what is sent. The lock of writers is held.
func (c *Conn) post(at, n int) error {
	c.mu.Lock()
	remote := verbs.Remote{Addr: c.there.Addr + c.out.sent%c.out.peer, RKey: c.there.RKey}
	flags := verbs.SendFlags(0)
	if c.out.post(n) {
		flags = verbs.Signaled
	}
	c.wr = verbs.SendWR{
		ID: kindData | c.out.sent, Opcode: verbs.WriteWithImm, Flags: flags, Local: c.send.SGE(at, n), Remote: remote,
		Imm: c.in.credit(),
	}
	c.due = false
	c.mu.Unlock()
	if err := c.qp.PostSend(&c.wr); err != nil {
		return c.lost(err)
	}
	return nil
}

// lost ends the connection for an error of the device, and returns why it has ended.
func (c *Conn) lost(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.without(err)
	c.notify()
	return c.err
}

// without notes that the device can do no more for the connection.
//
//verbena:held mu
func (c *Conn) without(err error) {
	c.dead = true
	c.fail(deviceError(lostDevice(c.pd.Device(), err)))
}

// fail notes why the connection has failed. The first reason counts, other than that the device flushes what is queued.
//
//verbena:held mu
func (c *Conn) fail(err error) {
	if c.err == nil || errors.Is(c.err, verbs.Flushed) && !errors.Is(err, verbs.Flushed) {
		c.err = err
	}
}

// control sends a message without data: a credit, or that it is the last.
//
//verbena:held mu
func (c *Conn) control(flags uint32) {
	n := c.controls - c.controlsDone
	switch {
	case c.err != nil || c.gone:
		return
	case flags == 0 && n >= maxControls:
		c.due = true
		return
	}
	c.due = false
	signaled := flags != 0 || n%fraction == fraction-1
	c.empty(verbs.SendWR{Opcode: verbs.WriteWithImm, Remote: c.there, Imm: flags | c.in.credit()}, signaled)
}

// empty posts a message without data.
//
//verbena:held mu
func (c *Conn) empty(wr verbs.SendWR, signaled bool) {
	c.controls++
	c.scratch = wr
	c.scratch.ID = kindControl | c.controls
	if signaled {
		c.scratch.Flags = verbs.Signaled
	}
	if err := c.qp.PostSend(&c.scratch); err != nil {
		c.without(err)
	}
}

// tick probes a peer of which nothing has come since the last time: a WRITE of no bytes is acknowledged by its device.
// This end's device reports one that does not answer, unless it has stopped working itself.
func (c *Conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.poll()
	if c.received != c.seen {
		c.seen, c.probed = c.received, time.Time{}
	} else if n := c.controls - c.controlsDone; c.err == nil && n < maxControls {
		if c.probed.IsZero() {
			c.probed = time.Now()
		}
		c.empty(verbs.SendWR{Opcode: verbs.Write, Remote: c.there}, true)
	}
	if c.err == nil && !c.probed.IsZero() && time.Since(c.probed) > c.stall {
		c.fail(&ConnError{syscall.ETIMEDOUT, fmt.Errorf("the device has completed nothing for %v", c.stall)})
		c.endWaits(c.err) // no completion comes that would wake those who sleep
	}
	if c.err == nil {
		c.ticker.Reset(c.probes)
	}
	c.notify()
}

// poll takes what has completed, and wakes the goroutines for which that is enough.
//
//verbena:held mu
func (c *Conn) poll() {
	for {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			c.without(err)
		}
		for i := range n {
			c.handle(&c.wcs[i])
		}
		if n < len(c.wcs) {
			break
		}
	}
	if c.due {
		c.control(0)
	}
	c.notify()
}

//verbena:held mu
func (c *Conn) handle(wc *verbs.WC) {
	if wc.Status != verbs.Success {
		if wc.ID&kindMask == kindOp {
			c.op.complete()
		}
		err := statusError(wc)
		if wc.Status == verbs.Flushed && c.err == nil {
			err = c.flushed(err)
		}
		c.fail(err)
		return
	}
	c.received++
	n := wc.ID &^ kindMask
	switch wc.ID & kindMask {
	case kindData:
		c.out.complete(n)
	case kindControl:
		c.controlsDone = max(c.controlsDone, n)
	case kindOp:
		c.op.complete()
	case kindReceive:
		if c.broken {
			return // without another receive, which ends what the peer can send
		}
		if err := c.receive(wc); err != nil {
			c.broken = errors.Is(err, syscall.EPROTO)
			c.fail(deviceError(err))
		}
	}
}

// flushed returns why the queue pair has been flushed where no work request of its own has failed: the peer has misused
// it, which is err, or its device goes, and makes no objects any more.
func (c *Conn) flushed(err error) error {
	dev := c.pd.Device()
	pd, gone := dev.AllocPD()
	if gone == nil {
		_ = pd.Close()
	} else if deviceGone(gone) {
		return deviceError(lostDevice(dev, gone))
	}
	return err
}

//verbena:held mu
func (c *Conn) receive(wc *verbs.WC) error {
	if err := c.qp.PostRecv(&c.recv); err != nil {
		return err
	}
	if wc.Opcode != verbs.WCReceiveWriteWith {
		return fmt.Errorf("the peer has sent a message of kind %v: %w", wc.Opcode, syscall.EPROTO)
	}
	fin, gone := wc.Imm&(immFin|immClose) != 0, wc.Imm&immClose != 0
	news := fin && !c.fin || gone && !c.gone
	acked, err := c.out.ack(wc.Imm & immMask)
	switch {
	case err != nil:
		return err
	case wc.ByteLen > 0:
		if c.fin {
			return fmt.Errorf("the peer has sent %d bytes after its last: %w", wc.ByteLen, syscall.EPROTO)
		}
		if err := c.in.arrive(int(wc.ByteLen)); err != nil {
			return err
		}
	case !news && acked == 0:
		// No end sends such a message; as many of them as a peer likes would keep poll from its end.
		return fmt.Errorf("the peer has sent a message that says nothing: %w", syscall.EPROTO)
	}
	c.fin, c.gone = c.fin || fin, c.gone || gone
	return nil
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.rd, &c.wd) }

// SetReadDeadline sets when Read, and Remote.ReadAt, return os.ErrDeadlineExceeded, those that wait included. Zero:
// never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.rd) }

// SetWriteDeadline sets when Write, and Remote.WriteAt, return os.ErrDeadlineExceeded, those that wait included. Zero:
// never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.wd) }

func (c *Conn) setDeadlines(t time.Time, list ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range list {
		d.set(t)
	}
	return nil
}

// CloseWrite ends the stream to the peer, which reads io.EOF after everything that was written. A Write that waits
// returns EPIPE, as later ones do.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	first := !c.shut
	c.shut = true
	if first {
		c.wd.end(syscall.EPIPE)
	}
	c.mu.Unlock()
	if !first {
		return nil
	}
	c.writers.Lock()
	defer c.writers.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.control(immFin)
	}
	return nil
}

// Close ends the connection: calls that wait return net.ErrClosed. It returns when everything that was written lies in
// the peer's memory, which the peer can read also after that; when the peer reads no more, is lost, or Config.Linger is
// over. Its error
// says that the peer may lack some of it. A later Close returns net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.endWaits(net.ErrClosed)
	if c.ticker != nil {
		c.ticker.Stop()
	}
	c.mu.Unlock()
	c.readers.Lock()
	defer c.readers.Unlock()
	c.writers.Lock()
	defer c.writers.Unlock()
	<-c.ops
	defer func() { c.ops <- struct{}{} }()

	c.mu.Lock()
	c.poll()
	c.control(immFin | immClose)
	c.lastControl = c.controls
	limit := deadline{lock: &c.mu}
	limit.set(time.Now().Add(c.linger))
	c.mu.Unlock()
	err := c.await(&c.closer, &limit)
	c.mu.Lock()
	limit.end(net.ErrClosed)
	if err == nil && c.err != nil && !c.gone {
		err = c.err
	}
	c.mu.Unlock()
	if e := c.release(); err == nil {
		err = e
	}
	if err != nil {
		return c.opError("close", err)
	}
	return nil
}

// endWaits ends all waiting, for good.
//
//verbena:held mu
func (c *Conn) endWaits(err error) {
	c.rd.end(err)
	c.wd.end(err)
	c.op.end(err)
}

func (c *Conn) delivered() bool { return c.controlsDone >= c.lastControl || c.gone || c.err != nil }

// release ends the objects of the device.
func (c *Conn) release() error {
	var first error
	end := func(x io.Closer) {
		if err := x.Close(); first == nil {
			first = err
		}
	}
	if c.qp != nil {
		end(c.qp) // the device touches the memory no more
	}
	if c.cq != nil {
		end(c.cq)
	}
	for _, m := range []*verbs.MR{c.ring, c.send, c.op.mr} {
		if m != nil {
			end(m)
		}
	}
	c.mu.Lock()
	c.released = true // the last Region closes the domain
	c.mu.Unlock()
	if err := c.closePD(); first == nil {
		first = err
	}
	if c.link != nil {
		_ = c.link.Close()
	}
	c.ended()
	return first
}
