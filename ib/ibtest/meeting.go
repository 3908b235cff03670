package ibtest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
)

// Point 2, for calls that begin on several threads at the same time.

var meetingChecks = []ruleTest{
	{
		name: "Reentrant/AttachMcast",
		rule: "of several threads that add a queue pair to a group, or remove it, one succeeds; all members may leave at once",
		test: testConcurrentAttach, fast: true,
	},
	{
		name: "Reentrant/ModifyAH",
		rule: "during the Modify of an address handle, Query returns the old or the new address",
		test: testQueryDuringModifyAH, fast: true,
	},
	{
		name: "Reentrant/SendMeetsReceive",
		rule: "a request and the receive that it needs, posted at the same time, both complete without another call",
		test: testSendMeetsReceive, fast: true,
	},
	{
		name: "Reentrant/PostMeetsERR",
		rule: "a request that is posted while another thread moves the queue pair to ERR is flushed",
		test: testPostMeetsERR, fast: true,
	},
}

// meetingRounds returns the number of rounds of a check.
func (e *testEnv) meetingRounds() int { return 100 * e.cfg.load }

// meet calls f on n threads at the same time, and returns the errors.
func meet(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var ready atomic.Int32
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for ready.Add(1); int(ready.Load()) < n; {
				yieldBriefly()
			}
			errs[i] = f(i)
		})
	}
	wg.Wait()
	return errs
}

func testConcurrentAttach(e *testEnv) {
	const threads = 3
	group := e.mcastAddressFunc()
	if group == nil {
		e.Skip("the driver has no multicast")
	}
	pd := e.newPD()
	var members []*groupMember
	for range min(threads, e.deviceAttr().MaxMcastQPAttach) {
		members = append(members, e.newGroupMember(pd))
	}
	// one fails the test unless one of the calls has succeeded, and the others have failed with EINVAL.
	one := func(what string, errs []error) {
		e.Helper()
		succeeded := 0
		for _, err := range errs {
			if err == nil {
				succeeded++
			} else {
				e.wantErrno(what, err, syscall.EINVAL)
			}
		}
		if succeeded != 1 {
			e.Fatalf("%s on %d threads: %d succeeded, want 1", what, len(errs), succeeded)
		}
	}
	for range e.meetingRounds() {
		qp := members[0].qp
		one("attach one queue pair", meet(threads, func(int) error { return qp.AttachMcast(group(0), 0) }))
		one("detach one queue pair", meet(threads, func(int) error { return qp.DetachMcast(group(0), 0) }))
		e.must("attach different queue pairs", errors.Join(meet(len(members), func(i int) error {
			return members[i].qp.AttachMcast(group(0), 0)
		})...))
		e.must("detach different queue pairs", errors.Join(meet(len(members), func(i int) error {
			return members[i].qp.DetachMcast(group(0), 0)
		})...))
	}
}

func testQueryDuringModifyAH(e *testEnv) {
	pd := e.newPD()
	ah := e.newAH(pd)
	attrs := [2]ib.AHAttr{e.connector.ownAddress(), e.connector.ownAddress()}
	attrs[1].SL, attrs[1].GRH.FlowLabel = attrs[0].SL^1, attrs[0].GRH.FlowLabel^0x3a5a5
	attrs[1].GRH.TrafficClass, attrs[1].GRH.HopLimit = attrs[0].GRH.TrafficClass^0x24, attrs[0].GRH.HopLimit^3
	for i := range attrs { // as the driver reports the attributes
		e.requireFeature("AH.Modify", ah.Modify(&attrs[i]))
		var err error
		attrs[i], err = ah.Query()
		e.requireFeature("AH.Query", err)
	}
	for round := range e.meetingRounds() {
		e.must("modify and query at once", errors.Join(meet(3, func(i int) error {
			if i == 0 {
				return ah.Modify(&attrs[round%2])
			}
			for range 4 {
				got, err := ah.Query()
				if err != nil {
					return err
				}
				if got != attrs[0] && got != attrs[1] {
					return fmt.Errorf("query during a Modify: got %+v, want %+v or %+v", got, attrs[0], attrs[1])
				}
			}
			return nil
		})...))
	}
}

func testSendMeetsReceive(e *testEnv) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeSRD} {
		if !e.supportsType(kind) {
			continue
		}
		p := e.newPair(pairConfig{kind: kind})
		wr := ib.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)}
		if kind == ib.QPTypeSRD {
			wr = p.newDatagramRequest(0, e.newAH(p.pd), 8)
		}
		for id := range uint64(e.meetingRounds()) {
			wr.ID = id
			e.must("post a request and its receive at once", errors.Join(meet(2, func(i int) error {
				if i == 0 {
					return errorOf(p.qps[0].PostSend(wr))
				}
				return errorOf(p.qps[1].PostRecv(ib.RecvWR{ID: id, SGList: p.buf[1].newSGL(0, 64)}))
			})...))
			e.waitOneCompletion(p.cqs[0], id, ib.WCSuccess)
			e.waitOneCompletion(p.cqs[1], id, ib.WCSuccess)
		}
	}
}

func testPostMeetsERR(e *testEnv) {
	pd, cq := e.newPD(), e.newCQ(8, nil)
	buf := e.newBuffer(pd, 8, allAccess)
	var qps [2]*ib.QP // for receives, and for sends to itself, since a message may arrive after RESET
	for i := range qps {
		qps[i] = e.newQP(pd, ib.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC,
			Cap: ib.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}})
	}
	for i := range 2 * e.meetingRounds() {
		id, qp := uint64(i), qps[i%2]
		e.connector.moveQPUpTo(qp, qp.Num(), ib.QPRTS)
		e.must("modify to ERR and post", errors.Join(meet(2, func(thread int) (err error) {
			switch {
			case thread == 0:
				err = qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)
			case i%2 == 0:
				_, err = qp.PostRecv(ib.RecvWR{ID: id, SGList: buf.newSGL(0, 8)})
			default:
				_, err = qp.PostSend(ib.SendWR{ID: id, Opcode: ib.WRSend, SGList: buf.newSGL(0, 8)})
			}
			return err
		})...))
		e.waitOneCompletion(cq, id, ib.WCWRFlushErr)
		e.must("modify to RESET", qp.Modify(ib.QPAttr{State: ib.QPReset}, ib.QPAttrState))
	}
}
