package ibtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/ib/internal/qptable"
)

// Queue pairs: states and attributes.

var queuePairChecks = []ruleTest{
	{
		name: "QueuePair/Numbers",
		rule: "queue pairs that exist at the same time have different numbers of 24 bits",
		test: testUniqueQPNumbers,
	},
	{
		name: "QueuePair/Capacities",
		rule: "the capacities granted are at least those asked for",
		test: testGrantedCapacities,
	},
	{
		name: "QueuePair/States",
		rule: "each type takes the transitions and attributes of the specification's table, and no others",
		test: testQPTransitions,
	},
	{
		name: "QueuePair/Query",
		rule: "Query reports what Modify has set",
		test: testQueryReturnsModifiedAttrs,
	},
}

// expectedQPState is the expected state of a queue pair.
type expectedQPState struct {
	e     *testEnv
	qp    *ib.QP
	state string
}

// stepRandomly makes a transition with required attributes, some optional ones, and sometimes an invalid one, and
// checks the result. choose returns a number below its argument.
func (m *expectedQPState) stepRandomly(choose func(n int) int) error {
	kind := m.qp.Type().String()
	to := qptable.States[choose(len(qptable.States))]
	required, optional, known := qptable.TransitionAttrs(m.state, to, kind)
	if !known && choose(4) > 0 { // mostly valid transitions
		return nil
	}
	mask := qptable.Attrs["state"] | required
	for _, name := range attrNames {
		if bit := qptable.Attrs[name]; optional&bit != 0 && choose(2) == 0 {
			mask |= bit
		}
	}
	if choose(3) == 0 {
		mask ^= qptable.Attrs[attrNames[choose(len(attrNames))]]
	}
	mask &^= qptable.Attrs["alt"] | qptable.Attrs["mig"] // the existence of alternate paths depends on the device
	want := qptable.IsMaskAllowed(m.state, to, kind, mask)
	if m.state == "SQD" {
		m.e.eventually("the end of SQDraining", func() bool { return !m.e.queryAllAttributes(m.qp).SQDraining })
	}
	a := m.e.connector.newQPAttr(parseQPState(to), m.qp.Num())
	a.CurState = parseQPState(m.state)
	err := m.qp.Modify(a, ib.QPAttrMask(mask))
	switch {
	case want && err != nil:
		return fmt.Errorf("%s from %s to %s with attributes %#x: %w", kind, m.state, to, mask, err)
	case !want && err == nil:
		return fmt.Errorf("%s from %s to %s with attributes %#x is not allowed, but was done", kind, m.state, to, mask)
	case !want && !errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("%s from %s to %s with attributes %#x: %w, want EINVAL", kind, m.state, to, mask, err)
	case want:
		m.state = to
	}
	got, _, err := m.qp.Query(0)
	if s := m.qp.State().String(); s != m.state || got.State.String() != m.state || err != nil {
		return fmt.Errorf("%s: state is %s, queried %v (%v), want %s", kind, s, got.State, err, m.state)
	}
	return nil
}

// attrNames lists the attributes that a test may set, in a fixed order.
var attrNames = []string{
	"cur", "notify", "access", "pkey", "port", "qkey", "av", "mtu", "timeout", "retry", "rnr_retry", "rq_psn", "rd_atom",
	"rnr_timer", "sq_psn", "dest_rd_atom", "dest_qpn",
}

func parseQPState(name string) ib.QPState {
	for i, n := range qptable.States {
		if n == name {
			return ib.QPState(i)
		}
	}
	panic("no state " + name)
}

// newQPOfType creates a queue pair of a type, or returns nil if the driver does not support it.
func (e *testEnv) newQPOfType(kind ib.QPType, pd *ib.PD, cq *ib.CQ) *ib.QP {
	e.Helper()
	init := ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: kind,
		Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	switch kind {
	case ib.QPTypeXRCInit:
		init.RecvCQ = nil
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
	case ib.QPTypeXRCTgt:
		x, err := e.dev.AllocXRCD()
		if err != nil {
			return nil
		}
		destroyAtEnd(e, x, x.Dealloc)
		init = ib.QPInitAttr{Type: kind, XRCD: x}
	}
	qp, err := pd.CreateQP(init)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	e.must(fmt.Sprintf("create %v qp", kind), err)
	return destroyAtEnd(e, qp, qp.Destroy)
}

func testQPTransitions(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	r := rand.New(rand.NewPCG(11, 13))
	types := 0
	for _, kind := range append(queuePairTypes, ib.QPTypeXRCInit, ib.QPTypeXRCTgt,
		ib.QPTypeSRD) {
		qp := e.newQPOfType(kind, pd, cq)
		if qp == nil {
			e.Logf("the driver has no %v queue pairs", kind)
			continue
		}
		types++
		m := &expectedQPState{e: e, qp: qp, state: "RESET"}
		for range 600 * e.cfg.load {
			e.must("modify qp", m.stepRandomly(r.IntN))
		}
	}
	if types == 0 {
		e.Error("the driver has no queue pairs at all")
	}
}

