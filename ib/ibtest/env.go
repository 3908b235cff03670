package ibtest

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/umem"
)

// testEnv holds the device of a test, and creates objects on it. It fails the test on errors.
type testEnv struct {
	*resultChecker
	cfg     suiteConfig
	core    *ib.Core
	dev     *ib.Device
	handle  *ib.DeviceHandle
	mem     *umem.Local // contains the buffers
	checked bool        // the core is in checked mode
	virtual bool        // the check runs in a bubble

	limits ib.DeviceAttr
	// Capacities, within the limits of the device.
	queueLen         int // work requests per queue
	sendSGE, recvSGE int // elements per work request

	registered bool
	connector  *connector // valid once the device is registered

	objects []ownedObject // existing objects in creation order

	mu      sync.Mutex
	over    bool         // reports are dropped
	allowed []check.Rule // rules that the test violates on purpose
}

// allowViolation suppresses reports of a rule that the test violates on purpose.
func (e *testEnv) allowViolation(r check.Rule) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.allowed = append(e.allowed, r)
}

type ownedObject struct {
	what    any
	destroy func() error
}

func newTestEnv(t testing.TB, cfg suiteConfig, checked bool) *testEnv {
	e := &testEnv{
		resultChecker: &resultChecker{t, cfg.timeout}, cfg: cfg, core: &ib.Core{}, mem: umem.NewLocal(),
		checked: checked, allowed: slices.Clone(cfg.allowed),
	}
	if checked {
		check.On(e.core, check.Config{Report: func(v check.Violation) {
			e.mu.Lock()
			defer e.mu.Unlock()
			if !e.over && !slices.Contains(e.allowed, v.Rule) {
				t.Errorf("%v", v)
			}
		}, Timeout: min(2*time.Second, cfg.timeout/5), ClientTimeout: 3 * cfg.timeout})
	}
	e.handle = cfg.newDevice(t)
	e.dev = e.handle.Device()
	e.connector = newConnector(e.resultChecker, e.dev, cfg.gidIndex)
	if d, ok := ib.As[ib.Driver](userSide.Driver(e.dev)); ok {
		cfg.packages.addTypeOf(d)
		a, err := d.QueryDevice()
		e.must("query device", err)
		e.limitCaps(a)
	}
	t.Cleanup(e.destroyAll)
	return e
}

