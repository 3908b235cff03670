// Package replaced ends an object after another one has replaced it.
package replaced

import "verbena/ib"

type link struct {
	pd *ib.PD
	qp *ib.QP
}

func (l *link) reconnect(init ib.QPInitAttr) error {
	qp, err := l.pd.CreateQP(init)
	if err != nil {
		return err
	}
	old := l.qp
	l.qp = qp
	if err := old.Destroy(); err != nil {
		return err
	}
	_, err = l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend})
	return err
}

// forget reads the key of an ended region.
func forget(mr *ib.MR, keys map[uint32]bool) error {
	if err := mr.Dereg(); err != nil {
		return err
	}
	delete(keys, mr.LKey())
	return nil
}
