package select_ctx

import (
	"context"

	"verbena/ib"
)

type cq struct {
	ib.DriverCQ
	ctx context.Context
	wcs chan ib.WC
}

func (c *cq) Poll(wc []ib.WC) (int, error) {
	for i := range wc {
		select { // want "nosleep: .*may sleep: it waits in select"
		case w := <-c.wcs:
			wc[i] = w
		case <-c.ctx.Done():
			return i, c.ctx.Err()
		}
	}
	return len(wc), nil
}
