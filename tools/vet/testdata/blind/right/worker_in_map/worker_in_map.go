package worker_in_map

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type table struct{ m map[string]*completion.QP }

func (t *table) open(d *ib.Device, pd *ib.PD, c chan int) error {
	cq, err := completion.New(d, completion.Init{Entries: 1, Context: completion.Worker})
	if err != nil {
		return err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{})
	if err != nil {
		return err
	}
	t.m["a"] = qp
	return t.m["a"].PostRecv(ib.RecvWR{}, func(*ib.WC) { c <- 1 })
}
