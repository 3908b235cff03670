package ibtest

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/umem"
)

// wrongDriver is the loopback driver with defects: a hook that is set replaces the method.
type wrongDriver struct {
	*loopback.Device
	dev *ib.DeviceHandle
	t   testing.TB

	mu   sync.Mutex // for the defects
	held atomic.Bool

	wrongDriverHooks
	sendOnly bool // see limitToSendAndReceive

	moreCQEs      int // extra entries of completion queues
	createCQ      func(cq ib.CQHandle, attr ib.CQAttr) error
	createQP      func(qp ib.QPHandle, init *ib.DriverQPInit) error
	afterCreateQP func(qp ib.QPHandle, init *ib.DriverQPInit)
	query         func()
	postSend      func(q *wrongQP, wrs []ib.SendWR) (int, error)
	postRecv      func(q *wrongQP, wrs []ib.RecvWR) (int, error)
	regMR         func(mr ib.MRHandle, m *wrongMR) error // the inner driver has registered m
	resize        func(c *wrongCQ, entries int) error
	modify        func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error
	state         func(q *wrongQP) ib.QPState
	destroyQP     func(q *wrongQP) error
	poll          func(c *wrongCQ, wc []ib.WC) (int, error)
	reqNotify     func(c *wrongCQ, f ib.NotifyFlags) (bool, error)
	destroyCQ     func(c *wrongCQ) error
	destroyAH     func() error
	dereg         func(m ib.DriverMR) error
	rereg         func(m *wrongMR, r *umem.Region, pd ib.DriverPD, access ib.AccessFlags) error
	moderate      func(c *wrongCQ, count int, period time.Duration) error
	allocXRCD     func() (ib.DriverXRCD, error)
	srqPost       func(s *wrongSRQ, wrs []ib.RecvWR) (int, error)
	enterError    func()

	lists sync.Mutex
	qps   []*wrongQP // existing
	cqs   []*wrongCQ
	mrs   []*wrongMR
	dead  []*wrongMR // deregistered
	keys  uint32     // number of keys that the inner driver has assigned to regions

	disassociate func(c ib.UserContext)
	doorbell     func(shared []byte, h *ib.Hold) // if set, a user's queue pair shares memory with its process
}

// maxKeptRegions is the number of deregistered regions that a wrongDriver remembers.
const maxKeptRegions = 1000

type wrongQP struct {
	*loopback.QP
	d   *wrongDriver
	obj ib.QPHandle

	sendCQ *wrongCQ // nil: an XRC target
	recvCQ *wrongCQ // nil: XRC
	pd     ib.DriverPD
	user   ib.UserContext
	dest   uint32
}

type wrongCQ struct {
	*loopback.CQ
	d    *wrongDriver
	obj  ib.CQHandle
	last ib.WC
	n    atomic.Int32

	entries int
	stash   []ib.WC // under wrongDriver.mu, for defects
}

type wrongSRQ struct {
	*loopback.SRQ
	d   *wrongDriver
	obj ib.SRQHandle
	pd  ib.DriverPD
}

type wrongAH struct {
	*loopback.AH
	d *wrongDriver
}

type wrongMR struct {
	ib.DriverMR
	d      *wrongDriver
	num    uint32 // the key from the inner driver
	region *umem.Region
	pd     ib.DriverPD
	access ib.AccessFlags
}

// cloneList returns the objects of a list.
func cloneList[T comparable](d *wrongDriver, list *[]T) []T {
	d.lists.Lock()
	defer d.lists.Unlock()
	return slices.Clone(*list)
}

func addToList[T comparable](d *wrongDriver, list *[]T, x T) {
	d.lists.Lock()
	defer d.lists.Unlock()
	*list = append(*list, x)
}

func removeFromList[T comparable](d *wrongDriver, list *[]T, x T) {
	d.lists.Lock()
	defer d.lists.Unlock()
	*list = slices.DeleteFunc(*list, func(y T) bool { return y == x })
}

// regionAt returns the region that contains an address, or nil.
func (d *wrongDriver) regionAt(addr uint64) *wrongMR {
	for _, m := range cloneList(d, &d.mrs) {
		if addr >= m.region.IOVA() && addr < m.region.IOVA()+m.region.Len() {
			return m
		}
	}
	return nil
}

