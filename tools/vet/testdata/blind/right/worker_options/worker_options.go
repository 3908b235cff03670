package worker_options

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type option func(*completion.Init)

func sleepy(i *completion.Init) { i.Context = completion.Worker }

func depth(n int) option { return func(i *completion.Init) { i.Entries = n } }

func newCQ(d *ib.Device, opts ...option) (*completion.CQ, error) {
	i := completion.Init{Entries: 1, Context: completion.Callback}
	for _, o := range opts {
		o(&i)
	}
	return completion.New(d, i)
}

func Open(d *ib.Device, pd *ib.PD, out chan<- int) error {
	cq, err := newCQ(d, sleepy, depth(4))
	if err != nil {
		return err
	}
	qp, err := completion.NewQP(pd, ib.QPInitAttr{}, cq, cq)
	if err != nil {
		return err
	}
	return qp.PostSend(ib.SendWR{}, func(wc *ib.WC) { out <- int(wc.ID) })
}
