package ibtest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// Errors: the results of methods for invalid calls.

var errorChecks = []ruleTest{
	{
		name: "Errors/UseCounts",
		rule: "what something refers to cannot be destroyed (EBUSY)",
		test: testObjectsInUseAreNotDestroyed,
	},
	{
		name: "Errors/PostInWrongState",
		rule: "posting is refused where the state does not allow it (EINVAL)",
		test: testPostInWrongStateFails,
	},
	{
		name: "Errors/QueueFull",
		rule: "a full queue refuses with ENOMEM, and says how many were taken",
		test: testFullQueueRejectsPost,
	},
	{
		name: "Errors/PostStopsAtError",
		rule: "a list of work requests is taken up to the first wrong one",
		test: testPostStopsAtError,
	},
	{
		name: "Errors/FlushInOrder",
		rule: "a queue pair that goes to ERR completes what is outstanding with a flush error, in order",
		test: testFlushInOrder,
	},
	{
		name: "Errors/PostInErr",
		rule: "what is posted in ERR completes with a flush error",
		test: testPostInErrFlushes,
	},
	{
		name: "Errors/ResetDrops",
		rule: "a queue pair that goes to RESET and up again works, and has forgotten what was outstanding",
		test: testResetDropsRequests,
	},
	{
		name: "Errors/BadArguments",
		rule: "arguments outside of their range are refused (EINVAL)",
		test: testBadArgumentsAreRejected,
	},
	{
		name: "Errors/Unsupported",
		rule: "an ability that the driver lacks is EOPNOTSUPP",
		test: testUnsupportedFeaturesAreRejected,
	},
	{
		name: "Errors/PostDuringModifyToErr",
		rule: "what is posted while the queue pair goes to ERR completes, once, in order",
		test: testPostDuringModifyToErr, fast: true,
	},
	{
		name: "Errors/AsyncEvents",
		rule: "a responder that refuses a request of a reliable connection raises EventQPAccessErr or EventQPReqErr, once",
		test: testResponderErrorEvents,
	},
	{
		name: "Errors/CompletionOfDestroyed",
		rule: "a completion keeps the number of a queue pair that is destroyed before it is polled, and has no queue pair any more",
		test: testCompletionOfDestroyedQP,
	},
}

func testObjectsInUseAreNotDestroyed(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	e.wantErrno("destroy a CQ in use", p.cqs[0].Destroy(), syscall.EBUSY)
	e.wantErrno("dealloc a PD in use", p.pd.Dealloc(), syscall.EBUSY)
	p.exchangeMessage(0, 1, 8) // the queue pairs are unchanged
	e.destroy(p.qps[0])
	e.destroy(p.qps[1])
	e.destroy(p.cqs[0])
	e.wantErrno("dealloc a PD with memory", p.pd.Dealloc(), syscall.EBUSY)
	e.destroy(p.buf[0].mr)
	e.destroy(p.buf[1].mr)
	e.destroy(p.pd)
}

func testPostInWrongStateFails(e *testEnv) {
	pd := e.newPD()
	cq := e.newCQ(8, nil)
	buf := e.newBuffer(pd, 8, allAccess)
	qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
	send := func(what string, want ...syscall.Errno) {
		e.Helper()
		n, err := qp.PostSend(ib.SendWR{Opcode: ib.WRSend, SGList: buf.newSGL(0, 8)})
		if n != 0 {
			e.Errorf("post send in %s: taken", what)
		}
		e.wantErrno("post send in "+what, err, want...)
	}
	send("RESET", syscall.EINVAL)
	n, err := qp.PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)})
	if n != 0 {
		e.Error("post receive in RESET: taken")
	}
	e.wantErrno("post receive in RESET", err, syscall.EINVAL)
	e.connector.moveQPUpTo(qp, qp.Num(), ib.QPInit)
	send("INIT", syscall.EINVAL)
	if n, err := qp.PostRecv(ib.RecvWR{SGList: buf.newSGL(0, 8)}); n != 1 || err != nil {
		e.Errorf("post receive in INIT: %d, %v", n, err)
	}
	e.must("modify to RTR", qp.Modify(e.connector.newQPAttr(ib.QPRTR, qp.Num()), transitionMask(ib.QPTypeRC, ib.QPRTR)))
	send("RTR", syscall.EINVAL)
}

