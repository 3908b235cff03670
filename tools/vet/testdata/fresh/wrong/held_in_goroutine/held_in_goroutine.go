// Package held_in_goroutine: a goroutine that is started under the lock calls what wants it.
package held_in_goroutine

import (
	"sync"

	"verbena/ib"
)

type Table struct {
	mu   sync.Mutex
	keys map[uint32]*ib.MR
}

// drop forgets a key.
//
//verbena:held mu
func (t *Table) drop(k uint32) { delete(t.keys, k) }

// Close forgets all.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, mr := range t.keys {
		go func() {
			_ = mr.Dereg()
			t.drop(k) // want "held"
		}()
	}
}
