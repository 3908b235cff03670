package ibtest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"verbena/ib"
)

// Many objects at the same time.

var scaleChecks = []ruleTest{
	{
		name: "Scale/Senders",
		rule: "many senders that wait for receives of one shared receive queue all continue, each handler is notified once, and " +
			"a device error flushes all queue pairs",
		test: testManySenders, plain: true,
	},
	{
		name: "Scale/Initiators",
		rule: "many XRC initiators that wait for receives of one shared receive queue all continue",
		test: testManyInitiators, plain: true,
	},
	{
		name: "Scale/Members",
		rule: "a datagram reaches all members of a large multicast group",
		test: testManyMembers, plain: true,
	},
	{
		name: "Scale/Depth",
		rule: "queues of thousands of entries lose and exchange none of them, in lists of any length",
		test: testDeepQueues, plain: true,
	},
	{
		name: "Scale/Keys",
		rule: "each of many regions has its own memory, also when others are deregistered",
		test: testManyRegions, plain: true,
	},
}

// scaleObjectCount returns the number of objects of these checks, within limits of the device.
func scaleObjectCount(t testing.TB, limits ...int) int {
	t.Helper()
	n := scaleObjects
	if testing.Short() {
		n = min(n, 400)
	}
	for _, l := range limits {
		n = min(n, l)
	}
	if n < 3 {
		t.Skipf("the device has too few objects: limits %v", limits)
	}
	return n
}

// wordAt returns the memory of an element of 8 bytes.
func (b *registeredBuffer) wordAt(i int) []byte { return b.b[8*i:][:8] }

// minScaleCap is the capacity of the queue pairs of these checks.
var minScaleCap = ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}

// checkCompletionSenders checks the completions of n receives of a shared receive queue. Receive i has element i of to;
// message i contains the number of its sender, and seen counts the messages of each.
func checkCompletionSenders(r *resultChecker, cq *ib.CQ, to *registeredBuffer, n int, seen []int) {
	r.Helper()
	for _, wc := range r.waitCompletions(cq, n) {
		if wc.Status != ib.WCSuccess || wc.ByteLen != 8 || wc.ID >= uint64(len(seen)) {
			r.Fatalf("receive %d of %d: got %q, %d bytes", wc.ID, len(seen), wc.Status, wc.ByteLen)
		}
		sender := binary.NativeEndian.Uint64(to.wordAt(int(wc.ID)))
		if sender >= uint64(len(seen)) {
			r.Fatalf("receive %d: got data %#x of no sender", wc.ID, sender)
		}
		seen[sender]++
	}
}

// wantEachSenderOnce fails the test unless each sender has been seen once.
func wantEachSenderOnce(t testing.TB, seen []int) {
	t.Helper()
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("sender %d of %d: got %d messages, want 1", i, len(seen), n)
		}
	}
}

func testManySenders(e *testEnv) {
	a := e.deviceAttr()
	n := scaleObjectCount(e, (a.MaxQP-2)/2, a.MaxSRQWR, a.MaxCQE/2, a.MaxCQ-2)
	pd := e.newPD()
	srq := e.newSRQ(pd, ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: uint32(n), MaxSGE: 1}})
	from, to := e.newBuffer(pd, 8*n, allAccess), e.newBuffer(pd, 8*n, allAccess)
	sent := e.newCQ(2*n, nil)
	calls, received := make([]atomic.Int32, n), make([]*ib.CQ, n)
	var senders []*ib.QP
	for i := range n {
		binary.NativeEndian.PutUint64(from.wordAt(i), uint64(i))
		received[i] = e.newCQ(2, func(*ib.CQ) { calls[i].Add(1) })
		s := e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: sent, RecvCQ: sent, Cap: minScaleCap})
		r := e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: received[i], RecvCQ: received[i], SRQ: srq,
			Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1}})
		e.connector.moveQPUpTo(s, r.Num(), ib.QPRTS)
		e.connector.moveQPUpTo(r, s.Num(), ib.QPRTS)
		if _, err := received[i].ReqNotify(ib.NotifyNextComp); err != nil {
			e.Fatalf("request notification: %v", err)
		}
		senders = append(senders, s)
	}
	for i, s := range senders {
		e.mustPostSend(s, ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.newSGL(8*i, 8)})
	}
	postRecvList(e, srq, to, n)
	for _, wc := range e.waitCompletions(sent, n) {
		if wc.Status != ib.WCSuccess {
			e.Fatalf("sender %d of %d: got %q, want success", wc.ID, n, wc.Status)
		}
	}
	seen := make([]int, n)
	for i := range n {
		checkCompletionSenders(e.resultChecker, received[i], to, 1, seen)
	}
	wantEachSenderOnce(e, seen)
	for i := range calls {
		e.eventually(fmt.Sprintf("the handler of queue %d of %d", i, n), func() bool { return calls[i].Load() > 0 })
	}
	for i, s := range senders {
		e.mustPostRecv(s, ib.RecvWR{ID: uint64(i), SGList: to.newSGL(8*i, 8)})
	}
	e.handle.SetError()
	for _, wc := range e.waitCompletions(sent, n) {
		if wc.Status != ib.WCWRFlushErr {
			e.Fatalf("receive %d of %d after a device error: got %q, want a flush error", wc.ID, n, wc.Status)
		}
	}
	for i := range calls {
		if c := calls[i].Load(); c != 1 {
			e.Errorf("the handler of queue %d of %d, which was armed once: got %d calls, want 1", i, n, c)
		}
	}
}

