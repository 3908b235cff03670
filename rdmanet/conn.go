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

// Conn is a connection. A Conn implements net.Conn with the semantics of a TCP connection; see the documentation of the
// package.
type Conn struct {
	local, remote Addr
	linger        time.Duration
	probes        time.Duration // interval of the probes to an idle peer; 0 means no probes
	stall         time.Duration // time limit of a probe; exceeds all retries of the device

	pd     *verbs.PD
	ownPD  bool
	cq     *verbs.CQ
	qp     *verbs.QP
	ring   *verbs.MR    // memory into which the peer writes
	send   *verbs.MR    // memory that contains sent bytes until the device has completed them
	there  verbs.Remote // the peer's ring
	ended  func()       // releases the device
	link   connLink     // ends with the connection to the peer; nil if the connection has no link
	to     []byte       // the bytes of send
	from   []byte       // the bytes of ring
	ticker *time.Timer  // timer of the probes

	// Each call holds one of readers, writers and ops until it returns. Close acquires all three of them.
	//
	//verbena:program those who read from one connection
	readers sync.Mutex
	//verbena:program those who write to one connection
	writers sync.Mutex
	ops     chan struct{} // contains an element while no one-sided operation runs
	wr      verbs.SendWR  // scratch; the caller must hold writers

	//verbena:program the callers of one connection, and its timers
	mu        sync.Mutex
	in        flowReceiver
	out       flowSender
	rd, wd    deadline
	fin       bool      // the peer has sent its last data
	gone      bool      // the peer no longer reads
	shut      bool      // CloseWrite was called
	closed    bool      // Close was called
	err       error     // the reason for the failure of the connection
	dead      bool      // the device is unusable as well
	broken    bool      // the peer has violated the protocol; its further messages are ignored
	released  bool      // the verbs objects have been closed
	due       bool      // a credit still has to be sent
	received  int       // number of successful completions; each proves that the peer works
	seen      int       // value of received at the last tick
	probeSent time.Time // time of the first unacknowledged probe; zero if there is none

	controls, controlsDone uint64 // messages without data: number posted and number completed
	lastControl            uint64 // number of the message that Close has sent

	waiting     waiterList
	readWaiter  waiter
	writeWaiter waiter
	closeWaiter waiter
	oper        waiter
	op          oneSidedOp
	scratch     verbs.SendWR
	recv        verbs.RecvWR // has no memory, like all receives of a Conn
	wcs         [16]verbs.WC
}

var _ net.Conn = (*Conn)(nil)

// The next constants are the kinds of work requests, in the upper bits of their IDs. The lower bits of an ID contain a
// position in the stream or a number.
const (
	kindReceive = iota << 60
	kindData
	kindControl
	kindOp
	kindMask = 15 << 60
)

const (
	// maxControls limits the number of messages without data in flight. When the limit is reached, credits are sent
	// later.
	maxControls = 2*creditFraction + 8
	// maxChunk is the maximum number of bytes in a message. The device sends one chunk while Write copies the next
	// chunk.
	maxChunk = 64 << 10
)

// startStream sets up the stream from the parameters of both ends.
func (c *Conn) startStream(own, peer setupParams) {
	// both ends have resources for this number of messages in each direction
	messages := int(min(own.messages, peer.messages))
	c.in = newFlowReceiver(int(own.ring), messages)
	c.out = newFlowSender(c.send.Len(), int(peer.ring), messages)
	c.there = verbs.Remote{Addr: peer.addr, RKey: peer.rkey}
	c.to, c.from = c.send.Bytes(), c.ring.Bytes()
	c.rd.lock, c.wd.lock = &c.mu, &c.mu
	c.ops = make(chan struct{}, 1)
	c.ops <- struct{}{}
	c.readWaiter.init(c.isReadable)
	c.writeWaiter.init(c.isWritable)
	c.closeWaiter.init(c.areControlsDelivered)
	c.oper.init(c.op.isReady)
	c.op.c = c
	c.waiting.list = []*waiter{&c.readWaiter, &c.writeWaiter, &c.closeWaiter, &c.oper}
	if c.probes > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ticker = time.AfterFunc(c.probes, c.probePeer)
	}
}

// LocalAddr returns the Addr of this end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the Addr of the peer.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// PD returns the protection domain of the connection. Memory for one-sided operations must be registered with it.
func (c *Conn) PD() *verbs.PD { return c.pd }

