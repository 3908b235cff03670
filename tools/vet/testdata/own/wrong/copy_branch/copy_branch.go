package copy_branch

import (
	"sync"

	"verbena/umem"
)

// Cache lets go of its lock on one of two ways to a copy only.
type Cache struct {
	mu    sync.Mutex
	space umem.Space
	small bool
}

func (c *Cache) Fill(b []byte) error {
	c.mu.Lock()
	if !c.small {
		c.mu.Unlock()
	}
	err := c.space.ReadV([][]byte{b}, 0) // want "copy: .*Fill copies to or from the memory of a process.*with copy_branch.Cache.mu held"
	if c.small {
		c.mu.Unlock()
	}
	return err
}