func testFullQueueRejectsPost(e *testEnv) {
	pd := e.newPD()
	cq := e.newCQ(e.queueLen, nil)
	buf := e.newBuffer(pd, 8, allAccess)
	qp := e.newQP(pd, ib.QPInitAttr{
		SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	room := int(qp.Init().Cap.MaxRecvWR)
	if room < 4 {
		e.Fatalf("room for %d work requests, asked for 4", room)
	}
	e.connector.moveQPUpTo(qp, qp.Num(), ib.QPInit)
	wrs := make([]ib.RecvWR, room+3)
	for i := range wrs {
		wrs[i] = ib.RecvWR{ID: uint64(i), SGList: buf.newSGL(0, 8)}
	}
	n, err := qp.PostRecv(wrs...)
	if n < room || n == len(wrs) {
		e.Fatalf("%d of %d work requests taken, room for %d, error %v", n, len(wrs), room, err)
	}
	e.wantErrno("post to a full queue", err, syscall.ENOMEM)
	n2, err := qp.PostRecv(wrs[n:]...)
	if n2 != 0 {
		e.Errorf("%d work requests taken by a full queue", n2)
	}
	e.wantErrno("post to a full queue again", err, syscall.ENOMEM)
}

func testPostStopsAtError(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	t := p.newMessageSender()
	t.prepareReceive(0, 8)
	t.prepareReceive(1, 8)
	good := t.newMessageRequest(0, 8)
	bad := good
	for range p.qps[0].Init().Cap.MaxSendSGE + 1 {
		bad.SGList = append(bad.SGList, p.buf[0].newSGE(0, 1))
	}
	wrs := []ib.SendWR{good, good, bad, good}
	for i := range wrs {
		wrs[i].ID = uint64(i)
	}
	n, err := p.qps[0].PostSend(wrs...)
	if n != 2 {
		e.Errorf("%d work requests taken, want 2", n)
	}
	e.wantErrno("post a work request of too many elements", err, syscall.EINVAL)
	e.waitOneCompletion(p.cqs[0], 0, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess)
	t.waitMessageArrived(0)
	t.waitMessageArrived(1)
	n, err = p.qps[1].PostRecv(ib.RecvWR{SGList: p.buf[1].newSGL(0, 8)},
		ib.RecvWR{SGList: make([]ib.SGE, p.qps[1].Init().Cap.MaxRecvSGE+1)})
	if n != 1 {
		e.Errorf("%d receive work requests taken, want 1", n)
	}
	e.wantErrno("post a receive of too many elements", err, syscall.EINVAL)
	p.postSend(0, 7, 8) // the accepted request is valid
	e.waitOneCompletion(p.cqs[0], 7, ib.WCSuccess)
}

func testFlushInOrder(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, entries: 4 * e.queueLen})
	n := min(20, e.queueLen)
	for i := range n {
		p.postRecv(1, uint64(i), 0, 8)
	}
	// Sends to a queue pair without receives are outstanding, too.
	for i := range n {
		p.postSend(1, uint64(1000+i), 8)
	}
	e.must("modify to ERR", p.qps[1].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	recv, send := uint64(0), uint64(1000)
	for range 2 * n {
		wc := e.waitCompletions(p.cqs[1], 1)[0]
		next := &recv
		if wc.ID >= 1000 {
			next = &send
		}
		if wc.ID != *next || wc.Status != ib.WCWRFlushErr {
			e.Fatalf("completion of work request %d with %q, want %d flushed", wc.ID, wc.Status, *next)
		}
		*next++
	}
	if s := p.qps[1].State(); s != ib.QPErr {
		e.Errorf("state is %v", s)
	}
}

func testPostInErrFlushes(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
	p.postSend(0, 1, 8)
	e.waitOneCompletion(p.cqs[0], 1, ib.WCWRFlushErr)
	p.postRecv(0, 2, 0, 8)
	e.waitOneCompletion(p.cqs[0], 2, ib.WCWRFlushErr)
	// An unsignalled SEND.
	if n, err := p.qps[0].PostSend(ib.SendWR{ID: 3, Opcode: ib.WRSend, SGList: p.buf[0].newSGL(0, 8)}); n != 1 ||
		err != nil {
		e.Errorf("post send: %d, %v", n, err)
	}
	e.waitOneCompletion(p.cqs[0], 3, ib.WCWRFlushErr)
}

func testResetDropsRequests(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.exchangeMessage(0, 1, 8)
	for i := range 5 {
		p.postRecv(1, uint64(100+i), 0, 8)
	}
	e.connector.resetQPs(p.qps[:]...)
	for i := range p.qps {
		if s := p.qps[i].State(); s != ib.QPReset {
			e.Errorf("state is %v", s)
		}
		e.connector.moveQPUpTo(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
	}
	p.exchangeMessage(0, 2, 8)
	p.exchangeMessage(1, 3, 8)

	// With requests in both queues, of which the first one may have begun.
	x := e.newQPsInEveryState(newPairFunc(e))
	e.awaitDueCallbacks()
	for i, p := range x.pairs {
		p.reconnect()
		e.Logf("messages of a queue pair that was in %v before RESET", x.states[i])
		for id := range uint64(2) {
			p.exchangeMessage(0, 200+id, 8)
			p.exchangeMessage(1, 300+id, 8)
		}
	}
}

func testBadArgumentsAreRejected(e *testEnv) {
	_, err := e.dev.QueryPort(0)
	e.wantErrno("query port 0", err, syscall.EINVAL)
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	_, err = e.dev.QueryPort(a.PhysPorts + 1)
	e.wantErrno("query a port that is not", err, syscall.EINVAL)
	if _, err = e.dev.QueryPortSpeed(a.PhysPorts + 1); !errors.Is(err, syscall.EOPNOTSUPP) {
		e.wantErrno("query the speed of a port that is not", err, syscall.EINVAL)
	}
	_, err = e.dev.QueryGID(1, e.connector.port.GIDTableLen)
	e.wantErrno("query a GID outside of the table", err, syscall.EINVAL)
	_, err = e.dev.QueryGID(1, -1)
	e.wantErrno("query GID -1", err, syscall.EINVAL)
	_, err = e.dev.QueryPKey(1, e.connector.port.PKeyTableLen)
	e.wantErrno("query a P_Key outside of the table", err, syscall.EINVAL)
	if k, err := e.dev.QueryPKey(1, 0); err != nil || k == 0 {
		e.Errorf("the first P_Key is %#x, %v", k, err)
	}
	for i := range min(e.connector.port.GIDTableLen, 1<<16) {
		if _, err := e.dev.QueryGID(1, i); err != nil {
			e.Fatalf("query GID %d of %d: got %v, want an entry, which may be empty", i, e.connector.port.GIDTableLen, err)
		}
	}
	for i := range min(e.connector.port.PKeyTableLen, 1<<16) {
		if _, err := e.dev.QueryPKey(1, i); err != nil {
			e.Fatalf("query P_Key %d of %d: got %v, want a key", i, e.connector.port.PKeyTableLen, err)
		}
	}
	_, err = e.dev.CreateCQ(ib.CQInit{})
	e.wantErrno("create a CQ of no entries", err, syscall.EINVAL)
	_, err = e.dev.CreateCQ(ib.CQInit{Entries: a.MaxCQE + 1})
	e.wantErrno("create a CQ of too many entries", err, syscall.EINVAL, syscall.ENOMEM)
	pd, cq := e.newPD(), e.newCQ(8, nil)
	_, err = pd.CreateQP(ib.QPInitAttr{
		SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: uint32(a.MaxQPWR) + 1, MaxSendSGE: 1},
	})
	e.wantErrno("create a QP of too many work requests", err, syscall.EINVAL, syscall.ENOMEM)
	qp := e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC})
	bad := e.connector.newQPAttr(ib.QPInit, 0)
	bad.Port = uint8(a.PhysPorts) + 1
	e.wantErrno("modify to a port that is not", qp.Modify(bad, transitionMask(ib.QPTypeRC, ib.QPInit)), syscall.EINVAL)
	if s := qp.State(); s != ib.QPReset {
		e.Errorf("state after a Modify that failed is %v", s)
	}
	e.connector.moveQPUpTo(qp, 0, ib.QPInit)
	bad = e.connector.newQPAttr(ib.QPRTR, 0)
	bad.PathMTU = 9
	e.wantErrno("modify to an MTU that is not", qp.Modify(bad, transitionMask(ib.QPTypeRC, ib.QPRTR)), syscall.EINVAL)
	if s := qp.State(); s != ib.QPInit {
		e.Errorf("state after a Modify that failed is %v", s)
	}
}

