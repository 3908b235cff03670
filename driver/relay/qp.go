package relay

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/uapi"
)

// qp is a queue pair. Its inner queue pair belongs to the weak device.
type qp struct {
	ib.DriverQP
	p              *program
	obj            ib.QPHandle
	typ            ib.QPType
	pd             ib.DriverPD
	sendCQ, recvCQ *cq
	srq            *srq
	self           ib.GID // address of the device; for UD
	number         uint32 // in the IDs of its requests
	cap            ib.QPCap
	listed         int       // index in the program's directory
	bell           ib.UserQP // executes queued requests; nil: they are executed when they are posted
	weakSends      weak.Sends
	made           atomic.Bool
	lost           atomic.Bool // the program has removed the memory of its queues

	mu  sync.Mutex // after cq.mu; held while a request is posted to the weak device
	sq  queue.SendQueue
	out requestList
	w   queue.Send
	end bool // destroyed

	checked *check.UserQP // nil: no checks
	sends   sendChecks
	resets  uint64 // number of resets; under mu

	recvMu sync.Mutex // after mu; held while a receive is posted to the weak device
	rq     queue.RecvQueue
	in     requestList
	recv   queue.Recv

	flushing flushTimer
}

// Unwrap gives access to the inner queue pair.
func (q *qp) Unwrap() ib.DriverQP { return q.DriverQP }

// CreateQP implements ib.Driver.
func (d *driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	p := d.programOf(u)
	if p == nil {
		return d.Driver.CreateQP(h, init, u)
	}
	if init.Type == ib.QPTypeXRCTgt { // shares nothing with the program, and may outlive the context
		return d.Driver.CreateQP(h, init, nil)
	}
	q := &qp{p: p, obj: h, typ: init.Type, pd: init.PD}
	q.sendCQ, _ = init.SendCQ.(*cq)
	q.recvCQ, _ = init.RecvCQ.(*cq)
	q.srq, _ = init.SRQ.(*srq)
	asked := &init.Cap
	if !q.hasReceiveQueue() { // then its size does not count (ibv_create_qp(3))
		asked.MaxRecvWR, asked.MaxRecvSGE = 0, 0
	}
	if err := p.checkCap(q.typ, asked); err != nil {
		return nil, err
	}
	granted := *asked
	var err error
	if q.typ == ib.QPTypeUD {
		own, err := d.QueryGID(1, 0)
		if err != nil {
			return nil, err
		}
		q.self = own.GID
	}
	if q.sq, q.rq, err = p.queues.CreateQP(q.typ, &granted, q.hasReceiveQueue(), u); err != nil {
		return nil, err
	}
	q.number = p.addOwner(q)
	inner := *init
	inner.Cap, inner.User, inner.Refill = granted, p.UserContext, q.refillForDriver
	if inner.SendCQ, inner.RecvCQ = nil, nil; q.sendCQ != nil {
		inner.SendCQ = q.sendCQ.DriverCQ
	}
	if q.recvCQ != nil {
		inner.RecvCQ = q.recvCQ.DriverCQ
	}
	q.DriverQP, err = p.weak.CreateQP(h.Redirect(q.raise), &inner, nil)
	if err != nil {
		p.removeOwner(q.number)
		q.freeQueues()
		return nil, err
	}
	q.weakSends, _ = ib.As[weak.Sends](q.DriverQP)
	if q.cap = granted; p.choices.Has(weak.ExactRoom) {
		q.cap = *asked
	}
	if p.choices == checkedChoices { // programs rely on the inline data that the layout allows beyond the request
		q.cap.MaxInlineData = granted.MaxInlineData
	}
	*asked = q.cap
	if _, ok := ib.As[ib.SendQueuer](q.DriverQP); ok {
		q.bell, _ = ib.As[ib.UserQP](q.DriverQP)
	}
	q.mu.Lock()
	q.occupySlots()
	q.mu.Unlock()
	if err := p.list(q); err != nil {
		_ = q.DriverQP.Destroy()
		p.removeOwner(q.number)
		q.freeQueues()
		return nil, err
	}
	q.addToChecks(init)
	q.made.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.qps[q] = struct{}{}
	return q, nil
}

