package efa_test

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"verbena/driver/efa"
	"verbena/ib"
	"verbena/internal/gate"
	"verbena/internal/testutil"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/roce"
	"verbena/uapi"
	abi "verbena/uapi/efa"
	"verbena/umem"
)

// ibuser has the midlayer's calls for user contexts.
var ibuser = ib.ForUser(gate.NewKey())

const (
	grhLen = roce.GRHLen
	depth  = 4 // requests in each queue
	// entries is the size of the completion queue.
	entries = 16
	qkey    = 0x1111
)

// program is a user process with a queue pair, and the user context as which the driver sees it.
type program struct {
	t     testing.TB
	dev   *efa.Device
	flags uint16 // flags in abi.CreateQP

	mu    sync.Mutex
	areas map[uint64][]byte // shared memory by offset
	end   uint64

	pd         *ib.PD
	mr         *ib.MR
	cq         *ib.CQ
	qp         *ib.QP
	buf        []byte
	addr       uint64
	sq, rq     []byte
	page       []byte
	cqes       []byte
	sent       uint16
	holds      bool // post does not ring the doorbell
	received   uint16
	polled     int
	events     atomic.Int32
	userDriver ib.UserContexter
	handles    map[*ib.AH]bool // not destroyed yet
}

func (p *program) AllocShared(size int) (ib.Shared, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := os.Getpagesize()
	mem := make([]byte, (size+page-1)/page*page)
	s := ib.Shared{Mem: mem, Offset: p.end, Free: func() {}}
	p.areas[p.end] = mem
	p.end += uint64(len(mem))
	return s, nil
}

func (p *program) mmap(key uint64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for off, mem := range p.areas {
		if key >= off && key < off+uint64(len(mem)) {
			return mem[key-off:]
		}
	}
	p.t.Fatalf("mmap: got offset %#x, want one that AllocShared has returned", key)
	return nil
}

func (p *program) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func udata[R any](p *program, cmd *R) *ib.Udata {
	u := &ib.Udata{Context: p, Out: make([]byte, 64)}
	if cmd != nil {
		u.In = uapi.AppendTo(nil, cmd)
	}
	return u
}

// newProgram makes a device and a program with a queue pair of a type in the state RTS.
func newProgram(t testing.TB, net *simnet.Net, addr string, typ ib.QPType, change ...func(*efa.Config)) *program {
	t.Helper()
	cfg := efa.Config{
		Name: "efa0", Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
		Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Network: net, Logf: t.Logf,
	}
	for _, f := range change {
		f(&cfg)
	}
	d, err := efa.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, dev: d, areas: map[uint64][]byte{}, handles: map[*ib.AH]bool{}, buf: make([]byte, 1<<18)}
	core := ib.Core{}
	p.check(core.Register(d.Handle()))
	d.Handle().Wrap(func(drv ib.Driver) ib.Driver { p.userDriver = drv.(ib.UserContexter); return drv })
	p.check(p.userDriver.AllocUserContext(udata(p, &abi.AllocUcontextCmd{})))
	p.pd, err = ibuser.AllocPD(d.IB(), udata[abi.AllocUcontextCmd](p, nil))
	p.check(err)
	mem := umem.NewLocal()
	p.addr, err = mem.Add(p.buf)
	p.check(err)
	p.mr, err = p.pd.RegMR(ib.MRInit{Space: mem, Addr: p.addr, Length: uint64(len(p.buf)),
		Access: ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead})
	p.check(err)
	u := udata(p, &abi.CreateCQ{CQEntrySize: 32, NumSubCQs: 1})
	p.cq, err = ibuser.CreateCQ(d.IB(), ib.CQInit{Entries: entries, Event: func(*ib.CQ, ib.EventType) {}}, u)
	p.check(err)
	cresp, _ := uapi.Decode[abi.CreateCQResp](u.Out[:u.N])
	p.cqes = p.mmap(cresp.QMmapKey)
	p.makeQP(typ)
	t.Cleanup(func() {
		for h := range p.handles {
			p.check(h.Destroy())
		}
		p.check(p.qp.Destroy())
		p.check(p.cq.Destroy())
		p.check(p.mr.Dereg())
		p.check(p.pd.Dealloc())
		p.userDriver.DeallocUserContext(p)
		core.Unregister(d.Handle())
		p.check(d.Close())
	})
	return p
}

