package engine

import (
	"net/netip"
	"time"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// reporter reports the failures of a queue pair to Config.Observer, and its changes of state. Its methods are called
// only after a failure or a change. Each determines the violated rule by a second look at the values: the data path
// does not keep them.
type reporter struct{ qp *QP }

// report returns the reporter of the queue pair.
func (qp *QP) report() reporter { return reporter{qp} }

// ref describes the queue pair for a report. The caller runs the queue pair.
func (r reporter) ref() driver.QPRef {
	qp, ref := r.qp, r.foreignRef()
	if qp.path != nil && !qp.datagram {
		ref.Local, ref.Peer, ref.DestQPN = qp.path.from.addr, qp.path.dst, qp.attr.DestQPN
	}
	return ref
}

// foreignRef is ref for a thread that does not run the queue pair.
func (r reporter) foreignRef() driver.QPRef {
	qp := r.qp
	ref := driver.QPRef{Device: qp.dev.name, Num: qp.num, Type: qp.typ, State: qp.State(), DestQPN: qp.peer.Load()}
	ref.Context = qp.user
	if qp.ctx != nil {
		ref.Context = qp.ctx.UserContext
	}
	return ref
}

// state reports a change of state, or the end of the queue pair.
func (r reporter) state(from ib.QPState, why driver.StateCause) {
	qp := r.qp
	if o := qp.dev.observer; o != nil {
		ref := r.ref()
		ref.State = qp.state
		o.StateChanged(driver.StateChange{Time: qp.dev.clock.Now(), QP: ref, From: from, To: qp.state, Cause: why})
	}
}

// send reports a send work request that completes with an error.
func (r reporter) send(w *sendWQE, status uapi.WCStatus) {
	qp := r.qp
	o := qp.dev.observer
	if o == nil {
		return
	}
	f := driver.FailedCompletion{
		Time: qp.dev.clock.Now(), QP: r.ref(), WRID: w.ID, Opcode: w.Opcode, Status: status, Length: uint64(w.length),
		Timeout: qp.req.snd.Timeout.Duration(),
	}
	if qp.srd != nil && w.path != nil {
		f.QP.Local, f.QP.Peer, f.QP.DestQPN = w.path.from.addr, w.path.dst, w.QPN
	}
	if status != uapi.WCWRFlushErr {
		var rnr int
		f.PSN, f.Attempts, rnr, f.Since = qp.req.snd.Attempts()
		f.Foreign.PSN, f.Foreign.N = qp.req.snd.Foreign()
		f.Acknowledged = qp.req.snd.Progressed()
		if qp.srd != nil {
			f.Attempts, f.Since = w.attempts, time.Unix(0, w.began)
			if w.began == 0 {
				f.Since = f.Time
			}
		} else if status == uapi.WCRNRRetryExcErr {
			f.Attempts = rnr + 1 // the last RNR NAK is not counted as a retry
		}
		f.Violation = qp.req.violation(w, status)
	}
	o.CompletionFailed(f)
}

// violation returns the rule that a failed work request violates, if the request failed at this end.
func (r *requester) violation(w *sendWQE, status uapi.WCStatus) driver.Violation {
	qp := r.qp
	switch status {
	case uapi.WCLocProtErr:
		right := localRead
		if w.kind == transport.Read || w.kind == transport.Atomic {
			right = ib.AccessLocalWrite
		}
		return qp.report().elementViolation(qp.pd, w.SGEs, right)
	case uapi.WCLocQPOpErr, uapi.WCLocLenErr:
		return r.requestViolation(w)
	}
	return driver.Violation{}
}

// requestViolation returns the rule of check that a work request violates.
func (r *requester) requestViolation(w *sendWQE) driver.Violation {
	qp := r.qp
	inline, length := w.Flags&uapi.SendInline != 0, w.Length
	kind := kindOf(qp.typ, w.Opcode)
	single := kind == transport.Read || kind == transport.Atomic
	switch {
	case kind == transport.None || w.Opcode == wrRegMR && qp.ctx != nil:
		return driver.Violation{Rule: driver.RuleOpcode}
	case kind == transport.Local:
		return driver.Violation{}
	case (single || kind == transport.Flush || kind == transport.AtomicWrite) && qp.attr.MaxRdAtomic == 0:
		return driver.Violation{Rule: driver.RuleReadDepth}
	case kind == transport.Flush:
		return driver.Violation{Rule: driver.RuleFlushType}
	case kind == transport.AtomicWrite:
		return driver.Violation{Rule: driver.RuleAtomicLength, Length: w.Length, Limit: atomicLen}
	case inline && single:
		return driver.Violation{Rule: driver.RuleInline}
	case inline && length > uint64(qp.cap.MaxInlineData):
		return driver.Violation{Rule: driver.RuleInlineLength, Length: length, Limit: uint64(qp.cap.MaxInlineData)}
	case !inline && w.NumSGE > qp.cap.MaxSendSGE:
		return driver.Violation{Rule: driver.RuleSGEs, Length: uint64(w.NumSGE), Limit: uint64(qp.cap.MaxSendSGE)}
	case length > maxMsgSize:
		return driver.Violation{Rule: driver.RuleMessageLength, Length: length, Limit: maxMsgSize}
	case kind == transport.Atomic && length < atomicLen:
		return driver.Violation{Rule: driver.RuleAtomicLength, Length: length, Limit: atomicLen}
	case qp.datagram && w.path == nil:
		return driver.Violation{Rule: driver.RuleAddress}
	case qp.datagram && length > uint64(qp.mtu):
		return driver.Violation{Rule: driver.RuleDatagram, Length: length, Limit: uint64(qp.mtu)}
	}
	return driver.Violation{}
}

// elementViolation returns the rule that the elements of a local list violate, or RuleMemory if they violate none.
func (r reporter) elementViolation(in *pd, list []ib.SGE, right ib.AccessFlags) driver.Violation {
	for i := range list {
		if s := &list[i]; s.Length != 0 {
			if v := r.keyViolation(in, s.LKey, right, s.Addr, uint64(s.Length)); v.Rule != driver.RuleUnknown {
				return v
			}
		}
	}
	return driver.Violation{Rule: driver.RuleMemory}
}

// keyViolation returns the rule that an access by a key violates, or RuleUnknown if it now violates none.
func (r reporter) keyViolation(in *pd, key uint32, right ib.AccessFlags, addr, length uint64) driver.Violation {
	qp := r.qp
	v := driver.Violation{Key: key, Window: key>>8 >= firstMW, Right: right &^ localRead, Addr: addr, Length: length}
	g := qp.dev.grant(key)
	if g == nil {
		v.Rule = driver.RuleKey
		return v
	}
	switch v.First, v.Limit = g.first, g.length; {
	case g.pd != in:
		v.Rule = driver.RuleDomain
	case g.access&right != right:
		v.Rule, v.Right = driver.RuleRight, (right&^g.access)&^localRead
	case g.qp != nil && g.qp != qp:
		v.Rule = driver.RuleWindowQP
	case !g.contains(addr, length):
		v.Rule = driver.RuleRange
	case !g.inUse.TryRLock():
		v.Rule = driver.RuleRevoked
	default:
		g.put()
	}
	return v
}

// observeEnd reports that a key no longer gives access.
func (g *grant) observeEnd(how driver.KeyEnd) {
	d := g.mr.dev
	if o := d.observer; o != nil && g.pd.ctx != nil {
		o.KeyEnded(driver.EndedKey{Time: d.clock.Now(), Device: d.name, Context: g.pd.ctx.UserContext, Key: g.key, How: how})
	}
}

// receive reports a receive that completes with an error.
func (r reporter) receive(status uapi.WCStatus) {
	qp := r.qp
	o := qp.dev.observer
	if o == nil {
		return
	}
	w := &qp.resp.wqe
	f := driver.FailedCompletion{Time: qp.dev.clock.Now(), QP: r.ref(), Recv: true, WRID: w.ID, Status: status}
	if status != uapi.WCWRFlushErr {
		f.Violation = qp.resp.receiveViolation(status)
	}
	o.CompletionFailed(f)
}

// receiveViolation returns the rule that the receive in progress, or its message, violates.
func (r *responder) receiveViolation(status uapi.WCStatus) driver.Violation {
	w := &r.wqe
	switch status {
	case uapi.WCLocLenErr:
		return driver.Violation{Rule: driver.RuleReceiveLength, Limit: uint64(w.Length)}
	case uapi.WCLocProtErr:
		return r.qp.report().elementViolation(w.pd, w.SGEs, ib.AccessLocalWrite)
	case uapi.WCLocQPOpErr:
		limit := r.qp.cap.MaxRecvSGE
		if w.from != nil {
			limit = w.from.maxSGE
		}
		return driver.Violation{Rule: driver.RuleSGEs, Length: uint64(w.NumSGE), Limit: uint64(limit)}
	case uapi.WCMWBindErr:
		return driver.Violation{Rule: driver.RuleInvalidate}
	}
	return driver.Violation{}
}

// refusal records the rule for the NAK of a request that was not executed, or reports the request if no NAK
// follows.
func (r reporter) refusal(k *packet, v verdict, by transport.Check) {
	qp := r.qp
	o := qp.dev.observer
	if o == nil || v == refused {
		return // nak has reported it
	}
	x := qp.resp.requestViolation(k, by)
	switch {
	case v == notReady && qp.reliable:
		r.request(k.psn, k.Opcode, roce.RNRNAK(roce.RNRTimer(qp.attr.MinRNRTimer)), true, x)
	case !qp.reliable:
		r.request(k.psn, k.Opcode, 0, false, x)
	default:
		qp.resp.noted = violated{k.psn, k.Opcode, x}
	}
}

// noteShortReceive records the length of a message that exceeds its receive, for the NAK.
func (r *responder) noteShortReceive(k *packet) {
	r.noted = violated{k.psn, k.Opcode, driver.Violation{
		Rule: driver.RuleReceiveLength, Length: uint64(r.wqe.filled + len(k.Payload)), Limit: uint64(r.wqe.Length),
		More: k.Flags&roce.FlagEnds == 0,
	}}
}

// violated is the rule that a refused request violates, with the PSN of the request.
type violated struct {
	psn roce.PSN
	op  roce.Opcode
	driver.Violation
}

// nak reports a request that is answered by a NAK, or a receive that makes the responder fail.
func (r reporter) nak(psn roce.PSN, s roce.Syndrome, status uapi.WCStatus) {
	qp := r.qp
	if qp.dev.observer == nil {
		return
	}
	r.noted(psn, s, true, status)
}

// loss reports a message of an unreliable connection that this end drops after its packet was accepted.
func (r reporter) loss(psn roce.PSN, status uapi.WCStatus) {
	qp := r.qp
	if qp.dev.observer != nil {
		r.noted(psn, 0, false, status)
	}
}

// noted reports a refused request with the rule that was recorded for its PSN.
func (r reporter) noted(psn roce.PSN, s roce.Syndrome, answered bool, status uapi.WCStatus) {
	qp := r.qp
	x := qp.resp.noted
	qp.resp.noted = violated{}
	late := x.psn != psn || x.Rule == driver.RuleUnknown
	if late {
		x = violated{psn: psn, Violation: qp.resp.receiveViolation(status)}
		if status == uapi.WCRemAccessErr { // after the check of the key, by the store or the read
			x.Rule = driver.RuleMemory
		}
	}
	qp.dev.observer.RequestRefused(driver.RefusedRequest{
		Time: qp.dev.clock.Now(), QP: r.ref(), PSN: psn, Opcode: x.op, Late: late, Syndrome: s, Answered: answered,
		Violation: x.Violation,
	})
}

func (r reporter) request(psn roce.PSN, op roce.Opcode, s roce.Syndrome, answered bool, v driver.Violation) {
	qp := r.qp
	qp.dev.observer.RequestRefused(driver.RefusedRequest{
		Time: qp.dev.clock.Now(), QP: r.ref(), PSN: psn, Opcode: op, Syndrome: s, Answered: answered, Violation: v,
	})
}

// datagram reports a datagram without a receive that can hold it.
func (r reporter) datagram(k *packet) {
	qp := r.qp
	if qp.dev.observer == nil || qp.state == ib.QPErr {
		return
	}
	v := driver.Violation{Rule: driver.RuleNoReceive}
	switch n := len(k.Payload); {
	case n > qp.mtu:
		v = driver.Violation{Rule: driver.RulePacketLength, Length: uint64(n), Limit: uint64(qp.mtu)}
	case qp.resp.wqe.taken:
		v = driver.Violation{Rule: driver.RuleReceiveLength, Length: uint64(grhLen + n), Limit: uint64(qp.resp.wqe.Length)}
	}
	r.request(k.psn, k.Opcode, 0, false, v)
}

// requestViolation returns the rule that a request violates, from the check that it has failed.
func (r *responder) requestViolation(k *packet, by transport.Check) driver.Violation {
	qp := r.qp
	var key, right uint32
	var addr, length uint64
	if h := k.RETH(); h != nil {
		key, addr, length = h.RKey(), h.VA(), uint64(h.DMALen())
	} else if h := k.AtomicETH(); h != nil {
		key, addr, length = h.RKey(), h.VA(), atomicLen
	}
	kind := transport.KindOf(k.Flags)
	switch kind {
	case transport.Write, transport.AtomicWrite:
		right = uint32(ib.AccessRemoteWrite)
	case transport.Read:
		right = uint32(ib.AccessRemoteRead)
	case transport.Atomic:
		right = uint32(ib.AccessRemoteAtomic)
	case transport.Flush:
		if t := k.FETH().Type(); t&roce.FlushGlobal != 0 {
			right |= uint32(ib.AccessFlushGlobal)
		}
		if t := k.FETH().Type(); t&roce.FlushPersistent != 0 {
			right |= uint32(ib.AccessFlushPersistent)
		}
	}
	need := ib.AccessFlags(right)
	switch by {
	case transport.CheckSequence:
		return driver.Violation{Rule: driver.RuleSequence}
	case transport.CheckPSN:
		return driver.Violation{Rule: driver.RulePSN}
	case transport.CheckResources:
		switch {
		case kind != transport.Send && kind != transport.Write:
			return driver.Violation{Rule: driver.RuleRespDepth, Limit: uint64(qp.attr.MaxDestRdAtomic)}
		case r.injectsNotReady():
			return driver.Violation{Rule: driver.RuleInjected}
		}
		return driver.Violation{Rule: driver.RuleNoReceive}
	case transport.CheckOpcode:
		switch {
		case need&^qp.attr.AccessFlags != 0:
			return driver.Violation{Rule: driver.RuleQPRight, Right: need &^ qp.attr.AccessFlags}
		case (kind == transport.Atomic || kind == transport.AtomicWrite) && addr%atomicLen != 0:
			return driver.Violation{Rule: driver.RuleAlignment, Addr: addr}
		case kind == transport.Flush:
			return driver.Violation{Rule: driver.RuleFlushType}
		case qp.typ == ib.QPTypeXRCTgt:
			return driver.Violation{Rule: driver.RuleSRQ}
		}
	case transport.CheckRKey:
		if key == 0 && qp.reliable { // a peer of UC or UD could cause many searches
			key = qp.dev.keyWithoutRemote(r.domain(), addr, length)
		}
		v := qp.report().keyViolation(r.domain(), key, need, addr, length)
		if v.Rule == driver.RuleUnknown {
			v.Rule = driver.RuleMemory
		}
		return v
	case transport.CheckLength:
		n := uint64(len(k.Payload))
		switch ends := k.Flags&roce.FlagEnds != 0; {
		case kind == transport.Read || length > maxMsgSize:
			return driver.Violation{Rule: driver.RuleMessageLength, Length: length, Limit: maxMsgSize}
		case kind == transport.AtomicWrite:
			return driver.Violation{Rule: driver.RuleAtomicLength, Length: length, Limit: atomicLen}
		case n > uint64(qp.mtu) || !ends && n != uint64(qp.mtu):
			return driver.Violation{Rule: driver.RulePacketLength, Length: n, Limit: uint64(qp.mtu)}
		case kind == transport.Write:
			_, _, all := r.rcv.Write()
			return driver.Violation{Rule: driver.RuleWriteLength, Length: n, Limit: uint64(all)}
		}
	}
	return driver.Violation{}
}

// maxSearched is the maximum number of regions that keyWithoutRemote examines.
const maxSearched = 4096

// keyWithoutRemote returns the local key of a region of the domain that contains a range and has no remote
// right, or 0 if there is none. Programs see 0 as the remote key of such a region.
func (d *Device) keyWithoutRemote(in *pd, addr, length uint64) uint32 {
	n := 0
	for m := range d.mrs.all() {
		if g := m.grant.Load(); g != nil && g.pd == in && g.access&remoteAccess == 0 && g.contains(addr, length) {
			return g.key
		}
		if n++; n == maxSearched {
			break
		}
	}
	return 0
}

// injectsNotReady reports whether a receive is posted. If so, only a fault rule can have made the queue appear empty.
func (r *responder) injectsNotReady() bool {
	qp := r.qp
	if !qp.dev.faults.Active() || qp.srq != nil || qp.typ == ib.QPTypeXRCTgt {
		return false
	}
	var w queue.Recv
	found, ok := qp.rq.Fetch(0, &w)
	return r.wqe.taken || found && ok
}

// dropReasons maps counters to reasons. The counters without a reason belong to the ordinary recovery from losses.
var dropReasons = map[counter]driver.DropReason{
	cntDropShort: driver.DropMalformed, cntDropVersion: driver.DropMalformed, cntDropOpcode: driver.DropMalformed,
	cntDropHeaders: driver.DropMalformed, cntDropUnaligned: driver.DropMalformed, cntDropPad: driver.DropMalformed,
	cntDropPayload: driver.DropMalformed, cntDropNobody: driver.DropNoQP, cntDropService: driver.DropService,
	cntDropPKey: driver.DropPKey, cntDropState: driver.DropState, cntDropSource: driver.DropSource,
	cntDropQKey: driver.DropQKey, cntDropPortDown: driver.DropPort, cntDropStalled: driver.DropStalled,
}

// drop reports a dropped packet of the queue pair. The caller runs the queue pair.
func (r reporter) drop(b []byte, src netip.Addr, why counter) {
	qp := r.qp
	if qp.dev.observer != nil {
		qp.dev.observePackets(r.ref(), src, b, 1, why)
	}
}

// refused reports datagrams that do not reach the queue pair. Any thread may call refused.
func (r reporter) refused(b []byte, src netip.Addr, packets int, why counter) {
	if qp := r.qp; qp.dev.observer != nil {
		qp.dev.observePackets(r.foreignRef(), src, b, packets, why)
	}
}

// observeUnknown reports packets for a number without a queue pair. b begins with the first packet.
func (d *Device) observeUnknown(num uint32, src netip.Addr, b []byte, packets int) {
	if d.observer != nil {
		d.observePackets(driver.QPRef{Device: d.name, Num: num}, src, b, packets, cntDropNobody)
	}
}

// intruder reports a train to a queue pair that is not connected to the train's sender.
func (r reporter) intruder(t *train) {
	qp := r.qp
	if qp.dev.observer == nil {
		return
	}
	why := cntDropSource
	if qp.State() < ib.QPRTR { // the queue pair has no peer yet
		why = cntDropState
	}
	qp.dev.observePackets(r.foreignRef(), t.path.from.addr, t.span(0), t.packets, why)
}

func (d *Device) observePackets(to driver.QPRef, src netip.Addr, b []byte, packets int, why counter) {
	reason, ok := dropReasons[why]
	if !ok {
		return
	}
	x := driver.DroppedPackets{Time: d.clock.Now(), QP: to, Source: src, Reason: reason, Packets: packets}
	if len(b) >= roce.BTHLen {
		x.Opcode, x.PSN = roce.BTH(b).Opcode(), roce.BTH(b).PSN()
	}
	if len(b) >= roce.BTHLen+roce.DETHLen && x.Opcode.Service() == roce.UD {
		x.SourceQP = roce.DETH(b[roce.BTHLen:]).SrcQPN()
	}
	d.observer.PacketsDropped(x)
}

// unsent reports packets of a train that cannot be sent while the port is down.
func (r reporter) unsent(t *train) { r.sendError(&t.Train, t.packets-t.sent, nil) }

// sendError reports packets that the network did not accept.
func (r reporter) sendError(t *link.Train, packets int, err error) {
	qp := r.qp
	if o := qp.dev.observer; o != nil {
		o.PacketsUnsent(driver.UnsentPackets{
			Time: qp.dev.clock.Now(), QP: r.ref(), Packets: packets, Longest: t.Size, Err: err,
			MTU: qp.dev.at.Load().netdev.MTU,
		})
	}
}

// lost reports a completion for which the completion queue had no room.
func (r reporter) lost(c *cq, wc *uapi.WC) {
	qp := r.qp
	o := qp.dev.observer
	if o == nil {
		return
	}
	x := driver.LostCompletion{
		Time: qp.dev.clock.Now(), QP: r.ref(), Recv: c == qp.recvCQ && wc.Opcode&uapi.WCRecv != 0, WRID: wc.WRID,
		Status: wc.Status,
	}
	c.mu.Lock()
	_, waiting, ok := c.oldest()
	if x.Entries = c.queue.Capacity(); ok {
		x.Waiting = int(waiting)
	}
	c.mu.Unlock()
	o.CompletionLost(x)
}
