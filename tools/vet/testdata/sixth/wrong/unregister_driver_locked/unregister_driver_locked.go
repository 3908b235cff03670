// Package unregister_driver_locked unregisters devices under locks that the methods of their drivers take.
package unregister_driver_locked

import (
	"context"
	"sync"

	"verbena/ib"
)

// Counted is a driver with a lock for the number of its completion queues.
type Counted struct {
	ib.Driver
	mu     sync.Mutex
	core   *ib.Core
	handle *ib.DeviceHandle
	n      int
}

func (d *Counted) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	d.mu.Lock()
	d.n++
	d.mu.Unlock()
	return d.Driver.CreateCQ(h, attr, u)
}

func guarded[T any](l sync.Locker, f func() T) T {
	l.Lock()
	defer l.Unlock()
	return f()
}

func (d *Counted) Stop() error {
	return guarded(&d.mu, d.unregister) // want "hotplug: .* with .*Counted.mu held, for which .*CreateCQ.* may wait"
}

func (d *Counted) unregister() error { return d.core.Unregister(d.handle) }

// Table is a driver with a lock that only its queue pairs take.
type Table struct {
	ib.Driver
	mu    sync.RWMutex
	pairs map[*pair]bool
}

type pair struct {
	ib.DriverQP
	t *Table
}

func (t *Table) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	q, err := t.Driver.CreateQP(h, init, u)
	return &pair{q, t}, err
}

func (q *pair) Destroy() error {
	q.forget()
	return q.DriverQP.Destroy()
}

func (q *pair) forget() {
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	delete(q.t.pairs, q)
}

func (t *Table) Reset(core *ib.Core, h *ib.DeviceHandle) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.pairs) == 0 {
		return nil
	}
	return core.UnregisterContext(context.Background(), h) // want "hotplug: .* with .*Table.mu held, for which .*Destroy.* may wait"
}

// Chain passes the function on to a second helper.
func (t *Table) Chain(core *ib.Core, h *ib.DeviceHandle) error {
	return t.first(func() error { return core.Register(h) }) // want "hotplug: .*Table.mu held"
}

func (t *Table) first(f func() error) error { return t.second(f) }

func (t *Table) second(f func() error) error {
	t.mu.Lock()
	err := f()
	t.mu.Unlock()
	return err
}