// addToChecks adds the queue pair to the checks of the program.
func (q *qp) addToChecks(init *ib.DriverQPInit) {
	if q.p.checks == nil {
		return
	}
	var send, recv *check.UserCQ
	var shared *check.UserSRQ
	if q.sendCQ != nil {
		send = q.sendCQ.checked
	}
	if q.recvCQ != nil {
		recv = q.recvCQ.checked
	}
	if q.srq != nil {
		shared = q.srq.checked
	}
	q.checked = q.p.checks.AddQP(q.obj.QP(), q.DriverQP, init, q.cap, send, recv, shared)
}

// checkCap checks requested capacities against the limits of the device, and of a chosen adapter.
func (p *program) checkCap(t ib.QPType, c *ib.QPCap) error {
	l, limits := &p.limits, p.d.layout.Limits()
	for _, x := range []struct {
		what        string
		asked, most uint32
	}{
		{"send work requests", c.MaxSendWR, uint32(l.MaxQPWR)}, {"receive work requests", c.MaxRecvWR, uint32(l.MaxQPWR)},
		{"gather elements", c.MaxSendSGE, uint32(l.MaxSendSGE)}, {"scatter elements", c.MaxRecvSGE, uint32(l.MaxRecvSGE)},
		{"bytes inline", c.MaxInlineData, limits.Inline},
	} {
		if x.asked > x.most {
			return fmt.Errorf("%d %s, at most %d: %w", x.asked, x.what, x.most, syscall.EINVAL)
		}
	}
	return p.choices.CheckCap(t, c)
}

// atomicLen is the length of the data of an ATOMIC WRITE, in bytes.
const atomicLen = 8

func (q *qp) hasReceiveQueue() bool { return q.srq == nil && q.typ != ib.QPTypeXRCInit }

// occupySlots makes the entries of the queues occupied that exceed the capacities.
//
//verbena:held mu
func (q *qp) occupySlots() {
	for range q.sq.Capacity() - int(q.cap.MaxSendWR) {
		if pushed, ok := q.sq.Push(&queue.Send{}); !pushed || !ok {
			break
		}
		q.sq.Take()
	}
	if !q.hasReceiveQueue() {
		return
	}
	for range q.rq.Capacity() - int(q.cap.MaxRecvWR) {
		if pushed, ok := q.rq.Push(&queue.Recv{}); !pushed || !ok {
			break
		}
		q.rq.Take()
	}
}

// raise passes an event on. The event may be the only report that the queue pair is in error.
func (q *qp) raise(e ib.EventType) {
	q.obj.Raise(e)
	if q.made.Load() {
		q.startFlushing()
	}
}

func (q *qp) freeQueues() {
	q.sq.Free()
	q.rq.Free()
}

// queues returns the present queues.
func (q *qp) queues() *queue.Queues {
	s := &queue.Queues{QPN: q.obj.Num(), Send: q.sq, Recv: q.rq}
	if q.sendCQ != nil {
		s.SendCQ = q.sendCQ.current()
	}
	if q.recvCQ != nil {
		s.RecvCQ = q.recvCQ.current()
	}
	if q.srq != nil {
		s.Recv = q.srq.current()
	}
	return s
}

// Doorbell implements ib.UserQP.
func (q *qp) Doorbell(h *ib.Hold) {
	before, began := q.sends.posted.Load(), time.Now()
	q.advanceFor(h, true)
	if q.checked != nil {
		q.checkRefused(before)
		q.p.copyArrived(began)
	}
}

func (q *qp) advance(h *ib.Hold) { q.advanceFor(h, false) }

// advanceFor posts the requests of the program to the weak device, and executes them. own is set if the caller
// is a thread of the program.
func (q *qp) advanceFor(h *ib.Hold, own bool) {
	failed := q.State() == ib.QPErr
	if !failed {
		q.postProgramReceives()
	}
	if q.postAllSends(own) && q.sendCQ != nil {
		q.sendCQ.retry.add(q)
		q.postAllSends(own) // a completion may have made room before
	}
	if failed { // sends are flushed first
		q.postProgramReceives()
	}
	if q.bell != nil {
		q.bell.Doorbell(h)
	}
}

