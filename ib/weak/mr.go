package weak

import (
	"errors"
	"math"
	"slices"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// localKeyOffset is the difference between the inner driver's local keys and the local keys that consumers see, for
// regions of RegMR. For regions of AllocMR the contract requires equal keys.
const localKeyOffset = 1 << 31

// innerLKey translates the local key of a work request to the inner driver's key. If lkey is a remote key, the result
// is not a valid key.
func (d *driver) innerLKey(lkey uint32) uint32 {
	if !d.hasChoice(SplitKeys) {
		return lkey
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mrs[lkey] != nil || d.mrs[lkey^localKeyOffset] != nil {
		return lkey ^ localKeyOffset
	}
	return lkey
}

// AdviseMR implements ib.MRAdviser if the inner driver does.
func (d *driver) AdviseMR(pd ib.DriverPD, advice ib.MRAdvice, flags ib.MRAdviceFlags, sgl []ib.SGE) error {
	inner, ok := ib.As[ib.MRAdviser](d.Driver)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	sgl, _ = d.translateElements(sgl, pd, false, false)
	return inner.AdviseMR(pd, advice, flags, sgl)
}

// maxShadowLen is the maximum size, in bytes, of regions that are filled late.
const maxShadowLen = 1 << 22

// peerVisibleRights is the set of rights that allow a peer to observe the arrival of data. The specification guarantees
// the order of a peer's requests to memory with these rights.
const peerVisibleRights = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessMWBind

// mr is a region. If data must appear late, the inner driver stores the data in a second region with the same
// addresses, the shadow.
type mr struct {
	ib.DriverMR
	d *driver

	obj  ib.MRHandle
	key  uint32 // the inner driver's local key
	rkey uint32

	// mu is held while data are copied from the shadow. No method of the inner driver is called with mu held.
	mu     sync.RWMutex
	region *umem.Region
	pd     ib.DriverPD
	access ib.AccessFlags
	gone   bool
	shadow *shadowRegion // nil: none
	// atomics is the memory that the inner driver uses; nil: that of region. Changes are also under driver.mu.
	atomics *atomicSpace
	// poisoned contains the memory of posted receives that is filled with the pattern.
	poisoned []*fillTarget
}

// shadowRegion is the region that first receives the data. The data are copied later.
type shadowRegion struct {
	ib.DriverMR
	key    uint32
	region *umem.Region
}

// Unwrap gives access to the optional interfaces of the inner region.
func (m *mr) Unwrap() ib.DriverMR { return m.DriverMR }

// RegMR implements ib.Driver.
func (d *driver) RegMR(h ib.MRHandle, pd ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR,
	error) {
	if u != nil {
		return d.Driver.RegMR(h, pd, r, access, u)
	}
	d.delayCall()
	if err := d.failCall("RegMR"); err != nil {
		return nil, err
	}
	m := &mr{d: d, obj: h, region: r, pd: pd, access: access}
	inner, atomics := d.newAtomicRegion(r, access)
	m.atomics = atomics
	defer d.skipKeys(pd, r).deregister()
	var err error
	if m.DriverMR, err = d.Driver.RegMR(h.Redirect(m.setKeys), pd, inner, access, nil); err != nil {
		return nil, err
	}
	if m.shadow, err = d.newShadow(r, pd, access); err != nil {
		return nil, errors.Join(err, m.DriverMR.Dereg())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addRegion(m)
	return m, nil
}

// skipKeys registers and returns regions before the first region of a device. The previous device has skipped another
// number of regions, so the keys of the first region differ.
func (d *driver) skipKeys(pd ib.DriverPD, r *umem.Region) (skipped skippedRegions) {
	if !d.hasChoice(NewKeys) || d.registered.Swap(true) {
		return nil
	}
	for range d.ordinal % keyVariants {
		m, err := d.Driver.RegMR(ib.MRHandle{}.Redirect(func(uint32, uint32) {}), pd, r, 0, nil)
		if err != nil {
			break // a limit of the device, which the consumer must not reach because of these regions
		}
		skipped = append(skipped, m)
	}
	return skipped
}

// keyVariants is the number of devices with different keys.
const keyVariants = 8

// skippedRegions holds regions without rights.
type skippedRegions []ib.DriverMR

// deregister deregisters the regions. No window is bound to them, so no error occurs.
func (s skippedRegions) deregister() {
	for _, m := range s {
		_ = m.Dereg()
	}
}

// addRegion adds a region to the table.
//
//verbena:held mu
func (d *driver) addRegion(m *mr) {
	d.mrs[m.key] = m
	if m.atomics != nil {
		d.regions++
		m.atomics.ord = d.regions
	}
	d.endOverlappingDelays(m)
}

// setKeys sets the keys that consumers see. It hides the inner driver's local key.
func (m *mr) setKeys(lkey, rkey uint32) {
	m.key, m.rkey = lkey, rkey
	if m.d.hasChoice(SplitKeys) {
		lkey ^= localKeyOffset
	}
	m.obj.SetKeys(lkey, rkey)
}

// newShadow returns the shadow of a region, or nil if the memory of the region is not filled late.
func (d *driver) newShadow(r *umem.Region, pd ib.DriverPD, access ib.AccessFlags) (*shadowRegion, error) {
	late := d.Choices&Of(LateTarget, LateRead, PoisonedTarget) != 0
	if !late || access&ib.AccessLocalWrite == 0 || r.Len() > maxShadowLen || !isLocalMemory(r) {
		return nil, nil
	}
	memory, err := newShadowMemory(r)
	if err != nil {
		return nil, err
	}
	s := &shadowRegion{region: memory}
	s.DriverMR, err = d.Driver.RegMR(ib.MRHandle{}.Redirect(func(lkey, _ uint32) { s.key = lkey }), pd, memory,
		access&^peerVisibleRights, nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// deregister deregisters the shadow s. s may be nil.
func (s *shadowRegion) deregister() error {
	if s == nil {
		return nil
	}
	return s.Dereg()
}

// isLocalMemory reports whether a region is contiguous memory of this process. A copy of such memory cannot block.
func isLocalMemory(r *umem.Region) bool { return !r.OnDemand() && r.Direct(r.IOVA(), r.Len()) != nil }

// newShadowMemory returns new memory with the same addresses as region r.
func newShadowMemory(r *umem.Region) (*umem.Region, error) {
	space := umem.NewLocal()
	addr, err := space.Add(make([]byte, r.Len()))
	if err != nil {
		return nil, err
	}
	return umem.Get(space, nil, addr, r.Len(), r.IOVA(), true)
}

// Dereg implements ib.DriverMR.
func (m *mr) Dereg() error {
	m.d.delayCall()
	if err := m.DriverMR.Dereg(); err != nil {
		return err
	}
	m.atomics.finishDelayedWrite()
	m.d.EndWrites()
	m.d.mu.Lock()
	if m.d.mrs[m.key] == m {
		delete(m.d.mrs, m.key)
	}
	m.d.mu.Unlock()
	m.mu.Lock()
	for len(m.poisoned) > 0 {
		m.poisoned[0].restoreFormerBytes(0)
	}
	m.gone = true
	m.mu.Unlock()
	return m.shadow.deregister()
}

// Rereg implements ib.ReregMR.
func (m *mr) Rereg(r *umem.Region, pd ib.DriverPD, access ib.AccessFlags, u *ib.Udata) error {
	m.d.delayCall()
	inner, ok := ib.As[ib.ReregMR](m.DriverMR)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	shadow, err := m.d.newShadow(r, pd, access)
	if err != nil {
		return err
	}
	was := m.key
	to, atomics := m.d.newAtomicRegion(r, access)
	if m.d.hasChoice(NewKeys) {
		err = m.replaceInner(to, pd, access)
	} else {
		err = inner.Rereg(to, pd, access, u)
	}
	if err != nil {
		return errors.Join(err, shadow.deregister())
	}
	m.atomics.finishDelayedWrite()
	m.d.EndWrites()
	m.mu.Lock()
	for len(m.poisoned) > 0 {
		m.poisoned[0].restoreFormerBytes(0)
	}
	m.region, m.pd, m.access = r, pd, access
	shadow, m.shadow = m.shadow, shadow
	m.mu.Unlock()
	m.d.mu.Lock()
	delete(m.d.mrs, was)
	m.atomics = atomics
	m.d.addRegion(m)
	m.d.mu.Unlock()
	return shadow.deregister()
}

// replaceInner registers a new region in the inner driver and deregisters the old region with its keys.
func (m *mr) replaceInner(r *umem.Region, pd ib.DriverPD, access ib.AccessFlags) error {
	old, lkey, rkey := m.DriverMR, m.key, m.rkey
	keys := m.obj.Redirect(m.setKeys)
	fresh, err := m.d.Driver.RegMR(keys, pd, r, access, nil)
	if err != nil {
		return err
	}
	if err := old.Dereg(); err != nil { // a window is bound to the region
		keys.SetKeys(lkey, rkey)
		return errors.Join(err, fresh.Dereg())
	}
	m.DriverMR = fresh
	return nil
}

// fillTarget is memory that a request writes. The memory is filled when the completion of the request is polled.
type fillTarget struct {
	mr        *mr
	shadow    *shadowRegion // region that first receives the data
	addr, len uint64
	saved     []byte // the bytes that the pattern has replaced, nil: none
}

// poisonTargets fills the memory of a posted receive with a pattern.
func (r *weakRequest) poisonTargets() {
	for i := range r.targets {
		r.targets[i].poisonBytes()
	}
}

// poisonBytes fills the memory with a pattern, unless it overlaps the memory of another posted receive.
func (t *fillTarget) poisonBytes() {
	m := t.mr
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone || m.shadow != t.shadow || slices.ContainsFunc(m.poisoned, t.overlaps) {
		return
	}
	b := m.region.Direct(t.addr, t.len)
	t.saved = slices.Clone(b)
	for i := range b {
		b[i] = poisonPattern & 0xff
	}
	m.poisoned = append(m.poisoned, t)
}

// restoreTargets removes the pattern from the memory of a receive whose queue is destroyed.
func (r *weakRequest) restoreTargets() {
	for i := range r.targets {
		t := &r.targets[i]
		t.mr.mu.Lock()
		t.restoreFormerBytes(0)
		t.mr.mu.Unlock()
	}
}

func (t *fillTarget) overlaps(o *fillTarget) bool {
	return t.addr < o.addr+o.len && o.addr < t.addr+t.len
}

// restoreFormerBytes replaces the pattern by the former bytes, except the first n bytes.
//
//verbena:held t.mr.mu
func (t *fillTarget) restoreFormerBytes(n uint64) {
	if t.saved == nil {
		return
	}
	copy(t.mr.region.Direct(t.addr, t.len)[n:], t.saved[n:])
	t.saved = nil
	t.mr.poisoned = slices.DeleteFunc(t.mr.poisoned, func(o *fillTarget) bool { return o == t })
}

// translateElements translates the keys of a list to the inner driver's keys. If late is set and all memory of the list
// can be filled late, the result names the shadows, and targets is the memory that must be filled. exposed is the
// argument of shadowForRange.
func (d *driver) translateElements(list []ib.SGE, pd ib.DriverPD, late, exposed bool) (out []ib.SGE,
	targets []fillTarget) {
	out = make([]ib.SGE, len(list))
	for i, s := range list {
		s.LKey = d.innerLKey(s.LKey)
		out[i] = s
	}
	if !late {
		return out, nil
	}
	var keys []uint32
	for _, s := range out {
		d.mu.Lock()
		m := d.mrs[s.LKey]
		d.mu.Unlock()
		if s.Length == 0 {
			keys = append(keys, s.LKey)
			continue
		}
		if m == nil {
			return out, nil
		}
		w := m.shadowForRange(pd, s.Addr, uint64(s.Length), exposed)
		if w == nil {
			return out, nil
		}
		keys = append(keys, w.key)
		targets = append(targets, fillTarget{mr: m, shadow: w, addr: s.Addr, len: uint64(s.Length)})
	}
	for i := range out {
		out[i].LKey = keys[i]
	}
	return out, targets
}

// shadowForRange returns the shadow if a queue of the domain can fill the range late, otherwise nil. exposed reports
// whether peers of the queue can access regions with rights that allow access.
func (m *mr) shadowForRange(pd ib.DriverPD, addr, n uint64, exposed bool) *shadowRegion {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.gone || m.pd != pd || m.access&peerVisibleRights != 0 && exposed || !m.region.Contains(addr, n) {
		return nil
	}
	return m.shadow
}

// isRemotelyWritable reports whether a region of the device has a remote key with the right to write, and contains a
// range.
func (d *driver) isRemotelyWritable(rkey uint32, addr, n uint64) bool {
	return slices.ContainsFunc(d.members(), func(m *driver) bool { return m.hasRemotelyWritable(rkey, addr, n) })
}

func (d *driver) hasRemotelyWritable(rkey uint32, addr, n uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mrs {
		m.mu.RLock()
		is := m.rkey == rkey && !m.gone && m.access&ib.AccessRemoteWrite != 0 && m.region.Contains(addr, n)
		m.mu.RUnlock()
		if is {
			return true
		}
	}
	return false
}

// storeData copies the first n bytes of the request's data from the shadows to the targets.
func (r *weakRequest) storeData(n uint64) {
	if r.landed.Swap(true) { // a reset and a poll may do it at the same time
		return
	}
	for i := range r.targets {
		t := &r.targets[i]
		k := min(n, t.len)
		n -= k
		t.storeData(k)
	}
}

// storeHiddenData copies the data of a completed hidden request.
func (r *weakRequest) storeHiddenData() {
	if r.hidden && r.arrived {
		r.storeData(math.MaxUint64)
	}
}

// storeData copies the first n bytes, unless the region has been deregistered or changed.
func (t *fillTarget) storeData(n uint64) {
	m := t.mr
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.restoreFormerBytes(n); n > 0 && !m.gone && m.shadow == t.shadow {
		copy(m.region.Direct(t.addr, n), t.shadow.region.Direct(t.addr, n))
	}
}
