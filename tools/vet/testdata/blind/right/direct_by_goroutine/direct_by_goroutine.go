package direct_by_goroutine

import (
	"time"

	"verbena/ib"
	"verbena/ib/completion"
)

type poller struct {
	cq *completion.CQ
	qp *completion.QP
	mr *ib.MR
}

func (p *poller) open(d *ib.Device, pd *ib.PD) (err error) {
	if p.cq, err = completion.New(d, completion.Init{Entries: 16, Context: completion.Direct}); err != nil {
		return err
	}
	if p.qp, err = p.cq.CreateQP(pd, ib.QPInitAttr{}); err != nil {
		return err
	}
	go p.run()
	return p.qp.PostRecv(ib.RecvWR{}, func(*ib.WC) { p.mr.Dereg() })
}

func (p *poller) run() {
	for {
		if n, err := p.cq.Process(16); err != nil {
			return
		} else if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}
