package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/driver"
	"verbena/ib"
	"verbena/roce"
	"verbena/umem"
)

// pd is a protection domain. Only its identity matters.
type pd struct {
	dev          *Device
	ctx          *userContext // nil: of a consumer in this process
	counts       *objectCounts
	destinations *destinations // nil unless the domain is a program's and Traits.SharesAH is set
}

// maxPD is RXE_MAX_PD.
const maxPD = 1 << 20

// AllocPD implements ib.Driver.
func (o ops) AllocPD(u *ib.Udata) (ib.DriverPD, error) {
	c := o.dev.context(u)
	p := &pd{dev: o.dev, ctx: c, counts: o.dev.counts(c)}
	if err := p.counts.add(countPD); err != nil {
		return nil, err
	}
	if c != nil && p.dev.traits.SharesAH {
		p.destinations = new(destinations)
	}
	if f := p.dev.traits.RespondPD; f != nil && c != nil {
		f(u)
	}
	return p, nil
}

// Dealloc implements ib.DriverPD.
func (p *pd) Dealloc() error {
	p.counts.remove(countPD)
	return nil
}

// domain returns the driver's object of a protection domain.
func domain(p ib.DriverPD) *pd {
	d, _ := ib.As[*pd](p)
	return d
}

// mr is a memory region. Its local and remote keys are the same number: the index in the device's table, and eight
// bits that differ for each use of the index. A region is in the valid state of the specification (IBA 10.6.3) while
// its mr.grant is not nil, and otherwise in the free state.
type mr struct {
	dev   *Device
	obj   ib.MRHandle
	index uint32
	fast  bool // created by AllocMR; work requests register the region
	// atomics serialises the atomic operations of the program.
	atomics *atomics
	grant   atomic.Pointer[grant] // set under mu

	// mu may be held during a wait for the end of accesses. An access never waits for mu. The lock of a window comes
	// before that of its region.
	//verbena:program work requests and commands of the region's domain hold mu, and the end of the domain
	mu      sync.Mutex
	pd      *pd
	mapped  *umem.Region // memory for the next WRRegMR; only with fast
	windows int          // count of windows that are bound to the region
	gone    bool
}

// newMR creates a region, and its first key. Lookups do not find the region yet.
func (d *Device) newMR(obj ib.MRHandle, p ib.DriverPD, u *ib.Udata) (m *mr, key uint32, err error) {
	index, ok := d.mrs.reserve()
	if !ok {
		return nil, 0, fmt.Errorf("%d memory regions exist: %w", d.mrs.limit-1, syscall.ENOMEM)
	}
	m = &mr{dev: d, obj: obj, index: index, pd: domain(p), atomics: &d.atomics}
	if c := d.context(u); c != nil {
		m.atomics = &c.atomics
	}
	return m, index<<8 | uint32(d.keys.take(index, uint8(d.random()))), nil
}

// checkMRAccess returns an error for access flags that the device does not support, for example persistence.
func checkMRAccess(access ib.AccessFlags) error {
	const known = ib.AccessLocalWrite | remoteAccess | ib.AccessMWBind | ib.AccessZeroBased | ib.AccessOnDemand |
		ib.AccessHugeTLB | ib.AccessFlushGlobal | ib.AccessOptional
	if access&^known != 0 {
		return fmt.Errorf("access flags %v: %w", access&^known, syscall.EOPNOTSUPP)
	}
	return nil
}

// RegMR implements ib.Driver.
func (o ops) RegMR(obj ib.MRHandle, p ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR, error) {
	d := o.dev
	if err := checkMRAccess(access); err != nil {
		return nil, err
	}
	m, key, err := d.newMR(obj, p, u)
	if err != nil {
		return nil, err
	}
	m.grant.Store(m.cover(key, r, access))
	d.mrs.set(m.index, m)
	m.setKeys(key, access)
	return m, nil
}

// setKeys reports the keys to the consumer. A region without remote rights has no key for peers, unless the adapter
// always has one.
func (m *mr) setKeys(key uint32, access ib.AccessFlags) {
	rkey := key
	if access&(remoteAccess|ib.AccessFlushGlobal) == 0 && !m.dev.traits.AllRKeys {
		rkey = 0
	}
	m.obj.SetKeys(key, rkey)
}