// destroyAll destroys the remaining objects, unregisters the device, and checks that nothing is left.
func (e *testEnv) destroyAll() {
	for _, o := range slices.Backward(slices.Clone(e.objects)) {
		e.destroy(o.what)
	}
	if e.registered {
		e.unregisterDevice()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

func (e *testEnv) registerDevice() {
	e.Helper()
	e.must("register the device", e.cfg.plug(e.core, e.handle))
	e.registered = true
	e.connector.selectGID()
}

func (e *testEnv) unregisterDevice() {
	e.Helper()
	e.registered = false
	if err := e.cfg.unplug(e.core, e.handle); err != nil && !e.Failed() {
		e.Errorf("unregister the device: %v", err)
	}
}

// destroyAtEnd registers x for destruction at the end of the test, unless destroy(x) is called earlier.
func destroyAtEnd[T any](e *testEnv, x T, destroy func() error) T {
	e.cfg.packages.addTypeOf(e.driverSideOf(x))
	e.objects = append(e.objects, ownedObject{x, destroy})
	return x
}

// driverSideOf returns the driver's side of an object, or nil if it is unknown.
func (e *testEnv) driverSideOf(x any) any {
	switch x := x.(type) {
	case *ib.PD:
		return e.handle.PD(x)
	case *ib.MR:
		return e.handle.MR(x)
	case *ib.MW:
		return e.handle.MW(x)
	case *ib.CQ:
		return e.handle.CQ(x)
	case *ib.QP:
		return e.handle.QP(x)
	case *ib.SRQ:
		return e.handle.SRQ(x)
	case *ib.AH:
		return e.handle.AH(x)
	}
	return nil
}

// destroy destroys an object of the test.
func (e *testEnv) destroy(x any) {
	e.Helper()
	if err := e.tryDestroy(x); err != nil && !e.Failed() {
		e.Errorf("destroy %T: %v", x, err)
	}
}

// tryDestroy is like destroy, but returns the error. After an error the object still exists.
func (e *testEnv) tryDestroy(x any) error {
	i := slices.IndexFunc(e.objects, func(o ownedObject) bool { return o.what == x })
	if i < 0 {
		return fmt.Errorf("%T does not belong to the test: %w", x, syscall.EINVAL)
	}
	err := e.objects[i].destroy()
	if err == nil {
		e.objects = slices.Delete(e.objects, i, i+1)
	}
	return err
}

// yieldAndCheckOver yields to other threads for a short time, and reports whether the limit is reached.
func (p *waitLimit) yieldAndCheckOver() bool {
	if p.yields < 100 { // a sleep takes longer than most calls
		p.yields++
		runtime.Gosched()
		return false
	}
	runtime.Gosched()
	time.Sleep(p.pause)
	p.pause = min(p.pause+p.pause/16, time.Millisecond)
	p.iterations--
	return p.iterations < 0 && time.Now().After(p.end)
}

// receiveFrom waits for a value from a channel, or for its close.
func receiveFrom[T any](e *testEnv, what string, c <-chan T) (v T) {
	e.Helper()
	select {
	case v = <-c:
	case <-time.After(e.cfg.timeout):
		e.Fatalf("timed out after %v: %s", e.cfg.timeout, what)
	}
	return v
}

func (e *testEnv) newPD() *ib.PD {
	e.Helper()
	pd, err := e.dev.AllocPD()
	e.must("alloc pd", err)
	return destroyAtEnd(e, pd, pd.Dealloc)
}

func (e *testEnv) newCQ(entries int, handler func(*ib.CQ)) *ib.CQ {
	e.Helper()
	cq, err := e.dev.CreateCQ(ib.CQInit{Entries: entries, Handler: handler})
	e.must("create cq", err)
	return destroyAtEnd(e, cq, cq.Destroy)
}

// registeredBuffer is registered memory.
type registeredBuffer struct {
	b    []byte
	addr uint64
	mr   *ib.MR
}

// allAccess holds all rights of a region.
const allAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic |
	ib.AccessMWBind

func (e *testEnv) newMemory(n int) ([]byte, uint64) {
	e.Helper()
	words := make([]uint64, (n+7)/8) // so that the buffer is aligned for atomics
	b := bytesOf(words)[:n]
	addr, err := e.mem.Add(b)
	e.must("add memory", err)
	return b, addr
}

// newBuffer registers n bytes. It omits rights that the driver does not support, if it supports the rest.
func (e *testEnv) newBuffer(pd *ib.PD, n int, access ib.AccessFlags) *registeredBuffer {
	e.Helper()
	return e.newBufferUsing(pd.RegMR, n, access)
}

// newBufferUsing is buffer with a function that registers.
func (e *testEnv) newBufferUsing(register func(ib.MRInit) (*ib.MR, error), n int,
	access ib.AccessFlags) *registeredBuffer {
	e.Helper()
	b, addr := e.newMemory(n)
	mr := e.registerSupported(register, ib.MRInit{Space: e.mem, Addr: addr, Length: uint64(n), IOVA: addr, Access: access})
	return &registeredBuffer{b, addr, mr}
}

// registerSupported registers memory with those of the rights that the driver supports.
func (e *testEnv) registerSupported(register func(ib.MRInit) (*ib.MR, error), init ib.MRInit) *ib.MR {
	e.Helper()
	var mr *ib.MR
	var err error
	access := init.Access
	for _, without := range []ib.AccessFlags{0, ib.AccessMWBind | ib.AccessRemoteAtomic,
		^(ib.AccessLocalWrite | ib.AccessRemoteRead), ^ib.AccessLocalWrite} {
		init.Access = access &^ without
		if mr, err = register(init); !errors.Is(err, syscall.EOPNOTSUPP) {
			break
		}
	}
	if most := e.deviceAttr().MaxMRSize; err != nil && init.Length > most {
		e.Skipf("the driver has no regions of %d bytes: MaxMRSize is %d", init.Length, most)
	}
	e.must("register memory", err)
	return destroyAtEnd(e, mr, mr.Dereg)
}

// newSGE returns n bytes at an offset.
func (b *registeredBuffer) newSGE(off, n int) ib.SGE {
	return ib.SGE{Addr: b.addr + uint64(off), Length: uint32(n), LKey: b.mr.LKey()}
}

func (b *registeredBuffer) newSGL(off, n int) []ib.SGE { return []ib.SGE{b.newSGE(off, n)} }

// fillPattern writes a pattern that depends on seed.
func fillPattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + seed*13 + 1)
	}
}

