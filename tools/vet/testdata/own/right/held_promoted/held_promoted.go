// Package held_promoted: a type that embeds a table is used as an interface, so that the compiler makes wrappers of all methods of the
// table. No wrapper of an unexported method is called.
package held_promoted

import (
	"sync"

	"verbena/ib"
)

type table struct {
	mu   sync.Mutex
	keys map[uint32]*ib.MR
}

// drop forgets a key.
//
//verbena:held mu
func (t *table) drop(k uint32) { delete(t.keys, k) }

// forget is called with the lock held.
func (t *table) forget(k uint32) { t.drop(k) }

// Close forgets all.
func (t *table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.keys {
		t.forget(k)
	}
}

type Named struct {
	*table
	Name string
}

type Closer interface{ Close() }

// Open returns an empty table.
func Open(name string) Closer { return Named{&table{keys: map[uint32]*ib.MR{}}, name} }
