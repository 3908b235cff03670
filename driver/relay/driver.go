package relay

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/engine/queue"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/weak"
	"verbena/umem"
)

// driver wraps another driver.
type driver struct {
	ib.Driver
	layout  queue.Layout
	refills bool // the inner driver calls Refill
	group   weak.Group

	mu       sync.Mutex
	programs map[ib.UserContext]*program
}

// New returns a driver that wraps d. layout is the layout of the queues of user contexts that ask for a weak device.
func New(d ib.Driver, layout queue.Layout) ib.Driver {
	_, refills := ib.As[ib.Refiller](d)
	return &driver{Driver: d, layout: layout, refills: refills, programs: map[ib.UserContext]*program{}}
}

// Unwrap gives access to the optional interfaces of the inner driver.
func (d *driver) Unwrap() ib.Driver { return d.Driver }

// program is a user context with a weak device, or with checks.
type program struct {
	ib.UserContext
	d      *driver
	weak   ib.Driver
	checks *check.Program // nil: none
	// firstHold is firstHoldTime, except in tests.
	firstHold time.Duration
	choices   weak.Set
	queues    queue.Program
	limits    ib.DeviceAttr

	detached atomic.Bool // the memory of the queues must not be accessed

	mu     sync.Mutex // a leaf
	last   uint32     // last number of an owner
	owners map[uint32]owner
	qps    map[*qp]struct{}
	cqs    map[*cq]struct{}
	ahs    map[uint32]*ah
	lastAH uint32
	mrs    map[uint32]*ib.MR // by the program's local key
	mws    map[uint32]*ib.MW // by key >> 8

	dir directory
}

// owner is a queue pair or shared receive queue. The IDs of its requests contain its number.
type owner interface {
	// finish ends a request, and all sends before it, when the completion wc is about to be added to the program's queue.
	// finish replaces the ID, and the status of a request that could not be posted. It returns false if the request no
	// longer exists.
	finish(wc *ib.WC) bool
}

// programOf returns the program of a command, or nil if the inner driver serves it.
func (d *driver) programOf(u *ib.Udata) *program {
	if u == nil || u.Context == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.programs[u.Context]
}

// AllocUserContext implements ib.UserContexter.
func (d *driver) AllocUserContext(u *ib.Udata) error {
	config, checks := configure(u.Context)
	if config == nil {
		if inner, ok := ib.As[ib.UserContexter](d.Driver); ok {
			return inner.AllocUserContext(u)
		}
		return nil
	}
	p := &program{
		UserContext: u.Context, d: d, checks: checks, firstHold: firstHoldTime,
		owners: map[uint32]owner{}, qps: map[*qp]struct{}{}, cqs: map[*cq]struct{}{},
		ahs: map[uint32]*ah{}, mrs: map[uint32]*ib.MR{}, mws: map[uint32]*ib.MW{},
	}
	var err error
	if p.limits, err = d.QueryDevice(); err == nil {
		p.queues, err = d.layout.OpenProgram(u)
	}
	if err != nil {
		p.closeChecks()
		return err
	}
	config.Choices &^= weak.InProcess
	config.Relay = &weak.Relay{Group: &d.group}
	p.weak, p.choices = weak.New(d.Driver, *config), config.Choices
	d.mu.Lock()
	defer d.mu.Unlock()
	d.programs[u.Context] = p
	return nil
}

// DeallocUserContext implements ib.UserContexter.
func (d *driver) DeallocUserContext(c ib.UserContext) {
	d.mu.Lock()
	p := d.programs[c]
	delete(d.programs, c)
	d.mu.Unlock()
	if p == nil {
		if inner, ok := ib.As[ib.UserContexter](d.Driver); ok {
			inner.DeallocUserContext(c)
		}
		return
	}
	d.group.Remove(p.weak)
	p.closeChecks()
	p.dir.Lock()
	defer p.dir.Unlock()
	p.queues.Close()
}

