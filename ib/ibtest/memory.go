package ibtest

import (
	"bytes"
	"errors"
	"slices"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// Work requests about memory, and changes of regions.

// requireDeviceCap skips the test unless the device reports a capability.
func requireDeviceCap(e *testEnv, ability string, bit ib.DeviceCapFlags) {
	e.Helper()
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	if a.DeviceCapFlags&bit == 0 {
		e.Skipf("the driver has no %s: bit %#x of DeviceCapFlags is not set", ability, bit)
	}
}

// postAndWait posts a signaled work request, and returns its status.
func (p *pair) postAndWait(wr ib.SendWR) ib.WCStatus {
	p.e.Helper()
	wr.ID, wr.Flags = 90, wr.Flags|ib.SendSignaled
	p.postSendWR(0, wr)
	return p.e.waitAnyCompletion(p.cqs[0]).Status
}

// wantPostStatus checks the status of a work request, and reconnects the pair after a failure. It does nothing if the
// driver lacks the operation.
func (p *pair) wantPostStatus(what string, wr ib.SendWR, want ib.WCStatus) {
	p.e.Helper()
	if !p.e.supportsOperation(p.qps[0].Type(), wr.Opcode) {
		return
	}
	if got := p.postAndWait(wr); got != want {
		p.e.Fatalf("%s: %q, want %q", what, got, want)
	}
	if want != ib.WCSuccess {
		p.reconnect()
	}
}

func testAtomicWrite(e *testEnv) {
	requireDeviceCap(e, "ATOMIC WRITE", ib.DeviceCapAtomicWrite)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	b := p.buf[1]
	for i := range 3 {
		data := make([]byte, 8)
		fillPattern(data, i)
		p.wantPostStatus("atomic write", ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: data, RemoteAddr: b.addr + 8*uint64(i),
			RKey: b.mr.RKey()}, ib.WCSuccess)
		if !bytes.Equal(b.b[8*i:8*i+8], data) {
			e.Errorf("the memory holds %x, want %x", b.b[8*i:8*i+8], data)
		}
	}
	wr := ib.SendWR{ID: 1, Opcode: ib.WRAtomicWrite, Flags: ib.SendSignaled, Inline: make([]byte, 8), RemoteAddr: b.addr,
		RKey: b.mr.RKey()}
	p.postSendWR(0, wr)
	if wc := e.waitOneCompletion(p.cqs[0], 1, ib.WCSuccess); wc.Opcode != ib.WCAtomicWrite {
		e.Errorf("%+v", wc)
	}
	_, err := p.qps[0].PostSend(ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: make([]byte, 4), RemoteAddr: b.addr,
		RKey: b.mr.RKey()})
	e.wantErrno("atomic write of the wrong length", err, syscall.EINVAL)
	n, err := p.qps[0].PostSend(ib.SendWR{
		ID: 2, Opcode: ib.WRAtomicWrite, Flags: ib.SendSignaled, Inline: make([]byte, 8), RemoteAddr: b.addr + 4,
		RKey: b.mr.RKey(),
	})
	if n == 1 {
		e.waitOneCompletion(p.cqs[0], 2, ib.WCRemInvReqErr)
		p.reconnect()
	} else {
		e.wantErrno("misaligned atomic write", err, syscall.EINVAL)
	}
	p.wantPostStatus("behind the end", ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: make([]byte, 8), RemoteAddr: b.addr +
		pairBufferLen,
		RKey: b.mr.RKey()}, ib.WCRemAccessErr)
	readOnly := e.newBuffer(p.pd, 64, ib.AccessLocalWrite|ib.AccessRemoteRead|ib.AccessRemoteAtomic)
	p.wantPostStatus("without the right to write", ib.SendWR{Opcode: ib.WRAtomicWrite, Inline: make([]byte, 8),
		RemoteAddr: readOnly.addr, RKey: readOnly.mr.RKey()}, ib.WCRemAccessErr)
}

