package uverbs

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
	"verbena/umem"
)

// fakeDriver is a driver whose objects do only what the tests look at.
type fakeDriver struct {
	gids []ib.GIDEntry
	qpn  atomic.Uint32
	keys atomic.Uint32

	mu       sync.Mutex
	fail     map[string]error // methods that fail
	gate     map[string]chan struct{}
	entered  chan string // methods that wait at their gate say so here
	contexts int
	log      []string // what was destroyed
	udataIn  []byte   // what the last command had for the driver
}

var (
	_ ib.UserContexter = (*fakeDriver)(nil)
	_ ib.AHDriver      = (*fakeDriver)(nil)
	_ UserABI          = (*fakeDriver)(nil)
	_ ib.UserQP        = (*fakeQP)(nil)
	_ ib.CQResizer     = (*fakeCQ)(nil)
	_ ib.MWDriver      = (*fakeDriver)(nil)
	_ ib.ReregMR       = fakeMR{}
)

const fakeCQMax = 1 << 10

// enter is the start of every method: it waits at the method's gate, if there is one, and fails if it is to.
func (d *fakeDriver) enter(method string) error {
	d.mu.Lock()
	gate, err := d.gate[method], d.fail[method]
	d.mu.Unlock()
	if gate != nil {
		d.entered <- method
		<-gate
	}
	return err
}

// failing makes a method fail; nil ends that.
func (d *fakeDriver) failing(method string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail == nil {
		d.fail = map[string]error{}
	}
	d.fail[method] = err
}

// hold makes a method wait until the returned function is called. entered tells that it does.
func (d *fakeDriver) hold(method string) (entered <-chan string, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate, d.entered = map[string]chan struct{}{method: gate}, make(chan string, 1)
	return d.entered, func() {
		d.mu.Lock()
		delete(d.gate, method)
		d.mu.Unlock()
		close(gate)
	}
}

func (d *fakeDriver) destroyed(what string) error {
	if err := d.enter("destroy " + what); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, what)
	return nil
}

func (d *fakeDriver) takeLog() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.log
	d.log = nil
	return log
}

func (d *fakeDriver) UserABI() (uint32, uint32) { return uint32(uapi.DriverRXE), 2 }

func (d *fakeDriver) AllocUserContext(u *ib.Udata) error {
	if err := d.enter("alloc context"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts++
	return nil
}

func (d *fakeDriver) DeallocUserContext(ib.UserContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts--
}

func (d *fakeDriver) QueryDevice() (ib.DeviceAttr, error) {
	return ib.DeviceAttr{
		FWVer: 1, NodeGUID: 0x0102030405060708, SysImageGUID: 0x1112131415161718, MaxMRSize: 1 << 40, VendorID: 0xffffff,
		MaxQP: 100, MaxQPWR: 1000, DeviceCapFlags: 0x1_0000_0002, MaxSendSGE: 32, MaxRecvSGE: 30, MaxCQ: 200, MaxCQE: fakeCQMax,
		AtomicCap: ib.AtomicHCA, MaxPKeys: 64, LocalCAAckDelay: 15, PhysPorts: 1,
	}, d.enter("query device")
}

func (d *fakeDriver) QueryPort(port int) (ib.PortAttr, error) {
	return ib.PortAttr{
		State: ib.PortActive, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU1024, GIDTableLen: len(d.gids), PKeyTableLen: 1,
		CapFlags: uint32(uapi.PCFCMSup), MaxMsgSize: 1 << 23, ActiveWidth: 1, ActiveSpeed: 1, PhysState: 5, LinkLayer: ib.LinkEthernet,
	}, d.enter("query port")
}

func (d *fakeDriver) QueryGID(port, index int) (ib.GIDEntry, error) {
	if index < 0 || index >= len(d.gids) {
		return ib.GIDEntry{}, syscall.EINVAL
	}
	return d.gids[index], nil
}

func (d *fakeDriver) QueryPKey(port, index int) (uint16, error) { return 0xffff, nil }

func (d *fakeDriver) EnterError() {}

func (d *fakeDriver) AllocPD(u *ib.Udata) (ib.DriverPD, error) {
	return &fakeObject{d, "PD"}, d.enter("alloc pd")
}

func (d *fakeDriver) RegMR(mr ib.MRHandle, pd ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR, error) {
	key := d.keys.Add(1)
	mr.SetKeys(key, key<<8)
	return fakeMR{&fakeObject{d, "MR"}, mr}, d.enter("reg mr")
}

func (d *fakeDriver) CreateAH(pd ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	u.Respond([]byte{7, 0, 0, 0})
	return &fakeAH{fakeObject: fakeObject{d, "AH"}, attr: *attr}, d.enter("create ah")
}

// fakeCQResponse and fakeQPResponse stand for the places of the queues.
var (
	fakeCQResponse = []byte("the CQ's mminfo.")
	fakeQPResponse = []byte("the RQ's mminfo.the SQ's mminfo.")
)

func (d *fakeDriver) CreateCQ(cq ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	if attr.Entries > fakeCQMax {
		return nil, syscall.EINVAL
	}
	if attr.Flags != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	cq.SetEntries(attr.Entries + 1)
	u.Respond(fakeCQResponse)
	d.mu.Lock()
	d.udataIn = slices.Clone(u.In)
	d.mu.Unlock()
	return &fakeCQ{d: d, cq: cq}, d.enter("create cq")
}

func (d *fakeDriver) CreateQP(qp ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	if init.Type != ib.QPTypeRC && init.Type != ib.QPTypeUC && init.Type != ib.QPTypeUD {
		return nil, syscall.EOPNOTSUPP
	}
	qp.SetNum(16 + d.qpn.Add(1))
	init.Cap.MaxSendWR++
	u.Respond(fakeQPResponse)
	return &fakeQP{d: d, qp: qp, typ: init.Type}, d.enter("create qp")
}

type fakeObject struct {
	d    *fakeDriver
	kind string
}

func (o *fakeObject) Dealloc() error { return o.d.destroyed(o.kind) }
func (o *fakeObject) Destroy() error { return o.d.destroyed(o.kind) }

type fakeMR struct {
	*fakeObject
	mr ib.MRHandle
}

func (m fakeMR) Dereg() error { return m.Dealloc() }

func (m fakeMR) Rereg(r *umem.Region, pd ib.DriverPD, access ib.AccessFlags, u *ib.Udata) error {
	if err := m.d.enter("rereg mr"); err != nil {
		return err
	}
	key := m.d.keys.Add(1)
	m.mr.SetKeys(key, key<<8)
	return nil
}

func (d *fakeDriver) AllocMW(mw ib.MWHandle, pd ib.DriverPD, kind ib.MWType, u *ib.Udata) (ib.DriverMW, error) {
	mw.SetRKey(d.keys.Add(1) << 8)
	return &fakeObject{d, "MW"}, d.enter("alloc mw")
}

type fakeAH struct {
	fakeObject
	attr ib.AHAttr
}

func (a *fakeAH) Modify(attr *ib.AHAttr) error { return nil }
func (a *fakeAH) Query() (ib.AHAttr, error)    { return a.attr, nil }

type fakeCQ struct {
	d  *fakeDriver
	cq ib.CQHandle

	mu    sync.Mutex
	wcs   []ib.WC
	armed bool
}

// complete is a completion, which notifies if the queue is armed.
func (c *fakeCQ) complete(wc ib.WC) {
	c.mu.Lock()
	c.wcs = append(c.wcs, wc)
	notify := c.armed
	c.armed = false
	c.mu.Unlock()
	if notify {
		c.cq.Completed()
	}
}

func (c *fakeCQ) Poll(wc []ib.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[n:]
	return n, c.d.enter("poll cq")
}

func (c *fakeCQ) ReqNotify(flags ib.NotifyFlags) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return false, nil
}

