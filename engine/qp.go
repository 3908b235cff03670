package engine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/roce"
)

// A queue pair number has a slot of the device's table in its low bits, and a generation above them. The generation
// goes up with each use of the slot. Packets for a former queue pair thus do not reach its successor.
const (
	qpSlotBits   = 17
	qpNumberBits = 24
	minQPSlot    = 17 // RXE_MIN_QP_INDEX; the management queue pairs have 0 and 1
	maxQPSlot    = 1 << qpSlotBits
	// maxQP is the limit of the kernel's rxe. The table has more slots: see objectCounts.
	maxQP = 1<<16 - minQPSlot
)

// numberBits holds the widths of the slot and of the whole number, in bits.
type numberBits struct{ slot, number uint }

// qpBitsOf returns the widths of queue pair numbers for a kind of adapter.
func qpBitsOf(t *queue.Traits) numberBits {
	return numberBits{cmp.Or(t.QPSlotBits, qpSlotBits), cmp.Or(t.QPNumberBits, qpNumberBits)}
}

// join returns the number for a slot and a generation.
func (b numberBits) join(generation uint8, slot uint32) uint32 {
	return (uint32(generation)<<b.slot | slot) & (1<<b.number - 1)
}

// slotOf returns the slot of a number.
func (b numberBits) slotOf(num uint32) uint32 { return num & (1<<b.slot - 1) }

// srqBits holds the widths of the numbers of shared receive queues.
var srqBits = numberBits{qpSlotBits, qpNumberBits}

// service is the transport service of a type of queue pair.
type service struct {
	wire     roce.Service
	reliable bool // requests are acknowledged
	datagram bool // each request names its destination
}

// services maps the supported types of queue pairs to their services.
var services = map[ib.QPType]service{
	ib.QPTypeRC:      {wire: roce.RC, reliable: true},
	ib.QPTypeUC:      {wire: roce.UC},
	ib.QPTypeUD:      {wire: roce.UD, datagram: true},
	ib.QPTypeGSI:     {wire: roce.UD, datagram: true},
	ib.QPTypeXRCInit: {wire: roce.XRC, reliable: true},
	ib.QPTypeXRCTgt:  {wire: roce.XRC, reliable: true},
	ib.QPTypeSRD:     {wire: roce.SRD, reliable: true, datagram: true},
}

// QP is a queue pair. The requester takes send work requests out of the send ring and makes packets from them
// (req.go). The completer turns the responses into completions (comp.go). The responder executes the peer's requests
// (resp.go).
type QP struct {
	dev *Device
	obj ib.QPHandle
	num uint32
	typ ib.QPType
	service
	pd     *pd
	ctx    *userContext   // nil for a consumer in this process
	user   ib.UserContext // the context for which a wrapper of the driver posts requests; nil: none
	refill func()         // posts receives when the receive queue is empty; may be nil
	writes ib.WriteHolder // may be nil
	counts *objectCounts  // see Device.counts
	owner  any            // the user, for Device.shares; nil: the consumers in this process
	listed int            // index in its directory; under directory.mu
	sendCQ *cq
	recvCQ *cq
	sigAll bool
	cap    ib.QPCap
	sq     queue.SendQueue
	rq     queue.RecvQueue

	recorder       queue.Recorder // sq, if it is one; otherwise nil
	notifiesWrites bool           // see queue.WriteNotifier

	xrcd *xrcd // only XRC targets
	srq  *srq  // has the receives instead of rq; may be nil

	lane *lane // shared by the queue pairs of a program; other queue pairs and XRC targets have their own

	sending sync.Mutex // serialises PostSend, and excludes it from reset
	queued  queue.Send // the request of QueueSend; under sending

	posting  sync.Mutex // serialises PostRecv, and excludes it from reset; after sending
	receives receives

	// stateNow is a copy of state for other threads.
	stateNow atomic.Uint32
	// peer is a copy of attr.DestQPN for other threads.
	peer atomic.Uint32
	// qkey is the Q_Key that received datagrams need, for other threads; noQKey: the queue pair has none.
	qkey atomic.Uint64
	// psns holds the next expected PSN (<<32) and the next PSN to send, for other threads, as of the end of the last
	// run.
	psns atomic.Uint64
	// traced is true if trace is not nil. Other threads read it; it is written under Device.tracing.
	traced atomic.Bool

	activity activity
	events   events

	// The following fields belong to the thread that runs the queue pair: see activity. That thread takes the locks
	// of completion queues, of shared receive queues and of regions, and waits for nothing else.
	life    life
	state   ib.QPState
	attr    ib.QPAttr
	path    *path
	pathMTU roce.MTU
	mtu     int
	sport   uint16 // UDP source port; 0 while the peer is not known
	req     requester
	resp    responder
	srd     *srd // nil unless the service is SRD
	egress  egress
	timer   timer
	bound   bool // a window of type 2 was bound
	trace   *trace

	failures int // work requests that have failed in this run
}

