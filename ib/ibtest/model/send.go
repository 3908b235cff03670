package model

import (
	"encoding/binary"
	"slices"
	"syscall"

	"verbena/ib"
)

// Send is a send work request.
type Send struct {
	ID             uint64
	Op             ib.WROpcode
	Flags          ib.SendFlags
	SGL            []ib.SGE
	Inline         []byte
	Imm            uint32
	InvalidateRKey uint32
	RemoteAddr     uint64
	RKey           uint32
	CompareAdd     uint64
	Swap           uint64
	AH             ID
	QPN, QKey      uint32
	SRQN           uint32 // XRC
	Bind           *BindArgs
	Reg            *RegMRArgs
	Flush          ib.Flush

	to      ib.AHAttr       // the address of the handle at the time of the post
	foreign bool            // the address handle belongs to another domain
	done    *executedResult // nil: not executed; see SetDeferredExecution
	sent    bool            // the request may be in flight, because the queue pair has entered ERR; see FlushSent
}

// BindArgs holds the arguments of BIND_MW.
type BindArgs struct {
	MW        ID
	MR        ID // 0: none
	LKey      uint32
	RKey      uint32
	Addr, Len uint64
	Access    ib.AccessFlags
}

// RegMRArgs holds the arguments of REG_MR.
type RegMRArgs struct {
	MR     ID
	Key    uint32
	Access ib.AccessFlags
}

// isSignaled reports whether success generates a completion.
func (q *QP) isSignaled(s *Send) bool { return q.SigAll || s.Flags&ib.SendSignaled != 0 }

// PostSend posts work requests and executes them as far as possible. got is the driver's result; nil: the minimum that
// a driver must accept.
func (m *Model) PostSend(id ID, sends []Send, got *PostResult) PostResult {
	q := m.Queues.QPs[id]
	switch q.State {
	case ib.QPReset, ib.QPInit, ib.QPRTR:
		return PostResult{Err: syscall.EINVAL}
	}
	if q.Type == ib.QPTypeXRCTgt {
		return PostResult{Err: syscall.EINVAL}
	}
	for i := range sends {
		if len(sends) > 1 && m.mayBeRefused(q, &sends[i]) {
			m.Call.markResultUndefined("a list with a request that a driver may refuse at once")
		}
	}
	m.Call.listed = len(sends)
	t := PostResult{N: len(sends)}
	for n := range sends {
		var e syscall.Errno // error of the driver, if it rejected this one
		if got != nil && got.N == n {
			e = got.Err
		}
		if e := m.queueSend(q, sends[n], e); e != 0 {
			t = PostResult{n, e}
			break
		}
		m.requests.runSends(q)
	}
	m.requests.runWaitingRequests()
	return t
}

// queueSend queues a request or rejects it. got is the driver's error, or 0.
func (m *Model) queueSend(q *QP, s Send, got syscall.Errno) syscall.Errno {
	a := m.AHs[s.AH]
	switch {
	case !q.supportsRequest(&s), len(s.SGL) > int(q.Cap.MaxSendSGE),
		s.Flags&ib.SendInline != 0 && (len(s.Inline) > int(q.Cap.MaxInlineData) || s.Op == ib.WRRDMARead ||
			neededPeerRights[s.Op] == ib.AccessRemoteAtomic),
		a != nil && a.Dead, s.Bind != nil && m.Keys.Windows[s.Bind.MW].Dead,
		s.Reg != nil && m.Keys.Regions[s.Reg.MR].Dead,
		s.Bind != nil && s.Bind.MR != 0 && m.Keys.Regions[s.Bind.MR].Dead:
		return syscall.EINVAL
	// a driver may check at once, or when it sends
	case got == syscall.EINVAL && m.mayBeRefused(q, &s):
		return syscall.EINVAL
	case len(q.Sends) >= int(q.Cap.MaxSendWR), got == syscall.ENOMEM && len(q.unproved) >= int(q.Cap.MaxSendWR):
		return syscall.ENOMEM
	}
	local := s.changesKeys()
	switch {
	case local && q.waiting:
		m.Call.markResultUndefined(localBehindReason)
	case local && m.Call.done[q.ID] > 0 && q.State != ib.QPRTS:
		m.Call.markResultUndefined("a bind or registration behind a request of the same call that fails")
	case a != nil:
		s.to, s.foreign = a.Attr, q.hasForeignAH(a)
	}
	q.Sends = append(slices.Clip(q.Sends), s)
	q.unproved = append(q.unproved, s.ID)
	m.Completions.checkCQRoom(q.SendCQ)
	return 0
}

