package worker_in_sync_map

import (
	"sync"

	"verbena/ib"
	"verbena/ib/completion"
)

type table struct{ m sync.Map }

func (t *table) open(d *ib.Device, pd *ib.PD) error {
	cq, err := completion.New(d, completion.Init{Entries: 1, Context: completion.Worker})
	if err != nil {
		return err
	}
	qp, err := cq.CreateQP(pd, ib.QPInitAttr{})
	if err != nil {
		return err
	}
	t.m.Store("a", qp)
	return nil
}

func (t *table) post(c chan int) error {
	x, _ := t.m.Load("a")
	return x.(*completion.QP).PostRecv(ib.RecvWR{}, func(*ib.WC) { c <- 1 })
}
