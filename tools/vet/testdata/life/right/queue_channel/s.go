// Package queue_channel waits for a channel of completion queues.
package queue_channel

import "verbena/ib"

type waiter struct {
	cq    *ib.CQ
	ready chan *ib.CQ
}

func newWaiter(d *ib.Device) (w *waiter, err error) {
	w = &waiter{ready: make(chan *ib.CQ, 1)}
	w.cq, err = d.CreateCQ(ib.CQInit{Entries: 8, Handler: func(cq *ib.CQ) {
		select {
		case w.ready <- cq:
		default:
		}
	}})
	return w, err
}

func (w *waiter) run(f func(*ib.WC)) {
	wcs := make([]ib.WC, 4)
	for {
		if _, err := w.cq.ReqNotify(ib.NotifyNextComp); err != nil {
			return
		}
		for {
			n, err := w.cq.Poll(wcs)
			if err != nil {
				return
			}
			if n == 0 {
				break
			}
			for i := range n {
				f(&wcs[i])
			}
		}
		<-w.ready
	}
}