// makeQP makes the queue pair of the program, and moves it to RTS.
func (p *program) makeQP(typ ib.QPType) {
	p.t.Helper()
	qp, u, err := p.newQP(typ)
	p.check(err)
	p.qp = qp
	resp, _ := uapi.Decode[abi.CreateQPResp](u.Out[:u.N])
	p.sq, p.rq, p.page = p.mmap(resp.LLQDescMmapKey), p.mmap(resp.RQMmapKey), p.mmap(resp.SQDBMmapKey)
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1, QKey: qkey},
		ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPRTR}, ib.QPAttrState))
	p.check(p.qp.Modify(ib.QPAttr{State: ib.QPRTS}, ib.QPAttrState|ib.QPAttrSQPSN))
}

// replaceQP replaces the queue pair by a new one.
func (p *program) replaceQP(typ ib.QPType) {
	p.t.Helper()
	p.check(p.qp.Destroy())
	p.sent, p.received = 0, 0
	p.makeQP(typ)
}

func (p *program) newQP(typ ib.QPType) (*ib.QP, *ib.Udata, error) {
	u := udata(p, &abi.CreateQP{SQRingSize: depth * abi.TXWQESize, RQRingSize: depth * 16, Flags: p.flags})
	qp, err := ibuser.CreateQP(p.pd, ib.QPInitAttr{
		SendCQ: p.cq, RecvCQ: p.cq, Type: typ,
		Cap:   ib.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: 32},
		Event: func(*ib.QP, ib.EventType) { p.events.Add(1) },
	}, u)
	return qp, u, err
}

// newAH makes an address handle and returns its number.
func (p *program) newAH(to string) (h *ib.AH, num uint16) {
	p.t.Helper()
	u := udata[abi.AllocUcontextCmd](p, nil)
	h, err := ibuser.CreateAH(p.pd, &ib.AHAttr{Port: 1, HasGRH: true,
		GRH: ib.GlobalRoute{DGID: ib.GIDFromAddr(netip.MustParseAddr(to))}}, u)
	p.check(err)
	p.handles[h] = true
	r, _ := uapi.Decode[abi.CreateAHResp](u.Out[:u.N])
	return h, r.EFAAddressHandle
}

func (p *program) destroyAH(h *ib.AH) {
	p.t.Helper()
	p.check(h.Destroy())
	delete(p.handles, h)
}

func (p *program) ring(at int, count uint16) {
	atomic.StoreUint32(sharedWord(p.page, at), uint32(count))
}

// send posts a request with one element.
func (p *program) send(id, ah uint16, qpn uint32, off, n int, change func(m *abi.TXMetaDesc, b *abi.TXBufDesc)) {
	m := abi.TXMetaDesc{ReqID: id, Ctrl1: abi.IOTXMetaDescMetaDescMask,
		Ctrl2:     abi.IOTXMetaDescFirstMask | abi.IOTXMetaDescLastMask | abi.IOTXMetaDescCompReqMask,
		DestQPNum: uint16(qpn), Length: 1, AH: ah, QKey: qkey}
	at := p.addr + uint64(off)
	b := abi.TXBufDesc{Length: uint32(n), LKey: p.mr.LKey(), BufAddrLo: uint32(at), BufAddrHi: uint32(at >> 32)}
	if change != nil {
		change(&m, &b)
	}
	slot := p.sq[int(p.sent)%depth*abi.TXWQESize:]
	uapi.Encode(slot, &m)
	uapi.Encode(slot[abi.TXWQEDataOffset:], &b)
	p.post()
}

