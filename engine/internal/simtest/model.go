package simtest

import (
	"bytes"

	"verbena/ib"
)

// completed checks a completion against the model, and reports whether it was solicited.
func (w *world) completed(wc *ib.WC) (solicited bool) {
	var e *end
	for _, o := range w.ends {
		if o.qp == wc.QP || o.rqp == wc.QP {
			e = o
		}
	}
	w.trace(wc.ID, uint64(wc.Status), uint64(wc.Opcode))
	if e == nil {
		w.failf("a completion of no queue pair: %+v", wc)
	}
	switch x := w.byID[wc.ID].(type) {
	case *request:
		w.note("qp %d: %v completes: %v", e.qp.Num(), x, wc.Status)
		w.statuses[wc.Status]++
		w.seen(e, wc, false, nil)
		e.sendCompleted(x, wc)
	case *receive:
		w.note("qp %d: receive %d completes: %v, opcode %d, %d bytes", e.qp.Num(), x.n, wc.Status, wc.Opcode, wc.ByteLen)
		w.seen(e, wc, true, e.host.at(x.span))
		return e.receiveCompleted(x, wc)
	default:
		w.failf("qp %d: a completion of nothing: %+v", e.qp.Num(), wc)
	}
	return false
}

var completionOf = map[ib.WROpcode]ib.WCOpcode{
	ib.WRSend: ib.WCSend, ib.WRSendWithImm: ib.WCSend, ib.WRRDMAWrite: ib.WCRDMAWrite, ib.WRRDMAWriteWithImm: ib.WCRDMAWrite,
	ib.WRRDMARead: ib.WCRDMARead, ib.WRAtomicCmpAndSwp: ib.WCCompSwap, ib.WRAtomicFetchAdd: ib.WCFetchAdd,
	ib.WRSendWithInv: ib.WCSend, ib.WRAtomicWrite: ib.WCAtomicWrite, ib.WRFlush: ib.WCFlush,
}

// sendCompleted checks the completion of a send work request.
func (e *end) sendCompleted(q *request, wc *ib.WC) {
	w := e.w
	if q.n >= len(e.requests) || e.requests[q.n] != q || q.n < e.done || q.n >= e.posted {
		w.failf("qp %d: %v completes with %v, of %d posted %d are complete", e.qp.Num(), q, wc.Status, e.posted, e.done)
	}
	// Earlier requests without a completion have succeeded.
	for ; e.done < q.n; e.done++ {
		e.succeeded(e.requests[e.done], false)
	}
	e.done++
	if wc.Status == ib.WCSuccess {
		if wc.Opcode != completionOf[q.op] {
			w.failf("qp %d: %v completes with opcode %d", e.qp.Num(), q, wc.Opcode)
		}
		e.succeeded(q, true)
		return
	}
	q.ended, q.status = true, wc.Status
	if w.final {
		w.failf("qp %d: %v never completed", e.qp.Num(), q)
	}
	if !e.allows(q, wc.Status) {
		w.failf("qp %d: %v fails with %v; failed %t, killed %t, a receive failed %t, state %v, peer's %v",
			e.qp.Num(), q, wc.Status, e.failed, e.killed, e.refused, e.qp.State(), e.peer.qp.State())
	}
	want := ib.QPErr
	if !w.service.reliable() && !e.killed {
		want = ib.QPSQE
	}
	if s := e.qp.State(); s != want {
		w.failf("qp %d: %v failed with %v, and the queue pair is in %v", e.qp.Num(), q, wc.Status, s)
	}
	if wc.Status != ib.WCWRFlushErr {
		e.failed = true
		if !w.service.reliable() {
			w.clock.AfterFunc(w.profile.latency*20, e.recover)
		}
	}
}

// allows reports whether a request may fail with this status.
func (e *end) allows(q *request, s ib.WCStatus) bool {
	w := e.w
	if s == ib.WCWRFlushErr {
		e.flushed = true // another completion may show the reason
		return true
	}
	switch {
	case e.failed:
		return false
	case s == ib.WCLocProtErr:
		return q.fault == badLocalKey
	case !w.service.reliable():
		return false
	case s == ib.WCRetryExcErr:
		return w.profile.budget < 0 && !w.profile.perfect() || e.peer.rqp.State() == ib.QPErr
	case s == ib.WCRNRRetryExcErr:
		return e.peer.in.late && e.rnrRetry < 7 && q.completes()
	case s == ib.WCRemAccessErr:
		return q.fault == badKey || q.fault == badRange || q.fault == spentKey
	case s == ib.WCRemInvReqErr:
		return q.fault == shortReceive
	case s == ib.WCRemOpErr:
		return q.fault == badReceive
	}
	return false
}

