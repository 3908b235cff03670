package modeltest

import (
	"slices"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

func (d *drawer) cq() model.ID { return pick(d, ids(d.x.m.CQs, all)) }

func (d *drawer) arms() call {
	f := pick(d, []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited})
	if d.one(2) {
		f |= ib.NotifyReportMissed
	}
	id := d.cq()
	if held := d.held(); len(held) > 0 && d.one(2) {
		id = pick(d, held)
	}
	return armCQ{id, f}
}

// held returns the queues that hold a notification back.
func (d *drawer) held() []model.ID {
	return ids(d.x.m.CQs, func(c *model.CQ) bool { _, held := c.Moderation(); return held })
}

func (d *drawer) moderates() call {
	id := d.cq()
	if id == 0 || d.x.episodes { // the time of an episode does not advance
		return nil
	}
	held := d.held()
	if len(held) > 0 && d.one(2) { // to its current value
		id = pick(d, held)
		now, _ := d.x.m.CQs[id].Moderation()
		return moderate{cq: id, count: now}
	}
	c := moderate{cq: id, count: d.IntN(6)}
	d.plan1(armCQ{id, ib.NotifyNextComp})
	if d.one(3) {
		c.period = time.Duration(1+d.IntN(2000)) * time.Microsecond
		c.count += 1000 * d.IntN(2)
	}
	return c
}

const numGroups = 2

// joins adds a datagram queue pair to a group, or removes it.
func (d *drawer) joins() call {
	datagrams := ids(d.x.m.QPs, func(q *model.QP) bool { return q.Type == ib.QPTypeUD || d.one(50) })
	qp := pick(d, datagrams)
	if qp == 0 {
		return nil
	}
	c := attachMcast{qp, 1 + d.IntN(numGroups), false}
	if len(d.x.objs[qp].groups) > 0 {
		c.detach = d.one(2)
	}
	return c
}

func (d *drawer) polls() call {
	id := d.cq()
	if o := d.x.objs[id]; o == nil || !o.lazy {
		return nil
	}
	return pollCQ{id, 1 + int(d.logSize(64))}
}

// room draws the capacity of a queue, from 1 to the device's limit, at most most.
func (d *drawer) room(limit, most int) int {
	return min(1+int(d.logSize(uint64(most))), limit, most)
}

func (d *drawer) resizes() call {
	id := d.cq()
	c, ok := d.x.m.CQs[id]
	if !ok {
		return nil
	}
	if n := len(c.Wants); n > 0 && !d.one(3) { // just enough, one more, or one too few
		return resizeCQ{id, max(1, n+d.IntN(3)-1)}
	}
	return resizeCQ{id, d.room(d.x.attr.MaxCQE, 1024)}
}

func (d *drawer) sharedQueues() call {
	id := pick(d, ids(d.x.m.SRQs, all))
	s := d.x.m.SRQs[id]
	if s == nil {
		return nil
	}
	if d.one(3) {
		room := d.room(d.x.attr.MaxSRQWR, 64)
		return modifySRQ{id, ib.SRQAttr{MaxWR: uint32(room), Limit: d.ignored()}, ib.SRQAttrMaxWR}
	}
	limit := d.IntN(s.Len() + 2)
	if d.one(2) { // reached by the next receive
		limit = s.Len()
	}
	return modifySRQ{id, ib.SRQAttr{Limit: uint32(limit), MaxWR: d.ignored()}, ib.SRQAttrLimit}
}

// ignored returns the value of an attribute outside of the mask.
func (d *drawer) ignored() uint32 {
	if d.one(2) {
		return 0
	}
	return 1<<32 - 1
}

func (d *drawer) fails() call {
	switch {
	case d.x.Shared:
		return nil
	case !d.plan.errors && !d.plan.resets || d.x.m.Dead:
		return nil
	}
	return setError{}
}

// stales uses an object that existed before the last reset.
func (d *drawer) stales() call {
	past := ids(d.x.objs, func(o *object) bool { return o.past })
	if len(past) == 0 {
		return nil
	}
	return stale{pick(d, d.destroyable()), pick(d, past), d.wrID()}
}

