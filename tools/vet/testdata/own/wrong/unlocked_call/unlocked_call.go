// Package unlocked_call: helpers release a lock, but another one, or not while they call their argument.
package unlocked_call

import (
	"sync"

	"verbena/ib"
)

type cache struct {
	other, late, branch sync.Mutex
	m                   map[int]*ib.MR
	pd                  *ib.PD
}

// unlocked releases another lock than get holds.
func (c *cache) unlocked(f func()) {
	c.late.Unlock()
	f()
	c.late.Lock()
}

// tooLate calls f before the release of the lock.
func (c *cache) tooLate(f func()) {
	f()
	c.late.Unlock()
	c.late.Lock()
}

// sometimes releases the lock on one path only.
func (c *cache) sometimes(f func()) {
	if len(c.m) > 0 {
		c.branch.Unlock()
		defer c.branch.Lock()
	}
	f()
}

func (c *cache) fill() { _, _ = c.pd.RegBytes(make([]byte, 64), ib.AccessLocalWrite) }

func (c *cache) get() {
	c.other.Lock()
	c.late.Lock()
	c.unlocked(c.fill)
	c.late.Unlock()
	c.other.Unlock()
}

func (c *cache) getLate() {
	c.late.Lock()
	c.tooLate(func() { c.fill() })
	c.late.Unlock()
}

func (c *cache) getSometimes() {
	c.branch.Lock()
	c.sometimes(func() { c.fill() })
	c.branch.Unlock()
}

func open(d *ib.Device, c *cache) (*ib.CQ, error) {
	return d.CreateCQ(ib.CQInit{Entries: 1, Handler: func(*ib.CQ) {
		c.other.Lock()  // want "nosleep: .*locks unlocked_call.cache.other"
		c.late.Lock()   // want "nosleep: .*locks unlocked_call.cache.late"
		c.branch.Lock() // want "nosleep: .*locks unlocked_call.cache.branch"
		delete(c.m, 1)
		c.branch.Unlock()
		c.late.Unlock()
		c.other.Unlock()
	}})
}
