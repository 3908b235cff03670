// Package variables ends objects in local variables in the right order.
package variables

import "verbena/ib"

func probe(d *ib.Device) error {
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Dealloc()
	cq, err := d.CreateCQ(ib.CQInit{})
	if err != nil {
		return err
	}
	defer cq.Destroy()
	qp, err := pd.CreateQP(ib.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		return err
	}
	defer qp.Destroy()
	return nil
}

// each creates new objects in each iteration.
func each(d *ib.Device) error {
	for range 3 {
		pd, err := d.AllocPD()
		if err != nil {
			return err
		}
		b := make([]byte, 64)
		mr, err := pd.RegBytes(b, ib.AccessLocalWrite)
		if err != nil {
			_ = pd.Dealloc()
			return err
		}
		b[0] = 1
		if err := mr.Dereg(); err != nil {
			return err
		}
		if err := pd.Dealloc(); err != nil {
			return err
		}
	}
	return nil
}
