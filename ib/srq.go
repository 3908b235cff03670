package ib

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/ib/internal/observe"
	"verbena/uapi"
)

// SRQType is the type of a shared receive queue.
type SRQType = uapi.SRQType

const (
	SRQBasic = uapi.SRQTBasic // for the queue pairs that were created with the SRQ
	SRQXRC   = uapi.SRQTXRC   // for XRC target queue pairs of the SRQ's domain; each send request names the SRQ
)

// SRQAttr are the attributes of a shared receive queue. (struct ib_srq_attr)
type SRQAttr struct {
	MaxWR, MaxSGE uint32
	// Limit is a threshold: when fewer work requests remain, EventSRQLimitReached is raised once. 0 disables the event.
	Limit uint32
}

// SRQAttrMask names the valid fields of an SRQAttr. (enum ib_srq_attr_mask)
type SRQAttrMask = uapi.SRQAttrMask

const (
	SRQAttrMaxWR = uapi.SRQAttrMaxWR
	SRQAttrLimit = uapi.SRQAttrLimit
)

// SRQInitAttr holds the parameters of a new shared receive queue. (struct ib_srq_init_attr)
type SRQInitAttr struct {
	Type SRQType
	Attr SRQAttr // only SRQ.Modify arms Limit (ibv_create_srq(3))
	XRCD *XRCD   // SRQXRC
	CQ   *CQ     // SRQXRC: the completion queue
	// Event is called for asynchronous events of the queue. Event may not sleep. May be nil.
	Event func(srq *SRQ, e EventType)
}

// SRQ is a shared receive queue. (struct ib_srq)
type SRQ struct {
	object
	drv   DriverSRQ
	queue DriverSRQ // the same as drv, or an observer's wrapper of drv
	pd    *PD
	init  SRQInitAttr
	num   uint32

	pending atomic.Int32 // number of due events
	dead    atomic.Bool  // new events are dropped

	// UserData is for the consumer; the midlayer does not use it.
	UserData any
}

// CreateSRQ creates a shared receive queue. SRQ.Init returns the actual capacities. CreateSRQ returns EOPNOTSUPP if the
// driver lacks the method. CreateSRQ may sleep. (ib_create_srq)
func (pd *PD) CreateSRQ(init SRQInitAttr) (*SRQ, error) {
	defer pd.enterSleeping("PD.CreateSRQ").leave()
	return pd.createSRQ(init, nil)
}

