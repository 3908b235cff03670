package relay

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/internal/notify"
	"verbena/uapi"
)

// cq is a completion queue. Its inner queue belongs to the weak device.
type cq struct {
	ib.DriverCQ
	p        *program
	obj      ib.CQHandle
	schedule func() // schedules drain

	mu    sync.Mutex // before the locks of queue pairs
	queue queue.CompletionQueue
	room  int // completions that the program may leave in the queue
	armed notify.Arming
	lost  bool // a completion was lost, and no more are added
	dead  bool
	wcs   [16]ib.WC
	added uapi.WC

	checked *check.UserCQ // nil: no checks
	held    heldCompletions

	retry retryList
}

// retryList holds queue pairs with posted requests that the weak device could not take.
type retryList struct {
	sync.Mutex
	qps map[*qp]struct{}
}

func (l *retryList) add(q *qp) {
	l.Lock()
	defer l.Unlock()
	if l.qps == nil {
		l.qps = map[*qp]struct{}{}
	}
	l.qps[q] = struct{}{}
}

func (l *retryList) takeAll() (list []*qp) {
	l.Lock()
	defer l.Unlock()
	for q := range l.qps {
		list = append(list, q)
	}
	clear(l.qps)
	return list
}

// Unwrap gives access to the inner queue.
func (c *cq) Unwrap() ib.DriverCQ { return c.DriverCQ }

// innerEntries returns the capacity of the inner queue for a queue with n entries. The weak device has completions of
// its own.
func (p *program) innerEntries(n int) int { return min(2*n+64, max(n, p.limits.MaxCQE)) }

// CreateCQ implements ib.Driver.
func (d *driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	p := d.programOf(u)
	if p == nil {
		return d.Driver.CreateCQ(h, attr, u)
	}
	c := &cq{p: p, obj: h}
	var err error
	if c.queue, c.room, err = c.newQueue(attr.Entries, u); err != nil {
		return nil, err
	}
	c.schedule = h.NewCallback(c.drainInCallback)
	attr.Entries = p.innerEntries(c.queue.Capacity())
	if c.DriverCQ, err = p.weak.CreateCQ(h.Redirect(c.schedule), attr, nil); err != nil {
		c.queue.Free()
		return nil, err
	}
	h.SetEntries(c.room)
	if _, err := c.completions().Rearm(); err != nil {
		c.queue.Free()
		_ = c.DriverCQ.Destroy()
		return nil, err
	}
	if p.checks != nil {
		c.checked = p.checks.AddCQ(h.CQ())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cqs[c] = struct{}{}
	return c, nil
}

// newQueue makes a queue for the program with at least a number of entries, and returns the number that the program may
// use.
func (c *cq) newQueue(entries int, u *ib.Udata) (q queue.CompletionQueue, room int, err error) {
	if entries < 1 || entries > c.p.limits.MaxCQE {
		return nil, 0, fmt.Errorf("%d entries, at most %d: %w", entries, c.p.limits.MaxCQE, syscall.EINVAL)
	}
	if q, err = c.p.queues.CreateCQ(entries, u); err != nil {
		return nil, 0, err
	}
	if room = q.Capacity(); c.p.choices.Has(weak.ExactRoom) {
		room = entries
	}
	return q, room, nil
}

// completions returns the weak device's queue.
func (c *cq) completions() weak.Completions {
	w, _ := ib.As[weak.Completions](c.DriverCQ)
	return w
}

// drain passes the completions of the weak device on to the program, and posts the requests that waited for them.
func (c *cq) drain() {
	for {
		missed := c.moveCompletions()
		for _, q := range c.retry.takeAll() {
			q.advance(nil)
		}
		if !missed {
			return
		}
	}
}

// drainInCallback is drain for a callback, which may run on a thread of another program. A post with checks waits for
// the memory of the program, so a goroutine posts the requests.
func (c *cq) drainInCallback() {
	if c.checked == nil {
		c.drain()
		return
	}
	for c.moveCompletions() {
	}
	if list := c.retry.takeAll(); len(list) > 0 {
		go func() {
			for _, q := range list {
				q.advance(nil)
			}
		}()
	}
}

// moveCompletions passes the completions on. It returns true if it must be called again.
func (c *cq) moveCompletions() (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.dead {
		n, err := c.DriverCQ.Poll(c.wcs[:])
		for i := range c.wcs[:n] {
			c.add(&c.wcs[i])
		}
		if n > 0 {
			continue
		}
		if c.checked != nil {
			c.deliverHeld()
		}
		if err != nil {
			return false
		}
		missed, err := c.completions().Rearm()
		return missed && err == nil
	}
	return false
}

// add passes a completion on to the program, or holds it for the checks.
//
//verbena:held mu
func (c *cq) add(wc *ib.WC) {
	if c.checked != nil && !c.p.detached.Load() {
		c.hold(wc)
	} else {
		c.deliver(wc)
	}
}

// deliver adds a completion to the program's queue.
//
//verbena:held mu
func (c *cq) deliver(wc *ib.WC) {
	posted := *wc // with the internal ID
	if c.checked != nil {
		c.p.postEarlierReceives(wc)
	}
	if !c.p.finish(wc) || c.p.detached.Load() || c.lost {
		return
	}
	encode(&c.added, wc)
	_, waiting, ok := c.oldest()
	if c.checked != nil && ok {
		c.checked.Consumed(int(waiting))
		c.checked.Delivered(&posted)
	}
	if !ok || int(waiting) >= c.room || !c.queue.Push(&c.added) {
		c.lost = true
		if c.checked != nil {
			c.checked.Overrun()
		}
		c.obj.Raise(ib.EventCQErr)
		go c.failQPs()
		return
	}
	armed, tell := c.armed.Posted(wc.Solicited || wc.Status != ib.WCSuccess)
	if c.armed = armed; tell {
		if c.checked != nil {
			c.checked.Notified()
		}
		c.obj.Completed()
	}
}

// failQPs moves the queue pairs of the queue to ERR after a completion was lost. A queue pair of the engine would do
// so with its next completion.
func (c *cq) failQPs() {
	for _, q := range c.p.listQPs() {
		if (q.sendCQ == c || q.recvCQ == c) && q.DriverQP.State() != ib.QPReset {
			_ = q.DriverQP.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil)
			q.startFlushing()
		}
	}
}

