package weak

import (
	"sync"
	"sync/atomic"

	"verbena/ib"
	"verbena/umem"
)

// atomicWordLen is the length of the operand of an atomic operation, in bytes.
const atomicWordLen = 8

// atomicSpace is the memory of a region with the right to atomic operations. A driver executes an atomic operation as a
// read of the word and a write of the result. An atomicSpace delays some of these writes. An access of the device to
// the region ends the delay, so operations of the device remain atomic among themselves. An access of the processor
// does not.
type atomicSpace struct {
	*umem.Local
	d   *driver
	ord uint64 // number of the region in creation order

	mu     sync.Mutex
	count  uint64 // number of atomic operations
	read   uint64 // address of the word that the last access has read, or 0
	addr   uint64 // address of the delayed write, or 0
	result [atomicWordLen]byte
	wait   int  // remaining steps of the delay
	shared bool // other regions have the same memory; no write is delayed
}

// delayedWriteSpaces holds the spaces of all devices with a delayed write. A completion of another device may prove
// that the operation has ended.
var delayedWriteSpaces struct {
	count atomic.Int64 // length of in
	sync.Mutex
	in map[*atomicSpace]struct{}
}

// newAtomicRegion returns the region to register in the inner driver in place of r, and its memory. The memory is nil
// if no write is delayed.
func (d *driver) newAtomicRegion(r *umem.Region, access ib.AccessFlags) (*umem.Region, *atomicSpace) {
	if !d.hasChoice(SplitAtomic) || access&ib.AccessRemoteAtomic == 0 || !isLocalMemory(r) {
		return r, nil
	}
	if a, err := d.Driver.QueryDevice(); err != nil || a.AtomicCap != ib.AtomicHCA {
		return r, nil
	}
	memory := umem.NewLocal()
	if err := memory.AddAt(r.Addr(), r.Direct(r.IOVA(), r.Len())); err != nil {
		return r, nil
	}
	s := &atomicSpace{Local: memory, d: d}
	inner, err := umem.Get(s, nil, r.Addr(), r.Len(), r.IOVA(), true)
	if err != nil {
		return r, nil
	}
	return inner, s
}

// endOverlappingDelays ends the delays in regions that have memory in common with m. The driver's accesses through one
// region do not end the delay of a write through the other.
//
//verbena:held mu
func (d *driver) endOverlappingDelays(m *mr) {
	for _, o := range d.mrs {
		if o == m || o.atomics == nil && m.atomics == nil {
			continue
		}
		o.mu.RLock()
		overlap := !o.gone && o.region.Addr() < m.region.Addr()+m.region.Len() &&
			m.region.Addr() < o.region.Addr()+o.region.Len()
		o.mu.RUnlock()
		if overlap {
			o.atomics.endDelays()
			m.atomics.endDelays()
		}
	}
}

// endDelays ends the delays of the space. s may be nil.
func (s *atomicSpace) endDelays() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.executeDelayedWrite()
	s.shared = true
}

// ReadV implements umem.Space. The memory belongs to this process.
func (s *atomicSpace) ReadV(dst [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.executeDelayedWrite()
	s.read = 0
	if isAtomicWord(dst, addr) {
		s.read = addr
	}
	return s.Local.ReadV(dst, addr)
}

// WriteV implements umem.Space.
func (s *atomicSpace) WriteV(src [][]byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.executeDelayedWrite()
	if s.read != addr && isAtomicWord(src, addr) { // the driver may store the former value of the word in between
		return s.Local.WriteV(src, addr)
	}
	atomically := s.read == addr && isAtomicWord(src, addr) && !s.shared
	s.read = 0
	if !atomically {
		return s.Local.WriteV(src, addr)
	}
	s.count++
	s.wait = s.d.decide(Point{SplitAtomic, ObjectMR, s.ord, EventAtomic, s.count},
		s.d.drawRandom(SplitAtomic, s.ord, s.count, 4), nil)
	if s.wait == 0 {
		return s.Local.WriteV(src, addr)
	}
	s.addr = addr
	copy(s.result[:], src[0])
	delayedWriteSpaces.Lock()
	defer delayedWriteSpaces.Unlock()
	if delayedWriteSpaces.in == nil {
		delayedWriteSpaces.in = map[*atomicSpace]struct{}{}
	}
	delayedWriteSpaces.in[s] = struct{}{}
	delayedWriteSpaces.count.Store(int64(len(delayedWriteSpaces.in)))
	s.d.scheduleDelayStep()
	return nil
}

// isAtomicWord reports whether an access may be the half of an atomic operation.
func isAtomicWord(v [][]byte, addr uint64) bool {
	return len(v) == 1 && len(v[0]) == atomicWordLen && addr%atomicWordLen == 0 && addr != 0
}

// executeDelayedWrite executes the delayed write.
//
//verbena:held mu
func (s *atomicSpace) executeDelayedWrite() {
	if s.addr == 0 {
		return
	}
	_ = s.Local.WriteV([][]byte{s.result[:]}, s.addr) // the read has shown that the memory exists
	s.addr = 0
	delayedWriteSpaces.Lock()
	defer delayedWriteSpaces.Unlock()
	delete(delayedWriteSpaces.in, s)
	delayedWriteSpaces.count.Store(int64(len(delayedWriteSpaces.in)))
}

// executeAllWrites executes all delayed writes. The consumer may now have proof that the operations have ended.
func executeAllWrites() {
	for _, s := range spacesWithDelayedWrite(nil) {
		s.mu.Lock()
		s.executeDelayedWrite()
		s.mu.Unlock()
	}
}

// spacesWithDelayedWrite returns the spaces of a device with a delayed write. A nil device means all devices.
func spacesWithDelayedWrite(d *driver) (some []*atomicSpace) {
	if delayedWriteSpaces.count.Load() == 0 {
		return nil
	}
	delayedWriteSpaces.Lock()
	defer delayedWriteSpaces.Unlock()
	for s := range delayedWriteSpaces.in {
		if d == nil || s.d == d {
			some = append(some, s)
		}
	}
	return some
}

// stepDelayedWrites executes one step for the delayed writes of the device. It reports whether more steps are needed.
func (d *driver) stepDelayedWrites() (more bool) {
	for _, s := range spacesWithDelayedWrite(d) {
		s.mu.Lock()
		if s.wait--; s.wait <= 0 {
			s.executeDelayedWrite()
		}
		more = more || s.addr != 0
		s.mu.Unlock()
	}
	return more
}

// finishDelayedWrite executes the delayed write of a region that is deregistered or changed. s may be nil.
func (s *atomicSpace) finishDelayedWrite() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.executeDelayedWrite()
}
