// Package closer_of_address_handles: the event function frees a list of things by an interface, all of them address handles, which do not sleep.
package closer_of_address_handles

import (
	"verbena/ib"
)

type freer interface{ Destroy() error }

type Conn struct {
	things []freer
	cq     *ib.CQ
}

// Add is a client's Add.
func (c *Conn) Add(d *ib.Device, pd *ib.PD, attr *ib.AHAttr) (err error) {
	if c.cq, err = d.CreateCQ(ib.CQInit{Entries: 1}); err != nil {
		return err
	}
	ah, err := pd.CreateAH(attr)
	if err != nil {
		return err
	}
	c.things = append(c.things, ah)
	d.OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			c.free()
		}
	})
	return nil
}

func (c *Conn) free() {
	for _, t := range c.things {
		_ = t.Destroy()
	}
}

// Close is not a callback.
func (c *Conn) Close() error { return c.cq.Destroy() }
