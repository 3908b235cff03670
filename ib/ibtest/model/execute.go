package model

import (
	"slices"

	"verbena/ib"
)

// requestExecutor executes work requests at the requester and the responder, and completes them.
type requestExecutor struct {
	device *DeviceState
	call   *CallRecord
	mem    *Memory
	keys   *MemoryKeys
	queues *WorkQueues
	cqs    *CompletionQueues
}

// executeSendWR executes a request at the requester and the responder. n is the number of bytes received. If there is
// no receive yet, or the peer is in INIT, executeSendWR does nothing and wait is true.
func (x *requestExecutor) executeSendWR(q *QP, s *Send) (status []ib.WCStatus, n uint64, wait bool) {
	ok := func(good bool, failures ...ib.WCStatus) ([]ib.WCStatus, uint64, bool) {
		if good {
			return successStatus, 0, false
		}
		return failures, 0, false
	}
	switch s.Op {
	case ib.WRLocalInv:
		if q.Type == ib.QPTypeUC { // a reliable connection waits for earlier requests
			x.call.recordKeyChange(s.InvalidateRKey)
		}
		return ok(x.keys.invalidateKey(q, s.InvalidateRKey), ib.WCLocQPOpErr, ib.WCMWBindErr)
	case ib.WRBindMW:
		return ok(x.keys.executeBind(q, s.Bind), ib.WCMWBindErr)
	case ib.WRRegMR:
		return ok(x.keys.executeRegMR(q, s.Reg), ib.WCLocQPOpErr, ib.WCMWBindErr)
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		return x.executeFetch(q, s)
	}
	src := messageSource{}
	switch {
	case s.Op == ib.WRFlush:
	case s.Flags&ib.SendInline != 0, s.Op == ib.WRAtomicWrite:
		src = messageSource{data: s.Inline, inline: true}
	default:
		l := x.keys.checkSGL(s.SGL, q.PD, 0)
		switch {
		case l.n > x.device.MaxMsgSize:
			if !l.ok {
				x.call.markResultUndefined("a message that is too long, with a wrong key")
			}
			return statusList(ib.WCLocLenErr), 0, false
		case !l.ok && q.Type == ib.QPTypeUD && l.n > uint64(x.device.MTU):
			x.call.markResultUndefined("a datagram that is too long, with a wrong key")
		case !l.ok && s.foreign: // a driver may check either first
			return statusList(ib.WCLocProtErr, ib.WCLocQPOpErr), 0, false
		case !l.ok:
			x.allowPartialData(q, s, &l)
			return statusList(ib.WCLocProtErr), 0, false
		}
		src = messageSource{spans: l.spans, n: l.n}
		x.call.recordGather(s, l.spans)
		src.data = x.loadBytes(l.spans, l.n)
	}
	if q.Type == ib.QPTypeUD {
		switch {
		case s.foreign && len(src.data) > x.device.MTU:
			return statusList(ib.WCLocQPOpErr, ib.WCLocLenErr), 0, false
		case s.foreign:
			return statusList(ib.WCLocQPOpErr), 0, false
		case len(src.data) > x.device.MTU:
			return statusList(ib.WCLocLenErr), 0, false
		}
		if x.device.deferred {
			q.sendUnreliable(s, &src)
			return successStatus, 0, false
		}
		x.sendDatagram(q, s, &src)
		return successStatus, 0, false
	}
	if x.device.deferred && q.Type == ib.QPTypeUC {
		q.sendUnreliable(s, &src)
		return successStatus, 0, false
	}
	status, wait = x.executeRequest(q, s, &src)
	return status, 0, wait
}

// executeRequest executes a request of a connection at the responder.
func (x *requestExecutor) executeRequest(q *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	p := x.queues.connectedPeer(q)
	if p == nil {
		q.held = src.spans
		return x.noResponseStatus(q)
	}
	x.call.recordExchange(q, p)
	if p.Type == ib.QPTypeXRCTgt && !x.queues.selectXRCQueue(p, s) {
		return x.rejectRequest(q, p, ib.WCRemInvReqErr), false
	}
	switch s.Op {
	case ib.WRFlush:
		status = x.executeFlush(q, p, s)
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
		status, wait = x.executeWrite(q, p, s, src)
	default:
		status, wait = x.executeSend(q, p, s, src)
	}
	if !wait {
		x.call.countServedQP(q)
	}
	return status, wait
}

// messageSource is the data of a message.
type messageSource struct {
	data   []byte
	spans  []Span // nil: inline
	n      uint64
	inline bool
}

