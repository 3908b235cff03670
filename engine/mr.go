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

// pd is a protection domain. Its identity is all that matters.
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

// domain is the driver's own side of a protection domain.
func domain(p ib.DriverPD) *pd {
	d, _ := ib.As[*pd](p)
	return d
}

// mr is a memory region. Local and remote key are one number: the index in the device's table, and eight bits that
// differ each time the index is used again. In the states of the specification (IBA 10.6.3) it is valid when it has
// a grant, and else free.
type mr struct {
	dev   *Device
	obj   ib.MRHandle
	index uint32
	fast  bool // made by AllocMR: work requests register it
	// atomics is the lock of the program's atomic operations.
	atomics *atomics
	grant   atomic.Pointer[grant] // set under mu

	// mu may be held while accesses end, which never wait for it. That of a window comes before that of its region.
	//verbena:program work requests and commands of the domain that the region is of, and the end of that
	mu      sync.Mutex
	pd      *pd
	mapped  *umem.Region // fast: what the next WRRegMR registers
	windows int          // bound to the region
	gone    bool
}

// newMR makes a region that no key leads to yet, and the key that is to be the first.
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

// checkMRAccess refuses what the device does not do, persistence among it.
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

// setKeys tells the consumer the keys. Without a remote right there is no key for peers, unless the adapter always has
// one.
func (m *mr) setKeys(key uint32, access ib.AccessFlags) {
	rkey := key
	if access&(remoteAccess|ib.AccessFlushGlobal) == 0 && !m.dev.traits.AllRKeys {
		rkey = 0
	}
	m.obj.SetKeys(key, rkey)
}

// AdviseMR implements ib.MRAdviser. Advice is followed at once, whether or not that was asked for; what is to be
// prefetched only where it is there already is there. (rxe_ib_advise_mr)
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

// end takes the region out of use, unless there are windows on it.
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

// replace puts another grant, or none, behind the key.
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

// Rereg implements ib.ReregMR. The keys change with the translation, so that nobody reaches memory that he was not
// told of. (rxe_rereg_user_mr, which changes no translation)
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

// atomics makes the atomic operations on the memory of a program atomic among the device's queue pairs (ib.AtomicHCA),
// whichever of its regions they name. Each user context has one, and the consumers in this process have one together: the
// memory of a program may not answer, and stops no other's. So operations on memory that two programs share, and both have
// registered, are not atomic with regard to one another. The process may change the memory at the same time; the lock does
// not help against that.
type atomics struct {
	//verbena:program each program has its own, and the consumers in this process, whose memory answers, have one together
	sync.Mutex
	buf [atomicLen]byte
	vec [1][]byte
}

// atomic does what a CmpSwap or FetchAdd asks for, and returns what the memory held before.
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