// Read reads at least one byte of the stream into b. Read blocks until data arrive or the read deadline has passed. The
// error is io.EOF when the peer has called CloseWrite or Close and all data have been read. All other errors are a
// *net.OpError.
func (c *Conn) Read(b []byte) (int, error) {
	c.readers.Lock()
	defer c.readers.Unlock()
	n, err := c.readStream(b)
	if err != nil && err != io.EOF {
		err = c.newOpError("read", err)
	}
	return n, err
}

func (c *Conn) readStream(b []byte) (int, error) {
	c.mu.Lock()
	if c.rd.err != nil || len(b) == 0 {
		err := c.rd.err
		c.mu.Unlock()
		return 0, err
	}
	if c.in.unreadBytes() < len(b) {
		c.pollCompletions()
	}
	if !c.isReadable() {
		c.mu.Unlock()
		if err := c.awaitReady(&c.readWaiter, &c.rd); err != nil {
			return 0, err
		}
		c.mu.Lock()
	}
	if c.in.unreadBytes() == 0 {
		defer c.mu.Unlock()
		if c.fin {
			return 0, io.EOF
		}
		return 0, c.err
	}
	n := 0
	for n < len(b) && c.in.unreadBytes() > 0 { // the second iteration reads after the wrap of the ring
		from, to := c.in.nextRange(len(b) - n)
		c.mu.Unlock()
		k := copy(b[n:], c.from[from:to]) // needs no lock, because only a reader frees this part of the ring
		n += k
		c.mu.Lock()
		if c.in.recordConsumedBytes(k) {
			c.sendControl(0)
		}
	}
	c.mu.Unlock()
	return n, nil
}

func (c *Conn) isReadable() bool { return c.in.unreadBytes() > 0 || c.fin || c.err != nil }

// Write writes b to the stream. Write blocks until the peer's ring has space or the write deadline has passed. The
// connection copies the bytes. The caller may therefore change b as soon as Write returns, even after a timeout. The
// error is a *net.OpError.
func (c *Conn) Write(b []byte) (int, error) {
	c.writers.Lock()
	defer c.writers.Unlock()
	n, err := c.writeStream(b)
	if err != nil {
		err = c.newOpError("write", err)
	}
	return n, err
}

func (c *Conn) writeStream(b []byte) (n int, err error) {
	for {
		c.mu.Lock()
		c.pollCompletions()
		err := c.wd.err
		switch {
		case err != nil:
		case c.gone:
			err = errPeerClosed
		case c.err != nil:
			err = c.err
		}
		room := c.out.maxNextMessage()
		c.mu.Unlock()
		if err != nil || n == len(b) {
			return n, err
		}
		if room == 0 {
			if err := c.awaitReady(&c.writeWaiter, &c.wd); err != nil {
				return n, err
			}
			continue
		}
		at := int(c.out.sent % c.out.own) // needs no lock, because only writers change sent
		k := copy(c.to[at:at+min(room, maxChunk)], b[n:])
		if err := c.postData(at, k); err != nil {
			return n, err
		}
		if n += k; n == len(b) {
			return n, nil
		}
	}
}

func (c *Conn) isWritable() bool { return c.out.maxNextMessage() > 0 || c.gone || c.err != nil }

// postData sends n bytes of the send ring, starting at offset at. The caller must hold writers.
func (c *Conn) postData(at, n int) error {
	c.mu.Lock()
	remote := verbs.Remote{Addr: c.there.Addr + c.out.sent%c.out.peer, RKey: c.there.RKey}
	flags := verbs.SendFlags(0)
	if c.out.recordPost(n) {
		flags = verbs.Signaled
	}
	c.wr = verbs.SendWR{
		ID: kindData | c.out.sent, Opcode: verbs.WriteWithImm, Flags: flags, Local: c.send.SGE(at, n), Remote: remote,
		Imm: c.in.takeCredit(),
	}
	c.due = false
	c.mu.Unlock()
	if err := c.qp.PostSend(&c.wr); err != nil {
		return c.failLostDevice(err)
	}
	return nil
}

// failLostDevice fails the connection because of a device error. failLostDevice returns the reason of the failure.
func (c *Conn) failLostDevice(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.markDeviceUnusable(err)
	c.waiting.wakeReadyWaiters()
	return c.err
}

