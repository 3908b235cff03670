package sleepy_lock_deep

import (
	"os"
	"sync"

	"verbena/ib"
)

// Device writes its log after it has let go of the lock.
type Device struct {
	mu  sync.Mutex
	log *os.File
	n   int
}

func (d *Device) write(s string) { d.log.WriteString(s) }

func (d *Device) Note() {
	d.mu.Lock()
	n := d.n
	d.mu.Unlock()
	d.write(string(rune(n)))
}

func (d *Device) locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *Device) Open(dev *ib.Device) (*ib.CQ, error) {
	return dev.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) { d.locked(func() { d.n++ }) }})
}
