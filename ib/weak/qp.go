package weak

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// qp is a queue pair. A qp stores delayed sends, and posts them to the inner queue pair in order.
type qp struct {
	ib.DriverQP
	d              *driver
	obj            ib.QPHandle
	ord            uint64 // number in creation order
	pd             ib.DriverPD
	sendCQ, recvCQ *cq // nil if there is no CQ or the CQ belongs to another driver
	init           ib.DriverQPInit
	room           ib.QPCap

	sqePosts atomic.Int32 // number of posts in SQE

	// the IDs that a program has given to the next requests (Sends)
	nextSendID, nextRecvID atomic.Uint64

	rights atomic.Bool // the peer has had access rights since RESET

	// mu is held while requests are posted to the inner queue pair. Lock order: mu, then cq.mu.
	mu           sync.Mutex
	deferred     ib.SendQueuer // nil: requests are executed when they are posted
	unrung       bool          // requests were queued and not executed
	held         []*weakRequest
	sends, recvs uint64         // number posted
	reading      []*weakRequest // requests in the inner queue pair with targets that are filled late
	// repeats holds the READs that may be executed again. Changes are also under the mu of the send queue's cq.
	repeats []*weakRequest
	// the long holds of the send queue
	sourceHolds, completionHolds, readHolds holdPlan

	events eventDelays
	writes heldWrites

	// The next fields are protected by driver.mu.
	out    []*weakRequest // sends for which neither their own completion nor a later completion has been polled
	in     []*weakRequest // posted receives
	shared uint64         // number of polled completions of receives from a shared receive queue
	connection
}

// connection holds the attributes that the two sides of a connection must agree on.
type connection struct {
	// readsSent and readsServed are the numbers of READs and atomics that the queue pair keeps in flight, and executes for
	// its peer. dest is the number of the peer, and toOwnDevice reports whether the peer is on the same device.
	readsSent, readsServed int
	sendPSN, recvPSN       uint32
	pathMTU                ib.MTU
	dest                   uint32
	toOwnDevice            bool
}

// requestKind holds the properties by which the inner driver accepts or rejects a request.
type requestKind struct {
	service ib.QPType
	opcode  ib.WROpcode
	flags   ib.SendFlags
	inline  bool
}

// The next constants are the maximum lengths in bytes of delayed requests. The inner driver might reject a longer
// request because of its length.
const (
	maxHeld     = 1 << 16
	maxDatagram = 256 // the smallest MTU
)

// Unwrap gives access to the optional interfaces of the inner queue pair.
func (q *qp) Unwrap() ib.DriverQP { return q.DriverQP }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	if u != nil {
		return d.Driver.CreateQP(h, init, u)
	}
	d.delayCall()
	if err := d.failCall("CreateQP"); err != nil {
		return nil, err
	}
	asked := init.Cap
	if d.Relay == nil { // the wrapper has rounded the capacities up
		if err := d.Choices.CheckCap(init.Type, &asked); err != nil {
			return nil, fmt.Errorf("create a queue pair: %w", err)
		}
	}
	init.FixedNumber = d.hasChoice(SameNumbers)
	q := &qp{d: d, obj: h, pd: init.PD}
	q.events.qp = q
	if d.hasChoice(LateEvent) {
		h = h.Redirect(q.events.delayEvent)
	}
	if d.holdsWrites() {
		init.Writes = q
	}
	var err error
	if q.DriverQP, err = d.Driver.CreateQP(h, init, nil); err != nil {
		return nil, err
	}
	if d.hasChoice(ExactRoom) {
		init.Cap = asked
	}
	q.init, q.room = *init, init.Cap
	if d.Relay != nil {
		q.deferred, _ = ib.As[ib.SendQueuer](q.DriverQP)
	}
	q.sendCQ, _ = init.SendCQ.(*cq)
	q.recvCQ, _ = init.RecvCQ.(*cq)
	if q.isUnordered() {
		q.sendCQ.hides.Store(true)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made++
	q.ord = d.made
	d.qps[h.QP()] = q
	return q, nil
}

