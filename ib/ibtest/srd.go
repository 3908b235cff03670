package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"verbena/ib"
)

// SRD: scalable reliable datagrams.

var srdChecks = []ruleTest{
	{
		name: "SRD/Messages",
		rule: "SEND, RDMA WRITE, RDMA READ and immediate data reach any queue pair of the type, without a header before the data",
		test: testSRDMessages,
	},
	{
		name: "SRD/WaitsAlone",
		rule: "a request that waits for a receive does not delay requests to other queue pairs",
		test: testSRDWaitingRequest,
	},
	{
		name: "SRD/EachOnce",
		rule: "each message of several senders is delivered once, in any order",
		test: testSRDDeliversEachOnce,
	},
	{
		name: "SRD/ImmediateLast",
		rule: "the immediate data of an RDMA WRITE complete a receive when all data of the request are in memory",
		test: testSRDImmediateIsLast,
	},
	{
		name: "SRD/FailureOfRequest",
		rule: "a request that fails completes with its status, and leaves its queue pair, the peer and other requests as they are",
		test: testSRDFailureLeavesQP,
	},
	{
		name: "SRD/Refused",
		rule: "atomics, invalidations, binds and requests without an address handle of the domain are refused",
		test: testSRDRefusedRequests,
	},
	{
		name: "SRD/QKey",
		rule: "a request with a wrong Q_Key fails and is not delivered; one with the high bit stands for that of the sending queue pair",
		test: testSRDQKey,
	},
	{
		name: "SRD/Flush",
		rule: "ERR flushes requests and receives in the order of posting, and RESET discards them",
		test: testSRDFlush,
	},
}

// srdPair is a pair of SRD. Each side can send to both.
type srdPair struct {
	*pair
	ah *ib.AH
}

func (e *testEnv) newSRDPair() *srdPair {
	e.Helper()
	p := e.newPair(pairConfig{kind: ib.QPTypeSRD})
	return &srdPair{p, e.newAH(p.pd)}
}

// newRequest returns a signaled request of n bytes from one side to another. It uses the bytes at offset from of the
// buffer of its side, and at offset to of the other.
func (p *srdPair) newRequest(id uint64, op ib.WROpcode, side, other, from, to, n int) ib.SendWR {
	return ib.SendWR{ID: id, Opcode: op, Flags: ib.SendSignaled, SGList: p.buf[side].newSGL(from, n), Imm: uint32(id) + 7,
		RemoteAddr: p.buf[other].addr + uint64(to), RKey: p.buf[other].mr.RKey(),
		AH: p.ah, RemoteQPN: p.qps[other].Num(), RemoteQKey: qkey}
}

// waitByID waits for completions of different requests in any order, and returns them by their IDs.
func (r *resultChecker) waitByID(cq *ib.CQ, n int) map[uint64]ib.WC {
	r.Helper()
	all := map[uint64]ib.WC{}
	for _, wc := range r.waitCompletions(cq, n) {
		if old, twice := all[wc.ID]; twice {
			r.Fatalf("work request %d completed twice, with %q and %q", wc.ID, old.Status, wc.Status)
		}
		all[wc.ID] = wc
	}
	return all
}

// srdOperations are the operations of the type.
var srdOperations = []struct {
	op       ib.WROpcode
	want     ib.WCOpcode
	receives bool
	recv     ib.WCOpcode
	imm      bool
}{
	{ib.WRSend, ib.WCSend, true, ib.WCRecv, false},
	{ib.WRSendWithImm, ib.WCSend, true, ib.WCRecv, true},
	{ib.WRRDMAWrite, ib.WCRDMAWrite, false, 0, false},
	{ib.WRRDMAWriteWithImm, ib.WCRDMAWrite, true, ib.WCRecvRDMAWithImm, true},
	{ib.WRRDMARead, ib.WCRDMARead, false, 0, false},
}

