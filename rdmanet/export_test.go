package rdmanet

import "time"

// SetProbeTimeout sets the time limit of a probe.
func (c *Conn) SetProbeTimeout(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stall = d
}
