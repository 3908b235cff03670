package rxe

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/driver/rxe/ring"
	"verbena/ib"
	"verbena/uapi"
)

// maxSRQ is the limit of a program (see objectCounts). The numbers are as those of queue pairs, but without 0.
const maxSRQ = 1<<16 - 2

// srq is a shared receive queue: a ring from which queue pairs take receives, each for the message that it is about to
// store. What a queue pair has taken is its own: it completes there, flushed if need be. What is left when a queue pair
// goes to the error state stays for the others.
type srq struct {
	dev    *Device
	obj    ib.SRQHandle
	num    uint32
	pd     *pd // of the memory that the receives name, whatever the domain of the queue pair is
	ctx    *userContext
	maxSGE uint32
	cq     *cq   // XRC: where the receives complete
	xrcd   *xrcd // XRC: whose targets may take from it

	posting sync.Mutex // one producer in this process at a time; before mu

	mu    sync.Mutex // a leaf below the queue pairs' but for the midlayer's queue of callbacks
	ring  *ring.Ring
	head  uint32 // slot that is taken next
	limit uint32 // raises the event when fewer are left; 0: disarmed
	life  life
}

// CreateSRQ implements ib.SRQDriver. (rxe_create_srq)
func (o ops) CreateSRQ(obj ib.SRQHandle, init *ib.DriverSRQInit, u *ib.Udata) (ib.DriverSRQ, error) {
	d := o.dev
	a := &init.Attr
	a.Limit = 0 // Modify alone arms it (ibv_create_srq(3))
	if a.MaxWR > d.limits.wr || a.MaxSGE > maxSGE {
		return nil, fmt.Errorf("%d receives of %d elements, at most %d of %d: %w", a.MaxWR, a.MaxSGE, d.limits.wr, maxSGE,
			syscall.EINVAL)
	}
	s := &srq{dev: d, obj: obj, pd: domain(init.PD), ctx: d.context(u), maxSGE: a.MaxSGE}
	if init.Type == ib.SRQXRC {
		s.cq, _ = ib.As[*cq](init.CQ)
		if s.xrcd, _ = ib.As[*xrcd](init.XRCD); s.xrcd != nil && s.ctx != nil {
			s.xrcd.programs.Store(true)
		}
	}
	if s.ctx != nil && len(u.Out) < uapi.SizeOf[uapi.RXECreateSRQResp]() {
		return nil, fmt.Errorf("no room in the response for the place of the queue: %w", syscall.EINVAL)
	}
	var err error
	if s.ring, err = s.newRing(a.MaxWR); err != nil {
		return nil, err
	}
	if err := d.counts(s.ctx).add(countSRQ); err != nil {
		s.ring.Free()
		return nil, err
	}
	slot, ok := d.srqs.reserve()
	if !ok {
		d.counts(s.ctx).remove(countSRQ)
		s.ring.Free()
		return nil, fmt.Errorf("%d shared receive queues exist: %w", maxQPSlot-1, syscall.ENOMEM)
	}
	s.num = numberOf(d.srqKeys.take(slot, uint8(d.random())), slot)
	a.MaxWR = uint32(s.ring.Capacity())
	obj.SetNum(s.num)
	if s.ctx != nil {
		u.Respond(uapi.AppendTo(nil, &uapi.RXECreateSRQResp{MI: s.ring.Info(), SRQNum: s.num}))
	}
	d.srqs.set(slot, s)
	return s, nil
}

func (s *srq) newRing(entries uint32) (*ring.Ring, error) {
	r, err := ring.New(int(entries), recvWQESize(s.maxSGE), s.ctx.shared())
	if err != nil {
		return nil, fmt.Errorf("shared receive %w", err)
	}
	return r, nil
}

// PostRecv implements ib.DriverSRQ. It may not sleep.
func (s *srq) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	s.posting.Lock()
	defer s.posting.Unlock()
	if s.ring == nil {
		return 0, errRingGone
	}
	n, full, err := postRecv(s.ring, wrs, s.maxSGE)
	if full {
		err = fmt.Errorf("shared receive queue %d is full: %w", s.num, syscall.ENOMEM)
	}
	return n, err
}

// take moves the oldest receive to w, by way of slot, a thread's room for it. It reports false when there is none.
func (s *srq) take(w *recvWQE, slot []byte) (status uapi.WCStatus, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != whole {
		return 0, false
	}
	slot = slot[:recvWQESize(s.maxSGE)]
	filled, ok := s.ring.Peek(s.head, slot)
	if ok && filled {
		s.head = s.ring.Next(s.head)
		ok = s.ring.SetConsumer(s.head)
	}
	if !ok {
		s.life.reach(ringless)
		s.obj.Raise(ib.EventSRQErr)
		return 0, false
	}
	if !filled {
		return 0, false
	}
	status = decodeRecv(w, slot, s.maxSGE)
	w.from, w.pd = s, s.pd
	s.checkLimit()
	return status, true
}