func testUnsupportedFeaturesAreRejected(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	expect := func(what string, err error) {
		e.Helper()
		switch {
		case err == nil:
		case errors.Is(err, syscall.EOPNOTSUPP):
			e.Logf("the driver has no %s", what)
		default:
			e.Errorf("%s: %v, want success or EOPNOTSUPP", what, err)
		}
	}
	a := e.connector.ownAddress()
	ah, err := pd.CreateAH(&a)
	if expect("address handles", err); err == nil {
		destroyAtEnd(e, ah, ah.Destroy)
	}
	srq, err := pd.CreateSRQ(ib.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}})
	if expect("shared receive queues", err); err == nil {
		destroyAtEnd(e, srq, srq.Destroy)
	}
	mw, err := pd.AllocMW(ib.MWType2)
	if expect("memory windows", err); err == nil {
		destroyAtEnd(e, mw, mw.Dealloc)
	}
	mr, err := pd.AllocMR(1)
	if expect("fast registration", err); err == nil {
		destroyAtEnd(e, mr, mr.Dereg)
	}
	x, err := e.dev.AllocXRCD()
	if expect("XRC domains", err); err == nil {
		destroyAtEnd(e, x, x.Dealloc)
	}
	expect("resizing of CQs", cq.Resize(16))
	expect("moderation of CQs", cq.Moderate(1, 0))
}