// CreateQP implements ib.Driver.
func (o ops) CreateQP(obj ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	d := o.dev
	kind, ok := services[init.Type]
	if !ok {
		return nil, fmt.Errorf("queue pair of type %v: %w", init.Type, syscall.EOPNOTSUPP)
	}
	if init.Type == ib.QPTypeGSI {
		if err := checkGSI(d, init, u); err != nil {
			return nil, err
		}
	}
	types := d.traits.QPTypes
	listed := types == nil && init.Type != ib.QPTypeSRD || slices.Contains(types, init.Type)
	if !listed && init.Type != ib.QPTypeGSI {
		return nil, fmt.Errorf("queue pair of type %v: %w", init.Type, syscall.EOPNOTSUPP)
	}
	c := &init.Cap
	qp := &QP{
		dev: d, obj: obj, typ: init.Type, service: kind, pd: domain(init.PD), ctx: d.context(u),
		sigAll: init.SigAll, user: init.User, refill: init.Refill,
	}
	if init.Type != ib.QPTypeSRD {
		qp.writes = init.Writes
	}
	qp.counts = d.counts(qp.ctx)
	switch {
	case qp.ctx != nil:
		qp.owner = ownerOf(qp.ctx.UserContext)
	case qp.user != nil:
		qp.owner = ownerOf(qp.user)
	}
	qp.sendCQ, _ = ib.As[*cq](init.SendCQ)
	qp.recvCQ, _ = ib.As[*cq](init.RecvCQ)
	qp.srq, _ = ib.As[*srq](init.SRQ)
	if init.Type == ib.QPTypeXRCTgt {
		// An XRC target shares nothing with a user, and may outlive the context in which it was created.
		qp.ctx, *c = nil, ib.QPCap{}
		qp.xrcd, _ = ib.As[*xrcd](init.XRCD)
	}
	if !hasReceiveQueue(qp) { // the size of its queue is ignored (ibv_create_qp(3))
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	for _, l := range []struct {
		what        string
		asked, most uint32
	}{
		{"send work requests", c.MaxSendWR, d.limits.wr}, {"receive work requests", c.MaxRecvWR, d.limits.wr},
		{"gather elements", c.MaxSendSGE, d.limits.sge}, {"scatter elements", c.MaxRecvSGE, d.limits.sge},
		{"bytes inline", c.MaxInlineData, d.limits.inline},
	} {
		if l.asked > l.most {
			return nil, fmt.Errorf("%d %s, at most %d: %w", l.asked, l.what, l.most, syscall.EINVAL)
		}
	}
	if qp.lane = new(lane); qp.ctx != nil {
		qp.lane = &qp.ctx.lane
	}
	qp.req.init(qp)
	qp.resp.qp, qp.srd = qp, newSRD(qp)
	qp.initAttrs()
	if err := qp.makeQueues(c, u); err != nil {
		return nil, err
	}
	if err := qp.count(); err != nil {
		qp.freeQueues()
		return nil, err
	}
	if err := number(d, qp, init.FixedNumber); err != nil {
		qp.uncount()
		qp.freeQueues()
		return nil, err
	}
	slot := d.qpBits.slotOf(qp.num)
	if qp.datagram && qp.srd == nil {
		qp.sport = roce.SourcePortUD(qp.num)
	}
	if qp.ctx != nil {
		if err := qp.ctx.list(qp); err != nil {
			d.qps.drop(slot)
			qp.uncount()
			qp.freeQueues()
			return nil, err
		}
	}
	qp.timer.init(qp)
	obj.SetNum(qp.num)
	qp.traceRequests()
	d.qps.set(slot, qp)
	return qp, nil
}

// makeQueues creates the two queues, and reports their locations to a program.
func (qp *QP) makeQueues(c *ib.QPCap, u *ib.Udata) (err error) {
	if qp.ctx != nil {
		qp.sq, qp.rq, err = qp.ctx.queues.CreateQP(qp.typ, c, hasReceiveQueue(qp), u)
		qp.recorder, _ = qp.sq.(queue.Recorder)
		if w, ok := qp.rq.(queue.WriteNotifier); ok {
			qp.notifiesWrites = w.NotifiesWrites()
		}
	} else {
		qp.sq, qp.rq = queue.NewSend(c), queue.NewReceive(int(c.MaxRecvWR), c.MaxRecvSGE)
		c.MaxSendWR = uint32(qp.sq.Capacity())
		if hasReceiveQueue(qp) {
			c.MaxRecvWR = uint32(qp.rq.Capacity())
		}
	}
	qp.cap = *c
	return err
}

func (qp *QP) freeQueues() {
	qp.sq.Free()
	qp.rq.Free()
}

// PostSend implements ib.DriverQP. It may not sleep.
func (qp *QP) PostSend(wrs []ib.SendWR) (n int, err error) {
	if qp.dev.broken.Load() {
		return 0, errBroken
	}
	p := qp.dev.begin(false)
	defer p.caughtAs(&err)
	n, err = qp.req.postSend(&p.posted, wrs)
	p.wake(qp)
	p.endMethod(qp)
	return n, err
}

// QueueSend implements ib.SendQueuer. It may not sleep.
func (qp *QP) QueueSend(wrs []ib.SendWR) (n int, err error) {
	if qp.dev.broken.Load() {
		return 0, errBroken
	}
	return qp.req.postSend(&qp.queued, wrs)
}

// postSend posts work requests by way of w, which belongs to the caller or is guarded by sending.
func (r *requester) postSend(w *queue.Send, wrs []ib.SendWR) (n int, err error) {
	qp := r.qp
	qp.sending.Lock()
	defer qp.sending.Unlock()
	if s := qp.State(); s < ib.QPRTS { // reset holds sending, so no work request outlives the reset
		return 0, fmt.Errorf("post send to queue pair %d in state %v: %w", qp.num, s, syscall.EINVAL)
	}
	for ; n < len(wrs); n++ {
		if err := r.describe(w, &wrs[n]); err != nil {
			return n, err
		}
		if pushed, ok := qp.sq.Push(w); !ok {
			return n, errRingGone
		} else if !pushed {
			return n, fmt.Errorf("send queue of queue pair %d is full: %w", qp.num, syscall.ENOMEM)
		}
	}
	return n, nil
}

// PostRecv implements ib.DriverQP. It may not sleep.
func (qp *QP) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	if !hasReceiveQueue(qp) {
		return 0, fmt.Errorf("post receive to queue pair %d, which has no receive queue of its own: %w", qp.num, syscall.EINVAL)
	}
	n, err = qp.postRecv(wrs)
	if qp.State() == ib.QPErr {
		p := qp.dev.begin(false)
		defer p.caught()
		p.wake(qp)
		if qp.user == nil {
			p.endMethod(qp)
		} else {
			p.endElsewhere() // the caller may hold a lock that Refill takes
		}
	}
	return n, err
}

