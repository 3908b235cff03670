package interface_helper

import (
	"sync/atomic"

	"verbena/ib"
)

type sink interface{ put(int) }

type slow struct{ c chan int }

func (s slow) put(v int) { s.c <- v }

type quick struct{ last *atomic.Int64 }

func (q quick) put(v int) { q.last.Store(int64(v)) }

func report(s sink, list ...int) {
	for _, v := range list {
		s.put(v)
	}
}

func Make(d *ib.Device, c chan int) {
	report(slow{c}, 1, 2)
	q := quick{new(atomic.Int64)}
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { report(q, 3) }})
}
