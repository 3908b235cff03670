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

// session ends by an interface, or by a stored method.
type session struct {
	link *link
	ends []func() error
	c    closer
}

type closer interface {
	Close(context.Context) error
}

func start(d *ib.Device, pd *ib.PD) (*session, error) {
	l, err := open(d, pd)
	if err != nil {
		return nil, err
	}
	s := &session{link: l, c: l.qp}
	s.ends = append(s.ends, l.qp.Destroy)
	return s, nil
}

func (s *session) receive(sgl []ib.SGE) error {
	return s.link.qp.PostRecv(ib.RecvWR{SGList: sgl}, func(wc *ib.WC) {
		if wc.Status == ib.WCSuccess {
			return
		}
		_ = s.c.Close(context.Background()) // want "callback: .*, which a completion calls, calls .*Close, which waits for the functions of the same"
		for _, end := range s.ends {
			_ = end() // want "callback: .*, which a completion calls, calls .*Destroy, which waits for the functions of the same"
		}
	})
}
