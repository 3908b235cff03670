package ib

import (
	"syscall"
	"testing"
	"time"

	"verbena/umem"
)

// fullDriver implements every optional interface. The methods of its objects do nothing.
type fullDriver struct{ *fakeDriver }

func (d fullDriver) QueryPort(port int) (PortAttr, error) {
	if port < 1 || port > 2 {
		return PortAttr{}, syscall.EINVAL
	}
	return PortAttr{State: PortActive, GIDTableLen: 3, PKeyTableLen: 4}, nil
}

func (d fullDriver) QueryDevice() (DeviceAttr, error) { return DeviceAttr{PhysPorts: 2}, nil }

// QueryGID returns the GID fe80::<port>:<index>, RoCEv2.
func (d fullDriver) QueryGID(port, i int) (GIDEntry, error) {
	return GIDEntry{GID: GID{0: 0xfe, 1: 0x80, 13: byte(port), 15: byte(i)}, Type: GIDTypeRoCEv2}, nil
}

func (d fullDriver) QueryPKey(port, i int) (uint16, error) {
	return [...]uint16{0x7fff, 0x0001, 0xffff, 0x8002}[i], nil
}

func (d fullDriver) CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error) {
	return &fullCQ{fakeCQ: fakeCQ{d: d.fakeDriver, cq: cq}}, d.injectedError("create cq")
}

func (d fullDriver) CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error) {
	return &fullQP{fakeQP: *newFakeQP(d.fakeDriver, qp, init)}, d.injectedError("create qp")
}

func (d fullDriver) CreateSRQ(srq SRQHandle, init *DriverSRQInit, u *Udata) (DriverSRQ, error) {
	srq.SetNum(7)
	return fakeSRQ{d.fakeDriver}, d.injectedError("create srq")
}

func (d fullDriver) AllocMW(mw MWHandle, pd DriverPD, kind MWType, u *Udata) (DriverMW, error) {
	mw.SetRKey(0x100)
	return fakeMW{d.fakeDriver}, d.injectedError("alloc mw")
}

func (d fullDriver) AllocMR(mr MRHandle, pd DriverPD, maxPages int) (DriverMR, error) {
	mr.SetKeys(0x1200, 0x1200)
	return &fakeFastMR{fakeMR: fakeMR{d.fakeDriver}}, d.injectedError("alloc mr")
}

func (d fullDriver) RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR, error) {
	m, err := d.fakeDriver.RegMR(mr, pd, r, access, u)
	return &fakeReregMR{fakeMR: m.(fakeMR)}, err
}

func (d fullDriver) AllocXRCD(u *Udata) (DriverXRCD, error) {
	return fakePD{d.fakeDriver}, d.injectedError("alloc xrcd")
}

type fullCQ struct {
	fakeCQ
	count  int
	period time.Duration
}

func (c *fullCQ) Moderate(count int, period time.Duration) error {
	c.count, c.period = count, period
	return nil
}

func (c *fullCQ) Resize(entries int, u *Udata) error {
	c.cq.SetEntries(entries + 1)
	return nil
}

type fullQP struct{ fakeQP }

func (q *fullQP) AttachMcast(gid GID, lid uint16) error { return q.d.injectedError("attach") }
func (q *fullQP) DetachMcast(gid GID, lid uint16) error { return q.d.injectedError("detach") }

type fakeSRQ struct{ d *fakeDriver }

func (s fakeSRQ) PostRecv(wrs []RecvWR) (int, error)         { return len(wrs), nil }
func (s fakeSRQ) Modify(*SRQAttr, SRQAttrMask, *Udata) error { return s.d.injectedError("modify srq") }
func (s fakeSRQ) Query() (SRQAttr, error) {
	return SRQAttr{MaxWR: 5},
		s.d.injectedError("query srq")
}
func (s fakeSRQ) Destroy() error { return s.d.recordDestroy("destroy srq") }

type fakeMW struct{ d *fakeDriver }

func (m fakeMW) Dealloc() error { return m.d.recordDestroy("dealloc mw") }

// fakeReregMR records the arguments of Rereg.
type fakeReregMR struct {
	fakeMR
	region *umem.Region
	pd     DriverPD
	access AccessFlags
}

func (m *fakeReregMR) Rereg(r *umem.Region, pd DriverPD, access AccessFlags, u *Udata) error {
	if err := m.d.injectedError("rereg"); err != nil {
		return err
	}
	m.region, m.pd, m.access = r, pd, access
	return nil
}

type fakeFastMR struct {
	fakeMR
	mapped *umem.Region
}

func (m *fakeFastMR) Map(r *umem.Region) error {
	if err := m.d.injectedError("map"); err != nil {
		return err
	}
	m.mapped = r
	return nil
}

// newFullBench is newBench on a driver with every optional interface.
func newFullBench(t testing.TB) *testBench {
	t.Helper()
	return newFullBenchOn(t, &Core{})
}

func newFullBenchOn(t testing.TB, core *Core) *testBench {
	t.Helper()
	drv := &fakeDriver{}
	return newBenchOfDriver(t, core, drv, fullDriver{drv})
}

// newBenchWithGIDTable is newFullBench with a GID table.
func newBenchWithGIDTable(t testing.TB, d gidDriver) *testBench {
	t.Helper()
	return newBenchOfDriver(t, &Core{}, d.fakeDriver, d)
}

func newBenchOfDriver(t testing.TB, core *Core, fake *fakeDriver, d Driver) *testBench {
	t.Helper()
	b := &testBench{core: core, drv: fake}
	b.dev = NewDevice("full0", d, nil).Device()
	must(t, b.core.Register(&b.dev.handle))
	var err error
	b.pd, err = b.dev.AllocPD()
	must(t, err)
	b.cq, err = b.dev.CreateCQ(CQInit{Entries: 16})
	must(t, err)
	b.qp, err = b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, Type: QPTypeUD})
	must(t, err)
	return b
}
