package rdmanet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"verbena/verbs"
)

// Region is registered memory that a peer may read or write without a call at this end.
type Region struct {
	mr *verbs.MR
	c  *Conn // the Conn that created the Region; nil if RegionOf created it

	// Operations of this end hold use for reading while they access the memory. Close holds use for writing.
	//
	//verbena:program the callers of one program
	use sync.RWMutex
}

// NewRegion allocates and registers memory. access contains the peer's rights: verbs.RemoteRead, or verbs.LocalWrite
// and verbs.RemoteWrite, or all three. 0 means all three. Memory that only ReadRegion and WriteRegion of this end
// access needs verbs.LocalWrite. The memory is valid until Region.Close, or until the device is closed. NewRegion may
// sleep.
func (c *Conn) NewRegion(size int, access verbs.Access) (*Region, error) {
	if access == 0 {
		access = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, c.newOpError("register", net.ErrClosed)
	}
	mr, err := c.allocMR(size, access)
	if err != nil {
		return nil, c.newOpError("register", err)
	}
	return &Region{mr: mr, c: c}, nil
}

// allocMR allocates registered memory. If the device has been removed, allocMR fails the connection.
func (c *Conn) allocMR(size int, access verbs.Access) (*verbs.MR, error) {
	mr, err := c.pd.Alloc(size, access)
	if isDeviceGone(err) {
		err = c.failLostDevice(err)
	}
	return mr, err
}

// RegionOf returns a Region for memory that is registered with the protection domain of a connection; see Config.PD.
func RegionOf(mr *verbs.MR) *Region { return &Region{mr: mr} }

// Bytes returns the memory, or nil after Close.
func (r *Region) Bytes() []byte { return r.mr.Bytes() }

// Len returns the length in bytes.
func (r *Region) Len() int { return r.mr.Len() }

// Descriptor returns the address, length and key that a peer needs to access the memory.
func (r *Region) Descriptor() Descriptor {
	return Descriptor{Addr: r.mr.Addr(), Length: uint64(r.mr.Len()), RKey: r.mr.RKey()}
}

// Close deregisters the memory. A peer that accesses the memory afterwards loses its connection. Close waits for a
// ReadRegion or WriteRegion of this end that uses the memory. Later operations fail with net.ErrClosed. Close may be
// called again, and may sleep.
func (r *Region) Close() error {
	r.use.Lock()
	defer r.use.Unlock()
	if err := r.mr.Close(); err != nil || r.c == nil {
		return err
	}
	r.c.mu.Lock()
	released := r.c.released
	r.c.mu.Unlock()
	if released {
		return r.c.closePD()
	}
	return nil
}

// acquireForUse acquires use for reading. The lock keeps the memory registered until the caller unlocks use. The error
// wraps net.ErrClosed if Close was called.
func (r *Region) acquireForUse() error {
	if r.use.TryRLock() {
		if r.mr.Bytes() != nil {
			return nil
		}
		r.use.RUnlock()
	}
	return fmt.Errorf("region of %d bytes at %#x: %w", r.Len(), r.mr.Addr(), net.ErrClosed)
}

// closePD closes the protection domain of a closed connection, unless regions still use it.
func (c *Conn) closePD() error {
	if !c.ownPD {
		return nil
	}
	if err := c.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		return err
	}
	return nil
}

// Descriptor describes a Region to a peer. The peer can use the Descriptor on any connection with the same protection
// domain.
type Descriptor struct {
	Addr, Length uint64
	RKey         uint32
}

// DescriptorSize is the length of a Descriptor in bytes.
const DescriptorSize = 20

// AppendBinary appends the descriptor in DescriptorSize bytes. The error is always nil.
func (d Descriptor) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, d.Addr)
	b = binary.BigEndian.AppendUint64(b, d.Length)
	return binary.BigEndian.AppendUint32(b, d.RKey), nil
}

// MarshalBinary returns the descriptor in DescriptorSize bytes. The error is always nil.
func (d Descriptor) MarshalBinary() ([]byte, error) { return d.AppendBinary(nil) }

// UnmarshalBinary decodes the result of AppendBinary.
func (d *Descriptor) UnmarshalBinary(b []byte) error {
	if len(b) != DescriptorSize {
		return fmt.Errorf("rdmanet: descriptor has %d bytes, want %d: %w", len(b), DescriptorSize, syscall.EINVAL)
	}
	n := Descriptor{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])}
	if err := n.checkValid(); err != nil {
		return fmt.Errorf("rdmanet: %w", err)
	}
	*d = n
	return nil
}

