package ibtest

import (
	"bytes"
	"fmt"

	"verbena/ib"
	"verbena/umem"
)

// Failed invalidations and binds, which must not change regions and windows.

var rejectedMemoryChecks = []ruleTest{
	{
		name: "FastReg/InvalidateRefused",
		rule: "an invalidation that is refused, and one of a SEND that fails, or has yet to be received, leaves the region as it was",
		test: testRegionInvalidateRejected,
	},
	{
		name: "MW/InvalidateRefused",
		rule: "an invalidation that is refused, and one of a SEND that fails, leaves the window as it was",
		test: testWindowInvalidateRejected,
	},
	{
		name: "MW/BindRefused",
		rule: "a bind that is refused leaves the window as it was, or not bound, and its region free",
		test: testBindRejected,
	},
}

// unaffectedKey is a key that failed invalidations must not change.
type unaffectedKey struct {
	e    *testEnv
	p    *pair // its side 1 has created the key
	what string
	key  func() uint32
	addr uint64
	b    []byte // the memory at addr
	seed int
}

// checkKeyWorks checks that an RDMA WRITE of p with the key succeeds.
func (k *unaffectedKey) checkKeyWorks(when string) {
	e, p := k.e, k.p
	e.Helper()
	k.seed++
	fillPattern(p.buf[0].b[:8], k.seed)
	p.wantWriteStatus(fmt.Sprintf("write by %s, %s", k.what, when), k.addr, k.key(), ib.WCSuccess)
	if !bytes.Equal(k.b[:8], p.buf[0].b[:8]) {
		e.Fatalf("write by %s, %s: the data are not where they should be", k.what, when)
	}
}

// checkKeyWorksOrFails is works for a key that may have become invalid; then the write must complete with the status
// invalid.
func (k *unaffectedKey) checkKeyWorksOrFails(when string, invalid ib.WCStatus) {
	e, p := k.e, k.p
	e.Helper()
	k.seed++
	fillPattern(p.buf[0].b[:8], k.seed)
	before := bytes.Clone(k.b[:8])
	got := p.writeAndWait(k.addr, k.key())
	want := p.buf[0].b[:8]
	if got == invalid {
		want = before
		p.reconnect()
	}
	if got != ib.WCSuccess && got != invalid || !bytes.Equal(k.b[:8], want) {
		e.Fatalf("write by %s, %s: %q, memory changed: %v", k.what, when, got, !bytes.Equal(k.b[:8], before))
	}
}

// checkFailingInvalidate makes a SEND with invalidate of a pair fail, and checks the key. unanswered means that the
// responder may not respond, so the sender has to time out (class J of IBA 9.9.6.3).
func (k *unaffectedKey) checkFailingInvalidate(how string, of *pair, key uint32, recv []ib.SGE, n int,
	unanswered bool) {
	e := k.e
	e.Helper()
	timeout, retries := e.connector.ackTimeout, e.connector.retries
	if unanswered {
		e.connector.ackTimeout, e.connector.retries = 12, 1 // 17 ms
	}
	of.reconnect()
	if taken, err := of.qps[1].PostRecv(ib.RecvWR{ID: 1, SGList: recv}); taken != 1 {
		e.Fatalf("post receive: %v", err)
	}
	of.postSendWR(0, ib.SendWR{ID: 2, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: of.buf[0].newSGL(0, n),
		InvalidateRKey: key})
	what := fmt.Sprintf("SEND with invalidate of %s, %s", k.what, how)
	for _, side := range []int{1, 0} {
		if wc := e.waitAnyCompletion(of.cqs[side]); wc.Status == ib.WCSuccess {
			e.Fatalf("%s: side %d completed with %q", what, side, wc.Status)
		}
	}
	e.connector.ackTimeout, e.connector.retries = timeout, retries
	of.reconnect()
	k.checkKeyWorks("after a " + what)
}

// checkAllFailures makes SENDs with invalidate fail in each way. The queue pairs in others may not invalidate
// the key.
func (k *unaffectedKey) checkAllFailures(others map[string]*pair) {
	e, p := k.e, k.p
	e.Helper()
	readOnly := e.newBuffer(p.pd, pairBufferLen, ib.AccessRemoteRead)
	room := p.buf[1]
	k.checkKeyWorks("at first")
	for _, n := range []int{9, 100, 5000, 2*5000 + 1} {
		k.checkFailingInvalidate(fmt.Sprintf("of %d bytes, too long for the receive of %d", n, n-1), p, k.key(),
			room.newSGL(0, n-1),
			n, false)
	}
	if e.recvSGE > 1 {
		k.checkFailingInvalidate("too long for a receive of two elements", p, k.key(), []ib.SGE{room.newSGE(0, 8),
			room.newSGE(64, 8)},
			17, false)
	}
	k.checkFailingInvalidate("to a receive of no bytes", p, k.key(), nil, 8, false)
	bad := room.newSGE(0, 64)
	bad.LKey += 0x12345600
	k.checkFailingInvalidate("to a receive with a wrong key", p, k.key(), []ib.SGE{bad}, 8, false)
	k.checkFailingInvalidate("to a receive in memory that is read-only", p, k.key(), readOnly.newSGL(0, 64), 8, false)
	k.checkFailingInvalidate("by a key that differs in its low bits", p, k.key()^1, room.newSGL(0, 64), 8, true)
	for who, of := range others {
		k.checkFailingInvalidate("by "+who, of, k.key(), of.buf[1].newSGL(0, 64), 8, true)
	}
	for who, of := range others {
		k.checkFailingLocalInvalidate("by "+who, of, k.key())
	}
	k.checkFailingLocalInvalidate("by a key that differs in its low bits", p, k.key()^1)
}

