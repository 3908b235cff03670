package copy_rwlock_helper

import (
	"sync"

	"verbena/umem"
)

// Table has functions for its lock.
type Table struct {
	mu    sync.RWMutex
	space umem.Space
}

func (t *Table) begin() { t.mu.RLock() }
func (t *Table) end()   { t.mu.RUnlock() }

func (t *Table) Store(b []byte) error {
	t.begin()
	defer t.end()
	return t.space.WriteV([][]byte{b}, 0) // want "copy: .*Store copies to or from the memory of a process.*with copy_rwlock_helper.Table.mu held"
}