// checkLimit raises the event when fewer receives are left than the limit, once.
//
//verbena:held mu
func (s *srq) checkLimit() {
	if s.limit == 0 {
		return
	}
	if n, ok := s.left(); ok && n < s.limit {
		s.limit = 0
		s.obj.Raise(ib.EventSRQLimitReached)
	}
}

// left is how many receives are waiting.
//
//verbena:held mu
func (s *srq) left() (uint32, bool) {
	prod, ok := s.ring.Producer()
	return s.ring.Between(s.head, prod), ok
}

// Modify implements ib.DriverSRQ. A user who resizes tells where in its memory the place of the new ring goes; that is stored
// first, and then the ring is used. (rxe_modify_srq)
func (s *srq) Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask, u *ib.Udata) error {
	if mask&ib.SRQAttrMaxWR == 0 {
		return s.modify(nil, attr, mask)
	}
	if attr.MaxWR == 0 || attr.MaxWR > s.dev.limits.wr {
		return fmt.Errorf("%d receives, at most %d: %w", attr.MaxWR, s.dev.limits.wr, syscall.EINVAL)
	}
	if s.ctx == nil {
		r, err := s.newRing(attr.MaxWR)
		if err != nil {
			return err
		}
		return s.modify(r, attr, mask)
	}
	cmd, ok := uapi.Decode[uapi.RXEModifySRQCmd](u.In)
	if !ok {
		return fmt.Errorf("no address for the place of the queue: %w", syscall.EINVAL)
	}
	r, err := s.newRing(attr.MaxWR)
	if err != nil {
		return err
	}
	if err := s.fits(r, attr, mask); err != nil {
		r.Free()
		return err
	}
	info, a := r.Info(), *attr
	place := ib.Stored{
		Addr: cmd.MMapInfoAddr, Data: uapi.AppendTo(nil, &info), Done: func() error { return s.modify(r, &a, mask) }, Drop: r.Free,
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
func (s *srq) fits(r *ring.Ring, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.check(r, attr, mask)
}

// check reports what forbids a change; r is the new ring, nil if it stays.
//
//verbena:held mu
func (s *srq) check(r *ring.Ring, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	if s.life == destroyed {
		return fmt.Errorf("shared receive queue %d was destroyed: %w", s.num, syscall.EINVAL)
	}
	room := uint32(s.ring.Capacity())
	if r != nil {
		room = uint32(r.Capacity())
		n, ok := s.left()
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

// modify makes the change; r is the new ring, nil if it stays.
func (s *srq) modify(r *ring.Ring, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	s.posting.Lock()
	old, err := s.change(r, attr, mask)
	s.posting.Unlock()
	if err != nil {
		r.Free()
		return err
	}
	if old != nil {
		s.ctx.moved()
		old.Free()
	}
	return nil
}

// change returns the ring that is used no more.
//
//verbena:held posting
func (s *srq) change(r *ring.Ring, attr *ib.SRQAttr, mask ib.SRQAttrMask) (old *ring.Ring, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(r, attr, mask); err != nil {
		return nil, err
	}
	if r != nil {
		if err := s.move(r); err != nil {
			return nil, err
		}
		old, s.ring = s.ring, r
	}
	if mask&ib.SRQAttrLimit != 0 {
		s.limit = attr.Limit
		s.checkLimit()
	}
	return old, nil
}

// move copies the receives that wait to an empty ring, which is going to be the queue's.
//
//verbena:held posting, mu
func (s *srq) move(r *ring.Ring) error {
	n, ok := s.left()
	if !ok {
		return errRingGone
	}
	n = min(n, uint32(r.Capacity())) // the program writes the index it comes from
	slot := make([]byte, recvWQESize(s.maxSGE))
	at := s.head
	for i := range n {
		if _, ok := s.ring.Peek(at, slot); !ok {
			return errRingGone
		}
		if _, ok := r.Push(i, slot); !ok {
			return errRingGone
		}
		at = s.ring.Next(at)
	}
	s.head = 0
	return nil
}

// Query implements ib.DriverSRQ.
func (s *srq) Query() (ib.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ib.SRQAttr{MaxWR: uint32(s.ring.Capacity()), MaxSGE: s.maxSGE, Limit: s.limit}, nil
}

// Destroy implements ib.DriverSRQ. A target queue pair that has taken one of its receives keeps that.
func (s *srq) Destroy() error {
	slot := s.num & (maxQPSlot - 1)
	s.dev.srqs.set(slot, nil)
	s.posting.Lock()
	defer s.posting.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life.reach(destroyed)
	s.ring.Free()
	s.ring = nil
	s.dev.srqs.drop(slot)
	s.dev.counts(s.ctx).remove(countSRQ)
	return nil
}

// location returns the location of the ring that is used now.
func (s *srq) location() ring.Location {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring.Location()
}

// lastReached tells the consumer of a queue pair with a shared receive queue, once, that it takes no more receives
// from there. (IBA 11.6.3.2; flush_recv_queue)
func (r *responder) lastReached() {
	qp := r.qp
	if qp.srq != nil && !r.lastWQE {
		r.lastWQE = true
		qp.obj.Raise(ib.EventQPLastWQEReached)
	}
}
