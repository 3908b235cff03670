package check_test

import (
	"testing"

	"go.uber.org/goleak"

	"verbena/ib"
	"verbena/ib/ibfake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hookedDriver is a driver with methods that call its fields of the same names, if not nil.
type hookedDriver struct {
	*ibfake.Driver
	onPost, onPoll, onNotify, onQuery, onDestroy func()

	// The next fields replace the normal results of methods.
	post func() (int, error)
	poll func() (int, error)
	arm  func() (bool, error)

	cq *hookedCQ // created last
	qp *hookedQP
}

func callIfSet(f func()) {
	if f != nil {
		f()
	}
}

func (d *hookedDriver) QueryDevice() (ib.DeviceAttr, error) {
	callIfSet(d.onQuery)
	return d.Driver.QueryDevice()
}

func (d *hookedDriver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	c, err := d.Driver.CreateCQ(h, attr, u)
	if err != nil {
		return nil, err
	}
	d.cq = &hookedCQ{c.(*ibfake.CQ), d}
	return d.cq, nil
}

func (d *hookedDriver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	q, err := d.Driver.CreateQP(h, init, u)
	if err != nil {
		return nil, err
	}
	init.Cap = ib.QPCap{} // without limits, work requests are not tracked
	d.qp = &hookedQP{q.(*ibfake.QP), d}
	return d.qp, nil
}

func (d *hookedDriver) CreateAH(pd ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	ah, err := d.Driver.CreateAH(pd, attr, u)
	return hookedAH{ah, d}, err
}

type hookedAH struct {
	ib.DriverAH
	d *hookedDriver
}

func (a hookedAH) Destroy() error {
	callIfSet(a.d.onDestroy)
	return a.DriverAH.Destroy()
}

type hookedCQ struct {
	*ibfake.CQ
	d *hookedDriver
}

func (c *hookedCQ) Poll(wc []ib.WC) (int, error) {
	callIfSet(c.d.onPoll)
	if c.d.poll != nil {
		return c.d.poll()
	}
	return c.CQ.Poll(wc)
}

func (c *hookedCQ) ReqNotify(flags ib.NotifyFlags) (bool, error) {
	callIfSet(c.d.onNotify)
	if c.d.arm != nil {
		return c.d.arm()
	}
	return c.CQ.ReqNotify(flags)
}

// hookedQP completes each send inside PostSend.
type hookedQP struct {
	*ibfake.QP
	d *hookedDriver
}

func (q *hookedQP) PostSend(wrs []ib.SendWR) (int, error) {
	callIfSet(q.d.onPost)
	if q.d.post != nil {
		return q.d.post()
	}
	for range wrs {
		q.d.cq.Complete(ib.WC{})
	}
	return len(wrs), nil
}

// testBench is a registered device with a protection domain and two queues.
type testBench struct {
	core   *ib.Core
	handle *ib.DeviceHandle
	dev    *ib.Device
	drv    *hookedDriver
	pd     *ib.PD
	cq     *ib.CQ
	qp     *ib.QP
}

func newDevice(name string) (*ib.DeviceHandle, *hookedDriver) {
	drv := &hookedDriver{Driver: ibfake.New()}
	return ib.NewDevice(name, drv, nil), drv
}

func newBenchOn(t testing.TB, core *ib.Core, handler func(*ib.CQ), qpEvent func(*ib.QP, ib.EventType)) *testBench {
	t.Helper()
	return newBenchNamed(t, core, "fake0", handler, qpEvent)
}

func newBenchNamed(t testing.TB, core *ib.Core, name string, handler func(*ib.CQ),
	qpEvent func(*ib.QP, ib.EventType)) *testBench {
	t.Helper()
	b := &testBench{core: core}
	b.handle, b.drv = newDevice(name)
	b.dev = b.handle.Device()
	must(t, core.Register(b.handle))
	var err error
	b.pd, err = b.dev.AllocPD()
	must(t, err)
	b.cq, err = b.dev.CreateCQ(ib.CQInit{Entries: 16, Handler: handler})
	must(t, err)
	b.qp, err = b.pd.CreateQP(ib.QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, Type: ib.QPTypeRC, Event: qpEvent})
	must(t, err)
	return b
}

// destroyAll destroys the objects and unregisters the device.
func (b *testBench) destroyAll(t testing.TB) {
	t.Helper()
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
	must(t, b.core.Unregister(b.handle))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func errorOf[T any](_ T, err error) error { return err }