func testSRDMessages(e *testEnv) {
	p := e.newSRDPair()
	mtu := e.connector.port.ActiveMTU.Bytes()
	const half = pairBufferLen / 2
	for i, o := range srdOperations {
		for _, n := range []int{0, 1, 100, mtu, mtu + 1, half} {
			send := o.op == ib.WRSend || o.op == ib.WRSendWithImm
			if send && n > mtu {
				continue
			}
			for _, way := range [][2]int{{0, 1}, {1, 0}, {0, 0}} {
				side, other := way[0], way[1]
				what := fmt.Sprintf("%v of %d bytes from queue pair %d to %d", o.op, n, side, other)
				fillPattern(p.buf[side].b[:half], i+n)
				fillPattern(p.buf[other].b[half:], i+n+1)
				want, got := p.buf[side].b[:n], p.buf[other].b[half:][:n]
				if o.op == ib.WRRDMARead {
					want, got = got, want
				}
				want = bytes.Clone(want)
				completions := [2]int{}
				if o.receives {
					p.postRecv(other, 1<<20, half, half)
					completions[other]++
				}
				p.postSendWR(side, p.newRequest(uint64(n), o.op, side, other, 0, half, n))
				completions[side]++
				all := e.waitByID(p.cqs[side], completions[side])
				if side != other && o.receives {
					all[1<<20] = e.waitOneCompletion(p.cqs[other], 1<<20, ib.WCSuccess)
				}
				wc, ok := all[uint64(n)]
				if !ok || wc.Status != ib.WCSuccess || wc.Opcode != o.want || wc.QP != p.qps[side] {
					e.Fatalf("%s: got %+v, want success", what, all)
				}
				if o.op == ib.WRRDMARead && int(wc.ByteLen) != n {
					e.Errorf("%s: got length %d", what, wc.ByteLen)
				}
				if wc := all[1<<20]; o.receives && (wc.Status != ib.WCSuccess || wc.Opcode != o.recv ||
					int(wc.ByteLen) != n || wc.SrcQP != p.qps[side].Num() || wc.QP != p.qps[other] ||
					(wc.Flags&ib.WCWithImm != 0) != o.imm || o.imm && wc.Imm != uint32(n)+7 || wc.Flags&ib.WCGRH != 0) {
					e.Errorf("%s: the receive: got %+v", what, wc)
				}
				if !bytes.Equal(got, want) {
					e.Errorf("%s: the data arrived changed", what)
				}
			}
		}
	}
}

func testSRDDeliversEachOnce(e *testEnv) {
	p := e.newSRDPair()
	each := e.queueLen / 2 // messages to each side
	const size = 16
	for round := range 5 * e.cfg.load {
		for side := range p.qps {
			fillPattern(p.buf[side].b, round+side)
			for i := range 2 * each {
				p.postRecv(side, uint64(i), pairBufferLen/2+i*size, size)
			}
		}
		for i := range each {
			for side := range p.qps {
				for other := range p.qps {
					at := (i*2 + other) * size
					p.buf[side].b[at], p.buf[side].b[at+1] = byte(side), byte(i)
					p.postSendWR(side, p.newRequest(uint64(1000+i*2+other), ib.WRSend, side, other, at, 0, size))
				}
			}
		}
		for side := range p.qps {
			seen := map[[2]byte]bool{}
			for id, wc := range e.waitByID(p.cqs[side], 4*each) {
				if wc.Status != ib.WCSuccess {
					e.Fatalf("work request %d completed with %q", id, wc.Status)
				}
				if wc.Opcode != ib.WCRecv {
					continue
				}
				got := p.buf[side].b[pairBufferLen/2+int(id)*size:][:size]
				from, i := int(got[0]), int(got[1])
				if from > 1 || i >= each || seen[[2]byte(got)] || wc.SrcQP != p.qps[from].Num() ||
					!bytes.Equal(got, p.buf[from].b[(i*2+side)*size:][:size]) {
					e.Fatalf("receive %d: got the message %x, want each once", id, got)
				}
				seen[[2]byte(got)] = true
			}
		}
		for side := range p.qps {
			if n, _ := p.cqs[side].Poll(make([]ib.WC, 1)); n != 0 {
				e.Fatal("got a completion that nothing was posted for")
			}
		}
	}
}

func testSRDImmediateIsLast(e *testEnv) {
	p := e.newSRDPair()
	const n = pairBufferLen / 2
	for i := range 10 * e.cfg.load {
		fillPattern(p.buf[0].b[:n], i)
		clear(p.buf[1].b)
		p.postRecv(1, 1, 0, 8)
		p.postSendWR(0, p.newRequest(2, ib.WRRDMAWriteWithImm, 0, 1, 0, n, n))
		wc := e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
		if int(wc.ByteLen) != n || !bytes.Equal(p.buf[1].b[n:], p.buf[0].b[:n]) {
			e.Fatalf("RDMA WRITE with immediate %d: got its receive before all %d bytes", i, n)
		}
		e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	}
}

