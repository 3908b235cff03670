package ibfake

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

type protectionDomain struct{ d *Driver }

func (p *protectionDomain) Dealloc() error { return p.d.recordDestroy(DeallocPD, "PD") }

type memoryWindow struct{ d *Driver }

func (m *memoryWindow) Dealloc() error { return m.d.recordDestroy(DeallocMW, "MW") }

type memoryRegion struct {
	ib.MRHandle
	d *Driver
}

func (m *memoryRegion) assignNewKeys() {
	key := m.d.keys.Add(1)
	m.SetKeys(key, key<<8)
}

// Dereg implements ib.DriverMR.
func (m *memoryRegion) Dereg() error { return m.d.recordDestroy(DeregMR, "MR") }

// mr is the driver's side of a memory region.
type mr struct{ memoryRegion }

// Rereg implements ib.ReregMR. The keys change.
func (m *mr) Rereg(*umem.Region, ib.DriverPD, ib.AccessFlags, *ib.Udata) error {
	err := m.d.enterMethod(ReregMR)
	if err == nil {
		m.assignNewKeys()
	}
	return err
}

// fastMR is the driver's side of a region that work requests register.
type fastMR struct {
	memoryRegion
	mapped atomic.Pointer[umem.Region]
}

// Map implements ib.FastMR.
func (m *fastMR) Map(r *umem.Region) error {
	err := m.d.enterMethod(MapMR)
	if err == nil {
		m.mapped.Store(r)
	}
	return err
}

// LastMapped returns the memory of the last Map, or nil.
func (m *fastMR) LastMapped() *umem.Region { return m.mapped.Load() }

type addressHandle struct {
	d    *Driver
	mu   sync.Mutex
	attr ib.AHAttr
}

func (a *addressHandle) Modify(attr *ib.AHAttr) error {
	err := a.d.enterMethod(ModifyAH)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.attr = *attr
	}
	return err
}

func (a *addressHandle) Query() (ib.AHAttr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attr, a.d.enterMethod(QueryAH)
}

func (a *addressHandle) Destroy() error { return a.d.recordDestroy(DestroyAH, "AH") }

// CQ is the driver's side of a completion queue, returned by ib.DeviceHandle.CQ.
type CQ struct {
	ib.CQHandle
	d *Driver

	mu    sync.Mutex
	wcs   []ib.WC
	armed bool
}

// Complete adds a completion to the queue, and reports it if the queue is armed. Complete may not sleep.
func (c *CQ) Complete(wc ib.WC) {
	c.mu.Lock()
	c.wcs = append(c.wcs, wc)
	notify := c.armed
	c.armed = false
	c.mu.Unlock()
	if notify {
		c.Completed()
	}
}

// Poll implements ib.DriverCQ.
func (c *CQ) Poll(wc []ib.WC) (int, error) {
	err := c.d.enterMethod(PollCQ)
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[n:]
	return n, err
}

// ReqNotify implements ib.DriverCQ.
func (c *CQ) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	if err := c.d.enterMethod(ReqNotifyCQ); err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return flags&ib.NotifyReportMissed != 0 && len(c.wcs) > 0, nil
}

// Resize implements ib.CQResizer. The queue has one entry more than requested.
func (c *CQ) Resize(entries int, u *ib.Udata) error {
	if entries > MaxCQE {
		return syscall.EINVAL
	}
	if u != nil {
		u.Respond([]byte(CQResponse))
	}
	err := c.d.enterMethod(ResizeCQ)
	if err == nil {
		c.SetEntries(entries + 1)
	}
	return err
}

// Destroy implements ib.DriverCQ.
func (c *CQ) Destroy() error { return c.d.recordDestroy(DestroyCQ, "CQ") }

// QP is the driver's side of a queue pair, returned by ib.DeviceHandle.QP. A QP records posted requests, but does not
// complete them.
type QP struct {
	ib.QPHandle
	d   *Driver
	typ ib.QPType

	posted     atomic.Bool
	rung       atomic.Int32
	onDoorbell atomic.Pointer[func(*ib.Hold)]

	mu   sync.Mutex
	attr ib.QPAttr
	mask ib.QPAttrMask
	sent []ib.SendWR
	recv []ib.RecvWR
}

// SetRequestsPosted makes Posted report requests without a doorbell.
func (q *QP) SetRequestsPosted() { q.posted.Store(true) }

// Posted implements ib.UserQP.
func (q *QP) Posted() (at uint32, some bool) { return 0, q.posted.Load() }

// TakeBack implements ib.UserQP.
func (q *QP) TakeBack() { q.posted.Store(false) }

// Doorbell implements ib.UserQP.
func (q *QP) Doorbell(h *ib.Hold) {
	_ = q.d.enterMethod(Doorbell)
	q.rung.Add(1)
	q.posted.Store(false)
	if f := q.onDoorbell.Load(); f != nil {
		(*f)(h)
	}
}

// OnDoorbell makes each doorbell call f as its last action. The argument of f is the Hold of the doorbell.
func (q *QP) OnDoorbell(f func(h *ib.Hold)) { q.onDoorbell.Store(&f) }

// DoorbellCount returns the number of doorbells.
func (q *QP) DoorbellCount() int { return int(q.rung.Load()) }

// PostSend implements ib.DriverQP.
func (q *QP) PostSend(wrs []ib.SendWR) (int, error) {
	if err := q.d.enterMethod(PostSend); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return acceptRequests(&q.sent, wrs)
}

// PostRecv implements ib.DriverQP.
func (q *QP) PostRecv(wrs []ib.RecvWR) (int, error) {
	if err := q.d.enterMethod(PostRecv); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return acceptRequests(&q.recv, wrs)
}

func acceptRequests[W any](queue *[]W, wrs []W) (int, error) {
	n := min(len(wrs), qpQueueCapacity-len(*queue))
	*queue = append(*queue, wrs[:n]...)
	if n < len(wrs) {
		return n, syscall.ENOMEM
	}
	return n, nil
}

// SentRequests returns the accepted send work requests.
func (q *QP) SentRequests() []ib.SendWR {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.sent)
}

// ReceiveRequests returns the accepted receive work requests.
func (q *QP) ReceiveRequests() []ib.RecvWR {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.recv)
}

// Modify implements ib.DriverQP. Modify stores the attributes unchanged.
func (q *QP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, _ *ib.Udata) error {
	if err := q.d.enterMethod(ModifyQP); err != nil {
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

// lastModifyArgs returns the arguments of the last Modify.
func (q *QP) lastModifyArgs() (ib.QPAttr, ib.QPAttrMask) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr, q.mask
}

// MoveToReady makes the queue pair report a state in which it can send, and returns the queue pair.
func (q *QP) MoveToReady() *QP {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attr.State = ib.QPRTS
	return q
}

// State implements ib.DriverQP.
func (q *QP) State() ib.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr.State
}

// Query implements ib.DriverQP.
func (q *QP) Query(ib.QPAttrMask) (ib.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr, q.d.enterMethod(QueryQP)
}

// Destroy implements ib.DriverQP.
func (q *QP) Destroy() error { return q.d.recordDestroy(DestroyQP, "QP") }