// encode converts a completion to the form of the program's queue.
func encode(to *uapi.WC, wc *ib.WC) {
	*to = uapi.WC{
		WRID: wc.ID, Status: wc.Status, Opcode: wc.Opcode, VendorErr: wc.VendorErr, ByteLen: wc.ByteLen, QPNum: wc.QPNum,
		SrcQP: wc.SrcQP, PKeyIndex: wc.PKeyIndex, SLID: wc.SLID, SL: wc.SL, PortNum: wc.Port,
		Ex: uapi.ImmData(uapi.NewBE32(wc.Imm)),
	}
	var flags uapi.IBVWCFlags
	for _, f := range []struct {
		from ib.WCFlags
		to   uapi.IBVWCFlags
	}{{ib.WCGRH, uapi.IBVWCGRH}, {ib.WCWithImm, uapi.IBVWCWithImm}, {ib.WCWithInvalidate, uapi.IBVWCWithInv}} {
		if wc.Flags&f.from != 0 {
			flags |= f.to
		}
	}
	to.WCFlags = uapi.WCFlags(flags)
	if wc.Flags&ib.WCWithInvalidate != 0 {
		to.Ex = uapi.NewImmRKey(wc.InvalidateRKey)
	}
}

// decode is the opposite of encode.
func decode(to *ib.WC, w *uapi.WC) {
	*to = ib.WC{
		ID: w.WRID, Status: w.Status, Opcode: w.Opcode, VendorErr: w.VendorErr, ByteLen: w.ByteLen, QPNum: w.QPNum,
		SrcQP: w.SrcQP, PKeyIndex: w.PKeyIndex, SLID: w.SLID, SL: w.SL, Port: w.PortNum,
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
}

// oldest is the method of the queue. It reports that the program has consumed too much.
//
//verbena:held mu
func (c *cq) oldest() (at, waiting uint32, ok bool) {
	at, waiting, repaired, ok := c.queue.Oldest()
	if repaired {
		c.p.libraryFault(ib.Overconsumed)
	}
	return at, waiting, ok
}

// Poll implements ib.DriverCQ, for a program that polls by a call.
func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	c.drain()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.p.detached.Load() {
		return 0, nil
	}
	at, _, ok := c.oldest()
	if !ok {
		return 0, errQueueGone
	}
	for ; n < len(wc); n++ {
		var w uapi.WC
		found, ok := c.queue.Fetch(at, uint32(n), &w)
		if !ok {
			return n, errQueueGone
		}
		if !found {
			break
		}
		decode(&wc[n], &w)
	}
	if n > 0 && !c.queue.Consume(at, uint32(n)) {
		return n, errQueueGone
	}
	return n, nil
}

