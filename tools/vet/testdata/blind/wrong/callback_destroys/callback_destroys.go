package callback_destroys

import (
	"fmt"

	"verbena/ib"
	"verbena/ib/completion"
)

type options struct {
	depth int
	ctx   completion.Context
}

func (o options) init() completion.Init {
	i := completion.Init{Entries: o.depth}
	if o.ctx != completion.Direct {
		i.Context = o.ctx
	}
	return i
}

type session struct {
	cq  *completion.CQ
	qp  *completion.QP
	end chan error
}

func (s *session) open(d *ib.Device, pd *ib.PD) (err error) {
	if s.cq, err = completion.New(d, options{8, completion.Callback}.init()); err != nil {
		return err
	}
	if s.qp, err = s.cq.CreateQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC}); err != nil {
		return err
	}
	return s.qp.PostSend(ib.SendWR{}, func(wc *ib.WC) {
		if wc.Status != ib.WCSuccess {
			s.end <- fmt.Errorf("send: %v", wc.Status) // want "nosleep: .*may sleep: it sends to a channel"
		}
	})
}