func (qp *QP) postRecv(wrs []ib.RecvWR) (n int, err error) {
	qp.posting.Lock()
	defer qp.posting.Unlock()
	if s := qp.State(); s == ib.QPReset {
		return 0, fmt.Errorf("post receive to queue pair %d in state %v: %w", qp.num, s, syscall.EINVAL)
	}
	n, full, err := qp.receives.post(qp.rq, wrs, qp.cap.MaxRecvSGE)
	if full {
		err = fmt.Errorf("receive queue of queue pair %d is full: %w", qp.num, syscall.ENOMEM)
	}
	return n, err
}

// Doorbell implements ib.UserQP. It may not sleep.
func (qp *QP) Doorbell(h *ib.Hold) {
	if p, ok := h.Deferred().(*pass); ok && p.dev == qp.dev {
		p.wake(qp)
		return
	}
	p := qp.dev.begin(false)
	p.wake(qp)
	if h == nil || len(p.todo) == 0 {
		defer p.caught()
		p.endMethod(qp)
		return
	}
	p.held = h
	h.Defer(p)
}

var errBroken = fmt.Errorf("the device has failed: %w", syscall.EIO)

// Posted implements ib.UserQP. It may not sleep.
func (qp *QP) Posted() (at uint32, some bool) {
	if qp.State() < ib.QPRTS {
		return 0, false
	}
	return qp.sq.Posted()
}

// TakeBack implements ib.UserQP.
func (qp *QP) TakeBack() {
	qp.exclusively(func(*pass) {
		if qp.state < ib.QPRTS {
			qp.sq.TakeBack()
		}
	})
}

