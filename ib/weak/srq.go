package weak

import (
	"syscall"

	"verbena/ib"
)

// srq is a shared receive queue.
type srq struct {
	ib.DriverSRQ
	d  *driver
	pd ib.DriverPD
}

// Unwrap makes the optional interfaces of the inner queue available.
func (s *srq) Unwrap() ib.DriverSRQ { return s.DriverSRQ }

// CreateSRQ implements ib.SRQDriver.
func (d *driver) CreateSRQ(h ib.SRQHandle, init *ib.DriverSRQInit, u *ib.Udata) (ib.DriverSRQ, error) {
	inner, ok := ib.As[ib.SRQDriver](d.Driver)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	if u == nil {
		if err := d.failCall("CreateSRQ"); err != nil {
			return nil, err
		}
	}
	s, err := inner.CreateSRQ(h, init, u)
	if err != nil || u != nil {
		return s, err
	}
	return &srq{s, d, init.PD}, nil
}

// PostRecv implements ib.DriverSRQ.
func (s *srq) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	for n = range wrs {
		if err := s.d.failPost(); err != nil {
			return n, err
		}
		wr := wrs[n]
		s.d.countPost()
		r := &weakRequest{id: wr.ID, signaled: true}
		wr.SGList, r.targets = s.d.translateElements(wr.SGList, s.pd, s.d.fillsReceivesLate(), true)
		r.srq = s
		if s.d.hasChoice(PoisonedTarget) {
			r.poisonTargets()
		}
		wr.ID = s.d.assignRequestID(r).num
		if k, err := s.DriverSRQ.PostRecv([]ib.RecvWR{wr}); k == 0 {
			s.d.dropRequests(r)
			r.storeData(0)
			return n, err
		}
	}
	return len(wrs), nil
}

// Destroy implements ib.DriverSRQ.
func (s *srq) Destroy() error {
	if err := s.DriverSRQ.Destroy(); err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, r := range s.d.reqs {
		if r.srq == s {
			r.restoreTargets()
		}
	}
	return nil
}
