// Package method_expression: the event function calls a step from an array of method expressions, one of which makes a protection domain.
package method_expression

import (
	"verbena/ib"
)

type machine struct {
	dev *ib.Device
	pd  *ib.PD
	at  int
}

var steps = [...]func(*machine) error{
	(*machine).idle,
	(*machine).open,
}

func (m *machine) idle() error { return nil }

func (m *machine) open() (err error) {
	m.pd, err = m.dev.AllocPD() // want "nosleep"
	return err
}

// Run runs the machine by events.
func Run(d *ib.Device) (stop func()) {
	m := &machine{dev: d}
	return d.OnEvent(func(e ib.Event) {
		if steps[m.at%len(steps)](m) == nil {
			m.at++
		}
	})
}
