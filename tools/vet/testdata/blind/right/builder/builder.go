package builder

import (
	"verbena/ib"
	"verbena/ib/completion"
)

type s struct {
	cq *completion.CQ
	qp *completion.QP
	mr *ib.MR
}

type builder struct{ init completion.Init }

func (b *builder) entries(n int) *builder                { b.init.Entries = n; return b }
func (b *builder) context(c completion.Context) *builder { b.init.Context = c; return b }
func (b *builder) make(d *ib.Device) (*completion.CQ, error) {
	return completion.New(d, b.init)
}

func (x *s) open(d *ib.Device, pd *ib.PD) (err error) {
	if x.cq, err = new(builder).entries(3).context(completion.Worker).make(d); err != nil {
		return err
	}
	if x.qp, err = x.cq.CreateQP(pd, ib.QPInitAttr{}); err != nil {
		return err
	}
	return x.qp.PostSend(ib.SendWR{}, func(*ib.WC) { x.mr.Dereg() })
}
