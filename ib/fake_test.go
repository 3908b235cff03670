package ib

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"verbena/umem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDriver is a minimal driver. The objects of a fakeDriver do nothing, except for its completion queues, which count
// completions.
type fakeDriver struct {
	fail  func(what string) error // makes a method fail; may be nil
	nextQ atomic.Uint32
	calls atomic.Int32 // number of calls of destroy methods
	// The next fields are additional actions of the methods of the same name. These actions may be nil.
	onPost, onPoll, onNotify, onQuery, onDestroy func()
}

func callIfSet(f func()) {
	if f != nil {
		f()
	}
}

func (d *fakeDriver) injectedError(what string) error {
	if d.fail == nil {
		return nil
	}
	return d.fail(what)
}

func (d *fakeDriver) QueryDevice() (DeviceAttr, error) {
	callIfSet(d.onQuery)
	return DeviceAttr{PhysPorts: 1}, nil
}

func (d *fakeDriver) QueryPort(int) (PortAttr, error)           { return PortAttr{State: PortActive}, nil }
func (d *fakeDriver) QueryGID(port, i int) (GIDEntry, error)    { return GIDEntry{}, nil }
func (d *fakeDriver) QueryPKey(port, index int) (uint16, error) { return 0xffff, nil }

func (d *fakeDriver) AllocPD(*Udata) (DriverPD, error) {
	return fakePD{d}, d.injectedError("alloc pd")
}

func (d *fakeDriver) RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR, error) {
	mr.SetKeys(1, 2)
	return fakeMR{d}, d.injectedError("reg mr")
}

func (d *fakeDriver) CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error) {
	return &fakeCQ{d: d, cq: cq}, d.injectedError("create cq")
}

func (d *fakeDriver) CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error) {
	qp.SetNum(d.nextQ.Add(1))
	return newFakeQP(d, qp, init), d.injectedError("create qp")
}

func (d *fakeDriver) CreateAH(pd DriverPD, attr *AHAttr, u *Udata) (DriverAH, error) {
	return fakeAH{d}, d.injectedError("create ah")
}

func (d *fakeDriver) EnterError() { _ = d.injectedError("error state") }

func (d *fakeDriver) recordDestroy(what string) error {
	d.calls.Add(1)
	callIfSet(d.onDestroy)
	return d.injectedError(what)
}

type fakePD struct{ d *fakeDriver }

func (p fakePD) Dealloc() error { return p.d.recordDestroy("dealloc pd") }

type fakeMR struct{ d *fakeDriver }

func (m fakeMR) Dereg() error { return m.d.recordDestroy("dereg mr") }

type fakeAH struct{ d *fakeDriver }

func (a fakeAH) Modify(*AHAttr) error   { return nil }
func (a fakeAH) Query() (AHAttr, error) { return AHAttr{}, nil }
func (a fakeAH) Destroy() error         { return a.d.recordDestroy("destroy ah") }

// fakeCQ counts completions but does not store them.
type fakeCQ struct {
	d  *fakeDriver
	cq CQHandle

	mu      sync.Mutex
	waiting int
	armed   bool
}

// raiseCompletion reports a completion like a driver that has finished a work request.
func (c *fakeCQ) raiseCompletion() {
	c.mu.Lock()
	c.waiting++
	notify := c.armed
	c.armed = false
	c.mu.Unlock()
	if notify {
		c.cq.Completed()
	}
}

func (c *fakeCQ) Poll(wc []WC) (int, error) {
	callIfSet(c.d.onPoll)
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(wc), c.waiting)
	c.waiting -= n
	return n, nil
}

func (c *fakeCQ) ReqNotify(flags NotifyFlags) (bool, error) {
	callIfSet(c.d.onNotify)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return flags&NotifyReportMissed != 0 && c.waiting > 0, nil
}

func (c *fakeCQ) Destroy() error { return c.d.recordDestroy("destroy cq") }

// fakeQP completes each work request inside PostSend.
type fakeQP struct {
	d      *fakeDriver
	typ    QPType
	sendCQ *fakeCQ // may be nil
	state  atomic.Int32
}

func newFakeQP(d *fakeDriver, qp QPHandle, init *DriverQPInit) *fakeQP {
	c, ok := As[*fakeCQ](init.SendCQ)
	if full, is := As[*fullCQ](init.SendCQ); !ok && is {
		c = &full.fakeCQ
	}
	return &fakeQP{d: d, typ: init.Type, sendCQ: c}
}

func (q *fakeQP) PostSend(wrs []SendWR) (int, error) {
	callIfSet(q.d.onPost)
	for range wrs {
		q.sendCQ.raiseCompletion()
	}
	return len(wrs), nil
}

func (q *fakeQP) PostRecv(wrs []RecvWR) (int, error) { return 0, syscall.ENOMEM }

func (q *fakeQP) Modify(attr *QPAttr, mask QPAttrMask, u *Udata) error {
	if err := q.d.injectedError("modify qp"); err != nil {
		return err
	}
	next, err := NextState(q.State(), q.typ, attr, mask)
	if err == nil {
		q.state.Store(int32(next))
	}
	return err
}

func (q *fakeQP) State() QPState { return QPState(q.state.Load()) }

func (q *fakeQP) Query(mask QPAttrMask) (QPAttr, error) { return QPAttr{State: q.State()}, nil }

func (q *fakeQP) Destroy() error { return q.d.recordDestroy("destroy qp") }

// testBench is a registered device with one object of each kind.
type testBench struct {
	core *Core
	drv  *fakeDriver
	dev  *Device
	pd   *PD
	cq   *CQ
	qp   *QP
}

func newDevice(name string) (*Device, *fakeDriver) {
	drv := &fakeDriver{}
	return NewDevice(name, drv, nil).Device(), drv
}

// newBench creates a bench. The test may destroy the objects or leave them undestroyed.
func newBench(t testing.TB, handler func(*CQ), cqEvent func(*CQ, EventType), qpEvent func(*QP, EventType)) *testBench {
	t.Helper()
	return newBenchOn(t, &Core{}, handler, cqEvent, qpEvent)
}

func newBenchOn(t testing.TB, core *Core, handler func(*CQ), cqEvent func(*CQ, EventType),
	qpEvent func(*QP, EventType)) *testBench {
	t.Helper()
	return newBenchNamed(t, core, "fake0", handler, cqEvent, qpEvent)
}

func newBenchNamed(t testing.TB, core *Core, name string, handler func(*CQ), cqEvent func(*CQ, EventType),
	qpEvent func(*QP, EventType)) *testBench {
	t.Helper()
	b := &testBench{core: core}
	b.dev, b.drv = newDevice(name)
	must(t, b.core.Register(&b.dev.handle))
	var err error
	b.pd, err = b.dev.AllocPD()
	must(t, err)
	b.cq, err = b.dev.CreateCQ(CQInit{Entries: 16, Handler: handler, Event: cqEvent})
	must(t, err)
	b.qp, err = b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, Type: QPTypeRC, Event: qpEvent})
	must(t, err)
	return b
}

// destroyAll destroys the objects and unregisters the device.
func (b *testBench) destroyAll(t testing.TB) {
	t.Helper()
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
	must(t, b.core.Unregister(&b.dev.handle))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
