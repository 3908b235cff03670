package waiter_in_memory

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
)

type waiter interface{ Wait() }

type count struct{ n atomic.Int64 }

func (c *count) Wait() { c.n.Add(1) }

type session struct{ w waiter }

func closeAll(list ...waiter) {
	for _, w := range list {
		w.Wait()
	}
}

func Make(d *ib.Device) {
	s := &session{w: &count{}}
	d.CreateCQ(ib.CQInit{Handler: func(*ib.CQ) { s.w.Wait() }})
	var wg sync.WaitGroup
	closeAll(&wg, s.w)
}
