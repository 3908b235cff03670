// Package ended uses objects before their end, or new ones.
package ended

import (
	"log"

	"verbena/ib"
	"verbena/verbs"
)

type link struct {
	pd *ib.PD
	qp *ib.QP
	cq *ib.CQ
}

// again replaces the queue pair.
func (l *link) again(init ib.QPInitAttr) (err error) {
	if err = l.qp.Destroy(); err != nil {
		_, _, err = l.qp.Query(0) // it has not been destroyed
		return err
	}
	log.Print(l.qp.Num())
	if l.qp, err = l.pd.CreateQP(init); err != nil {
		return err
	}
	_, err = l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend})
	return err
}

func (l *link) end() {
	if l.cq == nil {
		return
	}
	_ = l.cq.Destroy()
	l.cq = nil
}

func (l *link) rest(wc []ib.WC) int {
	if l.cq == nil {
		return 0
	}
	n, _ := l.cq.Poll(wc)
	return n
}

// stop clears the field.
func (l *link) stop(wc []ib.WC) int {
	l.end()
	return l.rest(wc)
}

// each closes each region at the end of its iteration.
func each(pd *verbs.PD, qp *verbs.QP, last bool) error {
	for range 3 {
		mr, err := pd.Alloc(64, 0)
		if err != nil {
			return err
		}
		defer mr.Close()
		if last {
			mr.Close()
			return nil
		}
		if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(0, 5)}); err != nil {
			mr.Close()
			return err
		}
	}
	return nil
}
