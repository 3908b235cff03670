package sleepy_lock_deep

import (
	"os"
	"sync"

	"verbena/ib"
)

// Device writes its log with the lock held, two calls away; a handler takes the same lock, two calls away.
type Device struct {
	mu  sync.Mutex
	log *os.File
	n   int
}

func (d *Device) note() { d.write("x") }

func (d *Device) write(s string) { d.log.WriteString(s) }

func (d *Device) Note() {
	d.mu.Lock()
	d.note()
	d.mu.Unlock()
}

func (d *Device) count() { d.locked(func() { d.n++ }) }

func (d *Device) locked(f func()) {
	d.mu.Lock() // want "nosleep: .*may sleep: it locks sleepy_lock_deep.Device.mu"
	defer d.mu.Unlock()
	f()
}

func (d *Device) Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) { d.count() }})
}
