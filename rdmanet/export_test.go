package rdmanet

import "time"

// SetStall sets the time limit of a probe.
func (c *Conn) SetStall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stall = d
}
