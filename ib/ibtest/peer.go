package ibtest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"verbena/ib"
	"verbena/ib/check"
)

// The peer of a connection: not yet present, gone, or the queue pair itself.

var peerChecks = []ruleTest{
	{
		name: "Reentrant/OwnPeer",
		rule: "a queue pair that is connected with itself sends to itself, and goes to ERR in the middle of that, in order",
		test: testSelfConnectedQP, fast: true,
	},
	{
		name: "Errors/PeerInInit",
		rule: "a request to a queue pair in INIT does not fail before its retries are used up: the peer may be about to go to RTR",
		test: testRequestToPeerInInit,
	},
	{
		name: "Errors/PeerGone",
		rule: "a request to a peer that is in RESET or ERR, destroyed, or another's fails after the timeout at the latest, and changes nothing there",
		test: testRequestToDestroyedPeer,
	},
	{
		name: "Errors/PeerGoesWhileWaiting",
		rule: "a sender that waits for a receive, or for its peer to leave INIT, does not wait for a peer that goes",
		test: testPeerLeavesWhileRequestWaits,
	},
	{
		name: "CQ/OverrunOneQueue",
		rule: "a queue pair that loses a completion of only its send queue, or only its receive queue, goes to ERR, and flushes the other",
		test: testOverrunSendOrRecvCQ,
	},
	{
		name: "CQ/OverrunInSQE",
		rule: "a datagram queue pair that loses a flush error of its send queue, in SQE, goes to ERR, and flushes its receives",
		test: testOverrunInSQE,
	},
}

// newSelfConnectedPair returns a pair with one queue pair on both sides: sends complete on the first queue, receives on
// the second.
func newSelfConnectedPair(e *testEnv, pd *ib.PD) *pair {
	e.Helper()
	p := &pair{e: e, pd: pd}
	for i := range p.cqs {
		p.cqs[i] = e.newCQ(2*e.queueLen, nil)
		p.buf[i] = e.newBuffer(pd, pairBufferLen, allAccess)
	}
	qp := e.newQP(pd, ib.QPInitAttr{SendCQ: p.cqs[0], RecvCQ: p.cqs[1], Type: ib.QPTypeRC})
	e.connector.moveQPUpTo(qp, qp.Num(), ib.QPRTS)
	p.qps = [2]*ib.QP{qp, qp}
	return p
}

func (p *pair) moveToErr(side int) {
	p.e.Helper()
	p.e.must("modify to ERR", p.qps[side].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
}

func testSelfConnectedQP(e *testEnv) {
	pd := e.newPD()
	p := newSelfConnectedPair(e, pd)
	for i, n := range []int{0, 1, 4097, pairBufferLen} {
		p.exchangeMessage(0, uint64(i), n)
	}
	const n = 5
	sends := func() {
		e.Helper()
		for i := range n {
			p.postSend(0, uint64(i), 8)
		}
	}
	sends() // the sends wait
	for i := range n {
		p.postRecv(0, uint64(i), 8*i, 8)
	}
	for i := range n {
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCSuccess)
		e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCSuccess)
	}
	sends()
	p.moveToErr(0)
	for i := range n {
		e.waitOneCompletion(p.cqs[0], uint64(i), ib.WCWRFlushErr)
	}
	e.connector.resetQPs(p.qps[0])
	e.connector.moveQPUpTo(p.qps[0], p.qps[0].Num(), ib.QPRTS)
	for i := range n {
		p.postRecv(0, uint64(i), 8*i, 8)
	}
	p.moveToErr(0)
	for i := range n {
		e.waitOneCompletion(p.cqs[1], uint64(i), ib.WCWRFlushErr)
	}
	e.destroy(p.qps[0])

	// Its receive fails during its send.
	p = newSelfConnectedPair(e, pd)
	sends()
	var recvs []ib.RecvWR
	for i := range n {
		recvs = append(recvs, ib.RecvWR{ID: uint64(i), SGList: p.buf[1].newSGL(0, 4)})
	}
	if k, err := p.qps[0].PostRecv(recvs...); k != n {
		e.Fatalf("post receive: %d of %d taken, %v", k, n, err)
	}
	for i := range n {
		sent, got := e.waitAnyCompletion(p.cqs[0]), e.waitAnyCompletion(p.cqs[1])
		recvWant, sendWant := ib.WCWRFlushErr, ib.WCWRFlushErr
		if i == 0 {
			recvWant = ib.WCLocLenErr
			if sent.Status == ib.WCRemInvReqErr {
				sendWant = ib.WCRemInvReqErr // before the flush
			}
		}
		if sent.ID != uint64(i) || sent.Status != sendWant || got.ID != uint64(i) || got.Status != recvWant {
			e.Fatalf("a queue pair after the failure of its own receive: send %d completes with %q and receive %d with %q, want %d with %q and with %q",
				sent.ID, sent.Status, got.ID, got.Status, i, sendWant, recvWant)
		}
	}
	e.destroy(p.qps[0])

	for range 10 * e.cfg.load {
		p := newSelfConnectedPair(e, pd)
		p.moveToErrWhileSending()
		e.destroy(p.qps[0])
		e.destroy(p.cqs[0])
		e.destroy(p.cqs[1])
	}
}