func (c *fakeCQ) Resize(entries int, u *ib.Udata) error {
	if entries > fakeCQMax {
		return syscall.EINVAL
	}
	u.Respond(fakeCQResponse)
	err := c.d.enter("resize cq")
	if err == nil {
		c.cq.SetEntries(entries + 1)
	}
	return err
}

func (c *fakeCQ) Destroy() error { return c.d.destroyed("CQ") }

type fakeQP struct {
	d   *fakeDriver
	qp  ib.QPHandle
	typ ib.QPType

	posted, rung atomic.Int32

	mu   sync.Mutex
	attr ib.QPAttr
	mask ib.QPAttrMask // of the last Modify
	sent []ib.SendWR
	recv []ib.RecvWR
}

// fakeQPRoom is how many work requests a queue takes.
const fakeQPRoom = 3

func (q *fakeQP) Posted() bool { return q.posted.Load() > 0 }

func (q *fakeQP) Doorbell() {
	_ = q.d.enter("doorbell")
	q.rung.Add(1)
	q.posted.Store(0)
}

func (q *fakeQP) PostSend(wrs []ib.SendWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(wrs), fakeQPRoom-len(q.sent))
	q.sent = append(q.sent, wrs[:n]...)
	if n < len(wrs) {
		return n, syscall.ENOMEM
	}
	return n, nil
}

func (q *fakeQP) PostRecv(wrs []ib.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(wrs), fakeQPRoom-len(q.recv))
	q.recv = append(q.recv, wrs[:n]...)
	if n < len(wrs) {
		return n, syscall.ENOMEM
	}
	return n, nil
}

func (q *fakeQP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	if err := q.d.enter("modify qp"); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	next, err := ib.NextState(q.attr.State, q.typ, attr, mask)
	if err == nil {
		q.attr, q.mask = *attr, mask
		q.attr.State = next
	}
	return err
}

// ready has the queue pair say that it can send.
func (q *fakeQP) ready() *fakeQP {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attr.State = ib.QPRTS
	return q
}

func (q *fakeQP) State() ib.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr.State
}

func (q *fakeQP) Query(ib.QPAttrMask) (ib.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr, q.d.enter("query qp")
}

func (q *fakeQP) Destroy() error { return q.d.destroyed("QP") }