// broken reports whether the queue pair has a reason to flush.
func (e *end) broken() bool {
	return e.w.final || e.failed || e.killed || e.refused || e.peer.wrong(badKey, badRange, spentKey)
}

// wrong reports whether a request with one of these faults may have been sent.
func (e *end) wrong(faults ...fault) bool {
	for _, q := range e.requests[:e.posted] {
		for _, f := range faults {
			if q.fault == f {
				return true
			}
		}
	}
	return false
}

// succeeded checks the effect of a successful request.
func (e *end) succeeded(q *request, signaled bool) {
	w := e.w
	q.ended, q.success = true, true
	switch {
	case q.fault != sound:
		w.failf("qp %d: %v succeeds", e.qp.Num(), q)
	case e.failed:
		w.failf("qp %d: %v succeeds after a failure", e.qp.Num(), q)
	case signaled != (e.sigAll || q.flags&ib.SendSignaled != 0):
		w.failf("qp %d: %v: completion %t, signalled all %t", e.qp.Num(), q, signaled, e.sigAll)
	}
	q.sent = e.successes
	e.successes++
	if w.service.reliable() {
		e.effect(q)
	}
	if !q.atomic() && q.op != ib.WRRDMARead {
		e.host.giveBack(q.local)
	}
}

// effect checks the effect of a successful reliable request.
func (e *end) effect(q *request) {
	w := e.w
	there := e.peer.host
	if w.travels() && q.completes() && e.peer.arrived <= q.message {
		there.recvCQ.poll(w) // the message has arrived in the same step
	}
	switch {
	case q.completes() && e.peer.arrived <= q.message:
		w.failf("qp %d: %v succeeds, and was not received", e.qp.Num(), q)
	case q.writes() && !q.seen:
		if got := there.at(q.remote); !bytes.Equal(got, q.data) {
			w.failf("qp %d: %v succeeds; in the peer's memory byte %d differs", e.qp.Num(), q, differs(got, q.data))
		}
		if !q.reread {
			there.giveBack(q.remote)
		}
	case q.op == ib.WRRDMARead:
		if got := e.host.at(q.local); !bytes.Equal(got, q.data) {
			w.failf("qp %d: %v succeeds; what it brought differs in byte %d", e.qp.Num(), q, differs(got, q.data))
		}
		e.host.giveBack(q.local)
	case q.atomic():
		e.atomicResult(q, e.host.word(q.local.at))
		e.host.giveBack(q.local)
	}
}

// atomicResult checks the result of an atomic: it includes the effects of all earlier atomics, and of no other.
func (e *end) atomicResult(q *request, got uint64) {
	if !q.word.shared {
		if got != q.want {
			e.w.failf("qp %d: %v found %#x, want %#x", e.qp.Num(), q, got, q.want)
		}
		return
	}
	for _, o := range e.requests {
		if o.word == q.word && got>>o.bit&1 != 0 != (o.n < q.n) {
			e.w.failf("qp %d: %v found %#x, and %v sets bit %d", e.qp.Num(), q, got, o, o.bit)
		}
	}
}

