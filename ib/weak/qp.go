package weak

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

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

	// eventMu is locked while the inner driver may hold its locks.
	eventMu sync.Mutex
	events  []delayedEvent // delayed events
	raised  uint64         // number of events
	toSQD   uint64         // number of calls of beginDraining
	drained time.Time      // the earliest end of the drain; zero: the drain has no delay

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
	q := &qp{d: d, obj: h, pd: init.PD}
	if d.hasChoice(LateEvent) {
		h = h.Redirect(q.delayEvent)
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
	a.SQDraining = a.SQDraining || q.isDraining()
	if q.d.hasChoice(ExactRoom) {
		a.Cap = q.room
	}
	return a, err
}

// PostSend implements ib.DriverQP.
func (q *qp) PostSend(wrs []ib.SendWR) (n int, err error) {
	q.delaySQEPost()
	q.mu.Lock()
	defer q.mu.Unlock()
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
	if len(r.targets) > 0 && !r.signaled {
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

// recordPolledRequest records that the consumer has polled the completion of a request. Earlier hidden requests are
// done as well.
func (q *qp) recordPolledRequest(r *weakRequest) {
	for _, x := range q.removeRequestsThrough(r) {
		x.storeHiddenData()
	}
}

// removeRequestsThrough removes a request from its list, together with the sends before it.
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
	done = slices.Clone((*list)[:i+1])
	for _, x := range done {
		q.d.removeRequest(x)
	}
	*list = slices.Delete(*list, 0, i+1)
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
	if q.isDraining() && (mask&ib.QPAttrState == 0 || attr.State == ib.QPSQD || attr.State == ib.QPRTS) &&
		mask&^duringDrain != 0 {
		return fmt.Errorf("the send queue is being drained, and attributes %#x cannot change: %w",
			uint32(mask&^duringDrain), syscall.EINVAL)
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
		q.beginDraining()
	}
	if err := q.DriverQP.Modify(attr, mask, u); err != nil {
		return err
	}
	executeAllWrites()
	q.recordConnection(attr, mask)
	if mask&ib.QPAttrState == 0 {
		return nil
	}
	if attr.State == ib.QPReset {
		q.endEventDelays(true)
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
	q.freeAHCopies(held...)
	q.d.dropRequests(held...)
	q.endEventDelays(false)
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
