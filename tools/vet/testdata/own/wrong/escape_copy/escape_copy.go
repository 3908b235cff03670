package escape_copy

import (
	"sync"

	"verbena/umem"
)

// Fill excuses a copy under its lock.
type Cache struct {
	mu    sync.Mutex
	space umem.Space
}

func (c *Cache) Fill(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	//verbena:allow copy it is only a few bytes and quick // want "directive: a copy with a lock held cannot be excused"
	return c.space.ReadV([][]byte{b}, 0) // want "copy: .*Fill copies"
}