// rdma posts an RDMA request with one element.
func (p *program) rdma(id, ah uint16, qpn uint32, op abi.SendOpType, off, n int, key uint32, addr uint64, imm bool) {
	m := abi.TXMetaDesc{ReqID: id, Ctrl1: abi.IOTXMetaDescMetaDescMask | uint8(op),
		Ctrl2:     abi.IOTXMetaDescFirstMask | abi.IOTXMetaDescLastMask | abi.IOTXMetaDescCompReqMask,
		DestQPNum: uint16(qpn), Length: 1, AH: ah, QKey: qkey, ImmediateData: 7}
	if imm {
		m.Ctrl1 |= abi.IOTXMetaDescHasImmMask
	}
	at := p.addr + uint64(off)
	slot := p.sq[int(p.sent)%depth*abi.TXWQESize:]
	uapi.Encode(slot, &m)
	uapi.Encode(slot[abi.TXWQEDataOffset:], &abi.RemoteMemAddr{Length: uint32(n), RKey: key, BufAddrLo: uint32(addr),
		BufAddrHi: uint32(addr >> 32)})
	uapi.Encode(slot[abi.TXWQEDataOffset+16:], &abi.TXBufDesc{Length: uint32(n), LKey: p.mr.LKey(),
		BufAddrLo: uint32(at), BufAddrHi: uint32(at >> 32)})
	p.post()
}

// post rings the doorbell of the send queue for one request.
func (p *program) post() {
	p.sent++
	if !p.holds {
		p.doorbell()
	}
}

// doorbell makes the device look at the send queue.
func (p *program) doorbell() {
	p.ring(0, p.sent)
	ibuser.DriverSide(p.qp).(ib.UserQP).Doorbell(nil)
}

func (p *program) recv(id uint16, off, n int) {
	at := p.addr + uint64(off)
	uapi.Encode(p.rq[int(p.received)%depth*16:], &abi.RXDesc{ReqID: id, Length: uint16(n), BufAddrLo: uint32(at),
		BufAddrHi: uint32(at >> 32), LKeyCtrl: p.mr.LKey() | abi.IORXDescFirstMask | abi.IORXDescLastMask})
	p.received++
	p.ring(64, p.received)
}

// hasCompletion reports whether the phase bit shows a completion.
func (p *program) hasCompletion() bool {
	word := sharedWord(p.cqes, p.polled%entries*32)
	return uint8(atomic.LoadUint32(word)>>24)&1 == uint8(1-p.polled/entries%2)
}

// poll waits for a completion, which it finds by the phase bit.
func (p *program) poll() (c abi.RXCDesc) {
	p.t.Helper()
	testutil.Eventually(p.t, "a completion", p.hasCompletion)
	c, _ = uapi.Decode[abi.RXCDesc](p.cqes[p.polled%entries*32:])
	p.polled++
	if c.Common.QPNum != uint16(p.qp.Num()) {
		p.t.Errorf("completion: got queue pair %d, want %d", c.Common.QPNum, p.qp.Num())
	}
	return c
}

func newPrograms(t *testing.T) (a, b *program) {
	net := simnet.New(simnet.Config{})
	return newProgram(t, net, "10.0.0.1", ib.QPTypeUD), newProgram(t, net, "10.0.0.2", ib.QPTypeUD)
}

// TestDatagrams sends datagrams between two programs, round their queues several times. The receiver gets the number of
// its address handle of the sender, or the number that stands for none.
func TestDatagrams(t *testing.T) {
	a, b := newPrograms(t)
	if n := a.qp.Num(); n > 0xffff {
		t.Errorf("queue pair: got number %d, want one of 16 bits", n)
	}
	if k := a.mr.LKey(); k > 0xffffff {
		t.Errorf("memory region: got key %#x, want one of 24 bits", k)
	}
	_, ah := a.newAH("10.0.0.2")
	want := abi.UnknownAH
	for i := range uint16(40) {
		if i == 20 {
			_, want = b.newAH("10.0.0.1")
		}
		for k := range a.buf[:100] {
			a.buf[k] = byte(int(i) + k)
		}
		b.recv(100+i, 0, 1000)
		a.send(i, ah, b.qp.Num(), 0, 100, func(m *abi.TXMetaDesc, _ *abi.TXBufDesc) {
			m.Ctrl1 |= abi.IOTXMetaDescHasImmMask
			m.ImmediateData = 7
		})
		if c := a.poll(); c.Common.ReqID != i || c.Common.Status != 0 || c.Common.Flags>>1&3 != abi.IOSendQueue {
			t.Fatalf("send %d: got %+v", i, c)
		}
		c := b.poll()
		if c.Common.ReqID != 100+i || c.Common.Status != 0 || c.Common.Flags>>1&3 != abi.IORecvQueue ||
			c.Length != grhLen+100 || c.AH != want || c.SrcQPNum != uint16(a.qp.Num()) || c.Imm != 7 {
			t.Fatalf("receive %d: got %+v, want 140 bytes from handle %#x", i, c, want)
		}
		if !bytes.Equal(b.buf[grhLen:grhLen+100], a.buf[:100]) {
			t.Fatalf("receive %d: got other data than were sent", i)
		}
	}
}

