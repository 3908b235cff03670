package engine

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/uapi"
)

// maxSRQ is the limit of a program (see objectCounts). The numbers have the form of queue pair numbers, without 0.
const maxSRQ = 1<<16 - 2

// srq is a shared receive queue: a ring of receives. A queue pair takes a receive when it is about to store a
// message, and completes or flushes it like a receive of its own. When a queue pair enters the error state, the
// receives in the ring stay for the other queue pairs.
type srq struct {
	dev    *Device
	obj    ib.SRQHandle
	num    uint32
	pd     *pd // domain of the receives' memory; the domain of the queue pair does not matter
	ctx    *userContext
	maxSGE uint32
	cq     *cq   // XRC: gets the completions of the receives
	xrcd   *xrcd // XRC: the domain of the targets

	refill   func()     // posts receives when too few are left; may be nil
	posting  sync.Mutex // serialises the producers in this process; before mu
	receives receives

	mu    sync.Mutex // a leaf after the locks of queue pairs, except for the midlayer's queue of callbacks
	queue queue.RecvQueue
	limit uint32 // the event is raised when fewer receives are left; 0: disarmed
	life  life
	log   driver.RequestLog // nil: not traced
}

// CreateSRQ implements ib.SRQDriver. (rxe_create_srq)
func (o ops) CreateSRQ(obj ib.SRQHandle, init *ib.DriverSRQInit, u *ib.Udata) (ib.DriverSRQ, error) {
	d := o.dev
	a := &init.Attr
	a.Limit = 0 // only Modify arms the limit (ibv_create_srq(3))
	if a.MaxWR > d.limits.wr || a.MaxSGE > d.limits.sge {
		return nil, fmt.Errorf("%d receives of %d elements, at most %d of %d: %w", a.MaxWR, a.MaxSGE, d.limits.wr, d.limits.sge,
			syscall.EINVAL)
	}
	s := &srq{dev: d, obj: obj, pd: domain(init.PD), ctx: d.context(u), maxSGE: a.MaxSGE, refill: init.Refill}
	if init.Type == ib.SRQXRC {
		s.cq, _ = ib.As[*cq](init.CQ)
		if s.xrcd, _ = ib.As[*xrcd](init.XRCD); s.xrcd != nil && s.ctx != nil {
			s.xrcd.programs.Store(true)
		}
	}
	var err error
	if s.ctx != nil {
		if err = s.ctx.queues.HasRoomForSRQ(u); err != nil {
			return nil, err
		}
	}
	if s.queue, err = s.newQueue(a.MaxWR); err != nil {
		return nil, err
	}
	if err := d.counts(s.ctx).add(countSRQ); err != nil {
		s.queue.Free()
		return nil, err
	}
	slot, ok := d.srqs.reserve()
	if !ok {
		d.counts(s.ctx).remove(countSRQ)
		s.queue.Free()
		return nil, fmt.Errorf("%d shared receive queues exist: %w", maxQPSlot-1, syscall.ENOMEM)
	}
	s.num = srqBits.join(d.srqKeys.take(slot, uint8(d.random())), slot)
	a.MaxWR = uint32(s.queue.Capacity())
	obj.SetNum(s.num)
	if s.ctx != nil {
		s.ctx.queues.RespondSRQ(s.queue, s.num, u)
	}
	d.srqs.set(slot, s)
	s.traceRequests()
	return s, nil
}

func (s *srq) newQueue(entries uint32) (queue.RecvQueue, error) {
	if s.ctx == nil {
		return queue.NewReceive(int(entries), s.maxSGE), nil
	}
	q, err := s.ctx.queues.CreateRecv(int(entries), s.maxSGE)
	if err != nil {
		return nil, fmt.Errorf("shared receive %w", err)
	}
	return q, nil
}

// PostRecv implements ib.DriverSRQ. It may not sleep.
func (s *srq) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	s.posting.Lock()
	defer s.posting.Unlock()
	if s.queue == nil {
		return 0, errRingGone
	}
	n, full, err := s.receives.post(s.queue, wrs, s.maxSGE)
	if full {
		err = fmt.Errorf("shared receive queue %d is full: %w", s.num, syscall.ENOMEM)
	}
	return n, err
}

// take moves the oldest receive to w. It returns false if there is none.
func (s *srq) take(w *recvWQE) (status uapi.WCStatus, taken bool) {
	if s.refill != nil && s.runsLow() {
		s.refill()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != whole {
		return 0, false
	}
	status, found, ok := w.fetch(s.queue, s.maxSGE)
	if found {
		s.queue.Take()
		ok = s.queue.Complete()
	}
	if !ok {
		w.taken = false
		s.life.reach(ringless)
		s.raise(ib.EventSRQErr)
		return 0, false
	}
	if !found {
		return 0, false
	}
	w.from, w.pd = s, s.pd
	if s.log != nil {
		w.left, _ = s.queue.Waiting()
	}
	s.checkLimit()
	return status, true
}

// runsLow reports whether the queue is empty, or the next take would go below the limit.
func (s *srq) runsLow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != whole {
		return false
	}
	n, ok := s.queue.Waiting()
	return ok && n <= s.limit
}

