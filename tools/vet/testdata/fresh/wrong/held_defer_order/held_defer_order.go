// Package held_defer_order: a function that wants the lock is deferred before the unlock, and so runs after it.
package held_defer_order

import (
	"sync"

	"verbena/ib"
)

type Ring struct {
	mu   sync.Mutex
	head int
}

// compact wants the lock.
//
//verbena:held mu
func (r *Ring) compact() { r.head = 0 }

// Take takes n, and polls.
func (r *Ring) Take(n int, cq *ib.CQ) (int, error) {
	r.mu.Lock()
	defer r.compact() // want "held"
	defer r.mu.Unlock()
	r.head += n
	return cq.Poll(nil)
}
