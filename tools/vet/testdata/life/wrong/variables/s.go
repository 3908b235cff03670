// Package variables ends objects in local variables in a wrong order, and changes memory in a variable.
package variables

import (
	"verbena/ib"
	"verbena/verbs"
)

func probe(d *ib.Device) error {
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	cq, err := d.CreateCQ(ib.CQInit{})
	if err != nil {
		_ = pd.Dealloc()
		return err
	}
	qp, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		_ = cq.Destroy()
		_ = pd.Dealloc()
		return err
	}
	_ = cq.Destroy()
	_ = qp.Destroy() // want "life: .* ends an object after the CQ"
	return pd.Dealloc()
}

func deferred(c *verbs.Device) error {
	pd, err := c.AllocPD()
	if err != nil {
		return err
	}
	mr, err := pd.Alloc(64, 0)
	if err != nil {
		pd.Close()
		return err
	}
	defer mr.Close() // want "life: .* ends an object after the PD"
	defer pd.Close()
	return use(mr)
}

func use(mr *verbs.MR) error { return nil }

func shout(pd *ib.PD, qp *ib.QP) error {
	b := make([]byte, 64)
	mr, err := pd.RegBytes(b, ib.AccessLocalWrite)
	if err != nil {
		return err
	}
	copy(b, "first")
	_, err = qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: []ib.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}})
	if err != nil {
		return err
	}
	copy(b, "other") // want "life: .* changes memory that a posted request sends"
	return nil
}
