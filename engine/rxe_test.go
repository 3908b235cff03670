package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver"
	"verbena/driver/relay"
	"verbena/driver/rxe/layout"
	"verbena/ib"
	"verbena/internal/testutil"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/umem"
)

// bench is two devices with a queue pair each. connect connects them.
type bench struct {
	t    testing.TB
	core ib.Core
	net  *simnet.Net
	a, b *node
}

// node is a device and the consumer on it.
type node struct {
	t    testing.TB
	dev  *Device
	pd   *ib.PD
	cq   *ib.CQ
	qp   *ib.QP
	mem  *umem.Local
	buf  []byte
	mr   *ib.MR
	addr uint64

	mu       sync.Mutex
	notified int
	events   []ib.EventType

	// More objects of tests, in the order of their destruction.
	mws []*ib.MW
	mrs []*ib.MR
	pds []*ib.PD
}

type setup struct {
	shortcut bool
	net      simnet.Config
	network  link.Network // replaces the simnet, with addresses of its own
	fabric   *Fabric      // replaces a new one
	addrs    [2]netip.Addr
	typ      ib.QPType
	cap      ib.QPCap
	cqe      int
	bufLen   int
	access   ib.AccessFlags
	sigAll   bool
	recover  bool
	noProbe  bool
	taps     bool
	observer driver.Observer
}

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// The limits of the layout.
const (
	maxQPWR   = 1<<16 - 1
	maxCQE    = 1<<20 - 1
	maxSGE    = 32
	maxInline = 16 * maxSGE
)

const allAccess = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic

// takeRun makes the calling thread the owner of the queue pair, as soon as no other thread runs it.
func takeRun(qp *QP) {
	for !qp.activity.wake() {
		runtime.Gosched()
	}
}

// unwatched stops the watchdogs, because a thread without a processor must not make a program slow.
func (b *bench) unwatched() {
	for _, n := range []*node{b.a, b.b} {
		for !n.dev.watchdog.on.CompareAndSwap(false, true) { // a running watchdog stops when there is no copy
			runtime.Gosched()
		}
	}
}

// watched starts the watchdogs again.
func (b *bench) watched() {
	for _, n := range []*node{b.a, b.b} {
		n.dev.watchdog.on.Store(false)
	}
}

func newBench(t testing.TB, s setup) *bench {
	t.Helper()
	if s.typ == 0 {
		s.typ = ib.QPTypeRC
	}
	if s.cap == (ib.QPCap{}) {
		s.cap = ib.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 256}
	}
	if s.cqe == 0 {
		s.cqe = 1000
	}
	if s.bufLen == 0 {
		s.bufLen = 1 << 16
	}
	if s.access == 0 {
		s.access = allAccess
	}
	b := &bench{t: t, net: simnet.New(s.net)}
	if s.network == nil {
		s.network, s.addrs = b.net, [2]netip.Addr{addrA, addrB}
	}
	if s.fabric == nil {
		s.fabric = &Fabric{}
	}
	b.a = b.newNode(s.fabric, "rxe0", s.addrs[0], s)
	b.b = b.newNode(s.fabric, "rxe1", s.addrs[1], s)
	t.Cleanup(b.close)
	return b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) newNode(f *Fabric, name string, addr netip.Addr, s setup) *node {
	b.t.Helper()
	faults, _ := s.network.(*link.Faults)
	last := addr.As16()[15]
	var taps *link.Taps
	if s.taps {
		taps = &link.Taps{}
	}
	dev, err := New(Config{
		Layout: layout.Layout{},
		Name:   name, Addrs: []netip.Addr{addr}, Network: s.network, Faults: faults, Fabric: f,
		Recover: s.recover, NoProbe: s.noProbe, Taps: taps, Observer: s.observer,
		Rand: rand.New(rand.NewPCG(1, uint64(last))),
		Netdev: netdev.Interface{
			Name: "eth0", Index: 2, MAC: []byte{2, 0, 0, 0, 0, last}, MTU: 9000, Up: true, Running: true,
		},
	})
	check(b.t, err)
	return b.nodeOn(dev, s)
}

