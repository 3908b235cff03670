package worker_by_fields

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type session struct {
	cq *completion.CQ
	qp *completion.QP
	mr *ib.MR
}

func (s *session) open(d *ib.Device, pd *ib.PD) (err error) {
	var init completion.Init
	init.Entries = 8
	init.Context = completion.Worker
	if s.cq, err = completion.New(d, init); err != nil {
		return err
	}
	if s.qp, err = s.cq.CreateQP(pd, ib.QPInitAttr{}); err != nil {
		return err
	}
	return s.qp.PostRecv(ib.RecvWR{}, s.received)
}

func (s *session) received(wc *ib.WC) { s.mr.Dereg() }