func testFlushOperation(e *testEnv) {
	requireDeviceCap(e, "FLUSH", ib.DeviceCapFlushGlobal)
	a, err := e.dev.QueryDevice()
	e.must("query device", err)
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	allow := func(access ib.AccessFlags) {
		e.must("modify", p.qps[1].Modify(ib.QPAttr{AccessFlags: access}, ib.QPAttrAccessFlags))
	}
	b := e.newBuffer(p.pd, pairBufferLen, allAccess|ib.AccessFlushGlobal)
	flush := func(f ib.Flush) ib.SendWR {
		return ib.SendWR{Opcode: ib.WRFlush, RemoteAddr: b.addr, RKey: b.mr.RKey(), Flush: f}
	}
	global := ib.Flush{Placement: ib.FlushGlobal, Length: pairBufferLen}
	allow(remote | ib.AccessFlushGlobal)
	fillPattern(p.buf[0].b, 1)
	p.postSendWR(0, ib.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGList: p.buf[0].newSGL(0, pairBufferLen), RemoteAddr: b.addr,
		RKey: b.mr.RKey()})
	wr := flush(global)
	wr.ID, wr.Flags = 2, ib.SendSignaled
	p.postSendWR(0, wr)
	if wc := e.waitOneCompletion(p.cqs[0], 2, ib.WCSuccess); wc.Opcode != ib.WCFlush || !bytes.Equal(b.b, p.buf[0].b) {
		e.Errorf("%+v; all data there: %v", wc, bytes.Equal(b.b, p.buf[0].b))
	}
	p.wantPostStatus("the whole region", flush(ib.Flush{Placement: ib.FlushGlobal, Level: ib.FlushRegion}), ib.WCSuccess)
	p.wantPostStatus("more than the region", flush(ib.Flush{Placement: ib.FlushGlobal, Length: pairBufferLen + 1}),
		ib.WCRemAccessErr)
	p.wantPostStatus("a queue pair without the right", flush(global), ib.WCRemInvReqErr)
	allow(remote | ib.AccessFlushGlobal)
	plain := e.newBuffer(p.pd, 64, allAccess)
	p.wantPostStatus("a region without the right", ib.SendWR{
		Opcode: ib.WRFlush, RemoteAddr: plain.addr, RKey: plain.mr.RKey(),
		Flush: ib.Flush{Placement: ib.FlushGlobal, Length: 8},
	}, ib.WCRemAccessErr)
	if a.DeviceCapFlags&ib.DeviceCapFlushPersistent != 0 {
		return
	}
	allow(remote | ib.AccessFlushGlobal)
	persistent := flush(ib.Flush{Placement: ib.FlushPersistent, Length: 8})
	p.wantPostStatus("persistence, on a queue pair without the right", persistent, ib.WCRemInvReqErr)
	allow(remote | ib.AccessFlushGlobal | ib.AccessFlushPersistent) // programs request these on every device
	p.wantPostStatus("persistence that is not offered", persistent, ib.WCRemAccessErr)
	if _, err := p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: b.addr, Length: 8,
		Access: ib.AccessFlushPersistent}); err == nil {
		e.Error("a region has the right for a placement that the device does not offer")
	}
}

func testZeroBasedRegion(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.requireRDMAWrite()
	b, addr := e.newMemory(128)
	mr, err := p.pd.RegMR(ib.MRInit{Space: e.mem, Addr: addr + 8, Length: 64, Access: allAccess | ib.AccessZeroBased})
	e.requireFeature("zero-based regions", err)
	destroyAtEnd(e, mr, mr.Dereg)
	write := func(what string, at uint64, want ib.WCStatus) {
		e.Helper()
		p.wantPostStatus(what, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: p.buf[0].newSGL(0, 8), RemoteAddr: at,
			RKey: mr.RKey()}, want)
	}
	fillPattern(p.buf[0].b, 4)
	write("to the last bytes", 56, ib.WCSuccess)
	if !bytes.Equal(b[64:72], p.buf[0].b[:8]) {
		e.Error("the data are not where they should be")
	}
	write("behind the end", 57, ib.WCRemAccessErr)
	write("by the address of the memory", addr+8, ib.WCRemAccessErr)
}