func (k *unaffectedKey) checkFailingLocalInvalidate(how string, of *pair, key uint32) {
	e := k.e
	e.Helper()
	of.postSendWR(1, ib.SendWR{ID: 3, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: key})
	if wc := e.waitAnyCompletion(of.cqs[1]); wc.Status == ib.WCSuccess {
		e.Fatalf("local invalidation of %s %s: completed with %q", k.what, how, wc.Status)
	}
	of.reconnect()
	k.checkKeyWorks("after a local invalidation " + how)
}

// checkKeyCanBeInvalidated checks that the key can still be invalidated.
func (k *unaffectedKey) checkKeyCanBeInvalidated() {
	e, p := k.e, k.p
	e.Helper()
	p.postRecv(1, 1, 0, 8)
	p.postSendWR(0, ib.SendWR{ID: 2, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: p.buf[0].newSGL(0, 8),
		InvalidateRKey: k.key()})
	e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess)
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	p.wantWriteStatus(fmt.Sprintf("write by %s that was invalidated", k.what), k.addr, k.key(), ib.WCRemAccessErr)
}

func testRegionInvalidateRejected(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mr, err := p.pd.AllocMR(2)
	e.requireFeature("fast registration", err)
	destroyAtEnd(e, mr, mr.Dereg)
	b, addr := e.newMemory(64)
	const iova = 0x400000
	e.must("map", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, iova))
	mr.UpdateKey(5)
	p.postSendWR(1, ib.SendWR{ID: 1, Opcode: ib.WRRegMR, Flags: ib.SendSignaled,
		Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: allAccess &^ ib.AccessMWBind}})
	e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	k := &unaffectedKey{e: e, p: p, what: "a region", key: mr.RKey, addr: iova + 8, b: b[8:]}
	k.checkAllFailures(map[string]*pair{"a queue pair of another domain": e.newPair(pairConfig{kind: ib.QPTypeRC})})
	// Another queue pair of the domain may invalidate it, but only once it has a receive.
	other := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: p.pd})
	other.postSendWR(0, ib.SendWR{
		ID: 2, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: other.buf[0].newSGL(0, 8), InvalidateRKey: mr.RKey(),
	})
	e.awaitDueCallbacks()
	k.checkKeyWorks("while a SEND with invalidate waits for a receive")
	other.reconnect()
	k.checkKeyWorks("after a SEND with invalidate that has found no receive")
	k.checkKeyCanBeInvalidated()
}

func testWindowInvalidateRejected(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mw := e.newMW(p.pd, ib.MWType2)
	target := e.newBuffer(p.pd, 64, allAccess)
	p.bindAndWait(ib.BindMW{MW: mw, MR: target.mr, RKey: ib.IncRKey(mw.RKey()), Addr: target.addr, Length: 64,
		Access: ib.AccessRemoteWrite},
		ib.WCSuccess)
	k := &unaffectedKey{e: e, p: p, what: "a window", key: mw.RKey, addr: target.addr + 8, b: target.b[8:]}
	k.checkAllFailures(map[string]*pair{
		"a queue pair that has not bound it": e.newPair(pairConfig{kind: ib.QPTypeRC, pd: p.pd}),
		"a queue pair of another domain":     e.newPair(pairConfig{kind: ib.QPTypeRC}),
	})
	k.checkKeyCanBeInvalidated()
	if err := e.tryDestroy(target.mr); err != nil {
		e.Fatalf("deregister a region after its window was invalidated: %v", err)
	}
}

// invalidBind is a bind that drivers must reject, or may reject.
type invalidBind struct {
	what   string
	access ib.AccessFlags // rights of the region
	alien  bool           // the region belongs to another domain
	bind   func(b *ib.BindMW)
	only   ib.MWType // 0: both
	may    bool      // some drivers accept it
}