func (p *program) closeChecks() {
	if p.checks != nil {
		p.checks.Close()
	}
}

// Disassociate implements ib.Disassociator.
func (d *driver) Disassociate(c ib.UserContext) {
	d.mu.Lock()
	p := d.programs[c]
	d.mu.Unlock()
	if p != nil {
		p.postAll()
	}
	if inner, ok := ib.As[ib.Disassociator](d.Driver); ok {
		inner.Disassociate(c)
	}
	if p == nil {
		return
	}
	for _, c := range p.listCQs() {
		c.completions().EndDelays()
		c.drain()
		c.endHold()
	}
	p.detached.Store(true)
	// A thread that found detached unset holds one of these locks.
	for _, q := range p.listQPs() {
		awaitHolder(&q.mu)
		awaitHolder(&q.recvMu)
	}
	for _, c := range p.listCQs() {
		awaitHolder(&c.mu)
	}
	for _, s := range p.listSRQs() {
		awaitHolder(&s.mu)
	}
}

// awaitHolder waits until the present holder of a lock has released it.
func awaitHolder(l *sync.Mutex) {
	l.Lock()
	defer l.Unlock()
}

// postAll posts all requests of the program, without delays.
func (p *program) postAll() {
	for _, q := range p.listQPs() {
		q.advance(nil)
		if s := q.weakSends; s != nil {
			s.EndDelays()
		}
	}
}

func (p *program) listQPs() (list []*qp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := range p.qps {
		list = append(list, q)
	}
	return list
}

func (p *program) listCQs() (list []*cq) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.cqs {
		list = append(list, c)
	}
	return list
}

func (p *program) listSRQs() (list []*srq) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.owners {
		if s, ok := o.(*srq); ok {
			list = append(list, s)
		}
	}
	return list
}

// EnterError implements ib.Driver. Requests that the programs have posted, or post later, are flushed.
func (d *driver) EnterError() {
	d.Driver.EnterError()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.programs {
		for _, q := range p.listQPs() {
			q.startFlushing()
		}
	}
}

// addOwner gives an owner its number, in the high half of the IDs of its requests.
func (p *program) addOwner(o owner) (number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.last++; p.last != 0 && p.owners[p.last] == nil {
			p.owners[p.last] = o
			return p.last
		}
	}
}

func (p *program) removeOwner(number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, number)
}

// finish ends the request of a completion. It returns false if the program must not see the completion.
func (p *program) finish(wc *ib.WC) bool {
	p.mu.Lock()
	o := p.owners[uint32(wc.ID>>32)]
	p.mu.Unlock()
	return o != nil && o.finish(wc)
}

// libraryFault reports a fault of the program's library. It may not sleep.
func (p *program) libraryFault(fault ib.LibraryFault) {
	if l, ok := p.UserContext.(ib.LibraryFaulter); ok {
		l.LibraryFault(fault)
	}
}

// The next methods pass the objects of programs to the weak device, and all others to the inner driver.

// pd is the protection domain of a program.
type pd struct {
	ib.DriverPD
	p *program
}

// Unwrap gives access to the inner domain.
func (x *pd) Unwrap() ib.DriverPD { return x.DriverPD }

// AllocPD implements ib.Driver.
func (d *driver) AllocPD(u *ib.Udata) (ib.DriverPD, error) {
	p := d.programOf(u)
	if p == nil {
		return d.Driver.AllocPD(u)
	}
	inner, err := p.weak.AllocPD(nil)
	if err != nil {
		return nil, err
	}
	return &pd{inner, p}, nil
}

// AdviseMR implements ib.MRAdviser if the inner driver does.
func (d *driver) AdviseMR(of ib.DriverPD, advice ib.MRAdvice, flags ib.MRAdviceFlags, sgl []ib.SGE) error {
	to := d.Driver
	if x, ok := of.(*pd); ok {
		to = x.p.weak
	}
	inner, ok := ib.As[ib.MRAdviser](to)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	return inner.AdviseMR(of, advice, flags, sgl)
}

