package model

import (
	"slices"

	"verbena/ib"
)

// executeSendWR executes a request at the requester and the responder. n is the number of bytes received. If there is
// no receive yet, or the peer is in INIT, executeSendWR does nothing and wait is true.
func (m *Model) executeSendWR(q *QP, s *Send) (status []ib.WCStatus, n uint64, wait bool) {
	ok := func(good bool, failures ...ib.WCStatus) ([]ib.WCStatus, uint64, bool) {
		if good {
			return successStatus, 0, false
		}
		return failures, 0, false
	}
	switch s.Op {
	case ib.WRLocalInv:
		if q.Type == ib.QPTypeUC { // a reliable connection waits for earlier requests
			m.recordKeyChange(s.InvalidateRKey)
		}
		return ok(m.invalidateKey(q, s.InvalidateRKey), ib.WCLocQPOpErr, ib.WCMWBindErr)
	case ib.WRBindMW:
		return ok(m.executeBind(q, s.Bind), ib.WCMWBindErr)
	case ib.WRRegMR:
		return ok(m.executeRegMR(q, s.Reg), ib.WCLocQPOpErr, ib.WCMWBindErr)
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd:
		return m.executeFetch(q, s)
	}
	src := messageSource{}
	switch {
	case s.Op == ib.WRFlush:
	case s.Flags&ib.SendInline != 0, s.Op == ib.WRAtomicWrite:
		src = messageSource{data: s.Inline, inline: true}
	default:
		l := m.checkSGL(s.SGL, q.PD, 0)
		switch {
		case l.n > m.MaxMsgSize:
			if !l.ok {
				m.markResultUndefined("a message that is too long, with a wrong key")
			}
			return statusList(ib.WCLocLenErr), 0, false
		case !l.ok && q.Type == ib.QPTypeUD && l.n > uint64(m.MTU):
			m.markResultUndefined("a datagram that is too long, with a wrong key")
		case !l.ok && s.foreign: // a driver may check either first
			return statusList(ib.WCLocProtErr, ib.WCLocQPOpErr), 0, false
		case !l.ok:
			m.allowPartialData(q, s, &l)
			return statusList(ib.WCLocProtErr), 0, false
		}
		src = messageSource{spans: l.spans, n: l.n}
		m.recordGather(s, l.spans)
		src.data = m.loadBytes(l.spans, l.n)
	}
	if q.Type == ib.QPTypeUD {
		switch {
		case s.foreign && len(src.data) > m.MTU:
			return statusList(ib.WCLocQPOpErr, ib.WCLocLenErr), 0, false
		case s.foreign:
			return statusList(ib.WCLocQPOpErr), 0, false
		case len(src.data) > m.MTU:
			return statusList(ib.WCLocLenErr), 0, false
		}
		if m.deferred {
			q.sendUnreliable(s, &src)
			return successStatus, 0, false
		}
		m.sendDatagram(q, s, &src)
		return successStatus, 0, false
	}
	if m.deferred && q.Type == ib.QPTypeUC {
		q.sendUnreliable(s, &src)
		return successStatus, 0, false
	}
	status, wait = m.executeRequest(q, s, &src)
	return status, 0, wait
}