// postRecvList posts n receives with one call.
func postRecvList(t testing.TB, srq *ib.SRQ, to *registeredBuffer, n int) {
	t.Helper()
	var list []ib.RecvWR
	for i := range n {
		list = append(list, ib.RecvWR{ID: uint64(i), SGList: to.newSGL(8*i, 8)})
	}
	if k, err := srq.PostRecv(list...); k != n || err != nil {
		t.Fatalf("post %d receives: %d taken, %v", n, k, err)
	}
}

func testManyInitiators(e *testEnv) {
	a := e.deviceAttr()
	x, err := e.dev.AllocXRCD()
	e.requireFeature("XRC domains", err)
	destroyAtEnd(e, x, x.Dealloc)
	n := scaleObjectCount(e, (a.MaxQP-2)/2, a.MaxSRQWR, a.MaxCQE)
	pd := e.newPD()
	sent, received := e.newCQ(n, nil), e.newCQ(n, nil)
	srq := e.newSRQ(pd, ib.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: received,
		Attr: ib.SRQAttr{MaxWR: uint32(n), MaxSGE: 1}})
	from, to := e.newBuffer(pd, 8*n, allAccess), e.newBuffer(pd, 8*n, allAccess)
	for i := range n {
		binary.NativeEndian.PutUint64(from.wordAt(i), uint64(i))
		ini, _ := e.newXRCPair(pd, x, sent)
		e.mustPostSend(ini, ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.newSGL(8*i, 8),
			RemoteSRQN: srq.Num()})
	}
	postRecvList(e, srq, to, n)
	for _, wc := range e.waitCompletions(sent, n) {
		if wc.Status != ib.WCSuccess {
			e.Fatalf("initiator %d of %d: got %q, want success", wc.ID, n, wc.Status)
		}
	}
	seen := make([]int, n)
	checkCompletionSenders(e.resultChecker, received, to, n, seen)
	wantEachSenderOnce(e, seen)
}

func testManyMembers(e *testEnv) {
	group := e.mcastAddressFunc()
	if group == nil {
		e.Skip("the driver has no multicast")
	}
	a := e.deviceAttr()
	n := scaleObjectCount(e, a.MaxQP-4, a.MaxCQ-4, a.MaxMcastQPAttach)
	p, _ := e.newDatagramPair()
	addr := e.connector.ownAddress()
	addr.GRH.DGID = group(0)
	ah, err := p.pd.CreateAH(&addr)
	e.must("create ah", err)
	destroyAtEnd(e, ah, ah.Destroy)
	var members []*groupMember
	for range n {
		cq := e.newCQ(1, nil)
		m := &groupMember{e.newQP(p.pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeUD, Cap: minScaleCap}), cq,
			e.newBuffer(p.pd, grhLen+8, allAccess)}
		e.connector.moveQPUpTo(m.qp, 0, ib.QPRTS)
		e.must("attach", m.qp.AttachMcast(group(0), 0))
		m.checkMemberReceived(e, 1, grhLen+8)
		members = append(members, m)
	}
	fillPattern(p.buf[0].b[:8], 1)
	wr := p.newDatagramRequest(1, ah, 8)
	wr.RemoteQPN = 0xffffff
	p.postSendWR(0, wr)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	for i, m := range members {
		e.waitOneCompletion(m.cq, 1, ib.WCSuccess)
		if string(m.buf.b[grhLen:]) != string(p.buf[0].b[:8]) {
			e.Fatalf("the datagram of member %d of %d arrived changed", i, n)
		}
		e.must("detach", m.qp.DetachMcast(group(0), 0))
	}
}

