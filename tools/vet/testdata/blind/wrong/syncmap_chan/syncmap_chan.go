package syncmap_chan

import (
	"sync"

	"verbena/ib"
)

type waits struct{ m sync.Map }

func (w *waits) wake(id uint64) {
	if c, ok := w.m.LoadAndDelete(id); ok {
		c.(chan uint64) <- id // want "nosleep: .*may sleep: it sends to a channel"
	}
}

func Make(d *ib.Device, w *waits) {
	d.CreateCQ(ib.CQInit{Handler: func(cq *ib.CQ) {
		var wc [4]ib.WC
		n, _ := cq.Poll(wc[:])
		for _, c := range wc[:n] {
			w.wake(c.ID)
		}
	}})
}
