package ibtest

import (
	"errors"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/ib/internal/qptable"
)

// The attributes of queue pairs, with all effects that no other check covers.

var attributeChecks = []ruleTest{
	{
		name: "QueuePair/Attributes",
		rule: "Query reports each attribute as Modify has set it, and those that Modify did not name as they were; after an error nothing has changed; RESET restores the first values",
		test: testAttributesReadBack,
	},
	{
		name: "SQ/DrainedEvent",
		rule: "the event that the send queue is drained comes once, for a transition to SQD that asks for it, when nothing is in flight any more",
		test: testDrainedEvent,
	},
	{
		name: "Errors/ReceiverNotReady",
		rule: "with RNRRetry 7 a sender waits for a receive as long as it takes, however many wait; with 0 it gives up at once",
		test: testRNRRetries,
	},
}

// qpAttribute is an attribute of a queue pair that can be read back.
type qpAttribute struct {
	name   string
	bit    ib.QPAttrMask
	choose func(a *ib.QPAttr, r *rand.Rand)
	get    func(a *ib.QPAttr) any
}

// supportedAttributes returns the attributes that the device supports, with values that all devices accept. The numbers
// of READs and atomics are powers of two, because adapters round them up.
func supportedAttributes(e *testEnv, dev ib.DeviceAttr) []qpAttribute {
	rights := []ib.AccessFlags{0, ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteRead | ib.AccessRemoteWrite}
	if dev.AtomicCap != ib.AtomicNone {
		for _, r := range rights[:4] {
			rights = append(rights, r|ib.AccessRemoteAtomic)
		}
	}
	keys := []uint16{0} // indices of P_Keys; others are empty
	for i := 1; i < min(e.connector.port.PKeyTableLen, 1<<16); i++ {
		if k, err := e.dev.QueryPKey(1, i); err == nil && k != 0 {
			keys = append(keys, uint16(i))
		}
	}
	power := func(r *rand.Rand, most int) uint8 { return 1 << r.IntN(bits.Len8(uint8(max(1, min(most, 255))))) }
	return []qpAttribute{
		{"P_Key index", ib.QPAttrPKeyIndex, func(a *ib.QPAttr,
			r *rand.Rand) {
			a.PKeyIndex = keys[r.IntN(len(keys))]
		},
			func(a *ib.QPAttr) any { return a.PKeyIndex }},
		{"port", ib.QPAttrPort, func(a *ib.QPAttr, r *rand.Rand) { a.Port = 1 }, func(a *ib.QPAttr) any { return a.Port }},
		{"Q_Key", ib.QPAttrQKey, func(a *ib.QPAttr, r *rand.Rand) { a.QKey = r.Uint32() >> 1 },
			func(a *ib.QPAttr) any { return a.QKey }},
		{"access flags", ib.QPAttrAccessFlags, func(a *ib.QPAttr,
			r *rand.Rand) {
			a.AccessFlags = rights[r.IntN(len(rights))]
		},
			func(a *ib.QPAttr) any { return a.AccessFlags }},
		{"address", ib.QPAttrAV, func(a *ib.QPAttr, r *rand.Rand) {
			a.AH = e.connector.ownAddress()
			a.AH.SL, a.AH.GRH.TrafficClass = uint8(r.IntN(8)), uint8(r.IntN(64))<<2
			a.AH.StaticRate = uint8(2 + r.IntN(9)) // enum ib_rate
			a.AH.GRH.HopLimit, a.AH.GRH.FlowLabel = uint8(1+r.IntN(255)), r.Uint32N(1<<20)
		}, func(a *ib.QPAttr) any { return a.AH }},
		{"path MTU", ib.QPAttrPathMTU, func(a *ib.QPAttr,
			r *rand.Rand) {
			a.PathMTU = ib.MTU(1 + r.IntN(int(e.connector.port.ActiveMTU)))
		},
			func(a *ib.QPAttr) any { return a.PathMTU }},
		{"destination", ib.QPAttrDestQPN, func(a *ib.QPAttr, r *rand.Rand) { a.DestQPN = 2 + r.Uint32N(1<<24-3) },
			func(a *ib.QPAttr) any { return a.DestQPN }},
		{"receive PSN", ib.QPAttrRQPSN, func(a *ib.QPAttr, r *rand.Rand) { a.RQPSN = r.Uint32N(1 << 24) },
			func(a *ib.QPAttr) any { return a.RQPSN }},
		{"send PSN", ib.QPAttrSQPSN, func(a *ib.QPAttr, r *rand.Rand) { a.SQPSN = r.Uint32N(1 << 24) },
			func(a *ib.QPAttr) any { return a.SQPSN }},
		{"number of outstanding READs and atomics", ib.QPAttrMaxRdAtomic,
			func(a *ib.QPAttr, r *rand.Rand) { a.MaxRdAtomic = power(r, dev.MaxQPInitRdAtom) },
			func(a *ib.QPAttr) any { return a.MaxRdAtomic }},
		{"number of READs and atomics to serve", ib.QPAttrMaxDestRdAtomic,
			func(a *ib.QPAttr, r *rand.Rand) { a.MaxDestRdAtomic = power(r, dev.MaxQPRdAtom) },
			func(a *ib.QPAttr) any { return a.MaxDestRdAtomic }},
		{"RNR timer", ib.QPAttrMinRNRTimer, func(a *ib.QPAttr, r *rand.Rand) { a.MinRNRTimer = uint8(r.IntN(32)) },
			func(a *ib.QPAttr) any { return a.MinRNRTimer }},
		{"timeout", ib.QPAttrTimeout, func(a *ib.QPAttr, r *rand.Rand) { a.Timeout = uint8(r.IntN(32)) },
			func(a *ib.QPAttr) any { return a.Timeout }},
		{"retry count", ib.QPAttrRetryCnt, func(a *ib.QPAttr, r *rand.Rand) { a.RetryCnt = uint8(r.IntN(8)) },
			func(a *ib.QPAttr) any { return a.RetryCnt }},
		{"RNR retry count", ib.QPAttrRNRRetry, func(a *ib.QPAttr, r *rand.Rand) { a.RNRRetry = uint8(r.IntN(8)) },
			func(a *ib.QPAttr) any { return a.RNRRetry }},
	}
}

