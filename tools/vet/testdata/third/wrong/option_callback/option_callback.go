package option_callback

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type options struct {
	ctx completion.Context
	n   int
}

type option func(*options)

func soft() option { return func(o *options) { o.ctx = completion.Callback } }

func in(c completion.Context) option { return func(o *options) { o.ctx = c } }

func depth(n int) option { return func(o *options) { o.n = n } }

func create(d *ib.Device, opts ...option) (*completion.CQ, error) {
	o := options{ctx: completion.Worker, n: 4}
	for _, f := range opts {
		f(&o)
	}
	return completion.New(d, completion.Init{Entries: o.n, Context: o.ctx})
}

func plain(d *ib.Device, set func(*completion.Init)) (*completion.CQ, error) {
	i := completion.Init{Entries: 4, Context: completion.Worker}
	set(&i)
	return completion.New(d, i)
}

func Add(d *ib.Device, mr *ib.MR) error {
	a, _ := create(d, soft(), depth(8))
	qa, _ := a.CreateQP(nil, ib.QPInitAttr{})
	_ = qa.PostSend(ib.SendWR{}, func(*ib.WC) { mr.Dereg() }) // want "nosleep: .*may sleep: it calls .*Dereg"
	b, _ := create(d, depth(8))
	qb, _ := b.CreateQP(nil, ib.QPInitAttr{})
	_ = qb.PostSend(ib.SendWR{}, func(*ib.WC) { mr.Dereg() })
	c, _ := create(d, in(completion.Callback))
	qc, _ := c.CreateQP(nil, ib.QPInitAttr{})
	_ = qc.PostSend(ib.SendWR{}, func(*ib.WC) { mr.Dereg() }) // want "nosleep: .*may sleep: it calls .*Dereg"
	e, _ := create(d, in(completion.Callback), in(completion.Worker))
	qe, _ := e.CreateQP(nil, ib.QPInitAttr{})
	_ = qe.PostSend(ib.SendWR{}, func(*ib.WC) { mr.Dereg() })
	g, _ := plain(d, func(i *completion.Init) { i.Context = completion.Callback })
	qg, _ := g.CreateQP(nil, ib.QPInitAttr{})
	return qg.PostSend(ib.SendWR{}, func(*ib.WC) { mr.Dereg() }) // want "nosleep: .*may sleep: it calls .*Dereg"
}
