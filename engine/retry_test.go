package engine

import (
	"net/netip"
	"testing"
	"time"

	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/roce"
)

// connectAs connects with exactly these attributes of a. conn cannot express 0.
func (b *bench) connectAs(timeout, retry, rnrRetry, rnrTimer uint8) {
	b.t.Helper()
	toRTR(b.t, b.a.qp, b.b.dev, b.b.qp.Num(), conn{})
	toRTR(b.t, b.b.qp, b.a.dev, b.a.qp.Num(), conn{})
	toRTS(b.t, b.b.qp, conn{})
	check(b.t, b.b.qp.Modify(ib.QPAttr{State: ib.QPRTS, MinRNRTimer: rnrTimer}, ib.QPAttrState|ib.QPAttrMinRNRTimer))
	check(b.t, b.a.qp.Modify(
		ib.QPAttr{State: ib.QPRTS, Timeout: timeout, RetryCnt: retry, RNRRetry: rnrRetry, MaxRdAtomic: 1},
		ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRdAtomic))
}

// sends returns the times at which a has sent a SEND.
func (b *bench) sends() (at []time.Time) {
	for _, p := range b.net.Packets() {
		if p.Src == addrA && roce.BTH(p.Data).Opcode() == roce.RCSendOnly {
			at = append(at, p.Sent)
		}
	}
	return at
}

// TestRNRTimers tests that after an RNR NAK the requester waits for the time of the responder's code (IBA table 45),
// independently of its own timers.
func TestRNRTimers(t *testing.T) {
	for code := range uint8(32) {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{net: simnet.Config{Record: true}})
			b.connectAs(1, 0, 2, code)
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
			wait := roce.RNRTimer(code).Duration()
			testutil.AdvanceTime(4 * wait)
			at := b.sends()
			if len(at) != 3 {
				t.Fatalf("code %d: sent %d times", code, len(at))
			}
			for i := range 2 {
				if d := at[i+1].Sub(at[i]); d < wait || d > wait+time.Millisecond {
					t.Errorf("code %d: sent again after %v, want %v", code, d, wait)
				}
			}
			b.a.expect(ib.WC{ID: 1, Status: ib.WCRNRRetryExcErr})
		})
	}
}

// TestRNRRetryCount tests the RNR retry count: 0 to 6 retransmissions, or any number for 7 (IBA 9.7.5.2).
func TestRNRRetryCount(t *testing.T) {
	const code = 14 // 1.28 ms at most
	for count := range uint8(8) {
		bubble(t, func(t *testing.T) {
			b := newBench(t, setup{net: simnet.Config{Record: true}})
			b.connectAs(14, 0, count, code)
			b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled})
			testutil.AdvanceTime(100 * time.Millisecond)
			n := len(b.sends())
			if count < 7 {
				if n != int(count)+1 {
					t.Errorf("RNR retry count %d: sent %d times", count, n)
				}
				b.a.expect(ib.WC{ID: 1, Status: ib.WCRNRRetryExcErr})
				return
			}
			if n < 50 {
				t.Errorf("RNR retry count %d: sent %d times in 100 ms", count, n)
			}
			b.a.none()
			b.b.recv(2, 0, 8)
			b.a.expect(ib.WC{ID: 1, Opcode: ib.WCSend})
			b.b.expect(ib.WC{ID: 2, Opcode: ib.WCRecv})
		})
	}
}

// TestAckTimeouts tests the time of a try with each code n from 1 to 31: between 4.096 µs * 2^n and four times that
// (IBA 9.7.6.1.3), but at least transport.MinTimeout. The retry count is the number of further tries.
func TestAckTimeouts(t *testing.T) {
	for code := uint8(1); code < 32; code++ {
		for _, retry := range []uint8{0, 1, 7} {
			bubble(t, func(t *testing.T) {
				b := newBench(t, setup{})
				b.connectAs(code, retry, 0, 1)
				b.net.SetLink(addrB, false)
				b.a.send(ib.SendWR{ID: 1, Opcode: ib.WRSend})
				try := max(4096*time.Nanosecond<<code, transport.MinTimeout)
				tries := time.Duration(retry) + 1
				testutil.AdvanceTime(tries*try - time.Microsecond)
				b.a.none()
				testutil.AdvanceTime(3*tries*try + time.Microsecond)
				b.a.expect(ib.WC{ID: 1, Status: ib.WCRetryExcErr})
			})
		}
	}
}

