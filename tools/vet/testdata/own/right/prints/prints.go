package prints

import (
	"fmt"
	"sync/atomic"

	"verbena/ib"
)

// Open makes a queue whose handler makes a text.
func Open(dev *ib.Device, last *atomic.Value) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(cq *ib.CQ) {
		last.Store(fmt.Sprint("completed ", cq.Entries()))
	}})
}
