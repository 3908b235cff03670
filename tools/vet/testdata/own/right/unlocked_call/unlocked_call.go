// Package unlocked_call: a helper releases the lock of its caller while it calls its argument.
package unlocked_call

import (
	"sync"

	"verbena/ib"
	"verbena/umem"
)

type cache struct {
	mu sync.Mutex
	m  map[int]*ib.MR
	pd *ib.PD
}

func (c *cache) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}

// twice passes its argument on.
func (c *cache) twice(f func()) {
	c.unlocked(f)
	c.unlocked(f)
}

func (c *cache) get(i int) *ib.MR {
	c.mu.Lock()
	defer c.mu.Unlock()
	var m *ib.MR
	c.unlocked(func() { m, _ = c.pd.RegBytes(make([]byte, 64), ib.AccessLocalWrite) })
	c.m[i] = m
	c.twice(c.fill)
	return m
}

func (c *cache) fill() { _, _ = c.pd.RegBytes(make([]byte, 64), ib.AccessLocalWrite) }

func (c *cache) read(s umem.Space, b []byte) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlocked(func() { err = s.ReadV([][]byte{b}, 0) })
	return err
}

func open(d *ib.Device, c *cache, client *ib.Client, core *ib.Core) (*ib.CQ, error) {
	c.get(1)
	c.mu.Lock()
	c.unlocked(func() { core.UnregisterClient(client) })
	c.mu.Unlock()
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		c.mu.Lock()
		delete(c.m, 1)
		c.mu.Unlock()
	}})
}
