package hotplug_lock

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
)

// Disk is closed with a lock that no callback takes.
type Disk struct {
	mu      sync.Mutex
	closing sync.Mutex
	client  ib.Client
	n       atomic.Int64
}

func (d *Disk) Open(dev *ib.Device) {
	dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) { d.n.Add(1) }})
}

func (d *Disk) Close(core *ib.Core) {
	d.closing.Lock()
	defer d.closing.Unlock()
	core.UnregisterClient(&d.client)
}
