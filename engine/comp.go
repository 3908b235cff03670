package engine

import (
	"encoding/binary"
	"time"

	"verbena/driver"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// receiveResponse handles an acknowledgement or a response for a work request of this queue pair.
// (rxe_completer)
func (r *requester) receiveResponse(p *pass, k *packet) {
	qp := r.qp
	if !r.snd.Expects(k.psn) {
		r.snd.Stale(k.psn)
		qp.dev.counters.add(cntDropResponse, 1)
		return // the request is complete already, or was never sent
	}
	if k.Flags&roce.FlagAck != 0 {
		syndrome := k.AETH().Syndrome()
		switch {
		case syndrome.IsRNR():
			qp.dev.counters.add(cntRcvRNR, 1)
		case syndrome == roce.NAKPSNSequenceError:
			qp.dev.counters.add(cntRcvSeqErr, 1)
		}
		r.apply(r.snd.Ack(k.psn, syndrome), driver.RepeatNAK)
		return
	}
	x := transport.Response{PSN: k.psn, Op: k.Opcode.Operation(), Length: len(k.Payload)}
	if h := k.AETH(); h != nil {
		x.Syndrome = h.Syndrome()
	}
	res, to, ok := r.snd.Response(&x)
	if r.apply(res, driver.RepeatNAK); !ok {
		return
	}
	data := k.Payload
	if h := k.AtomicAckETH(); h != nil {
		// Store in host byte order, the order of the value in the responder's memory.
		binary.NativeEndian.PutUint64(r.result[:], h.Orig())
		data = r.result[:]
	}
	w := r.wqe(r.snd.Head())
	if !p.store(qp, scatterRead, k.psn, w.SGEs, to.Offset, data) || to.Last && !p.settle(qp) {
		return
	}
	r.apply(r.snd.Stored(), driver.RepeatNAK)
}

// receiveSpan stores several responses to an RDMA READ at once, if possible. It returns the number of packets that it
// has handled: all; 1 if the memory has refused them; or 0 if they must be handled one by one.
func (r *requester) receiveSpan(p *pass, k *packet) int {
	off, ok := r.snd.Responses(k.psn, k.packets, len(k.Payload)/k.packets)
	if !ok {
		return 0
	}
	w := r.wqe(r.snd.Head())
	if i, at := sgeAt(w.SGEs, off); i == len(w.SGEs) || at+len(k.Payload) > int(w.SGEs[i].Length) {
		return 0
	}
	if !p.store(r.qp, scatterRead, k.psn, w.SGEs, off, k.Payload) {
		return 1
	}
	r.snd.StoredAll(k.packets)
	return k.packets
}

// statuses maps failures on the wire to the statuses of the completions.
var statuses = [...]uapi.WCStatus{
	transport.RemoteInvalid:   uapi.WCRemInvReqErr,
	transport.RemoteAccess:    uapi.WCRemAccessErr,
	transport.RemoteOperation: uapi.WCRemOpErr,
	transport.RetryExceeded:   uapi.WCRetryExcErr,
	transport.RNRExceeded:     uapi.WCRNRRetryExcErr,
	transport.BadResponse:     uapi.WCBadRespErr,
}

// apply executes the result of an acknowledgement, a response or a timeout. cause is the reason for a retransmission,
// if there is one.
func (r *requester) apply(res transport.Result, cause driver.RepeatCause) {
	qp := r.qp
	r.succeed(res.Done)
	if res.Retransmits {
		qp.dev.counters.add(cntCompRetry, 1)
		r.retransmits++
	}
	switch {
	case res.Failure == transport.NoFailure:
		if res.Retransmits {
			qp.trace.note(traceRetry, uint32(res.Retries))
		}
		if res.Wait != 0 {
			qp.trace.note(traceRNRWait, uint32(res.Wait/time.Microsecond))
		}
		if t := qp.trace.requestLog(); t != nil {
			if res.Retransmits {
				t.repeated(cause, res.Retries)
			}
			if res.Wait != 0 {
				t.delayed(res.Wait)
			}
		}
		return
	case res.Failure == transport.RetryExceeded:
		qp.dev.counters.add(cntRetryExceeded, 1)
	case res.Failure == transport.RNRExceeded:
		qp.dev.counters.add(cntRNRRetryExceeded, 1)
	}
	r.fail(statuses[res.Failure])
}

// timedOut handles a timeout: no acknowledgement arrived in time.
func (r *requester) timedOut() {
	qp := r.qp
	if qp.state != ib.QPRTS && qp.state != ib.QPSQD {
		return
	}
	if res, ok := r.snd.TimedOut(); ok {
		qp.trace.note(traceTimeout, 0)
		r.apply(res, driver.RepeatTimeout)
	}
}

// succeed completes the n work requests that snd has just released.
func (r *requester) succeed(n int) {
	for i := r.snd.Head() - uint32(n); i != r.snd.Head(); i++ {
		r.complete(r.wqe(i), uapi.WCSuccess)
	}
}

// complete frees the slot of a work request, and posts its completion. A failed work request gets a completion even
// if it is not signaled (IBA 10.7.3.1).
func (r *requester) complete(w *sendWQE, status uapi.WCStatus) {
	qp := r.qp
	qp.trace.note(traceSendDone, uint32(status))
	if qp.recorder != nil {
		qp.recorder.Forget(w.ID)
	}
	if !qp.sq.Complete() {
		qp.ringGone()
	}
	traced := qp.trace.requestLog().sendDone(w, status)
	qp.dev.countRequest(w.kind, w.length, status)
	if status != uapi.WCSuccess {
		qp.failures++
		qp.report().send(w, status)
	} else {
		qp.dev.counters.add(cntRDMASend, 1)
		if !qp.sigAll && w.Flags&uapi.SendSignaled == 0 {
			if traced != nil {
				qp.trace.requests.add()
			}
			return
		}
	}
	wc := uapi.WC{WRID: w.ID, Status: status, ByteLen: uint32(w.length)}
	if int(w.Opcode) < len(wcOpcodes) {
		wc.Opcode = wcOpcodes[w.Opcode]
	}
	qp.complete(qp.sendCQ, &wc, false, traced)
}

// fail completes the oldest work request with an error. Before that, the queue pair enters the error state. For the
// unconnected and unreliable services, only the send queue does.
func (r *requester) fail(status uapi.WCStatus) {
	qp := r.qp
	why := driver.StateCause{Reason: driver.BySend, Status: status}
	switch {
	case qp.state == ib.QPErr:
	case qp.reliable:
		qp.enterError(why)
	default:
		qp.setState(ib.QPSQE, why)
	}
	if r.snd.Len() > 0 {
		r.drop(status)
	}
}

// drop completes the oldest work request without success.
func (r *requester) drop(status uapi.WCStatus) {
	w := r.wqe(r.snd.Head())
	r.snd.Drop()
	r.complete(w, status)
}

// flush completes all requests in the send queue with a flush error. The size of the queue bounds their number, even
// if a user continues to post. (rxe_drain_resp_pkts)
func (r *requester) flush() {
	qp := r.qp
	if qp.srd != nil {
		qp.srd.flush()
	}
	for r.snd.Len() > 0 {
		r.drop(uapi.WCWRFlushErr)
	}
	r.snd.Rewind()
	for range qp.sq.Capacity() {
		w := &r.scratch
		if found, ok := qp.sq.Fetch(0, &w.Send); !ok {
			qp.ringGone()
			return
		} else if !found {
			break
		}
		qp.timer.quiet = 0
		r.check(w)
		qp.sq.Take()
		r.complete(w, uapi.WCWRFlushErr)
	}
}

// wqe returns the work request with a number of snd.
func (r *requester) wqe(n uint32) *sendWQE { return &r.wqes[n&uint32(len(r.wqes)-1)] }
