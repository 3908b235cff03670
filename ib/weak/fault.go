package weak

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"verbena/ib"
)

// Faults is the set of the choices that make a device fail. A correct consumer reports these failures to its caller, so
// its test may fail. All does not contain them. A run with such a choice shows only whether the consumer keeps the
// contract after a failure.
const Faults = Set(1)<<FailedRequest | 1<<FailedCall | 1<<FailedDevice | 1<<FailedPost

// The next constants limit the numbers of the requests and calls that fail.
const (
	faultScales  = 7  // the number of the failed request has at most this many bits
	failedCalls  = 16 // one of the first calls fails
	flushDelays  = 48 // maximum additional delay of a flushed request after a failure, in steps
	sqeDelay     = 24 // minimum delay of a flushed request in SQE, in steps
	invalidLKey  = 0x7ffffff1
	maxSQEDelays = 64 // posts of a queue pair that are delayed in SQE
	sqePostDelay = 10 * time.Millisecond
	minFaultGaps = 3 // a second request fails after at least this many times the number of the first one
)

// faultNumber returns the number of the request or call of the device that fails. All magnitudes are equally likely.
func (d *driver) faultNumber(c Choice) uint64 {
	scale := uint64(1) << d.drawRandom(c, uint64(d.ordinal), 0, faultScales)
	return scale + uint64(d.drawRandom(c, uint64(d.ordinal), 1, scale))
}

// failCall returns the error of a call that creates or prepares an object, if the call is drawn. The error contains the
// name of the call.
func (d *driver) failCall(what string) error {
	if !d.hasChoice(FailedCall) {
		return nil
	}
	d.mu.Lock()
	d.calls++
	n := d.calls
	d.mu.Unlock()
	fails := n == 1+uint64(d.drawRandom(FailedCall, uint64(d.ordinal), 0, failedCalls))
	about := func() string { return what }
	if d.decide(Point{Choice: FailedCall, Event: EventCall, Seq: n}, boolValue(fails), about) == 0 {
		return nil
	}
	if d.CallFailed != nil {
		d.CallFailed()
	}
	return fmt.Errorf("%s: no resources: %w", what, syscall.ENOMEM)
}

// failPost returns the error of a post, if the post is the one that fails.
func (d *driver) failPost() error {
	if !d.hasChoice(FailedPost) {
		return nil
	}
	first := d.faultNumber(FailedPost)
	d.mu.Lock()
	d.refused++
	n := d.refused
	d.mu.Unlock()
	if d.decide(Point{Choice: FailedPost, Event: EventPost, Seq: n}, boolValue(n == first), nil) == 0 {
		return nil
	}
	return fmt.Errorf("post: no resources: %w", syscall.ENOMEM)
}

// countPost counts a posted request, and makes the device fail if it is the request at which the device fails.
func (d *driver) countPost() {
	if !d.hasChoice(FailedDevice) || d.Fail == nil {
		return
	}
	d.mu.Lock()
	d.posts++
	n := d.posts
	d.mu.Unlock()
	now := n == d.faultNumber(FailedDevice)
	if d.decide(Point{Choice: FailedDevice, Event: EventPost, Seq: n}, boolValue(now), nil) != 0 {
		go d.Fail()
	}
}

// delaySQEPost delays one of the first posts on a queue pair in SQE. Another thread of the consumer can move the queue
// pair to RTS in the meantime.
//
//verbena:allow nosleep any thread may be slow, and this one is bounded
func (q *qp) delaySQEPost() {
	if !q.d.hasChoice(FailedRequest) || q.DriverQP.State() != ib.QPSQE || q.sqePosts.Add(1) > maxSQEDelays {
		return
	}
	wait := syscall.NsecToTimespec(int64(sqePostDelay))
	_ = syscall.Nanosleep(&wait, nil)
}