// postProgramReceives posts the receives of the queue pair, and of all others if the driver does not call Refill.
func (q *qp) postProgramReceives() {
	if q.p.d.refills {
		q.postReceives()
		return
	}
	for _, o := range q.p.listQPs() {
		o.postReceives()
	}
}

// Posted implements ib.UserQP.
func (q *qp) Posted() (at uint32, some bool) {
	if q.State() < ib.QPRTS || q.p.detached.Load() {
		return 0, false
	}
	return q.sq.Posted()
}

// TakeBack implements ib.UserQP.
func (q *qp) TakeBack() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.State() < ib.QPRTS && q.isUsable() {
		q.sq.TakeBack()
	}
}

// isUsable reports whether the memory of the queues may be accessed. The caller holds mu or recvMu.
func (q *qp) isUsable() bool { return !q.end && !q.lost.Load() && !q.p.detached.Load() }

func (q *qp) postAllSends(own bool) (full bool) {
	if q.checked != nil {
		return q.postCheckedSends(own)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.postSends()
}

// postSends posts the sends of the program. It returns true if the weak device had no room for one.
//
//verbena:held mu
func (q *qp) postSends() (full bool) {
	if !q.isUsable() || q.State() < ib.QPRTS {
		return false
	}
	for range q.sq.Capacity() {
		found, ok := q.sq.Fetch(0, &q.w)
		if !ok {
			q.loseQueues()
			return false
		}
		if !found {
			return false
		}
		if err := q.postSend(&q.w); err != nil {
			return errors.Is(err, syscall.ENOMEM)
		}
		q.sq.Take()
	}
	return false
}

// fail moves the queue pair to ERR, soon. The program has removed the memory of its queues, or a receive was invalid.
func (q *qp) fail() {
	go func() { _ = q.DriverQP.Modify(&ib.QPAttr{State: ib.QPErr}, ib.QPAttrState, nil) }()
}

// loseQueues records that the program has removed the memory of its queues.
func (q *qp) loseQueues() {
	q.lost.Store(true)
	q.fail()
}

// postSend posts a request of the program. A request that the weak device refuses for ever fails as one of the engine
// would. The error means that the request was not posted.
//
//verbena:held mu
func (q *qp) postSend(w *queue.Send) error {
	var wr ib.SendWR
	free, status := q.translate(w, &wr)
	defer free()
	return q.postTranslated(w, &wr, status)
}

// postTranslated is postSend for a decoded request.
//
//verbena:held mu
func (q *qp) postTranslated(w *queue.Send, wr *ib.SendWR, status ib.WCStatus) error {
	if w.LengthLost {
		q.p.libraryFault(ib.LengthLost)
	}
	if status == ib.WCSuccess {
		wr.ID = q.sendID(q.out.add(request{id: w.ID, slot: true}))
		q.setNextID(true, w.ID)
		_, err := q.DriverQP.PostSend([]ib.SendWR{*wr})
		if err == nil {
			return nil
		}
		q.out.removeLast()
		if !errors.Is(err, syscall.EINVAL) || q.State() < ib.QPRTS {
			return err
		}
		status = ib.WCLocQPOpErr
		if w.Opcode == uapi.WRBindMW {
			status = ib.WCMWBindErr
		}
	}
	return q.postFailing(w, status)
}

// postFailing posts a request that fails, in place of one that cannot be posted.
//
//verbena:held mu
func (q *qp) postFailing(w *queue.Send, status ib.WCStatus) error {
	wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled | w.Flags&ib.SendFence, SGList: []ib.SGE{refusedElement}}
	if q.typ == ib.QPTypeUD {
		free := q.setVector(&wr, &ib.AHAttr{Port: 1, HasGRH: true, GRH: ib.GlobalRoute{DGID: q.self, HopLimit: 1}})
		defer free()
	}
	wr.ID = q.sendID(q.out.add(request{id: w.ID, status: status, slot: true}))
	q.setNextID(true, w.ID)
	_, err := q.DriverQP.PostSend([]ib.SendWR{wr})
	if err != nil {
		q.out.removeLast()
	}
	return err
}

