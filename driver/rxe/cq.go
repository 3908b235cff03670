package rxe

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/driver/rxe/ring"
	"verbena/ib"
	"verbena/internal/notify"
	"verbena/uapi"
)

const (
	maxCQ = 1 << 20
)

// cq is a completion queue: a ring that the engine fills and the consumer empties.
type cq struct {
	dev *Device
	obj ib.CQHandle
	ctx *userContext // nil for a consumer in this process

	poll sync.Mutex // one Poll at a time; before mu

	mu    sync.Mutex // a leaf: under it nothing is locked but the midlayer's queue of callbacks
	ring  *ring.Ring
	prod  uint32 // next slot to fill
	cons  uint32 // next slot that the consumer empties, when it was last looked at
	armed notify.Arming
	lost  bool // a completion was lost: no more come
}

// CreateCQ implements ib.Driver.
func (o ops) CreateCQ(obj ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	d := o.dev
	if attr.Entries > d.limits.cqe {
		return nil, fmt.Errorf("%d entries, at most %d: %w", attr.Entries, d.limits.cqe, syscall.EINVAL)
	}
	if attr.Flags != 0 {
		return nil, fmt.Errorf("flags %#x: %w", attr.Flags, syscall.EOPNOTSUPP)
	}
	c := &cq{dev: d, obj: obj, ctx: d.context(u)}
	r, err := newCQRing(c.ctx, attr.Entries, u)
	if err != nil {
		return nil, err
	}
	if err := d.counts(c.ctx).add(countCQ); err != nil {
		r.Free()
		return nil, err
	}
	c.ring = r
	obj.SetEntries(r.Capacity())
	return c, nil
}

// newCQRing makes the ring and tells the user where it is.
func newCQRing(ctx *userContext, entries int, u *ib.Udata) (*ring.Ring, error) {
	if ctx == nil {
		return ring.New(entries, uapi.RXECQESize, nil)
	}
	if len(u.Out) < uapi.SizeOf[uapi.RXECreateCQResp]() {
		return nil, fmt.Errorf("no room in the response for the place of the queue: %w", syscall.EINVAL)
	}
	r, err := ring.New(entries, uapi.RXECQESize, ctx.shared())
	if err == nil {
		u.Respond(uapi.AppendTo(nil, &uapi.RXECreateCQResp{MI: r.Info()}))
	}
	return r, err
}

// post adds a completion, and wakes who waits for it. It reports false when the queue is full, or gone: then the
// queue is in error, as is soon every queue pair that posts to it. (rxe_cq_post)
func (c *cq) post(wc *uapi.WC, solicited bool) bool {
	if c.ctx != nil && c.dev.silent.Load() {
		return true
	}
	var slot [uapi.RXECQESize]byte
	uapi.Encode(slot[:], wc)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return false
	}
	if cons, ok := c.consumer(); !ok || cons == c.ring.Next(c.prod) || !c.ring.Fill(c.prod, slot[:]) {
		c.lost = true
		c.obj.Raise(ib.EventCQErr)
		return false
	}
	c.prod = c.ring.Next(c.prod)
	armed, tell := c.armed.Posted(solicited || wc.Status != uapi.WCSuccess)
	if c.armed = armed; tell {
		c.obj.Completed()
	}
	return true
}

// consumer returns the consumer's index; false if the ring's memory is gone. The caller holds mu.
//
//verbena:held mu
func (c *cq) consumer() (i uint32, ok bool) {
	i, repaired, ok := c.ring.Consumed(c.cons, c.prod)
	if !ok {
		return 0, false
	}
	c.cons = i
	if repaired && c.ctx != nil {
		c.ctx.libraryFault(ib.Overconsumed)
	}
	return i, true
}

// Poll implements ib.DriverCQ. It may not sleep.
func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	c.poll.Lock()
	defer c.poll.Unlock()
	r, cons, ok := c.consumed()
	if !ok {
		return 0, errRingGone
	}
	for ; n < len(wc); n++ {
		var slot [uapi.RXECQESize]byte
		filled, ok := r.Peek(cons, slot[:])
		if !ok {
			return n, errRingGone
		}
		if !filled {
			break
		}
		w, _ := uapi.Decode[uapi.WC](slot[:])
		c.decode(&wc[n], &w)
		cons = r.Next(cons)
	}
	if n > 0 && !r.SetConsumer(cons) {
		return n, errRingGone
	}
	return n, nil
}

var errRingGone = fmt.Errorf("the process took the memory of its queue away: %w", syscall.EFAULT)