func differs(a, b []byte) int {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// receiveCompleted checks the completion of a receive, and reports whether the message was solicited.
func (e *end) receiveCompleted(v *receive, wc *ib.WC) bool {
	w := e.w
	e.in.completed(e, v)
	mem := e.host.at(v.span)
	if wc.Status != ib.WCSuccess {
		e.receiveFailed(v, wc)
		e.host.giveBack(v.span)
		return false
	}
	if e.refused {
		w.failf("qp %d: receive %d succeeds after a failure", e.qp.Num(), v.n)
	}
	q := e.message(wc, mem)
	if q == nil {
		w.failf("qp %d: receive %d has a message of %d bytes, opcode %d, immediate data %#x (%t) that nobody sent like that",
			e.qp.Num(), v.n, wc.ByteLen, wc.Opcode, wc.Imm, wc.Flags&ib.WCWithImm != 0)
	}
	q.arrived++
	if w.service.reliable() {
		// The data of earlier WRITEs must be in memory.
		for _, o := range e.peer.requests[:q.n] {
			if o.writes() && !o.ended && !o.seen && !bytes.Equal(e.host.at(o.remote), o.data) {
				w.failf("qp %d: message %d arrives before %v", e.qp.Num(), q.message, o)
			}
		}
	}
	if q.op == ib.WRSendWithInv {
		e.takeBack(q)
	}
	e.arrived++
	e.host.giveBack(v.span)
	return q.flags&ib.SendSolicited != 0
}

// message returns the request that matches a completion, or nil if there is none.
func (e *end) message(wc *ib.WC, mem []byte) *request {
	for _, q := range e.peer.requests[:e.peer.posted] {
		// Reliable: only the next message. Otherwise any message that the network can have delivered.
		if q.completes() && (!e.w.service.reliable() || q.message == e.arrived) && e.carries(q, wc, mem) && e.explained(q) {
			return q
		}
	}
	return nil
}

// carries reports whether a completed receive matches a request exactly.
func (e *end) carries(q *request, wc *ib.WC, mem []byte) bool {
	flags := wc.Flags
	if q.op == ib.WRRDMAWriteWithImm {
		return wc.Opcode == ib.WCRecvRDMAWithImm && flags == ib.WCWithImm && wc.Imm == q.imm && int(wc.ByteLen) == len(q.data) &&
			bytes.Equal(e.host.at(q.remote), q.data)
	}
	if e.w.service == UD {
		if len(mem) < grhLen || flags&ib.WCGRH == 0 || wc.SrcQP != e.peer.qp.Num() || !e.headerFits(mem[:grhLen]) {
			return false
		}
		mem, flags = mem[grhLen:], flags&^ib.WCGRH
		wc.ByteLen -= grhLen
		defer func() { wc.ByteLen += grhLen }()
	}
	fits := flags == 0
	switch q.op {
	case ib.WRSendWithImm:
		fits = flags == ib.WCWithImm && wc.Imm == q.imm
	case ib.WRSendWithInv:
		fits = flags == ib.WCWithInvalidate && wc.InvalidateRKey == q.lease.key
	}
	return wc.Opcode == ib.WCRecv && fits &&
		int(wc.ByteLen) == len(q.data) && len(q.data) <= len(mem) && bytes.Equal(mem[:len(q.data)], q.data) && q.fault != badLocalKey
}

// headerFits checks the addresses in the header before a datagram.
func (e *end) headerFits(grh []byte) bool {
	src, dst := e.peer.host.addr, e.host.addr
	if src.Is4() {
		s, d := src.As4(), dst.As4()
		return grh[20] == 0x45 && bytes.Equal(grh[32:36], s[:]) && bytes.Equal(grh[36:40], d[:])
	}
	s, d := src.As16(), dst.As16()
	return grh[0]>>4 == 6 && bytes.Equal(grh[8:24], s[:]) && bytes.Equal(grh[24:40], d[:])
}

// explained reports whether an unreliable message may arrive now, possibly again.
func (e *end) explained(q *request) bool {
	w := e.w
	if w.service.reliable() {
		return q.fault == sound
	}
	if w.profile.keepsOrder() {
		for _, o := range e.peer.requests[q.n:] {
			if o.arrived > 0 {
				return false // this message, or a later one, has already arrived
			}
		}
	}
	if w.travels() {
		return true // packets on the shortcut are not counted
	}
	sent := q.sent
	if !q.ended { // no earlier request has failed
		sent = e.peer.successes + q.n - e.peer.done
	}
	return sent < len(e.peer.lasts) && q.arrived < w.copies[copyKey{e.host.addr, e.rqp.Num(), e.peer.lasts[sent]}]
}

// receiveFailed checks a receive that did not succeed.
func (e *end) receiveFailed(v *receive, wc *ib.WC) {
	w := e.w
	legal := false
	switch wc.Status {
	case ib.WCWRFlushErr:
		e.flushed, legal = true, e.rqp.State() == ib.QPErr
	case ib.WCLocLenErr:
		legal = v.fault == shortReceive && e.arrived == v.n && e.peer.wrong(shortReceive) && !e.refused
		e.refused = true
	case ib.WCLocProtErr:
		legal = v.fault == badReceive && e.arrived == v.n && e.peer.wrong(badReceive) && !e.refused
		e.refused = true
	}
	if !legal {
		w.failf("qp %d: receive %d of %v fails with %v in state %v; %d messages have arrived", e.qp.Num(), v.n, v.fault, wc.Status, e.qp.State(), e.arrived)
	}
}

// quiet checks that no request is waiting, after the last event.
func (e *end) quiet() {
	w := e.w
	for _, qp := range e.qps() {
		switch s := qp.State(); {
		case s == ib.QPRTS:
		case s == ib.QPErr && e.broken():
		default:
			w.failf("qp %d: ends in %v", qp.Num(), s)
		}
	}
	if in := e.in; e.posted < len(e.requests) || in.offered < len(in.receives) {
		w.failf("qp %d: %d of %d requests, %d of %d receives could be posted", e.qp.Num(), e.posted, len(e.requests), in.offered, len(in.receives))
	}
	if w.profile.perfect() && !e.in.late && !e.peer.in.late && !e.disturbed() && !e.peer.disturbed() {
		if last := e.requests[len(e.requests)-1]; !last.success {
			w.failf("qp %d: %v did not succeed on a perfect network", e.qp.Num(), last)
		}
		if e.arrived != e.peer.messages {
			w.failf("qp %d: %d of %d messages arrived over a perfect network", e.qp.Num(), e.arrived, e.peer.messages)
		}
	}
}

// disturbed reports whether the schedule has a fault that keeps requests from succeeding.
func (e *end) disturbed() bool {
	if e.killed {
		return true
	}
	for _, q := range e.requests {
		if q.fault != sound {
			return true
		}
	}
	return false
}

// over checks the final state after the queue pair has been flushed.
func (e *end) over() {
	w := e.w
	for ; e.done < e.posted; e.done++ {
		e.succeeded(e.requests[e.done], false)
	}
	for _, l := range e.leases {
		if l.over {
			e.keeps(e.peer.host, l.span, "memory that was taken back by request", l.spent.n)
		}
	}
	happened := -1 // the last request that has had an effect
	for _, q := range e.requests {
		if q.success && !q.atomic() && q.op != ib.WRRDMARead {
			e.keeps(e.host, q.local, "memory sent by request", q.n)
		}
		if w.service.reliable() && e.happened(q) {
			happened = q.n
		}
	}
	for _, q := range e.requests[:happened+1] {
		if !e.complete(q) {
			w.failf("qp %d: %v has happened, and %v has not", e.qp.Num(), e.requests[happened], q)
		}
	}
	for _, q := range e.requests {
		e.overWrite(q)
	}
}

// keeps checks that memory was not written after its consumer reused it.
func (e *end) keeps(h *host, s span, what string, n int) {
	for i, b := range h.at(s) {
		if b != givenBack {
			e.w.failf("qp %d: %s %d: byte %d was written after the completion", e.qp.Num(), what, n, i)
		}
	}
}

// overWrite checks the final memory of an RDMA WRITE.
func (e *end) overWrite(q *request) {
	if !q.writes() {
		return
	}
	mem := e.peer.host.at(q.remote)
	switch {
	case q.seen, q.success && e.w.service.reliable() && !q.reread:
		e.keeps(e.peer.host, q.remote, "memory written by request", q.n)
	case q.success && e.w.service.reliable():
		if !bytes.Equal(mem, q.data) {
			e.w.failf("qp %d: %v: the peer's memory has changed since", e.qp.Num(), q)
		}
	case q.fault != sound || !q.posted:
		if bytes.Equal(mem, q.data) && len(mem) > 8 {
			e.w.failf("qp %d: %v was done", e.qp.Num(), q)
		}
	case e.w.service == UC && e.w.profile.perfect() && q.success && !(q.completes() && e.peer.in.late) && !bytes.Equal(mem, q.data):
		e.w.failf("qp %d: %v did not arrive over a perfect network", e.qp.Num(), q)
	}
}

// happened reports whether a reliable request certainly had an effect on the peer.
func (e *end) happened(q *request) bool {
	switch {
	case q.success, q.seen:
		return true
	case q.completes():
		return e.peer.arrived > q.message
	case q.op == ib.WRAtomicFetchAdd:
		return e.peer.host.word(q.word.at)>>q.bit&1 != 0
	case q.writes() && len(q.data) > 8:
		return bytes.Equal(e.peer.host.at(q.remote), q.data)
	}
	return false
}

// complete reports whether a request may have been executed completely.
func (e *end) complete(q *request) bool {
	switch {
	case q.success, q.seen:
		return true
	case q.fault != sound:
		return false
	case q.completes():
		return e.peer.arrived > q.message
	case q.op == ib.WRAtomicFetchAdd:
		return e.peer.host.word(q.word.at)>>q.bit&1 != 0
	case q.writes():
		return bytes.Equal(e.peer.host.at(q.remote), q.data)
	}
	return true
}
