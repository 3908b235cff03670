package ibtest

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/umem"
)

var destroyedObjectChecks = []ruleTest{
	{
		name: "Errors/DestroyedNamed",
		rule: "a work request that names a destroyed address handle, window or region is refused, or fails if the object is destroyed while " +
			"the request waits; the other objects that it names are free",
		test: testRequestNamesDestroyedObject,
	},
	{
		name: "Errors/MemoryEndsWhileWaiting",
		rule: "a request that waits while one of its regions is deregistered fails, and does not change the region's memory",
		test: testDeregWhileRequestWaits,
	},
}

func testRequestNamesDestroyedObject(e *testEnv) {
	e.allowViolation(check.RuleUseAfterDestroy)
	e.allowViolation(check.RuleInFlight) // the request waits
	postToDestroyedAH(e)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	for _, n := range []struct {
		name string
		make func(p *pair) *requestWithObject
	}{
		{"bind of a window that is destroyed", newWindowBindRequest},
		{"bind to a region that is destroyed", newRegionBindRequest},
		{"registration of a region that is destroyed", newRegMRRequest},
	} {
		o := n.make(p)
		if o == nil {
			continue
		}
		e.destroy(o.gone)
		if k, err := p.qps[0].PostSend(o.wr); k != 0 {
			e.Errorf("%s: the work request was taken", n.name)
			e.waitAnyCompletion(p.cqs[0])
		} else {
			e.wantErrno(n.name, err, syscall.EINVAL)
		}
		o.destroyOtherObjects(n.name)

		// The request waits while the object is destroyed.
		if !p.tryHoldInSQD() {
			continue
		}
		o = n.make(p)
		p.postSendWR(0, o.wr)
		e.destroy(o.gone)
		e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
		if wc := e.waitAnyCompletion(p.cqs[0]); wc.Status == ib.WCSuccess {
			e.Errorf("%s while the work request waits: completed with success", n.name)
		}
		o.destroyOtherObjects(n.name + " while the work request waits")
		p.reconnect()
	}
	p.exchangeMessage(0, 1, 8)
}

// postToDestroyedAH posts a datagram with a destroyed address handle.
func postToDestroyedAH(e *testEnv) {
	p := e.newPairIfSupported(ib.QPTypeUD, e.newPD())
	if p == nil {
		return
	}
	a := e.connector.ownAddress()
	ah, err := p.pd.CreateAH(&a)
	e.must("create address handle", err)
	e.must("destroy address handle", ah.Destroy())
	p.postRecv(1, 1, 0, 64)
	if n, err := p.qps[0].PostSend(p.newDatagramRequest(1, ah, 8)); n != 0 {
		e.Error("a datagram with a destroyed address handle was taken")
	} else {
		e.wantErrno("post a datagram with a destroyed address handle", err, syscall.EINVAL)
	}
}

// requestWithObject is a work request and the object that is destroyed before its execution.
type requestWithObject struct {
	e    *testEnv
	wr   ib.SendWR
	gone any
	rest []any // the other objects
}

// destroyOtherObjects destroys the other objects.
func (n *requestWithObject) destroyOtherObjects(what string) {
	n.e.Helper()
	for _, o := range n.rest {
		if err := n.e.tryDestroy(o); err != nil {
			n.e.Fatalf("%s: destroy %T: %v", what, o, err)
		}
	}
}

func newWindowBindRequest(p *pair) *requestWithObject {
	mw, err := p.pd.AllocMW(ib.MWType2)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	p.e.must("alloc mw", err)
	destroyAtEnd(p.e, mw, mw.Dealloc)
	b := p.e.newBuffer(p.pd, 64, allAccess)
	return &requestWithObject{e: p.e, gone: mw, rest: []any{b.mr},
		wr: ib.SendWR{ID: 9, Opcode: ib.WRBindMW, Flags: ib.SendSignaled, Bind: &ib.BindMW{
			MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: b.addr, Length: 64, Access: ib.AccessRemoteWrite,
		}}}
}