// allowPartialData allows the data before an invalid element to have arrived, because a driver may send packets before
// it checks the element.
func (x *requestExecutor) allowPartialData(q *QP, s *Send, l *checkedSGL) {
	p := x.queues.connectedPeer(q)
	switch {
	case l.reach == 0 || q.Type == ib.QPTypeUD:
		return
	case p == nil:
		x.call.markResultUndefined("a message with a wrong element, without a peer")
		return
	case p.Type == ib.QPTypeXRCTgt:
		x.call.markResultUndefined("the beginning of an XRC message with a wrong element")
		return
	}
	x.call.recordGather(s, l.spans)
	data := x.loadBytes(l.spans, l.reach)
	switch s.Op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		to, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, l.n, ib.AccessRemoteWrite)
		if ok && allowsOperation(p, s.Op) {
			x.call.recordOverlap(to, l.spans)
			x.allowUnstoredBytes(to, 0, data)
			return
		}
	default:
		r := x.queues.recvQueueOf(p)
		if p.currentSRQ() == 0 && len(r.recvs) > 0 && q.Type == ib.QPTypeRC {
			to := x.keys.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
			if to.ok && to.n >= l.n {
				x.call.recordOverlap(to.spans, l.spans)
				x.allowUnstoredBytes(to.spans, 0, data)
				return
			}
		}
	}
	x.call.markResultUndefined("the peer refuses the beginning of a message with a wrong element")
}

// noResponseStatus returns the result of a request without a peer. A peer in INIT may still be connected.
func (x *requestExecutor) noResponseStatus(q *QP) (status []ib.WCStatus, wait bool) {
	if q.Type == ib.QPTypeUC {
		x.recordLostMessage()
		return successStatus, false
	}
	if p := x.queues.destinationQP(q); p != nil && p.State == ib.QPInit {
		return nil, true
	}
	return statusList(ib.WCRetryExcErr), false
}

// neededPeerRights maps operations to the rights that the peer's queue pair must have.
var neededPeerRights = map[ib.WROpcode]ib.AccessFlags{
	ib.WRRDMAWrite: ib.AccessRemoteWrite, ib.WRRDMAWriteWithImm: ib.AccessRemoteWrite,
	ib.WRAtomicWrite:     ib.AccessRemoteWrite,
	ib.WRRDMARead:        ib.AccessRemoteRead,
	ib.WRAtomicCmpAndSwp: ib.AccessRemoteAtomic, ib.WRAtomicFetchAdd: ib.AccessRemoteAtomic,
}

// allowsOperation reports whether the queue pair allows its peer an operation.
func allowsOperation(p *QP, op ib.WROpcode) bool {
	return p.Attr.AccessFlags&neededPeerRights[op] == neededPeerRights[op]
}

// rejectRequest ends a request that the responder rejects. The queue pair of a reliable connection raises an event and
// moves to ERR (9.9.3, 11.6.3).
func (x *requestExecutor) rejectRequest(q, p *QP, status ib.WCStatus) []ib.WCStatus {
	if q.Type == ib.QPTypeUC {
		x.recordLostMessage()
		return successStatus
	}
	e := ib.EventQPReqErr
	if status == ib.WCRemAccessErr {
		e = ib.EventQPAccessErr
	}
	p.Events = append(p.Events, e)
	x.moveToError(p)
	return x.possibleRejectionStatuses(q, p, status)
}

// possibleRejectionStatuses returns the possible statuses of a request that the peer has rejected.
func (x *requestExecutor) possibleRejectionStatuses(q, p *QP, status ib.WCStatus) []ib.WCStatus {
	switch {
	case q.Type == ib.QPTypeUC:
		return successStatus
	case q == p && x.call.done[q.ID] > 0:
		x.call.markResultUndefined("a queue pair that is its own peer fails with other requests in flight")
		return statusList(status)
	case q == p: // the error of its own responder may flush the request
		return statusList(status, ib.WCWRFlushErr)
	case x.device.Lossy && x.call.done[q.ID] > 0: // earlier responses are not repeated either
		x.call.markResultUndefined("an answer that is lost, with other requests in flight")
		return statusList(status)
	case x.device.Lossy:
		return statusList(status, ib.WCRetryExcErr)
	}
	return statusList(status)
}

