package ibtest

import (
	"errors"
	"syscall"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/umem"
)

var namedChecks = []ruleTest{
	{
		name: "Errors/DestroyedNamed",
		rule: "a work request that names a destroyed address handle, window or region is refused, or fails if the object is destroyed while " +
			"the request waits; the other objects that it names are free",
		test: testDestroyedNamed,
	},
}

func testDestroyedNamed(e *env) {
	e.allow(check.RuleUseAfterDestroy)
	e.allow(check.RuleInFlight) // the request waits
	e.datagramToDestroyed()
	p := e.pair(pairConfig{kind: ib.QPTypeRC})
	for _, n := range []struct {
		name string
		make func(p *pair) *named
	}{
		{"bind of a window that is destroyed", boundWindow},
		{"bind to a region that is destroyed", boundRegion},
		{"registration of a region that is destroyed", registeredRegion},
	} {
		o := n.make(p)
		if o == nil {
			continue
		}
		e.destroy(o.gone)
		if k, err := p.qps[0].PostSend(o.wr); k != 0 {
			e.Errorf("%s: the work request was taken", n.name)
			e.waitAny(p.cqs[0])
		} else {
			e.wantErr(n.name, err, syscall.EINVAL)
		}
		o.free(n.name)

		// The request waits while the object is destroyed.
		if !p.hold() {
			continue
		}
		o = n.make(p)
		p.post(0, o.wr)
		e.destroy(o.gone)
		e.must("modify to RTS", p.qps[0].Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState))
		if wc := e.waitAny(p.cqs[0]); wc.Status == ib.WCSuccess {
			e.Errorf("%s while the work request waits: completed with success", n.name)
		}
		o.free(n.name + " while the work request waits")
		p.again()
	}
	p.exchange(0, 1, 8)
}

// datagramToDestroyed posts a datagram with a destroyed address handle.
func (e *env) datagramToDestroyed() {
	p := e.tryPair(ib.QPTypeUD, e.pd())
	if p == nil {
		return
	}
	a := e.address()
	ah, err := p.pd.CreateAH(&a)
	e.must("create address handle", err)
	e.must("destroy address handle", ah.Destroy())
	p.recv(1, 1, 0, 64)
	if n, err := p.qps[0].PostSend(p.datagram(1, ah, 8)); n != 0 {
		e.Error("a datagram with a destroyed address handle was taken")
	} else {
		e.wantErr("post a datagram with a destroyed address handle", err, syscall.EINVAL)
	}
}

// named is a work request and the object that is destroyed before its execution.
type named struct {
	e    *env
	wr   ib.SendWR
	gone any
	rest []any // the other objects
}

// free destroys the other objects.
func (n *named) free(what string) {
	n.e.Helper()
	for _, o := range n.rest {
		if err := n.e.tryDestroy(o); err != nil {
			n.e.Fatalf("%s: destroy %T: %v", what, o, err)
		}
	}
}

func boundWindow(p *pair) *named {
	mw, err := p.pd.AllocMW(ib.MWType2)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	p.e.must("alloc mw", err)
	own(p.e, mw, mw.Dealloc)
	b := p.e.buffer(p.pd, 64, allAccess)
	return &named{e: p.e, gone: mw, rest: []any{b.mr},
		wr: ib.SendWR{ID: 9, Opcode: ib.WRBindMW, Flags: ib.SendSignaled, Bind: &ib.BindMW{
			MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: b.addr, Length: 64, Access: ib.AccessRemoteWrite,
		}}}
}

func boundRegion(p *pair) *named {
	n := boundWindow(p)
	if n != nil {
		n.gone, n.rest = n.rest[0], []any{n.gone}
	}
	return n
}

func registeredRegion(p *pair) *named {
	mr, err := p.pd.AllocMR(1)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	p.e.must("alloc mr", err)
	own(p.e, mr, mr.Dereg)
	_, addr := p.e.memory(64)
	p.e.must("map", mr.Map(p.e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, addr))
	mr.UpdateKey(1)
	return &named{e: p.e, gone: mr, wr: ib.SendWR{ID: 9, Opcode: ib.WRRegMR, Flags: ib.SendSignaled,
		Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}}}
}