// everyStatePath is a path through all states that a queue pair without traffic can have.
var everyStatePath = []ib.QPState{ib.QPInit, ib.QPInit, ib.QPRTR, ib.QPRTS, ib.QPRTS, ib.QPSQD, ib.QPSQD, ib.QPRTS}

// all types of queue pairs
var allQPTypes = []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCInit, ib.QPTypeXRCTgt, ib.QPTypeSRD}

func testAttributesReadBack(e *testEnv) {
	dev, err := e.dev.QueryDevice()
	e.must("query device", err)
	pd, cq := e.newPD(), e.newCQ(8, nil)
	attrs := supportedAttributes(e, dev)
	r := rand.New(rand.NewPCG(17, 19))
	for _, kind := range allQPTypes {
		qp := e.newQPOfType(kind, pd, cq)
		if qp == nil {
			e.Logf("the driver has no %v queue pairs", kind)
			continue
		}
		first := e.queryAllAttributes(qp)
		if first.Cap != qp.Init().Cap {
			e.Errorf("capacities of a %v queue pair: Query reports %+v, CreateQP reported %+v", kind, first.Cap, qp.Init().Cap)
		}
		for range 6 {
			for _, to := range everyStatePath {
				moveWithAttributes(e.resultChecker, qp, attrs, to, r)
			}
			e.must("modify to RESET", qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
			if got := e.queryAllAttributes(qp); got != first {
				e.Fatalf("%v queue pair after RESET: Query reports %+v, after its creation %+v", kind, got, first)
			}
		}
	}
}

// moveWithAttributes moves a queue pair to a state, with the required attributes and some optional ones, and compares
// all attributes with the expected values. Before that it tries an invalid value.
func moveWithAttributes(c *resultChecker, qp *ib.QP, attrs []qpAttribute, to ib.QPState, r *rand.Rand) {
	c.Helper()
	c.eventually("the end of SQDraining", func() bool { return !c.queryAllAttributes(qp).SQDraining })
	before := c.queryAllAttributes(qp)
	from, kind := before.State, qp.Type()
	required, optional, known := qptable.TransitionAttrs(from.String(), to.String(), kind.String())
	if !known {
		c.Fatalf("a %v queue pair is in %v, and should go to %v", kind, from, to)
	}
	set, mask := ib.QPAttr{State: to}, ib.QPAttrState|ib.QPAttrMask(required)
	for _, a := range attrs {
		a.choose(&set, r) // also attributes that the mask does not name
		if ib.QPAttrMask(optional)&a.bit != 0 && r.IntN(2) == 0 {
			mask |= a.bit
		}
	}
	for _, wrong := range []struct {
		bit ib.QPAttrMask
		set func(a *ib.QPAttr)
	}{
		{ib.QPAttrPort, func(a *ib.QPAttr) { a.Port = 0 }},
		{ib.QPAttrPathMTU, func(a *ib.QPAttr) { a.PathMTU = 9 }},
		{ib.QPAttrAV, func(a *ib.QPAttr) { a.AH.Port = 0 }},
	} {
		if mask&wrong.bit == 0 {
			continue
		}
		bad := set
		wrong.set(&bad)
		c.wantErrno("modify with a wrong value", qp.Modify(bad, mask), syscall.EINVAL)
		if got := c.queryAllAttributes(qp); got != before {
			c.Fatalf("%v queue pair from %v to %v: after a Modify that failed Query reports %+v, before it %+v", kind, from, to,
				got, before)
		}
	}
	c.must("modify", qp.Modify(set, mask))
	got := c.queryAllAttributes(qp)
	if got.State != to || got.CurState != to {
		c.Fatalf("%v queue pair from %v to %v: Query reports the states %v and %v", kind, from, to, got.State, got.CurState)
	}
	for _, a := range attrs {
		want, why := a.get(&before), "which Modify did not name"
		if mask&a.bit != 0 {
			want, why = a.get(&set), "as Modify has set it"
		}
		if g := a.get(&got); g != want {
			c.Errorf("%v queue pair from %v to %v: %s: got %v, want %v, %s", kind, from, to, a.name, g, want, why)
		}
	}
}

// drainedEventCounter counts the EventSQDrained events by queue pair.
type drainedEventCounter struct {
	mu sync.Mutex
	n  map[*ib.QP]int
}

func (d *drainedEventCounter) countEvent(qp *ib.QP, ev ib.EventType) {
	if ev == ib.EventSQDrained {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.n[qp]++
	}
}

func (d *drainedEventCounter) drainedEvents(qp *ib.QP) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n[qp]
}

