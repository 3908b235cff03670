// Package limit refills a shared receive queue after its event, and arms the limit again.
package limit

import "verbena/ib"

type spawning struct {
	srq *ib.SRQ
	wrs []ib.RecvWR
}

func start(pd *ib.PD, wrs []ib.RecvWR) (*spawning, error) {
	s := &spawning{wrs: wrs}
	var err error
	if s.srq, err = pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 16, MaxSGE: 1}, Event: s.event}); err != nil {
		return nil, err
	}
	s.refill()
	return s, s.srq.Modify(ib.SRQAttr{Limit: 4}, ib.SRQAttrLimit)
}

func (s *spawning) event(_ *ib.SRQ, e ib.EventType) {
	if e == ib.EventSRQLimitReached {
		go s.refill()
	}
}

func (s *spawning) refill() {
	_, _ = s.srq.PostRecv(s.wrs...)
	_ = s.srq.Modify(ib.SRQAttr{Limit: 4}, ib.SRQAttrLimit)
}