// executeWrite executes an RDMA WRITE.
func (x *requestExecutor) executeWrite(q, p *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	n := uint64(len(src.data))
	if !allowsOperation(p, s.Op) || s.Op == ib.WRAtomicWrite && s.RemoteAddr%8 != 0 {
		return x.rejectRequest(q, p, ib.WCRemInvReqErr), false
	}
	to, ok := x.keys.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, ib.AccessRemoteWrite)
	if !ok {
		if s.Op == ib.WRRDMAWriteWithImm && len(x.queues.recvQueueOf(p).recvs) == 0 &&
			n <= uint64(q.Attr.PathMTU.Bytes()) {
			// 9.7.4.1 checks for the receive before the key
			x.call.markResultUndefined("no receive for a WRITE of one packet with a wrong key")
		}
		if s.Op == ib.WRRDMAWriteWithImm && p.currentSRQ() != 0 {
			// the receive is flushed then
			x.call.markResultUndefined("a WRITE with a wrong key that may have taken a shared receive")
		}
		return x.rejectRequest(q, p, ib.WCRemAccessErr), false
	}
	x.call.recordOverlap(to, src.spans)
	if s.Op == ib.WRRDMAWriteWithImm && len(x.queues.recvQueueOf(p).recvs) == 0 {
		if q.Type == ib.QPTypeUC {
			x.recordLostMessage()
			x.allowUnstoredBytes(to, 0, src.data)
			return successStatus, false
		}
		x.allowUnstoredBytes(to, 0, src.data) // all packets except the last may have been executed
		q.held = slices.Concat(src.spans, to)
		return receiverNotReadyStatus(q)
	}
	x.call.recordStore(s, to)
	x.scatterBytes(to, 0, src.data)
	if s.Op == ib.WRRDMAWriteWithImm {
		x.completeRecv(p, ExpectedCompletion{
			WC:     ib.WC{ByteLen: uint32(n), Opcode: ib.WCRecvRDMAWithImm, Flags: ib.WCWithImm, Imm: s.Imm},
			Status: successStatus, Length: true,
		}, s.Flags&ib.SendSolicited != 0)
	}
	return successStatus, false
}

// receiverNotReadyStatus returns the result of a request for which there is no receive.
func receiverNotReadyStatus(q *QP) (status []ib.WCStatus, wait bool) {
	if q.Attr.RNRRetry == 0 {
		return statusList(ib.WCRNRRetryExcErr), false
	}
	return nil, true
}

// executeSend executes a SEND.
func (x *requestExecutor) executeSend(q, p *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	r, n := x.queues.recvQueueOf(p), uint64(len(src.data))
	if len(r.recvs) == 0 {
		if q.Type == ib.QPTypeUC {
			x.recordLostMessage()
			return successStatus, false
		}
		q.held = src.spans
		return receiverNotReadyStatus(q)
	}
	to := x.keys.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
	w := ExpectedCompletion{WC: ib.WC{ByteLen: uint32(n)}, Status: successStatus, Length: true}
	status = successStatus
	solicited := s.Flags&ib.SendSolicited != 0
	switch s.Op {
	case ib.WRSendWithImm:
		w.WC.Flags, w.WC.Imm = ib.WCWithImm, s.Imm
	case ib.WRSendWithInv:
		w.WC.Flags, w.WC.InvalidateRKey = ib.WCWithInvalidate, s.InvalidateRKey
	}
	x.call.recordOverlap(to.spans, src.spans)
	x.keys.recordLocalUse(r.recvs[0].SGL)
	switch {
	case !to.ok && to.reach >= n:
		x.call.markResultUndefined("a wrong key in an element of a receive that the message does not reach")
	case !to.ok && to.n < n:
		x.call.markResultUndefined("a receive that is too short, with a wrong key")
	case !to.ok:
		w.Status, status = statusList(ib.WCLocProtErr), x.possibleRejectionStatuses(q, p, ib.WCRemOpErr)
		x.allowUnstoredBytes(to.spans, 0, src.data[:to.reach])
		if q.Type == ib.QPTypeUC {
			x.call.markResultUndefined("a receive of an unreliable connection with a wrong key")
		}
	case to.n < n && q.Type == ib.QPTypeUC:
		x.call.recordKeptReceive(p)
		x.recordLostMessage()
		x.allowUnstoredBytes(to.spans, 0, src.data[:to.n])
		return successStatus, false // the message is lost; the receive stays (class D of 9.9.3)
	case to.n < n:
		w.Status, status = statusList(ib.WCLocLenErr), x.possibleRejectionStatuses(q, p, ib.WCRemInvReqErr)
		x.allowUnstoredBytes(to.spans, 0, src.data[:to.n])
	case s.Op == ib.WRSendWithInv && !x.keys.invalidateKey(p, s.InvalidateRKey):
		w.Status, status = statusList(ib.WCMWBindErr), statusList(ib.WCRetryExcErr) // no response (class J of 9.9.6.3)
		if q == p {
			status = x.possibleRejectionStatuses(q, p, ib.WCRetryExcErr)
		}
		x.allowUnstoredBytes(to.spans, 0, src.data)
	default:
		x.call.recordStore(s, to.spans)
		x.scatterBytes(to.spans, 0, src.data)
	}
	if s.Op == ib.WRSendWithInv {
		x.call.recordKeyUse(s.InvalidateRKey)
		x.keys.recordInvalidate(s.InvalidateRKey)
		x.keys.markSelfInvalidation(s.InvalidateRKey, r)
	}
	x.completeRecv(p, w, solicited)
	if w.Status[0] != ib.WCSuccess {
		x.moveToError(p)
	}
	return status, false
}

// recordLostMessage records that the state of its target loses an unreliable message. The message may still be in
// flight when that state changes.
func (x *requestExecutor) recordLostMessage() {
	if x.device.Blind {
		x.call.markResultUndefined("a message is lost, and nothing shows when")
	}
}