// moveToErrWhileSending moves a queue pair to ERR while it sends to itself.
func (p *pair) moveToErrWhileSending() {
	e := p.e
	e.Helper()
	var sent, received atomic.Int64 // number of accepted requests
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint64(e.queueLen) {
			if n, _ := p.qps[0].PostRecv(ib.RecvWR{ID: i, SGList: p.buf[1].newSGL(0, 8)}); n == 0 {
				return
			}
			received.Add(1)
			if n, _ := p.qps[0].PostSend(ib.SendWR{ID: i, Opcode: ib.WRSend, Flags: ib.SendSignaled,
				SGList: p.buf[0].newSGL(0, 8)}); n == 0 {
				return
			}
			sent.Add(1)
		}
	})
	e.eventually("a message of a queue pair to itself", func() bool { return sent.Load() > 0 })
	e.waitRandomly()
	p.moveToErr(0)
	wg.Wait()
	for side, n := range []int64{sent.Load(), received.Load()} {
		over := false
		for i := range uint64(n) {
			wc := e.waitAnyCompletion(p.cqs[side])
			ok := wc.Status == ib.WCWRFlushErr || wc.Status == ib.WCSuccess && !over
			if over = over || wc.Status != ib.WCSuccess; wc.ID != i || !ok {
				e.Fatalf("a queue pair that sends to itself has gone to ERR: work request %d completed with %q, want %d", wc.ID,
					wc.Status, i)
			}
		}
	}
	e.awaitDueCallbacks()
	for side := range p.cqs {
		if n, _ := p.cqs[side].Poll(make([]ib.WC, 1)); n != 0 {
			e.Error("a queue pair that sends to itself has gone to ERR: a work request has completed twice")
		}
	}
}

// reliableOpcodes lists the operations of a reliable connection; a driver may lack some.
var reliableOpcodes = []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead}

// postTwoRequests posts two requests of 64 bytes from side 0 to the memory of another pair's side 1. It returns false
// if the driver does not support the operation.
func (p *pair) postTwoRequests(op ib.WROpcode, to *pair) bool {
	p.e.Helper()
	for id := range uint64(2) {
		wr := to.newRDMARequest(1+id, op, p.buf[0].newSGL(0, 64), 128)
		if !p.postIfSupported(fmt.Sprintf("opcode %d", op), 0, wr) {
			p.e.Logf("the driver has no opcode %d", op)
			return false
		}
	}
	return true
}