// AdviseMR implements ib.MRAdviser. The device follows advice at once, with or without the flag for it. A prefetch of
// only the present pages has nothing to do. (rxe_ib_advise_mr)
func (o ops) AdviseMR(in ib.DriverPD, advice ib.MRAdvice, _ ib.MRAdviceFlags, sgl []ib.SGE) error {
	d := o.dev
	if advice > ib.AdvicePrefetchNoFault {
		return fmt.Errorf("advice %d: %w", advice, syscall.EOPNOTSUPP)
	}
	for _, s := range sgl {
		if err := prefetch(d, domain(in), advice, s); err != nil {
			return fmt.Errorf("%d bytes at %#x by key %#x: %w", s.Length, s.Addr, s.LKey, err)
		}
	}
	return nil
}

func prefetch(d *Device, in *pd, advice ib.MRAdvice, s ib.SGE) error {
	m := d.memory(in, s.LKey, localRead)
	if m == nil {
		return fmt.Errorf("no such region: %w", syscall.EINVAL)
	}
	defer m.put()
	write := advice == ib.AdvicePrefetchWrite
	switch {
	case !m.region.OnDemand():
		return fmt.Errorf("not registered on demand: %w", syscall.EINVAL)
	case write && !m.access.Writable():
		return fmt.Errorf("not registered for writing: %w", syscall.EPERM)
	case advice == ib.AdvicePrefetchNoFault && m.contains(s.Addr, uint64(s.Length)):
		return nil
	}
	return m.region.Prefetch(s.Addr, uint64(s.Length), write)
}

// Dereg implements ib.DriverMR.
func (m *mr) Dereg() error {
	if err := m.end(); err != nil {
		return err
	}
	m.dev.mrs.drop(m.index)
	return nil
}

// end removes the region from use. The error is EBUSY while windows are bound to the region.
func (m *mr) end() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.windows > 0 {
		return fmt.Errorf("%d memory windows are bound to the region: %w", m.windows, syscall.EBUSY)
	}
	m.gone = true
	m.dev.mrs.set(m.index, nil)
	m.replace(nil)
	return nil
}

// replace stores new rights, or none, under the key, and revokes the old rights.
//
//verbena:held m.mu
func (m *mr) replace(g *grant) {
	if old := m.grant.Swap(g); old != nil {
		m.dev.keys.used(old.key)
		old.revoke()
		switch {
		case m.gone:
			old.observeEnd(driver.RegionDeregistered)
		case g != nil && g.key == old.key && g.pd == old.pd && g.access == old.access:
		case g != nil:
			old.observeEnd(driver.RegionChanged)
		default:
			old.observeEnd(driver.Invalidated)
		}
	}
}

// Rereg implements ib.ReregMR. The keys change with the translation, so a peer with an old key does not reach the new
// memory. (rxe_rereg_user_mr, which changes no translation)
func (m *mr) Rereg(r *umem.Region, p ib.DriverPD, access ib.AccessFlags, _ *ib.Udata) error {
	if err := checkMRAccess(access); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.windows > 0 {
		return fmt.Errorf("%d memory windows are bound to the region: %w", m.windows, syscall.EBUSY)
	}
	old := m.grant.Load()
	key := old.key
	if r != old.region {
		key = m.index<<8 | uint32(m.dev.keys.take(m.index, 0))
	}
	m.pd = domain(p)
	m.replace(m.cover(key, r, access))
	m.setKeys(key, access)
	return nil
}

// atomics makes the atomic operations on the memory of a program atomic among the device's queue pairs
// (ib.AtomicHCA), independently of the region that an operation names. Each user context has its own atomics, and the
// consumers in this process share one. Thus memory that does not answer blocks the operations of only one program.
// Operations on memory that two programs share and have both registered are not atomic with regard to one another.
// The process may change the memory at the same time; the lock does not prevent this.
type atomics struct {
	//verbena:program each program has its own; the consumers in this process share one, and their memory answers
	sync.Mutex
	buf [atomicLen]byte
	vec [1][]byte
}

// atomic executes a CmpSwap or FetchAdd, and returns the previous content of the memory.
func (g *grant) atomic(op roce.Opcode, h roce.AtomicETH) (old uint64, err error) {
	a := g.mr.atomics
	a.Lock()
	defer a.Unlock()
	a.vec[0] = a.buf[:]
	if err := g.read(a.vec[:], h.VA(), atomicLen); err != nil {
		return 0, err
	}
	old = binary.NativeEndian.Uint64(a.buf[:])
	fresh := old + h.SwapAdd()
	if op.Operation() == roce.CmpSwap {
		if old != h.Compare() {
			return old, nil
		}
		fresh = h.SwapAdd()
	}
	binary.NativeEndian.PutUint64(a.buf[:], fresh)
	return old, g.write(a.vec[:], h.VA(), atomicLen)
}
