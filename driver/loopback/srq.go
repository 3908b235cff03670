package loopback

import (
	"fmt"
	"syscall"

	"verbena/ib"
)

// SRQ is a shared receive queue. It implements ib.DriverSRQ.
type SRQ struct {
	dev *Device
	obj ib.SRQHandle
	rq  recvQueue // under Device.mu
}

// sharedReceiveQueue is the interface through which queue pairs use a shared receive queue.
type sharedReceiveQueue interface{ queue() *recvQueue }

func (s *SRQ) queue() *recvQueue { return &s.rq }

// CreateSRQ implements ib.SRQDriver.
func (d *Device) CreateSRQ(obj ib.SRQHandle, init *ib.DriverSRQInit, u *ib.Udata) (ib.DriverSRQ, error) {
	if init.Attr.MaxWR > maxWR || init.Attr.MaxSGE > maxSGE || u != nil {
		return nil, fmt.Errorf("invalid capacity of %d work requests with %d elements: %w", init.Attr.MaxWR, init.Attr.MaxSGE,
			syscall.EINVAL)
	}
	s := &SRQ{dev: d, obj: obj}
	s.rq = recvQueue{ring: newRing[recvWQE](int(init.Attr.MaxWR)), maxSGE: init.Attr.MaxSGE, pd: domainOf(init.PD), srq: s}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addXRCSRQ(s, init)
	return s, nil
}

// PostRecv implements ib.DriverSRQ. PostRecv may not sleep.
func (s *SRQ) PostRecv(wrs []ib.RecvWR) (int, error) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	n, err := s.rq.post(wrs)
	s.dev.resumeWaitingQPs()
	return n, err
}

// Modify implements ib.DriverSRQ.
func (s *SRQ) Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask, u *ib.Udata) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	room := uint32(len(s.rq.slots))
	if mask&ib.SRQAttrMaxWR != 0 {
		room = attr.MaxWR
	}
	if room == 0 || room > maxWR || int(room) < s.rq.n || mask&ib.SRQAttrLimit != 0 && attr.Limit > room {
		return fmt.Errorf("invalid capacity %d or limit %d for a queue with %d work requests: %w", room, attr.Limit, s.rq.n,
			syscall.EINVAL)
	}
	if int(room) != len(s.rq.slots) {
		r := newRing[recvWQE](int(room))
		for s.rq.n > 0 {
			*r.push() = *s.rq.pop()
		}
		s.rq.ring = r
	}
	if mask&ib.SRQAttrLimit != 0 {
		s.rq.limit = attr.Limit
		s.rq.checkLimit()
	}
	return nil
}

// Query implements ib.DriverSRQ.
func (s *SRQ) Query() (ib.SRQAttr, error) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return ib.SRQAttr{MaxWR: uint32(len(s.rq.slots)), MaxSGE: s.rq.maxSGE, Limit: s.rq.limit}, nil
}

// Destroy implements ib.DriverSRQ.
func (s *SRQ) Destroy() error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.dev.removeXRCSRQ(s)
	s.dev.resumeWaitingQPs() // a sender may wait for a receive in the queue
	return nil
}

// checkLimit raises the event if the limit has been reached. mu must be held.
func (r *recvQueue) checkLimit() {
	if r.srq != nil && uint32(r.n) < r.limit {
		r.limit = 0
		r.srq.obj.Raise(ib.EventSRQLimitReached)
	}
}
