package loopback

import (
	"fmt"
	"slices"
	"syscall"

	"verbena/ib"
)

// QP is a queue pair. It implements ib.DriverQP.
type QP struct {
	dev    *Device
	obj    ib.QPHandle
	pd     *pd
	xrcd   *xrcd           // the domain of an XRC target
	user   ib.UserContext  // nil for a consumer in this process
	init   ib.DriverQPInit // with the actual capacities
	sendCQ completionQueue // nil for an XRC target
	recvCQ completionQueue // nil: XRC

	// The next fields are protected by Device.mu.
	state   ib.QPState
	attr    ib.QPAttr
	sq      ring[sendWQE]
	own     recvQueue
	rq      *recvQueue        // the queue pair's own receive queue, or the shared one
	waiting bool              // the first send has begun, and waits for a receive or until the peer leaves INIT
	busy    bool              // a send that was removed from sq is being executed
	usedCQs []completionQueue // for an XRC target: CQs of the shared receive queues that it has used
}

// sendWQE is an accepted send work request. The slices belong to the slot and are reused.
type sendWQE struct {
	wr     ib.SendWR // without the memory to which it refers
	sges   []ib.SGE
	inline []byte
	ah     ib.AHAttr
	ahPD   *pd // nil if there is no address handle
	bind   ib.BindMW
	window *memoryWindow // for a bind
	region uint32        // for a bind: the key of the region
	reg    ib.FastReg
	fast   *fastMR // for a registration; nil if the region is not for fast registration
}

// recvWQE is an accepted receive work request.
type recvWQE struct {
	id   uint64
	sges []ib.SGE
}

// recvQueue is the receive queue of a queue pair, or a shared receive queue. A recvQueue is protected by Device.mu.
type recvQueue struct {
	ring[recvWQE]
	maxSGE uint32
	pd     *pd

	srq   *SRQ // nil: not shared
	limit uint32
	xrcd  *xrcd
	cq    completionQueue // for XRC: used in place of the CQ of the queue pair
}

// CreateQP implements ib.Driver.
func (d *Device) CreateQP(obj ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	c := &init.Cap
	switch init.Type {
	case ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCInit, ib.QPTypeXRCTgt, ib.QPTypeSRD:
	default:
		return nil, fmt.Errorf("unsupported type %v: %w", init.Type, syscall.EOPNOTSUPP)
	}
	if c.MaxSendWR > maxWR || c.MaxRecvWR > maxWR || c.MaxSendSGE > maxSGE || c.MaxRecvSGE > maxSGE ||
		c.MaxInlineData > maxInline {
		return nil, fmt.Errorf("invalid capacities %+v: %w", *c, syscall.EINVAL)
	}
	q := &QP{dev: d, obj: obj, pd: domainOf(init.PD), init: *init, sq: newRing[sendWQE](int(c.MaxSendWR))}
	q.user, q.attr.RNRRetry = init.User, q.initialRNRRetry()
	if u != nil {
		q.user = u.Context // the queues are in this process as well: a user context posts by commands
	}
	q.sendCQ, _ = ib.As[completionQueue](init.SendCQ)
	q.recvCQ, _ = ib.As[completionQueue](init.RecvCQ)
	q.xrcd, _ = ib.As[*xrcd](init.XRCD)
	q.own = recvQueue{ring: newRing[recvWQE](int(c.MaxRecvWR)), maxSGE: c.MaxRecvSGE, pd: q.pd}
	q.rq = &q.own
	if srq, ok := ib.As[sharedReceiveQueue](init.SRQ); ok {
		q.rq = srq.queue()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.qps) >= maxQP {
		return nil, syscall.ENOMEM
	}
	if d.reuse {
		d.nextQPN = firstQPN
	}
	n := nextFreeNumber(d.qps, &d.nextQPN, firstQPN)
	d.qps[n] = q
	obj.SetNum(n)
	return q, nil
}

// State implements ib.DriverQP. State may not sleep.
func (q *QP) State() ib.QPState {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	return q.state
}

