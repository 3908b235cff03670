package ibtest

import (
	"sync/atomic"
	"time"

	"verbena/ib"
)

// Late: posted requests and messages in flight when an object that they use changes or is destroyed.

var lateEffectChecks = []ruleTest{
	{
		name: "Data/AddressOfPost",
		rule: "a datagram goes where its address handle led when it was posted, whatever becomes of the handle",
		test: testDatagramUsesAddressAtPost,
	},
	{
		name: "CQ/TimersEnd",
		rule: "a notification that moderation holds back is not reported when the queue has been destroyed",
		test: testNoModeratedReportAfterDestroy,
	},
	{
		name: "Errors/DestroyedWhileWaiting",
		rule: "a queue pair that waits for its peer when it is destroyed makes no completion and no event any more",
		test: testDestroyWaitingQP,
	},
}

// testDatagramUsesAddressAtPost keeps datagrams in SQD while their address handles are modified and destroyed. Each
// datagram has a different length.
func testDatagramUsesAddressAtPost(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeUD})
	ah := e.newAH(p.pd)
	here, there := e.connector.ownAddress(), e.connector.unreachableAddress(ah)
	if !p.tryHoldInSQD() {
		e.Skip("the driver has no state SQD, in which datagrams wait")
	}
	fillPattern(p.buf[0].b, 1)
	var arrive []int
	length := 0
	post := func(to *ib.AH, arrives bool) {
		e.Helper()
		length++
		p.postRecv(1, 0, 0, 100)
		p.postSendWR(0, p.newDatagramRequest(uint64(length), to, length))
		if arrives {
			arrive = append(arrive, length)
		}
	}
	post(ah, true)
	e.must("modify ah", ah.Modify(&there)) // after a post to the device itself
	post(ah, false)
	e.must("modify ah", ah.Modify(&here)) // after a post to another address
	post(ah, true)
	post(ah, true)
	e.destroy(ah)
	// A new handle may reuse the space of the destroyed one.
	other, err := p.pd.CreateAH(&there)
	e.must("create ah", err)
	destroyAtEnd(e, other, other.Destroy)
	post(other, false)
	e.must("modify ah", other.Modify(&here))
	post(other, true)
	e.destroy(other)
	e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
	for i := range length {
		e.waitOneCompletion(p.cqs[0], uint64(i+1), ib.WCSuccess)
	}
	for _, n := range arrive {
		if wc := e.waitAnyCompletion(p.cqs[1]); wc.Status != ib.WCSuccess || int(wc.ByteLen) != grhLen+n {
			e.Fatalf("datagram %d arrived, with %q, want %d: one went where its handle led when it was sent, not when it was posted",
				int(wc.ByteLen)-grhLen, wc.Status, n)
		}
	}
}

// testNoModeratedReportAfterDestroy destroys queues with delayed notifications, and waits for the notification of a
// queue with a longer delay. Later reports of the destroyed queues violate the rule use-after-destroy.
func testNoModeratedReportAfterDestroy(e *testEnv) {
	pd := e.newPD()
	buf := e.newBuffer(pd, 64, allAccess)
	const period = 2 * time.Millisecond
	// moderated returns a queue that contains the n completions that its moderation waits for.
	moderated := func(n int, flags ib.NotifyFlags, period time.Duration, handler func(*ib.CQ)) (*ib.CQ, *ib.QP) {
		e.Helper()
		cq := e.newCQ(e.queueLen, handler)
		e.requireFeature("moderation of CQs", cq.Moderate(10, period))
		qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
		e.connector.moveQPUpTo(qp, qp.Num(), ib.QPInit)
		_, err := cq.ReqNotify(flags)
		e.must("request notify", err)
		for i := range n { // flushed receives satisfy any request
			if k, err := qp.PostRecv(ib.RecvWR{ID: uint64(i), SGList: buf.newSGL(0, 8)}); k != 1 {
				e.Fatalf("post receive: %v", err)
			}
		}
		e.must("modify to ERR", qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		return cq, qp
	}
	for n := range 4 {
		for _, flags := range []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited} {
			cq, qp := moderated(n, flags, period, func(*ib.CQ) {})
			if n == 3 {
				e.waitCompletions(cq, n) // polled completions are reported nevertheless
			}
			e.destroy(qp)
			e.destroy(cq)
		}
	}
	var calls atomic.Int32
	moderated(1, ib.NotifyNextComp, 2*period, func(*ib.CQ) { calls.Add(1) })
	e.eventually("the notification of a queue that is there", func() bool { return calls.Load() > 0 })
	var again atomic.Int32
	cq, _ := moderated(1, ib.NotifyNextComp, 10*period, func(*ib.CQ) { again.Add(1) })
	e.must("request notify", errorOf(cq.ReqNotify(ib.NotifyNextComp)))
	e.eventually("the delayed notification of a queue that has been armed again", func() bool { return again.Load() > 0 })
	e.awaitDueCallbacks()
}

// testDestroyWaitingQP destroys queue pairs that wait for an acknowledgement or for the peer's receive. It waits
// until a remaining one has given up. Late events violate the rule use-after-destroy.
func testDestroyWaitingQP(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(e.queueLen, nil)
	buf := e.newBuffer(pd, 64, allAccess)
	e.connector.ackTimeout, e.connector.retries = 8, 1 // 1 ms
	init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Event: func(*ib.QP, ib.EventType) {}}
	begin := func(receives bool) *ib.QP {
		e.Helper()
		qp, peer := e.newQP(pd, init), e.newQP(pd, init)
		e.connector.moveQPUpTo(qp, peer.Num(), ib.QPRTS)
		if receives { // without a receive
			e.connector.moveQPUpTo(peer, qp.Num(), ib.QPRTR)
		}
		n, err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: buf.newSGL(0, 8)},
			ib.SendWR{ID: 1, Opcode: ib.WRSend, SGList: buf.newSGL(0, 8)})
		if n != 2 {
			e.Fatalf("post send: %d taken, %v", n, err)
		}
		return qp
	}
	poll := func() []ib.WC {
		e.Helper()
		wc := make([]ib.WC, e.queueLen)
		n, err := cq.Poll(wc)
		e.must("poll", err)
		return wc[:n]
	}
	for i := range 6 {
		e.destroy(begin(i%2 == 0))
	}
	poll()
	left := begin(false)
	e.eventually("ERR of a queue pair whose peer does not answer", func() bool { return left.State() == ib.QPErr })
	e.awaitDueCallbacks()
	for _, wc := range poll() {
		if wc.QPNum != left.Num() {
			e.Errorf("completion of work request %d with %q of queue pair %d, which had been destroyed", wc.ID, wc.Status,
				wc.QPNum)
		}
	}
}