// waitRequestsFailed waits until the two requests have failed because the peer does not respond.
func (p *pair) waitRequestsFailed(when string) {
	e := p.e
	e.Helper()
	for i, want := range []ib.WCStatus{ib.WCRetryExcErr, ib.WCWRFlushErr} {
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.ID != uint64(1+i) || wc.Status != want {
			e.Fatalf("%s: work request %d completed with %q, want %d with %q", when, wc.ID, wc.Status, 1+i, want)
		}
	}
	e.eventually("ERR of a sender, "+when, func() bool { return p.qps[0].State() == ib.QPErr })
}

func testRequestToPeerInInit(e *testEnv) {
	pd := e.newPD()
	e.connector.ackTimeout = 18 // 1 s, and the maximum number of retries
	type early struct {
		*pair
		op   ib.WROpcode
		psn  uint32
		want []byte
	}
	var all []early // all at once, because each may have to wait for a retry
	for _, op := range reliableOpcodes {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		e.connector.resetQPs(p.qps[:]...)
		e.connector.moveQPUpTo(p.qps[1], 0, ib.QPInit)
		e.connector.moveQPUpTo(p.qps[0], p.qps[1].Num(), ib.QPRTS)
		if op == ib.WRSend {
			p.postRecv(1, 1, 128, 64)
			p.postRecv(1, 2, 128, 64)
		}
		fillPattern(p.buf[0].b[:64], 1)
		fillPattern(p.buf[1].b[128:192], 2)
		source := p.buf[0].b[:64]
		if op == ib.WRRDMARead {
			source = p.buf[1].b[128:192]
		}
		if p.postTwoRequests(op, p) {
			all = append(all, early{p, op, e.connector.psn, bytes.Clone(source)})
		}
	}
	e.awaitDueCallbacks()
	for _, p := range all {
		wc := make([]ib.WC, 1)
		if n, _ := p.cqs[0].Poll(wc); n != 0 {
			e.Fatalf("opcode %d to a queue pair in INIT: completed with %q, want nothing before the retries are used up", p.op,
				wc[0].Status)
		}
		e.connector.psn = p.psn
		attr := e.connector.newQPAttr(ib.QPRTR, p.qps[0].Num())
		e.must("modify to RTR", p.qps[1].Modify(attr, transitionMask(ib.QPTypeRC, ib.QPRTR)))
	}
	for _, p := range all {
		for id := range uint64(2) {
			e.waitOneCompletion(p.cqs[0], 1+id, ib.WCSuccess)
			if p.op == ib.WRSend {
				e.waitOneCompletion(p.cqs[1], 1+id, ib.WCSuccess)
			}
		}
		if !bytes.Equal(p.buf[0].b[:64], p.want) || !bytes.Equal(p.buf[1].b[128:192], p.want) {
			e.Errorf("opcode %d to a queue pair that was in INIT: the data are not where they should be", p.op)
		}
	}
}

func testRequestToDestroyedPeer(e *testEnv) {
	pd := e.newPD()
	for _, op := range reliableOpcodes {
		for _, c := range []struct {
			how string
			end func(p *pair)
		}{
			{"in RESET", func(p *pair) { e.connector.resetQPs(p.qps[1]) }},
			{"in ERR", func(p *pair) { p.moveToErr(1) }},
			{"destroyed", func(p *pair) { e.destroy(p.qps[1]) }},
		} {
			back := e.connector.useShortestTimeout()
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
			back()
			p.postRecv(1, 1, 128, 64)
			c.end(p)
			fillPattern(p.buf[0].b[:64], 1)
			clear(p.buf[1].b)
			if !p.postTwoRequests(op, p) {
				break
			}
			what := fmt.Sprintf("opcode %d to a peer that is %s", op, c.how)
			p.waitRequestsFailed(what)
			if !isAllZero(p.buf[1].b) {
				e.Fatalf("%s: the memory was changed", what)
			}
			var wc [2]ib.WC
			if n, _ := p.cqs[1].Poll(wc[:]); n > 0 && wc[0].Status != ib.WCWRFlushErr || n > 1 {
				e.Fatalf("%s: its receive completed with %q", what, wc[0].Status)
			}
		}
		sendToForeignPeer(e, pd, op)
	}
}