// executeRequest executes a request of a connection at the responder.
func (m *Model) executeRequest(q *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	p := m.connectedPeer(q)
	if p == nil {
		q.held = src.spans
		return m.noResponseStatus(q)
	}
	m.recordExchange(q, p)
	if p.Type == ib.QPTypeXRCTgt && !m.selectXRCQueue(p, s) {
		return m.rejectRequest(q, p, ib.WCRemInvReqErr), false
	}
	switch s.Op {
	case ib.WRFlush:
		status = m.executeFlush(q, p, s)
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
		status, wait = m.executeWrite(q, p, s, src)
	default:
		status, wait = m.executeSend(q, p, s, src)
	}
	if !wait {
		m.countServedQP(q)
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

// countServedQP counts the queue pairs with requests that one call executes. The order between them is undefined.
func (m *Model) countServedQP(q *QP) {
	if m.servedBy == nil {
		m.servedBy = map[ID]bool{}
	}
	m.servedBy[q.ID] = true
	m.served = len(m.servedBy)
}

// allowPartialData allows the data before an invalid element to have arrived, because a driver may send packets before
// it checks the element.
func (m *Model) allowPartialData(q *QP, s *Send, l *checkedSGL) {
	p := m.connectedPeer(q)
	switch {
	case l.reach == 0 || q.Type == ib.QPTypeUD:
		return
	case p == nil:
		m.markResultUndefined("a message with a wrong element, without a peer")
		return
	case p.Type == ib.QPTypeXRCTgt:
		m.markResultUndefined("the beginning of an XRC message with a wrong element")
		return
	}
	m.recordGather(s, l.spans)
	data := m.loadBytes(l.spans, l.reach)
	switch s.Op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		if to, ok := m.checkRemoteAccess(p, s.RKey, s.RemoteAddr, l.n, ib.AccessRemoteWrite); ok && m.allowsOperation(p,
			s.Op) {
			m.recordOverlap(to, l.spans)
			m.allowUnstoredBytes(to, 0, data)
			return
		}
	default:
		r := m.recvQueueOf(p)
		if p.currentSRQ() == 0 && len(r.recvs) > 0 && q.Type == ib.QPTypeRC {
			to := m.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
			if to.ok && to.n >= l.n {
				m.recordOverlap(to.spans, l.spans)
				m.allowUnstoredBytes(to.spans, 0, data)
				return
			}
		}
	}
	m.markResultUndefined("the peer refuses the beginning of a message with a wrong element")
}

// connectedPeer returns the peer of a connection if it can receive, else nil.
func (m *Model) connectedPeer(q *QP) *QP {
	p := m.destinationQP(q)
	if p == nil || p.Attr.DestQPN != q.Num || p.State < ib.QPRTR || p.State > ib.QPSQE {
		return nil
	}
	return p
}

// destinationQP returns the queue pair that q sends to, in any state.
func (m *Model) destinationQP(q *QP) *QP {
	if q.Attr.AH.GRH.DGID != m.GID {
		return nil
	}
	for _, p := range m.QPs {
		if p.Num == q.Attr.DestQPN && p.Type == peerType(q.Type) {
			return p
		}
	}
	return nil
}

// peerType returns the type of the peers of queue pairs of type t.
func peerType(t ib.QPType) ib.QPType {
	if t == ib.QPTypeXRCInit {
		return ib.QPTypeXRCTgt
	}
	return t
}

// selectXRCQueue selects the shared receive queue that a request to an XRC target names. It returns false if the target
// may not consume its receives (A14).
func (m *Model) selectXRCQueue(p *QP, s *Send) bool {
	id := m.xrcSRQByNumber(s.SRQN)
	if id == 0 || m.SRQs[id].XRCD != p.XRCD {
		switch s.Op {
		case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
		default:
			m.markResultUndefined("an XRC request that needs no receive, with a wrong shared queue")
		}
		if s.Op == ib.WRRDMAWriteWithImm {
			m.markResultUndefined("an XRC WRITE with a wrong shared queue") // a driver may find it in the last packet
		}
		return false
	}
	p.named = id
	return true
}

// recordExchange records that packets pass between two queue pairs. If one of them has been reconnected, the packet
// sequence numbers do not match.
func (m *Model) recordExchange(q, p *QP) {
	if q.partner != 0 && q.partner != p.epoch || p.partner != 0 && p.partner != q.epoch {
		m.markResultUndefined("a connection of which one end has been connected anew")
	}
	q.partner, p.partner = p.epoch, q.epoch
}

// noResponseStatus returns the result of a request without a peer. A peer in INIT may still be connected.
func (m *Model) noResponseStatus(q *QP) (status []ib.WCStatus, wait bool) {
	if q.Type == ib.QPTypeUC {
		m.recordLostMessage()
		return successStatus, false
	}
	if p := m.destinationQP(q); p != nil && p.State == ib.QPInit {
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
func (m *Model) allowsOperation(p *QP, op ib.WROpcode) bool {
	return p.Attr.AccessFlags&neededPeerRights[op] == neededPeerRights[op]
}

// rejectRequest ends a request that the responder rejects. The queue pair of a reliable connection raises an event and
// moves to ERR (9.9.3, 11.6.3).
func (m *Model) rejectRequest(q, p *QP, status ib.WCStatus) []ib.WCStatus {
	if q.Type == ib.QPTypeUC {
		m.recordLostMessage()
		return successStatus
	}
	e := ib.EventQPReqErr
	if status == ib.WCRemAccessErr {
		e = ib.EventQPAccessErr
	}
	p.Events = append(p.Events, e)
	m.moveToError(p)
	return m.possibleRejectionStatuses(q, p, status)
}

// possibleRejectionStatuses returns the possible statuses of a request that the peer has rejected.
func (m *Model) possibleRejectionStatuses(q, p *QP, status ib.WCStatus) []ib.WCStatus {
	switch {
	case q.Type == ib.QPTypeUC:
		return successStatus
	case q == p && m.done[q.ID] > 0:
		m.markResultUndefined("a queue pair that is its own peer fails with other requests in flight")
		return statusList(status)
	case q == p: // the error of its own responder may flush the request
		return statusList(status, ib.WCWRFlushErr)
	case m.Lossy && m.done[q.ID] > 0: // earlier responses are not repeated either
		m.markResultUndefined("an answer that is lost, with other requests in flight")
		return statusList(status)
	case m.Lossy:
		return statusList(status, ib.WCRetryExcErr)
	}
	return statusList(status)
}

// executeWrite executes an RDMA WRITE.
func (m *Model) executeWrite(q, p *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	n := uint64(len(src.data))
	if !m.allowsOperation(p, s.Op) || s.Op == ib.WRAtomicWrite && s.RemoteAddr%8 != 0 {
		return m.rejectRequest(q, p, ib.WCRemInvReqErr), false
	}
	to, ok := m.checkRemoteAccess(p, s.RKey, s.RemoteAddr, n, ib.AccessRemoteWrite)
	if !ok {
		if s.Op == ib.WRRDMAWriteWithImm && len(m.recvQueueOf(p).recvs) == 0 && n <= uint64(q.Attr.PathMTU.Bytes()) {
			// 9.7.4.1 checks for the receive before the key
			m.markResultUndefined("no receive for a WRITE of one packet with a wrong key")
		}
		if s.Op == ib.WRRDMAWriteWithImm && p.currentSRQ() != 0 {
			m.markResultUndefined("a WRITE with a wrong key that may have taken a shared receive") // the receive is flushed then
		}
		return m.rejectRequest(q, p, ib.WCRemAccessErr), false
	}
	m.recordOverlap(to, src.spans)
	if s.Op == ib.WRRDMAWriteWithImm && len(m.recvQueueOf(p).recvs) == 0 {
		if q.Type == ib.QPTypeUC {
			m.recordLostMessage()
			m.allowUnstoredBytes(to, 0, src.data)
			return successStatus, false
		}
		m.allowUnstoredBytes(to, 0, src.data) // all packets except the last may have been executed
		q.held = slices.Concat(src.spans, to)
		return m.receiverNotReadyStatus(q)
	}
	m.recordStore(s, to)
	m.scatterBytes(to, 0, src.data)
	if s.Op == ib.WRRDMAWriteWithImm {
		m.completeRecv(p, ExpectedCompletion{
			WC:     ib.WC{ByteLen: uint32(n), Opcode: ib.WCRecvRDMAWithImm, Flags: ib.WCWithImm, Imm: s.Imm},
			Status: successStatus, Length: true,
		}, s.Flags&ib.SendSolicited != 0)
	}
	return successStatus, false
}

// receiverNotReadyStatus returns the result of a request for which there is no receive.
func (m *Model) receiverNotReadyStatus(q *QP) (status []ib.WCStatus, wait bool) {
	if q.Attr.RNRRetry == 0 {
		return statusList(ib.WCRNRRetryExcErr), false
	}
	return nil, true
}

// executeSend executes a SEND.
func (m *Model) executeSend(q, p *QP, s *Send, src *messageSource) (status []ib.WCStatus, wait bool) {
	r, n := m.recvQueueOf(p), uint64(len(src.data))
	if len(r.recvs) == 0 {
		if q.Type == ib.QPTypeUC {
			m.recordLostMessage()
			return successStatus, false
		}
		q.held = src.spans
		return m.receiverNotReadyStatus(q)
	}
	to := m.checkSGL(r.recvs[0].SGL, r.pd, ib.AccessLocalWrite)
	w := ExpectedCompletion{WC: ib.WC{ByteLen: uint32(n)}, Status: successStatus, Length: true}
	status = successStatus
	solicited := s.Flags&ib.SendSolicited != 0
	switch s.Op {
	case ib.WRSendWithImm:
		w.WC.Flags, w.WC.Imm = ib.WCWithImm, s.Imm
	case ib.WRSendWithInv:
		w.WC.Flags, w.WC.InvalidateRKey = ib.WCWithInvalidate, s.InvalidateRKey
	}
	m.recordOverlap(to.spans, src.spans)
	m.recordLocalUse(r.recvs[0].SGL)
	switch {
	case !to.ok && to.reach >= n:
		m.markResultUndefined("a wrong key in an element of a receive that the message does not reach")
	case !to.ok && to.n < n:
		m.markResultUndefined("a receive that is too short, with a wrong key")
	case !to.ok:
		w.Status, status = statusList(ib.WCLocProtErr), m.possibleRejectionStatuses(q, p, ib.WCRemOpErr)
		m.allowUnstoredBytes(to.spans, 0, src.data[:to.reach])
		if q.Type == ib.QPTypeUC {
			m.markResultUndefined("a receive of an unreliable connection with a wrong key")
		}
	case to.n < n && q.Type == ib.QPTypeUC:
		m.recordKeptReceive(p)
		m.recordLostMessage()
		m.allowUnstoredBytes(to.spans, 0, src.data[:to.n])
		return successStatus, false // the message is lost; the receive stays (class D of 9.9.3)
	case to.n < n:
		w.Status, status = statusList(ib.WCLocLenErr), m.possibleRejectionStatuses(q, p, ib.WCRemInvReqErr)
		m.allowUnstoredBytes(to.spans, 0, src.data[:to.n])
	case s.Op == ib.WRSendWithInv && !m.invalidateKey(p, s.InvalidateRKey):
		w.Status, status = statusList(ib.WCMWBindErr), statusList(ib.WCRetryExcErr) // no response (class J of 9.9.6.3)
		if q == p {
			status = m.possibleRejectionStatuses(q, p, ib.WCRetryExcErr)
		}
		m.allowUnstoredBytes(to.spans, 0, src.data)
	default:
		m.recordStore(s, to.spans)
		m.scatterBytes(to.spans, 0, src.data)
	}
	if s.Op == ib.WRSendWithInv {
		m.recordKeyUse(s.InvalidateRKey)
		m.recordInvalidate(s.InvalidateRKey)
		m.markSelfInvalidation(s.InvalidateRKey, r)
	}
	m.completeRecv(p, w, solicited)
	if w.Status[0] != ib.WCSuccess {
		m.moveToError(p)
	}
	return status, false
}

// recordLostMessage records that the state of its target loses an unreliable message. The message may still be in
// flight when that state changes.
func (m *Model) recordLostMessage() {
	if m.Blind {
		m.markResultUndefined("a message is lost, and nothing shows when")
	}
}

// recordKeptReceive records that a message is lost after a driver has fetched its receive. A receive of a shared queue
// may stay reserved for the same queue pair.
func (m *Model) recordKeptReceive(p *QP) {
	if p.SRQ != 0 {
		m.markResultUndefined("a message is lost that is too long for a shared receive")
	}
}

// markSelfInvalidation records an invalidation of the memory of the message itself.
func (m *Model) markSelfInvalidation(key uint32, r *recvQueue) {
	for _, g := range m.Regions {
		if g.RKey == key && usesLKey(r.recvs[0].SGL, g.LKey) {
			m.markResultUndefined("a message invalidates the memory of its receive")
		}
	}
}