// setAccess sets the domain and the rights of a region; its key stays.
func (m *wrongMR) setAccess(pd ib.DriverPD, access ib.AccessFlags) {
	if err := m.DriverMR.(ib.ReregMR).Rereg(m.region, pd, access, nil); err != nil {
		m.d.t.Error(err)
	}
}

func newWrongDriver(t testing.TB) *wrongDriver {
	d := &wrongDriver{Device: loopback.New("inner", nil), t: t}
	d.dev = ib.NewDevice("wrong0", d, nil)
	return d
}

func (d *wrongDriver) EnterError() {
	if d.enterError != nil {
		d.enterError()
		return
	}
	d.Device.EnterError()
}

func (d *wrongDriver) QueryDevice() (ib.DeviceAttr, error) {
	if d.query != nil {
		d.query()
	}
	a, err := d.Device.QueryDevice()
	if d.limits != nil {
		d.limits(&a)
	}
	return a, err
}

func (d *wrongDriver) CreateCQ(cq ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	if d.createCQ != nil {
		if err := d.createCQ(cq, attr); err != nil {
			return nil, err
		}
	}
	given := attr
	given.Entries += d.moreCQEs
	inner, err := d.Device.CreateCQ(cq, given, u)
	if err != nil {
		return nil, err
	}
	c := &wrongCQ{CQ: inner.(*loopback.CQ), d: d, obj: cq, entries: attr.Entries}
	addToList(d, &d.cqs, c)
	return c, nil
}

func (d *wrongDriver) CreateQP(qp ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	if d.createQP != nil {
		if err := d.createQP(qp, init); err != nil {
			return nil, err
		}
	}
	inner, err := d.Device.CreateQP(qp, init, u)
	if err != nil {
		return nil, err
	}
	if d.afterCreateQP != nil {
		d.afterCreateQP(qp, init)
	}
	q := &wrongQP{QP: inner.(*loopback.QP), d: d, obj: qp}
	q.sendCQ, _ = init.SendCQ.(*wrongCQ)
	q.recvCQ, _ = init.RecvCQ.(*wrongCQ)
	q.pd = init.PD
	if u != nil {
		q.user = u.Context
	}
	addToList(d, &d.qps, q)
	if d.doorbell != nil && u != nil && u.Context != nil {
		return newSharedQP(q, u.Context)
	}
	return q, nil
}

func (d *wrongDriver) CreateSRQ(srq ib.SRQHandle, init *ib.DriverSRQInit, u *ib.Udata) (ib.DriverSRQ, error) {
	if d.createSRQ != nil {
		if err := d.createSRQ(&init.Attr); err != nil {
			return nil, err
		}
	}
	inner, err := d.Device.CreateSRQ(srq, init, u)
	if err != nil {
		return nil, err
	}
	return &wrongSRQ{SRQ: inner.(*loopback.SRQ), d: d, obj: srq, pd: init.PD}, nil
}

func (d *wrongDriver) CreateAH(pd ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	if d.createAH != nil {
		given := *attr
		attr = &given
		d.createAH(attr)
	}
	inner, err := d.Device.CreateAH(pd, attr, u)
	if err != nil {
		return nil, err
	}
	return &wrongAH{inner.(*loopback.AH), d}, nil
}

func (d *wrongDriver) RegMR(mr ib.MRHandle, pd ib.DriverPD, r *umem.Region, access ib.AccessFlags,
	u *ib.Udata) (ib.DriverMR, error) {
	d.lists.Lock()
	inner, err := d.Device.RegMR(mr, pd, r, access, u)
	if err == nil {
		d.keys++
	}
	m := &wrongMR{inner, d, d.keys << 8, r, pd, access}
	d.lists.Unlock()
	if err != nil {
		return nil, err
	}
	addToList(d, &d.mrs, m)
	if d.regMR != nil {
		err = d.regMR(mr, m)
	}
	return m, err
}

func (d *wrongDriver) AllocXRCD(u *ib.Udata) (ib.DriverXRCD, error) {
	if d.allocXRCD != nil {
		return d.allocXRCD()
	}
	return d.Device.AllocXRCD(u)
}

