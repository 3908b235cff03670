package engine

import (
	"fmt"
	"syscall"
	"time"

	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/clock"
	"verbena/internal/qpinfo"
	"verbena/roce"
	"verbena/uapi"
)

// traceLen is the number of events in a queue pair's trace, which keeps the latest ones.
const traceLen = 256

// maxTraced is the maximum number of queue pairs of a device that are traced at a time. Each trace takes about 10 KB.
const maxTraced = 64

// traceKind is the kind of a protocol event of a queue pair.
type traceKind uint8

const (
	traceState    traceKind = iota // detail: the new state
	traceSend                      // a train leaves: its first packet; detail: packets
	traceReceive                   // a packet has arrived
	traceDrop                      // a packet is dropped; detail: counter
	traceRefuse                    // a request is not executed; detail: the transport.Check that has refused it
	traceRetry                     // all unacknowledged packets are retransmitted; detail: retries left
	traceRNRWait                   // the peer has no receive; detail: microseconds until the retransmission
	traceTimeout                   // no acknowledgement arrived in time
	traceSendDone                  // a send work request has ended; detail: status
	traceRecvDone                  // a receive work request has ended; detail: status
)

var traceNames = [...]string{
	traceState: "state", traceSend: "send", traceReceive: "receive", traceDrop: "drop", traceRefuse: "refuse", traceRetry: "retry",
	traceRNRWait: "rnr wait", traceTimeout: "timeout", traceSendDone: "send completed", traceRecvDone: "receive completed",
}

// traceRecord is an event in the ring. op, psn and syndrome describe the packet, if the event has one.
type traceRecord struct {
	at       time.Time
	detail   uint32
	psn      roce.PSN
	kind     traceKind
	op       roce.Opcode
	acks     bool // syndrome is valid
	syndrome roce.Syndrome
}

// trace is the trace of a queue pair: of its latest protocol events, of its work requests, or of both.
type trace struct {
	protocol *protocolTrace // nil: off
	requests *requestTrace  // nil: off
}

// protocolTrace is the ring of a queue pair's latest protocol events.
type protocolTrace struct {
	clock clock.Clock
	n     uint64 // events since the trace began
	ring  [traceLen]traceRecord
}

// protocolOn reports whether protocol events are recorded.
func (t *trace) protocolOn() bool { return t != nil && t.protocol != nil }

// note records an event without a packet. If the trace is off, note does nothing.
func (t *trace) note(kind traceKind, detail uint32) {
	if t.protocolOn() {
		t.protocol.add(traceRecord{at: t.protocol.clock.Now(), kind: kind, detail: detail})
	}
}

func (t *protocolTrace) add(r traceRecord) {
	t.ring[t.n%traceLen] = r
	t.n++
}

// packet records an event of a packet. b has at least the headers of the packet, with or without an ICRC. If the
// trace is off, packet does nothing.
func (t *trace) packet(kind traceKind, b []byte, detail uint32) {
	if !t.protocolOn() {
		return
	}
	r := traceRecord{at: t.protocol.clock.Now(), kind: kind, detail: detail}
	if len(b) >= roce.BTHLen {
		h := roce.BTH(b)
		r.op, r.psn = h.Opcode(), h.PSN()
		if k := (roce.Packet{Opcode: r.op, Data: b}); len(b) >= r.op.HeaderLen() && r.op.Has(roce.FlagAETH) {
			r.acks, r.syndrome = true, k.AETH().Syndrome()
		}
	}
	t.protocol.add(r)
}

// Types of package qpinfo, which documents them.
type (
	// QPStatus is the protocol state of a queue pair.
	QPStatus = qpinfo.Status
	// QPTrace is the trace of a queue pair.
	QPTrace = qpinfo.Trace
	// TraceEvent is a protocol event of a queue pair.
	TraceEvent = qpinfo.Event
)

func (r *traceRecord) event() TraceEvent {
	e := TraceEvent{Time: r.at, Event: traceNames[r.kind]}
	if r.kind == traceSend || r.kind == traceReceive || r.kind == traceDrop || r.kind == traceRefuse {
		e.Opcode, e.PSN = r.op.String(), uint32(r.psn)
	}
	switch r.kind {
	case traceState:
		e.Detail = ib.QPState(r.detail).String()
	case traceSend:
		if r.detail > 1 {
			e.Detail = fmt.Sprintf("%d packets", r.detail)
		}
	case traceDrop:
		e.Detail = counterNames[r.detail]
	case traceRefuse:
		e.Detail = transport.Check(r.detail).String()
	case traceRetry:
		e.Detail = fmt.Sprintf("%d retries left", r.detail)
	case traceRNRWait:
		e.Detail = fmt.Sprint(time.Duration(r.detail) * time.Microsecond)
	case traceSendDone, traceRecvDone:
		e.Detail = uapi.WCStatus(r.detail).String()
	}
	if r.acks {
		if e.Detail != "" {
			e.Detail += ", "
		}
		e.Detail += r.syndrome.String()
	}
	return e
}