// setState changes the state for a reason.
func (qp *QP) setState(s ib.QPState, why driver.StateCause) {
	from := qp.state
	if s != from {
		qp.trace.note(traceState, uint32(s))
	}
	if qp.state = s; s != from {
		qp.report().state(from, why)
	}
	if s != ib.QPSQD {
		qp.req.drain = notDraining
	}
	qp.stateNow.Store(uint32(s))
}

// State implements ib.DriverQP. It may not sleep.
func (qp *QP) State() ib.QPState { return ib.QPState(qp.stateNow.Load()) }

// Peek implements ib.QPPeeker.
func (qp *QP) Peek() ib.QPAttr {
	psns := qp.psns.Load()
	return ib.QPAttr{State: qp.State(), DestQPN: qp.peer.Load(), RQPSN: uint32(psns >> 32), SQPSN: uint32(psns)}
}

// Destroy implements ib.DriverQP. The packets that result from earlier events are sent first, above all the
// acknowledgement of a request that the consumer has just seen complete.
func (qp *QP) Destroy() error {
	qp.dev.qps.set(qp.dev.qpBits.slotOf(qp.num), nil)
	bound := false
	if !qp.exclusively(func(*pass) {
		qp.report().state(qp.state, driver.StateCause{Reason: driver.ByDestroy})
		qp.life.reach(destroyed)
		qp.timer.stop()
		qp.egress.drop()
		qp.req.release()
		if qp.srd != nil {
			qp.srd.reset()
		}
		bound = qp.bound
	}) {
		return nil // its resources stay until the device ends
	}
	if bound {
		unbindWindows(qp.dev, qp)
	}
	if qp.ctx != nil {
		qp.ctx.unlist(qp)
	}
	qp.forgetPort()
	// Other threads that have a pointer to the queue pair find it destroyed. The locks wait for the end of posts.
	qp.sending.Lock()
	qp.posting.Lock()
	qp.freeQueues()
	qp.posting.Unlock()
	qp.sending.Unlock()
	qp.dev.qps.drop(qp.dev.qpBits.slotOf(qp.num))
	qp.uncount()
	return nil
}

// ringGone records that the program has removed the memory of a ring. The queue pair then enters the error state.
func (qp *QP) ringGone() { qp.life.reach(ringless) }

// enterError moves the queue pair to ERR, where all work requests complete with a flush error. (rxe_qp_error)
func (qp *QP) enterError(why driver.StateCause) {
	qp.resp.rcv.DropReplies()
	qp.enterErrorReplying(why)
}

// enterErrorReplying is enterError, but the responses to executed requests are still sent.
func (qp *QP) enterErrorReplying(why driver.StateCause) {
	qp.setState(ib.QPErr, why)
	qp.resp.rcv.Abort()
	qp.req.snd.Stop()
}

// EnterError implements ib.Driver: every queue pair enters ERR, where work requests are flushed, including later
// ones. EnterError may not sleep.
func (o ops) EnterError() {
	d := o.dev
	d.failed.Store(true) // from now on, change refuses to leave RESET
	p := d.begin(false)
	for qp := range d.qps.all() {
		enter := func(*pass) {
			if qp.state != ib.QPReset {
				qp.enterError(driver.StateCause{Reason: driver.ByDevice})
			}
		}
		if !qp.activity.wake() {
			p.post(qp, enter)
			continue
		}
		if enter(p); qp.state == ib.QPErr && qp.life < detached {
			qp.flush()
		}
		if !qp.activity.rest() {
			p.todo = append(p.todo, qp)
		}
	}
	p.endElsewhere() // the rest of the work may wait for the memory of programs
}

// Disassociate implements ib.Disassociator: it flushes the queue pairs of the context once more, and detaches them.
func (o ops) Disassociate(c ib.UserContext) {
	d := o.dev
	p := d.begin(false)
	var tasks []*task
	for qp := range d.qps.all() {
		if qp.user != c && (qp.ctx == nil || qp.ctx.UserContext != c) {
			continue
		}
		tasks = append(tasks, p.post(qp, func(p *pass) {
			if qp.state != ib.QPReset {
				qp.enterError(driver.StateCause{Reason: driver.ByContext})
			}
			qp.advance(p)
			qp.life.reach(detached)
			qp.egress.drop()
			qp.timer.stop()
		}))
	}
	p.endElsewhere()
	for _, t := range tasks {
		t.await(t.qp.unresponsive) // if memory does not answer, the task runs when it does
	}
}
