package own_drain

import (
	"context"

	"verbena/ib"
	"verbena/ib/completion"
)

type link struct {
	cq *completion.CQ
	qp *completion.QP
}

func open(d *ib.Device, pd *ib.PD) (*link, error) {
	cq, err := completion.New(d, completion.Init{Entries: 4, Context: completion.Worker})
	if err != nil {
		return nil, err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, Cap: ib.QPCap{MaxRecvWR: 2, MaxRecvSGE: 1}})
	return &link{cq, qp}, err
}

func (l *link) receive(sgl []ib.SGE) error {
	return l.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			l.stop()
		}
	})
}

func (l *link) stop() {
	l.qp.Close(context.Background()) // want "callback: .*, which a completion calls, calls .*Close, which waits for the functions of the same"
}