func testSRDFailureLeavesQP(e *testEnv) {
	p := e.newSRDPair()
	const room = 64 // bytes of each receive
	for _, c := range []struct {
		what   string
		op     ib.WROpcode
		change func(wr *ib.SendWR)
		want   []ib.WCStatus
	}{
		{"RDMA WRITE with a wrong key", ib.WRRDMAWrite, func(wr *ib.SendWR) { wr.RKey = ^wr.RKey },
			[]ib.WCStatus{ib.WCRemAccessErr}},
		{"RDMA READ behind the region", ib.WRRDMARead, func(wr *ib.SendWR) { wr.RemoteAddr += pairBufferLen },
			[]ib.WCStatus{ib.WCRemAccessErr}},
		{"SEND to no queue pair", ib.WRSend, func(wr *ib.SendWR) { wr.RemoteQPN ^= 0x5555 },
			[]ib.WCStatus{ib.WCRemInvRDReqErr}},
		{"SEND longer than the receive", ib.WRSend, func(wr *ib.SendWR) { wr.SGList[0].Length = room + 1 },
			[]ib.WCStatus{ib.WCRemInvReqErr}},
		{"SEND from a wrong key", ib.WRSend, func(wr *ib.SendWR) { wr.SGList[0].LKey = ^wr.SGList[0].LKey },
			[]ib.WCStatus{ib.WCLocProtErr}},
		{"SEND longer than a packet", ib.WRSend,
			func(wr *ib.SendWR) { wr.SGList[0].Length = uint32(e.connector.port.ActiveMTU.Bytes()) + 1 },
			[]ib.WCStatus{ib.WCLocLenErr}},
	} {
		fillPattern(p.buf[0].b[:24], len(c.what))
		clear(p.buf[1].b)
		for id := range uint64(3) { // the request that fails uses none
			p.postRecv(1, 1+id, room*int(1+id), room)
		}
		wrs := []ib.SendWR{p.newRequest(1, ib.WRSend, 0, 1, 0, 0, 8), p.newRequest(2, c.op, 0, 1, 8, 0, 8),
			p.newRequest(3, ib.WRSend, 0, 1, 16, 0, 8)}
		c.change(&wrs[1])
		if n, err := p.qps[0].PostSend(wrs...); n != len(wrs) {
			e.Fatalf("%s: post send: %d taken, %v", c.what, n, err)
		}
		for id, wc := range e.waitByID(p.cqs[0], len(wrs)) {
			want := []ib.WCStatus{ib.WCSuccess}
			if id == 2 {
				want = c.want
			}
			if wc.Status != want[0] {
				e.Fatalf("%s: work request %d completed with %q, want %q", c.what, id, wc.Status, want)
			}
		}
		for i, qp := range p.qps {
			if s := qp.State(); s != ib.QPRTS {
				e.Fatalf("%s: queue pair %d: got state %v, want RTS", c.what, i, s)
			}
		}
		p.postSendWR(0, p.newRequest(4, ib.WRSend, 0, 1, 16, 0, 8))
		e.waitOneCompletion(p.cqs[0], 4, ib.WCSuccess)
		for id, wc := range e.waitByID(p.cqs[1], 3) {
			got := p.buf[1].b[int(id)*room:][:8]
			if wc.Status != ib.WCSuccess || wc.ByteLen != 8 || !bytes.Equal(got, p.buf[0].b[:8]) &&
				!bytes.Equal(got, p.buf[0].b[16:24]) {
				e.Fatalf("%s: receive %d: got %+v, want one of the other messages", c.what, id, wc)
			}
		}
		if !isAllZero(p.buf[1].b[:room]) {
			e.Errorf("%s: the memory of the peer was changed", c.what)
		}
	}
}

func testSRDWaitingRequest(e *testEnv) {
	p := e.newSRDPair()
	fillPattern(p.buf[0].b[:64], 1)
	p.postSendWR(0, p.newRequest(1, ib.WRSend, 0, 1, 0, 0, 8)) // no receive
	const n = 10
	for i := range n {
		p.postRecv(0, uint64(100+i), 1024, 64)
		p.postSendWR(0, p.newRequest(uint64(2+i), ib.WRSend, 0, 0, 0, 0, 8))
		if all := e.waitByID(p.cqs[0], 2); all[uint64(100+i)].Status != ib.WCSuccess || all[1].QP != nil {
			e.Fatalf("SEND %d behind one that waits: got %+v, want it and its receive", i, all)
		}
	}
	p.postRecv(1, 1, 0, 64)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	if !bytes.Equal(p.buf[1].b[:8], p.buf[0].b[:8]) {
		e.Error("the message that has waited arrived changed")
	}
}