// The capacities that the tests request if the device supports them.
const (
	fullQueueLen = 64
	fullSGE      = 4
)

// defaultQPCap returns the default capacities of queue pairs.
func (e *testEnv) defaultQPCap() ib.QPCap {
	return ib.QPCap{
		MaxSendWR: uint32(e.queueLen), MaxRecvWR: uint32(e.queueLen), MaxSendSGE: uint32(e.sendSGE),
		MaxRecvSGE: uint32(e.recvSGE),
	}
}

// limitCaps limits the requested capacities to the limits of the device.
func (e *testEnv) limitCaps(a ib.DeviceAttr) {
	e.limits = a
	e.queueLen = max(1, min(fullQueueLen, a.MaxQPWR, a.MaxCQE/16))
	e.sendSGE, e.recvSGE = max(1, min(fullSGE, a.MaxSendSGE)), max(1, min(fullSGE, a.MaxRecvSGE))
}

// newQP creates a queue pair. Fields of init that are not set get a default.
func (e *testEnv) newQP(pd *ib.PD, init ib.QPInitAttr) *ib.QP {
	e.Helper()
	c, full := &init.Cap, e.defaultQPCap()
	if c.MaxSendWR == 0 && init.Type != ib.QPTypeXRCTgt {
		c.MaxSendWR, c.MaxSendSGE = full.MaxSendWR, full.MaxSendSGE
	}
	if c.MaxRecvWR == 0 && init.SRQ == nil && init.Type != ib.QPTypeXRCTgt && init.Type != ib.QPTypeXRCInit {
		c.MaxRecvWR, c.MaxRecvSGE = full.MaxRecvWR, full.MaxRecvSGE
	}
	qp, err := pd.CreateQP(init)
	e.requireFeature(fmt.Sprintf("queue pairs of type %v", init.Type), err)
	return destroyAtEnd(e, qp, qp.Destroy)
}

// Masks of the ordinary transitions up to RTS, by type.
const (
	toInit = ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	toRTR  = ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	toRTS  = ib.QPAttrState | ib.QPAttrSQPSN
	remote = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic

	qkey = 0x11223344
)

// transitionMask returns the mask of the transition to a state.
func transitionMask(kind ib.QPType, s ib.QPState) ib.QPAttrMask {
	datagram := kind == ib.QPTypeUD || kind == ib.QPTypeSRD
	requester := kind == ib.QPTypeRC || kind == ib.QPTypeXRCInit
	responder := kind == ib.QPTypeRC || kind == ib.QPTypeXRCTgt
	switch {
	case s == ib.QPInit && datagram:
		return toInit | ib.QPAttrQKey
	case s == ib.QPInit:
		return toInit | ib.QPAttrAccessFlags
	case s == ib.QPRTR && datagram:
		return ib.QPAttrState
	case s == ib.QPRTR && responder:
		return toRTR | ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
	case s == ib.QPRTR:
		return toRTR
	case requester:
		return toRTS | ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
	case responder:
		return toRTS | ib.QPAttrTimeout
	}
	return toRTS
}