// setNextID sets the program's ID of the next request, for the decisions of the weak device.
func (q *qp) setNextID(send bool, id uint64) {
	if q.weakSends != nil {
		q.weakSends.SetNextID(send, id)
	}
}

func (q *qp) sendID(number uint32) uint64 { return uint64(q.number)<<32 | uint64(number) }
func (q *qp) recvID(number uint32) uint64 { return q.sendID(number | recvNumber) }

// setVector makes the destination of a datagram from an address vector. free frees it after the post.
func (q *qp) setVector(wr *ib.SendWR, to *ib.AHAttr) (free func()) {
	inner, ok := ib.As[ib.AHDriver](q.p.d.Driver)
	if !ok {
		return func() {}
	}
	side, err := inner.CreateAH(q.pd, to, nil)
	if err != nil {
		return func() {}
	}
	wr.AH = q.obj.NewAH(side, q.pd)
	return func() { _ = side.Destroy() }
}

// translate decodes a request of the program. status is not success if the request must fail. The caller calls free
// after the post. (validate_send_wr)
//
//verbena:held mu
func (q *qp) translate(w *queue.Send, wr *ib.SendWR) (free func(), status ib.WCStatus) {
	free = func() {}
	*wr = ib.SendWR{
		Opcode: w.Opcode, Flags: w.Flags, RemoteAddr: w.RemoteAddr, RKey: w.RKey, CompareAdd: w.CompareAdd, Swap: w.Swap,
		RemoteSRQN: w.SRQN,
	}
	switch w.Opcode {
	case ib.WRRegMR:
		return free, ib.WCLocQPOpErr
	case ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
		wr.Imm = w.Imm.Imm().Uint32()
	case ib.WRSendWithInv, ib.WRLocalInv:
		wr.InvalidateRKey = w.Imm.InvalidateRKey()
	case ib.WRFlush:
		wr.Flush = ib.Flush{Length: w.Flush.Length, Placement: w.Flush.Type, Level: w.Flush.Level}
	case ib.WRAtomicWrite:
		if wr.Inline = w.Inline; w.Length != atomicLen {
			return free, ib.WCLocLenErr
		}
	case ib.WRBindMW:
		return free, q.translateBind(&w.Bind, wr)
	}
	switch {
	case w.Opcode == ib.WRAtomicWrite:
	case w.Flags&ib.SendInline != 0:
		if w.Length > uint64(q.cap.MaxInlineData) {
			return free, ib.WCLocLenErr
		}
		wr.Inline = w.Inline
	case w.NumSGE > q.cap.MaxSendSGE:
		return free, ib.WCLocQPOpErr
	default:
		wr.SGList = w.SGEs
	}
	if q.typ == ib.QPTypeUD {
		wr.RemoteQPN, wr.RemoteQKey = w.QPN, w.QKey
		return q.setDestination(w, wr), ib.WCSuccess
	}
	return free, ib.WCSuccess
}

