package ah_destroy_refs

import (
	"sync/atomic"

	"verbena/ib"
)

type ah struct {
	ib.DriverAH
	refs atomic.Int32
	gone chan struct{}
}

func (a *ah) Destroy() error {
	if a.refs.Add(-1) > 0 {
		for range a.gone { // want "nosleep: .*may sleep: it receives from a channel"
		}
	}
	return nil
}
