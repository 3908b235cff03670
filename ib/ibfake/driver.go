package ibfake

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// Method is a method of a driver, or of one of its objects.
type Method string

// The following methods are accepted by FailMethod and HoldMethod.
const (
	QueryDevice      Method = "QueryDevice"
	QueryPort        Method = "QueryPort"
	AllocUserContext Method = "AllocUserContext"
	AllocPD          Method = "AllocPD"
	DeallocPD        Method = "PD.Dealloc"
	RegMR            Method = "RegMR"
	AllocMR          Method = "AllocMR"
	MapMR            Method = "MR.Map"
	ReregMR          Method = "MR.Rereg"
	DeregMR          Method = "MR.Dereg"
	AllocMW          Method = "AllocMW"
	DeallocMW        Method = "MW.Dealloc"
	CreateAH         Method = "CreateAH"
	ModifyAH         Method = "AH.Modify"
	QueryAH          Method = "AH.Query"
	DestroyAH        Method = "AH.Destroy"
	CreateCQ         Method = "CreateCQ"
	ResizeCQ         Method = "CQ.Resize"
	PollCQ           Method = "CQ.Poll"
	ReqNotifyCQ      Method = "CQ.ReqNotify"
	DestroyCQ        Method = "CQ.Destroy"
	CreateQP         Method = "CreateQP"
	ModifyQP         Method = "QP.Modify"
	QueryQP          Method = "QP.Query"
	PostSend         Method = "QP.PostSend"
	PostRecv         Method = "QP.PostRecv"
	Doorbell         Method = "QP.Doorbell"
	DestroyQP        Method = "QP.Destroy"
)

// MaxCQE is the maximum number of entries of a completion queue.
const MaxCQE = 1 << 10

// qpQueueCapacity is the capacity of each queue of a queue pair.
const qpQueueCapacity = 3

// The driver-private responses to user contexts. A real driver responds with the mmap offsets of the queues.
const (
	CQResponse = "the CQ's mminfo."
	QPResponse = "the RQ's mminfo.the SQ's mminfo."
)

// QueryResults holds the results of a device's queries.
type QueryResults struct {
	Device ib.DeviceAttr
	Port   ib.PortAttr   // GIDTableLen is replaced by the length of GIDs
	GIDs   []ib.GIDEntry // GID table of the only port
}

// Driver is a fake driver, for ib.NewDevice. The methods of a Driver may be called from several goroutines. The methods
// do not sleep, unless a test blocks them with HoldMethod.
type Driver struct {
	qpn, keys atomic.Uint32

	mu        sync.Mutex
	answers   QueryResults
	fail      map[Method]error
	gates     map[Method]*methodGate
	contexts  int
	destroyed []string
	udata     []byte
}

type methodGate struct{ entered, open chan struct{} }

var (
	_ ib.UserContexter = (*Driver)(nil)
	_ ib.AHDriver      = (*Driver)(nil)
	_ ib.MWDriver      = (*Driver)(nil)
	_ ib.FastRegDriver = (*Driver)(nil)
	_ ib.UserQP        = (*QP)(nil)
	_ ib.CQResizer     = (*CQ)(nil)
	_ ib.ReregMR       = (*mr)(nil)
	_ ib.FastMR        = (*fastMR)(nil)
)

// New returns a driver of a device with one active RoCE port and no GIDs.
func New() *Driver {
	return &Driver{
		fail: map[Method]error{}, gates: map[Method]*methodGate{},
		answers: QueryResults{
			Device: ib.DeviceAttr{
				FWVer: 1, NodeGUID: 0x0102030405060708, SysImageGUID: 0x1112131415161718, MaxMRSize: 1 << 40, VendorID: 0xffffff,
				MaxQP: 100, MaxQPWR: 1000, DeviceCapFlags: 0x1_0000_0002, MaxSendSGE: 32, MaxRecvSGE: 30, MaxCQ: 200,
				MaxCQE:    MaxCQE,
				AtomicCap: ib.AtomicHCA, MaxPKeys: 64, LocalCAAckDelay: 15, PhysPorts: 1,
			},
			Port: ib.PortAttr{
				State: ib.PortActive, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU1024, PKeyTableLen: 1, CapFlags: 0x10000,
				MaxMsgSize: 1 << 23, ActiveWidth: 1, ActiveSpeed: 1, PhysState: 5, LinkLayer: ib.LinkEthernet,
			},
		},
	}
}

// enterMethod is called at the start of every method. enterMethod waits while HoldMethod blocks the method, and returns
// the error set by FailMethod.
//
//verbena:allow nosleep a test has asked for the wait, by HoldMethod
func (d *Driver) enterMethod(m Method) error {
	d.mu.Lock()
	g, err := d.gates[m], d.fail[m]
	d.mu.Unlock()
	if g != nil {
		g.entered <- struct{}{}
		<-g.open
	}
	return err
}

// FailMethod makes a method return err after its normal work. A nil err restores normal results.
func (d *Driver) FailMethod(m Method, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[m] = err
}

// HoldMethod makes a method wait until release is called. entered receives a value for each call that begins to wait.
func (d *Driver) HoldMethod(m Method) (entered <-chan struct{}, release func()) {
	g := &methodGate{make(chan struct{}, 1), make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gates[m] = g
	return g.entered, func() {
		d.mu.Lock()
		delete(d.gates, m)
		d.mu.Unlock()
		close(g.open)
	}
}

// ChangeQueryResults changes the results of queries. change must replace slices and must not modify them.
func (d *Driver) ChangeQueryResults(change func(*QueryResults)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.answers)
}

