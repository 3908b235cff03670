package sorted

import (
	"sort"

	"verbena/ib"
)

type byAge struct {
	list []int
	rate chan int
}

func (b byAge) Len() int           { return len(b.list) }
func (b byAge) Less(i, j int) bool { return <-b.rate > i } // want "nosleep: .*may sleep: it receives from a channel"
func (b byAge) Swap(i, j int)      {}

func Make(d *ib.Device, c chan int) {
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { sort.Sort(byAge{nil, c}) }})
}
