package engine

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/notify"
	"verbena/uapi"
)

const (
	maxCQ = 1 << 20

	// wcSolicited marks solicited completions in a queue of this process.
	wcSolicited uapi.WCFlags = 1 << 31
)

// cq is a completion queue: a ring that the engine fills and the consumer empties.
type cq struct {
	dev *Device
	obj ib.CQHandle
	ctx *userContext // nil for a consumer in this process

	poll   sync.Mutex // serialises Poll; before mu
	polled uapi.WC    // the completion that Poll decodes; under poll

	mu      sync.Mutex // a leaf, except for the midlayer's queue of callbacks
	queue   queue.CompletionQueue
	added   uapi.WC // the completion that post adds
	armed   notify.Arming
	byStore queue.Armer // queue, if programs arm it by a store; otherwise nil
	lost    bool        // a completion was lost: no more are added

	// The following fields are the trace. See requests.go.
	log              driver.RequestLog // nil: off
	pushed, consumed uint32            // completions since the trace began, as of its last event
	destroyed        bool
	event            driver.RequestEvent // the event that is being filled
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
	q, err := newCompletions(c.ctx, attr.Entries, u)
	if err != nil {
		return nil, err
	}
	if err := d.counts(c.ctx).add(countCQ); err != nil {
		q.Free()
		return nil, err
	}
	c.queue = q
	c.byStore, _ = q.(queue.Armer)
	obj.SetEntries(q.Capacity())
	d.cqs.Lock()
	d.cqs.m[c] = struct{}{}
	d.cqs.Unlock()
	c.traceRequests()
	return c, nil
}

// newCompletions creates a queue, and reports its location to a program.
func newCompletions(ctx *userContext, entries int, u *ib.Udata) (queue.CompletionQueue, error) {
	if ctx == nil {
		return queue.NewCompletion(entries), nil
	}
	return ctx.queues.CreateCQ(entries, u)
}

// post adds a completion, and wakes the waiter. It returns false if the queue is full, or its memory is gone. The
// queue is then in error, and every queue pair that posts to it enters the error state. traced, if not nil, is the
// event for the trace of the request. (rxe_cq_post)
func (c *cq) post(wc *uapi.WC, solicited bool, traced *driver.RequestEvent) bool {
	if c.ctx != nil && c.dev.silent.Load() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return false
	}
	c.added = *wc
	if solicited && c.ctx == nil {
		c.added.WCFlags |= wcSolicited
	}
	_, waiting, ok := c.oldest()
	if !ok || int(waiting) == c.queue.Capacity() || !c.queue.Push(&c.added) {
		c.lost = true
		c.raise(ib.EventCQErr)
		return false
	}
	c.pushedTo(traced, waiting)
	armed, tell := c.armed.Posted(solicited || wc.Status != uapi.WCSuccess)
	if c.armed = armed; tell || c.byStore != nil && c.byStore.Armed() {
		c.obj.Completed()
		if traced != nil {
			traced.Flags |= driver.FlagNotified
		}
	}
	return true
}

// oldest returns the position of the oldest unconsumed completion, and the number of completions from there on. It
// returns false if the queue's memory is gone. The caller holds mu.
//
//verbena:held mu
func (c *cq) oldest() (at, waiting uint32, ok bool) {
	at, waiting, repaired, ok := c.queue.Oldest()
	if repaired && c.ctx != nil {
		c.ctx.libraryFault(ib.Overconsumed)
	}
	return at, waiting, ok
}

// Poll implements ib.DriverCQ. It may not sleep.
func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	c.poll.Lock()
	defer c.poll.Unlock()
	q, at, traced, ok := c.begin()
	if !ok {
		return 0, errRingGone
	}
	for ; n < len(wc); n++ {
		found, ok := q.Fetch(at, uint32(n), &c.polled)
		if !ok {
			return n, errRingGone
		}
		if !found {
			break
		}
		c.decode(&wc[n], &c.polled)
	}
	if n > 0 && !q.Consume(at, uint32(n)) {
		return n, errRingGone
	}
	if n > 0 && traced {
		c.lookNow()
	}
	return n, nil
}

var errRingGone = fmt.Errorf("the process took the memory of its queue away: %w", syscall.EFAULT)