// changesKeys reports whether a request is a bind or a registration. A device may execute it before earlier requests
// have completed.
func (s *Send) changesKeys() bool { return s.Op == ib.WRBindMW || s.Op == ib.WRRegMR }

const localBehindReason = "a bind or registration behind a request that waits"

// mayBeRefused reports whether a driver may refuse a request at once that it could also accept.
func (m *Model) mayBeRefused(q *QP, s *Send) bool {
	return m.Device.isTooLong(q, s) || isMisalignedAtomic(s) || q.Type == ib.QPTypeSRD && (q.hasForeignAH(m.AHs[s.AH]) ||
		!s.isSend() && (s.Flags&ib.SendInline != 0 || len(s.SGL) > m.Device.RDMASGE))
}

// isTooLong reports whether a message exceeds the service's limit.
func (d *DeviceState) isTooLong(q *QP, s *Send) bool {
	n := uint64(len(s.Inline))
	if s.Flags&ib.SendInline == 0 {
		n = 0
		for _, e := range s.SGL {
			n += uint64(e.Length)
		}
	}
	if q.Type == ib.QPTypeSRD && !s.isSend() {
		return n > max(d.MaxMsgSize, SRDRDMASize)
	}
	return n > d.MaxMsgSize || q.isDatagram(s) && n > uint64(d.MTU)
}

// isMisalignedAtomic reports whether an atomic is not 8 bytes at a multiple of 8.
func isMisalignedAtomic(s *Send) bool {
	n := uint64(0)
	for _, e := range s.SGL {
		n += uint64(e.Length)
	}
	atomic := neededPeerRights[s.Op] == ib.AccessRemoteAtomic
	return (atomic || s.Op == ib.WRAtomicWrite) && s.RemoteAddr%8 != 0 || atomic && n != 8
}

// supportsRequest reports whether the service supports the operation, and the request has the required fields.
func (q *QP) supportsRequest(s *Send) bool {
	if q.Type == ib.QPTypeSRD {
		return s.AH != 0 && (s.isSend() || s.Op == ib.WRRDMAWrite || s.Op == ib.WRRDMAWriteWithImm || s.Op == ib.WRRDMARead)
	}
	switch s.Op {
	case ib.WRSend, ib.WRSendWithImm:
		return q.Type != ib.QPTypeUD || s.AH != 0
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRLocalInv:
		return q.Type != ib.QPTypeUD
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAdd, ib.WRSendWithInv, ib.WRFlush:
		return q.isReliable()
	case ib.WRAtomicWrite:
		return q.isReliable() && len(s.Inline) == 8
	case ib.WRBindMW:
		return q.Type != ib.QPTypeUD && s.Bind != nil
	case ib.WRRegMR:
		return q.Type != ib.QPTypeUD && s.Reg != nil
	}
	return false
}

// isReliable reports whether the requests of the queue pair are acknowledged.
func (q *QP) isReliable() bool { return q.Type == ib.QPTypeRC || q.isXRC() }

// runSends executes the send queue as far as possible.
func (x *requestExecutor) runSends(q *QP) {
	if q.Type == ib.QPTypeSRD && q.State == ib.QPRTS && !x.device.deferred {
		x.runIndependentSends(q)
	}
	for len(q.Sends) > 0 && !q.waiting && !x.device.deferred {
		switch {
		case x.device.Dead:
			x.moveToError(q)
		case q.State == ib.QPErr, q.State == ib.QPSQE:
			x.flushSends(q)
		case q.State != ib.QPRTS || !x.executeFirstSend(q):
			return
		}
	}
}

// executeFirstSend executes the first request. It returns false if the request waits.
func (x *requestExecutor) executeFirstSend(q *QP) bool {
	s := q.Sends[0]
	q.Sends = slices.Delete(slices.Clone(q.Sends), 0, 1)
	q.begun = true
	status, n, wait := x.executeSendWR(q, &s)
	q.begun = false
	if wait {
		if slices.ContainsFunc(q.Sends, func(s Send) bool { return s.changesKeys() }) {
			x.call.markResultUndefined(localBehindReason)
		}
		q.Sends = slices.Insert(q.Sends, 0, s)
		q.waiting = true
		if first := q.Sends[0].ID; q.since == 0 || q.waitsFor != first {
			q.since, q.waitsFor = x.call.calls, first
		}
		return false
	}
	x.completeSend(q, &s, status, n)
	return true
}