// TestNAKs tests the reaction of a requester to each NAK of its oldest request (IBA 9.7.5.2).
func TestNAKs(t *testing.T) {
	for _, c := range []struct {
		name     string
		syndrome roce.Syndrome
		status   ib.WCStatus // WCSuccess: a retransmission
	}{
		{"PSN sequence error", roce.NAKPSNSequenceError, ib.WCSuccess},
		{"receiver not ready", roce.RNRNAK(1), ib.WCSuccess},
		{"invalid request", roce.NAKInvalidRequest, ib.WCRemInvReqErr},
		{"remote access error", roce.NAKRemoteAccessError, ib.WCRemAccessErr},
		{"remote operational error", roce.NAKRemoteOperationalError, ib.WCRemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			h.postSend(rc, ib.WRSend, 100)
			h.postSend(rc, ib.WRSend, 100)
			h.postRecv(rc)
			h.run()
			h.answers = nil
			h.inject(craft{to: h.qps[rc].QP, op: roce.RCAcknowledge, syndrome: c.syndrome})
			h.sleep(time.Millisecond)
			if c.status == ib.WCSuccess {
				if len(h.answers) != 2 || len(h.completions()) != 0 {
					t.Errorf("sends %d packets, want the two again", len(h.answers))
				}
				h.inject(craft{to: h.qps[rc].QP, op: roce.RCAcknowledge, psn: 1, syndrome: roce.ACKUnlimited})
				h.run()
				if done := h.completions(); len(done) != 2 || done[1].Status != ib.WCSuccess {
					t.Errorf("then completes %+v", done)
				}
				return
			}
			done := h.completions()
			if len(done) != 3 || done[0].Status != c.status || done[1].Status != ib.WCWRFlushErr ||
				done[2].Status != ib.WCWRFlushErr {
				t.Errorf("completes %+v, want %v and flushes", done, c.status)
			}
			if s := h.qps[rc].QP.State(); s != ib.QPErr || len(h.answers) != 0 {
				t.Errorf("is in %v, and sends %d packets", s, len(h.answers))
			}
		})
	}
}

// TestIncomingReadLimit tests that one READ more than max_dest_rd_atomic is an invalid request, and that the earlier
// READs are answered.
func TestIncomingReadLimit(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	v := h.qps[rc]
	var list []craft
	for i := range askedReads + 1 {
		list = append(list, craft{to: v.QP, op: roce.RCRDMAReadRequest, psn: i, va: regionVA(regionReadable),
			rkey: h.key(regionReadable), length: 8})
	}
	full := true
	h.net.Full = func(_ netip.Addr) bool { return full } // no answer is sent yet
	h.inject(list...)
	h.run()
	full = false
	h.sleep(time.Millisecond)
	want := []roce.Opcode{roce.RCRDMAReadResponseOnly, roce.RCRDMAReadResponseOnly, roce.RCAcknowledge}
	if len(h.answers) != len(want) {
		t.Fatalf("%d answers, want %v", len(h.answers), want)
	}
	for i, k := range h.answers {
		if k.Opcode != want[i] || i == 2 && k.AETH().Syndrome() != roce.NAKInvalidRequest {
			t.Errorf("answer %d is %v % x", i, k.Opcode, k.Data)
		}
	}
	if s := v.QP.State(); s != ib.QPErr {
		t.Errorf("the queue pair is in %v", s)
	}
}

// TestSendQueueError tests an error of an unreliable connection's send queue (IBA 10.3.1): later requests are
// flushed, receives continue, and the consumer can return the queue pair to RTS.
func TestSendQueueError(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.typ = ib.QPTypeUC
		b := newBench(t, s)
		b.connect(conn{})
		bad := ib.SendWR{ID: 1, Opcode: ib.WRSend, SGList: b.a.sge(0, 100)}
		bad.SGList[0].LKey ^= 1 << 9
		b.a.recv(9, 0, 100)
		b.a.send(bad, ib.SendWR{ID: 2, Opcode: ib.WRSend})
		b.a.expect(ib.WC{ID: 1, Status: ib.WCLocProtErr}, ib.WC{ID: 2, Status: ib.WCWRFlushErr})
		if s := b.a.qp.State(); s != ib.QPSQE {
			t.Fatalf("the queue pair is in %v", s)
		}
		b.b.send(ib.SendWR{Opcode: ib.WRSend, SGList: b.b.sge(0, 50)})
		b.a.expect(ib.WC{ID: 9, Opcode: ib.WCRecv, ByteLen: 50})
		b.a.send(ib.SendWR{ID: 3, Opcode: ib.WRSend})
		b.a.expect(ib.WC{ID: 3, Status: ib.WCWRFlushErr})
		check(t, b.a.qp.Modify(ib.QPAttr{State: ib.QPRTS, CurState: ib.QPSQE}, ib.QPAttrState|ib.QPAttrCurState))
		b.b.recv(8, 0, 100)
		b.a.send(ib.SendWR{ID: 4, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.a.sge(0, 70)})
		b.a.expect(ib.WC{ID: 4, Opcode: ib.WCSend})
		b.b.expect(ib.WC{ID: 8, Opcode: ib.WCRecv, ByteLen: 70})
	})
}
