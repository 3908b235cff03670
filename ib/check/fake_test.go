package check_test

import (
	"testing"

	"go.uber.org/goleak"

	"verbena/ib"
	"verbena/ib/ibfake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hooked is a driver with methods that call its fields of the same names, if not nil.
type hooked struct {
	*ibfake.Driver
	onPost, onPoll, onNotify, onQuery, onDestroy func()

	// The next fields replace the normal results of methods.
	post func() (int, error)
	poll func() (int, error)
	arm  func() (bool, error)

	cq *hookedCQ // created last
	qp *hookedQP
}

func do(f func()) {
	if f != nil {
		f()
	}
}

func (d *hooked) QueryDevice() (ib.DeviceAttr, error) {
	do(d.onQuery)
	return d.Driver.QueryDevice()
}

func (d *hooked) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	c, err := d.Driver.CreateCQ(h, attr, u)
	if err != nil {
		return nil, err
	}
	d.cq = &hookedCQ{c.(*ibfake.CQ), d}
	return d.cq, nil
}

func (d *hooked) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	q, err := d.Driver.CreateQP(h, init, u)
	if err != nil {
		return nil, err
	}
	init.Cap = ib.QPCap{} // without limits, work requests are not tracked
	d.qp = &hookedQP{q.(*ibfake.QP), d}
	return d.qp, nil
}

func (d *hooked) CreateAH(pd ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	ah, err := d.Driver.CreateAH(pd, attr, u)
	return hookedAH{ah, d}, err
}

type hookedAH struct {
	ib.DriverAH
	d *hooked
}

func (a hookedAH) Destroy() error {
	do(a.d.onDestroy)
	return a.DriverAH.Destroy()
}

type hookedCQ struct {
	*ibfake.CQ
	d *hooked
}

func (c *hookedCQ) Poll(wc []ib.WC) (int, error) {
	do(c.d.onPoll)
	if c.d.poll != nil {
		return c.d.poll()
	}
	return c.CQ.Poll(wc)
}

func (c *hookedCQ) ReqNotify(flags ib.NotifyFlags) (bool, error) {
	do(c.d.onNotify)
	if c.d.arm != nil {
		return c.d.arm()
	}
	return c.CQ.ReqNotify(flags)
}

// hookedQP completes each send inside PostSend.
type hookedQP struct {
	*ibfake.QP
	d *hooked
}

func (q *hookedQP) PostSend(wrs []ib.SendWR) (int, error) {
	do(q.d.onPost)
	if q.d.post != nil {
		return q.d.post()
	}
	for range wrs {
		q.d.cq.Complete(ib.WC{})
	}
	return len(wrs), nil
}

// bench is a registered device with a protection domain and two queues.
type bench struct {
	core   *ib.Core
	handle *ib.DeviceHandle
	dev    *ib.Device
	drv    *hooked
	pd     *ib.PD
	cq     *ib.CQ
	qp     *ib.QP
}

func newDevice(name string) (*ib.DeviceHandle, *hooked) {
	drv := &hooked{Driver: ibfake.New()}
	return ib.NewDevice(name, drv, nil), drv
}

func newBenchOn(t testing.TB, core *ib.Core, handler func(*ib.CQ), qpEvent func(*ib.QP, ib.EventType)) *bench {
	t.Helper()
	return newBenchNamed(t, core, "fake0", handler, qpEvent)
}

func newBenchNamed(t testing.TB, core *ib.Core, name string, handler func(*ib.CQ),
	qpEvent func(*ib.QP, ib.EventType)) *bench {
	t.Helper()
	b := &bench{core: core}
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

// free destroys the objects and unregisters the device.
func (b *bench) free(t testing.TB) {
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

func second[T any](_ T, err error) error { return err }