// TakeDestroyedKinds returns the kinds, such as "PD", of the objects destroyed since its previous call, in order.
func (d *Driver) TakeDestroyedKinds() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.destroyed
	d.destroyed = nil
	return log
}

// UserContextCount returns the number of user contexts.
func (d *Driver) UserContextCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.contexts
}

// LastCQUdata returns the driver-private data of the last creation of a completion queue.
func (d *Driver) LastCQUdata() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.udata
}

func (d *Driver) recordDestroy(m Method, kind string) error {
	if err := d.enterMethod(m); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.destroyed = append(d.destroyed, kind)
	return nil
}

// UserABI returns the ABI of the kernel's rxe (RDMA_DRIVER_RXE, RXE_UVERBS_ABI_VERSION). libibverbs finds the provider
// by this ABI.
func (d *Driver) UserABI() (driver, version uint32) { return 14, 2 }

// AllocUserContext implements ib.UserContexter.
func (d *Driver) AllocUserContext(*ib.Udata) error {
	if err := d.enterMethod(AllocUserContext); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts++
	return nil
}

// DeallocUserContext implements ib.UserContexter.
func (d *Driver) DeallocUserContext(ib.UserContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts--
}

func (d *Driver) currentQueryResults() QueryResults {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.answers
	a.Port.GIDTableLen = len(a.GIDs)
	return a
}

// QueryDevice implements ib.Driver.
func (d *Driver) QueryDevice() (ib.DeviceAttr, error) {
	return d.currentQueryResults().Device, d.enterMethod(QueryDevice)
}

// QueryPort implements ib.Driver. All ports have the same attributes.
func (d *Driver) QueryPort(int) (ib.PortAttr, error) {
	return d.currentQueryResults().Port, d.enterMethod(QueryPort)
}

// QueryGID implements ib.Driver.
func (d *Driver) QueryGID(port, index int) (ib.GIDEntry, error) {
	gids := d.currentQueryResults().GIDs
	if index < 0 || index >= len(gids) {
		return ib.GIDEntry{}, fmt.Errorf("gid %d of port %d: %w", index, port, syscall.EINVAL)
	}
	return gids[index], nil
}

// QueryPKey implements ib.Driver.
func (d *Driver) QueryPKey(port, index int) (uint16, error) { return 0xffff, nil }

// EnterError implements ib.Driver. No requests are in flight.
func (d *Driver) EnterError() {}

// AllocPD implements ib.Driver.
func (d *Driver) AllocPD(*ib.Udata) (ib.DriverPD, error) {
	return &protectionDomain{d}, d.enterMethod(AllocPD)
}

// RegMR implements ib.Driver.
func (d *Driver) RegMR(h ib.MRHandle, _ ib.DriverPD, _ *umem.Region, _ ib.AccessFlags, _ *ib.Udata) (ib.DriverMR,
	error) {
	m := &mr{memoryRegion{h, d}}
	m.assignNewKeys()
	return m, d.enterMethod(RegMR)
}

// AllocMR implements ib.FastRegDriver.
func (d *Driver) AllocMR(h ib.MRHandle, _ ib.DriverPD, _ int) (ib.DriverMR, error) {
	m := &fastMR{memoryRegion: memoryRegion{h, d}}
	m.assignNewKeys()
	return m, d.enterMethod(AllocMR)
}

// AllocMW implements ib.MWDriver.
func (d *Driver) AllocMW(h ib.MWHandle, _ ib.DriverPD, _ ib.MWType, _ *ib.Udata) (ib.DriverMW, error) {
	h.SetRKey(d.keys.Add(1) << 8)
	return &memoryWindow{d}, d.enterMethod(AllocMW)
}

// CreateAH implements ib.AHDriver.
func (d *Driver) CreateAH(_ ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	if u != nil {
		u.Respond([]byte{7, 0, 0, 0})
	}
	return &addressHandle{d: d, attr: *attr}, d.enterMethod(CreateAH)
}

// CreateCQ implements ib.Driver. The queue has one entry more than requested.
func (d *Driver) CreateCQ(h ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	if attr.Entries > MaxCQE {
		return nil, fmt.Errorf("%d entries exceed %d: %w", attr.Entries, MaxCQE, syscall.EINVAL)
	}
	if attr.Flags != 0 {
		return nil, fmt.Errorf("unsupported flags %#x: %w", attr.Flags, syscall.EOPNOTSUPP)
	}
	h.SetEntries(attr.Entries + 1)
	if u != nil {
		u.Respond([]byte(CQResponse))
		d.mu.Lock()
		d.udata = slices.Clone(u.In)
		d.mu.Unlock()
	}
	return &CQ{d: d, CQHandle: h}, d.enterMethod(CreateCQ)
}

// CreateQP implements ib.Driver. The capacity of the send queue is one more than requested.
func (d *Driver) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	if init.Type != ib.QPTypeRC && init.Type != ib.QPTypeUC && init.Type != ib.QPTypeUD {
		return nil, fmt.Errorf("unsupported type %v: %w", init.Type, syscall.EOPNOTSUPP)
	}
	h.SetNum(16 + d.qpn.Add(1))
	init.Cap.MaxSendWR++
	if u != nil {
		u.Respond([]byte(QPResponse))
	}
	return &QP{d: d, QPHandle: h, typ: init.Type}, d.enterMethod(CreateQP)
}
