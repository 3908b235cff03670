// Package waits_for_own_goroutine: the handler hands its work to a goroutine, and waits for the goroutine.
package waits_for_own_goroutine

import (
	"verbena/ib"
)

// Open makes the queue.
func Open(d *ib.Device, qp *ib.QP) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
		}()
		<-done // want "nosleep"
	}})
}