func testQueryReturnsModifiedAttrs(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
	a, init, err := qp.Query(0)
	if err != nil || a.State != ib.QPReset || init.SendCQ != cq || init.Type != ib.QPTypeRC {
		e.Errorf("new: %+v, %+v, %v", a, init, err)
	}
	e.connector.moveQPUpTo(qp, 0x4711, ib.QPRTS)
	a, _, err = qp.Query(ib.QPAttrState | ib.QPAttrAV)
	w := e.connector.newQPAttr(ib.QPRTS, 0x4711)
	if err != nil || a.State != w.State || a.DestQPN != w.DestQPN || a.RQPSN != w.RQPSN || a.SQPSN != w.SQPSN ||
		a.PathMTU != w.PathMTU || a.AccessFlags != w.AccessFlags || a.AH.GRH.DGID != w.AH.GRH.DGID ||
		a.Timeout != w.Timeout ||
		a.RetryCnt != w.RetryCnt || a.RNRRetry != w.RNRRetry || a.MinRNRTimer != w.MinRNRTimer || a.Port != w.Port {
		e.Errorf("queried %+v\nwant %+v (%v)", a, w, err)
	}
	e.must("modify", qp.Modify(ib.QPAttr{AccessFlags: ib.AccessRemoteRead}, ib.QPAttrAccessFlags))
	if a, _, _ = qp.Query(0); a.AccessFlags != ib.AccessRemoteRead || a.State != ib.QPRTS {
		e.Errorf("after another Modify: %+v", a)
	}
}

func testGrantedCapacities(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	all := e.defaultQPCap()
	for _, c := range []ib.QPCap{
		{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		{MaxSendWR: min(7, all.MaxSendWR), MaxRecvWR: min(33, all.MaxRecvWR), MaxSendSGE: min(2, all.MaxSendSGE),
			MaxRecvSGE:    min(3, all.MaxRecvSGE),
			MaxInlineData: e.maxInlineData(pd, ib.QPTypeRC, 17)},
	} {
		qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: c})
		g := qp.Init().Cap
		if g.MaxSendWR < c.MaxSendWR || g.MaxRecvWR < c.MaxRecvWR || g.MaxSendSGE < c.MaxSendSGE ||
			g.MaxRecvSGE < c.MaxRecvSGE || g.MaxInlineData < c.MaxInlineData {
			e.Errorf("requested %+v, got %+v", c, g)
		}
	}
	for _, n := range []int{1, 5, 100} {
		if cq := e.newCQ(n, nil); cq.Entries() < n {
			e.Errorf("requested %d entries, got %d", n, cq.Entries())
		}
	}
}

func testUniqueQPNumbers(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	seen := map[uint32]bool{}
	for range 50 {
		qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
		if n := qp.Num(); seen[n] || n == 0 || n >= 0xffffff {
			e.Errorf("number %#x", n)
		}
		seen[qp.Num()] = true
	}
}

func testSQDrain(e *testEnv) {
	drained := make(chan ib.EventType, 10)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, event: func(qp *ib.QP, ev ib.EventType) {
		select {
		case drained <- ev:
		default:
		}
	}})
	err := p.qps[0].Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: true}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify)
	e.requireFeature("the state SQD", err)
	e.eventually("the event that the send queue is drained", func() bool { return len(drained) > 0 })
	if ev := <-drained; ev != ib.EventSQDrained {
		e.Errorf("event %v", ev)
	}
	p.postRecv(1, 1, 0, 8)
	p.postSend(0, 1, 8)
	for range 50 {
		yieldBriefly()
		if n, _ := p.cqs[1].Poll(make([]ib.WC, 1)); n != 0 {
			e.Fatal("a message was sent in SQD")
		}
	}
	p.postRecv(0, 2, 0, 8)
	p.postSend(1, 2, 8) // the other direction works
	e.waitOneCompletion(p.cqs[1], 2, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
}

func testCompletionOfDestroyedQP(e *testEnv) {
	e.skipIfCompletionsPurged()
	var calls atomic.Int32
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, handlers: [2]func(*ib.CQ){nil, func(*ib.CQ) { calls.Add(1) }}})
	// arrives calls f and waits until the resulting completion is in the queue. A flush may put it there after Modify
	// has returned.
	arrives := func(f func()) {
		e.Helper()
		before := calls.Load()
		_, err := p.cqs[1].ReqNotify(ib.NotifyNextComp)
		e.must("request notify", err)
		f()
		e.eventually("the completion handler", func() bool { return calls.Load() > before })
	}
	p.postRecv(1, 1, 0, 64)
	arrives(func() { p.postSend(0, 2, 64) })
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	p.postRecv(1, 3, 0, 64)
	num := p.qps[1].Num()
	arrives(func() { e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)) })
	e.destroy(p.qps[1])
	for _, wc := range e.waitCompletions(p.cqs[1], 2) {
		if wc.QPNum != num || wc.QP != nil {
			e.Errorf("completion of a destroyed queue pair %d: got number %d, queue pair %p, want %d and nil", num, wc.QPNum,
				wc.QP, num)
		}
	}
}