// checkValid rejects a descriptor that no Region can have. A program may use a peer's descriptor without
// UnmarshalBinary.
func (d Descriptor) checkValid() error {
	if d.Length > math.MaxInt64 || d.Addr+d.Length < d.Addr {
		return fmt.Errorf("invalid descriptor of %d bytes at %#x: %w", d.Length, d.Addr, syscall.EINVAL)
	}
	return nil
}

// Remote is a peer's memory. Operations on a connection do not overlap. Long operations are pipelined. The peer rejects
// an operation if its Region has been closed or lacks the right. The rejection ends the connection. After Close of the
// peer, pending and later operations fail with EPIPE. After CloseWrite of the peer, operations continue.
type Remote struct {
	c *Conn
	d Descriptor
}

var (
	_ io.ReaderAt = (*Remote)(nil)
	_ io.WriterAt = (*Remote)(nil)
)

// Remote returns the peer's memory for a descriptor that the peer has sent. Operations on an invalid descriptor fail
// with EINVAL.
func (c *Conn) Remote(d Descriptor) *Remote { return &Remote{c, d} }

// Len returns the length in bytes.
func (r *Remote) Len() int64 { return int64(min(r.d.Length, math.MaxInt64)) }

// ReadAt reads len(p) bytes at an offset of the peer's memory. If the memory ends earlier, ReadAt reads up to the end
// and returns io.EOF. ReadAt blocks at most until the read deadline of the connection.
func (r *Remote) ReadAt(p []byte, off int64) (int, error) {
	return r.transferBytes(verbs.Read, &r.c.rd, p, off)
}

// WriteAt writes p at an offset of the peer's memory. When WriteAt returns without an error, all of p is in the peer's
// memory. If p exceeds the end of the memory, WriteAt writes nothing and returns io.ErrShortWrite. WriteAt blocks at
// most until the write deadline of the connection. WriteAt, like Write, fails with EPIPE after CloseWrite of this end.
// WriteAtContext continues to work after CloseWrite.
func (r *Remote) WriteAt(p []byte, off int64) (int, error) {
	return r.transferBytes(verbs.Write, &r.c.wd, p, off)
}

// ReadAtContext is the equivalent of ReadAt with ctx in place of the read deadline.
func (r *Remote) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	d := newDeadline(ctx, &r.c.mu)
	defer d.cancel(nil)
	return r.transferBytes(verbs.Read, d, p, off)
}

// WriteAtContext is the equivalent of WriteAt with ctx in place of the write deadline.
func (r *Remote) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	d := newDeadline(ctx, &r.c.mu)
	defer d.cancel(nil)
	return r.transferBytes(verbs.Write, d, p, off)
}

// ReadRegion reads n bytes at offset off of the peer's memory into dst at dstOff, without a copy. n is at most 1 GB.
// The device accesses the memory only until ReadRegion returns. For this reason ReadRegion ends the connection if ctx
// ends before the operation has completed. Region.Close waits for ReadRegion.
func (r *Remote) ReadRegion(ctx context.Context, off int64, dst *Region, dstOff, n int) error {
	return r.transferRegion(ctx, verbs.Read, off, dst, dstOff, n)
}

// WriteRegion writes n bytes of src from srcOff to offset off of the peer's memory, without a copy. The limits are
// those of ReadRegion.
func (r *Remote) WriteRegion(ctx context.Context, off int64, src *Region, srcOff, n int) error {
	return r.transferRegion(ctx, verbs.Write, off, src, srcOff, n)
}

const (
	// opSlots is the maximum number of work requests of an operation in flight. opChunk is the size in bytes of each
	// work request.
	opSlots = 4
	opChunk = 64 << 10
	// maxDirect is the maximum size in bytes of an operation without a copy.
	maxDirect = 1 << 30
	// drainTime limits the wait for work requests after the queue pair has left RTS.
	drainTime = 5 * time.Second
)

