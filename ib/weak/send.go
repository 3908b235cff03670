package weak

import (
	"fmt"
	"slices"
	"syscall"

	"verbena/ib"
)

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (n int, err error) {
	q.delaySQEPost()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(wrs) == 0 { // the state may not allow posts
		return q.DriverQP.PostSend(wrs)
	}
	for n = range wrs {
		if err := q.d.failPost(); err != nil {
			return n, err
		}
		if err := q.postSend(&wrs[n]); err != nil {
			return n, err
		}
	}
	return len(wrs), nil
}

//verbena:held mu
func (q *qp) postSend(wr *ib.SendWR) error {
	full := q.trimAndCheckFull(&q.out, q.sendCQ, q.room.MaxSendWR)
	if full && q.isUnordered() {
		q.removeDoneRequests()
		full = q.trimAndCheckFull(&q.out, q.sendCQ, q.room.MaxSendWR)
	}
	if q.d.hasChoice(ExactRoom) {
		switch {
		case len(wr.SGList) > int(q.room.MaxSendSGE) && wr.Flags&ib.SendInline == 0 && wr.Opcode != ib.WRAtomicWrite:
			return fmt.Errorf("%d scatter/gather elements exceed the limit %d: %w",
				len(wr.SGList), q.room.MaxSendSGE, syscall.EINVAL)
		case wr.Flags&ib.SendInline != 0 && len(wr.Inline) > int(q.room.MaxInlineData):
			return fmt.Errorf("%d bytes of inline data exceed the limit %d: %w",
				len(wr.Inline), q.room.MaxInlineData, syscall.EINVAL)
		case full && q.room.MaxSendWR > 0 && q.DriverQP.State() >= ib.QPRTS:
			return fmt.Errorf("the queue is full: %d work requests are outstanding: %w", q.room.MaxSendWR, syscall.ENOMEM)
		}
	}
	if full && q.isRepeating() {
		return fmt.Errorf("the queue is full: a READ is executed again: %w", syscall.ENOMEM)
	}
	r := q.newRequest(wr)
	q.d.countPost()
	q.countHoldPost()
	if r.signaled {
		r.completionHold = q.planHold(LateCompletion, &q.completionHolds, r)
	}
	q.planFailure(r)
	q.planRepeats(r)
	k := requestKind{q.init.Type, wr.Opcode, wr.Flags &^ ib.SendSignaled, wr.Inline != nil}
	wait := 0
	if q.d.hasChoice(LateSource) {
		wait = q.d.decide(q.point(LateSource, EventSend, r.seq), q.d.drawDelay(LateSource, q.ord, r.seq, 4), r.about)
	}
	cut := q.splitLength(r)
	r.sourceHold = q.planHold(LateSource, &q.sourceHolds, r)
	if !full && (wait > 0 || cut > 0 || r.sourceHold != nil || len(q.held) > 0) && q.canDelay(wr, k) && q.copyAH(r) {
		r.cut = cut
		q.delaySend(r, wait)
		return nil
	}
	for len(q.held) > 0 && q.postFirstDelayedSend() {
	}
	switch {
	case len(q.held) == 0 && !q.isFenceBlocked(r):
	case full:
		q.removeRejectedSend(r)
		return fmt.Errorf("the queue is full because a fence delays work requests: %w", syscall.ENOMEM)
	default:
		q.delaySend(r, 0)
		return nil
	}
	if err := q.postToInner(r); err != nil {
		q.removeRejectedSend(r)
		return err
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.d.holds[k] = true
	return nil
}

// delaySend delays a send by a number of steps.
//
//verbena:held mu
func (q *qp) delaySend(r *weakRequest, steps int) {
	r.wait = steps
	r.copyCallerData()
	q.held = append(q.held, r)
	q.d.mu.Lock()
	q.d.later[q] = struct{}{}
	q.d.mu.Unlock()
	q.d.scheduleDelayStep()
}

// removeFromDelayedQPs records that no sends are delayed.
//
//verbena:held mu
func (q *qp) removeFromDelayedQPs() {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	delete(q.d.later, q)
}

// isUnordered reports whether the requests of the queue complete in any order. Then a completion proves nothing about
// other requests, so that the inner driver reports each of them.
func (q *qp) isUnordered() bool { return q.init.Type == ib.QPTypeSRD && q.sendCQ != nil }

// removeDoneRequests removes hidden requests that have completed.
func (q *qp) removeDoneRequests() {
	q.sendCQ.mu.Lock()
	defer q.sendCQ.mu.Unlock()
	_ = q.sendCQ.fillArrived()
}

// newRequest returns a new request for a send.
//
//verbena:held mu
func (q *qp) newRequest(wr *ib.SendWR) *weakRequest {
	q.sends++
	r := &weakRequest{id: wr.ID, qp: q, send: true, signaled: wr.Flags&ib.SendSignaled != 0 || q.init.SigAll, seq: q.sends,
		wr: *wr, programID: q.programIDOf(wr.ID, &q.nextSendID)}
	stores := wr.Opcode == ib.WRRDMARead || wr.Opcode == ib.WRAtomicCmpAndSwp || wr.Opcode == ib.WRAtomicFetchAdd
	late := stores && q.sendCQ != nil && q.d.hasChoice(LateRead)
	r.wr.SGList, r.targets = q.d.translateElements(wr.SGList, q.pd, late, q.peerMayAccess())
	if (len(r.targets) > 0 || q.isUnordered()) && !r.signaled {
		r.hidden = true
		r.wr.Flags |= ib.SendSignaled
		q.sendCQ.hides.Store(true)
	}
	q.d.assignRequestID(r)
	r.wr.ID = r.num
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.out = append(q.out, r)
	return r
}

// copyCallerData copies the data that the caller may change after the post.
func (r *weakRequest) copyCallerData() {
	r.wr.Inline = slices.Clone(r.wr.Inline)
	if r.wr.Bind != nil {
		b := *r.wr.Bind
		r.wr.Bind = &b
	}
	if r.wr.Reg != nil {
		g := *r.wr.Reg
		r.wr.Reg = &g
	}
}

// copyAH copies the address handle of a delayed request. copyAH returns false if the inner driver cannot copy the
// handle.
//
//verbena:held mu
func (q *qp) copyAH(r *weakRequest) bool {
	if r.wr.AH == nil {
		return true
	}
	inner, ok := ib.As[ib.AHDriver](q.d.Driver)
	if !ok {
		return false
	}
	ah, err := q.obj.CopyAH(r.wr.AH, inner)
	if err != nil {
		return false
	}
	r.wr.AH, r.ownAH = ah, true
	return true
}

// freeAHCopies frees the address handle copies of requests that are no longer delayed.
func (q *qp) freeAHCopies(rs ...*weakRequest) {
	for _, r := range rs {
		if r.ownAH {
			_ = q.obj.AH(r.wr.AH).Destroy()
			r.wr.AH, r.ownAH = nil, false
		}
	}
}

// removeRejectedSend removes a send that the inner driver has rejected.
func (q *qp) removeRejectedSend(r *weakRequest) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	delete(q.d.reqs, r.num)
	q.out = slices.DeleteFunc(q.out, func(x *weakRequest) bool { return x == r })
}

