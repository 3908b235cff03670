package modeltest

import (
	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// memoryDrawer draws registrations of memory and references to it. It also draws keys and ranges that regions had
// before.
type memoryDrawer struct {
	*randomSource
	x     *modelRunner
	plan  *runPlan
	calls *plannedCalls

	known  map[keyID]uint32    // keys of regions and windows
	former map[keyID]uint32    // their former keys
	ranges map[model.ID]uint64 // the greatest lengths of regions so far
}

// keyID names a key: the lkey or rkey of a region, or the key of a window.
type keyID struct {
	id    model.ID
	local bool
}

// recordKeys records changed keys and lengths.
func (d *memoryDrawer) recordKeys() {
	note := func(of keyID, key uint32) {
		if was, ok := d.known[of]; ok && was != key {
			d.former[of] = was
		}
		d.known[of] = key
	}
	for id, r := range d.x.m.Keys.Regions {
		note(keyID{id, true}, r.LKey)
		note(keyID{id, false}, r.RKey)
		d.ranges[id] = max(d.ranges[id], r.Len)
	}
	for id, w := range d.x.m.Keys.Windows {
		note(keyID{id, false}, w.RKey)
	}
}

// drawRegMR draws a registration. A free one may have any rights.
func (d *memoryDrawer) drawRegMR(pd model.ID, free bool) regMR {
	c := regMR{id: d.calls.nextID(), pd: pd, access: allAccess | ib.AccessMWBind}
	if d.x.m.Device.Flush {
		c.access |= ib.AccessFlushGlobal
	}
	if free || d.oneInN(3) {
		for _, a := range []ib.AccessFlags{
			ib.AccessLocalWrite, ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessMWBind,
			ib.AccessFlushGlobal,
		} {
			if d.oneInN(3) {
				c.access &^= a
			}
		}
		if c.access&ib.AccessLocalWrite == 0 && !d.shouldBeInvalid() {
			c.access &^= ib.AccessRemoteWrite | ib.AccessRemoteAtomic
		}
	}
	c.access &= d.x.access
	c.at = d.drawAreaRange()
	switch d.IntN(6) {
	case 0:
		c.iova = d.Uint64() >> d.IntN(63) & 0x7fff_ffff_ffff_fff8
	case 1:
		c.iova = -(c.at.len + 8*d.Uint64N(64) + 8) &^ 7
	case 2:
		if d.x.access&ib.AccessZeroBased != 0 {
			c.access |= ib.AccessZeroBased
		}
	}
	return c
}

// drawAreaRange draws memory to register: in the process, across 4 GiB, or at high addresses, up to the largest region.
func (d *memoryDrawer) drawAreaRange() areaRange {
	p := areaRange{area: 1 + d.IntN(2)}
	if d.plan.local || d.oneInN(3) {
		p.area = 0
	}
	if p.area == 0 {
		p.len = 1 + d.drawLogUniform(localSize/2)
		if d.oneInN(2) {
			p.len = localSize/4 + d.Uint64N(localSize/4)
		}
		p.off = d.Uint64N(localSize - p.len)
	} else if d.plan.large && !d.oneInN(4) {
		p.len = min(d.x.attr.MaxMRSize, 1<<20+d.Uint64N(1<<20))
		p.off = d.Uint64N(1 << 18)
	} else {
		half := d.x.areas[p.area].size / 2
		p.len = 1 + d.drawLogUniform(min(d.x.attr.MaxMRSize-1, half-1))
		if d.oneInN(2) {
			p.len = min(d.x.attr.MaxMRSize, 1<<18+d.Uint64N(1<<18))
		}
		if p.off = d.Uint64N(1 << 18); d.oneInN(4) {
			p.off = d.drawLogUniform(half)
		}
	}
	if d.oneInN(2) {
		p.off &^= 7
	}
	return p
}

// drawMemoryCall changes regions.
func (d *memoryDrawer) drawMemoryCall() call {
	fast := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return r.Fast && !r.Dead })
	if len(fast) > 0 && !d.oneInN(3) {
		c := mapMR{mr: pickOne(d, fast), variant: uint8(d.Uint32())}
		p := d.drawAreaRange()
		for range 1 + d.IntN(3) {
			p.len = d.drawLogUniform(min(p.len, 1<<17)) + 1
			c.list = append(c.list, p)
			p.off += p.len + d.Uint64N(5000)
			if p.area == 0 && p.off+p.len > localSize {
				break
			}
		}
		if c.iova = d.Uint64() >> (8 + d.IntN(40)); d.oneInN(2) {
			c.iova = d.x.spanOfRange(c.list[0]).Addr
		}
		return c
	}
	regions := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return !r.Dead && (!r.Fast || d.oneInN(20)) })
	if len(regions) == 0 {
		return nil
	}
	like := d.drawRegMR(0, true)
	return reregMR{
		mr: pickOne(d, regions), flags: ib.MRChangeFlags(1 + d.IntN(7)), at: like.at, iova: like.iova,
		pd: pickOne(d, filterIDs(d.x.m.PDs, acceptAnyObject)), access: like.access,
	}
}