func testSRDRefusedRequests(e *testEnv) {
	p := e.newSRDPair()
	foreign := e.newAH(e.newPD())
	for _, c := range []struct {
		what   string
		change func(wr *ib.SendWR)
	}{
		{"compare and swap", func(wr *ib.SendWR) { wr.Opcode = ib.WRAtomicCmpAndSwp }},
		{"fetch and add", func(wr *ib.SendWR) { wr.Opcode = ib.WRAtomicFetchAdd }},
		{"SEND with invalidate", func(wr *ib.SendWR) { wr.Opcode, wr.InvalidateRKey = ib.WRSendWithInv, wr.RKey }},
		{"local invalidate", func(wr *ib.SendWR) { wr.Opcode, wr.InvalidateRKey = ib.WRLocalInv, wr.RKey }},
		{"FLUSH", func(wr *ib.SendWR) { wr.Opcode = ib.WRFlush }},
		{"bind", func(wr *ib.SendWR) { wr.Opcode = ib.WRBindMW }},
		{"SEND without address handle", func(wr *ib.SendWR) { wr.AH = nil }},
		{"RDMA WRITE without address handle", func(wr *ib.SendWR) { wr.Opcode, wr.AH = ib.WRRDMAWrite, nil }},
		{"SEND with an address handle of another domain", func(wr *ib.SendWR) { wr.AH = foreign }},
	} {
		wr := p.newRequest(1, ib.WRSend, 0, 1, 0, 0, 8)
		c.change(&wr)
		n, err := p.qps[0].PostSend(wr)
		switch {
		case n == 0 && (errors.Is(err, syscall.EINVAL) || isUnsupportedError(err)):
		case n == 1 && wr.AH == foreign: // the domain may be known only later
			e.waitOneCompletion(p.cqs[0], 1, ib.WCLocQPOpErr)
		default:
			e.Errorf("%s: got %d taken, %v, want EINVAL", c.what, n, err)
		}
		p.postRecv(1, 2, 0, 64)
		p.postSendWR(0, p.newRequest(3, ib.WRSend, 0, 1, 0, 0, 8))
		e.waitOneCompletion(p.cqs[0], 3, ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess)
	}
}

func testSRDQKey(e *testEnv) {
	p := e.newSRDPair()
	p.postRecv(1, 1, 0, 64)
	wr := p.newRequest(1, ib.WRSend, 0, 1, 0, 0, 8)
	wr.RemoteQKey++
	p.postSendWR(0, wr)
	if wc := e.waitAnyCompletion(p.cqs[0]); wc.ID != 1 || wc.Status == ib.WCSuccess {
		e.Errorf("SEND with a wrong Q_Key: got %+v, want an error", wc)
	}
	if n, _ := p.cqs[1].Poll(make([]ib.WC, 1)); n != 0 {
		e.Fatal("SEND with a wrong Q_Key: it was delivered")
	}
	wr = p.newRequest(2, ib.WRSend, 0, 1, 0, 0, 8)
	wr.RemoteQKey = 1 << 31
	p.postSendWR(0, wr)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
}

func testSRDFlush(e *testEnv) {
	for _, to := range []ib.QPState{ib.QPErr, ib.QPReset} {
		p := e.newSRDPair()
		n := min(8, e.queueLen)
		for i := range n {
			p.postRecv(0, uint64(100+i), 0, 64)
			p.postSendWR(0, p.newRequest(uint64(i), ib.WRSend, 0, 1, 0, 0, 8))
		}
		e.must("modify", p.qps[0].Modify(ib.QPAttr{State: to}, ib.QPAttrState))
		if to == ib.QPReset {
			e.awaitDueCallbacks()
			if n, _ := p.cqs[0].Poll(make([]ib.WC, 1)); n != 0 {
				e.Error("RESET: got a completion, want none")
			}
			e.connector.moveQPUpTo(p.qps[0], 0, ib.QPRTS)
			for i := range n + 1 { // discarded messages may arrive late
				p.postRecv(1, uint64(i), 0, 64)
			}
			p.postSendWR(0, p.newRequest(9, ib.WRSend, 0, 1, 0, 0, 8))
			e.waitOneCompletion(p.cqs[0], 9, ib.WCSuccess)
			continue
		}
		next := [2]uint64{0, 100} // send and receive
		for _, wc := range e.waitCompletions(p.cqs[0], 2*n) {
			queue := int(wc.ID / 100)
			if wc.Status != ib.WCWRFlushErr || wc.ID != next[queue] {
				e.Fatalf("ERR: work request %d completed with %q, want %d with a flush error", wc.ID, wc.Status, next[queue])
			}
			next[queue]++
		}
		p.postSendWR(0, p.newRequest(50, ib.WRSend, 0, 1, 0, 0, 8))
		e.waitOneCompletion(p.cqs[0], 50, ib.WCWRFlushErr)
	}
}