func testReregChangesRegion(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	p.requireRDMAWrite()
	b := e.newBuffer(p.pd, 64, allAccess)
	write := func(what string, addr uint64, key uint32, want ib.WCStatus) {
		e.Helper()
		p.wantPostStatus(what, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: p.buf[0].newSGL(0, 8), RemoteAddr: addr, RKey: key},
			want)
	}
	e.requireFeature("reregistration", b.mr.Rereg(ib.MRChangeAccess,
		ib.MRChange{Access: ib.AccessLocalWrite | ib.AccessRemoteRead}))
	write("without the right", b.addr, b.mr.RKey(), ib.WCRemAccessErr)
	e.must("give it back", b.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: allAccess}))
	write("with the right", b.addr, b.mr.RKey(), ib.WCSuccess)
	other := e.newPD()
	e.must("change the domain", b.mr.Rereg(ib.MRChangePD, ib.MRChange{PD: other}))
	write("of another domain", b.addr, b.mr.RKey(), ib.WCRemAccessErr)
	e.wantErrno("dealloc the region's new domain", other.Dealloc(), syscall.EBUSY)
	e.must("change the domain back", b.mr.Rereg(ib.MRChangePD, ib.MRChange{PD: p.pd}))
	fresh, addr := e.newMemory(128)
	e.must("change the memory", b.mr.Rereg(ib.MRChangeTranslation,
		ib.MRChange{Space: e.mem, Addr: addr, Length: 128, IOVA: addr}))
	fillPattern(p.buf[0].b, 3)
	clear(b.b)
	write("to the new memory", addr+120, b.mr.RKey(), ib.WCSuccess)
	if !bytes.Equal(fresh[120:], p.buf[0].b[:8]) || !isAllZero(b.b) {
		e.Error("the data are not where they should be")
	}
	write("behind the end of the new memory", addr+121, b.mr.RKey(), ib.WCRemAccessErr)
	if addr+128 <= b.addr || addr >= b.addr+64 {
		write("to the old memory", b.addr, b.mr.RKey(), ib.WCRemAccessErr)
	}
	if mw, err := p.pd.AllocMW(ib.MWType1); err == nil {
		destroyAtEnd(e, mw, mw.Dealloc)
		p.bindAndWait(ib.BindMW{MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: addr, Length: 8,
			Access: ib.AccessRemoteWrite},
			ib.WCSuccess)
		e.wantErrno("change a region with a window", b.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: allAccess}),
			syscall.EBUSY, syscall.EINVAL)
		e.destroy(mw)
	} else if !errors.Is(err, syscall.EOPNOTSUPP) {
		e.Errorf("alloc mw: %v", err)
	}
}

func testWindowRights(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	b := p.buf[1]
	const off, n = 256, 64
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		for _, access := range []ib.AccessFlags{
			0, ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteAtomic, ib.AccessRemoteWrite | ib.AccessZeroBased,
		} {
			zero := access&ib.AccessZeroBased != 0
			if zero && kind == ib.MWType1 {
				continue
			}
			base := b.addr + off
			if zero {
				base = 0
			}
			for op, need := range map[ib.WROpcode]ib.AccessFlags{
				ib.WRRDMARead: ib.AccessRemoteRead, ib.WRRDMAWrite: ib.AccessRemoteWrite,
				ib.WRAtomicFetchAdd: ib.AccessRemoteAtomic,
			} {
				if !e.supportsOperation(ib.QPTypeRC, op) {
					continue
				}
				for _, at := range []int{0, n - 8, n, -8} {
					mw := e.newMW(p.pd, kind)
					p.bindAndWait(ib.BindMW{MW: mw, MR: b.mr, RKey: ib.IncRKey(mw.RKey()), Addr: b.addr + off, Length: n,
						Access: access},
						ib.WCSuccess)
					want := ib.WCRemAccessErr
					if access&need != 0 && at >= 0 && at < n {
						want = ib.WCSuccess
					}
					wr := ib.SendWR{Opcode: op, SGList: p.buf[0].newSGL(0, 8), RemoteAddr: base + uint64(at), RKey: mw.RKey()}
					if got := p.postAndWait(wr); got != want {
						e.Errorf("window of type %d with rights %v, opcode %v at %d: %q, want %q", kind, access, op, at, got, want)
					}
					if want != ib.WCSuccess {
						p.reconnect()
					}
					e.destroy(mw)
				}
			}
		}
	}
}