func testManyRegions(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.requireRDMAWrite()
	n := scaleObjectCount(e, e.deviceAttr().MaxMR-4)
	b, addr := e.newMemory(8 * n)
	var regions []*ib.MR
	for i := range n {
		mr, err := p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr + 8*uint64(i), Length: 8, IOVA: addr,
			Access: ib.AccessLocalWrite | ib.AccessRemoteWrite})
		if err != nil {
			e.Fatalf("register region %d of %d: %v", i, n, err)
		}
		regions = append(regions, mr)
	}
	r := rand.New(rand.NewPCG(1, 1))
	order := r.Perm(n)
	for round := range uint64(2) {
		for _, i := range order {
			binary.NativeEndian.PutUint64(p.buf[0].b, uint64(i)+round<<32)
			p.wantPostStatus(fmt.Sprintf("write to region %d of %d", i, n), ib.SendWR{Opcode: ib.WRRDMAWrite,
				SGList: p.buf[0].newSGL(0, 8), RemoteAddr: addr, RKey: regions[i].RKey()}, ib.WCSuccess)
		}
		for _, i := range order {
			if got, want := binary.NativeEndian.Uint64(b[8*i:]), uint64(i)+round<<32; got != want {
				e.Fatalf("region %d of %d, round %d: got %#x, want %#x", i, n, round, got, want)
			}
		}
		half := len(order) / 2
		for _, i := range order[half:] {
			if err := regions[i].Dereg(); err != nil {
				e.Fatalf("deregister region %d of %d: %v", i, n, err)
			}
		}
		order = order[:half]
	}
	for _, i := range order {
		e.must("deregister", regions[i].Dereg())
	}
}

// deepQueueLen is the number of requests of testDeepQueues in each queue.
const deepQueueLen = 9000

// testDeepQueues posts thousands of receives in lists of several lengths, then as many sends, and compares all
// completions.
func testDeepQueues(e *testEnv) {
	a := e.deviceAttr()
	n := min(deepQueueLen, a.MaxQPWR, a.MaxCQE/2)
	pd := e.newPD()
	from, to := e.newBuffer(pd, 8*n, allAccess), e.newBuffer(pd, 8*n, allAccess)
	cqs := []*ib.CQ{e.newCQ(n, nil), e.newCQ(n, nil)}
	var qps []*ib.QP
	for i := range cqs {
		qps = append(qps, e.newQP(pd, ib.QPInitAttr{Type: ib.QPTypeRC, SendCQ: cqs[i], RecvCQ: cqs[i],
			Cap: ib.QPCap{MaxSendWR: uint32(n), MaxRecvWR: uint32(n), MaxSendSGE: 1, MaxRecvSGE: 1}}))
	}
	for i, qp := range qps {
		e.connector.moveQPUpTo(qp, qps[1-i].Num(), ib.QPRTS)
	}
	lists := func(post func(first, k int) (int, error)) {
		e.Helper()
		for first, i := 0, 0; first < n; i++ {
			k := min([]int{1, 255, 256, 257, 3000}[i%5], n-first)
			if got, err := post(first, k); got != k || err != nil {
				e.Fatalf("post a list of %d, behind %d: got %d taken, %v", k, first, got, err)
			}
			first += k
		}
	}
	lists(func(first, k int) (int, error) {
		var wrs []ib.RecvWR
		for i := first; i < first+k; i++ {
			wrs = append(wrs, ib.RecvWR{ID: uint64(i), SGList: to.newSGL(8*i, 8)})
		}
		return qps[1].PostRecv(wrs...)
	})
	lists(func(first, k int) (int, error) {
		var wrs []ib.SendWR
		for i := first; i < first+k; i++ {
			binary.NativeEndian.PutUint64(from.wordAt(i), uint64(i)<<32|1)
			wrs = append(wrs, ib.SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: from.newSGL(8*i, 8)})
		}
		return qps[0].PostSend(wrs...)
	})
	for side, cq := range cqs {
		for i, wc := range e.waitCompletions(cq, n) {
			if wc.ID != uint64(i) || wc.Status != ib.WCSuccess {
				e.Fatalf("completion %d of %d on side %d: got work request %d with %q", i, n, side, wc.ID, wc.Status)
			}
		}
	}
	if string(from.b) != string(to.b) {
		e.Fatalf("%d messages: the data are not where they should be", n)
	}
}
