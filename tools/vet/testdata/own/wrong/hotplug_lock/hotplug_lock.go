package hotplug_lock

import (
	"sync"

	"verbena/ib"
)

// Disk is closed with the lock that its completion handler takes.
type Disk struct {
	mu     sync.Mutex
	client ib.Client
	n      int
}

func (d *Disk) Open(dev *ib.Device) {
	dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		d.mu.Lock()
		d.n++
		d.mu.Unlock()
	}})
}

func (d *Disk) Close(core *ib.Core) {
	d.mu.Lock()
	defer d.mu.Unlock()
	core.UnregisterClient(&d.client) // want "hotplug: .*Close calls .*UnregisterClient with hotplug_lock.Disk.mu held"
}
