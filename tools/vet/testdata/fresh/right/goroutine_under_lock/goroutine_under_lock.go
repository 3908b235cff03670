// Package goroutine_under_lock: a goroutine that sleeps is started under the lock that the handler takes, and does not hold it.
package goroutine_under_lock

import (
	"sync"
	"time"

	"verbena/ib"
)

type Keeper struct {
	mu   sync.Mutex
	last time.Time
	seen int
}

// Start starts the timer.
func (k *Keeper) Start(qp *ib.QP) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = time.Now()
	go func() {
		time.Sleep(time.Second)
		_ = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
	}()
}

// Open makes the queue.
func (k *Keeper) Open(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(cq *ib.CQ) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.seen++
	}})
}