// mr is the region of a program.
type mr struct {
	ib.DriverMR
	p    *program
	obj  ib.MRHandle
	key  uint32 // the program's local key; under program.mu
	rkey uint32

	checked *check.UserMR // nil: no checks
	domain  ib.DriverPD
	region  *umem.Region
	access  ib.AccessFlags
}

// Unwrap gives access to the inner region.
func (m *mr) Unwrap() ib.DriverMR { return m.DriverMR }

// RegMR implements ib.Driver.
func (d *driver) RegMR(h ib.MRHandle, of ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR,
	error) {
	p := d.programOf(u)
	if p == nil {
		return d.Driver.RegMR(h, of, r, access, u)
	}
	m := &mr{p: p, obj: h, domain: of, region: r, access: access}
	if p.checks != nil {
		p.checks.ObserveRegion(r)
	}
	var err error
	if m.DriverMR, err = p.weak.RegMR(h.Redirect(m.setKeys), of, r, access, nil); err != nil {
		m.forgetKey()
		return nil, err
	}
	if p.checks != nil {
		m.checked = p.checks.AddMR(h.MR())
		m.reportMemory()
	}
	return m, nil
}

// reportMemory reports the present memory of the region to the checks.
func (m *mr) reportMemory() {
	if m.checked != nil {
		m.checked.SetMemory(m.region, m.domain, m.access, m.key, m.rkey)
	}
}

// beginChange reports that a call ends or changes the region to the checks.
func (m *mr) beginChange(what string) {
	if m.checked != nil {
		m.p.look()
		m.checked.Ending(what)
	}
}

// setKeys sets the program's keys.
func (m *mr) setKeys(lkey, rkey uint32) {
	m.obj.SetKeys(lkey, rkey)
	m.forgetKey()
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	m.key, m.rkey = lkey, rkey
	m.p.mrs[lkey] = m.obj.MR()
}

// forgetKey removes the region from the table, unless a newer region has its key.
func (m *mr) forgetKey() {
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	if m.p.mrs[m.key] == m.obj.MR() {
		delete(m.p.mrs, m.key)
	}
}

// Rereg implements ib.ReregMR.
func (m *mr) Rereg(r *umem.Region, of ib.DriverPD, access ib.AccessFlags, _ *ib.Udata) error {
	inner, ok := ib.As[ib.ReregMR](m.DriverMR)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	m.beginChange("ibv_rereg_mr")
	defer m.reportMemory()
	if r != nil && m.checked != nil {
		m.p.checks.ObserveRegion(r)
	}
	if err := inner.Rereg(r, of, access, nil); err != nil {
		return err
	}
	m.access = access
	if r != nil {
		m.region = r
	}
	if of != nil {
		m.domain = of
	}
	return nil
}

// Dereg implements ib.DriverMR.
func (m *mr) Dereg() error {
	m.beginChange("ibv_dereg_mr")
	if err := m.DriverMR.Dereg(); err != nil {
		m.reportMemory()
		return err
	}
	if m.checked != nil {
		m.checked.Destroyed()
	}
	m.forgetKey()
	return nil
}

// mw is the window of a program.
type mw struct {
	ib.DriverMW
	p       *program
	index   uint32
	checked *check.UserMW // nil: no checks
}

// Unwrap gives access to the inner window.
func (w *mw) Unwrap() ib.DriverMW { return w.DriverMW }

// keyIndexShift is the number of low bits of a window's key that its consumer chooses (IBA 10.6.7.2).
const keyIndexShift = 8

