// Package held_early_unlock: one of two ways lets go of the lock before it calls what wants it.
package held_early_unlock

import (
	"sync"

	"verbena/ib"
)

type Credits struct {
	mu   sync.Mutex
	left int
	qp   *ib.QP
}

// spend wants the lock.
//
//verbena:held mu
func (c *Credits) spend() { c.left-- }

// Send sends if there is a credit.
func (c *Credits) Send(wr ib.SendWR) error {
	c.mu.Lock()
	if c.left == 0 {
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	_, err := c.qp.PostSend(wr)
	c.spend() // want "held"
	return err
}
