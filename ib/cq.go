package ib

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib/internal/observe"
	"verbena/internal/notify"
	"verbena/uapi"
)

// CQ is a completion queue. (struct ib_cq)
type CQ struct {
	object
	drv     DriverCQ
	queue   DriverCQ // the same as drv, or an observer's wrapper of drv
	handler func(*CQ)
	event   func(*CQ, EventType)
	entries atomic.Int64
	notify  atomicNotice
	runBy   *Hold // the Hold that runs the handler now, or nil; belongs to the thread of the handler

	// UserData is for the consumer; the midlayer does not use it.
	UserData any
}

// CQInit holds the parameters of a new completion queue. The functions must not sleep, and may be nil.
type CQInit struct {
	Entries int // minimum capacity
	Vector  int // the completion vector that reports completions
	Flags   CQFlags
	// Handler is called once each time ReqNotify has armed the queue and a completion arrives. Handler is never called
	// from the callchain of a method, and its calls never overlap.
	Handler func(*CQ)
	// Event is called for asynchronous errors of the queue.
	Event func(*CQ, EventType)
}

// CQFlags are the options of a completion queue. (enum ib_uverbs_ex_create_cq_flags)
type CQFlags = uapi.CQFlags

const (
	CQTimestampCompletion = uapi.CQFlagsTimestampCompletion
	CQIgnoreOverrun       = uapi.CQFlagsIgnoreOverrun
)

// CreateCQ makes a completion queue. CreateCQ may sleep. (ib_create_cq)
func (d *Device) CreateCQ(init CQInit) (*CQ, error) {
	defer d.enterSleeping("Device.CreateCQ").leave()
	return d.createCQ(init, nil)
}

