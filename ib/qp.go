package ib

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/ib/internal/observe"
)

// QP is a queue pair. (struct ib_qp)
type QP struct {
	object
	drv   DriverQP
	queue DriverQP // the same as drv, or an observer's wrapper of drv
	pd    *PD
	init  QPInitAttr
	num   uint32

	gid     atomic.Pointer[gidTableRef] // source GID
	pending atomic.Int32                // number of due events
	dead    atomic.Bool                 // new events are dropped

	// UserData is for the consumer; the midlayer does not use it.
	UserData any
}

// CreateQP creates a queue pair in state RESET. QP.Init returns the actual capacities. CreateQP may sleep.
// (ib_create_qp)
func (pd *PD) CreateQP(init QPInitAttr) (*QP, error) {
	defer pd.enterSleeping("PD.CreateQP").leave()
	return pd.createQP(init, nil)
}

func (pd *PD) createQP(init QPInitAttr, u *Udata) (*QP, error) {
	d := pd.dev
	fail := func(err error) (*QP, error) { return nil, fmt.Errorf("create qp on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	if err := init.checkQueuesSuitType(); err != nil {
		return fail(err)
	}
	qp := &QP{pd: pd, init: init}
	qp.initObject(d, kindQP, qp, &pd.object)
	if err := addUses(d, qp.referencedObjects()); err != nil {
		return fail(err)
	}
	drvInit := qp.init.newDriverQPInit(pd)
	var err error
	if qp.drv, err = d.drv.CreateQP(QPHandle{qp: qp}, &drvInit, u); err != nil {
		dropUses(qp.referencedObjects())
		return fail(err)
	}
	qp.init.Cap = drvInit.Cap
	qp.queue = wrapDriver(&qp.object, qp.drv, observe.QueueInfo{User: u != nil})
	if err := qp.finishCreate(qp.endCallbacksAndDestroy); err != nil {
		dropUses(qp.referencedObjects())
		return fail(err)
	}
	return qp, nil
}

// newDriverQPInit returns the parameters in the form that the driver receives.
func (init *QPInitAttr) newDriverQPInit(pd *PD) DriverQPInit {
	di := DriverQPInit{PD: pd.drv, Cap: init.Cap, SigAll: init.SigAll, Type: init.Type, Port: init.Port}
	if init.SendCQ != nil {
		di.SendCQ = init.SendCQ.drv
	}
	if init.RecvCQ != nil {
		di.RecvCQ = init.RecvCQ.drv
	}
	if init.SRQ != nil {
		di.SRQ = init.SRQ.drv
	}
	if init.XRCD != nil {
		di.XRCD = init.XRCD.drv
	}
	return di
}

// checkQueuesSuitType returns an error if the queues and domains do not suit the type.
func (init *QPInitAttr) checkQueuesSuitType() error {
	target, initiator := init.Type == QPTypeXRCTgt, init.Type == QPTypeXRCInit
	var what string
	switch {
	case target != (init.XRCD != nil):
		what = "an XRC target, and no other, has an XRC domain"
	case target && (init.SendCQ != nil || init.RecvCQ != nil):
		what = "an XRC target has no completion queues"
	case !target && init.SendCQ == nil || !target && !initiator && init.RecvCQ == nil:
		what = "a queue pair needs two completion queues"
	case init.SRQ != nil && (target || initiator || init.SRQ.init.Type != SRQBasic):
		what = "a basic shared receive queue is for queue pairs other than XRC, an XRC one is named by the sender"
	default:
		return nil
	}
	return fmt.Errorf("%s: %w", what, syscall.EINVAL)
}

func (qp *QP) referencedObjects() []*object {
	o := []*object{&qp.pd.object}
	if qp.init.SendCQ != nil {
		o = append(o, &qp.init.SendCQ.object)
	}
	if qp.init.RecvCQ != nil {
		o = append(o, &qp.init.RecvCQ.object)
	}
	if qp.init.SRQ != nil {
		o = append(o, &qp.init.SRQ.object)
	}
	if qp.init.XRCD != nil {
		o = append(o, &qp.init.XRCD.object)
	}
	return o
}

// addUses takes a use count of all objects. If this fails, addUses takes none.
func addUses(d *Device, objects []*object) error {
	for i, o := range objects {
		if err := o.addUse(d); err != nil {
			dropUses(objects[:i])
			return err
		}
	}
	return nil
}

func dropUses(objects []*object) {
	for _, o := range objects {
		o.dropUse()
	}
}

// Num returns the number of the queue pair, 24 bits.
func (qp *QP) Num() uint32 { return qp.num }

// PD returns the domain of the queue pair.
func (qp *QP) PD() *PD { return qp.pd }

// Init returns the parameters of CreateQP, with the actual capacities.
func (qp *QP) Init() QPInitAttr { return qp.init }

// Type returns the transport service type.
func (qp *QP) Type() QPType { return qp.init.Type }

// Modify changes the attributes named by mask, including the state. Modify returns EINVAL if mask does not suit the
// type and the transition, or if a value is invalid. RESET discards the outstanding requests, and restores the
// attributes of a new queue pair. Completions of the queue pair in a CQ may remain there, or be lost. Modify may sleep.
// (ib_modify_qp)
func (qp *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	defer qp.enterSleeping("QP.Modify").leave()
	return qp.modify(attr, mask, nil)
}

// ModifyContext is Modify with a limit for the wait. When ctx ends, the call continues in the driver. A later Modify
// may then be executed first. ModifyContext may sleep.
func (qp *QP) ModifyContext(ctx context.Context, attr QPAttr, mask QPAttrMask) error {
	defer qp.enterSleeping("QP.ModifyContext").leave()
	return runInContext(ctx, func() error {
		defer qp.enterSleeping("QP.Modify").leave()
		return qp.modify(attr, mask, nil)
	})
}

func (qp *QP) modify(attr QPAttr, mask QPAttrMask, u *Udata) error {
	toEnd := mask&QPAttrState != 0 && (attr.State == QPErr || attr.State == QPReset)
	fail := func(err error) error {
		if e := qp.dev.checkActive(); e != nil && !toEnd {
			err = e // the earlier error may be a consequence of e
		}
		return fmt.Errorf("modify qp %d on %s: %w", qp.num, qp.dev.name, err)
	}
	if err := qp.dev.checkActive(); err != nil && !toEnd {
		return fail(err)
	}
	if err := qp.checkNotDestroyed(); err != nil {
		return fail(err)
	}
	if mask&QPAttrAV == 0 {
		if err := qp.queue.Modify(&attr, mask, u); err != nil {
			return fail(err)
		}
		return nil
	}
	gid, err := qp.dev.takeGIDRef(&attr.AH)
	if err != nil {
		return fail(err)
	}
	if err := qp.queue.Modify(&attr, mask, u); err != nil {
		gid.release()
		return fail(err)
	}
	qp.gid.Swap(gid).release()
	return nil
}

// Query returns the current attributes. Query may sleep. (ib_query_qp)
func (qp *QP) Query(mask QPAttrMask) (QPAttr, QPInitAttr, error) {
	defer qp.enterSleeping("QP.Query").leave()
	var a QPAttr
	err := qp.checkNotDestroyed()
	if err == nil {
		a, err = qp.drv.Query(mask)
	}
	if err != nil {
		return a, qp.Init(), fmt.Errorf("query qp %d on %s: %w", qp.num, qp.dev.name, err)
	}
	return a, qp.Init(), nil
}

// Peek returns the state and, if the driver implements [QPPeeker], recent values of DestQPN, RQPSN and SQPSN. Unlike
// Query it does not wait for the work of the queue pair. Peek may not sleep.
func (qp *QP) Peek() QPAttr {
	if p, ok := As[QPPeeker](qp.drv); ok {
		return p.Peek()
	}
	return QPAttr{State: qp.drv.State()}
}

// State returns the current state, and the last one of a destroyed queue pair. State may not sleep.
func (qp *QP) State() QPState { return qp.drv.State() }

// PostSend queues work requests and returns the number accepted; see [DriverQP]. PostSend may not sleep. (ib_post_send)
func (qp *QP) PostSend(wrs ...SendWR) (int, error) { return qp.queue.PostSend(wrs) }

// PostRecv queues receive work requests and returns the number accepted. PostRecv may not sleep. (ib_post_recv)
func (qp *QP) PostRecv(wrs ...RecvWR) (int, error) { return qp.queue.PostRecv(wrs) }

// Raise reports an asynchronous event of the queue pair. A thread without locks calls the consumer's function later.
// Raise may not sleep. (ib_qp.event_handler)
func (h QPHandle) Raise(e EventType) {
	if h.raise != nil {
		h.raise(e)
		return
	}
	qp := h.qp
	reportEvent(qp.subject, observe.Raised, nil)
	if qp.init.Event == nil || qp.dead.Load() {
		return
	}
	qp.pending.Add(1)
	qp.dev.callbacks.pushEvent(dueEvent{qp: qp, ev: Event{Device: qp.dev, Type: e}})
}

func (qp *QP) callEventHandler(e EventType) {
	runObservedCall(qp.subject, observe.Callback, "the event function of a QP", e, func() { qp.init.Event(qp, e) })
}

// Destroy frees the queue pair. Destroy returns EBUSY while the queue pair is a member of a multicast group. After
// Destroy has returned, no work of the queue pair is in flight, and its event function will not run again. Destroy may
// sleep. (ib_destroy_qp)
func (qp *QP) Destroy() error { return qp.destroyInContext(context.Background()) }

// DestroyContext is Destroy with a limit for the wait. When ctx ends, destruction continues, and the queue pair rejects
// all other calls. The next Destroy waits for the end of the destruction and returns the result. DestroyContext may
// sleep.
func (qp *QP) DestroyContext(ctx context.Context) error { return qp.destroyInContext(ctx) }

func (qp *QP) destroyInContext(ctx context.Context) error {
	err := qp.destroyObject(ctx, "QP.Destroy", qp.endCallbacksAndDestroy, func() {
		qp.gid.Swap(nil).release()
		dropUses(qp.referencedObjects())
	})
	if err != nil {
		return fmt.Errorf("destroy qp %d on %s: %w", qp.num, qp.dev.name, err)
	}
	return nil
}

// endCallbacksAndDestroy ends the callbacks first, because they may use the driver's queue pair. If the driver's method
// fails, an event may be lost. The loss is acceptable because the consumer wants to destroy the queue pair.
func (qp *QP) endCallbacksAndDestroy() error {
	awaitLastCallbacks(&qp.dev.callbacks, qp.drv)
	qp.dead.Store(true)
	qp.dev.callbacks.waitUntil(func() bool { return qp.pending.Load() == 0 })
	err := qp.queue.Destroy()
	if err != nil {
		qp.dead.Store(false)
	}
	return err
}