// oneSidedOp is the state of the one-sided operations. Work requests complete in order.
type oneSidedOp struct {
	mr *verbs.MR    // memory through which caller data are copied; nil until needed; ops must be held
	wr verbs.SendWR // scratch; ops must be held

	// The next fields are protected by Conn.mu.
	c                 *Conn
	posted, completed uint64 // number of work requests
	want              uint64 // number of completions for which the operation waits
	drain             bool   // the wait continues even after a failure of the connection
	deadline          *deadline
}

//verbena:held c.mu
func (o *oneSidedOp) countCompletion() { o.completed++ }

func (o *oneSidedOp) isReady() bool {
	return o.completed >= o.want || o.c.dead || (o.c.err != nil || o.c.gone) && !o.drain
}

// failWait fails the wait of an operation that has its own deadline.
//
//verbena:held c.mu
func (o *oneSidedOp) failWait(err error) {
	if o.deadline != nil {
		o.deadline.failWaits(err)
	}
}

// newDeadline returns a deadline that ends with ctx. lock guards its state. The caller must cancel
// the deadline.
func newDeadline(ctx context.Context, lock *sync.Mutex) *deadline {
	d := &deadline{lock: lock}
	d.ctx, d.cancel = context.WithCancelCause(ctx)
	return d
}

// beginOneSidedOp starts a one-sided operation. Conn.endOneSidedOp ends it.
func (c *Conn) beginOneSidedOp(d *deadline) error {
	c.mu.Lock()
	if err := c.checkUsable(d); err != nil {
		c.mu.Unlock()
		return err
	}
	ctx := d.waitContext()
	c.mu.Unlock()
	select {
	case <-c.ops:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	err := c.checkUsable(d)
	if err == nil {
		c.op.deadline = d
		c.op.want = c.op.posted // waits for the work requests of an earlier operation that has timed out
	}
	c.mu.Unlock()
	if err == nil {
		err = c.awaitReady(&c.oper, d)
	}
	if err == nil { // the state may have changed, because await has polled
		c.mu.Lock()
		err = c.checkUsable(d)
		c.mu.Unlock()
	}
	if err != nil {
		c.endOneSidedOp()
	}
	return err
}

// checkUsable returns the reason for which no operation can run, or nil.
//
//verbena:held mu
func (c *Conn) checkUsable(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case d.failureReason() != nil:
		return d.failureReason()
	}
	return c.checkPeerReachable()
}

// checkPeerReachable returns the reason for which the peer's memory is unreachable, or nil. After CloseWrite of the
// peer, the peer's memory is still reachable.
//
//verbena:held mu
func (c *Conn) checkPeerReachable() error {
	if c.gone {
		return errPeerClosed
	}
	return c.err
}

func (c *Conn) endOneSidedOp() {
	c.mu.Lock()
	c.op.deadline = nil
	c.mu.Unlock()
	c.ops <- struct{}{}
}

// postOneSidedOp posts a work request of the operation.
func (c *Conn) postOneSidedOp(op verbs.Opcode, local verbs.SGE, remote verbs.Remote) error {
	c.mu.Lock()
	c.op.posted++
	c.op.wr = verbs.SendWR{ID: kindOp, Opcode: op, Flags: verbs.Signaled, Local: local, Remote: remote}
	c.mu.Unlock()
	if err := c.qp.PostSend(&c.op.wr); err != nil {
		return c.failLostDevice(err)
	}
	return nil
}

// awaitOneSidedOp waits until at most n work requests of the operation are in flight.
func (c *Conn) awaitOneSidedOp(d *deadline, n int) error {
	c.mu.Lock()
	c.op.want = c.op.posted - min(c.op.posted, uint64(n))
	c.mu.Unlock()
	if err := c.awaitReady(&c.oper, d); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.op.completed >= c.op.want && c.err == nil {
		return nil
	}
	return c.checkPeerReachable()
}

// opNames contains the names of operations in errors.
var opNames = map[verbs.Opcode]string{verbs.Read: "readat", verbs.Write: "writeat"}

func (r *Remote) transferBytes(op verbs.Opcode, d *deadline, p []byte, off int64) (int, error) {
	c, there := r.c, r.d
	if err := there.checkValid(); err != nil {
		return 0, c.newOpError(opNames[op], err)
	}
	if off < 0 {
		return 0, c.newOpError(opNames[op], fmt.Errorf("offset %d: %w", off, syscall.EINVAL))
	}
	var short error
	if left := int64(there.Length) - min(off, int64(there.Length)); int64(len(p)) > left {
		if op == verbs.Write {
			return 0, io.ErrShortWrite
		}
		p, short = p[:left], io.EOF
	}
	if len(p) == 0 {
		return 0, short
	}
	n, err := r.copyThroughBuffer(op, d, p, off)
	if err != nil {
		return n, c.newOpError(opNames[op], err)
	}
	return n, short
}