// Query implements ib.DriverQP.
func (q *QP) Query(mask ib.QPAttrMask) (ib.QPAttr, error) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	a := q.attr
	a.State, a.CurState, a.Cap = q.state, q.state, q.init.Cap
	a.SQDraining = q.state == ib.QPSQD && q.waiting
	return a, nil
}

// Modify implements ib.DriverQP.
func (q *QP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := ib.NextState(q.state, q.init.Type, attr, mask); err != nil {
		return err
	}
	if err := q.checkAttr(attr, mask); err != nil {
		return err
	}
	if mask&ib.QPAttrState != 0 {
		q.attr.EnSQDAsyncNotify = false // the flag applies to one transition only
	}
	q.attr.Set(attr, mask)
	switch {
	case mask&ib.QPAttrState == 0:
	case attr.State == ib.QPErr:
		q.moveToError()
	case attr.State == ib.QPReset:
		q.reset()
	default:
		q.state = attr.State
		q.runSends()
		q.raiseDrainedEvent()
	}
	d.resumeWaitingQPs() // queue pairs that wait for this one may have to stop waiting
	return nil
}

// checkAttr checks the values of attributes.
func (q *QP) checkAttr(a *ib.QPAttr, mask ib.QPAttrMask) error {
	if err := a.Fits(mask); err != nil {
		return err
	}
	bad := ""
	is := func(bit ib.QPAttrMask, wrong bool, what string) {
		if mask&bit != 0 && wrong {
			bad = what
		}
	}
	is(ib.QPAttrPort, a.Port != 1, "port")
	is(ib.QPAttrPKeyIndex, a.PKeyIndex != 0, "P_Key index")
	is(ib.QPAttrPathMTU, a.PathMTU > mtu, "path MTU")
	is(ib.QPAttrMaxRdAtomic, a.MaxRdAtomic > maxRdAtom, "number of outstanding reads")
	is(ib.QPAttrMaxDestRdAtomic, a.MaxDestRdAtomic > maxRdAtom, "number of reads to serve")
	is(ib.QPAttrAltPath, true, "alternate path: there is no other")
	is(ib.QPAttrPathMigState, true, "path migration state: there is no other path")
	is(ib.QPAttrAV, q.dev.checkDestinationAddress(&a.AH) != nil, "address")
	if bad != "" {
		return fmt.Errorf("%s: %w", bad, syscall.EINVAL)
	}
	return nil
}

// reset drops all work requests and attributes.
//
//verbena:held q.dev.mu
func (q *QP) reset() {
	q.state, q.attr, q.waiting = ib.QPReset, ib.QPAttr{RNRRetry: q.initialRNRRetry()}, false
	q.sq.n, q.own.n = 0, 0
}

// initialRNRRetry returns the RNR retry count before Modify sets it.
func (q *QP) initialRNRRetry() uint8 {
	if q.init.Type == ib.QPTypeSRD {
		return 7
	}
	return 0
}

// moveToError flushes all work requests.
//
//verbena:held q.dev.mu
func (q *QP) moveToError() {
	first := q.state != ib.QPErr
	q.state, q.waiting, q.dev.failed = ib.QPErr, false, true
	q.flushSends()
	for q.own.n > 0 {
		q.completeRecv(&q.own, &ib.WC{Status: ib.WCWRFlushErr}, false)
	}
	if first && q.rq.srq != nil {
		q.obj.Raise(ib.EventQPLastWQEReached)
	}
}

// flushSends flushes the send queue. A queue pair that is connected to itself may be executing a send. Such a send must
// complete first, and run then flushes the rest.
//
//verbena:held q.dev.mu
func (q *QP) flushSends() {
	if q.busy {
		return
	}
	for q.sq.n > 0 {
		q.completeSend(q.sq.pop(), ib.WCWRFlushErr, 0)
	}
}

// Destroy implements ib.DriverQP.
func (q *QP) Destroy() error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range d.keys {
		if k.qp == q {
			k.unbindWindow()
		}
	}
	q.reset()
	for _, cq := range []completionQueue{q.sendCQ, q.recvCQ} {
		if cq != nil {
			cq.forgetQP(q.obj.QP())
		}
	}
	for _, cq := range q.usedCQs {
		cq.forgetQP(q.obj.QP())
	}
	delete(d.qps, q.obj.Num())
	d.resumeWaitingQPs()
	return nil
}