func (d *Device) createCQ(init CQInit, u *Udata) (*CQ, error) {
	fail := func(err error) (*CQ, error) { return nil, fmt.Errorf("create cq on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	if init.Entries < 1 {
		return fail(fmt.Errorf("%d entries: %w", init.Entries, syscall.EINVAL))
	}
	cq := &CQ{handler: init.Handler, event: init.Event}
	cq.entries.Store(int64(init.Entries))
	cq.initObject(d, kindCQ, cq, nil)
	drv, err := d.drv.CreateCQ(CQHandle{cq: cq}, CQAttr{Entries: init.Entries, Vector: init.Vector, Flags: init.Flags}, u)
	if err != nil {
		return fail(err)
	}
	cq.drv = drv
	cq.queue = wrapDriver(&cq.object, drv, observe.QueueInfo{User: u != nil, Overruns: init.Flags&CQIgnoreOverrun != 0})
	if err := cq.finishCreate(cq.endCallbacksAndDestroy); err != nil {
		return fail(err)
	}
	return cq, nil
}

// Entries returns the capacity of the queue.
func (cq *CQ) Entries() int { return int(cq.entries.Load()) }

// Poll moves up to len(wc) completions, oldest first, into wc and returns how many. Further completions may arrive at
// any time, also after a call that returned fewer than len(wc), or none. Poll may not sleep. (ib_poll_cq)
func (cq *CQ) Poll(wc []WC) (int, error) { return cq.queue.Poll(wc) }

// ReqNotify arms the queue for one call of the handler; see [DriverCQ]. ReqNotify may not sleep. (ib_req_notify_cq)
func (cq *CQ) ReqNotify(flags NotifyFlags) (missed bool, err error) { return cq.queue.ReqNotify(flags) }

// Completed reports a completion on an armed queue. A thread without locks calls the handler later. The driver may
// therefore hold any lock. Completed may not sleep. (ib_cq.comp_handler)
func (h CQHandle) Completed() {
	if h.completed != nil {
		h.completed()
		return
	}
	cq := h.cq
	if reportEvent(cq.subject, observe.Completed, nil) != nil || cq.handler == nil {
		return
	}
	if cq.notify.applyTransition(notify.Notice.Completed) {
		cq.dev.callbacks.pushHandler(cq)
	}
}

// Raise reports an asynchronous error of the queue (EventCQErr). Raise may not sleep.
func (h CQHandle) Raise(e EventType) {
	cq := h.cq
	reportEvent(cq.subject, observe.Raised, nil)
	if cq.event != nil && cq.notify.applyTransition(notify.Notice.QueueEvent) {
		cq.dev.callbacks.pushEvent(dueEvent{cq: cq, ev: Event{Device: cq.dev, Type: e}})
	}
}

func (cq *CQ) callEventHandler(e EventType) {
	runObservedCall(cq.subject, observe.Callback, "the event function of a CQ", e, func() { cq.event(cq, e) })
}

// Resize changes the capacity. Resize returns EOPNOTSUPP if the driver lacks the method. Resize may sleep.
// (ib_resize_cq)
func (cq *CQ) Resize(entries int) error {
	defer cq.enterSleeping("CQ.Resize").leave()
	return cq.resize(entries, nil)
}

func (cq *CQ) resize(entries int, u *Udata) error {
	r, ok := As[CQResizer](cq.drv)
	if !ok {
		return fmt.Errorf("resize cq on %s: %w", cq.dev.name, syscall.EOPNOTSUPP)
	}
	if err := cq.dev.checkActive(); err != nil {
		return fmt.Errorf("resize cq on %s: %w", cq.dev.name, err)
	}
	if err := cq.checkNotDestroyed(); err != nil {
		return fmt.Errorf("resize cq on %s: %w", cq.dev.name, err)
	}
	if err := r.Resize(entries, u); err != nil {
		return fmt.Errorf("resize cq on %s to %d: %w", cq.dev.name, entries, err)
	}
	return nil
}

// Moderate delays notifications. A notification is sent when count completions have arrived, or when period has passed
// since the first of them. A period of 0 and a count of 0 or 1 turn moderation off. A period of 0 and a larger count
// have no limit of time. Completions that have arrived before the call count towards the new values. Moderate returns
// EOPNOTSUPP if the driver lacks the method. Moderate may sleep. (rdma_set_cq_moderation)
func (cq *CQ) Moderate(count int, period time.Duration) error {
	defer cq.enterSleeping("CQ.Moderate").leave()
	m, ok := As[CQModerator](cq.drv)
	err := cq.dev.checkActive()
	switch {
	case err != nil:
	case !ok:
		err = syscall.EOPNOTSUPP
	case count < 0 || count > math.MaxUint16 || period < 0 || period > math.MaxUint16*time.Microsecond:
		err = fmt.Errorf("%d completions, %v: %w", count, period, syscall.EINVAL)
	default:
		err = m.Moderate(count, period)
	}
	if err != nil {
		return fmt.Errorf("moderate cq on %s: %w", cq.dev.name, err)
	}
	return nil
}

// Destroy frees the queue. Destroy returns EBUSY while a queue pair uses the queue. After Destroy has returned, the
// handler is not running and will not run again. Destroy must therefore not be called from the handler. Destroy may
// sleep. (ib_destroy_cq)
func (cq *CQ) Destroy() error { return cq.destroyInContext(context.Background()) }

// DestroyContext is Destroy with a limit for the wait. When ctx ends, destruction continues, and the queue rejects all
// other calls. The next Destroy waits for the end of the destruction and returns the result. DestroyContext may sleep.
func (cq *CQ) DestroyContext(ctx context.Context) error { return cq.destroyInContext(ctx) }

func (cq *CQ) destroyInContext(ctx context.Context) error {
	err := cq.destroyObject(ctx, "CQ.Destroy", cq.endCallbacksAndDestroy, func() {})
	if err != nil {
		return fmt.Errorf("destroy cq on %s: %w", cq.dev.name, err)
	}
	return nil
}

// endCallbacksAndDestroy ends the callbacks first, because they use the driver's queue.
func (cq *CQ) endCallbacksAndDestroy() error {
	awaitLastCallbacks(&cq.dev.callbacks, cq.drv)
	cq.notify.applyTransition(notify.Notice.Die)
	cq.dev.callbacks.waitUntil(cq.notify.isQuiet)
	err := cq.queue.Destroy()
	if err != nil {
		if cq.notify.applyTransition(notify.Notice.Revive) {
			cq.dev.callbacks.pushHandler(cq)
		}
	}
	return err
}