// sendToForeignPeer sends to a queue pair that is connected to another peer. Packets of reliable connections do not
// identify their sender. So the connections use different packet sequence numbers, as connections with random ones do.
func sendToForeignPeer(e *testEnv, pd *ib.PD, op ib.WROpcode) {
	e.Helper()
	for _, ahead := range []uint32{0x10001, 1<<24 - 0x10001} {
		they := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		back, psn := e.connector.useShortestTimeout(), e.connector.psn
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		e.connector.resetQPs(p.qps[0])
		e.connector.psn = (psn + ahead) & 0xffffff
		e.connector.moveQPUpTo(p.qps[0], they.qps[1].Num(), ib.QPRTS)
		e.connector.psn = psn
		back()
		they.postRecv(1, 5, 128, 64)
		fillPattern(p.buf[0].b[:64], 1)
		fillPattern(they.buf[0].b[:64], 2)
		clear(they.buf[1].b)
		if !p.postTwoRequests(op, they) {
			return
		}
		what := fmt.Sprintf("opcode %d to a queue pair that is connected to another", op)
		p.waitRequestsFailed(what)
		if n, _ := they.cqs[1].Poll(make([]ib.WC, 1)); n != 0 {
			e.Fatalf("%s: the receive of the other's message has completed", what)
		}
		if !isAllZero(they.buf[1].b) {
			e.Fatalf("%s: the memory was changed", what)
		}
		they.postSend(0, 6, 64)
		e.waitOneCompletion(they.cqs[0], 6, ib.WCSuccess)
		e.waitOneCompletion(they.cqs[1], 5, ib.WCSuccess)
		if !bytes.Equal(they.buf[0].b[:64], they.buf[1].b[128:192]) {
			e.Errorf("%s: the other's message has arrived changed", what)
		}
	}
}

func testPeerLeavesWhileRequestWaits(e *testEnv) {
	e.allowViolation(check.RuleInFlight) // the region of a request that waits
	pd := e.newPD()
	defer e.connector.useShortestTimeout()()
	for _, init := range []bool{false, true} {
		for _, c := range []struct {
			how string
			end func(p *pair)
		}{
			{"goes to ERR", func(p *pair) { p.moveToErr(1) }},
			{"goes to RESET", func(p *pair) { e.connector.resetQPs(p.qps[1]) }},
			{"is destroyed", func(p *pair) { e.destroy(p.qps[1]) }},
			{"is connected to another", func(p *pair) {
				e.connector.resetQPs(p.qps[1])
				e.connector.moveQPUpTo(p.qps[1], p.qps[1].Num(), ib.QPRTS)
				p.postRecv(1, 7, 128, 64)
			}},
		} {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
			p.checkWaitingRequestsFail(init, c.how, c.end)
		}
	}
	e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd}).checkPeerFailsWhileRequestsWait()
}

// checkPeerFailsWhileRequestsWait checks requests that wait for a receive, while a request of the peer waits, too. The
// peer goes to ERR because its request cannot be executed when a receive arrives.
func (p *pair) checkPeerFailsWhileRequestsWait() {
	e := p.e
	e.Helper()
	p.postTwoRequests(ib.WRSend, p)
	e.awaitDueCallbacks()
	b := e.newBuffer(p.pd, 64, allAccess)
	p.postSendWR(1, ib.SendWR{ID: 3, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: b.newSGL(0, 64)})
	e.awaitDueCallbacks()
	e.destroy(b.mr)
	p.postRecv(0, 4, 128, 64)
	switch wc := e.waitAnyCompletion(p.cqs[1]); {
	case wc.ID == 3 && wc.Status == ib.WCSuccess:
		e.Log("the driver has read the data of a request that waits")
		return
	case wc.ID == 3 && wc.Status == ib.WCRetryExcErr: // the timeout is short, and the machine may be busy
	case wc.ID != 3 || wc.Status != ib.WCLocProtErr:
		e.Fatalf("a request that waited while its memory was deregistered: work request %d completed with %q, want 3 with %q",
			wc.ID, wc.Status, ib.WCLocProtErr)
	}
	sends := map[uint64]ib.WCStatus{}
	for range 3 {
		wc := e.waitAnyCompletion(p.cqs[0])
		sends[wc.ID] = wc.Status
	}
	// A packet with the data of request 3 may have been in flight since before the deregistration. The driver has copied
	// the data, and the sender fails when it sends the packet again.
	if received := sends[4] == ib.WCSuccess; sends[1] != ib.WCRetryExcErr || sends[2] != ib.WCWRFlushErr ||
		!received && sends[4] != ib.WCWRFlushErr {
		e.Fatalf("a sender with a peer that has failed while both waited: got %v, want %q, and %q of the others", sends,
			ib.WCRetryExcErr, ib.WCWRFlushErr)
	}
}

