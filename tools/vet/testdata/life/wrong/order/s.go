// Package order destroys objects before those that refer to them.
package order

import (
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
		return nil, err
	}
	n.qp, err = n.pd.CreateQP(ib.QPInitAttr{SendCQ: n.cq, RecvCQ: n.cq})
	return n, err
}

func (n *node) close() {
	_ = n.cq.Destroy()
	_ = n.qp.Destroy() // want "life: .* ends an object after cq"
	_ = n.pd.Dealloc()
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

func (r *region) end() { _ = r.mr.Dereg() }

// close registers the calls in the wrong order, one of them in a helper.
func (r *region) close() {
	defer r.end() // want "life: .* ends an object after pd"
	defer r.pd.Dealloc()
}

type ring struct {
	mr  *ib.MR
	qp  *completion.QP
	mem []byte
}

func (r *ring) sge() []ib.SGE {
	return []ib.SGE{{Addr: r.mr.Addr(), Length: 64, LKey: r.mr.LKey()}}
}

func (r *ring) fill() error { return r.qp.PostRecv(ib.RecvWR{SGList: r.sge()}, nil) }

// close deregisters the memory of receives.
func (r *ring) close() {
	_ = r.mr.Dereg()
	_ = r.qp.Destroy() // want "life: .* ends an object after mr"
}