// qpsWithDelayedSends returns the queue pairs with delayed sends that complete on c.
func (d *driver) qpsWithDelayedSends(c *cq) (some []*qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.later {
		if q.sendCQ == c {
			some = append(some, q)
		}
	}
	return some
}

// Query implements ib.DriverQP.
func (q *qp) Query(mask ib.QPAttrMask) (ib.QPAttr, error) {
	q.d.delayCall()
	a, err := q.DriverQP.Query(mask)
	a.SQDraining = a.SQDraining || q.events.isDraining()
	if q.d.hasChoice(ExactRoom) {
		a.Cap = q.room
	}
	return a, err
}

// SetNextID implements Sends.
func (q *qp) SetNextID(send bool, id uint64) {
	if send {
		q.nextSendID.Store(id)
	} else {
		q.nextRecvID.Store(id)
	}
}

// programIDOf returns the program's ID of a request that is posted with an ID.
func (q *qp) programIDOf(id uint64, next *atomic.Uint64) uint64 {
	if q.d.Relay == nil {
		return id
	}
	return next.Load()
}

// trimAndCheckFull reports whether the queue has no space for a request. Without ExactRoom the list may also contain
// completed requests, up to a limit.
func (q *qp) trimAndCheckFull(list *[]*weakRequest, c *cq, room uint32) bool {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if n := len(*list) - 2*int(room) - 64; n > 0 && !q.d.hasChoice(ExactRoom) && c != nil {
		c.orphans = append(c.orphans, (*list)[:n]...)
		*list = slices.Delete(*list, 0, n)
	}
	return len(*list) >= int(room)
}

// recordPolledRequest records that the consumer has polled the completion of a request. Earlier hidden requests are
// done as well, if requests are in order.
func (q *qp) recordPolledRequest(r *weakRequest) {
	for _, x := range q.removeRequestsThrough(r) {
		x.storeHiddenData()
	}
}

// removeRequestsThrough removes a request from its list, together with the sends before it, if requests are in order.
func (q *qp) removeRequestsThrough(r *weakRequest) (done []*weakRequest) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	list := &q.in
	if r.send {
		list = &q.out
	}
	i := slices.Index(*list, r)
	if !r.send {
		if i >= 0 {
			*list = slices.Delete(*list, i, i+1)
		}
		return nil
	}
	first := 0
	if q.isUnordered() {
		first = max(i, 0)
	}
	done = slices.Clone((*list)[first : i+1])
	for _, x := range done {
		q.d.removeRequest(x)
	}
	*list = slices.Delete(*list, first, i+1)
	return done
}

// PostRecv implements ib.DriverQP.
func (q *qp) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n = range wrs {
		if err := q.d.failPost(); err != nil {
			return n, err
		}
		wr := wrs[n]
		if q.d.hasChoice(ExactRoom) && q.init.SRQ == nil {
			if len(wr.SGList) > int(q.room.MaxRecvSGE) {
				return n, fmt.Errorf("%d scatter/gather elements exceed the limit %d: %w",
					len(wr.SGList), q.room.MaxRecvSGE, syscall.EINVAL)
			}
			if q.trimAndCheckFull(&q.in, q.recvCQ, q.room.MaxRecvWR) && q.DriverQP.State() != ib.QPReset {
				return n, fmt.Errorf("%d receives are outstanding: %w", q.room.MaxRecvWR, syscall.ENOMEM)
			}
		}
		q.recvs++
		q.d.countPost()
		r := &weakRequest{id: wr.ID, qp: q, signaled: true, seq: q.recvs, programID: q.programIDOf(wr.ID, &q.nextRecvID)}
		wr.SGList, r.targets = q.d.translateElements(wr.SGList, q.pd, q.recvCQ != nil && q.d.fillsReceivesLate(),
			q.peerMayAccess())
		if q.d.hasChoice(PoisonedTarget) {
			r.poisonTargets()
		}
		wr.ID = q.d.assignRequestID(r).num
		q.d.mu.Lock()
		q.in = append(q.in, r)
		q.d.mu.Unlock()
		if k, err := q.DriverQP.PostRecv([]ib.RecvWR{wr}); k == 0 {
			r.storeData(0)
			q.d.mu.Lock()
			delete(q.d.reqs, r.num)
			q.in = slices.DeleteFunc(q.in, func(x *weakRequest) bool { return x == r })
			q.d.mu.Unlock()
			return n, err
		}
	}
	return len(wrs), nil
}