// PostSend implements ib.DriverQP. PostSend may not sleep.
func (q *QP) PostSend(wrs []ib.SendWR) (n int, err error) {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch q.state {
	case ib.QPReset, ib.QPInit, ib.QPRTR:
		return 0, fmt.Errorf("post send in state %v: %w", q.state, syscall.EINVAL)
	}
	if q.sendCQ == nil {
		return 0, fmt.Errorf("post send on an XRC target: %w", syscall.EINVAL)
	}
	for ; n < len(wrs) && err == nil; n++ {
		if err = q.enqueueSend(&wrs[n]); err != nil {
			break
		}
		q.runSends()
	}
	if d.failed {
		d.resumeWaitingQPs()
	}
	return n, err
}

// enqueueSend copies a work request to the send queue.
//
//verbena:held q.dev.mu
func (q *QP) enqueueSend(wr *ib.SendWR) error {
	c := &q.init.Cap
	switch {
	case !q.isSupportedRequest(wr):
		return fmt.Errorf("invalid opcode %d for a %v queue pair: %w", wr.Opcode, q.init.Type, syscall.EINVAL)
	case len(wr.SGList) > int(c.MaxSendSGE):
		return fmt.Errorf("%d gather elements exceed %d: %w", len(wr.SGList), c.MaxSendSGE, syscall.EINVAL)
	case wr.Flags&ib.SendInline != 0 && returnsDataToRequester(wr.Opcode):
		return fmt.Errorf("opcode %d does not allow inline data: %w", wr.Opcode, syscall.EINVAL)
	case wr.Flags&ib.SendInline != 0 && len(wr.Inline) > int(c.MaxInlineData):
		return fmt.Errorf("%d bytes of inline data exceed the limit %d: %w", len(wr.Inline), c.MaxInlineData, syscall.EINVAL)
	}
	var ah addressHandle
	if wr.AH != nil {
		var ok bool
		if ah, ok = ib.As[addressHandle](q.obj.AH(wr.AH)); !ok {
			return fmt.Errorf("the address handle is destroyed or belongs to another device: %w", syscall.EINVAL)
		}
	}
	win, bound, fast, err := q.resolveObjects(wr)
	if err != nil {
		return err
	}
	w := q.sq.push()
	if w == nil {
		return fmt.Errorf("the send queue is full: %w", syscall.ENOMEM)
	}
	w.wr = *wr
	w.sges = append(w.sges[:0], wr.SGList...)
	w.inline = w.inline[:0]
	if wr.Flags&ib.SendInline != 0 || wr.Opcode == ib.WRAtomicWrite {
		w.inline = append(w.inline, wr.Inline...)
	}
	if w.ahPD = nil; ah != nil {
		w.ah, w.ahPD = ah.address(), ah.protectionDomain()
	}
	w.window, w.region, w.fast = win, bound, fast
	if wr.Bind != nil {
		w.bind = *wr.Bind
	}
	if wr.Reg != nil {
		w.reg = *wr.Reg
	}
	w.wr.SGList, w.wr.Inline, w.wr.AH, w.wr.Bind, w.wr.Reg = nil, nil, nil, nil, nil
	return nil
}

// resolveObjects returns the driver's side of the objects that a bind or a registration names. The objects are the
// window, the key of its region, and the region to register.
func (q *QP) resolveObjects(wr *ib.SendWR) (win *memoryWindow, bound uint32, fast *fastMR, err error) {
	const gone = "the %s is destroyed or of another device: %w"
	switch b := wr.Bind; {
	case wr.Opcode == ib.WRBindMW:
		var ok bool
		if win, ok = ib.As[*memoryWindow](q.obj.MW(b.MW)); !ok {
			return nil, 0, nil, fmt.Errorf(gone, "window", syscall.EINVAL)
		}
		if b.MR == nil {
			break
		}
		if q.obj.MR(b.MR) == nil {
			return nil, 0, nil, fmt.Errorf(gone, "region", syscall.EINVAL)
		}
		bound = q.obj.LKey(b.MR)
	case wr.Opcode == ib.WRRegMR:
		side := q.obj.MR(wr.Reg.MR)
		if side == nil {
			return nil, 0, nil, fmt.Errorf(gone, "region", syscall.EINVAL)
		}
		fast, _ = ib.As[*fastMR](side)
	}
	return win, bound, fast, nil
}