// markDeviceUnusable records that the device is unusable.
//
//verbena:held mu
func (c *Conn) markDeviceUnusable(err error) {
	c.dead = true
	c.recordFailure(newDeviceError(newLostDeviceError(c.pd.Device(), err)))
}

// recordFailure records the reason for the failure of the connection. The first reason is preserved, except that a
// later and more specific reason replaces verbs.Flushed.
//
//verbena:held mu
func (c *Conn) recordFailure(err error) {
	if c.err == nil || errors.Is(c.err, verbs.Flushed) && !errors.Is(err, verbs.Flushed) {
		c.err = err
	}
}

// sendControl sends a message without data: a credit, FIN or CLOSE.
//
//verbena:held mu
func (c *Conn) sendControl(flags uint32) {
	n := c.controls - c.controlsDone
	switch {
	case c.err != nil || c.gone:
		return
	case flags == 0 && n >= maxControls:
		c.due = true
		return
	}
	c.due = false
	signaled := flags != 0 || n%creditFraction == creditFraction-1
	c.postEmptyMessage(verbs.SendWR{Opcode: verbs.WriteWithImm, Remote: c.there, Imm: flags | c.in.takeCredit()}, signaled)
}

// postEmptyMessage posts a message without data.
//
//verbena:held mu
func (c *Conn) postEmptyMessage(wr verbs.SendWR, signaled bool) {
	c.controls++
	c.scratch = wr
	c.scratch.ID = kindControl | c.controls
	if signaled {
		c.scratch.Flags = verbs.Signaled
	}
	if err := c.qp.PostSend(&c.scratch); err != nil {
		c.markDeviceUnusable(err)
	}
}

// probePeer probes a peer that has been silent since the last tick. The probe is a WRITE of no bytes. The peer's device
// acknowledges it. If the peer's device does not respond, the device of this end reports an error. If the device of
// this end has stopped working, probePeer itself fails the connection.
func (c *Conn) probePeer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.pollCompletions()
	if c.received != c.seen {
		c.seen, c.probeSent = c.received, time.Time{}
	} else if n := c.controls - c.controlsDone; c.err == nil && n < maxControls {
		if c.probeSent.IsZero() {
			c.probeSent = time.Now()
		}
		c.postEmptyMessage(verbs.SendWR{Opcode: verbs.Write, Remote: c.there}, true)
	}
	if c.err == nil && !c.probeSent.IsZero() && time.Since(c.probeSent) > c.stall {
		c.recordFailure(&ConnError{syscall.ETIMEDOUT, fmt.Errorf("the device has completed no work request for %v", c.stall)})
		c.endWaits(c.err) // no completion will wake the sleeping goroutines
	}
	if c.err == nil {
		c.ticker.Reset(c.probes)
	}
	c.waiting.wakeReadyWaiters()
}

// pollCompletions handles the available completions, and wakes the goroutines that need not wait any longer.
//
//verbena:held mu
func (c *Conn) pollCompletions() {
	for {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			c.markDeviceUnusable(err)
		}
		for i := range n {
			c.handleCompletion(&c.wcs[i])
		}
		if n < len(c.wcs) {
			break
		}
	}
	if c.due {
		c.sendControl(0)
	}
	c.waiting.wakeReadyWaiters()
}

//verbena:held mu
func (c *Conn) handleCompletion(wc *verbs.WC) {
	if wc.Status != verbs.Success {
		if wc.ID&kindMask == kindOp {
			c.op.countCompletion()
		}
		err := newStatusError(wc)
		if wc.Status == verbs.Flushed && c.err == nil {
			err = c.flushReason(err)
		}
		c.recordFailure(err)
		return
	}
	c.received++
	n := wc.ID &^ kindMask
	switch wc.ID & kindMask {
	case kindData:
		c.out.recordCompletedUpTo(n)
	case kindControl:
		c.controlsDone = max(c.controlsDone, n)
	case kindOp:
		c.op.countCompletion()
	case kindReceive:
		if c.broken {
			return // the receive is not posted again: this limits the number of further messages of the peer
		}
		if err := c.handleReceive(wc); err != nil {
			c.broken = errors.Is(err, syscall.EPROTO)
			c.recordFailure(newDeviceError(err))
		}
	}
}