// checkWaitingRequestsFail posts requests that wait for a receive, or for the peer to leave INIT, and checks that they
// fail when end has been called.
func (p *pair) checkWaitingRequestsFail(init bool, how string, end func(p *pair)) {
	e := p.e
	e.Helper()
	what := fmt.Sprintf("a sender that waits for a receive of a peer that %s", how)
	if init {
		e.connector.resetQPs(p.qps[:]...)
		e.connector.moveQPUpTo(p.qps[1], 0, ib.QPInit)
		e.connector.moveQPUpTo(p.qps[0], p.qps[1].Num(), ib.QPRTS)
		what = fmt.Sprintf("a sender to a peer that is in INIT, and %s", how)
	}
	fillPattern(p.buf[0].b[:64], 1)
	clear(p.buf[1].b)
	p.postTwoRequests(ib.WRSend, p)
	e.awaitDueCallbacks()
	end(p)
	p.waitRequestsFailed(what)
	if n, _ := p.cqs[1].Poll(make([]ib.WC, 1)); n != 0 {
		e.Fatalf("%s: its receive has completed", what)
	}
	if !isAllZero(p.buf[1].b) {
		e.Fatalf("%s: the memory was changed", what)
	}
}

func testOverrunSendOrRecvCQ(e *testEnv) {
	e.allowViolation(check.RuleCQTooSmall)
	pd := e.newPD()
	for _, kind := range queuePairTypes {
		if e.newQPOfType(kind, pd, e.newCQ(8, nil)) == nil {
			continue
		}
		checkOverrunSendOrRecvCQ(e, pd, kind, true)
		checkOverrunSendOrRecvCQ(e, pd, kind, false)
	}
}