func (pd *PD) createSRQ(init SRQInitAttr, u *Udata) (*SRQ, error) {
	d := pd.dev
	fail := func(err error) (*SRQ, error) { return nil, fmt.Errorf("create srq on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	drv, ok := As[SRQDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	if xrc := init.Type == SRQXRC; xrc != (init.XRCD != nil) || xrc != (init.CQ != nil) || init.Type > SRQXRC {
		return fail(fmt.Errorf("an SRQ of type XRC, and only this type, must have an XRC domain and a completion queue: %w",
			syscall.EINVAL))
	}
	if init.Attr.MaxWR == 0 || init.Attr.Limit > init.Attr.MaxWR {
		return fail(fmt.Errorf("invalid capacity of %d work requests or limit %d: %w",
			init.Attr.MaxWR, init.Attr.Limit, syscall.EINVAL))
	}
	srq := &SRQ{pd: pd, init: init}
	srq.initObject(d, kindSRQ, srq, &pd.object)
	if err := addUses(d, srq.referencedObjects()); err != nil {
		return fail(err)
	}
	drvInit := DriverSRQInit{PD: pd.drv, Type: init.Type, Attr: init.Attr}
	if init.Type == SRQXRC {
		drvInit.XRCD, drvInit.CQ = init.XRCD.drv, init.CQ.drv
	}
	var err error
	if srq.drv, err = drv.CreateSRQ(SRQHandle{srq}, &drvInit, u); err != nil {
		dropUses(srq.referencedObjects())
		return fail(err)
	}
	srq.init.Attr = drvInit.Attr
	srq.queue = wrapDriver(&srq.object, srq.drv, observe.QueueInfo{User: u != nil})
	if err := srq.finishCreate(srq.endCallbacksAndDestroy); err != nil {
		dropUses(srq.referencedObjects())
		return fail(err)
	}
	return srq, nil
}

func (srq *SRQ) referencedObjects() []*object {
	o := []*object{&srq.pd.object}
	if srq.init.Type == SRQXRC {
		o = append(o, &srq.init.XRCD.object, &srq.init.CQ.object)
	}
	return o
}

// Num returns the SRQ number, 24 bits. XRC senders name the queue by this number.
func (srq *SRQ) Num() uint32 { return srq.num }

// PD returns the domain of the queue.
func (srq *SRQ) PD() *PD { return srq.pd }

// Init returns the parameters of CreateSRQ, with the actual capacities.
func (srq *SRQ) Init() SRQInitAttr { return srq.init }

// Modify changes the attributes named by mask. Modify may sleep. (ib_modify_srq)
func (srq *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	defer srq.enterSleeping("SRQ.Modify").leave()
	return srq.modify(attr, mask, nil)
}

func (srq *SRQ) modify(attr SRQAttr, mask SRQAttrMask, u *Udata) error {
	err := srq.dev.checkActive()
	if err == nil && mask&^(SRQAttrMaxWR|SRQAttrLimit) != 0 {
		err = fmt.Errorf("attributes %#x: %w", uint32(mask), syscall.EINVAL)
	}
	if err == nil {
		err = srq.checkNotDestroyed()
	}
	if err == nil {
		err = srq.drv.Modify(&attr, mask, u)
	}
	if err != nil {
		return fmt.Errorf("modify srq %d on %s: %w", srq.num, srq.dev.name, err)
	}
	return nil
}

// Query returns the current attributes. The limit is 0 after it has been reached. Query may sleep. (ib_query_srq)
func (srq *SRQ) Query() (SRQAttr, error) {
	defer srq.enterSleeping("SRQ.Query").leave()
	var a SRQAttr
	err := srq.checkNotDestroyed()
	if err == nil {
		a, err = srq.drv.Query()
	}
	if err != nil {
		return a, fmt.Errorf("query srq %d on %s: %w", srq.num, srq.dev.name, err)
	}
	return a, nil
}

// PostRecv queues receive work requests and returns the number accepted; see [DriverSRQ]. PostRecv may not sleep.
// (ib_post_srq_recv)
func (srq *SRQ) PostRecv(wrs ...RecvWR) (int, error) { return srq.queue.PostRecv(wrs) }

// Raise reports an asynchronous event of the queue. A thread without locks calls the consumer's function later. Raise
// may not sleep. (ib_srq.event_handler)
func (h SRQHandle) Raise(e EventType) {
	srq := h.srq
	reportEvent(srq.subject, observe.Raised, nil)
	if srq.init.Event == nil || srq.dead.Load() {
		return
	}
	srq.pending.Add(1)
	srq.dev.callbacks.pushEvent(dueEvent{srq: srq, ev: Event{Device: srq.dev, Type: e}})
}

func (srq *SRQ) callEventHandler(e EventType) {
	runObservedCall(srq.subject, observe.Callback, "the event function of an SRQ", e, func() { srq.init.Event(srq, e) })
}

// Destroy frees the queue. Destroy returns EBUSY while a queue pair uses the queue. After Destroy has returned, the
// event function of the queue will not run again. Destroy must therefore not be called from the event function. Destroy
// may sleep. (ib_destroy_srq)
func (srq *SRQ) Destroy() error { return srq.destroyInContext(context.Background()) }

// DestroyContext is Destroy with a limit for the wait. When ctx ends, destruction continues, and the queue rejects all
// other calls. The next Destroy waits for the end of the destruction and returns the result. DestroyContext may sleep.
func (srq *SRQ) DestroyContext(ctx context.Context) error { return srq.destroyInContext(ctx) }

func (srq *SRQ) destroyInContext(ctx context.Context) error {
	err := srq.destroyObject(ctx, "SRQ.Destroy", srq.endCallbacksAndDestroy, func() { dropUses(srq.referencedObjects()) })
	if err != nil {
		return fmt.Errorf("destroy srq %d on %s: %w", srq.num, srq.dev.name, err)
	}
	return nil
}

// endCallbacksAndDestroy ends the callbacks first, like QP.destroy.
func (srq *SRQ) endCallbacksAndDestroy() error {
	awaitLastCallbacks(&srq.dev.callbacks, srq.drv)
	srq.dead.Store(true)
	srq.dev.callbacks.waitUntil(func() bool { return srq.pending.Load() == 0 })
	err := srq.drv.Destroy()
	if err != nil {
		srq.dead.Store(false)
	}
	return err
}
