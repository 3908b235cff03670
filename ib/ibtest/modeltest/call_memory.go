package modeltest

import (
	"verbena/ib"
	"verbena/ib/ibtest/model"
	"verbena/umem"
)

// allocPD creates a protection domain.
type allocPD struct{ id model.ID }

func (c allocPD) String() string      { return sprintf("pd%d = AllocPD()", c.id) }
func (c allocPD) createdID() model.ID { return c.id }
func (c allocPD) usedIDs() []model.ID { return nil }

func (c allocPD) runOnDevice(x *modelRunner) deviceResult {
	pd, err := x.Device.AllocPD()
	if err == nil {
		x.addObject(c.id, &deviceObject{pd: pd, over: pd.Dealloc})
	}
	return deviceResult{err: err}
}

func (c allocPD) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	return wantErrnos(m.AllocPD(c.id))
}

// destroyObject destroys an object of any kind.
type destroyObject struct{ id model.ID }

func (c destroyObject) String() string      { return sprintf("destroy(%d)", c.id) }
func (c destroyObject) usedIDs() []model.ID { return []model.ID{c.id} }

func (c destroyObject) runOnDevice(x *modelRunner) deviceResult {
	o := x.objs[c.id]
	err := o.over()
	o.dead = err == nil
	return deviceResult{err: err}
}

func (c destroyObject) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	switch o := x.objs[c.id]; {
	case o.pd != nil:
		return wantErrnos(m.DeallocPD(c.id))
	case o.mr != nil:
		return wantErrnos(m.Keys.DeregMR(c.id))
	case o.mw != nil:
		return wantErrnos(m.Keys.DeallocMW(c.id))
	case o.cq != nil:
		return wantErrnos(m.Completions.DestroyCQ(c.id))
	case o.srq != nil:
		return wantErrnos(m.DestroySRQ(c.id))
	case o.xrc != nil:
		return wantErrnos(m.DeallocXRCD(c.id))
	case o.ah != nil:
		return wantErrnos(m.DestroyAH(c.id))
	}
	return wantErrnos(m.DestroyQP(c.id))
}

// regMR registers memory.
type regMR struct {
	id, pd model.ID
	at     areaRange
	iova   uint64 // 0: the memory address
	access ib.AccessFlags
}

func (c regMR) String() string {
	return sprintf("mr%d = pd%d.RegMR(area %d + %#x, %#x bytes, IOVA %#x, access %#x)",
		c.id, c.pd, c.at.area, c.at.off, c.at.len, c.iova, uint32(c.access))
}
func (c regMR) createdID() model.ID { return c.id }
func (c regMR) usedIDs() []model.ID { return []model.ID{c.pd} }

func (c regMR) runOnDevice(x *modelRunner) deviceResult {
	s := x.spanOfRange(c.at)
	mr, err := x.objs[c.pd].pd.RegMR(ib.MRInit{
		Space: x.areas[c.at.area].space, Addr: s.Addr, Length: s.Len, IOVA: c.iova, Access: c.access,
	})
	if err == nil {
		x.addObject(c.id, &deviceObject{mr: mr, over: mr.Dereg})
	}
	return deviceResult{err: err}
}

func (c regMR) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	s := x.spanOfRange(c.at)
	r := model.Region{ID: c.id, PD: c.pd, Access: c.access, IOVA: c.iova, Len: s.Len, Spans: []model.Span{s}}
	if r.IOVA == 0 {
		r.IOVA = s.Addr
	}
	if o := x.objs[c.id]; o != nil {
		r.LKey, r.RKey = o.mr.LKey(), o.mr.RKey()
		x.addToTrace("lkey %#x, rkey %#x", r.LKey, r.RKey)
	}
	return wantErrnos(m.Keys.RegMR(r))
}

// reregMR changes a region.
type reregMR struct {
	mr     model.ID
	flags  ib.MRChangeFlags
	at     areaRange
	iova   uint64
	pd     model.ID
	access ib.AccessFlags
}

func (c reregMR) String() string {
	return sprintf("mr%d.Rereg(flags %#x, area %d + %#x, %#x bytes, IOVA %#x, pd%d, access %#x)",
		c.mr, uint32(c.flags), c.at.area, c.at.off, c.at.len, c.iova, c.pd, uint32(c.access))
}
func (c reregMR) usedIDs() []model.ID { return []model.ID{c.mr, c.pd} }

func (c reregMR) runOnDevice(x *modelRunner) deviceResult {
	s, mr := x.spanOfRange(c.at), x.objs[c.mr].mr
	err := mr.Rereg(c.flags, ib.MRChange{
		Space: x.areas[c.at.area].space, Addr: s.Addr, Length: s.Len, IOVA: c.iova,
		PD: x.objs[c.pd].pd, Access: c.access,
	})
	return deviceResult{err: err, lkey: mr.LKey(), rkey: mr.RKey()}
}

