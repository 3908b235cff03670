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
	queue DriverQP // drv, or what an observer puts before it
	pd    *PD
	init  QPInitAttr
	num   uint32

	gid     atomic.Pointer[gidHold] // of the source
	pending atomic.Int32            // events that are due
	dead    atomic.Bool             // no event is to be delivered any more

	// UserData is the consumer's own; the midlayer does not look at it.
	UserData any
}

// CreateQP makes a queue pair in state RESET; the capacities granted are in QP.Init. It may sleep. (ib_create_qp)
func (pd *PD) CreateQP(init QPInitAttr) (*QP, error) {
	defer pd.sleeps("PD.CreateQP").leave()
	return pd.createQP(init, nil)
}

func (pd *PD) createQP(init QPInitAttr, u *Udata) (*QP, error) {
	d := pd.dev
	fail := func(err error) (*QP, error) { return nil, fmt.Errorf("create qp on %s: %w", d.name, err) }
	if err := d.begin(); err != nil {
		return fail(err)
	}
	defer d.end()
	if err := init.check(); err != nil {
		return fail(err)
	}
	qp := &QP{pd: pd, init: init}
	qp.bind(d, kindQP, qp, &pd.object)
	if err := getAll(d, qp.refersTo()); err != nil {
		return fail(err)
	}
	drvInit := qp.init.forDriver(pd)
	var err error
	if qp.drv, err = d.drv.CreateQP(QPHandle{qp: qp}, &drvInit, u); err != nil {
		putAll(qp.refersTo())
		return fail(err)
	}
	qp.init.Cap = drvInit.Cap
	qp.queue = before(&qp.object, qp.drv, observe.Made{User: u != nil})
	if err := qp.born(qp.destroy); err != nil {
		putAll(qp.refersTo())
		return fail(err)
	}
	return qp, nil
}