// canDelay reports whether a request can be delayed. The inner driver must be certain to accept the request later.
// Acceptance is assumed if the driver has accepted a request of the same kind before.
//
//verbena:held mu
func (q *qp) canDelay(wr *ib.SendWR, k requestKind) bool {
	most := uint64(maxHeld)
	switch q.init.Type {
	case ib.QPTypeRC, ib.QPTypeXRCInit:
	case ib.QPTypeUC, ib.QPTypeUD:
		if q.d.Relay != nil && !supportsUnreliably(wr.Opcode, q.init.Type) {
			return false
		}
		if q.init.Type == ib.QPTypeUD {
			if wr.AH == nil {
				return false
			}
			most = maxDatagram
		}
	default:
		return false
	}
	if q.sendCQ == nil {
		return false
	}
	n := uint64(len(wr.Inline))
	switch wr.Opcode {
	case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
	case ib.WRBindMW, ib.WRRegMR, ib.WRLocalInv:
	case ib.WRRDMARead:
		if len(wr.SGList) > 1 {
			return false
		}
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		if len(wr.SGList) != 1 || wr.SGList[0].Length != 8 || wr.RemoteAddr%8 != 0 {
			return false
		}
	default:
		return false
	}
	if len(wr.SGList) > int(q.room.MaxSendSGE) || len(wr.Inline) > int(q.room.MaxInlineData) {
		return false
	}
	for _, s := range wr.SGList {
		n += uint64(s.Length)
	}
	q.d.mu.Lock()
	known := q.d.holds[k]
	q.d.mu.Unlock()
	return (known || q.d.Relay != nil) && n <= most && q.DriverQP.State() == ib.QPRTS
}

// supportsUnreliably reports whether an unreliable queue pair supports an operation that carries data.
func supportsUnreliably(op ib.WROpcode, t ib.QPType) bool {
	switch op {
	case ib.WRSend, ib.WRSendWithImm:
		return true
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return t == ib.QPTypeUC
	}
	return false
}

