package process_in_handler

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type poller struct {
	cq *completion.CQ
	qp *completion.QP
	mr *ib.MR
}

func (p *poller) open(d *ib.Device, pd *ib.PD) (err error) {
	if p.cq, err = completion.New(d, completion.Init{Entries: 16}); err != nil {
		return err
	}
	if p.qp, err = p.cq.CreateQP(pd, ib.QPInitAttr{}); err != nil {
		return err
	}
	if err := p.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) { p.mr.Dereg() }); err != nil { // want "nosleep: .*may sleep: it calls .*ib.MR.*Dereg"
		return err
	}
	d.OnEvent(func(ib.Event) { p.cq.Process(16) })
	return nil
}
