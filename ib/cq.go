package ib

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// CQ is a completion queue. (struct ib_cq)
type CQ struct {
	object
	drv     DriverCQ
	handler func(*CQ)
	event   func(*CQ, EventType)
	entries atomic.Int64
	notify  notifier

	// UserData is the consumer's own; the midlayer does not look at it.
	UserData any
}

// CreateCQ makes a completion queue with room for at least attr.Entries completions. handler is called once for
// each time the queue was armed by ReqNotify and a completion came; never from a method's callchain, never twice
// at once. event is called with the queue's asynchronous errors. Neither may sleep; both may be nil. CreateCQ may
// sleep. (ib_create_cq)
func (d *Device) CreateCQ(attr CQAttr, handler func(*CQ), event func(*CQ, EventType), u *Udata) (*CQ, error) {
	fail := func(err error) (*CQ, error) { return nil, fmt.Errorf("create cq on %s: %w", d.name, err) }
	if err := d.usable(); err != nil {
		return fail(err)
	}
	if attr.Entries < 1 {
		return fail(fmt.Errorf("%d entries: %w", attr.Entries, syscall.EINVAL))
	}
	cq := &CQ{handler: handler, event: event}
	cq.dev = d
	cq.SetEntries(attr.Entries)
	drv, err := d.drv.CreateCQ(cq, attr, u)
	if err != nil {
		return fail(err)
	}
	cq.drv = drv
	cq.born(d, kindCQ)
	return cq, nil
}

// Driver is the driver's side.
func (cq *CQ) Driver() DriverCQ { return cq.drv }

// SetEntries is for the driver's CreateCQ and Resize: the capacity granted.
func (cq *CQ) SetEntries(n int) { cq.entries.Store(int64(n)) }

// Entries is the queue's capacity.
func (cq *CQ) Entries() int { return int(cq.entries.Load()) }

// Poll moves up to len(wc) completions, oldest first, into wc and returns how many. It may not sleep.
// (ib_poll_cq)
func (cq *CQ) Poll(wc []WC) (int, error) { return cq.drv.Poll(wc) }

// ReqNotify arms the queue for one call of the handler; see [DriverCQ]. It may not sleep. (ib_req_notify_cq)
func (cq *CQ) ReqNotify(flags NotifyFlags) (missed bool, err error) { return cq.drv.ReqNotify(flags) }

// Completed is for the driver: a completion has come that the queue was armed for. The handler is called later,
// by a thread that holds nothing. It may not sleep. (ib_cq.comp_handler)
func (cq *CQ) Completed() {
	if cq.handler != nil && !cq.notify.dead.Load() && cq.notify.raise() {
		cq.dev.callbacks.push(callback{cq: cq})
	}
}

// Raise is for the driver: an asynchronous error of the queue (EventCQErr). It may not sleep.
func (cq *CQ) Raise(e EventType) {
	if cq.event != nil && !cq.notify.dead.Load() {
		cq.notify.events.Add(1)
		cq.dev.callbacks.push(callback{cqEvent: cq, ev: Event{Device: cq.dev, Type: e}})
	}
}

// Resize changes the capacity. It may sleep. EOPNOTSUPP where the driver cannot. (ib_resize_cq)
func (cq *CQ) Resize(entries int, u *Udata) error {
	r, ok := cq.drv.(CQResizer)
	if !ok {
		return fmt.Errorf("resize cq on %s: %w", cq.dev.name, syscall.EOPNOTSUPP)
	}
	if err := cq.dev.usable(); err != nil {
		return fmt.Errorf("resize cq on %s: %w", cq.dev.name, err)
	}
	n, err := r.Resize(entries, u)
	if err != nil {
		return fmt.Errorf("resize cq on %s to %d: %w", cq.dev.name, entries, err)
	}
	cq.SetEntries(n)
	return nil
}

// Destroy frees the queue, EBUSY while a queue pair uses it. When it returns the handler is not running and will
// not run again; so it must not be called from the handler. It may sleep. (ib_destroy_cq)
func (cq *CQ) Destroy() error {
	if err := cq.kill(cq.drv.Destroy); err != nil {
		return fmt.Errorf("destroy cq on %s: %w", cq.dev.name, err)
	}
	cq.notify.dead.Store(true)
	cq.dev.callbacks.waitFor(func() bool {
		return notifyState(cq.notify.state.Load()) == notifyIdle && cq.notify.events.Load() == 0
	})
	return nil
}