// planFailure makes a request fail in the inner driver if the request is drawn. The inner driver then moves the
// queue pair to ERR or SQE, and flushes the later requests.
//
//verbena:held mu
func (q *qp) planFailure(r *weakRequest) {
	d := q.d
	if q.sendCQ == nil || q.room.MaxSendSGE == 0 || q.DriverQP.State() != ib.QPRTS {
		return
	}
	switch q.init.Type {
	case ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD:
	default:
		return
	}
	length := uint32(1)
	switch r.wr.Opcode {
	case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead:
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		length = atomicWordLen
	default:
		return
	}
	if r.fails = q.drawStatus(r); r.fails == ib.WCSuccess {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mrs[invalidLKey] != nil {
		r.fails = ib.WCSuccess
		return
	}
	r.wr.Flags &^= ib.SendInline
	r.wr.Inline = nil
	r.wr.SGList = []ib.SGE{{Addr: atomicWordLen, Length: length, LKey: invalidLKey}}
}

// drawStatus returns the status with which a request fails, or WCSuccess.
//
//verbena:held mu
func (q *qp) drawStatus(r *weakRequest) ib.WCStatus {
	d := q.d
	if q.exceedsPeerReads(r) {
		return ib.WCRemInvReqErr
	}
	if status := q.strictPeerStatus(r); status != ib.WCSuccess {
		return status
	}
	if !d.hasChoice(FailedRequest) {
		return ib.WCSuccess
	}
	first := d.faultNumber(FailedRequest)
	d.mu.Lock()
	d.sent++
	n := d.sent
	d.mu.Unlock()
	second := first*minFaultGaps + uint64(d.drawRandom(FailedRequest, uint64(d.ordinal), 2, 1<<faultScales))
	status := ib.WCSuccess
	switch {
	case n != first && n != second:
	case q.init.Type == ib.QPTypeRC:
		status = []ib.WCStatus{ib.WCRetryExcErr, ib.WCRemOpErr, ib.WCRNRRetryExcErr,
			ib.WCGeneralErr}[d.drawRandom(FailedRequest, q.ord, n, 4)]
	default:
		status = ib.WCLocQPOpErr
	}
	return ib.WCStatus(d.decide(q.point(FailedRequest, EventSend, r.seq), int(status), r.about))
}

// failureDelay returns the additional delay of a completion on a device that fails.
func (e *windowEntry) failureDelay(d *driver) int {
	if !d.hasChoice(FailedRequest) || e.wc.Status != ib.WCWRFlushErr || e.r == nil || e.r.qp == nil {
		return 0
	}
	n := d.drawRandom(FailedRequest, e.qp, e.seq, flushDelays)
	if e.r.qp.DriverQP.State() == ib.QPSQE {
		n = max(n, sqeDelay)
	}
	p := e.point(FailedRequest)
	if p.Event == EventSend {
		p.Event = EventFlush
	}
	return d.decide(p, n, e.about)
}

// recordConnection records the attributes that the two sides of a connection must agree on.
func (q *qp) recordConnection(attr *ib.QPAttr, mask ib.QPAttrMask) {
	own := false
	if mask&ib.QPAttrAV != 0 && attr.AH.HasGRH {
		e, err := q.d.Driver.QueryGID(int(attr.AH.Port), int(attr.AH.GRH.SGIDIndex))
		own = err == nil && e.GID == attr.AH.GRH.DGID
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if mask&ib.QPAttrAV != 0 {
		q.toOwnDevice = own
	}
	if mask&ib.QPAttrDestQPN != 0 {
		q.dest = attr.DestQPN
	}
	if mask&ib.QPAttrSQPSN != 0 {
		q.sendPSN = attr.SQPSN
	}
	if mask&ib.QPAttrRQPSN != 0 {
		q.recvPSN = attr.RQPSN
	}
	if mask&ib.QPAttrPathMTU != 0 {
		q.pathMTU = attr.PathMTU
	}
	if mask&ib.QPAttrMaxRdAtomic != 0 {
		q.readsSent = int(attr.MaxRdAtomic)
	}
	if mask&ib.QPAttrMaxDestRdAtomic != 0 {
		q.readsServed = int(attr.MaxDestRdAtomic)
	}
}

// exceedsPeerReads reports whether a READ or atomic operation may be one more than the peer serves at once. A request
// is in progress until the consumer has polled a completion that proves its end.
//
//verbena:held mu
func (q *qp) exceedsPeerReads(r *weakRequest) bool {
	if !q.d.hasChoice(ReadLimit) || q.init.Type != ib.QPTypeRC || !isReadOrAtomic(r) {
		return false
	}
	p := q.ownPeer()
	if p == nil {
		return false
	}
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	n := 0
	for _, x := range q.out {
		if isReadOrAtomic(x) {
			n++
		}
	}
	return p.readsServed > 0 && p.readsServed < q.readsSent && n > p.readsServed
}

// ownPeer returns a copy of the connection's attributes of the connected peer if it is on the same device, or nil.
func (q *qp) ownPeer() *connection {
	q.d.mu.Lock()
	own := q.connection
	q.d.mu.Unlock()
	if !own.toOwnDevice {
		return nil
	}
	for _, d := range q.d.members() {
		if c := d.connectionOf(own.dest, q.obj.Num()); c != nil {
			return c
		}
	}
	return nil
}

// connectionOf returns a copy of the attributes of queue pair num if its peer is queue pair dest of the same device.
func (d *driver) connectionOf(num, dest uint32) *connection {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.qps {
		if p.obj.Num() == num && p.dest == dest && p.toOwnDevice {
			c := p.connection
			return &c
		}
	}
	return nil
}

// strictPeerStatus returns the status with which the peer makes a request fail because of the connection's attributes,
// or WCSuccess. A reliable connection without the expected PSN ends by its timeout.
//
//verbena:held mu
func (q *qp) strictPeerStatus(r *weakRequest) ib.WCStatus {
	if !q.d.hasChoice(StrictPeer) || q.init.Type != ib.QPTypeRC {
		return ib.WCSuccess
	}
	n := len(r.wr.Inline)
	for _, s := range r.wr.SGList {
		n += int(s.Length)
	}
	p := q.ownPeer()
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	switch {
	case p == nil || p.pathMTU == 0 || q.pathMTU == 0:
	case q.sendPSN != p.recvPSN:
		return ib.WCRetryExcErr
	case q.pathMTU != p.pathMTU && n > min(q.pathMTU.Bytes(), p.pathMTU.Bytes()):
		return ib.WCRemInvReqErr
	}
	return ib.WCSuccess
}

func isReadOrAtomic(r *weakRequest) bool {
	return slices.Contains([]ib.WROpcode{ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd}, r.wr.Opcode)
}

// AllocPD implements ib.Driver.
func (d *driver) AllocPD(u *ib.Udata) (ib.DriverPD, error) {
	if u == nil {
		if err := d.failCall("AllocPD"); err != nil {
			return nil, err
		}
	}
	return d.Driver.AllocPD(u)
}