// concurrentPoster posts receives and sends on a queue pair, on several threads, while another thread ends the traffic.
type concurrentPoster struct {
	e            *testEnv
	stop         atomic.Bool
	wg           sync.WaitGroup
	recvs, sends atomic.Int64 // number of accepted requests; their IDs count from 0
}

// startPoster starts two threads that post on a side of p. A thread ends when its post is rejected.
func startPoster(e *testEnv, p *pair, side, most int) *concurrentPoster {
	x := &concurrentPoster{e: e}
	thread := func(taken *atomic.Int64, post func(id uint64) (int, error)) {
		x.wg.Go(func() {
			for i := range most {
				if x.stop.Load() {
					return
				}
				n, err := post(uint64(i))
				if n == 0 {
					if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOMEM) {
						e.Errorf("post: %d taken, %v", n, err)
					}
					return
				}
				taken.Add(1)
				runtime.Gosched() // the thread that ends the traffic needs a processor
			}
		})
	}
	thread(&x.recvs, func(id uint64) (int, error) {
		return p.qps[side].PostRecv(ib.RecvWR{ID: id, SGList: p.buf[side].newSGL(0, 8)})
	})
	thread(&x.sends, func(id uint64) (int, error) { // the peer has no receives
		return p.qps[side].PostSend(ib.SendWR{ID: 1<<32 | id, Opcode: ib.WRSend, Flags: ib.SendSignaled,
			SGList: p.buf[side].newSGL(0, 8)})
	})
	return x
}

// waitPostedRequestsFlushed waits for the threads, and for a flush of all accepted requests.
func (x *concurrentPoster) waitPostedRequestsFlushed(cq *ib.CQ, when string) {
	e := x.e
	e.Helper()
	x.stop.Store(true)
	x.wg.Wait()
	var next [2]int64
	want := [2]int64{x.recvs.Load(), x.sends.Load()}
	wc := make([]ib.WC, 8)
	for w := e.newWaitLimit(); next != want; {
		n, err := cq.Poll(wc)
		e.must("poll", err)
		for _, c := range wc[:n] {
			kind := c.ID >> 32
			if kind > 1 || c.ID&0xffffffff != uint64(next[kind]) || c.Status != ib.WCWRFlushErr {
				e.Fatalf("requests posted %s: work request %#x has completed with %q, want a flush error of %#x",
					when, c.ID, c.Status, kind<<32|uint64(next[min(kind, 1)]))
			}
			next[kind]++
		}
		if n > 0 {
			w = e.newWaitLimit()
		} else if w.yieldAndCheckOver() {
			e.Fatalf("waited %v: of %d receives and %d sends posted %s, only %d and %d have completed",
				e.cfg.timeout, want[0], want[1], when, next[0], next[1])
		}
	}
}