func (q *wrongQP) PostSend(wrs []ib.SendWR) (int, error) {
	if q.d.postSend != nil {
		return q.d.postSend(q, wrs)
	}
	return q.QP.PostSend(wrs)
}

func (q *wrongQP) PostRecv(wrs []ib.RecvWR) (int, error) {
	if q.d.postRecv != nil {
		return q.d.postRecv(q, wrs)
	}
	return q.QP.PostRecv(wrs)
}

func (q *wrongQP) Modify(a *ib.QPAttr, m ib.QPAttrMask, u *ib.Udata) error {
	if m&ib.QPAttrDestQPN != 0 {
		q.dest = a.DestQPN
	}
	if q.d.modify != nil {
		return q.d.modify(q, a, m)
	}
	return q.QP.Modify(a, m, u)
}

func (q *wrongQP) State() ib.QPState {
	if q.d.state != nil {
		return q.d.state(q)
	}
	return q.QP.State()
}

func (q *wrongQP) Destroy() error {
	removeFromList(q.d, &q.d.qps, q)
	if q.d.destroyQP != nil {
		return q.d.destroyQP(q)
	}
	return q.QP.Destroy()
}

func (c *wrongCQ) Poll(wc []ib.WC) (int, error) {
	if c.d.poll != nil {
		return c.d.poll(c, wc)
	}
	return c.CQ.Poll(wc)
}

func (c *wrongCQ) ReqNotify(f ib.NotifyFlags) (bool, error) {
	if c.d.reqNotify != nil {
		return c.d.reqNotify(c, f)
	}
	return c.CQ.ReqNotify(f)
}

func (c *wrongCQ) Resize(entries int, u *ib.Udata) error {
	if c.d.resize != nil {
		return c.d.resize(c, entries)
	}
	return c.CQ.Resize(entries, u)
}

func (c *wrongCQ) Moderate(count int, period time.Duration) error {
	if c.d.moderate != nil {
		return c.d.moderate(c, count, period)
	}
	return c.CQ.Moderate(count, period)
}

func (c *wrongCQ) Destroy() error {
	removeFromList(c.d, &c.d.cqs, c)
	if c.d.destroyCQ != nil {
		return c.d.destroyCQ(c)
	}
	return c.CQ.Destroy()
}

func (s *wrongSRQ) PostRecv(wrs []ib.RecvWR) (int, error) {
	if s.d.srqPost != nil {
		return s.d.srqPost(s, wrs)
	}
	return s.SRQ.PostRecv(wrs)
}

func (a *wrongAH) Destroy() error {
	if a.d.destroyAH != nil {
		return a.d.destroyAH()
	}
	return a.AH.Destroy()
}

// Unwrap makes the optional interfaces of the wrapped region available.
func (m *wrongMR) Unwrap() ib.DriverMR { return m.DriverMR }

func (m *wrongMR) Rereg(r *umem.Region, pd ib.DriverPD, access ib.AccessFlags, u *ib.Udata) error {
	if m.d.rereg != nil {
		return m.d.rereg(m, r, pd, access)
	}
	return m.DriverMR.(ib.ReregMR).Rereg(r, pd, access, u)
}

func (m *wrongMR) Dereg() error {
	removeFromList(m.d, &m.d.mrs, m)
	m.d.lists.Lock()
	m.d.dead = append(m.d.dead[max(0, len(m.d.dead)-maxKeptRegions):], m)
	m.d.lists.Unlock()
	if m.d.dereg != nil {
		return m.d.dereg(m.DriverMR)
	}
	return m.DriverMR.Dereg()
}