// TraceQP begins or ends the trace of a queue pair's latest protocol events. It may sleep. The error is ENOENT if
// there is no queue pair with the number, ENOSPC if too many are traced, and EAGAIN if the memory of its program does
// not answer.
func (d *Device) TraceQP(num uint32, on bool) error {
	qp := d.qp(num)
	if qp == nil {
		return fmt.Errorf("trace QP %d on %s: no such queue pair: %w", num, d.name, syscall.ENOENT)
	}
	d.tracing.Lock()
	defer d.tracing.Unlock()
	traced := 0
	for q := range d.qps.all() {
		if q != qp && q.traced.Load() {
			traced++
		}
	}
	if on && traced >= maxTraced {
		return fmt.Errorf("trace QP %d on %s: %d queue pairs are traced, at most %d: end a trace first: %w", num, d.name, traced, maxTraced, syscall.ENOSPC)
	}
	return qp.look(func() {
		qp.setTrace(func(t *trace) {
			switch {
			case !on:
				t.protocol = nil
			case t.protocol == nil:
				t.protocol = &protocolTrace{clock: d.clock}
			}
		})
		qp.traced.Store(on)
	})
}

// setTrace changes the trace with f. The caller runs the queue pair, or has just created it.
func (qp *QP) setTrace(f func(t *trace)) {
	var t trace
	if qp.trace != nil {
		t = *qp.trace
	}
	if f(&t); t == (trace{}) {
		qp.trace = nil
		return
	}
	qp.trace = &t
}

// QPTrace returns the latest protocol events of a queue pair, the oldest first. It may sleep. The error is ENOENT if
// there is no queue pair with the number.
func (d *Device) QPTrace(num uint32) (QPTrace, error) {
	qp := d.qp(num)
	if qp == nil {
		return QPTrace{}, fmt.Errorf("trace of QP %d on %s: no such queue pair: %w", num, d.name, syscall.ENOENT)
	}
	var t protocolTrace
	on := false
	if err := qp.look(func() {
		if on = qp.trace.protocolOn(); on {
			t = *qp.trace.protocol
		}
	}); err != nil {
		return QPTrace{}, err
	}
	r := QPTrace{On: on, Events: []TraceEvent{}}
	if t.n > traceLen {
		r.Lost = t.n - traceLen
	}
	for i := r.Lost; i < t.n; i++ {
		r.Events = append(r.Events, t.ring[i%traceLen].event())
	}
	return r, nil
}

// QPStatuses returns the statuses of the device's queue pairs. If the memory of its program does not answer, a queue
// pair is Slow, and its status has only the number, type, state and trace flag. QPStatuses may sleep, but does not
// wait for a program.
func (d *Device) QPStatuses() []QPStatus {
	list := []QPStatus{}
	for qp := range d.qps.all() {
		s := QPStatus{Num: qp.num, Type: qp.typ.String(), State: qp.State().String(), Traced: qp.traced.Load()}
		s.Slow = qp.look(func() {
			x := qp.req.snd.Status()
			s.MTU, s.Unacknowledged, s.NextPSN = qp.mtu, uint32(x.Unacknowledged), uint32(x.Place)
			s.ExpectedPSN, s.InFlight, s.Window = uint32(qp.resp.rcv.PSN()), x.InFlight, x.Window
			s.Retries, s.RNRRetries, s.Egress = x.Retries, x.RNRRetries, len(qp.egress.queue)+int(qp.egress.handed.Load())
			s.Retransmits = qp.req.retransmits
			if qp.srd != nil {
				s.InFlight, s.Window, s.Flows = qp.srd.inFlight(), qp.srd.window(), qp.srd.status()
			}
			if qp.path != nil && !qp.datagram {
				s.DestQPN, s.Peer = qp.attr.DestQPN, qp.path.dst.String()
			}
		}) != nil
		list = append(list, s)
	}
	return list
}
