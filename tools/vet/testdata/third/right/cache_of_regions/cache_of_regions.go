// Package cache_of_regions: consumers register memory of their own process with a lock held that no handler acquires.
package cache_of_regions

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
	"verbena/umem"
)

type cache struct {
	mu    sync.Mutex
	pd    *ib.PD
	space *umem.Local
	mrs   map[int]*ib.MR
	n     atomic.Int32
}

func (c *cache) Get(n int) (*ib.MR, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mr := c.mrs[n]; mr != nil {
		return mr, nil
	}
	mr, err := c.pd.RegBytes(make([]byte, n), ib.AccessLocalWrite)
	if err == nil {
		c.mrs[n] = mr
	}
	return mr, err
}

func (c *cache) Grant(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mrs[n].Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessLocalWrite})
}

func (c *cache) Fill(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range n {
		if err := c.fill(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *cache) fill(i int) error {
	addr, err := c.space.Add(make([]byte, 4096))
	if err != nil {
		return err
	}
	c.mrs[i], err = c.pd.RegMR(ib.MRInit{Space: c.space, Addr: addr, Length: 4096})
	return err
}

func (c *cache) handler(cq *ib.CQ) { c.n.Add(1) }

func open(d *ib.Device, c *cache) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 16, Handler: c.handler})
}
