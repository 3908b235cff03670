package loops_progress

import (
	"sync/atomic"

	"verbena/ib"
)

type dev struct {
	flag atomic.Bool
	n    atomic.Uint32
	ch   chan int
	i    int
	m    map[int]int
	want int
}

func (d *dev) handler(*ib.CQ) {
	for i := 0; i < 100 && !d.flag.Load(); i++ {
	}
	old := d.n.Load()
	for !d.n.CompareAndSwap(old, old*2) {
		old = d.n.Load()
	}
	for d.i < 10 {
		d.i++
	}
	for k := range d.m {
		if k == d.want {
			return
		}
	}
	for d.flag.Swap(false) {
		d.i++
	}
	for {
		select {
		case v := <-d.ch:
			d.i += v
			continue
		default:
		}
		break
	}
}

// Open makes a queue.
func (d *dev) Open(on *ib.Device) { on.CreateCQ(ib.CQInit{Handler: d.handler}) }