func checkOverrunSendOrRecvCQ(e *testEnv, pd *ib.PD, kind ib.QPType, send bool) {
	e.Helper()
	name := fmt.Sprintf("%v %s", kind, map[bool]string{true: "send", false: "receive"}[send])
	var events atomic.Int32
	small, err := e.dev.CreateCQ(ib.CQInit{Entries: 4, Event: func(_ *ib.CQ, ev ib.EventType) { events.Add(1) }})
	e.must("create cq", err)
	destroyAtEnd(e, small, small.Destroy)
	room := e.cqCapacity(4)
	// Side 0 has the small queue, for its sends or for its receives.
	p := &pair{e: e, pd: pd}
	for i := range p.qps {
		p.cqs[i] = e.newCQ(2*room+16, nil)
		p.buf[i] = e.newBuffer(pd, 64, allAccess)
		init := ib.QPInitAttr{SendCQ: p.cqs[i], RecvCQ: p.cqs[i], Type: kind,
			Cap: ib.QPCap{MaxSendWR: uint32(room + 4), MaxRecvWR: uint32(room + 4), MaxSendSGE: 1, MaxRecvSGE: 1}}
		switch {
		case i == 0 && send:
			init.SendCQ = small
		case i == 0:
			init.RecvCQ = small
		}
		p.qps[i] = e.newQP(pd, init)
	}
	e.connector.moveQPUpTo(p.qps[0], p.qps[1].Num(), ib.QPRTS)
	e.connector.moveQPUpTo(p.qps[1], p.qps[0].Num(), ib.QPRTS)
	from, to := 1, 0
	if send {
		from, to = 0, 1
		p.postRecv(0, 1<<20, 0, 64) // to be flushed
	}
	var ah *ib.AH
	if kind == ib.QPTypeUD {
		ah = e.newAH(pd)
	}
	post := func(side, id int) {
		e.Helper()
		p.postSendWR(side, ib.SendWR{ID: uint64(id), Opcode: ib.WRSend, Flags: ib.SendSignaled,
			SGList: p.buf[side].newSGL(0, 8),
			AH:     ah, RemoteQPN: p.qps[1-side].Num(), RemoteQKey: qkey})
	}
	message := func(id int) {
		e.Helper()
		p.postRecv(to, uint64(id), 0, 64)
		post(from, id)
	}
	for i := range room {
		message(i)
		e.waitAnyCompletion(p.cqs[1]) // on the other side
	}
	e.awaitDueCallbacks()
	if n := events.Load(); n != 0 {
		e.Fatalf("%d events of a queue that is just full", n)
	}
	message(room)
	e.eventually("the event that the "+name+" completion queue has no room (EventCQErr)",
		func() bool { return events.Load() > 0 })
	e.eventually("ERR of the queue pair that has lost the completion of its "+name,
		func() bool { return p.qps[0].State() == ib.QPErr })
	for i, wc := range e.waitCompletions(small, room) {
		if wc.ID != uint64(i) || wc.Status != ib.WCSuccess {
			e.Fatalf("completion %d of the queue that had no room: work request %d with %q, want the earlier completion", i,
				wc.ID, wc.Status)
		}
	}
	if !send {
		post(0, 1<<20)
	}
	e.waitOneCompletion(p.cqs[0], 1<<20, ib.WCWRFlushErr) // the flush error of the other queue
	e.awaitDueCallbacks()
	if n := events.Load(); n != 1 {
		e.Errorf("%d events EventCQErr, want 1", n)
	}

}

func testOverrunInSQE(e *testEnv) {
	e.allowViolation(check.RuleCQTooSmall)
	pd, recvs := e.newPD(), e.newCQ(16, nil)
	small, buf := e.newCQ(4, nil), e.newBuffer(pd, 64, allAccess)
	room := e.cqCapacity(4)
	qp := e.newQP(pd, ib.QPInitAttr{SendCQ: small, RecvCQ: recvs, Type: ib.QPTypeUD,
		Cap: ib.QPCap{MaxSendWR: uint32(room + 4), MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	e.connector.moveQPUpTo(qp, 0, ib.QPRTS)
	if n, err := qp.PostRecv(ib.RecvWR{ID: 1 << 20, SGList: buf.newSGL(0, 64)}); n != 1 {
		e.Fatalf("post receive: %v", err)
	}
	wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: buf.newSGL(0, 8), AH: e.newAH(pd),
		RemoteQPN:  qp.Num(),
		RemoteQKey: qkey + 1}
	post := func(wrs ...ib.SendWR) {
		e.Helper()
		if n, err := qp.PostSend(wrs...); n != len(wrs) {
			e.Fatalf("post send: %d of %d taken: %v", n, len(wrs), err)
		}
	}
	for range room - 1 { // lost datagrams, which complete with success
		post(wr)
	}
	wrong := wr
	wrong.SGList = []ib.SGE{{Addr: buf.addr, Length: 8, LKey: ^buf.mr.LKey()}}
	post(wrong, wr) // the first takes the last entry, the flush error of the second is lost
	e.eventually("ERR of a queue pair that has lost a flush error in SQE", func() bool { return qp.State() == ib.QPErr })
	e.waitOneCompletion(recvs, 1<<20, ib.WCWRFlushErr)
}
