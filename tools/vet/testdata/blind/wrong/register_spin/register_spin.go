package register_spin

import (
	"verbena/ib"
)

type regs interface{ read(off int) uint32 }

type bar struct{ m []uint32 }

func (b *bar) read(off int) uint32 { return b.m[off] }

type qp struct {
	ib.DriverQP
	r regs
}

func newQP(m []uint32) *qp { return &qp{r: &bar{m}} }

func (q *qp) PostSend(wrs []ib.SendWR) (int, error) {
	for q.r.read(3)&1 != 0 { // want "nosleep: .*may sleep: it spins until another goroutine has done something"
	}
	return len(wrs), nil
}