// consumed returns the ring, which only Resize replaces, under both locks, and the consumer's index.
func (c *cq) consumed() (r *ring.Ring, i uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok = c.consumer()
	return c.ring, i, ok
}

// Waiting implements ib.CQCounter. It may not sleep.
func (c *cq) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	cons, ok := c.consumer()
	if !ok {
		return 0
	}
	return int(c.ring.Between(cons, c.prod))
}

// polled reports whether the consumer has taken all completions but the newest n.
func (c *cq) polled(n uint32) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cons, ok := c.consumer()
	return ok && c.ring.Between(cons, c.prod) <= n
}

// current is the ring, nil of no queue, which only Resize replaces, under both locks.
func (c *cq) current() *ring.Ring {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring
}

// decode is the opposite of what the engine fills in.
func (c *cq) decode(to *ib.WC, w *uapi.WC) {
	*to = ib.WC{
		ID: w.WRID, Status: w.Status, Opcode: w.Opcode, VendorErr: w.VendorErr,
		ByteLen: w.ByteLen, QPNum: w.QPNum, SrcQP: w.SrcQP, PKeyIndex: w.PKeyIndex, SLID: w.SLID, SL: w.SL, Port: w.PortNum,
	}
	flags := uapi.IBVWCFlags(w.WCFlags)
	if flags&uapi.IBVWCGRH != 0 {
		to.Flags |= ib.WCGRH
	}
	if flags&uapi.IBVWCWithImm != 0 {
		to.Flags |= ib.WCWithImm
		to.Imm = w.Ex.Imm().Uint32()
	}
	if flags&uapi.IBVWCWithInv != 0 {
		to.Flags |= ib.WCWithInvalidate
		to.InvalidateRKey = w.Ex.InvalidateRKey()
	}
	if qp := c.dev.qp(w.QPNum); qp != nil {
		to.QP = qp.obj.QP()
	}
}

// ReqNotify implements ib.DriverCQ. It may not sleep.
func (c *cq) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cons, ok := c.consumer()
	if !c.lost && flags&ib.NotifyReportMissed == 0 { // a process may have taken the ring away
		c.armed = c.armed.Request(flags&ib.NotifyNextComp != 0)
		return false, nil
	}
	switch {
	case !ok:
		return false, errRingGone
	case c.lost && cons == c.prod:
		return false, errOverflow
	}
	c.armed = c.armed.Request(flags&ib.NotifyNextComp != 0)
	return cons != c.prod, nil
}

// errOverflow is the error of a wait for completions that will not come.
var errOverflow = fmt.Errorf("a completion was lost, for which the queue had no room, and no more come: %w", syscall.EOVERFLOW)

// Resize implements ib.CQResizer.
func (c *cq) Resize(entries int, u *ib.Udata) error {
	if entries < 1 || entries > c.dev.limits.cqe {
		return fmt.Errorf("%d entries, at most %d: %w", entries, c.dev.limits.cqe, syscall.EINVAL)
	}
	r, err := newCQRing(c.ctx, entries, u)
	if err != nil {
		return err
	}
	old, err := c.replace(r)
	if err != nil {
		r.Free()
		return err
	}
	c.ctx.moved()
	old.Free()
	return nil
}

// replace moves what is in the queue to another ring.
func (c *cq) replace(r *ring.Ring) (old *ring.Ring, err error) {
	c.poll.Lock()
	defer c.poll.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	cons, ok := c.consumer()
	if !ok {
		return nil, errRingGone
	}
	if n := int(c.ring.Between(cons, c.prod)); n > r.Capacity() {
		return nil, fmt.Errorf("%d completions are waiting: %w", n, syscall.EINVAL)
	}
	n := uint32(0)
	for ; cons != c.prod; cons = c.ring.Next(cons) {
		var slot [uapi.RXECQESize]byte
		if _, ok := c.ring.Peek(cons, slot[:]); !ok {
			return nil, errRingGone
		}
		if _, ok := r.Push(n, slot[:]); !ok {
			return nil, errRingGone
		}
		n++
	}
	old, c.ring, c.prod, c.cons = c.ring, r, n, 0
	c.obj.SetEntries(r.Capacity())
	return old, nil
}

// Destroy implements ib.DriverCQ.
func (c *cq) Destroy() error {
	c.poll.Lock()
	defer c.poll.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	c.ring.Free()
	c.dev.counts(c.ctx).remove(countCQ)
	return nil
}