// Modify implements ib.DriverQP.
func (q *qp) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	q.d.delayCall()
	const duringDrain = ib.QPAttrState | ib.QPAttrCurState | ib.QPAttrEnSQDAsyncNotify
	if q.events.isDraining() && (mask&ib.QPAttrState == 0 || attr.State == ib.QPSQD || attr.State == ib.QPRTS) &&
		mask&^duringDrain != 0 {
		return fmt.Errorf("the send queue is being drained, and attributes %#x cannot change: %w",
			uint32(mask&^duringDrain), syscall.EINVAL)
	}
	if err := q.d.Choices.checkReads(attr, mask); err != nil {
		return fmt.Errorf("modify the queue pair: %w", err)
	}
	if mask&ib.QPAttrAccessFlags != 0 && attr.AccessFlags&peerVisibleRights != 0 {
		q.rights.Store(true)
	}
	if mask&ib.QPAttrState != 0 && attr.State < ib.QPSQD && attr.State != ib.QPReset && q.DriverQP.State() < ib.QPRTS {
		if err := q.d.failCall("modify the queue pair"); err != nil {
			return err
		}
	}
	if mask&ib.QPAttrState != 0 && attr.State == ib.QPSQD && q.DriverQP.State() == ib.QPRTS {
		q.events.beginDraining()
	}
	if err := q.DriverQP.Modify(attr, mask, u); err != nil {
		return err
	}
	executeAllWrites()
	q.StoreWrites()
	q.recordConnection(attr, mask)
	if mask&ib.QPAttrState == 0 {
		return nil
	}
	if attr.State == ib.QPReset {
		q.events.endDelays(true)
		q.rights.Store(false)
		q.dropOutstandingRequests()
	}
	q.d.scheduleDelayStep()
	return nil
}

// peerMayAccess reports whether the peer may access memory through the queue pair before a request that is posted now
// completes.
func (q *qp) peerMayAccess() bool {
	if q.init.Type == ib.QPTypeUD {
		return false
	}
	return q.rights.Load() || q.DriverQP.State() < ib.QPRTS // Modify to RTR or RTS may set rights
}

// dropOutstandingRequests drops the outstanding requests.
func (q *qp) dropOutstandingRequests() {
	q.mu.Lock()
	defer q.mu.Unlock()
	held := q.held
	q.held, q.reading = nil, nil
	q.dropRepeats()
	q.removeFromDelayedQPs()
	q.freeAHCopies(held...)
	q.d.dropRequests(held...)
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	for _, r := range q.in {
		r.storeData(0)
	}
	for _, x := range []struct {
		c    *cq
		list *[]*weakRequest
	}{{q.sendCQ, &q.out}, {q.recvCQ, &q.in}} {
		if x.c != nil {
			x.c.orphans = append(x.c.orphans, *x.list...)
		}
		*x.list = nil
	}
}

// Destroy implements ib.DriverQP.
func (q *qp) Destroy() error {
	q.d.delayCall()
	q.mu.Lock()
	held := q.held
	q.held = nil
	q.mu.Unlock()
	if err := q.DriverQP.Destroy(); err != nil {
		q.mu.Lock()
		q.held = append(held, q.held...)
		q.mu.Unlock()
		return err
	}
	executeAllWrites()
	q.StoreWrites()
	q.freeAHCopies(held...)
	q.d.dropRequests(held...)
	q.events.endDelays(false)
	q.dropOutstandingRequests()
	q.d.mu.Lock()
	delete(q.d.repeating, q)
	delete(q.d.qps, q.obj.QP())
	var cqs []*cq
	for c := range q.d.cqs {
		cqs = append(cqs, c)
	}
	q.d.mu.Unlock()
	for _, c := range cqs {
		c.forgetQP(q.obj.QP())
	}
	return nil
}