// Waiting implements ib.CQCounter.
func (c *cq) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting, _ := c.oldest()
	return int(waiting)
}

// ReqNotify implements ib.DriverCQ. Delayed completions may arrive just before the call.
func (c *cq) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	if arrived, err := c.DriverCQ.ReqNotify(flags); err != nil {
		return false, err
	} else if arrived {
		c.drain()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.p.detached.Load() {
		return false, nil
	}
	_, waiting, ok := c.oldest()
	asks := flags&ib.NotifyReportMissed != 0
	switch {
	case !ok && (c.lost || asks):
		return false, errQueueGone
	case c.lost && waiting == 0:
		return false, fmt.Errorf("a completion was lost, for which the queue had no room, and no more come: %w",
			syscall.EOVERFLOW)
	}
	if c.checked != nil && ok {
		c.checked.Consumed(int(waiting))
		c.checked.Armed(int(waiting))
	}
	c.armed = c.armed.Request(flags&ib.NotifyNextComp != 0)
	return asks && waiting > 0, nil
}

// Moderate implements ib.CQModerator. The layouts have no moderation.
func (c *cq) Moderate(int, time.Duration) error { return syscall.EOPNOTSUPP }

// Resize implements ib.CQResizer.
func (c *cq) Resize(entries int, u *ib.Udata) error {
	inner, ok := ib.As[ib.CQResizer](c.DriverCQ)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	if n := c.p.innerEntries(entries * 2); entries > 0 && entries <= c.p.limits.MaxCQE {
		c.mu.Lock()
		grows := entries > c.queue.Capacity()
		c.mu.Unlock()
		if grows { // otherwise the inner queue is large enough
			if err := inner.Resize(n, nil); err != nil {
				return err
			}
		}
	}
	c.drain()
	old, err := c.replace(entries, u)
	if err != nil {
		return err
	}
	c.p.updateList()
	old.Free()
	return nil
}

func (c *cq) replace(entries int, u *ib.Udata) (old queue.CompletionQueue, err error) {
	q, room, err := c.newQueue(entries, u)
	if err != nil {
		return nil, err
	}
	if old, err = c.moveTo(q, room); err != nil {
		q.Free()
	}
	return old, err
}

// moveTo moves the completions to another queue, and returns the former queue.
func (c *cq) moveTo(q queue.CompletionQueue, room int) (old queue.CompletionQueue, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting, _, ok := c.queue.Oldest()
	if ok && int(waiting) > room {
		return nil, fmt.Errorf("%d completions are waiting: %w", waiting, syscall.EINVAL)
	}
	if !ok || !queue.MoveCompletions(c.queue, q) {
		return nil, errQueueGone
	}
	old, c.queue, c.room = c.queue, q, room
	c.obj.SetEntries(c.room)
	return old, nil
}

// current returns the queue, or nil if c is nil.
func (c *cq) current() queue.CompletionQueue {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue
}

// Destroy implements ib.DriverCQ.
func (c *cq) Destroy() error {
	if c.checked != nil {
		c.look()
		c.checked.Ending()
	}
	if err := c.DriverCQ.Destroy(); err != nil {
		return err
	}
	c.p.mu.Lock()
	delete(c.p.cqs, c)
	c.p.mu.Unlock()
	if c.checked != nil {
		c.checked.Destroyed()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead, c.lost = true, true
	c.queue.Free()
	return nil
}