// nodeOn registers a device and creates the consumer.
func (b *bench) nodeOn(dev *Device, s setup) *node {
	b.t.Helper()
	dev.SetShortcut(s.shortcut)
	if relayed != nil {
		dev.Handle().Wrap(func(d ib.Driver) ib.Driver { return relay.New(d, layout.Layout{}) })
	}
	check(b.t, b.core.Register(dev.Handle()))
	var err error
	n := &node{t: b.t, dev: dev, mem: umem.NewLocal(), buf: make([]byte, s.bufLen)}
	n.pd, err = dev.IB().AllocPD()
	check(b.t, err)
	n.cq, err = dev.IB().CreateCQ(ib.CQInit{Entries: s.cqe, Handler: func(*ib.CQ) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.notified++
	}, Event: func(_ *ib.CQ, e ib.EventType) { n.event(e) }})
	check(b.t, err)
	n.addr, err = n.mem.Add(n.buf)
	check(b.t, err)
	n.mr, err = n.pd.RegMR(ib.MRInit{Space: n.mem, Addr: n.addr, Length: uint64(len(n.buf)), Access: s.access})
	check(b.t, err)
	n.qp = n.newQP(s)
	return n
}

func (n *node) newQP(s setup) *ib.QP {
	n.t.Helper()
	qp, err := n.pd.CreateQP(ib.QPInitAttr{
		SendCQ: n.cq, RecvCQ: n.cq, Cap: s.cap, Type: s.typ, SigAll: s.sigAll,
		Event: func(_ *ib.QP, e ib.EventType) { n.event(e) },
	})
	check(n.t, err)
	return qp
}

func (n *node) event(e ib.EventType) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, e)
}

func (n *node) raised() []ib.EventType {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]ib.EventType(nil), n.events...)
}

func (b *bench) close() {
	for _, n := range []*node{b.a, b.b} {
		check(b.t, n.qp.Destroy())
		for _, w := range n.mws {
			check(b.t, w.Dealloc())
		}
		for _, m := range n.mrs {
			check(b.t, m.Dereg())
		}
		for _, p := range n.pds {
			check(b.t, p.Dealloc())
		}
		check(b.t, n.mr.Dereg())
		check(b.t, n.cq.Destroy())
		check(b.t, n.pd.Dealloc())
		check(b.t, b.core.Unregister(n.dev.Handle()))
		check(b.t, n.dev.Close())
	}
}

// conn holds the attributes of a connection; the zero value of a field means its default.
type conn struct {
	mtu                    ib.MTU
	psn                    uint32
	timeout, retry         uint8
	rnrRetry, rnrTimer     uint8
	rdAtomic, destRdAtomic int // -1: 0
	access                 ib.AccessFlags
	noAccess               bool
}

func (c conn) withDefaults() conn {
	def8 := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	if c.mtu == 0 {
		c.mtu = ib.MTU1024
	}
	def8(&c.timeout, 14)
	def8(&c.retry, 7)
	def8(&c.rnrRetry, 7)
	def8(&c.rnrTimer, 12)
	for _, v := range []*int{&c.rdAtomic, &c.destRdAtomic} {
		if *v == 0 {
			*v = 4
		}
		*v = max(*v, 0)
	}
	if c.access == 0 && !c.noAccess {
		c.access = allAccess
	}
	return c
}

// connect takes both queue pairs to RTS.
func (b *bench) connect(c conn) {
	b.t.Helper()
	connectQPs(b.t, b.a.dev, b.a.qp, b.b.dev, b.b.qp, c)
}

func connectQPs(t testing.TB, devA *Device, a *ib.QP, devB *Device, b *ib.QP, c conn) {
	t.Helper()
	toRTR(t, a, devB, b.Num(), c)
	toRTR(t, b, devA, a.Num(), c)
	toRTS(t, a, c)
	toRTS(t, b, c)
}

func toInit(t testing.TB, qp *ib.QP, c conn) {
	t.Helper()
	attr := ib.QPAttr{State: ib.QPInit, Port: 1, AccessFlags: c.access, QKey: testQKey}
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	if qp.Type() == ib.QPTypeUD {
		mask |= ib.QPAttrQKey
	} else {
		mask |= ib.QPAttrAccessFlags
	}
	check(t, qp.Modify(attr, mask))
}

