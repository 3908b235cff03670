package rxe

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/roce"
	"verbena/umem"
)

// pd is a protection domain. Its identity is all that matters.
type pd struct{ dev *Device }

// AllocPD implements ib.Driver.
func (d *Device) AllocPD(*ib.PD, *ib.Udata) (ib.DriverPD, error) { return &pd{dev: d}, nil }

// Dealloc implements ib.DriverPD.
func (*pd) Dealloc() error { return nil }

// mr is a memory region. Local and remote key are one number: the index in the device's table, and eight bits
// that differ each time the index is used again.
type mr struct {
	dev    *Device
	pd     *pd
	region *umem.Region
	access ib.AccessFlags
	key    uint32

	users atomic.Int32  // accesses in flight, and 1 for being registered
	idle  chan struct{} // closed when users has become 0
}

const (
	maxMR        = 1<<19 - 1 // RXE_MAX_MR
	remoteAccess = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic
)

// keyGenerations gives the low eight bits of the next key with an index.
type keyGenerations struct {
	mu     sync.Mutex
	chunks map[uint32]*[1 << chunkBits]uint16 // 256 and the last generation; 0: the index was never used
}

func (k *keyGenerations) take(index uint32, seed uint8) uint8 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chunks == nil {
		k.chunks = map[uint32]*[1 << chunkBits]uint16{}
	}
	c := k.chunks[index>>chunkBits]
	if c == nil {
		c = new([1 << chunkBits]uint16)
		k.chunks[index>>chunkBits] = c
	}
	last := &c[index&(1<<chunkBits-1)]
	g := uint8(*last) + 1
	if *last == 0 {
		g = seed
	}
	*last = 256 | uint16(g)
	return g
}

// RegMR implements ib.Driver.
func (d *Device) RegMR(obj *ib.MR, r *umem.Region, access ib.AccessFlags, _ *ib.Udata) (ib.DriverMR, error) {
	const known = ib.AccessLocalWrite | remoteAccess | ib.AccessMWBind | ib.AccessOnDemand | ib.AccessHugeTLB |
		ib.AccessOptional
	if access&^known != 0 {
		return nil, fmt.Errorf("access flags %#x: %w", uint32(access&^known), syscall.EOPNOTSUPP)
	}
	index, ok := d.mrs.reserve()
	if !ok {
		return nil, fmt.Errorf("%d memory regions exist: %w", maxMR, syscall.ENOMEM)
	}
	m := &mr{
		dev: d, pd: obj.PD().Driver().(*pd), region: r, access: access,
		key:  index<<8 | uint32(d.mrKeys.take(index, uint8(d.random()))),
		idle: make(chan struct{}),
	}
	m.users.Store(1)
	d.mrs.set(index, m)
	rkey := m.key
	if access&remoteAccess == 0 {
		rkey = 0
	}
	obj.SetKeys(m.key, rkey)
	return m, nil
}

// AdviseMR implements ib.MRAdviser. Advice is followed at once, whether or not that was asked for; what is to be
// prefetched only where it is there already is there. (rxe_ib_advise_mr)
func (d *Device) AdviseMR(in *ib.PD, advice ib.MRAdvice, _ ib.MRAdviceFlags, sgl []ib.SGE) error {
	if advice > ib.AdvicePrefetchNoFault {
		return fmt.Errorf("advice %d: %w", advice, syscall.EOPNOTSUPP)
	}
	for _, s := range sgl {
		if err := d.prefetch(in.Driver().(*pd), advice, s); err != nil {
			return fmt.Errorf("%d bytes at %#x by key %#x: %w", s.Length, s.Addr, s.LKey, err)
		}
	}
	return nil
}

func (d *Device) prefetch(in *pd, advice ib.MRAdvice, s ib.SGE) error {
	m := d.memory(in, s.LKey, 0)
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
	case advice == ib.AdvicePrefetchNoFault && m.region.Contains(s.Addr, uint64(s.Length)):
		return nil
	}
	return m.region.Prefetch(s.Addr, uint64(s.Length), write)
}

// Dereg implements ib.DriverMR.
func (m *mr) Dereg() error {
	m.dev.mrs.set(m.key>>8, nil)
	m.put()
	<-m.idle
	m.dev.mrs.drop(m.key >> 8)
	return nil
}

// get begins an access, false if the region is going away.
func (m *mr) get() bool {
	for {
		n := m.users.Load()
		if n == 0 {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// put ends an access.
func (m *mr) put() {
	if m.users.Add(-1) == 0 {
		close(m.idle)
	}
}

// memory finds the region of a key in a domain with a right, and begins an access to it; nil if there is no such
// region. No right, 0, is what reading by a local key needs. (lookup_mr)
func (d *Device) memory(in *pd, key uint32, right ib.AccessFlags) *mr {
	m := d.mrs.get(key >> 8)
	if m == nil || m.key != key || m.pd != in || m.access&right != right || !m.get() {
		return nil
	}
	return m
}

// atomics makes the atomic operations of a device atomic among its queue pairs (ib.AtomicHCA). The memory belongs
// to another process, which may change it at the same time; the lock does not help against that.
type atomics struct {
	sync.Mutex
	buf [atomicLen]byte
	vec [1][]byte
}

// atomic does what a CmpSwap or FetchAdd asks for, and returns what the memory held before.
func (m *mr) atomic(op roce.Opcode, h roce.AtomicETH) (old uint64, err error) {
	a := &m.dev.atomics
	a.Lock()
	defer a.Unlock()
	a.vec[0] = a.buf[:]
	if err := m.region.ReadV(a.vec[:], h.VA()); err != nil {
		return 0, err
	}
	old = binary.NativeEndian.Uint64(a.buf[:])
	fresh := old + h.SwapAdd()
	if op == roce.RCCmpSwap {
		if old != h.Compare() {
			return old, nil
		}
		fresh = h.SwapAdd()
	}
	binary.NativeEndian.PutUint64(a.buf[:], fresh)
	return old, m.region.WriteV(a.vec[:], h.VA())
}