// begin returns the queue and the position of its oldest completion. Only Resize replaces the queue, under both
// locks. traced is true if the queue is traced.
func (c *cq) begin() (q queue.CompletionQueue, at uint32, traced, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, _, ok = c.oldest()
	return c.queue, at, c.log != nil, ok
}

// Waiting implements ib.CQCounter. It may not sleep.
func (c *cq) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting, _ := c.oldest()
	return int(waiting)
}

// hasPolled reports whether the consumer has taken all completions but the newest n.
func (c *cq) hasPolled(n uint32) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting, ok := c.oldest()
	return ok && waiting <= n
}

// current returns the queue, or nil if c is nil. Only Resize replaces the queue, under both locks.
func (c *cq) current() queue.CompletionQueue {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue
}

// decode converts a completion from the form of the queue.
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
	to.Solicited = w.WCFlags&wcSolicited != 0
	if qp := c.dev.qp(w.QPNum); qp != nil {
		to.QP = qp.obj.QP()
	}
}

// ReqNotify implements ib.DriverCQ. It may not sleep.
func (c *cq) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting, ok := c.oldest()
	if ok {
		c.armedWith(waiting, flags&ib.NotifyNextComp != 0)
	}
	if !c.lost && flags&ib.NotifyReportMissed == 0 { // the process may have removed the ring: no error
		c.armed = c.armed.Request(flags&ib.NotifyNextComp != 0)
		return false, nil
	}
	switch {
	case !ok:
		return false, errRingGone
	case c.lost && waiting == 0:
		return false, errOverflow
	}
	c.armed = c.armed.Request(flags&ib.NotifyNextComp != 0)
	return waiting > 0, nil
}

// errOverflow is the error of a wait for further completions after one was lost.
var errOverflow = fmt.Errorf("a completion was lost, for which the queue had no room, and no more come: %w", syscall.EOVERFLOW)

// Resize implements ib.CQResizer.
func (c *cq) Resize(entries int, u *ib.Udata) error {
	if entries < 1 || entries > c.dev.limits.cqe {
		return fmt.Errorf("%d entries, at most %d: %w", entries, c.dev.limits.cqe, syscall.EINVAL)
	}
	r, err := newCompletions(c.ctx, entries, u)
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

// replace moves the completions to another queue, and returns the old queue.
func (c *cq) replace(q queue.CompletionQueue) (old queue.CompletionQueue, err error) {
	c.poll.Lock()
	defer c.poll.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, n, ok := c.oldest()
	if !ok {
		return nil, errRingGone
	}
	if int(n) > q.Capacity() {
		return nil, fmt.Errorf("%d completions are waiting: %w", n, syscall.EINVAL)
	}
	if !queue.MoveCompletions(c.queue, q) {
		return nil, errRingGone
	}
	old, c.queue = c.queue, q
	c.obj.SetEntries(q.Capacity())
	return old, nil
}

// Destroy implements ib.DriverCQ.
func (c *cq) Destroy() error {
	c.poll.Lock()
	defer c.poll.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	if c.log != nil { // without a trace, do not read the index of a program that ends
		if _, waiting, ok := c.oldest(); ok {
			c.look(waiting)
		}
	}
	c.dev.destroyedAt(c.log)
	c.destroyed = true
	c.setLog(nil)
	c.dev.cqs.Lock()
	delete(c.dev.cqs.m, c)
	c.dev.cqs.Unlock()
	c.queue.Free()
	c.dev.counts(c.ctx).remove(countCQ)
	return nil
}

// complete posts a completion to one of the completion queues of the queue pair. If the completion is lost, the queue
// pair enters the error state. traced, if not nil, is the event of the request in the queue pair's trace.
func (qp *QP) complete(c *cq, wc *uapi.WC, solicited bool, traced *driver.RequestEvent) {
	wc.QPNum = qp.num
	posted := qp.user != nil && qp.dev.silent.Load() || c.post(wc, solicited, traced)
	if traced != nil {
		if !posted {
			traced.Flags |= driver.FlagLost
		}
		qp.trace.requests.add()
	}
	if posted {
		return
	}
	if qp.state != ib.QPErr {
		qp.report().lost(c, wc)
		qp.enterError(driver.StateCause{Reason: driver.ByCQ})
	}
}
