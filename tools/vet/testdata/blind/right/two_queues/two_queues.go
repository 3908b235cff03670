package two_queues

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type pair struct{ ctl, data *completion.QP }

func Open(d *ib.Device, pd *ib.PD, out chan int) (*pair, error) {
	slow, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Worker})
	if err != nil {
		return nil, err
	}
	fast, err := completion.New(d, completion.Init{Entries: 8, Context: completion.Callback})
	if err != nil {
		return nil, err
	}
	p := &pair{}
	if p.ctl, err = slow.CreateQP(pd, ib.QPInitAttr{}); err != nil {
		return nil, err
	}
	if p.data, err = completion.NewQP(pd, ib.QPInitAttr{}, fast, slow); err != nil {
		return nil, err
	}
	if err := p.ctl.PostSend(ib.SendWR{}, func(*ib.WC) { out <- 1 }); err != nil {
		return nil, err
	}
	if err := p.data.PostRecv(ib.RecvWR{}, func(*ib.WC) { out <- 2 }); err != nil {
		return nil, err
	}
	return p, p.data.PostSend(ib.SendWR{}, func(*ib.WC) {
		select {
		case out <- 3:
		default:
		}
	})
}
