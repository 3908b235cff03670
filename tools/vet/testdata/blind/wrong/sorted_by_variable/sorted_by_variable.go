package sorted_by_variable

import (
	"slices"

	"verbena/ib"
)

type table struct {
	cmp func(a, b int) int
	in  chan int
}

func newTable(in chan int) *table {
	t := &table{in: in}
	t.cmp = t.slow
	return t
}

func (t *table) slow(a, b int) int { return <-t.in } // want "nosleep: .*may sleep: it receives from a channel"

func Make(d *ib.Device, t chan int) {
	x := newTable(t)
	list := []int{2, 1}
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { slices.SortFunc(list, x.cmp) }})
}
