// Package ended uses objects after their end.
package ended

import (
	"verbena/ib"
	"verbena/verbs"
)

type link struct {
	qp *ib.QP
	mr *ib.MR
	cq *ib.CQ
}

// flush posts on a destroyed queue pair.
func (l *link) flush() {
	_ = l.qp.Destroy()
	_, _ = l.qp.PostSend(ib.SendWR{Opcode: ib.WRSend}) // want "life: .* calls QP.PostSend with an object that it has ended"
}

func (l *link) end() error {
	if l.cq != nil {
		return l.cq.Destroy()
	}
	return nil
}

func (l *link) rest(wc []ib.WC) int {
	n, _ := l.cq.Poll(wc)
	return n
}

// stop destroys in one helper, and polls in another one.
func (l *link) stop(wc []ib.WC) int {
	if err := l.end(); err != nil {
		return 0
	}
	return l.rest(wc) // want "life: .* calls CQ.Poll with an object that it has ended"
}

// greet posts from the memory of a closed region.
func greet(pd *verbs.PD, qp *verbs.QP) error {
	mr, err := pd.Alloc(64, 0)
	if err != nil {
		return err
	}
	copy(mr.Bytes(), "hello")
	if err := mr.Close(); err != nil {
		return err
	}
	return qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: mr.SGE(0, 5)}) // want "life: .* calls MR.SGE with an object"
}
