package command_mutex

import (
	"sync"

	"verbena/ib"
)

type cmdRing struct {
	mu    sync.Mutex
	reply chan uint32
	head  uint32
}

func (r *cmdRing) issue(op uint32) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.head++
	return <-r.reply
}

func (r *cmdRing) doorbell() {
	r.mu.Lock() // want "nosleep: .*may sleep: it locks command_mutex.cmdRing.mu, which is held at"
	r.head++
	r.mu.Unlock()
}

type cq struct {
	ib.DriverCQ
	ring *cmdRing
}

func (c *cq) ReqNotify(f ib.NotifyFlags) (bool, error) {
	c.ring.doorbell()
	return false, nil
}

func (c *cq) Destroy() error { c.ring.issue(3); return nil }