func testDrainedEvent(e *testEnv) {
	tried := 0
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD} {
		if !e.supportsType(kind) {
			e.Logf("the driver has no %v queue pairs", kind)
			continue
		}
		tried++
		d := drainedEventCounter{n: map[*ib.QP]int{}}
		p := e.newPair(pairConfig{kind: kind, event: d.countEvent})
		qp, want := p.qps[0], 0
		drain := func(how string, ask, name bool) {
			e.Helper()
			mask := ib.QPAttrState
			if name {
				mask |= ib.QPAttrEnSQDAsyncNotify
			}
			e.requireFeature("the state SQD", qp.Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: ask}, mask))
			if ask && name {
				want++
				e.eventually("the event that the send queue is drained", func() bool { return d.drainedEvents(qp) >= want })
			}
			e.awaitEventDelivery() // the next step sees late events
			if n := d.drainedEvents(qp); n != want {
				e.Fatalf("%v queue pair, %s: %d events that the send queue is drained, want %d", kind, how, n, want)
			}
		}
		back := func() {
			e.Helper()
			e.must("modify to RTS", qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
		}
		drain("to SQD without the attribute", true, false)
		back()
		drain("to SQD with the attribute false", false, true)
		back()
		drain("to SQD asking for it", true, true)
		drain("modified in SQD", false, false)
		back()
		drain("to SQD without asking, which an earlier transition did", false, false)
		back()
		drain("to SQD asking for it again", true, true)
		e.awaitDueCallbacks()
		if n := d.drainedEvents(qp); n != want {
			e.Errorf("%v queue pair: %d events that the send queue is drained, asked for %d", kind, n, want)
		}
		if n := d.drainedEvents(p.qps[1]); n != 0 {
			e.Errorf("%d events of a queue pair that was never in SQD", n)
		}
		if kind == ib.QPTypeRC {
			back()
			drainWithWaitingSend(e, p, &d, false)
			drainWithWaitingSend(e, p, &d, true)
			leaveSQDBeforeDrained(e, p, &d)
		}
	}
	if tried == 0 {
		e.Skip("the driver has no queue pairs of the types tried")
	}
}