// checkLimit raises the event, once, if fewer receives are left than the limit.
//
//verbena:held mu
func (s *srq) checkLimit() {
	if s.limit == 0 {
		return
	}
	if n, ok := s.queue.Waiting(); ok && n < s.limit {
		s.limit = 0
		s.raise(ib.EventSRQLimitReached)
	}
}

// Modify implements ib.DriverSRQ. For a resize, a user passes the address of a location in its memory. Modify stores
// the location of the new ring there first, and then uses the new ring. (rxe_modify_srq)
func (s *srq) Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask, u *ib.Udata) error {
	if mask&ib.SRQAttrMaxWR == 0 {
		return s.modify(nil, attr, mask)
	}
	if attr.MaxWR == 0 || attr.MaxWR > s.dev.limits.wr {
		return fmt.Errorf("%d receives, at most %d: %w", attr.MaxWR, s.dev.limits.wr, syscall.EINVAL)
	}
	if s.ctx == nil {
		r, err := s.newQueue(attr.MaxWR)
		if err != nil {
			return err
		}
		return s.modify(r, attr, mask)
	}
	addr, err := s.ctx.queues.ResizedSRQ(u)
	if err != nil {
		return err
	}
	r, err := s.newQueue(attr.MaxWR)
	if err != nil {
		return err
	}
	if err := s.fits(r, attr, mask); err != nil {
		r.Free()
		return err
	}
	a := *attr
	place := ib.Stored{
		Addr: addr, Data: s.ctx.queues.LocationOf(r), Done: func() error { return s.modify(r, &a, mask) }, Drop: r.Free,
	}
	if u.Defer != nil {
		u.Defer(place)
		return nil
	}
	if err := u.Space.WriteV([][]byte{place.Data}, place.Addr); err != nil {
		r.Free()
		return fmt.Errorf("tell the place of the queue: %w", err)
	}
	return place.Done()
}

// fits reports whether modify would succeed now.
func (s *srq) fits(r queue.RecvQueue, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.check(r, attr, mask)
}

// check returns an error if the change is not possible; r is the new ring, nil if the ring stays.
//
//verbena:held mu
func (s *srq) check(r queue.RecvQueue, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	if s.life == destroyed {
		return fmt.Errorf("shared receive queue %d was destroyed: %w", s.num, syscall.EINVAL)
	}
	room := uint32(s.queue.Capacity())
	if r != nil {
		room = uint32(r.Capacity())
		n, ok := s.queue.Waiting()
		if !ok {
			return errRingGone
		}
		if n > room {
			return fmt.Errorf("%d receives are waiting: %w", n, syscall.EINVAL)
		}
	}
	if limits := mask&ib.SRQAttrLimit != 0; limits && attr.Limit > room || !limits && s.limit > room {
		return fmt.Errorf("a limit above the %d receives that there is room for: %w", room, syscall.EINVAL)
	}
	return nil
}

// modify makes the change; r is the new ring, nil if the ring stays. A failed modify frees r.
func (s *srq) modify(r queue.RecvQueue, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	s.posting.Lock()
	old, err := s.change(r, attr, mask)
	s.posting.Unlock()
	if err != nil {
		if r != nil {
			r.Free()
		}
		return err
	}
	if old != nil {
		s.ctx.moved()
		old.Free()
	}
	return nil
}

// change makes the change, and returns the old ring if r replaces it.
//
//verbena:held posting
func (s *srq) change(r queue.RecvQueue, attr *ib.SRQAttr, mask ib.SRQAttrMask) (old queue.RecvQueue, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(r, attr, mask); err != nil {
		return nil, err
	}
	if r != nil {
		if !s.queue.MoveTo(r) {
			return nil, errRingGone
		}
		old, s.queue = s.queue, r
	}
	if mask&ib.SRQAttrLimit != 0 {
		s.limit = attr.Limit
		s.checkLimit()
	}
	return old, nil
}

// Query implements ib.DriverSRQ.
func (s *srq) Query() (ib.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ib.SRQAttr{MaxWR: uint32(s.queue.Capacity()), MaxSGE: s.maxSGE, Limit: s.limit}, nil
}

// Destroy implements ib.DriverSRQ. A target queue pair keeps a receive that it has taken.
func (s *srq) Destroy() error {
	slot := s.num & (maxQPSlot - 1)
	s.dev.srqs.set(slot, nil)
	s.posting.Lock()
	defer s.posting.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life.reach(destroyed)
	s.dev.destroyedAt(s.log)
	s.log = nil
	s.queue.Free()
	s.queue = nil
	s.dev.srqs.drop(slot)
	s.dev.counts(s.ctx).remove(countSRQ)
	return nil
}

// current returns the present ring.
func (s *srq) current() queue.RecvQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue
}

// lastReached raises EventQPLastWQEReached once, for a queue pair that takes no more receives from its shared receive
// queue. (IBA 11.6.3.2; flush_recv_queue)
func (r *responder) lastReached() {
	qp := r.qp
	if qp.srq != nil && !r.lastWQE {
		r.lastWQE = true
		qp.raise(ib.EventQPLastWQEReached)
	}
}
