package ibtest

import (
	"fmt"

	"verbena/ib"
)

// State changes of a queue pair that its consumer has not requested.

var failedStateChecks = []ruleTest{
	{
		name: "QueuePair/QueryFailed",
		rule: "Query shows the present state, as State does, also when a failure, or an error of the device, has changed it",
		test: testQueryAfterFailure,
	},
}

func testQueryAfterFailure(e *testEnv) {
	pd := e.newPD()
	for _, kind := range queuePairTypes {
		p := e.newPairIfSupported(kind, pd)
		if p == nil {
			continue
		}
		what := func(s string) string { return fmt.Sprintf("%v queue pair, %s", kind, s) }
		send := ib.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8)}
		if kind == ib.QPTypeUD {
			send = p.newDatagramRequest(1, e.newAH(pd), 8)
		}
		for _, qp := range p.qps {
			e.wantQPState(what("connected"), qp, ib.QPRTS)
		}
		send.SGList[0].LKey += 0x12345600
		for range 2 {
			p.postSendWR(0, send)
			if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status == ib.WCSuccess {
				e.Fatalf("%s: %q", what("SEND by a wrong local key"), wc.Status)
			}
			if kind == ib.QPTypeRC {
				e.wantQPState(what("after a SEND by a wrong local key"), p.qps[0], ib.QPErr)
				p.reconnect()
				e.wantQPState(what("connected again"), p.qps[0], ib.QPRTS)
				continue
			}
			e.eventually(what("an error state"), func() bool { return p.qps[0].State() != ib.QPRTS })
			e.wantQPState(what("after a SEND by a wrong local key"), p.qps[0], ib.QPSQE)
			e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
			e.wantQPState(what("from SQE to RTS"), p.qps[0], ib.QPRTS)
		}
		if kind == ib.QPTypeRC { // the responder, too
			for range 2 {
				p.postRecv(1, 1, 0, 7)
				p.postSend(0, 2, 8)
				e.waitOneCompletion(p.cqs[0], 2, ib.WCRemInvReqErr)
				for side, qp := range p.qps {
					e.wantQPState(what(fmt.Sprintf("side %d of a SEND that was too long", side)), qp, ib.QPErr)
				}
				p.reconnect()
			}
		}
		e.must("modify to ERR", p.qps[0].Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState))
		e.wantQPState(what("modified to ERR"), p.qps[0], ib.QPErr)
	}
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
	p.postSend(0, 1, 8) // in flight
	e.handle.SetError()
	for side, qp := range p.qps {
		state := qp.State()
		a, _, err := qp.Query(ib.QPAttrState)
		if now := qp.State(); err != nil || a.State != state && a.State != now {
			e.Errorf("side %d when the device is in error: Query shows state %v (%v), State %v and then %v", side, a.State, err,
				state, now)
		}
	}
}
