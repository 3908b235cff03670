package ibtest

import (
	"fmt"
	"syscall"

	"verbena/ib"
)

// The end of the bindings of a queue pair.

var windowChecks = []ruleTest{
	{
		name: "MW/QueuePairDestroyed",
		rule: "with its queue pair a type 2 window is unbound: its key gives nothing, its region is free, and it can be bound again; others stay",
		test: testWindowOfDestroyedQP,
	},
}

func testWindowOfDestroyedQP(e *testEnv) {
	pd := e.newPD()
	p := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})     // remains
	probe := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd}) // is reset after a failed write
	bind := func(q *pair, mw *ib.MW, target *registeredBuffer) uint32 {
		e.Helper()
		q.bindAndWait(ib.BindMW{MW: mw, MR: target.mr, RKey: ib.IncRKey(mw.RKey()), Addr: target.addr, Length: 64,
			Access: ib.AccessRemoteWrite},
			ib.WCSuccess)
		return mw.RKey()
	}
	for _, c := range []struct {
		how   string
		state ib.QPState // state at its destruction
		again bool       // the window was bound, invalidated and bound again
	}{{"in RTS", ib.QPRTS, false}, {"in RTS, bound twice", ib.QPRTS, true}, {"in ERR", ib.QPErr, false},
		{"in RESET", ib.QPReset, false}} {
		what := func(s string) string { return fmt.Sprintf("%s, whose queue pair was destroyed %s", s, c.how) }
		target, shared := e.newBuffer(pd, 64, allAccess), e.newBuffer(pd, 64, allAccess)
		q := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: pd})
		mw, onShared, of1, others := e.newMW(pd, ib.MWType2), e.newMW(pd, ib.MWType2), e.newMW(pd, ib.MWType1), e.newMW(pd,
			ib.MWType2)
		if c.again {
			q.postSendWR(1, ib.SendWR{ID: 5, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: bind(q, mw, target)})
			e.waitOneCompletion(q.cqs[1], 5, ib.WCSuccess)
		}
		dead, deadShared := bind(q, mw, target), bind(q, onShared, shared)
		alive1, alive2 := bind(q, of1, shared), bind(p, others, shared)
		q.wantWriteStatus("write by the window", target.addr, dead, ib.WCSuccess)
		if c.state != ib.QPRTS {
			e.must("modify", q.qps[1].Modify(ib.QPAttr{State: c.state}, ib.QPAttrState))
		}
		e.destroy(q.qps[1])

		probe.wantWriteStatus(what("write by a window"), target.addr, dead, ib.WCRemAccessErr)
		probe.wantWriteStatus(what("write by a second window"), shared.addr, deadShared, ib.WCRemAccessErr)
		p.wantWriteStatus(what("write by a type 1 window"), shared.addr, alive1, ib.WCSuccess)
		p.wantWriteStatus("write by the window of another queue pair", shared.addr, alive2, ib.WCSuccess)
		if err := e.tryDestroy(target.mr); err != nil {
			e.Fatalf("%s: %v", what("deregister the region of a window"), err)
		}
		e.wantErrno("deregister a region with bound windows", shared.mr.Dereg(), syscall.EBUSY, syscall.EINVAL)
		if err := p.rebindType2Window(mw, shared); err != ib.WCSuccess {
			e.Fatalf("%s: %q", what("bind a window"), err)
		}
		p.wantWriteStatus("write by the window that was bound again", shared.addr, mw.RKey(), ib.WCSuccess)
		probe.wantWriteStatus("write by its former key", shared.addr, dead, ib.WCRemAccessErr)
		for _, w := range []*ib.MW{mw, onShared, of1, others} {
			e.destroy(w)
		}
		if err := e.tryDestroy(shared.mr); err != nil {
			e.Fatalf("deregister a region after the destruction of its windows: %v", err)
		}
		e.destroy(q.qps[0])
	}
}

// rebindType2Window binds a window of type 2 on side 1, and returns the status.
func (p *pair) rebindType2Window(mw *ib.MW, target *registeredBuffer) ib.WCStatus {
	p.e.Helper()
	p.postSendWR(1, ib.SendWR{ID: 6, Opcode: ib.WRBindMW, Flags: ib.SendSignaled, Bind: &ib.BindMW{
		MW: mw, MR: target.mr, RKey: ib.IncRKey(mw.RKey()), Addr: target.addr, Length: 64, Access: ib.AccessRemoteWrite}})
	return p.e.waitAnyCompletion(p.cqs[1]).Status
}