const testQKey = 0x11111111

func toRTR(t testing.TB, qp *ib.QP, peer *Device, num uint32, c conn) {
	t.Helper()
	c = c.withDefaults()
	toInit(t, qp, c)
	gid, err := peer.IB().QueryGID(1, 1)
	check(t, err)
	attr := ib.QPAttr{
		State: ib.QPRTR, PathMTU: c.mtu, DestQPN: num, RQPSN: c.psn, MaxDestRdAtomic: uint8(c.destRdAtomic),
		MinRNRTimer: c.rnrTimer, AH: ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{DGID: gid.GID, SGIDIndex: 1}},
	}
	mask := ib.QPAttrState
	if qp.Type() != ib.QPTypeUD {
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	if t := qp.Type(); t == ib.QPTypeRC || t == ib.QPTypeXRCTgt {
		mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
	}
	check(t, qp.Modify(attr, mask))
}

func toRTS(t testing.TB, qp *ib.QP, c conn) {
	t.Helper()
	c = c.withDefaults()
	attr := ib.QPAttr{
		State: ib.QPRTS, SQPSN: c.psn, Timeout: c.timeout, RetryCnt: c.retry, RNRRetry: c.rnrRetry, MaxRdAtomic: uint8(c.rdAtomic),
	}
	mask := ib.QPAttrState | ib.QPAttrSQPSN
	switch qp.Type() {
	case ib.QPTypeRC, ib.QPTypeXRCInit:
		mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
	case ib.QPTypeXRCTgt:
		mask |= ib.QPAttrTimeout
	}
	check(t, qp.Modify(attr, mask))
}

func (n *node) sge(off, length int) []ib.SGE {
	return []ib.SGE{{Addr: n.addr + uint64(off), Length: uint32(length), LKey: n.mr.LKey()}}
}

func (n *node) recv(id uint64, off, length int) {
	n.t.Helper()
	if _, err := n.qp.PostRecv(ib.RecvWR{ID: id, SGList: n.sge(off, length)}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) send(wrs ...ib.SendWR) {
	n.t.Helper()
	if _, err := n.qp.PostSend(wrs...); err != nil {
		n.t.Fatal(err)
	}
}

// poll waits for want completions, in virtual or real time.
func (n *node) poll(want int) []ib.WC {
	n.t.Helper()
	var got []ib.WC
	if !testutil.PollUntil(func() bool {
		wc := make([]ib.WC, want-len(got))
		k, err := n.cq.Poll(wc)
		check(n.t, err)
		got = append(got, wc[:k]...)
		return len(got) == want
	}) {
		n.t.Fatalf("%s: %d completions instead of %d: %v", n.dev.name, len(got), want, got)
	}
	return got
}

// none checks that the completion queue is empty.
func (n *node) none() {
	n.t.Helper()
	var wc [1]ib.WC
	if k, err := n.cq.Poll(wc[:]); k != 0 || err != nil {
		n.t.Fatalf("%s: unexpected completion %+v, error %v", n.dev.name, wc[0], err)
	}
}

func (n *node) expect(want ...ib.WC) {
	n.t.Helper()
	for i, wc := range n.poll(len(want)) {
		w := want[i]
		if wc.ID != w.ID || wc.Status != w.Status {
			n.t.Fatalf("%s: completion %d is id %d %v, want id %d %v", n.dev.name, i, wc.ID, wc.Status, w.ID, w.Status)
		}
		if w.Status == ib.WCSuccess && (wc.Opcode != w.Opcode || w.ByteLen != 0 && wc.ByteLen != w.ByteLen ||
			wc.Flags != w.Flags || wc.Imm != w.Imm) {
			n.t.Fatalf("%s: completion %d is %+v, want %+v", n.dev.name, i, wc, w)
		}
	}
}

// fill writes the data for a seed.
func fill(b []byte, seed uint64) {
	r := rand.NewPCG(seed, 2)
	for ; len(b) >= 8; b = b[8:] {
		binary.NativeEndian.PutUint64(b, r.Uint64())
	}
	for i := range b {
		b[i] = byte(r.Uint64())
	}
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// eachNetwork runs f over the shortcut and over the network.
func eachNetwork(t *testing.T, f func(t *testing.T, s setup)) {
	for _, s := range []setup{
		{shortcut: true},
		{net: simnet.Config{Latency: 5 * time.Microsecond, Bandwidth: 1 << 30}},
	} {
		name := "wire"
		if s.shortcut {
			name = "shortcut"
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { f(t, s) })
		})
	}
}