// forDriver is what the driver makes a queue pair of.
func (init *QPInitAttr) forDriver(pd *PD) DriverQPInit {
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

// check tells whether the queues and domains suit the type.
func (init *QPInitAttr) check() error {
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

func (qp *QP) refersTo() []*object {
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

// getAll takes a use count of each object, or of none.
func getAll(d *Device, objects []*object) error {
	for i, o := range objects {
		if err := o.get(d); err != nil {
			putAll(objects[:i])
			return err
		}
	}
	return nil
}

func putAll(objects []*object) {
	for _, o := range objects {
		o.put()
	}
}

// Num is the queue pair's number, 24 bits.
func (qp *QP) Num() uint32 { return qp.num }

// PD is the domain that the queue pair belongs to.
func (qp *QP) PD() *PD { return qp.pd }

// Init is what the queue pair was made with, with the capacities that the driver granted.
func (qp *QP) Init() QPInitAttr { return qp.init }

// Type is the service type.
func (qp *QP) Type() QPType { return qp.init.Type }

// Modify changes the attributes named by mask, among them the state. EINVAL when the mask does not suit the type
// and the transition, or a value is wrong. It may sleep. (ib_modify_qp)
func (qp *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	defer qp.sleeps("QP.Modify").leave()
	return qp.change(attr, mask, nil)
}

// ModifyContext is Modify with a bound for the wait. When ctx ends, the call goes on in the driver; another one may overtake
// it. It may sleep.
func (qp *QP) ModifyContext(ctx context.Context, attr QPAttr, mask QPAttrMask) error {
	defer qp.sleeps("QP.ModifyContext").leave()
	return inContext(ctx, func() error {
		defer qp.sleeps("QP.Modify").leave()
		return qp.change(attr, mask, nil)
	})
}

func (qp *QP) change(attr QPAttr, mask QPAttrMask, u *Udata) error {
	toEnd := mask&QPAttrState != 0 && (attr.State == QPErr || attr.State == QPReset)
	fail := func(err error) error {
		if e := qp.dev.usable(); e != nil && !toEnd {
			err = e // whatever else is wrong may come of that
		}
		return fmt.Errorf("modify qp %d on %s: %w", qp.num, qp.dev.name, err)
	}
	if err := qp.dev.usable(); err != nil && !toEnd {
		return fail(err)
	}
	if err := qp.live(); err != nil {
		return fail(err)
	}
	if mask&QPAttrAV == 0 {
		if err := qp.queue.Modify(&attr, mask, u); err != nil {
			return fail(err)
		}
		return nil
	}
	gid, err := qp.dev.holdGID(&attr.AH)
	if err != nil {
		return fail(err)
	}
	if err := qp.queue.Modify(&attr, mask, u); err != nil {
		gid.put()
		return fail(err)
	}
	qp.gid.Swap(gid).put()
	return nil
}

// Query reports the present attributes. It may sleep. (ib_query_qp)
func (qp *QP) Query(mask QPAttrMask) (QPAttr, QPInitAttr, error) {
	defer qp.sleeps("QP.Query").leave()
	var a QPAttr
	err := qp.live()
	if err == nil {
		a, err = qp.drv.Query(mask)
	}
	if err != nil {
		return a, qp.Init(), fmt.Errorf("query qp %d on %s: %w", qp.num, qp.dev.name, err)
	}
	return a, qp.Init(), nil
}

// Peek reports State and, where the driver implements [QPPeeker], DestQPN, RQPSN and SQPSN, as they were a moment ago. Unlike
// Query it does not wait for the work of the queue pair. It may not sleep.
func (qp *QP) Peek() QPAttr {
	if p, ok := As[QPPeeker](qp.drv); ok {
		return p.Peek()
	}
	return QPAttr{State: qp.drv.State()}
}

// State is the present state. It may not sleep.
func (qp *QP) State() QPState { return qp.drv.State() }

// PostSend queues work requests and returns how many were taken; see [DriverQP]. It may not sleep. (ib_post_send)
func (qp *QP) PostSend(wrs ...SendWR) (int, error) { return qp.queue.PostSend(wrs) }

// PostRecv queues receive work requests and returns how many were taken. It may not sleep. (ib_post_recv)
func (qp *QP) PostRecv(wrs ...RecvWR) (int, error) { return qp.queue.PostRecv(wrs) }

// Raise reports an asynchronous event of the queue pair. The consumer's function is called later, by a thread that holds
// nothing. It may not sleep. (ib_qp.event_handler)
func (h QPHandle) Raise(e EventType) {
	if h.raise != nil {
		h.raise(e)
		return
	}
	qp := h.qp
	note(qp.subject, observe.Raised, nil)
	if qp.init.Event == nil || qp.dead.Load() {
		return
	}
	qp.pending.Add(1)
	qp.dev.callbacks.pushEvent(callback{qp: qp, ev: Event{Device: qp.dev, Type: e}})
}

func (qp *QP) callEvent(e EventType) {
	callBack(qp.subject, observe.Callback, "the event function of a QP", e, func() { qp.init.Event(qp, e) })
}

// Destroy frees the queue pair, EBUSY while it is in a multicast group. When it returns nothing of it is in flight and its event function will not run
// again. It may sleep. (ib_destroy_qp)
func (qp *QP) Destroy() error { return qp.destroyIn(context.Background()) }

// DestroyContext is Destroy with a bound for the wait. When ctx ends, the call goes on: the queue pair is refused to all others, and
// another Destroy joins it. It may sleep.
func (qp *QP) DestroyContext(ctx context.Context) error { return qp.destroyIn(ctx) }

func (qp *QP) destroyIn(ctx context.Context) error {
	f, err := qp.destroys("QP.Destroy")
	defer f.leave()
	if err == nil {
		err = qp.end(ctx, "QP.Destroy", qp.destroy, func() {
			qp.gid.Swap(nil).put()
			putAll(qp.refersTo())
		})
	}
	if err != nil {
		return fmt.Errorf("destroy qp %d on %s: %w", qp.num, qp.dev.name, err)
	}
	return nil
}

// destroy ends the callbacks first, since they may use the driver's queue pair. An event that is lost when the driver
// refuses is of no interest to who is about to try again.
func (qp *QP) destroy() error {
	qp.dead.Store(true)
	qp.dev.callbacks.waitFor(func() bool { return qp.pending.Load() == 0 })
	err := qp.queue.Destroy()
	if err != nil {
		qp.dead.Store(false)
	}
	return err
}