// TestSharedHandles tests that handles of one domain and destination share a number until the last is destroyed, and
// that another domain has another number.
func TestSharedHandles(t *testing.T) {
	a, b := newPrograms(t)
	x, nx := a.newAH("10.0.0.2")
	y, ny := a.newAH("10.0.0.2")
	_, nz := a.newAH("10.0.0.3")
	if nx != ny || nx == nz || nx == 0 {
		t.Errorf("numbers: got %d, %d and %d, want two equal ones and another", nx, ny, nz)
	}
	a.destroyAH(x)
	b.recv(1, 0, 1000)
	a.send(2, ny, b.qp.Num(), 0, 10, nil)
	if c := a.poll(); c.Common.Status != 0 {
		t.Errorf("send by the handle that is left: got %+v, want success", c)
	}
	b.poll()
	a.destroyAH(y)
	a.send(3, ny, b.qp.Num(), 0, 10, nil)
	if c := a.poll(); c.Common.Status != abi.IOCompStatusLocalErrorUnsupportedOp {
		t.Errorf("send by a destroyed handle: got %+v, want an error", c)
	}
}

// TestFailures tests the statuses of requests that fail, and the flush of the requests behind them.
func TestFailures(t *testing.T) {
	type (
		meta    = *abi.TXMetaDesc
		element = *abi.TXBufDesc
	)
	const op, key = abi.IOCompStatusLocalErrorUnsupportedOp, abi.IOCompStatusLocalErrorInvalidLKey
	for name, c := range map[string]struct {
		n      int
		change func(m meta, b element)
		want   abi.CompStatus
	}{
		"no handle":      {10, func(m meta, _ element) { m.AH = 999 }, op},
		"handle 0":       {10, func(m meta, _ element) { m.AH = 0 }, op},
		"no region":      {10, func(_ meta, b element) { b.LKey ^= 0x100 }, key},
		"behind the end": {10, func(_ meta, b element) { b.BufAddrHi++ }, key},
		"too long":       {4097, nil, abi.IOCompStatusLocalErrorBadLength},
		"RDMA READ":      {10, func(m meta, _ element) { m.Ctrl1 |= uint8(abi.IORDMARead) }, op},
		"three elements": {10, func(m meta, _ element) { m.Length = 3 }, op},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPrograms(t)
			_, ah := a.newAH("10.0.0.2")
			a.send(1, ah, b.qp.Num(), 0, c.n, c.change)
			if got := a.poll(); got.Common.ReqID != 1 || got.Common.Status != c.want {
				t.Errorf("got %+v, want status %d", got, c.want)
			}
			a.send(2, ah, b.qp.Num(), 0, 10, nil)
			if got := a.poll(); got.Common.ReqID != 2 || got.Common.Status != abi.IOCompStatusFlushed {
				t.Errorf("request behind it: got %+v, want a flush", got)
			}
		})
	}
}

// TestHostileDoorbell tests that a count beyond the end of a queue ends the queue pair, and no other one.
func TestHostileDoorbell(t *testing.T) {
	a, b := newPrograms(t)
	a.ring(0, depth+1)
	ibuser.DriverSide(a.qp).(ib.UserQP).Doorbell(nil)
	testutil.Eventually(t, "the queue pair to end", func() bool { return a.qp.State() == ib.QPErr })
	_, ah := b.newAH("10.0.0.2") // to itself
	b.recv(1, 0, 1000)
	b.send(2, ah, b.qp.Num(), 2000, 10, nil)
	for range 2 {
		if c := b.poll(); c.Common.Status != 0 {
			t.Errorf("datagram of another program: got %+v, want success", c)
		}
	}
}

// TestQPTypes tests that programs can make only the types that the adapter has.
func TestQPTypes(t *testing.T) {
	a, _ := newPrograms(t)
	for _, typ := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeXRCInit} {
		if _, _, err := a.newQP(typ); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("queue pair of type %v: got %v, want EOPNOTSUPP", typ, err)
		}
	}
}
