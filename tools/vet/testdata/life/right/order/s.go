// Package order destroys objects in the order of their references.
package order

import (
	"context"

	"verbena/ib"
	"verbena/ib/completion"
)

type node struct {
	pd *ib.PD
	cq *ib.CQ
	qp *ib.QP
}

func open(d *ib.Device) (n *node, err error) {
	n = &node{}
	if n.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if n.cq, err = d.CreateCQ(ib.CQInit{}); err != nil {
		_ = n.pd.Dealloc()
		return nil, err
	}
	if n.qp, err = n.pd.CreateQP(ib.QPInitAttr{SendCQ: n.cq, RecvCQ: n.cq}); err != nil {
		_ = n.cq.Destroy()
		_ = n.pd.Dealloc()
	}
	return n, err
}

// close accepts nodes that are not complete.
func (n *node) close() {
	if n.qp != nil {
		_ = n.qp.Destroy()
	}
	_ = n.cq.Destroy()
	_ = n.pd.Dealloc()
}

// replace destroys one queue pair after the queue of another one.
func replace(a, b *node) {
	_ = a.qp.Destroy()
	_ = a.cq.Destroy()
	_ = b.qp.Destroy()
	_ = b.cq.Destroy()
}

type region struct {
	pd *ib.PD
	mr *ib.MR
}

func register(d *ib.Device, b []byte) (*region, error) {
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegBytes(b, ib.AccessLocalWrite)
	if err != nil {
		_ = pd.Dealloc()
		return nil, err
	}
	return &region{pd: pd, mr: mr}, nil
}

// close registers the calls in the reverse order.
func (r *region) close() {
	defer r.pd.Dealloc()
	defer func() { _ = r.mr.Dereg() }()
}

type ring struct {
	mr *ib.MR
	qp *completion.QP
}

func (r *ring) fill() error {
	return r.qp.PostRecv(ib.RecvWR{SGList: []ib.SGE{{Addr: r.mr.Addr(), Length: 64, LKey: r.mr.LKey()}}}, nil)
}

// close drains first.
func (r *ring) close() {
	_ = r.qp.Drain(context.Background())
	_ = r.mr.Dereg()
	_ = r.qp.Destroy()
}
