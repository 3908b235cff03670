package seq_over_slice

import (
	"iter"
	"sync"

	"verbena/ib"
)

type cq struct {
	ib.DriverCQ
	mu  sync.Mutex
	wcs []ib.WC
}

func (c *cq) take(max int) iter.Seq2[int, ib.WC] {
	return func(yield func(int, ib.WC) bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := 0; i < max && len(c.wcs) > 0; i++ {
			w := c.wcs[0]
			c.wcs = c.wcs[1:]
			if !yield(i, w) {
				return
			}
		}
	}
}

func (c *cq) Poll(wc []ib.WC) (n int, err error) {
	for i, w := range c.take(len(wc)) {
		wc[i] = w
		n++
	}
	return n, nil
}