var transferSizes = []int{0, 1, 255, 256, 257, 4095, 4096, 4097, 65536, 1 << 20}

// TestTransfer moves messages of every kind and many sizes with every path MTU, and compares the data.
func TestTransfer(t *testing.T) {
	eachNetwork(t, func(t *testing.T, s setup) {
		s.bufLen = 1<<20 + 64
		for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
			b := newBenchIn(t, s)
			b.connect(conn{mtu: mtu, psn: 0xfffffe})
			for i, size := range transferSizes {
				if raceEnabled && size > 1<<16 && mtu != ib.MTU1024 { // make unit runs it without the race detector
					continue
				}
				for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm,
					ib.WRRDMARead} {
					transfer(b, op, size, uint64(i))
				}
			}
			b.close()
		}
	})
}

// newBenchIn is newBench for tests that close it themselves.
func newBenchIn(t *testing.T, s setup) *bench {
	t.Helper()
	b := newBench(noCleanup{t}, s)
	b.t, b.a.t, b.b.t = t, t, t
	return b
}

type noCleanup struct{ *testing.T }

func (noCleanup) Cleanup(func()) {}

// transfer moves one message from a to b, or with RDMA READ from b to a.
func transfer(b *bench, op ib.WROpcode, size int, seed uint64) {
	b.t.Helper()
	const off = 3
	src, dst := b.a.buf[off:off+size], b.b.buf[2*off:2*off+size]
	if op == ib.WRRDMARead {
		src, dst = b.b.buf[2*off:2*off+size], b.a.buf[off:off+size]
	}
	fill(src, seed)
	clear(dst)
	wr := ib.SendWR{
		ID: 7, Opcode: op, Flags: ib.SendSignaled, SGList: b.a.sge(off, size), Imm: 0x01020304,
		RemoteAddr: b.b.addr + 2*off, RKey: b.b.mr.RKey(),
	}
	sent := ib.WC{ID: 7}
	var received *ib.WC
	switch op {
	case ib.WRSend, ib.WRSendWithImm:
		received = &ib.WC{ID: 8, Opcode: ib.WCRecv, ByteLen: uint32(size)}
		sent.Opcode = ib.WCSend
	case ib.WRRDMAWrite:
		sent.Opcode = ib.WCRDMAWrite
	case ib.WRRDMAWriteWithImm:
		received = &ib.WC{ID: 8, Opcode: ib.WCRecvRDMAWithImm, ByteLen: uint32(size)}
		sent.Opcode = ib.WCRDMAWrite
	case ib.WRRDMARead:
		sent.Opcode = ib.WCRDMARead
	}
	if op == ib.WRSendWithImm || op == ib.WRRDMAWriteWithImm {
		received.Flags, received.Imm = ib.WCWithImm, 0x01020304
	}
	if received != nil {
		b.b.recv(8, 2*off, size)
	}
	b.a.send(wr)
	b.a.expect(sent)
	if received != nil {
		b.b.expect(*received)
	}
	if !bytes.Equal(src, dst) {
		b.t.Fatalf("opcode %d, %d bytes: data differ from byte %d on", op, size, firstDifference(src, dst))
	}
	b.b.none()
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// The driver's objects for the objects of a consumer.
func qpOf(qp *ib.QP) *QP {
	q, _ := ib.As[*QP](deviceOf(qp).obj.QP(qp))
	return q
}

func cqOf(c *ib.CQ) *cq    { return deviceOf(c).obj.CQ(c).(*cq) }
func srqOf(s *ib.SRQ) *srq { return deviceOf(s).obj.SRQ(s).(*srq) }
func mwOf(w *ib.MW) *mw    { return deviceOf(w).obj.MW(w).(*mw) }

func deviceOf(o interface{ Device() *ib.Device }) *Device {
	d, _ := ib.As[ops](ibuser.Driver(o.Device()))
	return d.dev
}
