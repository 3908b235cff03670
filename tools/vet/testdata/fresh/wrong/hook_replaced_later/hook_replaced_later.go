// Package hook_replaced_later: the handler calls a hook behind an atomic pointer, which is replaced by one that registers memory.
package hook_replaced_later

import (
	"sync/atomic"

	"verbena/ib"
)

type Client struct {
	hook atomic.Pointer[func()]
	pd   *ib.PD
}

func nothing() {}

// Open makes the queue.
func (c *Client) Open(d *ib.Device) (*ib.CQ, error) {
	f := nothing
	c.hook.Store(&f)
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) { (*c.hook.Load())() }})
}

// Grow has more memory registered from now on.
func (c *Client) Grow(b []byte) {
	f := func() {
		_, _ = c.pd.RegBytes(b, ib.AccessLocalWrite) // want "nosleep"
	}
	c.hook.Store(&f)
}