var wcOpcodes = map[ib.WROpcode]ib.WCOpcode{
	ib.WRSend: ib.WCSend, ib.WRSendWithImm: ib.WCSend, ib.WRSendWithInv: ib.WCSend,
	ib.WRRDMAWrite: ib.WCRDMAWrite, ib.WRRDMAWriteWithImm: ib.WCRDMAWrite, ib.WRRDMARead: ib.WCRDMARead,
	ib.WRAtomicCmpAndSwp: ib.WCCompSwap, ib.WRAtomicFetchAdd: ib.WCFetchAdd, ib.WRLocalInv: ib.WCLocalInv,
	ib.WRBindMW: ib.WCBindMW, ib.WRRegMR: ib.WCRegMR, ib.WRFlush: ib.WCFlush, ib.WRAtomicWrite: ib.WCAtomicWrite,
}

// completeSend completes a request. After an error it flushes the rest of the queue.
func (x *requestExecutor) completeSend(q *QP, s *Send, status []ib.WCStatus, n uint64) {
	x.call.done[q.ID]++
	failed := status[0] != ib.WCSuccess
	over := q.State == ib.QPErr || q.State == ib.QPSQE
	if failed || q.isSignaled(s) {
		x.addCompletion(q, sendSide, ExpectedCompletion{
			WC:     ib.WC{ID: s.ID, Opcode: wcOpcodes[s.Op], ByteLen: uint32(n)},
			Status: status, Length: returnsDataToRequester(s.Op),
		}, false)
	}
	switch {
	case !failed || over || q.Type == ib.QPTypeSRD:
	case q.isReliable():
		x.moveToError(q)
	case q.State == ib.QPErr: // its completion was lost
	default:
		q.State = ib.QPSQE
		x.flushSends(q)
	}
}

// returnsDataToRequester reports whether an operation returns data.
func returnsDataToRequester(op ib.WROpcode) bool {
	return op == ib.WRRDMARead || op == ib.WRAtomicCmpAndSwp || op == ib.WRAtomicFetchAdd
}

func statusList(s ...ib.WCStatus) []ib.WCStatus { return s }

// successStatus is the status of most requests.
var successStatus = statusList(ib.WCSuccess)

// loadBytes returns the bytes of a list of spans.
func (x *requestExecutor) loadBytes(spans []Span, n uint64) []byte {
	b := make([]byte, n)
	rest := b
	for _, s := range spans {
		k := min(s.Len, uint64(len(rest)))
		if x.mem.isAmbiguous(s.Addr, k) {
			x.call.markResultUndefined("bytes are sent that are not defined")
		}
		x.mem.Read(s.Addr, rest[:k])
		rest = rest[k:]
	}
	return b
}

// scatterBytes stores bytes in a list of spans, starting at an offset.
func (x *requestExecutor) scatterBytes(spans []Span, skip uint64, b []byte) {
	x.queues.recordMemoryDisturbance(spans)
	forEachSpanPart(spans, skip, b, x.mem.Write)
}

// allowUnstoredBytes allows bytes to be stored or not.
func (x *requestExecutor) allowUnstoredBytes(spans []Span, skip uint64, b []byte) {
	if x.device.Blind && len(b) > 0 && len(spans) > 0 {
		x.call.markResultUndefined("a part of a message is stored, and nothing shows when")
	}
	x.queues.recordMemoryDisturbance(spans)
	forEachSpanPart(spans, skip, b, func(addr uint64, b []byte) { x.mem.allowAlternative(addr, uint64(len(b)), b) })
}

func forEachSpanPart(spans []Span, skip uint64, b []byte, f func(addr uint64, b []byte)) {
	for _, s := range spans {
		if skip >= s.Len {
			skip -= s.Len
			continue
		}
		k := min(s.Len-skip, uint64(len(b)))
		if k > 0 {
			f(s.Addr+skip, b[:k])
		}
		b, skip = b[k:], 0
	}
}

// loadAtomicWord reads and writes the 8 bytes of an atomic, in the host's byte order.
func (x *requestExecutor) loadAtomicWord(spans []Span) uint64 {
	return binary.NativeEndian.Uint64(x.loadBytes(spans, 8))
}

// isInlineMessage reports whether the request is a message with inline data, which the requester no longer needs once
// it is sent.
func (s *Send) isInlineMessage() bool {
	return s.Flags&ib.SendInline != 0 && s.Op != ib.WRAtomicWrite
}
