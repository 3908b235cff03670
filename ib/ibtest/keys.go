package ibtest

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// Keys that are not checked, and keys that may not be invalidated.

var keyChecks = []ruleTest{
	{
		name: "Data/ZeroLength",
		rule: "an RDMA READ or WRITE of no bytes needs no key and no address, with immediate data or without",
		test: testZeroLengthRDMA,
	},
	{
		name: "FastReg/BoundRegion",
		rule: "a region with a window bound to it is not invalidated, by its consumer or by a peer, and both go on working",
		test: testInvalidateBoundRegion,
	},
}

func testZeroLengthRDMA(e *testEnv) {
	pd, other := e.newPD(), e.newPD()
	gone := e.newBuffer(pd, 64, allAccess)
	alien, plain := e.newBuffer(other, 64, allAccess), e.newBuffer(pd, 64, ib.AccessLocalWrite)
	type place struct {
		what string
		addr uint64
		key  uint32
	}
	places := []place{
		{"no key", 0, 0},
		{"a key of nothing", 0x1000, 0x7fffff17},
		{"the last address", ^uint64(0), ^uint32(0)},
		{"the key of a region that is deregistered", gone.addr, gone.mr.RKey()},
		{"a key of another domain", alien.addr, alien.mr.RKey()},
		{"the local key of a region without the right", plain.addr, plain.mr.LKey()},
		{"an address outside the region", alien.addr - 1, alien.mr.RKey()},
	}
	e.destroy(gone.mr)
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		first := e.newPairIfSupported(kind, pd)
		if first == nil {
			continue
		}
		for _, o := range first.probeSupportedOperations() {
			switch o.wr.Opcode {
			case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead:
			default:
				continue
			}
			p := e.newPair(pairConfig{kind: kind, pd: pd})
			for i, at := range places {
				what := fmt.Sprintf("%v, %s of no bytes with %s", kind, o.what, at.what)
				wr := o.wr
				wr.ID, wr.SGList, wr.RemoteAddr, wr.RKey = uint64(i), nil, at.addr, at.key
				if i%2 == 1 {
					wr.SGList = p.buf[0].newSGL(8, 0)
				}
				if o.receives {
					p.postRecv(1, uint64(i), 0, 8)
				}
				p.postSendWR(0, wr)
				if wc := e.waitAnyCompletion(p.cqs[0]); wc.ID != uint64(i) || wc.Status != ib.WCSuccess {
					e.Fatalf("%s: completed with %q, want %q", what, wc.Status, ib.WCSuccess)
				}
				if !o.receives {
					continue
				}
				if wc := e.waitAnyCompletion(p.cqs[1]); wc.ID != uint64(i) || wc.Status != ib.WCSuccess || wc.ByteLen != 0 ||
					wc.Imm != wr.Imm {
					e.Fatalf("%s: the receive completed as %+v, want no bytes and immediate data %#x", what, wc, wr.Imm)
				}
			}
			p.exchangeMessage(0, 100, 8) // both queue pairs still work
		}
	}
}

// testInvalidateBoundRegion invalidates through a connection of its own, which fails.
func testInvalidateBoundRegion(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	other := e.newPair(pairConfig{kind: ib.QPTypeRC, pd: p.pd})
	mr, err := p.pd.AllocMR(2)
	e.requireFeature("fast registration", err)
	destroyAtEnd(e, mr, mr.Dereg)
	_, addr := e.newMemory(64)
	const iova = 0x300000
	register := func() {
		e.Helper()
		e.must("map", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 64}}, iova))
		mr.UpdateKey(uint8(mr.RKey()) + 1)
		p.postSendWR(1, ib.SendWR{ID: 1, Opcode: ib.WRRegMR, Flags: ib.SendSignaled,
			Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: allAccess}})
		e.waitOneCompletion(p.cqs[1], 1, ib.WCSuccess)
	}
	invalidate := func(what string, of *pair, want bool) {
		e.Helper()
		of.postSendWR(1, ib.SendWR{ID: 2, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: mr.RKey()})
		if wc := e.waitAnyCompletion(of.cqs[1]); (wc.Status == ib.WCSuccess) != want {
			e.Fatalf("local invalidation of %s: completed with %q", what, wc.Status)
		}
		if !want {
			of.reconnect()
		}
	}
	for i, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		register()
		what := fmt.Sprintf("a region with a window of type %d", kind)
		mw := e.newMW(p.pd, kind)
		p.bindAndWait(ib.BindMW{MW: mw, MR: mr, RKey: ib.IncRKey(mw.RKey()), Addr: iova + 8, Length: 16,
			Access: ib.AccessRemoteWrite}, ib.WCSuccess)
		works := func(after string) {
			e.Helper()
			p.wantWriteStatus("write by the window, "+after, iova+16, mw.RKey(), ib.WCSuccess)
			p.wantWriteStatus("write by the region, "+after, iova, mr.RKey(), ib.WCSuccess)
		}
		works("bound")
		invalidate(what, other, false)
		works("after a local invalidation that failed")
		if i == 0 { // A failing invalidation has no response: see MW/Type2.
			timeout, retries := e.connector.ackTimeout, e.connector.retries
			e.connector.ackTimeout, e.connector.retries = 12, 1 // 17 ms
			other.reconnect()
			other.postRecv(1, 3, 0, 8)
			other.postSendWR(0, ib.SendWR{
				ID: 3, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, SGList: other.buf[0].newSGL(0,
					8), InvalidateRKey: mr.RKey(),
			})
			if wc := e.waitAnyCompletion(other.cqs[1]); wc.Status == ib.WCSuccess {
				e.Fatalf("remote invalidation of %s: the receive completed with %q", what, wc.Status)
			}
			if wc := e.waitAnyCompletion(other.cqs[0]); wc.Status == ib.WCSuccess {
				e.Fatalf("remote invalidation of %s: the send completed with %q", what, wc.Status)
			}
			e.connector.ackTimeout, e.connector.retries = timeout, retries
			other.reconnect()
			works("after a remote invalidation that failed")
		}
		e.wantErrno("map it anew", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 32}}, iova), syscall.EBUSY)
		e.wantErrno("deregister it", mr.Dereg(), syscall.EBUSY, syscall.EINVAL)
		e.destroy(mw)
		invalidate("a region whose window is gone", p, true)
		p.wantWriteStatus("write after the invalidation", iova, mr.RKey(), ib.WCRemAccessErr)
	}
}
