// Package held_defer_order: a function that wants the lock is deferred after the unlock, and so runs before it.
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
	defer r.mu.Unlock()
	defer r.compact()
	r.head += n
	return cq.Poll(nil)
}
