// Package allow_unknown_check: an escape names a check that there is not.
package allow_unknown_check

import (
	"verbena/ib"
)

type Counter struct{ n int }

// Open makes the queue.
func (c *Counter) Open(d *ib.Device) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		c.n++ /* // want "directive" */ //verbena:allow sleeping this is only a counter
	}})
}