// AllocMW implements ib.MWDriver if the inner driver does.
func (d *driver) AllocMW(h ib.MWHandle, of ib.DriverPD, kind ib.MWType, u *ib.Udata) (ib.DriverMW, error) {
	inner, ok := ib.As[ib.MWDriver](d.Driver)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	p := d.programOf(u)
	if p == nil {
		return inner.AllocMW(h, of, kind, u)
	}
	side, err := inner.AllocMW(h, of, kind, nil)
	if err != nil {
		return nil, err
	}
	w := &mw{DriverMW: side, p: p, index: h.MW().RKey() >> keyIndexShift}
	if p.checks != nil {
		w.checked = p.checks.AddMW(h.MW())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mws[w.index] = h.MW()
	return w, nil
}

// Dealloc implements ib.DriverMW.
func (w *mw) Dealloc() error {
	err := w.DriverMW.Dealloc()
	if x, ok := w.p.weak.(weak.Writes); ok { // the memory of the window may belong to the program again
		x.EndWrites()
	}
	if err != nil {
		return err
	}
	if w.checked != nil {
		w.checked.Destroyed()
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	delete(w.p.mws, w.index)
	return nil
}

// ah is the address handle of a program.
type ah struct {
	ib.DriverAH
	p   *program
	num uint32
	pd  ib.DriverPD
}

// Unwrap gives access to the inner handle.
func (a *ah) Unwrap() ib.DriverAH { return a.DriverAH }

// CreateAH implements ib.AHDriver if the inner driver does.
func (d *driver) CreateAH(of ib.DriverPD, attr *ib.AHAttr, u *ib.Udata) (ib.DriverAH, error) {
	inner, ok := ib.As[ib.AHDriver](d.Driver)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	p := d.programOf(u)
	if p == nil {
		return inner.CreateAH(of, attr, u)
	}
	side, err := inner.CreateAH(of, attr, nil)
	if err != nil {
		return nil, err
	}
	a := &ah{DriverAH: side, p: p, pd: of}
	p.mu.Lock()
	for a.num == 0 || p.ahs[a.num] != nil {
		p.lastAH++
		a.num = p.lastAH
	}
	p.ahs[a.num] = a
	p.mu.Unlock()
	p.queues.RespondAH(a.num, u)
	return a, nil
}

// Destroy implements ib.DriverAH.
func (a *ah) Destroy() error {
	if c := a.p.checks; c != nil {
		a.p.look()
		c.EndingAH(a.num)
	}
	if err := a.DriverAH.Destroy(); err != nil {
		return err
	}
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	delete(a.p.ahs, a.num)
	return nil
}

// AllocXRCD implements ib.XRCDriver if the inner driver does. Programs share domains, so a domain belongs to no weak
// device.
func (d *driver) AllocXRCD(u *ib.Udata) (ib.DriverXRCD, error) {
	inner, ok := ib.As[ib.XRCDriver](d.Driver)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	if d.programOf(u) != nil {
		u = nil
	}
	return inner.AllocXRCD(u)
}

// directory knows which queue pairs of a program are listed in its memory, for the time after the service's death.
type directory struct {
	sync.Mutex
	qps []*qp // by index; nil is free
}

// list lists a queue pair.
func (p *program) list(q *qp) (err error) {
	p.dir.Lock()
	defer p.dir.Unlock()
	if q.listed, err = p.queues.List(q.queues()); err != nil {
		return err
	}
	for len(p.dir.qps) <= q.listed {
		p.dir.qps = append(p.dir.qps, nil)
	}
	p.dir.qps[q.listed] = q
	return nil
}

func (p *program) unlist(q *qp) {
	p.dir.Lock()
	defer p.dir.Unlock()
	p.dir.qps[q.listed] = nil
	p.queues.Unlist(q.listed)
}

// updateList lists all queue pairs again, because a queue has another location.
func (p *program) updateList() {
	p.dir.Lock()
	defer p.dir.Unlock()
	for i, q := range p.dir.qps {
		if q != nil {
			p.queues.Update(i, q.queues())
		}
	}
}

// errQueueGone is the error of calls after the program has removed the memory of a queue.
var errQueueGone = fmt.Errorf("the process removed the memory of its queue: %w", syscall.EFAULT)