// flushReason returns the reason for a flush if no other work request has failed before. If the device is being
// removed, it rejects the creation of objects, and flushed returns the error of such a creation. Otherwise the peer has
// misused the queue pair, and flushed returns err.
func (c *Conn) flushReason(err error) error {
	dev := c.pd.Device()
	pd, gone := dev.AllocPD()
	if gone == nil {
		_ = pd.Close()
	} else if isDeviceGone(gone) {
		return newDeviceError(newLostDeviceError(dev, gone))
	}
	return err
}

//verbena:held mu
func (c *Conn) handleReceive(wc *verbs.WC) error {
	if err := c.qp.PostRecv(&c.recv); err != nil {
		return err
	}
	if wc.Opcode != verbs.WCReceiveWriteWith {
		return fmt.Errorf("message of the peer: got kind %v, want a WRITE with immediate data: %w", wc.Opcode, syscall.EPROTO)
	}
	fin, gone := wc.Imm&(immFin|immClose) != 0, wc.Imm&immClose != 0
	news := fin && !c.fin || gone && !c.gone
	acked, err := c.out.handleAck(wc.Imm & immMask)
	switch {
	case err != nil:
		return err
	case wc.ByteLen > 0:
		if c.fin {
			return fmt.Errorf("the peer has sent %d bytes after the end of its stream: %w", wc.ByteLen, syscall.EPROTO)
		}
		if err := c.in.recordArrival(int(wc.ByteLen)); err != nil {
			return err
		}
	case !news && acked == 0:
		// A correct peer never sends such a message. An unlimited number of such messages would keep poll busy.
		return fmt.Errorf("the peer has sent a message without data, credit or flags: %w", syscall.EPROTO)
	}
	c.fin, c.gone = c.fin || fin, c.gone || gone
	return nil
}

// SetDeadline sets the read deadline and the write deadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setAllDeadlines(t, &c.rd, &c.wd) }

// SetReadDeadline sets the time after which Read and Remote.ReadAt return os.ErrDeadlineExceeded. The deadline also
// applies to calls that are already blocked. A zero t means no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setAllDeadlines(t, &c.rd) }

// SetWriteDeadline sets the time after which Write and Remote.WriteAt return os.ErrDeadlineExceeded. The deadline also
// applies to calls that are already blocked. A zero t means no deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setAllDeadlines(t, &c.wd) }

func (c *Conn) setAllDeadlines(t time.Time, list ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.newOpError("set", net.ErrClosed)
	}
	for _, d := range list {
		d.setTime(t)
	}
	return nil
}

// CloseWrite ends the stream to the peer. The peer reads io.EOF after all written data. Blocked and later calls of
// Write return EPIPE.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.newOpError("close", net.ErrClosed)
	}
	first := !c.shut
	c.shut = true
	if first {
		c.wd.failWaits(syscall.EPIPE)
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
		c.sendControl(immFin)
	}
	return nil
}

// Close ends the connection. Blocked calls return net.ErrClosed. Close returns when all written data are in the peer's
// memory. The peer can still read them from this memory. Close also returns when the peer no longer reads, when the
// peer is lost, and after Config.Linger. An error means that a part of the data may not have reached the peer. A second
// Close returns net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.newOpError("close", net.ErrClosed)
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
	c.pollCompletions()
	c.sendControl(immFin | immClose)
	c.lastControl = c.controls
	limit := deadline{lock: &c.mu}
	limit.setTime(time.Now().Add(c.linger))
	c.mu.Unlock()
	err := c.awaitReady(&c.closeWaiter, &limit)
	c.mu.Lock()
	limit.failWaits(net.ErrClosed)
	if err == nil && c.err != nil && !c.gone {
		err = c.err
	}
	c.mu.Unlock()
	if e := c.closeVerbsObjects(); err == nil {
		err = e
	}
	if err != nil {
		return c.newOpError("close", err)
	}
	return nil
}

// endWaits ends all blocked and later waits.
//
//verbena:held mu
func (c *Conn) endWaits(err error) {
	c.rd.failWaits(err)
	c.wd.failWaits(err)
	c.op.failWait(err)
}

func (c *Conn) areControlsDelivered() bool {
	return c.controlsDone >= c.lastControl || c.gone || c.err != nil
}

// closeVerbsObjects closes the verbs objects.
func (c *Conn) closeVerbsObjects() error {
	var first error
	end := func(x io.Closer) {
		if err := x.Close(); first == nil {
			first = err
		}
	}
	if c.qp != nil {
		end(c.qp) // afterwards the device no longer accesses the memory
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
	c.released = true // from now on the last Region closes the protection domain
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