// setDestination sets the address handle of a datagram. Without a handle the weak device refuses the request.
func (q *qp) setDestination(w *queue.Send, wr *ib.SendWR) (free func()) {
	if w.AH == 0 {
		return q.setVector(wr, &w.Vector)
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	if a := q.p.ahs[w.AH]; a != nil && a.pd == q.pd {
		wr.AH = q.obj.NewAH(a, a.pd)
	} else if q.checked != nil && w.AH <= q.p.lastAH {
		q.checked.DestroyedAH(w.Opcode, w.ID)
	}
	return func() {}
}

// translateBind finds the window and the region of a bind by their keys.
func (q *qp) translateBind(b *queue.Bind, wr *ib.SendWR) ib.WCStatus {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	window, region := q.p.mws[b.MWRKey>>keyIndexShift], q.p.mrs[b.MRLKey]
	if window == nil || region == nil && b.Length != 0 {
		return ib.WCMWBindErr
	}
	wr.Bind = &ib.BindMW{MW: window, MR: region, RKey: b.RKey, Addr: b.Addr, Length: b.Length, Access: b.Access}
	return ib.WCSuccess
}

// postReceives posts the receives of the program.
func (q *qp) postReceives() {
	if q.srq != nil {
		q.srq.post()
		return
	}
	q.refill()
}

// refillForDriver posts receives for a message for which the driver has none.
func (q *qp) refillForDriver() {
	q.refill()
	if q.checked == nil || !q.hasReceiveQueue() || !q.made.Load() {
		return
	}
	q.recvMu.Lock()
	none := len(q.in.list) == 0 && q.isUsable()
	q.recvMu.Unlock()
	if none {
		q.checked.NoReceive()
	}
}

// refill posts the receives of the program that are in its queue.
func (q *qp) refill() {
	if !q.hasReceiveQueue() || !q.made.Load() {
		return
	}
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	if !q.isUsable() || q.State() == ib.QPReset {
		return
	}
	var sends uint64
	if q.checked != nil {
		sends = q.checked.SendCount()
	}
	for range q.rq.Capacity() {
		found, ok := q.rq.Fetch(0, &q.recv)
		if !ok {
			q.loseQueues()
			return
		}
		if !found {
			if q.checked != nil {
				q.checked.NoReceives(sends)
			}
			return
		}
		r := request{id: q.recv.ID, slot: true}
		list := receiveElements(&q.recv, q.cap.MaxRecvSGE, &r)
		wr := ib.RecvWR{ID: q.recvID(q.in.add(r)), SGList: list}
		q.setNextID(false, r.id)
		posted := func(int) {}
		if q.checked != nil && r.status == ib.WCSuccess {
			posted = q.checked.Receiving(&wr, r.id)
		}
		n, err := q.DriverQP.PostRecv([]ib.RecvWR{wr})
		posted(n)
		if err != nil {
			q.in.removeLast()
			return
		}
		q.rq.Take()
	}
}

// receiveElements returns the elements of a receive. A receive with too many elements fails.
func receiveElements(w *queue.Recv, most uint32, r *request) []ib.SGE {
	if w.NumSGE > most {
		r.status = ib.WCLocQPOpErr
		return []ib.SGE{refusedElement}
	}
	return w.SGEs
}

// finish implements owner.
func (q *qp) finish(wc *ib.WC) bool {
	number := uint32(wc.ID)
	if wc.Status != ib.WCSuccess {
		defer q.startFlushing()
	}
	if number&recvNumber != 0 {
		q.recvMu.Lock()
		defer q.recvMu.Unlock()
		r, slots, ok := q.in.finish(number)
		if ok && r.status != ib.WCSuccess && wc.Status == ib.WCSuccess { // an empty message
			q.fail()
		}
		if ok {
			r.applyTo(wc)
			q.free(q.rq, slots)
		}
		return ok
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	r, slots, ok := q.out.finish(number)
	if ok {
		r.applyTo(wc)
		q.free(q.sq, slots)
	}
	return ok
}

// free returns entries of a queue to the program.
func (q *qp) free(to queue.WorkQueue, slots int) {
	for range slots {
		if q.isUsable() && !to.Complete() {
			q.loseQueues()
		}
	}
}

// PostSend implements ib.DriverQP, for a program that posts by a call.
func (q *qp) PostSend(wrs []ib.SendWR) (n int, err error) {
	q.advanceFor(nil, true)
	if q.lost.Load() {
		return 0, errQueueGone
	}
	q.sends.mu.Lock()
	defer q.sends.mu.Unlock()
	q.mu.Lock()
	for ; n < len(wrs) && err == nil; n++ {
		wr := wrs[n]
		wr.ID = q.sendID(q.out.add(request{id: wrs[n].ID}))
		q.setNextID(true, wrs[n].ID)
		if _, err = q.DriverQP.PostSend([]ib.SendWR{wr}); err != nil {
			q.out.removeLast()
			break
		}
	}
	q.mu.Unlock()
	if q.bell != nil {
		q.bell.Doorbell(nil)
	}
	return n, err
}

// PostRecv implements ib.DriverQP, for a program that posts by a call.
func (q *qp) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	q.postReceives()
	if q.lost.Load() {
		return 0, errQueueGone
	}
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	for ; n < len(wrs); n++ {
		wr := ib.RecvWR{ID: q.recvID(q.in.add(request{id: wrs[n].ID})), SGList: wrs[n].SGList}
		q.setNextID(false, wrs[n].ID)
		if _, err := q.DriverQP.PostRecv([]ib.RecvWR{wr}); err != nil {
			q.in.removeLast()
			return n, err
		}
	}
	return n, nil
}

// Modify implements ib.DriverQP.
func (q *qp) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, _ *ib.Udata) error {
	if q.checked != nil {
		q.refill()
		q.lookAtCQs()
		if mask&ib.QPAttrState != 0 && (attr.State == ib.QPErr || attr.State == ib.QPReset) {
			q.checked.CheckMapped()
		}
		q.checked.Modifying(attr, mask)
	}
	if err := q.DriverQP.Modify(attr, mask, nil); err != nil {
		return err
	}
	if q.checked != nil {
		q.checked.Modified(attr, mask)
	}
	switch {
	case mask&ib.QPAttrState == 0:
	case attr.State == ib.QPReset:
		q.reset()
	default:
		q.advance(nil)
		q.startFlushing()
	}
	return nil
}