func testPostDuringModifyToErr(e *testEnv) {
	pd := e.newPD()
	for i := range 20 * e.cfg.load {
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, entries: 4 * e.queueLen})
		x := startPoster(e, p, 0, e.queueLen)
		for x.recvs.Load() < int64(i%10) && int(x.sends.Load()) < e.queueLen {
			runtime.Gosched()
		}
		err := p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
		x.waitPostedRequestsFlushed(p.cqs[0], "while the queue pair went to ERR")
		e.must("modify to ERR", err)
		e.destroy(p.qps[0])
		e.destroy(p.qps[1])
		e.destroy(p.cqs[0])
		e.destroy(p.cqs[1])
	}
}

func testResponderErrorEvents(e *testEnv) {
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	pd := e.newPD()
	for _, c := range []struct {
		what    string
		enabled ib.AccessFlags
		wr      func(p *pair) ib.SendWR
		need    bool
		want    []ib.EventType // one of these is expected; empty: none
	}{
		{"SEND that is longer than its receive, which completes", remote, func(p *pair) ib.SendWR {
			p.postRecv(1, 1, 0, 4)
			return ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)}
		}, true, nil},
		{"write with a wrong key", remote, func(p *pair) ib.SendWR {
			wr := p.newRDMARequest(1, ib.WRRDMAWrite, p.buf[0].newSGL(0, 8), 0)
			wr.RKey += 0x12345600
			return wr
		}, true, []ib.EventType{ib.EventQPAccessErr}},
		{"write to a queue pair that does not allow it", 0, func(p *pair) ib.SendWR {
			return p.newRDMARequest(1, ib.WRRDMAWrite, p.buf[0].newSGL(0, 8), 0)
		}, true, []ib.EventType{ib.EventQPReqErr}},
		{"atomic that is not aligned", remote, func(p *pair) ib.SendWR {
			return p.newRDMARequest(1, ib.WRAtomicFetchAdd, p.buf[0].newSGL(0, 8), 4)
		}, a.AtomicCap != ib.AtomicNone, []ib.EventType{ib.EventQPReqErr}},
	} {
		if !c.need {
			continue
		}
		var mu sync.Mutex
		got := map[*ib.QP][]ib.EventType{}
		p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd, event: func(qp *ib.QP, ev ib.EventType) {
			mu.Lock()
			defer mu.Unlock()
			if ev != ib.EventCommEst {
				got[qp] = append(got[qp], ev)
			}
		}})
		e.must("modify", p.qps[1].Modify(ib.QPAttr{AccessFlags: c.enabled}, ib.QPAttrAccessFlags))
		if n, err := p.qps[0].PostSend(c.wr(p)); n == 0 {
			e.wantErrno(c.what, err, syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENOSYS)
			continue
		}
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status == ib.WCSuccess {
			e.Errorf("%s: completed with %q", c.what, wc.Status)
		}
		events := func(side int) []ib.EventType {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(got[p.qps[side]])
		}
		if len(c.want) == 0 {
			e.waitOneCompletion(p.cqs[1], 1, ib.WCLocLenErr)
		} else {
			e.eventually(fmt.Sprintf("%s: an event of the responder's queue pair (%v)", c.what, c.want),
				func() bool { return len(events(1)) > 0 })
		}
		e.awaitDueCallbacks()
		if ev := events(1); len(ev) != min(len(c.want), 1) || len(ev) > 0 && !slices.Contains(c.want, ev[0]) {
			e.Errorf("%s: events of the responder's queue pair: %v, want one of %v", c.what, ev, c.want)
		}
		if ev := events(0); len(ev) != 0 {
			e.Errorf("%s: events of the requester's queue pair: %v, want none: it has a completion", c.what, ev)
		}
	}
}