func newRegionBindRequest(p *pair) *requestWithObject {
	n := newWindowBindRequest(p)
	if n != nil {
		n.gone, n.rest = n.rest[0], []any{n.gone}
	}
	return n
}

func newRegMRRequest(p *pair) *requestWithObject {
	mr, err := p.pd.AllocMR(1)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	p.e.must("alloc mr", err)
	destroyAtEnd(p.e, mr, mr.Dereg)
	_, addr := p.e.newMemory(64)
	p.e.must("map", mr.Map(p.e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr))
	mr.UpdateKey(1)
	return &requestWithObject{e: p.e, gone: mr, wr: ib.SendWR{ID: 9, Opcode: ib.WRRegMR, Flags: ib.SendSignaled,
		Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}}}
}

// testDeregWhileRequestWaits deregisters each region that a request uses, while the request waits in SQD or for a
// receive.
func testDeregWhileRequestWaits(e *testEnv) {
	e.allowViolation(check.RuleInFlight)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	// The regions of a request.
	const (
		source = iota // or, for a READ, the destination at the requester
		target        // remote memory
		receive
	)
	for _, c := range []struct {
		op     ib.WROpcode
		region int
		status ib.WCStatus
	}{
		{ib.WRSend, source, ib.WCLocProtErr},
		{ib.WRSend, receive, ib.WCRemOpErr},
		{ib.WRSendWithImm, receive, ib.WCRemOpErr},
		{ib.WRRDMAWrite, source, ib.WCLocProtErr},
		{ib.WRRDMAWrite, target, ib.WCRemAccessErr},
		{ib.WRRDMAWriteWithImm, source, ib.WCLocProtErr},
		{ib.WRRDMAWriteWithImm, target, ib.WCRemAccessErr},
		{ib.WRRDMARead, source, ib.WCLocProtErr},
		{ib.WRRDMARead, target, ib.WCRemAccessErr},
		{ib.WRAtomicFetchAdd, source, ib.WCLocProtErr},
		{ib.WRAtomicFetchAdd, target, ib.WCRemAccessErr},
	} {
		for _, held := range []bool{true, false} {
			if !held && (c.op != ib.WRRDMAWriteWithImm || c.region != target) {
				continue // a driver may have read the data; the other requests need no receive
			}
			regions := [...]*registeredBuffer{e.newBuffer(p.pd, 8, allAccess), e.newBuffer(p.pd, 8, allAccess),
				e.newBuffer(p.pd, 8, allAccess)}
			gone := regions[c.region]
			what := fmt.Sprintf("opcode %v whose region %d of source, target, receive is deregistered, in SQD %v", c.op,
				c.region, held)
			wr := ib.SendWR{ID: 1, Opcode: c.op, Flags: ib.SendSignaled, SGList: regions[source].newSGL(0, 8),
				RemoteAddr: regions[target].addr, RKey: regions[target].mr.RKey(), CompareAdd: 1}
			recv := ib.RecvWR{ID: 2, SGList: regions[receive].newSGL(0, 8)}
			fillPattern(regions[source].b, 3)
			before := bytes.Clone(gone.b)
			if held && !p.tryHoldInSQD() {
				continue
			}
			if !p.postIfSupported(what, 0, wr) {
				p.reconnect()
				continue
			}
			if held {
				e.mustPostRecv(p.qps[1], recv)
			} else {
				e.awaitDueCallbacks() // the message has been refused for the lack of a receive
				copy(before, gone.b)
			}
			e.destroy(gone.mr)
			if held {
				e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
			} else {
				e.mustPostRecv(p.qps[1], recv)
			}
			if wc := e.waitAnyCompletion(p.cqs[0]); wc.ID != 1 || wc.Status != c.status {
				e.Errorf("%s: got completion of work request %d with %q, want 1 with %q", what, wc.ID, wc.Status, c.status)
			}
			p.reconnect()
			if !bytes.Equal(gone.b, before) {
				e.Errorf("%s: the region was written to: got %x, want %x", what, gone.b, before)
			}
		}
	}
	p.exchangeMessage(0, 1, 8)
}