func (c reregMR) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	var ch model.RegionChange
	if c.flags&ib.MRChangeTranslation != 0 {
		s := x.spanOfRange(c.at)
		ch.Map = &model.Mapping{Spans: []model.Span{s}, IOVA: c.iova, Len: s.Len}
		if c.iova == 0 {
			ch.Map.IOVA = s.Addr
		}
	}
	if c.flags&ib.MRChangePD != 0 {
		ch.PD = c.pd
	}
	if c.flags&ib.MRChangeAccess != 0 {
		ch.Access = &c.access
	}
	mr := x.objs[c.mr].mr
	lkey, rkey := mr.LKey(), mr.RKey()
	if g != nil { // another thread may have changed the region since
		lkey, rkey = g.lkey, g.rkey
	}
	return wantErrnos(m.Keys.ReregMR(c.mr, ch, lkey, rkey))
}

// allocMR creates a region for fast registration.
type allocMR struct {
	id, pd model.ID
	pages  int
}

func (c allocMR) String() string {
	return sprintf("mr%d = pd%d.AllocMR(%d pages)", c.id, c.pd, c.pages)
}
func (c allocMR) createdID() model.ID { return c.id }
func (c allocMR) usedIDs() []model.ID { return []model.ID{c.pd} }

func (c allocMR) runOnDevice(x *modelRunner) deviceResult {
	mr, err := x.objs[c.pd].pd.AllocMR(c.pages)
	if err == nil {
		x.addObject(c.id, &deviceObject{mr: mr, over: mr.Dereg})
	}
	return deviceResult{err: err}
}

func (c allocMR) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	r := model.Region{ID: c.id, PD: c.pd, MaxPages: c.pages}
	if o := x.objs[c.id]; o != nil {
		r.LKey, r.RKey = o.mr.LKey(), o.mr.RKey()
		x.addToTrace("lkey %#x, rkey %#x", r.LKey, r.RKey)
	}
	return wantErrnos(m.Keys.AllocMR(r))
}

// mapMR sets the memory of the next fast registration, and the variable part of its key.
type mapMR struct {
	mr      model.ID
	list    []areaRange
	iova    uint64
	variant uint8
}

func (c mapMR) String() string {
	return sprintf("mr%d.Map(%+v, IOVA %#x), UpdateKey(%#x)", c.mr, c.list, c.iova, c.variant)
}
func (c mapMR) usedIDs() []model.ID { return []model.ID{c.mr} }

func (c mapMR) runOnDevice(x *modelRunner) deviceResult {
	var list []umem.Range
	for _, p := range c.list {
		s := x.spanOfRange(p)
		list = append(list, umem.Range{Addr: s.Addr, Length: s.Len})
	}
	mr := x.objs[c.mr].mr
	err := mr.Map(x.areas[c.list[0].area].space, nil, list, c.iova)
	if err == nil {
		mr.UpdateKey(c.variant)
	}
	return deviceResult{err: err}
}

func (c mapMR) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	to := model.Mapping{IOVA: c.iova}
	for _, p := range c.list {
		s := x.spanOfRange(p)
		to.Spans, to.Len = append(to.Spans, s), to.Len+s.Len
	}
	e := m.Keys.MapMR(c.mr, to)
	if e == 0 {
		m.Keys.UpdateMRKey(c.mr, c.variant)
	}
	return wantErrnos(e)
}

// allocMW creates a window.
type allocMW struct {
	id, pd model.ID
	kind   ib.MWType
}

func (c allocMW) String() string      { return sprintf("mw%d = pd%d.AllocMW(type %d)", c.id, c.pd, c.kind) }
func (c allocMW) createdID() model.ID { return c.id }
func (c allocMW) usedIDs() []model.ID { return []model.ID{c.pd} }

func (c allocMW) runOnDevice(x *modelRunner) deviceResult {
	mw, err := x.objs[c.pd].pd.AllocMW(c.kind)
	if err == nil {
		x.addObject(c.id, &deviceObject{mw: mw, over: mw.Dealloc})
	}
	return deviceResult{err: err}
}

func (c allocMW) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	w := model.Window{ID: c.id, PD: c.pd, Kind: c.kind}
	if o := x.objs[c.id]; o != nil {
		w.RKey = o.mw.RKey()
		x.addToTrace("rkey %#x", w.RKey)
	}
	return wantErrnos(m.Keys.AllocMW(w))
}

// storeMemory writes memory as its owner.
type storeMemory struct {
	at   areaRange
	seed uint8
}

func (c storeMemory) String() string {
	return sprintf("store(area %d + %#x, %#x bytes, %#x)", c.at.area, c.at.off, c.at.len, c.seed)
}
func (c storeMemory) usedIDs() []model.ID { return nil }

func (c storeMemory) contents() []byte {
	b := make([]byte, c.at.len)
	for i := range b {
		b[i] = c.seed + byte(i)*7 + byte(i>>8)
	}
	return b
}

func (c storeMemory) runOnDevice(x *modelRunner) deviceResult {
	a := x.areas[c.at.area]
	if a.local != nil {
		b := c.contents()
		copyRacy(a.local[c.at.off:][:len(b)], b)
		return deviceResult{}
	}
	return deviceResult{err: a.space.WriteV([][]byte{c.contents()}, a.base+c.at.off)}
}

func (c storeMemory) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	m.StoreMemory(x.spanOfRange(c.at).Addr, c.contents())
	return wantErrnos(0)
}