func testFastRegPostedTogether(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mr, err := p.pd.AllocMR(2)
	e.requireFeature("fast registration", err)
	destroyAtEnd(e, mr, mr.Dereg)
	b, addr := e.newMemory(256)
	fillPattern(b, 4)
	const iova = 0x200000
	e.must("map", mr.Map(e.mem, nil, []umem.Range{{Addr: addr, Length: 256}}, iova))
	mr.UpdateKey(9)
	sgl := func(off int) []ib.SGE { return []ib.SGE{{Addr: iova + uint64(off), Length: 100, LKey: mr.LKey()}} }
	wrs := []ib.SendWR{
		{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.LKey(), Access: ib.AccessLocalWrite}},
		{Opcode: ib.WRRDMAWrite, SGList: sgl(0), RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()},
		{Opcode: ib.WRRDMARead, SGList: sgl(128), RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()},
		{Opcode: ib.WRLocalInv, Flags: ib.SendFence, InvalidateRKey: mr.LKey()},
		{Opcode: ib.WRRDMAWrite, SGList: sgl(0), RemoteAddr: p.buf[1].addr, RKey: p.buf[1].mr.RKey()},
	}
	want := []ib.WCOpcode{ib.WCRegMR, ib.WCRDMAWrite, ib.WCRDMARead, ib.WCLocalInv}
	reads := e.supportsOperation(ib.QPTypeRC, ib.WRRDMARead)
	if !reads {
		wrs, want = slices.Delete(wrs, 2, 3), slices.Delete(want, 2, 3)
	}
	for i := range wrs {
		wrs[i].ID, wrs[i].Flags = uint64(i+1), wrs[i].Flags|ib.SendSignaled
	}
	if n, err := p.qps[0].PostSend(wrs...); n != len(wrs) {
		e.Fatalf("post: %d taken, %v", n, err)
	}
	for i, want := range want {
		if wc := e.waitOneCompletion(p.cqs[0], uint64(i+1), ib.WCSuccess); wc.Opcode != want {
			e.Errorf("%+v", wc)
		}
	}
	e.waitOneCompletion(p.cqs[0], uint64(len(wrs)), ib.WCLocProtErr)
	if reads && !bytes.Equal(b[:100], b[128:228]) {
		e.Error("the data are not where they should be")
	}
}

func testFastRegRangeList(e *testEnv) {
	p := e.newPair(pairConfig{kind: ib.QPTypeRC})
	mr, err := p.pd.AllocMR(8)
	e.requireFeature("fast registration", err)
	destroyAtEnd(e, mr, mr.Dereg)
	b, addr := e.newMemory(10000)
	const iova = 0x300001
	// The order differs from that of the addresses, and nothing is aligned.
	parts := []struct{ from, to int }{{7000, 7100}, {10, 11}, {20, 5020}, {6000, 6007}}
	var list []umem.Range
	var length int
	for _, r := range parts {
		list = append(list, umem.Range{Addr: addr + uint64(r.from), Length: uint64(r.to - r.from)})
		length += r.to - r.from
	}
	inOrder := func() (got []byte) {
		for _, r := range parts {
			got = append(got, b[r.from:r.to]...)
		}
		return got
	}
	outside := func() int { return len(b) - bytes.Count(b, []byte{0}) }
	post := func(side int, wr ib.SendWR) {
		e.Helper()
		wr.ID, wr.Flags = 1, ib.SendSignaled
		p.postSendWR(side, wr)
		e.waitOneCompletion(p.cqs[side], 1, ib.WCSuccess)
	}
	e.must("map", mr.Map(e.mem, nil, list, iova))
	clear(list) // Map does not keep the list
	mr.UpdateKey(1)
	post(1, ib.SendWR{Opcode: ib.WRRegMR, Reg: &ib.FastReg{MR: mr, Key: mr.RKey(), Access: allAccess &^ ib.AccessMWBind}})
	data := p.buf[0].b[:length]
	for i := range data {
		data[i] = byte(1 + i%255)
	}
	post(0, ib.SendWR{Opcode: ib.WRRDMAWrite, SGList: p.buf[0].newSGL(0, length), RemoteAddr: iova, RKey: mr.RKey()})
	if !bytes.Equal(inOrder(), data) || outside() != length {
		e.Fatal("RDMA WRITE to a list: the data are not where they should be")
	}
	post(0, ib.SendWR{Opcode: ib.WRRDMARead, SGList: p.buf[0].newSGL(pairBufferLen-200, 200), RemoteAddr: iova + 50,
		RKey: mr.RKey()})
	if !bytes.Equal(p.buf[0].b[pairBufferLen-200:], data[50:250]) {
		e.Error("RDMA READ from a list: the data are not those")
	}
	post(1, ib.SendWR{ // with the local key, to the peer
		Opcode: ib.WRRDMAWrite, SGList: []ib.SGE{{Addr: iova + 90, Length: 20, LKey: mr.LKey()}},
		RemoteAddr: p.buf[0].addr + pairBufferLen - 300, RKey: p.buf[0].mr.RKey(),
	})
	if !bytes.Equal(p.buf[0].b[pairBufferLen-300:][:20], data[90:110]) {
		e.Error("RDMA WRITE from a list: the data are not those")
	}
	p.wantWriteStatus("write behind the end of a list", iova+uint64(length)-7, mr.RKey(), ib.WCRemAccessErr)
}