// isFenceBlocked reports whether a request has a fence and data of earlier READs have not yet been copied to their
// targets.
//
//verbena:held mu
func (q *qp) isFenceBlocked(r *weakRequest) bool {
	if r.wr.Flags&ib.SendFence == 0 || len(q.reading) == 0 {
		return false
	}
	if q.isRepeating() {
		return true
	}
	q.sendCQ.mu.Lock()
	defer q.sendCQ.mu.Unlock()
	_ = q.sendCQ.fillWindow(1 << 30)
	for _, x := range q.reading {
		x.storeHiddenData()
	}
	for i := range q.sendCQ.held {
		e := &q.sendCQ.held[i]
		if e.r == nil || e.r.qp != q || !e.send {
			continue
		}
		if e.wc.Status == ib.WCSuccess {
			e.r.storeData(uint64(e.wc.ByteLen))
		}
		q.reading = slices.DeleteFunc(q.reading, func(x *weakRequest) bool { return x == e.r })
	}
	q.reading = slices.DeleteFunc(q.reading, func(x *weakRequest) bool { return x.landed.Load() })
	return len(q.reading) > 0
}

// runSendStep executes one step. polled reports whether the step is a poll. runSendStep reports whether sends are still
// delayed.
func (q *qp) runSendStep(polled bool) (more bool) {
	defer q.ring()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.held) > 0 && polled {
		q.held[0].sourceHold.poll()
	} else if len(q.held) > 0 {
		q.held[0].sourceHold.step()
	}
	for first := true; len(q.held) > 0 && !q.held[0].sourceHold.isActive(); first = false {
		if r := q.held[0]; r.wait > 0 {
			if first {
				r.wait--
			}
			if r.wait > 0 {
				break
			}
		}
		if !q.postFirstDelayedSend() {
			break
		}
	}
	if len(q.held) == 0 {
		q.removeFromDelayedQPs()
	}
	return len(q.held) > 0
}

// postFirstDelayedSend posts the first delayed send. postFirstDelayedSend returns false if a fence blocks the send.
//
//verbena:held mu
func (q *qp) postFirstDelayedSend() bool {
	r := q.held[0]
	state := q.DriverQP.State()
	if state != ib.QPErr && q.isFenceBlocked(r) {
		return false
	}
	if r.cut > 0 && state == ib.QPRTS {
		q.postSplitWrite(r)
		return true
	}
	if r.half != 0 {
		q.sendCQ.mu.Lock()
		_ = q.sendCQ.fillWindow(1 << 30)
		done, bad := r.halfDone, r.halfBad
		q.sendCQ.mu.Unlock()
		if bad { // the completion of that half is that of the request
			q.held = q.held[1:]
			return true
		}
		if !done && state != ib.QPErr {
			return false
		}
	}
	q.held = q.held[1:]
	if err := q.postToInner(r); err != nil {
		q.completeRejectedSend(r)
	}
	return true
}

// edgePartLen is the length, in bytes, of a part that is much shorter than the other part of its WRITE.
const edgePartLen = 16

// writeOrders is the number of the values that write-order draws.
const writeOrders = 64

// splitLength returns the length of the first part of a WRITE whose parts are written one after the other, or 0. A
// refused WRITE changes no memory, so the target must be in a region of the same device. The low bits of the drawn
// number decide whether the WRITE is cut, which part is first, the delay, and the place. A log may have a larger value,
// with writeOrders for each further step of the delay.
func (q *qp) splitLength(r *weakRequest) uint64 {
	wr := &r.wr
	n := uint64(len(wr.Inline))
	for _, s := range wr.SGList {
		n += uint64(s.Length)
	}
	if !q.d.hasChoice(WriteOrder) || wr.Opcode != ib.WRRDMAWrite || q.init.Type != ib.QPTypeRC || q.init.SigAll ||
		n < 32 || !q.d.isRemotelyWritable(wr.RKey, wr.RemoteAddr, n) {
		return 0
	}
	drawn := q.d.drawRandom(WriteOrder, q.ord, r.seq, writeOrders)
	if q.d.isSpared(WriteOrder, q.ord, r.seq) || drawn%2 == 0 {
		drawn = 0
	}
	if r.split = q.d.decide(q.point(WriteOrder, EventSend, r.seq), drawn, r.about); r.split == 0 {
		return 0
	}
	at := n / 2
	switch r.split % writeOrders / 16 {
	case 2:
		at = edgePartLen
	case 3:
		at = n - edgePartLen
	}
	return at - (wr.RemoteAddr+at)%8 // an aligned word is written as a whole
}