// reset drops all requests, without completions.
func (q *qp) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	q.resets++
	q.out.drop()
	q.in.drop()
	if !q.isUsable() {
		return
	}
	q.sq.Discard()
	q.rq.Discard()
	q.occupySlots()
}

// Query implements ib.DriverQP.
func (q *qp) Query(mask ib.QPAttrMask) (ib.QPAttr, error) {
	a, err := q.DriverQP.Query(mask)
	a.Cap = q.cap
	return a, err
}

// Destroy implements ib.DriverQP.
func (q *qp) Destroy() error {
	if q.checked != nil {
		q.refill()
		q.lookAtCQs()
		q.checked.CheckMapped()
	}
	if err := q.DriverQP.Destroy(); err != nil {
		return err
	}
	if q.checked != nil {
		q.checked.Destroyed()
	}
	q.flushing.stop()
	q.p.mu.Lock()
	delete(q.p.qps, q)
	delete(q.p.owners, q.number)
	q.p.mu.Unlock()
	q.p.unlist(q)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	q.end = true
	q.freeQueues()
	return nil
}

// The next constants are the periods in which a queue pair in ERR is examined for new requests, which a program may
// post without a call.
const (
	minFlushPeriod = 2 * time.Millisecond
	maxFlushPeriod = 256 * time.Millisecond
)

// flushTimer examines a queue pair in ERR.
type flushTimer struct {
	mu     sync.Mutex
	timer  *time.Timer // nil: none yet
	on     bool
	period time.Duration
	over   bool
}

func (t *flushTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// startFlushing begins the examination, which ends when the queue pair is not in ERR.
func (q *qp) startFlushing() {
	t := &q.flushing
	t.mu.Lock()
	defer t.mu.Unlock()
	t.period = minFlushPeriod
	if t.on || t.over {
		return
	}
	t.on = true
	if t.timer == nil {
		t.timer = time.AfterFunc(t.period, q.flush)
	} else {
		t.timer.Reset(t.period)
	}
}

// flush posts requests to a queue pair in ERR, which completes them with a flush error.
func (q *qp) flush() {
	failed := q.State() == ib.QPErr || q.State() == ib.QPSQE
	if failed {
		q.advance(nil)
	}
	t := &q.flushing
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || !failed || q.p.detached.Load() {
		t.on = false
		return
	}
	t.period = min(2*t.period, maxFlushPeriod)
	t.timer.Reset(t.period)
}
