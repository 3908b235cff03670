package weak

import (
	"errors"
	"math"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// otherKey is the difference between the local keys of the inner driver and those that consumers see of regions of RegMR. The keys of
// regions of AllocMR are equal, by the contract.
const otherKey = 1 << 31

// inner returns the inner driver's key for the local key in a work request. A remote key leads nowhere.
func (d *driver) inner(lkey uint32) uint32 {
	if !d.has(SplitKeys) {
		return lkey
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mrs[lkey] != nil || d.mrs[lkey^otherKey] != nil {
		return lkey ^ otherKey
	}
	return lkey
}

// maxShadow limits the regions that are filled late.
const maxShadow = 1 << 22

// peers are the rights by which a peer may see when data arrive. The order of a peer's requests to such memory is promised.
const peers = ib.AccessRemoteRead | ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessMWBind

// mr is a region. The inner driver stores what is to come late in a second region of the same addresses, the shadow.
type mr struct {
	ib.DriverMR
	d *driver

	// mu is held while data land. No method of the inner driver is called under it.
	mu     sync.RWMutex
	key    uint32 // local, of the inner driver
	region *umem.Region
	pd     ib.DriverPD
	access ib.AccessFlags
	gone   bool
	shadow *shadow // nil: none
}

// shadow is the region that data wait in.
type shadow struct {
	ib.DriverMR
	key    uint32
	region *umem.Region
}

// Unwrap gives the region the abilities of the inner one.
func (m *mr) Unwrap() ib.DriverMR { return m.DriverMR }

// RegMR implements ib.Driver.
func (d *driver) RegMR(h ib.MRHandle, pd ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR, error) {
	if u != nil {
		return d.Driver.RegMR(h, pd, r, access, u)
	}
	d.slow()
	m := &mr{d: d, region: r, pd: pd, access: access}
	var err error
	if m.DriverMR, err = d.Driver.RegMR(m.keys(h), pd, r, access, nil); err != nil {
		return nil, err
	}
	if err := m.makeShadow(); err != nil {
		return nil, errors.Join(err, m.DriverMR.Dereg())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mrs[m.key] = m
	return m, nil
}

// keys returns a handle that hides the inner driver's local key.
func (m *mr) keys(h ib.MRHandle) ib.MRHandle {
	return h.Redirect(func(lkey, rkey uint32) {
		m.key = lkey
		if m.d.has(SplitKeys) {
			lkey ^= otherKey
		}
		h.SetKeys(lkey, rkey)
	})
}

func (m *mr) makeShadow() error {
	late := m.d.has(LateTarget) || m.d.has(LateRead)
	if !late || m.access&peers != 0 || m.access&ib.AccessLocalWrite == 0 || m.region.Len() > maxShadow || !local(m.region) {
		return nil
	}
	r, err := shadowOf(m.region)
	if err != nil {
		return err
	}
	s := &shadow{region: r}
	s.DriverMR, err = m.d.Driver.RegMR(ib.MRHandle{}.Redirect(func(lkey, _ uint32) { s.key = lkey }), m.pd, r, m.access, nil)
	if err != nil {
		return err
	}
	m.shadow = s
	return nil
}

// local reports whether a region is memory of this process in one piece, which a copy does not wait for.
func local(r *umem.Region) bool { return !r.OnDemand() && r.Direct(r.IOVA(), r.Len()) != nil }

// shadowOf returns memory of the addresses of a region.
func shadowOf(r *umem.Region) (*umem.Region, error) {
	space := umem.NewLocal()
	addr, err := space.Add(make([]byte, r.Len()))
	if err != nil {
		return nil, err
	}
	return umem.Get(space, nil, addr, r.Len(), r.IOVA(), true)
}

// Dereg implements ib.DriverMR.
func (m *mr) Dereg() error {
	m.d.slow()
	if err := m.DriverMR.Dereg(); err != nil {
		return err
	}
	m.d.mu.Lock()
	if m.d.mrs[m.key] == m {
		delete(m.d.mrs, m.key)
	}
	m.d.mu.Unlock()
	m.mu.Lock()
	m.gone = true
	m.mu.Unlock()
	if m.shadow != nil {
		return m.shadow.Dereg()
	}
	return nil
}

// Rereg implements ib.ReregMR. The shadow changes first, and back if the region does not.
func (m *mr) Rereg(r *umem.Region, pd ib.DriverPD, access ib.AccessFlags, u *ib.Udata) error {
	m.d.slow()
	inner, ok := ib.As[ib.ReregMR](m.DriverMR)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	was := m.key
	var sr *umem.Region
	var second ib.ReregMR
	if m.shadow != nil {
		var err error
		if sr, err = shadowOf(r); err != nil {
			return err
		}
		if second, ok = ib.As[ib.ReregMR](m.shadow.DriverMR); !ok {
			return syscall.EOPNOTSUPP
		}
		if err := second.Rereg(sr, pd, access, nil); err != nil {
			return err
		}
	}
	if err := inner.Rereg(r, pd, access, u); err != nil {
		if second != nil {
			err = errors.Join(err, second.Rereg(m.shadow.region, m.pd, m.access, nil))
		}
		return err
	}
	m.mu.Lock()
	m.region, m.pd, m.access = r, pd, access
	if m.shadow != nil {
		m.shadow.region = sr
	}
	m.mu.Unlock()
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	delete(m.d.mrs, was)
	m.d.mrs[m.key] = m
	return nil
}

// target is memory that a request stores in, and that is filled when its completion is polled.
type target struct {
	mr        *mr
	addr, len uint64
}

// elements returns a list in the inner driver's keys. If late, and all its memory can be filled late, it names the shadow, and the targets
// are those to fill.
func (d *driver) elements(list []ib.SGE, pd ib.DriverPD, late bool) (out []ib.SGE, targets []target) {
	out = make([]ib.SGE, len(list))
	for i, s := range list {
		s.LKey = d.inner(s.LKey)
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
		if m == nil || !m.mayFill(pd, s.Addr, uint64(s.Length)) {
			return out, nil
		}
		keys = append(keys, m.shadow.key)
		targets = append(targets, target{m, s.Addr, uint64(s.Length)})
	}
	for i := range out {
		out[i].LKey = keys[i]
	}
	return out, targets
}

// mayFill reports whether a range can be filled late by a queue of a domain.
func (m *mr) mayFill(pd ib.DriverPD, addr, n uint64) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.shadow != nil && !m.gone && local(m.region) && m.pd == pd && m.access&ib.AccessLocalWrite != 0 && m.access&peers == 0 && m.region.Contains(addr, n)
}

// land stores the first n bytes of the request's data where they belong.
func (r *request) land(n uint64) {
	if r.landed {
		return
	}
	r.landed = true
	for _, t := range r.targets {
		k := min(n, t.len)
		n -= k
		if k > 0 {
			t.mr.land(t.addr, k)
		}
	}
}

// landHidden stores the data of a hidden request that has completed.
func (r *request) landHidden() {
	if r.hidden && r.arrived {
		r.land(math.MaxUint64)
	}
}

func (m *mr) land(addr, n uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.gone { // else the consumer has taken the memory back
		copy(m.region.Direct(addr, n), m.shadow.region.Direct(addr, n))
	}
}
