// Package held_chain: a function that wants the lock calls itself and others that want it.
package held_chain

import (
	"sync"

	"verbena/ib"
)

type Credits struct {
	mu      sync.Mutex
	left    int
	waiting []func()
}

// spend wants the lock.
//
//verbena:held mu
func (c *Credits) spend(n int) {
	if n == 0 {
		c.settle()
		return
	}
	c.left--
	c.spend(n - 1)
}

// settle wants it, too.
//
//verbena:held mu
func (c *Credits) settle() { c.left = max(c.left, 0) }

// Open makes a queue whose handler spends.
func (c *Credits) Open(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		c.mu.Lock()
		c.spend(2)
		c.mu.Unlock()
	}})
}
