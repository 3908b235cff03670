package relay

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
)

// srq is a shared receive queue. Its inner queue belongs to the weak device.
type srq struct {
	ib.DriverSRQ
	p      *program
	obj    ib.SRQHandle
	number uint32
	sges   uint32

	checked *check.UserSRQ // nil: no checks

	mu       sync.Mutex // after the locks of queue pairs
	made     bool
	queue    queue.RecvQueue // nil: destroyed
	recv     queue.Recv
	last     uint32
	requests map[uint32]request
}

// Unwrap gives access to the inner queue.
func (s *srq) Unwrap() ib.DriverSRQ { return s.DriverSRQ }

// CreateSRQ implements ib.SRQDriver if the inner driver does.
func (d *driver) CreateSRQ(h ib.SRQHandle, init *ib.DriverSRQInit, u *ib.Udata) (ib.DriverSRQ, error) {
	direct, ok := ib.As[ib.SRQDriver](d.Driver)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	p := d.programOf(u)
	if p == nil {
		return direct.CreateSRQ(h, init, u)
	}
	a := &init.Attr
	if a.MaxWR > uint32(p.limits.MaxSRQWR) || a.MaxSGE > uint32(p.limits.MaxSRQSGE) {
		return nil, fmt.Errorf("%d receives of %d elements, at most %d of %d: %w", a.MaxWR, a.MaxSGE, p.limits.MaxSRQWR,
			p.limits.MaxSRQSGE, syscall.EINVAL)
	}
	if err := p.queues.HasRoomForSRQ(u); err != nil {
		return nil, err
	}
	s := &srq{p: p, obj: h, sges: a.MaxSGE, requests: map[uint32]request{}}
	var err error
	if s.queue, err = p.queues.CreateRecv(int(a.MaxWR), a.MaxSGE); err != nil {
		return nil, err
	}
	a.MaxWR = uint32(s.queue.Capacity())
	s.number = p.addOwner(s)
	inner := *init
	inner.Refill = s.post
	if c, ok := init.CQ.(*cq); ok {
		inner.CQ = c.DriverCQ
	}
	maker, _ := ib.As[ib.SRQDriver](p.weak)
	side, err := maker.CreateSRQ(h, &inner, nil)
	if err != nil {
		p.removeOwner(s.number)
		s.queue.Free()
		return nil, err
	}
	a.Limit = inner.Attr.Limit
	s.mu.Lock()
	defer s.mu.Unlock()
	s.DriverSRQ, s.made = side, true
	if p.checks != nil {
		s.checked = p.checks.AddSRQ(h.SRQ(), init.PD, a.MaxWR)
	}
	p.queues.RespondSRQ(s.queue, h.Num(), u)
	return s, nil
}

// post posts the receives of the program to the weak device.
func (s *srq) post() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.made || s.queue == nil || s.p.detached.Load() {
		return
	}
	var sends uint64
	if s.checked != nil {
		sends = s.checked.SendCount()
	}
	for range s.queue.Capacity() {
		found, ok := s.queue.Fetch(0, &s.recv)
		if !ok {
			s.obj.Raise(ib.EventSRQErr)
			s.made = false
			return
		}
		if !found {
			if s.checked != nil {
				s.checked.NoReceives(sends)
			}
			return
		}
		r := request{id: s.recv.ID}
		if s.postOne(r, receiveElements(&s.recv, s.sges, &r)) != nil {
			return
		}
		s.queue.Take()
		s.queue.Complete()
	}
}

//verbena:held mu
func (s *srq) postOne(r request, list []ib.SGE) error {
	s.last = (s.last + 1) &^ recvNumber
	s.requests[s.last] = r
	wr := ib.RecvWR{ID: uint64(s.number)<<32 | uint64(s.last), SGList: list}
	posted := func(int) {}
	if s.checked != nil && r.status == ib.WCSuccess {
		posted = s.checked.Receiving(&wr, r.id)
	}
	n, err := s.DriverSRQ.PostRecv([]ib.RecvWR{wr})
	posted(n)
	if err != nil {
		delete(s.requests, s.last)
	}
	return err
}

// finish implements owner.
func (s *srq) finish(wc *ib.WC) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.requests[uint32(wc.ID)]
	if ok {
		delete(s.requests, uint32(wc.ID))
		r.applyTo(wc)
	}
	return ok
}

// PostRecv implements ib.DriverSRQ, for a program that posts by a call.
func (s *srq) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	s.post()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		return 0, errQueueGone
	}
	for ; n < len(wrs); n++ {
		if err := s.postOne(request{id: wrs[n].ID}, wrs[n].SGList); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Modify implements ib.DriverSRQ. The location of a resized queue is stored in the memory of the program first.
// (rxe_modify_srq)
func (s *srq) Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask, u *ib.Udata) error {
	s.post() // the limit is about all posted receives
	if mask&ib.SRQAttrMaxWR == 0 {
		return s.DriverSRQ.Modify(attr, mask, nil)
	}
	if attr.MaxWR == 0 || attr.MaxWR > uint32(s.p.limits.MaxSRQWR) {
		return fmt.Errorf("%d receives, at most %d: %w", attr.MaxWR, s.p.limits.MaxSRQWR, syscall.EINVAL)
	}
	addr, err := s.p.queues.ResizedSRQ(u)
	if err != nil {
		return err
	}
	q, err := s.p.queues.CreateRecv(int(attr.MaxWR), s.sges)
	if err != nil {
		return err
	}
	a := *attr
	a.MaxWR = uint32(q.Capacity())
	place := ib.Stored{
		Addr: addr, Data: s.p.queues.LocationOf(q), Done: func() error { return s.replace(q, &a, mask) }, Drop: q.Free,
	}
	if u.Defer != nil {
		u.Defer(place)
		return nil
	}
	if err := u.Space.WriteV([][]byte{place.Data}, place.Addr); err != nil {
		q.Free()
		return fmt.Errorf("store the location of the queue: %w", err)
	}
	return place.Done()
}

// replace makes q the queue of the program.
func (s *srq) replace(q queue.RecvQueue, attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	s.post()
	if err := s.DriverSRQ.Modify(attr, mask, nil); err != nil {
		q.Free()
		return err
	}
	old := s.swap(q)
	if old == nil {
		q.Free()
		return errQueueGone
	}
	s.p.updateList()
	old.Free()
	return nil
}

// swap returns the former queue, or nil if there is no longer one.
func (s *srq) swap(q queue.RecvQueue) (old queue.RecvQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil || !s.queue.MoveTo(q) {
		return nil
	}
	old, s.queue = s.queue, q
	return old
}

// Query implements ib.DriverSRQ.
func (s *srq) Query() (ib.SRQAttr, error) {
	a, err := s.DriverSRQ.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue != nil {
		a.MaxWR, a.MaxSGE = uint32(s.queue.Capacity()), s.sges
	}
	return a, err
}

// current returns the queue that the program uses now.
func (s *srq) current() queue.RecvQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue
}

// Destroy implements ib.DriverSRQ.
func (s *srq) Destroy() error {
	if s.checked != nil {
		s.p.look()
		s.checked.CheckMapped()
	}
	if err := s.DriverSRQ.Destroy(); err != nil {
		return err
	}
	if s.checked != nil {
		s.checked.Destroyed()
	}
	s.p.removeOwner(s.number)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Free()
	s.queue = nil
	return nil
}
