package locked_method_value

import (
	"sync"

	"verbena/ib"
)

type dev struct {
	ib.DriverCQ
	mu   sync.Mutex
	hook func(func())
	in   chan int
}

func (d *dev) locked(f func()) {
	d.mu.Lock() // want "nosleep: .*may sleep: it locks locked_method_value.dev.mu, which is held at"
	defer d.mu.Unlock()
	f()
}

func newDev(in chan int) *dev {
	d := &dev{in: in}
	d.hook = d.locked
	return d
}

func (d *dev) wait() { d.locked(d.read) }
func (d *dev) read() { <-d.in }

func (d *dev) ReqNotify(ib.NotifyFlags) (bool, error) {
	d.hook(func() {})
	return false, nil
}