// returnsDataToRequester reports whether an operation stores its result in the memory of the requester.
func returnsDataToRequester(op ib.WROpcode) bool {
	return op == ib.WRRDMARead || op == ib.WRAtomicCmpAndSwp || op == ib.WRAtomicFetchAdd
}

// isSupportedRequest reports whether the service supports the operation, and whether the request has the required
// fields.
func (q *QP) isSupportedRequest(wr *ib.SendWR) bool {
	rc := q.init.Type == ib.QPTypeRC || q.init.Type == ib.QPTypeXRCInit
	if q.init.Type == ib.QPTypeSRD {
		switch wr.Opcode {
		case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead:
			return wr.AH != nil
		}
		return false
	}
	switch wr.Opcode {
	case ib.WRSend, ib.WRSendWithImm:
		return q.init.Type != ib.QPTypeUD || wr.AH != nil
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return q.init.Type != ib.QPTypeUD
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRSendWithInv:
		return rc
	case ib.WRFlush:
		return rc
	case ib.WRAtomicWrite:
		return rc && len(wr.Inline) == 8
	case ib.WRLocalInv:
		return q.init.Type != ib.QPTypeUD
	case ib.WRBindMW:
		return q.init.Type != ib.QPTypeUD && wr.Bind != nil && wr.Bind.MW != nil
	case ib.WRRegMR:
		return q.init.Type != ib.QPTypeUD && wr.Reg != nil && wr.Reg.MR != nil
	}
	return false
}

// PostRecv implements ib.DriverQP. PostRecv may not sleep.
func (q *QP) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.rq != &q.own || q.recvCQ == nil {
		return 0, fmt.Errorf("post receive on a queue pair without its own receive queue: %w", syscall.EINVAL)
	}
	if q.state == ib.QPReset {
		return 0, fmt.Errorf("post receive in state %v: %w", q.state, syscall.EINVAL)
	}
	n, err = q.own.post(wrs)
	if q.state == ib.QPErr || d.dead {
		q.moveToError()
	}
	d.resumeWaitingQPs()
	return n, err
}

// post copies work requests to the queue. mu must be held.
func (r *recvQueue) post(wrs []ib.RecvWR) (n int, err error) {
	for ; n < len(wrs); n++ {
		if len(wrs[n].SGList) > int(r.maxSGE) {
			return n, fmt.Errorf("%d scatter elements exceed %d: %w", len(wrs[n].SGList), r.maxSGE, syscall.EINVAL)
		}
		w := r.push()
		if w == nil {
			return n, fmt.Errorf("the receive queue is full: %w", syscall.ENOMEM)
		}
		w.id, w.sges = wrs[n].ID, append(w.sges[:0], wrs[n].SGList...)
	}
	return n, nil
}

// markSendWaiting records that the first send of q waits.
//
//verbena:held q.dev.mu
func (q *QP) markSendWaiting() {
	q.waiting = true
	if !slices.Contains(q.dev.blocked, q) {
		q.dev.blocked = append(q.dev.blocked, q)
	}
}

// resumeWaitingQPs continues the waiting queue pairs. A queue pair that fails during this call may end the wait of
// other queue pairs.
//
//verbena:held mu
func (d *Device) resumeWaitingQPs() {
	for again := true; again; again = d.failed {
		d.failed = false
		d.resumeWaitingQPsOnce()
	}
}

//verbena:held mu
func (d *Device) resumeWaitingQPsOnce() {
	for n := len(d.blocked); n > 0; n-- {
		q := d.blocked[0]
		d.blocked = slices.Delete(d.blocked, 0, 1)
		if !q.waiting {
			continue // the queue pair no longer waits
		}
		if q.waiting = false; q.init.Type == ib.QPTypeSRD || q.executeFirstSend() {
			q.runSends()
		}
		q.raiseDrainedEvent()
	}
}
