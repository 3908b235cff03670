package rxe

import (
	"encoding/binary"
	"time"

	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// receiveResponse handles an acknowledgement or an RDMA READ response for a work request of this queue pair.
// qp.mu is held. (rxe_completer)
func (qp *QP) receiveResponse(p *pass, k *packet) {
	r := &qp.req
	if r.flight.len() == 0 || k.psn.Less(r.una) || !k.psn.Less(r.sent) {
		qp.dev.counters.add(cntDropResponse, 1)
		return // to something that is complete already, or that was never sent
	}
	switch {
	case k.Flags&roce.FlagReadResponse != 0:
		qp.receiveRead(p, k)
	case k.Flags&roce.FlagAtomicAck != 0:
		qp.receiveAtomic(p, k)
	case k.Flags&roce.FlagAck != 0:
		qp.receiveAck(k)
	}
}

// receiveAck handles an acknowledgement (IBA 9.7.5.1.2).
func (qp *QP) receiveAck(k *packet) {
	syndrome := k.AETH().Syndrome()
	upTo := k.psn // a NAK acknowledges what is before its PSN
	switch {
	case syndrome.IsACK():
		upTo = k.psn.Next()
	case syndrome.IsRNR():
		qp.dev.counters.add(cntRcvRNR, 1)
	case syndrome == roce.NAKPSNSequenceError:
		qp.dev.counters.add(cntRcvSeqErr, 1)
	case !syndrome.IsNAK():
		return // reserved
	}
	if !qp.acknowledged(upTo) {
		qp.responseLost(qp.req.una)
		return
	}
	waiting := !qp.req.rnrUntil.IsZero()
	switch {
	case syndrome.IsACK():
	case syndrome.IsRNR():
		if !waiting {
			qp.notReady(syndrome.RNRTimer().Duration())
		}
	case syndrome == roce.NAKPSNSequenceError:
		if !waiting {
			qp.retry()
		}
	case syndrome == roce.NAKInvalidRequest:
		qp.fail(uapi.WCRemInvReqErr)
	case syndrome == roce.NAKRemoteAccessError:
		qp.fail(uapi.WCRemAccessErr)
	default:
		qp.fail(uapi.WCRemOpErr)
	}
}

// acknowledged notes that everything before psn has been done, and completes the work requests that end there. It
// reports false, and stops, at an RDMA READ or atomic whose response has not come.
func (qp *QP) acknowledged(psn roce.PSN) bool {
	r := &qp.req
	bytes := 0
	for r.una != psn && r.flight.len() > 0 {
		w := r.flight.at(r.flight.head)
		if w.kind.answered() {
			break
		}
		from, to := r.una.Since(w.first), min(psn.Since(w.first), w.packets)
		bytes += w.cost(qp.mtu, from, to)
		r.una = w.first.Add(to)
		if to == w.packets {
			qp.completeHead(uapi.WCSuccess)
		}
	}
	if bytes > 0 {
		qp.progressed(bytes)
	}
	return r.una == psn
}

// progressed notes that una has moved over so many bytes.
func (qp *QP) progressed(bytes int) {
	r := &qp.req
	if int32(r.at-r.flight.head) < 0 || r.place().Less(r.una) {
		r.rewind() // forward: what was to be sent again had arrived after all
	} else {
		r.out -= bytes
	}
	r.window = min(r.window+max(1, readChunk*bytes/r.window), maxWindow)
	r.retries, r.rnrRetries = qp.attr.RetryCnt, qp.attr.RNRRetry
	r.gap = r.gap && !r.gapEnd.Less(r.una)
	r.deadline = noTime
	if r.una != r.place() {
		qp.startTimeout()
	}
}

// receiveRead stores a part of an RDMA READ response.
func (qp *QP) receiveRead(p *pass, k *packet) {
	r := &qp.req
	if !qp.acknowledged(k.psn) {
		qp.responseLost(k.psn)
		return
	}
	w := r.flight.at(r.flight.head)
	pkt := k.psn.Since(w.first)
	if (w.kind == opFlush || w.kind == opAtomicWrite) && pkt == 0 {
		qp.receiveDone(w, k)
		return
	}
	if w.kind != opRead || pkt >= w.packets {
		return
	}
	off := pkt * qp.mtu
	if aeth := k.AETH(); aeth != nil && !aeth.Syndrome().IsACK() || len(k.Payload) != min(qp.mtu, w.length-off) {
		qp.fail(uapi.WCBadRespErr)
		return
	}
	if !qp.store(p, scatterRead, k.psn, w.sges, off, k.Payload) {
		return
	}
	bytes := w.cost(qp.mtu, pkt, pkt+1)
	if chunk := qp.chunkPackets(); (pkt+1)%chunk == 0 || pkt+1 == w.packets {
		r.reads--
	}
	r.una = k.psn.Next()
	if pkt+1 == w.packets {
		if !qp.settle(p) {
			return
		}
		r.ordered--
		qp.completeHead(uapi.WCSuccess)
	}
	qp.progressed(bytes)
}

// receiveAtomic stores the result of an atomic request.
func (qp *QP) receiveAtomic(p *pass, k *packet) {
	r := &qp.req
	if !qp.acknowledged(k.psn) {
		qp.responseLost(k.psn)
		return
	}
	w := r.flight.at(r.flight.head)
	if w.kind != opAtomic || w.first != k.psn || !k.AETH().Syndrome().IsACK() {
		return
	}
	// Host byte order in memory, as the value was there at the responder.
	binary.NativeEndian.PutUint64(r.result[:], k.AtomicAckETH().Orig())
	if !qp.store(p, scatterRead, k.psn, w.sges, 0, r.result[:]) || !qp.settle(p) {
		return
	}
	bytes := w.cost(qp.mtu, 0, 1)
	r.reads--
	r.ordered--
	r.una = k.psn.Next()
	qp.completeHead(uapi.WCSuccess)
	qp.progressed(bytes)
}

// responseLost handles a response, to psn, that is newer than what is waited for: what was to come before it is lost
// (an implied NAK, IBA 9.7.5.2.1). Until that has come, what else arrives too early tells nothing new.
func (qp *QP) responseLost(psn roce.PSN) {
	r := &qp.req
	if !r.gap && r.rnrUntil.IsZero() {
		qp.retry()
		r.gap, r.gapEnd = true, psn
	}
}

// retry sends everything that is not acknowledged again, or gives up.
func (qp *QP) retry() {
	r := &qp.req
	qp.dev.counters.add(cntCompRetry, 1)
	if r.retries == 0 {
		qp.dev.counters.add(cntRetryExceeded, 1)
		qp.fail(uapi.WCRetryExcErr)
		return
	}
	r.retries--
	qp.note(traceRetry, uint32(r.retries))
	r.window = max(r.window/2, qp.mtu+packetCost)
	r.rewind()
	r.deadline = noTime
	qp.startTimeout()
}

// timedOut is called when no acknowledgement came in time.
func (qp *QP) timedOut() {
	r := &qp.req
	if (qp.state == ib.QPRTS || qp.state == ib.QPSQD) && r.flight.len() > 0 && r.una != r.place() {
		r.gap = false
		qp.note(traceTimeout, 0)
		qp.retry()
	}
}

// startTimeout begins to wait for an acknowledgement (IBA 9.7.6.1.3).
func (qp *QP) startTimeout() {
	if t := roce.AckTimeout(qp.attr.Timeout).Duration(); t != 0 {
		r, now := &qp.req, qp.dev.clock.Now()
		r.deadline = now.Add(max(t, minTimeout))
		r.probe, r.probeWait = now.Add(probeAfter), probeAfter
		if t < 2*probeAfter {
			r.probe = noTime // the timeout is soon enough
		}
	}
}

// notReady waits as the responder asks, then sends everything from una on again.
func (qp *QP) notReady(wait time.Duration) {
	r := &qp.req
	if r.flight.len() == 0 {
		return
	}
	if qp.attr.RNRRetry != rnrForEver {
		if r.rnrRetries == 0 {
			qp.dev.counters.add(cntRNRRetryExceeded, 1)
			qp.fail(uapi.WCRNRRetryExcErr)
			return
		}
		r.rnrRetries--
	}
	r.rewind()
	r.deadline = noTime
	r.rnrUntil = qp.dev.clock.Now().Add(wait)
	qp.note(traceRNRWait, uint32(wait/time.Microsecond))
}

// rnrForEver is the retry count that means no limit.
const rnrForEver = 7

// completeHead completes the oldest work request, and local ones that have been waiting for that.
func (qp *QP) completeHead(status uapi.WCStatus) {
	f := &qp.req.flight
	for {
		w := f.at(f.head)
		f.head++
		qp.completeSend(w, status)
		if status != uapi.WCSuccess || f.len() == 0 || !f.at(f.head).done {
			return
		}
	}
}

// completeSend gives the slot of a work request back and posts its completion. Failures are reported also where
// success would not be (IBA 10.7.3.1).
func (qp *QP) completeSend(w *sendWQE, status uapi.WCStatus) {
	qp.note(traceSendDone, uint32(status))
	qp.sqDone = qp.sq.next(qp.sqDone)
	if !qp.sq.setConsumer(qp.sqDone) {
		qp.ringGone()
	}
	if status == uapi.WCSuccess {
		qp.dev.counters.add(cntRDMASend, 1)
		if !qp.sigAll && w.flags&uapi.SendSignaled == 0 {
			return
		}
	}
	wc := uapi.WC{WRID: w.id, Status: status, ByteLen: uint32(w.length)}
	if int(w.opcode) < len(wcOpcodes) {
		wc.Opcode = wcOpcodes[w.opcode]
	}
	qp.complete(qp.sendCQ, &wc, false)
}

// fail completes the oldest work request with an error; the queue pair, or for the unconnected and unreliable
// services its send queue, goes to the error state.
func (qp *QP) fail(status uapi.WCStatus) {
	if qp.req.flight.len() > 0 {
		qp.completeHead(status)
	}
	why := ""
	if qp.dev.qpFailed != nil {
		why = "a work request failed: " + status.String()
	}
	switch {
	case qp.state == ib.QPErr:
	case qp.reliable():
		qp.enterError(why)
	default:
		qp.setState(ib.QPSQE)
	}
}
