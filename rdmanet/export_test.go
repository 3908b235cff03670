package rdmanet

import "time"

// SetStall says how long a probe may take.
func (c *Conn) SetStall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stall = d
}