// ends destroys an object, mostly one without users.
func (d *drawer) ends() call {
	bound := ids(d.x.m.Windows, func(w *model.Window) bool { return w.Bound && w.QP != 0 && !w.Dead })
	if len(bound) > 0 && d.one(3) { // destroy its queue pair, then its region
		w := d.x.m.Windows[pick(d, bound)]
		d.plan1(destroy{w.Region})
		return destroy{w.QP}
	}
	unpolled := ids(d.x.m.QPs, func(q *model.QP) bool { return d.x.m.Unpolled(q.ID) })
	if len(unpolled) > 0 && d.one(3) {
		return destroy{pick(d, unpolled)}
	}
	list := d.destroyable()
	if !d.one(4) {
		list = slices.DeleteFunc(list, func(id model.ID) bool {
			o := d.x.objs[id]
			return o.pd != nil || o.cq != nil || o.qp != nil
		})
	}
	if len(list) == 0 {
		return nil
	}
	return destroy{pick(d, list)}
}

// makes creates another object.
func (d *drawer) makes() call {
	pd := pick(d, ids(d.x.m.PDs, all))
	if pd == 0 || len(d.x.order) > 60 {
		return nil
	}
	switch d.IntN(9) {
	case 0, 1:
		return d.region(pd, true)
	case 2:
		return allocMR{d.id(), pd, 1 + d.IntN(64)}
	case 3, 4:
		return allocMW{d.id(), pd, pick(d, []ib.MWType{ib.MWType1, ib.MWType2})}
	case 5:
		c := createAH{id: d.id(), pd: pd, unreachable: d.one(8), hops: uint8(d.IntN(256))}
		if d.one(3) {
			c.group, c.unreachable = 1+d.IntN(numGroups), false
		}
		return c
	case 6:
		cqs := ids(d.x.m.CQs, all)
		if len(d.x.m.QPs) < 6 && len(cqs) > 0 {
			d.pair(pd, cqs, pick(d, ids(d.x.m.SRQs, func(s *model.SRQ) bool { return s.XRCD == 0 })))
		}
	case 7:
		return createCQ{id: d.id(), entries: min(d.x.attr.MaxCQE, 1+int(d.logSize(256)))}
	case 8:
		return allocPD{d.id()}
	}
	return nil
}

// memory changes regions.
func (d *drawer) memory() call {
	fast := ids(d.x.m.Regions, func(r *model.Region) bool { return r.Fast && !r.Dead })
	if len(fast) > 0 && !d.one(3) {
		c := mapMR{mr: pick(d, fast), variant: uint8(d.Uint32())}
		p := d.place()
		for range 1 + d.IntN(3) {
			p.len = d.logSize(min(p.len, 1<<17)) + 1
			c.list = append(c.list, p)
			p.off += p.len + d.Uint64N(5000)
			if p.area == 0 && p.off+p.len > localSize {
				break
			}
		}
		if c.iova = d.Uint64() >> (8 + d.IntN(40)); d.one(2) {
			c.iova = d.x.span(c.list[0]).Addr
		}
		return c
	}
	regions := ids(d.x.m.Regions, func(r *model.Region) bool { return !r.Dead && (!r.Fast || d.one(20)) })
	if len(regions) == 0 {
		return nil
	}
	like := d.region(0, true)
	return rereg{
		mr: pick(d, regions), flags: ib.MRChangeFlags(1 + d.IntN(7)), at: like.at, iova: like.iova,
		pd: pick(d, ids(d.x.m.PDs, all)), access: like.access,
	}
}

func (d *drawer) stores() call {
	p := place{area: d.IntN(3), len: 1 + d.logSize(4096)}
	p.off = d.Uint64N(localSize - p.len)
	if r := d.x.m.Regions[pick(d, ids(d.x.m.Regions, all))]; r != nil && len(r.Spans) > 0 && !d.one(3) {
		s := pick(d, r.Spans)
		for i, a := range d.x.areas {
			if off := s.Addr - a.base; off < a.size {
				p = place{i, off, min(p.len, s.Len)}
			}
		}
	}
	return store{p, uint8(d.Uint32())}
}
