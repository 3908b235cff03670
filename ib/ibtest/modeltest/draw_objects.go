package modeltest

import (
	"slices"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

func (d *callDrawer) pickCQ() model.ID {
	return pickOne(d, filterIDs(d.x.m.Completions.CQs, acceptAnyObject))
}

func (d *callDrawer) drawArmCQ() call {
	f := pickOne(d, []ib.NotifyFlags{ib.NotifyNextComp, ib.NotifySolicited})
	if d.oneInN(2) {
		f |= ib.NotifyReportMissed
	}
	id := d.pickCQ()
	if held := d.moderatedCQs(); len(held) > 0 && d.oneInN(2) {
		id = pickOne(d, held)
	}
	return armCQ{id, f}
}

// moderatedCQs returns the queues that hold a notification back.
func (d *callDrawer) moderatedCQs() []model.ID {
	return filterIDs(d.x.m.Completions.CQs, func(c *model.CQ) bool { _, held := c.ModerationState(); return held })
}

func (d *callDrawer) drawModerateCQ() call {
	id := d.pickCQ()
	if id == 0 || d.x.episodes { // the time of an episode does not advance
		return nil
	}
	held := d.moderatedCQs()
	if len(held) > 0 && d.oneInN(2) { // to its current value
		id = pickOne(d, held)
		now, _ := d.x.m.Completions.CQs[id].ModerationState()
		return moderateCQ{cq: id, count: now}
	}
	c := moderateCQ{cq: id, count: d.IntN(6)}
	d.calls.add(armCQ{id, ib.NotifyNextComp})
	if d.oneInN(3) {
		c.period = time.Duration(1+d.IntN(2000)) * time.Microsecond
		c.count += 1000 * d.IntN(2)
	}
	return c
}

const numGroups = 2

// hasLargeGroups reports whether the limits of the device permit the groups of all threads, with all their members.
func (d *callDrawer) hasLargeGroups() bool {
	return min(d.x.attr.MaxMcastGrp, d.x.attr.MaxMcastQPAttach) >= 16
}

// drawAttachMcast adds a datagram queue pair to a group, or removes it.
func (d *callDrawer) drawAttachMcast() call {
	datagrams := filterIDs(d.x.m.Queues.QPs, func(q *model.QP) bool { return q.Type == ib.QPTypeUD || d.oneInN(50) })
	qp := pickOne(d, datagrams)
	if qp == 0 || !d.hasLargeGroups() {
		return nil
	}
	c := attachMcast{qp, 1 + d.IntN(numGroups), false}
	if len(d.x.objs[qp].groups) > 0 {
		c.detach = d.oneInN(2)
	}
	return c
}

func (d *callDrawer) drawPollCQ() call {
	id := d.pickCQ()
	if o := d.x.objs[id]; o == nil || !o.lazy {
		return nil
	}
	return pollCQ{id, 1 + int(d.drawLogUniform(64))}
}

// drawCapacity draws the capacity of a queue, from 1 to the device's limit, at most most.
func (r *randomSource) drawCapacity(limit, most int) int {
	return min(1+int(r.drawLogUniform(uint64(most))), limit, most)
}

func (d *callDrawer) drawResizeCQ() call {
	id := d.pickCQ()
	c, ok := d.x.m.Completions.CQs[id]
	if !ok {
		return nil
	}
	if n := len(c.Wants); n > 0 && !d.oneInN(3) { // just enough, one more, or one too few
		return resizeCQ{id, max(1, n+d.IntN(3)-1)}
	}
	return resizeCQ{id, d.drawCapacity(d.x.attr.MaxCQE, 1024)}
}

func (d *callDrawer) drawSRQCall() call {
	id := pickOne(d, filterIDs(d.x.m.Queues.SRQs, acceptAnyObject))
	s := d.x.m.Queues.SRQs[id]
	if s == nil {
		return nil
	}
	if d.oneInN(3) {
		room := d.drawCapacity(d.x.attr.MaxSRQWR, 64)
		return modifySRQ{id, ib.SRQAttr{MaxWR: uint32(room), Limit: d.drawIgnoredValue()}, ib.SRQAttrMaxWR}
	}
	limit := d.IntN(s.Len() + 2)
	if d.oneInN(2) { // reached by the next receive
		limit = s.Len()
	}
	return modifySRQ{id, ib.SRQAttr{Limit: uint32(limit), MaxWR: d.drawIgnoredValue()}, ib.SRQAttrLimit}
}

// drawIgnoredValue returns the value of an attribute outside of the mask.
func (r *randomSource) drawIgnoredValue() uint32 {
	if r.oneInN(2) {
		return 0
	}
	return 1<<32 - 1
}

func (d *callDrawer) drawSetError() call {
	switch {
	case d.x.Shared:
		return nil
	case !d.plan.errors && !d.plan.resets || d.x.m.Device.Dead:
		return nil
	}
	return setError{}
}

// drawUseStaleObject uses an object that existed before the last reset.
func (d *callDrawer) drawUseStaleObject() call {
	past := filterIDs(d.x.objs, func(o *deviceObject) bool { return o.past })
	if len(past) == 0 {
		return nil
	}
	return useStaleObject{pickOne(d, d.destroyableIDs()), pickOne(d, past), d.requests.drawWRID()}
}

// drawDestroyObject destroys an object, mostly one without users.
func (d *callDrawer) drawDestroyObject() call {
	bound := filterIDs(d.x.m.Keys.Windows, func(w *model.Window) bool { return w.Bound && w.QP != 0 && !w.Dead })
	if len(bound) > 0 && d.oneInN(3) { // destroy its queue pair, then its region
		w := d.x.m.Keys.Windows[pickOne(d, bound)]
		d.calls.add(destroyObject{w.Region})
		return destroyObject{w.QP}
	}
	unpolled := filterIDs(d.x.m.Queues.QPs, func(q *model.QP) bool {
		return d.x.m.Completions.HasUnpolledCompletions(q.ID)
	})
	if len(unpolled) > 0 && d.oneInN(3) {
		return destroyObject{pickOne(d, unpolled)}
	}
	list := d.destroyableIDs()
	if !d.oneInN(4) {
		list = slices.DeleteFunc(list, func(id model.ID) bool {
			o := d.x.objs[id]
			return o.pd != nil || o.cq != nil || o.qp != nil
		})
	}
	if len(list) == 0 {
		return nil
	}
	return destroyObject{pickOne(d, list)}
}

// drawCreateObject creates another object.
func (d *callDrawer) drawCreateObject() call {
	pd := pickOne(d, filterIDs(d.x.m.PDs, acceptAnyObject))
	if pd == 0 || len(d.x.order) > 60 {
		return nil
	}
	switch d.IntN(9) {
	case 0, 1:
		return d.memory.drawRegMR(pd, true)
	case 2:
		return allocMR{d.calls.nextID(), pd, 1 + d.IntN(64)}
	case 3, 4:
		return allocMW{d.calls.nextID(), pd, pickOne(d, []ib.MWType{ib.MWType1, ib.MWType2})}
	case 5:
		c := createAH{id: d.calls.nextID(), pd: pd, unreachable: d.oneInN(8), hops: uint8(d.IntN(256))}
		if d.oneInN(3) {
			c.group, c.unreachable = 1+d.IntN(numGroups), false
		}
		if ah := pickOne(d, filterIDs(d.x.m.AHs, func(a *model.AH) bool { return !a.Dead })); ah != 0 && d.oneInN(2) {
			return modifyAH{ah, c}
		}
		return c
	case 6:
		cqs := filterIDs(d.x.m.Completions.CQs, acceptAnyObject)
		if len(d.x.m.Queues.QPs) < 6 && len(cqs) > 0 {
			basic := func(s *model.SRQ) bool { return s.XRCD == 0 }
			d.planPair([]model.ID{pd}, cqs, pickOne(d, filterIDs(d.x.m.Queues.SRQs, basic)))
		}
	case 7:
		return createCQ{id: d.calls.nextID(), entries: min(d.x.attr.MaxCQE, 1+int(d.drawLogUniform(256)))}
	case 8:
		return allocPD{d.calls.nextID()}
	}
	return nil
}
