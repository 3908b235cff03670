// Package closer_interface: the event function frees a list of things by an interface, and one of them is a completion queue.
package closer_interface

import (
	"verbena/ib"
)

type freer interface{ Destroy() error }

type Conn struct {
	things []freer
}

// Add is a client's Add.
func (c *Conn) Add(d *ib.Device) (any, error) {
	cq, err := d.CreateCQ(ib.CQInit{Entries: 1})
	if err != nil {
		return nil, err
	}
	c.things = append(c.things, cq)
	return d.OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			c.free()
		}
	}), nil
}

func (c *Conn) free() {
	for _, t := range c.things {
		_ = t.Destroy() // want "nosleep"
	}
}