// postSplitWrite posts one part of a WRITE, and delays the other part.
//
//verbena:held mu
func (q *qp) postSplitWrite(r *weakRequest) {
	head, tail, cut := r.wr, r.wr, r.cut
	r.cut = 0
	tail.RemoteAddr += cut
	drawn := r.split % 16 / 2 // cut has used the last bit
	r.wait = 1 + drawn/2 + r.split/writeOrders
	if r.wr.Inline != nil {
		head.Inline, tail.Inline = r.wr.Inline[:cut], r.wr.Inline[cut:]
	} else {
		head.SGList, tail.SGList = splitSGL(r.wr.SGList, cut)
	}
	wr, rest := tail, head
	if drawn%2 == 0 {
		wr, rest = head, tail
	}
	wr.Flags = wr.Flags&^ib.SendSolicited | ib.SendSignaled
	q.sendCQ.hides.Store(true)
	q.d.mu.Lock()
	q.d.last++
	r.half = q.d.last
	q.d.reqs[r.half] = r
	q.d.mu.Unlock()
	wr.ID = r.half
	if err := q.send(wr); err != nil {
		q.d.mu.Lock()
		delete(q.d.reqs, r.half)
		q.d.mu.Unlock()
		r.half = 0 // the whole request follows
		return
	}
	r.wr = rest
}

// splitSGL splits a list after n bytes.
func splitSGL(list []ib.SGE, n uint64) (first, rest []ib.SGE) {
	for i, s := range list {
		k := min(n, uint64(s.Length))
		n -= k
		if k > 0 {
			e := s
			e.Length = uint32(k)
			first = append(first, e)
		}
		if k < uint64(s.Length) {
			s.Addr += k
			s.Length -= uint32(k)
			return first, append([]ib.SGE{s}, list[i+1:]...)
		}
	}
	return first, nil
}

// send posts a request to the inner queue pair. With a Relay and an ib.SendQueuer, it only queues the request.
//
//verbena:held mu
func (q *qp) send(wr ib.SendWR) error {
	if q.deferred == nil {
		_, err := q.DriverQP.PostSend([]ib.SendWR{wr})
		return err
	}
	_, err := q.deferred.QueueSend([]ib.SendWR{wr})
	q.unrung = q.unrung || err == nil
	return err
}

// ring executes the queued requests. It is for steps, because the caller of PostSend executes them itself.
func (q *qp) ring() {
	if q.deferred == nil {
		return
	}
	q.mu.Lock()
	queued := q.unrung
	q.unrung = false
	q.mu.Unlock()
	if user, ok := ib.As[ib.UserQP](q.DriverQP); ok && queued {
		user.Doorbell(nil)
	}
}

// EndDelays implements Sends.
func (q *qp) EndDelays() {
	q.mu.Lock()
	for _, r := range q.held {
		r.wait, r.cut = 0, 0
		r.sourceHold.end()
	}
	for len(q.held) > 0 && q.postFirstDelayedSend() {
	}
	q.mu.Unlock()
	q.ring()
}

// postToInner posts a send to the inner queue pair.
//
//verbena:held mu
func (q *qp) postToInner(r *weakRequest) error {
	err := q.send(r.wr)
	q.freeAHCopies(r)
	if err == nil && len(r.targets) > 0 {
		q.reading = append(q.reading, r)
	}
	return err
}

// completeRejectedSend completes a delayed send that the inner driver has rejected. The reason is the error state of
// the queue pair or the device, or an invalid request.
//
//verbena:held mu
func (q *qp) completeRejectedSend(r *weakRequest) {
	state := q.DriverQP.State()
	if state < ib.QPRTS || q.sendCQ == nil {
		q.removeRejectedSend(r)
		return
	}
	status := ib.WCWRFlushErr
	if state != ib.QPErr && q.obj.QP().Device().State() == ib.DeviceActive {
		status = ib.WCLocQPOpErr
		go func() { _ = q.DriverQP.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil) }()
	}
	c := q.sendCQ
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.fillWindow(1 << 30)
	e := q.d.translateCompletion(ib.WC{ID: r.num, Status: status, Opcode: wcOpcodeOf(r.wr.Opcode), QPNum: q.obj.Num(),
		QP: q.obj.QP()})
	q.d.planCompletion(&e)
	c.held = append(c.held, e)
	c.rep.Store(true)
	q.d.scheduleDelayStep()
}

// wcOpcodeOf returns the completion opcode of a request.
func wcOpcodeOf(op ib.WROpcode) ib.WCOpcode {
	switch op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return ib.WCRDMAWrite
	case ib.WRRDMARead:
		return ib.WCRDMARead
	case ib.WRAtomicCmpAndSwp:
		return ib.WCCompSwap
	case ib.WRAtomicFetchAdd:
		return ib.WCFetchAdd
	case ib.WRBindMW:
		return ib.WCBindMW
	case ib.WRLocalInv:
		return ib.WCLocalInv
	case ib.WRRegMR:
		return ib.WCRegMR
	case ib.WRFlush:
		return ib.WCFlush
	case ib.WRAtomicWrite:
		return ib.WCAtomicWrite
	}
	return ib.WCSend
}