// copyThroughBuffer copies the caller's bytes through memory of the connection. After a timeout, the device may still
// access the memory of the connection, but not the memory of the caller.
func (r *Remote) copyThroughBuffer(op verbs.Opcode, d *deadline, p []byte, off int64) (done int, err error) {
	c, there := r.c, r.d
	if err := c.beginOneSidedOp(d); err != nil {
		return 0, err
	}
	defer c.endOneSidedOp()
	if c.op.mr == nil {
		if c.op.mr, err = c.allocMR(opSlots*opChunk, verbs.LocalWrite); err != nil {
			return 0, err
		}
	}
	mem := c.op.mr.Bytes()
	slot := func(at int) int { return at / opChunk % opSlots * opChunk }
	for posted := 0; done < len(p); {
		for posted < len(p) && posted-done < opSlots*opChunk {
			n := min(opChunk, len(p)-posted)
			if op == verbs.Write {
				copy(mem[slot(posted):], p[posted:posted+n])
			}
			remote := verbs.Remote{Addr: there.Addr + uint64(off) + uint64(posted), RKey: there.RKey}
			if err := c.postOneSidedOp(op, c.op.mr.SGE(slot(posted), n), remote); err != nil {
				return done, err
			}
			posted += n
		}
		if err := c.awaitOneSidedOp(d, (posted-done-1)/opChunk); err != nil {
			return done, err
		}
		n := min(opChunk, len(p)-done)
		if op == verbs.Read {
			copy(p[done:done+n], mem[slot(done):])
		}
		done += n
	}
	return done, nil
}

func (r *Remote) transferRegion(ctx context.Context, op verbs.Opcode, off int64, local *Region, at, n int) error {
	c, there := r.c, r.d
	if err := there.checkValid(); err != nil {
		return c.newOpError(opNames[op], err)
	}
	size := int64(there.Length)
	here, left := local.Len()-at, size-off
	if n < 0 || n > maxDirect || at < 0 || n > here || off < 0 || int64(n) > left {
		err := fmt.Errorf("%d bytes at %d of %d, and at %d of %d, are out of range: %w",
			n, off, size, at, local.Len(), syscall.EINVAL)
		return c.newOpError(opNames[op], err)
	}
	if n == 0 {
		return nil
	}
	d := newDeadline(ctx, &c.mu)
	defer d.cancel(nil)
	if err := c.beginOneSidedOp(d); err != nil {
		return c.newOpError(opNames[op], err)
	}
	defer c.endOneSidedOp()
	if err := local.acquireForUse(); err != nil {
		return c.newOpError(opNames[op], err)
	}
	defer local.use.RUnlock()
	err := c.postOneSidedOp(op, local.mr.SGE(at, n), verbs.Remote{Addr: there.Addr + uint64(off), RKey: there.RKey})
	if err == nil {
		err = c.awaitOneSidedOp(d, 0)
	}
	if err != nil {
		c.abortConnection(err)
		return c.newOpError(opNames[op], err)
	}
	return nil
}

// abortConnection ends the connection. abortConnection returns when the device no longer accesses the memory of the
// operation.
func (c *Conn) abortConnection(why error) {
	if err := c.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState); err != nil {
		_ = c.failLostDevice(err)
	}
	limit := deadline{lock: &c.mu}
	c.mu.Lock()
	c.recordFailure(&ConnError{syscall.ECONNABORTED, why})
	c.waiting.wakeReadyWaiters()
	c.op.want, c.op.drain = c.op.posted, true
	limit.setTime(time.Now().Add(drainTime))
	c.mu.Unlock()
	_ = c.awaitReady(&c.oper, &limit)
	c.mu.Lock()
	limit.failWaits(net.ErrClosed)
	c.op.drain = false
	c.mu.Unlock()
	// If the operation has still not completed, the device may access the memory until the queue pair is closed.
	_ = c.qp.Close()
}