// withLock runs f with the driver's lock held.
func (d *wrongDriver) withLock(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// driverDefect is a driver that violates a rule in a way that real drivers do.
type driverDefect struct {
	defect string
	break_ func(d *wrongDriver)
	opts   func(d func() *wrongDriver) []Option
	by     string // the check that finds it; "": any check of the suite, because the report is a rule or names the fault
	says   string // a part of the report
	sooner string // an alternative report of checked mode in any check, depending on the machine; may be empty
}

var driverDefects = slices.Concat([]driverDefect{
	{
		defect: "calls the completion handler from post send",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				d.dev.HoldCallbacks()
				defer d.dev.RunCallbacks()
				return q.QP.PostSend(wrs)
			}
		},
		says: "rule hold",
	},
	{
		defect: "calls the completion handler from request notify if the queue has completions",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				d.dev.HoldCallbacks()
				defer d.dev.RunCallbacks()
				missed, err := c.CQ.ReqNotify(f | ib.NotifyReportMissed)
				if missed {
					c.obj.Completed()
				}
				return false, err
			}
		},
		says: "CQ.ReqNotify",
	},
	{
		defect: "runs handlers under the lock of the CQ, so that arming in the handler deadlocks",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				return c.CQ.ReqNotify(f)
			}
			d.createCQ = func(ib.CQHandle, ib.CQAttr) error {
				d.createCQ = nil // one delivering thread for the device
				var stop atomic.Bool
				d.t.Cleanup(func() { stop.Store(true) })
				go func() {
					for !stop.Load() && !d.t.Failed() {
						d.dev.HoldCallbacks()
						runtime.Gosched()
						d.withLock(d.dev.RunCallbacks)
					}
				}()
				return nil
			}
		},
		says: "CQ.ReqNotify has waited for long", // one rule or both, depending on the samples
	},
	{
		defect: "sleeps in poll",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				sleepFor(20 * time.Millisecond)
				return c.CQ.Poll(wc)
			}
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "runs post send on another thread, and waits for it",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (n int, err error) {
				done := make(chan struct{})
				time.AfterFunc(20*time.Millisecond, func() {
					n, err = q.QP.PostSend(wrs)
					close(done)
				})
				<-done
				return n, err
			}
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "asks its firmware in request notify, and waits on a condition",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				var wg sync.WaitGroup
				wg.Go(func() { sleepFor(100 * time.Millisecond) })
				wg.Wait()
				return c.CQ.ReqNotify(f)
			}
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "takes a lock in post send that a sleeping method holds",
		break_: func(d *wrongDriver) {
			var posts atomic.Int32
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if posts.Add(1) == 2 {
					locked := make(chan struct{})
					go d.withLock(func() { close(locked); sleepFor(2 * time.Second) })
					for len(locked) == 0 { // spin
						select {
						case <-locked:
						default:
							continue
						}
						break
					}
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				return q.QP.PostSend(wrs)
			}
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "calls a function of the midlayer that may sleep from poll",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				d.dev.Device().QueryPort(1)
				return c.CQ.Poll(wc)
			}
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "sleeps while it destroys an address handle",
		break_: func(d *wrongDriver) {
			d.destroyAH = func() error { sleepFor(100 * time.Millisecond); return nil }
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "sleeps in post receive of a shared queue",
		break_: func(d *wrongDriver) {
			d.srqPost = func(s *wrongSRQ, wrs []ib.RecvWR) (int, error) {
				sleepFor(100 * time.Millisecond)
				return s.SRQ.PostRecv(wrs)
			}
		},
		says: "rule sleep-in-method",
	},
	{
		defect: "holds callbacks in post send, and forgets to run them",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				d.dev.HoldCallbacks()
				return q.QP.PostSend(wrs)
			}
		},
		says: "rule hold",
	},
	{
		defect: "registers its device before it is ready",
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Plug(func(core *ib.Core, dev *ib.DeviceHandle) error {
				var ready atomic.Bool
				d().createQP = func(ib.QPHandle, *ib.DriverQPInit) error {
					if !ready.Load() {
						return syscall.EAGAIN
					}
					return nil
				}
				err := core.Register(dev)
				ready.Store(true)
				return err
			})}
		},
		by: "HotPlug/ReadyAtRegister", says: "create qp on wrong0",
	},
	{
		defect: "frees its device before Unregister has returned, and reports it",
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Unplug(func(core *ib.Core, dev *ib.DeviceHandle) error {
				dev.Dealloc()
				return core.Unregister(dev)
			})}
		},
		says: "rule free-before-unregister",
	},
	{
		defect: "stops its engine before Unregister has returned",
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Unplug(func(core *ib.Core, dev *ib.DeviceHandle) error {
				d().postSend = func(*wrongQP, []ib.SendWR) (int, error) { return 0, syscall.EIO }
				return core.Unregister(dev)
			})}
		},
		by: "HotPlug/UsableInRemove", says: "post send: 0 taken",
	},
	{
		defect: "holds a lock of CreateQP across Register",
		break_: func(d *wrongDriver) {
			d.createQP = func(ib.QPHandle, *ib.DriverQPInit) error { d.mu.Lock(); defer d.mu.Unlock(); return nil }
		},
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Plug(func(core *ib.Core, dev *ib.DeviceHandle) (err error) {
				d().withLock(func() { err = core.Register(dev) })
				return err
			})}
		},
		says: "rule lock-across-register",
	},
	{
		defect: "holds a lock of the destruction of QPs across Unregister",
		break_: func(d *wrongDriver) {
			d.destroyQP = func(q *wrongQP) error { d.mu.Lock(); defer d.mu.Unlock(); return q.QP.Destroy() }
		},
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Unplug(func(core *ib.Core, dev *ib.DeviceHandle) (err error) {
				d().withLock(func() { err = core.Unregister(dev) })
				return err
			})}
		},
		says: "rule lock-across-register",
	},
	{
		defect: "holds a lock of poll across Unregister, with a polling handler",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) { d.mu.Lock(); defer d.mu.Unlock(); return c.CQ.Poll(wc) }
		},
		opts: func(d func() *wrongDriver) []Option {
			return []Option{Unplug(func(core *ib.Core, dev *ib.DeviceHandle) (err error) {
				d().withLock(func() { err = core.Unregister(dev) })
				return err
			})}
		},
		says: "rule lock-across-register",
	},
	{
		defect: "does not report missed completions, so a notification between poll and arming is lost",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				return c.CQ.ReqNotify(f &^ ib.NotifyReportMissed)
			}
		},
		by: "Callback/MissedReport", says: "nothing was reported as missed",
	},
	{
		defect: "arms the CQ only if it is empty",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				if c.n.Add(1)%2 == 0 {
					return false, nil
				}
				return c.CQ.ReqNotify(f)
			}
		},
		by: "Callback/NotFromCallchain", says: "a call of the handler for each time that the CQ was armed",
	},
	{
		defect: "notifies of every completion, even without a request",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				n, err := q.QP.PostSend(wrs)
				q.sendCQ.obj.Completed()
				return n, err
			}
		},
		says: "rule notify-once",
	},
	{
		defect: "treats a request for solicited completions as a request for any",
		break_: func(d *wrongDriver) {
			d.reqNotify = func(c *wrongCQ, f ib.NotifyFlags) (bool, error) {
				return c.CQ.ReqNotify(f | ib.NotifyNextComp)
			}
		},
		by: "Callback/SolicitedOnly", says: "a completion that was not solicited: got 1 handler calls",
	},
	{
		defect: "polls without a lock, so some completions are returned twice",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				d.mu.Lock()
				defer d.mu.Unlock()
				if c.n.Add(1)%50 == 0 && c.last.QP != nil {
					wc[0] = c.last
					return 1, nil
				}
				n, err := c.CQ.Poll(wc)
				if n > 0 {
					c.last = wc[n-1]
				}
				return n, err
			}
		},
		by: "Reentrant/ConcurrentPoll", says: "was seen twice",
	},
	{
		defect: "removes more completions from the CQ than the caller's array can hold",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				all := make([]ib.WC, len(wc)+1)
				n, err := c.CQ.Poll(all)
				return copy(wc, all[:n]), err
			}
		},
		by: "Data/NothingKept", says: "completion of work request",
	},
	{
		defect: "returns a number of completions above the length of the array",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				n, err := c.CQ.Poll(wc)
				if n == len(wc) && c.n.Add(1) == 1 {
					n++
				}
				return n, err
			}
		},
		says: "rule result",
	},
	{
		defect: "returns completions in the wrong order",
		break_: func(d *wrongDriver) {
			d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) {
				if len(wc) > 1 {
					return c.CQ.Poll(wc)
				}
				var two [2]ib.WC
				d.mu.Lock()
				defer d.mu.Unlock()
				if c.last.QP != nil {
					wc[0], c.last = c.last, ib.WC{}
					return 1, nil
				}
				n, err := c.CQ.Poll(two[:])
				switch n {
				case 2:
					wc[0], c.last = two[1], two[0]
					return 1, err
				case 1:
					wc[0] = two[0]
				}
				return n, err
			}
		},
		by: "Data/NothingKept", says: "completion of work request",
	},
	{
		defect: "returns an error from post send, and reports all work requests as accepted",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				_, err := q.QP.PostSend(wrs)
				return len(wrs), err
			}
		},
		says: "rule result",
	},
	{
		defect: "keeps the caller's list of work requests",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				late := func() {
					q.QP.PostSend(wrs)
					wrs = nil
				}
				d.poll = func(c *wrongCQ, wc []ib.WC) (int, error) { // the engine is late
					late()
					return c.CQ.Poll(wc)
				}
				return len(wrs), nil
			}
		},
		by: "Data/NothingKept", says: "timed out",
	},
	{
		defect: "reports a completion after the destruction of the CQ",
		break_: func(d *wrongDriver) {
			var destroyed *wrongCQ // under mu
			d.destroyCQ = func(c *wrongCQ) error {
				d.withLock(func() { destroyed = c })
				return c.CQ.Destroy()
			}
			d.createCQ = func(ib.CQHandle, ib.CQAttr) error {
				var c *wrongCQ
				d.withLock(func() { c, destroyed = destroyed, nil })
				if c != nil {
					c.obj.Completed()
				}
				return nil
			}
		},
		says: "rule use-after-destroy",
	},
	{
		defect: "raises an event of a destroyed queue pair",
		break_: func(d *wrongDriver) {
			var destroyed *wrongQP // under mu
			d.destroyQP = func(q *wrongQP) error {
				d.withLock(func() { destroyed = q })
				return q.QP.Destroy()
			}
			d.createQP = func(ib.QPHandle, *ib.DriverQPInit) error {
				var q *wrongQP
				d.withLock(func() { q, destroyed = destroyed, nil })
				if q != nil {
					q.obj.Raise(ib.EventQPFatal)
				}
				return nil
			}
		},
		says: "rule use-after-destroy",
	},
	{
		defect: "is not reentrant: returns EAGAIN if another call is in progress",
		break_: func(d *wrongDriver) {
			d.postSend = func(q *wrongQP, wrs []ib.SendWR) (int, error) {
				if !d.mu.TryLock() {
					return 0, syscall.EAGAIN
				}
				defer d.mu.Unlock()
				d.spinBriefly()
				return q.QP.PostSend(wrs)
			}
		},
		says: "resource temporarily unavailable",
	},
	{
		defect: "forgets a transition: modify to SQD succeeds without effect",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				if a.State == ib.QPSQD && q.QP.State() == ib.QPRTS {
					return nil
				}
				return q.QP.Modify(a, m, nil)
			}
		},
		by: "QueuePair/States", says: "want SQD",
	},
	{
		defect: "does not check transitions, and returns success for all of them",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				if _, err := ib.NextState(q.QP.State(), ib.QPTypeRC, a, m); err != nil {
					return nil
				}
				return q.QP.Modify(a, m, nil)
			}
		},
		by: "QueuePair/States", says: "is not allowed, but was done",
	},
	{
		defect: "rejects an attribute and changes the state anyway",
		break_: func(d *wrongDriver) {
			var bad atomic.Bool
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				_, transition := ib.NextState(q.QP.State(), ib.QPTypeRC, a, m)
				err := q.QP.Modify(a, m, nil)
				bad.Store(err != nil && transition == nil)
				return err
			}
			d.state = func(q *wrongQP) ib.QPState {
				if bad.Load() {
					return ib.QPRTR
				}
				return q.QP.State()
			}
		},
		by: "Errors/BadArguments", says: "state after a Modify that failed",
	},
	{
		defect: "drops outstanding work requests at the transition to ERR, without flushing them",
		break_: func(d *wrongDriver) {
			d.modify = func(q *wrongQP, a *ib.QPAttr, m ib.QPAttrMask) error {
				_, err := ib.NextState(q.QP.State(), ib.QPTypeRC, a, m)
				if err == nil && m&ib.QPAttrState != 0 && a.State == ib.QPErr {
					q.QP.Modify(&ib.QPAttr{State: ib.QPReset}, ib.QPAttrState, nil)
					m &^= ib.QPAttrCurState
				}
				return q.QP.Modify(a, m, nil)
			}
		},
		by: "Errors/FlushInOrder", says: "timed out",
	},
	{
		defect: "leaves the key of deregistered memory valid",
		break_: func(d *wrongDriver) { d.dereg = func(ib.DriverMR) error { return nil } },
		by:     "Data/DeregisteredMemory", says: "write to deregistered memory",
	},
	{
		defect: "continues to work with the device in error",
		break_: func(d *wrongDriver) { d.enterError = func() {} },
		by:     "DeviceError/NoNewWork", says: "want 1 with \"work request flushed\"",
	},
	{
		defect: "grants less than requested",
		break_: func(d *wrongDriver) {
			d.afterCreateQP = func(_ ib.QPHandle, init *ib.DriverQPInit) { init.Cap.MaxRecvWR /= 2 }
		},
		by: "QueuePair/Capacities", says: "requested",
	},
	{
		defect: "gives two queue pairs the same number",
		break_: func(d *wrongDriver) { d.afterCreateQP = func(qp ib.QPHandle, _ *ib.DriverQPInit) { qp.SetNum(17) } },
		by:     "QueuePair/Numbers", says: "number 0x11",
	},
	{
		defect: "raises the limit event of a shared receive queue repeatedly",
		break_: func(d *wrongDriver) {
			d.srqPost = func(s *wrongSRQ, wrs []ib.RecvWR) (int, error) {
				s.obj.Raise(ib.EventSRQLimitReached)
				return s.SRQ.PostRecv(wrs)
			}
		},
		by: "SRQ/Limit", says: "limit events",
	},
}, flushDefects, cqDefects, memoryDefects, sleepDefects, disassociateDefects,
	completionDefects, keyDefects, timerDefects, attributeDefects, limitDefects, datagramDefects, srdDefects,
	sendDefects, rejectionDefects,
	valueDefects, scaleDefects)