func (d *memoryDrawer) drawStoreMemory() call {
	p := areaRange{area: d.IntN(3), len: 1 + d.drawLogUniform(4096)}
	p.off = d.Uint64N(localSize - p.len)
	if r := d.x.m.Keys.Regions[pickOne(d, filterIDs(d.x.m.Keys.Regions, acceptAnyObject))]; r != nil && len(r.Spans) > 0 &&
		!d.oneInN(3) {
		s := pickOne(d, r.Spans)
		for i, a := range d.x.areas {
			if off := s.Addr - a.base; off < a.size {
				p = areaRange{i, off, min(p.len, s.Len)}
			}
		}
	}
	return storeMemory{p, uint8(d.Uint32())}
}

// pickRegion returns a region of a domain with a right, mostly one of n bytes or more; 0: none.
func (d *memoryDrawer) pickRegion(pd model.ID, n uint64, need ib.AccessFlags) model.ID {
	if d.shouldBeInvalid() {
		if unfit := d.pickUnfitRegion(pd, need); unfit != 0 && d.oneInN(2) {
			return unfit
		}
		return pickOne(d, filterIDs(d.x.m.Keys.Regions, acceptAnyObject))
	}
	good := func(r *model.Region) bool { return r.Valid && !r.Dead && r.PD == pd && r.Access&need == need }
	long := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return good(r) && r.Len >= n })
	if len(long) == 0 {
		long = filterIDs(d.x.m.Keys.Regions, good)
	}
	return pickOne(d, long)
}

// pickUnfitRegion returns a region that lacks only the right, or is only of another domain; 0: none.
func (d *memoryDrawer) pickUnfitRegion(pd model.ID, need ib.AccessFlags) model.ID {
	domain := need == 0 || d.oneInN(2)
	return pickOne(d, filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool {
		return r.Valid && !r.Dead && (r.PD != pd) == domain && (r.Access&need == need) == domain
	}))
}

// drawSGL draws a list of n bytes.
func (d *memoryDrawer) drawSGL(pd model.ID, n uint64, most int, need ib.AccessFlags) (list []sgElement) {
	most = max(most, 1)
	cuts := d.IntN(most)
	if d.oneInN(3) {
		cuts = 0
	}
	if d.shouldBeInvalid() {
		cuts = most // one too many
	}
	wrong := d.shouldBeInvalid()
	for ; cuts > 0; cuts-- {
		k := d.Uint64N(n + 1)
		if d.oneInN(5) {
			k = 0
		}
		list = append(list, d.drawSGElement(pd, k, need, wrong))
		n -= k
	}
	if n > 0 || d.oneInN(2) {
		list = append(list, d.drawSGElement(pd, n, need, wrong))
	}
	return list
}

// drawSGElement draws n bytes of a region, often at its end, sometimes beyond it.
func (d *memoryDrawer) drawSGElement(pd model.ID, n uint64, need ib.AccessFlags, wrong bool) sgElement {
	if len(d.x.gone) > 0 && d.oneInN(60) { // a key from before the reset
		g := pickOne(d, d.x.gone)
		return sgElement{off: g.addr, len: uint32(n), xor: g.lkey}
	}
	e := sgElement{mr: d.pickRegion(pd, n, need), len: uint32(n)}
	wrong = wrong && n > 0
	if wrong && d.oneInN(2) {
		if unfit := d.pickUnfitRegion(pd, need); unfit != 0 {
			e.mr, wrong = unfit, false
		}
	}
	r := d.x.m.Keys.Regions[e.mr]
	if r == nil {
		if !d.shouldBeInvalid() {
			e.len = 0
		}
		return e
	}
	if n > r.Len && !d.shouldBeInvalid() {
		n = r.Len
		e.len = uint32(n)
	}
	if r.Len >= n {
		switch d.IntN(4) {
		case 0:
			e.off = r.Len - n
		case 1:
			e.off = 0
		default:
			if e.off = d.Uint64N(r.Len - n + 1); d.oneInN(2) {
				e.off &^= 7
			}
		}
	}
	if was := d.ranges[e.mr]; was > r.Len && n > 0 && d.oneInN(6) { // partly in its former range only
		e.off = r.Len - n + 1 + d.Uint64N(was-r.Len)
	}
	if n > 0 {
		e.xor = d.drawStaleKey(keyID{e.mr, true}, 8)
	}
	if wrong && d.oneInN(2) {
		switch d.IntN(4) {
		case 0:
			e.xor = 1 << d.IntN(32)
		case 1:
			e.off = r.Len - n + 1
		case 2:
			e.off = -uint64(d.IntN(64) + 1)
		case 3:
			e.off += 1 << (32 + d.IntN(20))
		}
	} else if n > 0 && d.oneInN(40) {
		d.nameWindow(&e)
	}
	return e
}