// pair is two connected queue pairs with a completion queue and a buffer each.
type pair struct {
	e   *testEnv
	pd  *ib.PD
	cqs [2]*ib.CQ
	qps [2]*ib.QP
	buf [2]*registeredBuffer
}

type pairConfig struct {
	kind     ib.QPType
	handlers [2]func(*ib.CQ)
	entries  int // length of each completion queue; 0: twice the length of a queue
	srq      *ib.SRQ
	pd       *ib.PD
	sigAll   bool
	event    func(*ib.QP, ib.EventType)
}

const pairBufferLen = 32 << 10

func (e *testEnv) newPair(c pairConfig) *pair {
	e.Helper()
	p := &pair{e: e, pd: c.pd}
	if p.pd == nil {
		p.pd = e.newPD()
	}
	if c.entries == 0 {
		c.entries = 2 * e.queueLen
	}
	for i := range p.qps {
		p.cqs[i] = e.newCQ(c.entries, c.handlers[i])
		p.buf[i] = e.newBuffer(p.pd, pairBufferLen, allAccess)
		p.qps[i] = e.newQP(p.pd, ib.QPInitAttr{
			SendCQ: p.cqs[i], RecvCQ: p.cqs[i], Type: c.kind, SRQ: c.srq, SigAll: c.sigAll, Event: c.event,
		})
	}
	for i := range p.qps {
		e.connector.moveQPUpTo(p.qps[i], p.qps[1-i].Num(), ib.QPRTS)
	}
	return p
}

// newAH returns an address handle to the device itself.
func (e *testEnv) newAH(pd *ib.PD) *ib.AH {
	e.Helper()
	a := e.connector.ownAddress()
	ah, err := pd.CreateAH(&a)
	e.requireFeature("address handles", err)
	return destroyAtEnd(e, ah, ah.Destroy)
}

// postSend posts a signaled SEND of n bytes from the beginning of the buffer.
func (p *pair) postSend(side int, id uint64, n int) {
	p.e.Helper()
	p.postSendWR(side, ib.SendWR{ID: id, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: p.buf[side].newSGL(0, n)})
}

// postSendWR posts a work request and fails the test if it is rejected. It skips the test if the driver lacks the
// operation.
func (p *pair) postSendWR(side int, wr ib.SendWR) {
	p.e.Helper()
	n, err := p.qps[side].PostSend(wr)
	if p.isUnsupportedPost(wr.Opcode, err) {
		p.e.Skipf("the driver has no operation with opcode %v", wr.Opcode)
	}
	if n != 1 || err != nil {
		p.e.Fatalf("post send: %d taken, %v", n, err)
	}
}

// mustPostRecv posts a receive for up to n bytes at an offset of the buffer.
func (p *pair) postRecv(side int, id uint64, off, n int) {
	p.e.Helper()
	if k, err := p.qps[side].PostRecv(ib.RecvWR{ID: id, SGList: p.buf[side].newSGL(off, n)}); k != 1 || err != nil {
		p.e.Fatalf("post receive: %d taken, %v", k, err)
	}
}

// exchangeMessage sends one message from side to the other, and checks that it arrives.
func (p *pair) exchangeMessage(side int, id uint64, n int) {
	p.e.Helper()
	other := 1 - side
	fillPattern(p.buf[side].b[:n], int(id))
	clear(p.buf[other].b[:n])
	p.postRecv(other, id, 0, n)
	p.postSend(side, id, n)
	p.e.waitOneCompletion(p.cqs[side], id, ib.WCSuccess)
	wc := p.e.waitOneCompletion(p.cqs[other], id, ib.WCSuccess)
	if int(wc.ByteLen) != n || !slices.Equal(p.buf[0].b[:n], p.buf[1].b[:n]) {
		p.e.Fatalf("message of %d bytes arrived as %d bytes, the same: %v", n, wc.ByteLen,
			slices.Equal(p.buf[0].b[:n], p.buf[1].b[:n]))
	}
}