var invalidBinds = []invalidBind{
	{what: "a region without the right to be bound", access: allAccess &^ ib.AccessMWBind},
	{what: "the right to write, to a region without local write", access: ib.AccessRemoteRead | ib.AccessMWBind},
	{what: "the right to atomics, to a region without local write", access: ib.AccessRemoteRead | ib.AccessMWBind,
		bind: func(b *ib.BindMW) { b.Access = ib.AccessRemoteAtomic }},
	{what: "a region of another domain", alien: true},
	{what: "a range that ends behind the region", bind: func(b *ib.BindMW) { b.Addr++ }},
	{what: "a range that begins before the region", bind: func(b *ib.BindMW) { b.Addr-- }},
	{what: "a range outside of the region", bind: func(b *ib.BindMW) { b.Addr += 1 << 20 }},
	{what: "a range that is longer than the region", bind: func(b *ib.BindMW) { b.Length++ }},
	{what: "a range that wraps", bind: func(b *ib.BindMW) { b.Addr += 8; b.Length = -8 & (1<<64 - 1) }},
	{what: "local rights", may: true, bind: func(b *ib.BindMW) { b.Access |= ib.AccessLocalWrite }},
	{what: "the right to bind", may: true, bind: func(b *ib.BindMW) { b.Access |= ib.AccessMWBind }},
	{what: "a right to flush", may: true, bind: func(b *ib.BindMW) { b.Access |= ib.AccessFlushPersistent }},
	{what: "on-demand paging", may: true, bind: func(b *ib.BindMW) { b.Access |= ib.AccessOnDemand }},
	{what: "zero-based addresses", only: ib.MWType1, may: true,
		bind: func(b *ib.BindMW) { b.Access |= ib.AccessZeroBased }},
	{what: "no bytes", only: ib.MWType2, may: true, bind: func(b *ib.BindMW) { b.Length = 0 }},
	{what: "the key that it has", may: true, bind: func(b *ib.BindMW) { b.RKey = b.MW.RKey() }},
}

func testBindRejected(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	other := e.newPair(pairConfig{kind: ib.QPTypeRC})
	e.destroy(e.newMW(p.pd, ib.MWType2))
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		for _, bad := range invalidBinds {
			for _, bound := range []bool{false, true} {
				if bad.only == 0 || bad.only == kind {
					bad.checkBindRejected(e, p, other, kind, bound)
				}
			}
		}
	}
}

// checkBindRejected binds a window on p's side 1. bound means that the window is already bound to another region. other
// belongs to another domain.
func (c *invalidBind) checkBindRejected(e *testEnv, p, other *pair, kind ib.MWType, bound bool) {
	e.Helper()
	what := fmt.Sprintf("bind of a type %d window, bound: %v, to %s", kind, bound, c.what)
	const n = 64
	mw, old := e.newMW(p.pd, kind), e.newBuffer(p.pd, n, allAccess)
	pd, access := p.pd, c.access
	if c.alien {
		pd = other.pd
	}
	if access == 0 {
		access = allAccess
	}
	target := e.newBuffer(pd, n, access)
	bindTo := func(b *registeredBuffer) ib.BindMW {
		return ib.BindMW{MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: b.addr, Length: n, Access: ib.AccessRemoteWrite}
	}
	if bound {
		p.bindAndWait(bindTo(old), ib.WCSuccess)
	}
	k := &unaffectedKey{e: e, p: p, what: "the window", key: mw.RKey, addr: old.addr, b: old.b}
	key, b := mw.RKey(), bindTo(target)
	if c.bind != nil {
		c.bind(&b)
	}
	refused := true
	if taken, _ := p.qps[1].PostSend(ib.SendWR{ID: 1, Opcode: ib.WRBindMW, Flags: ib.SendSignaled, Bind: &b}); taken == 1 {
		wc := e.waitAnyCompletion(p.cqs[1])
		if refused = wc.Status != ib.WCSuccess; refused {
			p.reconnect()
		}
	}
	switch {
	case !refused && !c.may:
		e.Fatalf("%s: was done", what)
	case refused && mw.RKey() != key:
		e.Fatalf("%s: was refused, and the key is %#x, want %#x, which it was", what, mw.RKey(), key)
	case refused && bound:
		k.checkKeyWorksOrFails("after a "+what, ib.WCRemAccessErr)
	}
	if refused {
		if err := e.tryDestroy(target.mr); err != nil {
			e.Fatalf("%s: was refused, and the region cannot be deregistered: %v", what, err)
		}
		if !bound { // the window can still be bound
			p.bindAndWait(bindTo(old), ib.WCSuccess)
			k.checkKeyWorks("bound after a " + what)
		}
	}
	e.destroy(mw)
	if err := e.tryDestroy(old.mr); err != nil {
		e.Fatalf("%s: the window is gone, and the region cannot be deregistered: %v", what, err)
	}
	if !refused {
		e.destroy(target.mr)
	}
}