// leaveSQDBeforeDrained leaves SQD before the send queue is drained, if the driver allows that. The request for the
// event ends then.
func leaveSQDBeforeDrained(e *testEnv, p *pair, d *drainedEventCounter) {
	e.Helper()
	qp := p.qps[0]
	p.postSend(0, 1, 8)
	e.must("modify to SQD", qp.Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: true},
		ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify))
	e.awaitDueCallbacks()
	before := d.drainedEvents(qp)
	left := qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState) == nil
	p.postRecv(1, 1, 0, 8)
	if !left {
		e.Log("the driver does not leave SQD before the send queue is drained")
		e.eventually("the event that the send queue is drained", func() bool { return d.drainedEvents(qp) > before })
		e.must("modify to RTS", qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
	}
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	e.awaitDueCallbacks()
	before = d.drainedEvents(qp)
	e.must("modify to SQD", qp.Modify(ib.QPAttr{State: ib.QPSQD}, ib.QPAttrState))
	e.awaitDueCallbacks()
	e.awaitEventDelivery()
	if n := d.drainedEvents(qp); n != before {
		e.Errorf("to SQD without asking: %d events that the send queue is drained, which an earlier transition asked for",
			n-before)
	}
	e.must("modify to RTS", qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
}

// drainWithWaitingSend moves a queue pair to SQD while its message waits for a receive. The driver decides whether the
// message has begun. A message that has begun completes before the event; another one waits until RTS.
func drainWithWaitingSend(e *testEnv, p *pair, d *drainedEventCounter, ask bool) {
	e.Helper()
	qp, before := p.qps[0], d.drainedEvents(p.qps[0])
	want := before
	if ask {
		want++
	}
	p.postSend(0, 1, 8)
	e.must("modify to SQD", qp.Modify(ib.QPAttr{State: ib.QPSQD, EnSQDAsyncNotify: ask},
		ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify))
	e.awaitDueCallbacks()
	began := e.queryAllAttributes(qp).SQDraining
	if n := d.drainedEvents(qp); began && n != before {
		e.Fatalf("%d events that the send queue is drained while Query reports that it is not, want %d", n, before)
	}
	p.postRecv(1, 1, 0, 8)
	if began {
		e.eventually("the end of SQDraining", func() bool { return !e.queryAllAttributes(qp).SQDraining })
	}
	if ask {
		e.eventually("the event that the send queue is drained", func() bool { return d.drainedEvents(qp) >= want })
	}
	wc := make([]ib.WC, 1)
	n, err := p.cqs[0].Poll(wc)
	e.must("poll", err)
	if began && n == 0 { // it has completed, but may be polled later
		wc[0], n = e.waitAnyCompletion(p.cqs[0]), 1
	}
	e.awaitDueCallbacks()
	if got := d.drainedEvents(qp); got != want {
		e.Fatalf("a message in flight, EnSQDAsyncNotify %v: %d events that the send queue is drained, want %d", ask,
			got-before, want-before)
	}
	if more, _ := p.cqs[0].Poll(wc); more != 0 && !began {
		e.Fatal("a message was sent in SQD when the send queue was drained")
	}
	e.must("modify to RTS", qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
	if n == 0 {
		wc[0] = e.waitAnyCompletion(p.cqs[0])
	}
	if wc[0].ID != 1 || wc[0].Status != ib.WCSuccess {
		e.Errorf("the message ended with %q", wc[0].Status)
	}
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
}

// supportsType reports whether the driver supports queue pairs of a type.
func (e *testEnv) supportsType(kind ib.QPType) bool {
	e.Helper()
	pd, cq := e.newPD(), e.newCQ(1, nil)
	qp := e.newQPOfType(kind, pd, cq)
	if qp != nil {
		e.destroy(qp)
	}
	return qp != nil
}

// waitingPair is a pair with a sender that waits for a receive.
type waitingPair struct {
	*pair
	wr   ib.SendWR
	recv func()
}

func testRNRRetries(e *testEnv) {
	var all []waitingPair
	pd := e.newPD()
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm, ib.WRSend} {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		all = append(all, waitingPair{p, p.newRDMARequest(1, op, p.buf[0].newSGL(0, 64), 64), func() {
			p.postRecv(1, 2, 0,
				64)
		}})
	}
	if srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}}); err == nil {
		destroyAtEnd(e, srq, srq.Destroy)
		for range 2 {
			p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, srq: srq})
			all = append(all, waitingPair{p, p.newRDMARequest(1, ib.WRSend, p.buf[0].newSGL(0, 64), 0), func() {
				if n, err := srq.PostRecv(ib.RecvWR{ID: 2, SGList: p.buf[1].newSGL(0, 64)}); n != 1 {
					e.Fatalf("post receive: %v", err)
				}
			}})
		}
	}
	for range 2 { // in the second round each of them has waited before
		all = slices.DeleteFunc(all, func(w waitingPair) bool {
			n, err := w.qps[0].PostSend(w.wr)
			if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
				e.Logf("the driver has no opcode %d: %v", w.wr.Opcode, err)
				return true
			}
			if n != 1 {
				e.Fatalf("post send: %v", err)
			}
			return false
		})
		checkGiveUpAfterRNR(e, pd)
		for range 20 {
			yieldBriefly()
		}
		for _, w := range all {
			for i, cq := range w.cqs {
				wc := make([]ib.WC, 1)
				if n, _ := cq.Poll(wc); n != 0 {
					e.Fatalf("opcode %d without a receive: side %d has a completion with %q", w.wr.Opcode, i, wc[0].Status)
				}
			}
		}
		slices.Reverse(all) // post the receives in another order than the messages
		for _, w := range all {
			w.recv()
		}
		for _, w := range all {
			e.waitOneCompletion(w.cqs[0], 1, ib.WCSuccess)
			e.waitOneCompletion(w.cqs[1], 2, ib.WCSuccess)
		}
	}
}

// checkGiveUpAfterRNR sends to a queue pair without a receive, with no retries.
func checkGiveUpAfterRNR(e *testEnv, pd *ib.PD) {
	e.Helper()
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	e.connector.resetQPs(p.qps[:]...)
	e.connector.moveQPUpTo(p.qps[1], p.qps[0].Num(), ib.QPRTS)
	e.connector.moveQPUpTo(p.qps[0], p.qps[1].Num(), ib.QPRTR)
	a := e.connector.newQPAttr(ib.QPRTS, p.qps[1].Num())
	a.RNRRetry = 0
	e.must("modify to RTS", p.qps[0].Modify(a, transitionMask(ib.QPTypeRC, ib.QPRTS)))
	p.postSend(0, 1, 8)
	p.postSend(0, 2, 8)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCRNRRetryExcErr)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCWRFlushErr)
	if s := p.qps[1].State(); s != ib.QPRTS {
		e.Errorf("the queue pair that was sent to without a receive is in %v, want %v", s, ib.QPRTS)
	}
}
