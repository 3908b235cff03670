// Package method_expression_worker: a worker runs steps from an array of method expressions, which sleep; the event function only wakes it.
package method_expression_worker

import (
	"verbena/ib"
)

type machine struct {
	dev  *ib.Device
	pd   *ib.PD
	wake chan struct{}
}

var steps = [...]func(*machine) error{
	(*machine).idle,
	(*machine).open,
}

func (m *machine) idle() error { return nil }

func (m *machine) open() (err error) {
	m.pd, err = m.dev.AllocPD()
	return err
}

func (m *machine) work() {
	for i := range steps {
		<-m.wake
		if steps[i](m) != nil {
			return
		}
	}
}

var quick = [...]func(*machine){(*machine).kick}

func (m *machine) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run runs the machine by events.
func Run(d *ib.Device) (stop func()) {
	m := &machine{dev: d, wake: make(chan struct{}, 1)}
	go m.work()
	return d.OnEvent(func(e ib.Event) { quick[0](m) })
}