// wrongDriverOptions adds the options for runs that are expected to fail: shorter waits for expected events.
func wrongDriverOptions(o ...Option) []Option {
	return append([]Option{Timeout(2 * time.Second), Load(1)}, o...)
}

// TestWrongDrivers checks that each wrong driver fails the suite in the check that names its fault. With -whole this
// must be the first failing check.
func TestWrongDrivers(t *testing.T) {
	checks, outputs := make([]string, len(driverDefects)), make([]string, len(driverDefects))
	runUnomittedDefects(len(driverDefects), func(i int) { checks[i], outputs[i] = runOnWrongDriver(t, i) })
	for i, w := range driverDefects {
		if isDefectOmitted(i) {
			continue
		}
		t.Run(w.defect, func(t *testing.T) {
			switch {
			case checks[i] != "" && w.sooner != "" && strings.Contains(outputs[i], w.sooner):
			case checks[i] == "":
				t.Errorf("the suite passes, want a failure of %q:\n%.2000s", w.by, outputs[i])
			case w.by != "" && checks[i] != w.by:
				t.Errorf("the first failure is of %s, want %s:\n%.2000s", checks[i], w.by, outputs[i])
			case !strings.Contains(outputs[i], w.says):
				t.Errorf("%s does not say %q, but:\n%.2000s", checks[i], w.says, outputs[i])
			}
		})
	}
}

// checkFailureMentions checks that the suite found a defect and named it.
func checkFailureMentions(t *testing.T, r *recordingTB, says string) {
	t.Helper()
	if !r.failed || r.skipped {
		t.Fatalf("driver: got no failed check, want one: %s", r)
	}
	if !strings.Contains(r.String(), says) {
		t.Errorf("failed check: got a message without %q:\n%.2000s", says, r)
	}
}

// isDefectOmitted reports whether -short omits the i-th defect. Each of the hundreds of defects takes a process, or a
// wait for checked mode.
func isDefectOmitted(i int) bool { return testing.Short() && i%16 != 0 }

// runUnomittedDefects runs f for 0 to n-1, several at a time, because most of them wait. With -short it omits most
// of them.
func runUnomittedDefects(n int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range n {
		if isDefectOmitted(i) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			f(i)
			<-slots
		})
	}
	wg.Wait()
}