// nameWindow replaces the key of an element by the key of a bound window, which is valid for peers only.
func (d *memoryDrawer) nameWindow(e *sgElement) {
	bound := filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool { return w.Bound && !w.Dead })
	w := d.x.m.Keys.Windows[pickOne(d, bound)]
	if w == nil {
		return
	}
	e.off = w.First - d.x.m.Keys.Regions[e.mr].IOVA
	e.xor = w.RKey ^ d.known[keyID{e.mr, true}]
}

// drawStaleKey returns the difference between a key and its former value, for one request in n, or 0.
func (d *memoryDrawer) drawStaleKey(key keyID, n int) uint32 {
	if f, ok := d.former[key]; ok && d.oneInN(n) {
		return f ^ d.known[key]
	}
	return 0
}

// drawRemoteTarget draws up to n bytes of remote memory in the domain of a peer, or of the shared queue of an XRC
// request.
func (d *memoryDrawer) drawRemoteTarget(p *model.QP, srq model.ID, n uint64, need ib.AccessFlags) (t remoteTarget,
	most uint64) {
	pd := model.ID(0)
	if p != nil {
		pd = p.PD
	}
	if s := d.x.m.Queues.SRQs[srq]; s != nil {
		pd = s.PD
	}
	if len(d.x.gone) > 0 && d.oneInN(8) { // a key from before the reset
		g := pickOne(d, d.x.gone)
		return remoteTarget{off: g.addr, xor: g.rkey}, n
	}
	wrong := d.shouldBeInvalid()
	windows := filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool {
		return wrong || w.Bound && !w.Dead && p != nil && w.PD == pd && (w.QP == 0 || w.QP == p.ID || d.oneInN(3)) &&
			w.Access&need == need
	})
	length := uint64(0)
	if len(windows) > 0 && d.oneInN(2) {
		t.key = pickOne(d, windows)
		length = d.x.m.Keys.Windows[t.key].Len
	} else {
		t.key = d.pickRegion(pd, n, need)
		if r := d.x.m.Keys.Regions[t.key]; r != nil {
			length = r.Len
		}
	}
	if n > length && !d.shouldBeInvalid() {
		n = length
	}
	if length >= n {
		switch d.IntN(4) {
		case 0:
			t.off = length - n
		case 1:
		default:
			if t.off = d.Uint64N(length - n + 1); d.oneInN(2) {
				t.off &^= 7
			}
		}
	}
	t.xor = d.drawStaleKey(keyID{t.key, false}, 4)
	if was := d.ranges[t.key]; was > length && n > 0 && n <= length && d.oneInN(6) { // partly in its former range only
		t.off = length - n + 1 + d.Uint64N(was-length)
	}
	if wrong {
		switch d.IntN(6) {
		case 0:
			t.xor = 1 << d.IntN(32)
		case 1:
			t.off = length - n + 1
		case 2:
			t.off = -uint64(d.IntN(64) + 1)
		case 3:
			t.off += 1 << (32 + d.IntN(20))
		case 4:
			t.off = length
		}
	}
	return t, n
}

// invalidatableIDs returns the objects that a request can invalidate.
func (d *memoryDrawer) invalidatableIDs() []model.ID {
	windows := filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool { return w.Bound && w.QP != 0 })
	regions := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead })
	return append(windows, regions...)
}

// registrableRegionIDs returns the regions that a request can register; if there are none, all that it might register.
func (d *memoryDrawer) registrableRegionIDs() []model.ID {
	return filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool {
		return r.Fast && !r.Dead && !r.Valid && r.Map != nil
	})
}

// drawKeyToInvalidate draws a key to invalidate, mostly a valid one.
func (d *memoryDrawer) drawKeyToInvalidate(q *model.QP) (t remoteTarget) {
	windows := filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool { return w.Bound && q != nil && w.QP == q.ID })
	regions := filterIDs(d.x.m.Keys.Regions, func(r *model.Region) bool { return r.Fast && r.Valid && !r.Dead })
	list := append(windows, regions...)
	if len(list) == 0 || d.shouldBeInvalid() {
		list = append(filterIDs(d.x.m.Keys.Windows, acceptAnyObject), filterIDs(d.x.m.Keys.Regions, acceptAnyObject)...)
	}
	if t.key = pickOne(d, list); d.shouldBeInvalid() {
		t.xor = 1 << d.IntN(32)
	}
	return t
}
