package copy_branch

import (
	"sync"

	"verbena/umem"
)

// Cache lets go of its lock on all ways to a copy.
type Cache struct {
	mu    sync.Mutex
	space umem.Space
	small bool
}

func (c *Cache) Fill(b []byte) error {
	c.mu.Lock()
	if !c.small {
		c.mu.Unlock()
		return c.space.ReadV([][]byte{b}, 0)
	}
	c.small = false
	c.mu.Unlock()
	return c.space.ReadV([][]byte{b[:1]}, 0)
}
