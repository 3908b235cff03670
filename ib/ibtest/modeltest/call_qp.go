package modeltest

import (
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// createQP creates a queue pair, which will be connected to peer.
type createQP struct {
	id, pd, send, recv, srq, xrcd, peer model.ID
	kind                                ib.QPType
	cap                                 ib.QPCap
	sigAll                              bool
}

func (c createQP) String() string {
	return sprintf("qp%d = pd%d.CreateQP(%v, send cq%d, receive cq%d, srq%d, xrcd%d, %+v, sigAll %v)",
		c.id, c.pd, c.kind, c.send, c.recv, c.srq, c.xrcd, c.cap, c.sigAll)
}
func (c createQP) createdID() model.ID { return c.id }
func (c createQP) usedIDs() []model.ID { return []model.ID{c.pd, c.send, c.recv, c.srq, c.xrcd} }

func (c createQP) runOnDevice(x *modelRunner) deviceResult {
	o := &deviceObject{peer: c.peer}
	init := ib.QPInitAttr{
		Type: c.kind, Cap: c.cap, SigAll: c.sigAll,
		Event: func(_ *ib.QP, e ib.EventType) { x.recordEvent(o, e) },
	}
	if c.send != 0 {
		init.SendCQ = x.objs[c.send].cq
	}
	if c.recv != 0 {
		init.RecvCQ = x.objs[c.recv].cq
	}
	if c.xrcd != 0 {
		init.XRCD = x.objs[c.xrcd].xrc
	}
	if c.srq != 0 {
		init.SRQ = x.objs[c.srq].srq
	}
	qp, err := x.objs[c.pd].pd.CreateQP(init)
	if err == nil {
		o.qp, o.over = qp, qp.Destroy
		x.addObject(c.id, o)
	}
	return deviceResult{err: err}
}

func (c createQP) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	q := model.QP{ID: c.id, PD: c.pd, SendCQ: c.send, RecvCQ: c.recv, SRQ: c.srq, XRCD: c.xrcd, Type: c.kind,
		SigAll: c.sigAll}
	if o := x.objs[c.id]; o != nil {
		q.Num, q.Cap = o.qp.Num(), o.qp.Init().Cap
		x.addToTrace("number %#x, %+v", q.Num, q.Cap)
		k := &q.Cap
		less := k.MaxSendWR < c.cap.MaxSendWR || k.MaxSendSGE < c.cap.MaxSendSGE ||
			k.MaxInlineData < c.cap.MaxInlineData ||
			c.srq == 0 && (k.MaxRecvWR < c.cap.MaxRecvWR || k.MaxRecvSGE < c.cap.MaxRecvSGE)
		for _, p := range m.Queues.QPs {
			less = less || p.Num == q.Num
		}
		if less {
			return wantDifference("got number %#x of %d queue pairs and %+v, want a new number, and the requested capacities at least",
				q.Num, len(m.Queues.QPs)+1, q.Cap)
		}
	}
	return wantErrnos(m.CreateQP(q))
}

// allocXRCD creates an XRC domain.
type allocXRCD struct{ id model.ID }

func (c allocXRCD) String() string      { return sprintf("xrcd%d = AllocXRCD()", c.id) }
func (c allocXRCD) createdID() model.ID { return c.id }
func (c allocXRCD) usedIDs() []model.ID { return nil }

func (c allocXRCD) runOnDevice(x *modelRunner) deviceResult {
	d, err := x.Device.AllocXRCD()
	if err == nil {
		x.addObject(c.id, &deviceObject{xrc: d, over: d.Dealloc})
	}
	return deviceResult{err: err}
}

func (c allocXRCD) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	return wantErrnos(m.AllocXRCD(c.id))
}

// attachMcast adds a queue pair to a multicast group, or removes it.
type attachMcast struct {
	qp     model.ID
	group  int
	detach bool
}

func (c attachMcast) String() string {
	return sprintf("qp%d.AttachMcast(group %d, detach %v)", c.qp, c.group, c.detach)
}
func (c attachMcast) usedIDs() []model.ID { return []model.ID{c.qp} }

func (c attachMcast) runOnDevice(x *modelRunner) deviceResult {
	o, g := x.objs[c.qp], x.groupAddress(c.group)
	if !c.detach {
		err := o.qp.AttachMcast(g, 0)
		if err == nil {
			o.groups = append(o.groups, g)
		}
		return deviceResult{err: err}
	}
	err := o.qp.DetachMcast(g, 0)
	if i := slices.Index(o.groups, g); err == nil && i >= 0 {
		o.groups = slices.Delete(o.groups, i, i+1)
	}
	return deviceResult{err: err}
}

func (c attachMcast) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	if c.detach {
		return wantErrnos(m.DetachMcast(c.qp, x.groupAddress(c.group)))
	}
	return wantErrnos(m.AttachMcast(c.qp, x.groupAddress(c.group)))
}

// groupAddress returns the address of a multicast group. The addresses of a thread differ in a byte that a device may
// ignore by mistake.
func (x *modelRunner) groupAddress(n int) ib.GID {
	if x.groups4 {
		return ib.GID{10: 0xff, 11: 0xff, 12: 239, 13: byte(n), 14: byte(x.Thread), 15: 1}
	}
	g := ib.GID{0: 0xff, 1: 0x0e, 14: byte(x.Thread), 15: 1}
	g[2+2*(x.psn%6)] = byte(n)
	return g
}

// modifyQP changes attributes of a queue pair. The destination is given as another queue pair.
type modifyQP struct {
	qp, dest model.ID
	attr     ib.QPAttr
	mask     ib.QPAttrMask
	noise    bool // the attributes outside of mask, which the device must ignore, have invalid values
}

func (c modifyQP) String() string {
	s := sprintf("qp%d.Modify(", c.qp)
	if c.mask&ib.QPAttrState != 0 {
		s += sprintf("state %v, ", c.attr.State)
	}
	if c.mask&ib.QPAttrAccessFlags != 0 {
		s += sprintf("access %#x, ", uint32(c.attr.AccessFlags))
	}
	if c.mask&ib.QPAttrDestQPN != 0 {
		s += sprintf("destination qp%d, ", c.dest)
	}
	if c.noise {
		s += "other attributes invalid, "
	}
	return s + sprintf("mask %#x)", uint32(c.mask))
}
func (c modifyQP) usedIDs() []model.ID { return []model.ID{c.qp} }

// resolveAttr returns the attributes with the destination's number.
func (c modifyQP) resolveAttr(x *modelRunner) ib.QPAttr {
	a := c.attr
	a.AH.GRH.DGID, a.AH.GRH.SGIDIndex = x.GID, uint8(x.GIDIndex)
	a.SQPSN, a.RQPSN = x.psn, x.psn
	a.DestQPN = 0xfffff0
	if o := x.objs[c.dest]; o != nil {
		a.DestQPN = o.qp.Num()
	}
	return a
}

func (c modifyQP) runOnDevice(x *modelRunner) deviceResult {
	a := c.resolveAttr(x)
	if c.noise {
		a = withInvalidUnmaskedFields(&a, c.mask)
	}
	return deviceResult{err: x.objs[c.qp].qp.Modify(a, c.mask)}
}

// withInvalidUnmaskedFields returns the attributes of mask, and invalid values of all others.
func withInvalidUnmaskedFields(a *ib.QPAttr, mask ib.QPAttrMask) ib.QPAttr {
	const wrong = 0xee
	route := ib.AHAttr{Port: wrong, GRH: ib.GlobalRoute{DGID: ib.GID{0: wrong}, SGIDIndex: wrong}}
	n := ib.QPAttr{
		State: wrong, CurState: wrong, PathMTU: wrong, PathMigState: wrong, QKey: 1<<32 - 1,
		RQPSN: 1<<32 - 1, SQPSN: 1<<32 - 1, DestQPN: 1<<32 - 1, AccessFlags: 1<<32 - 1, AH: route, AltAH: route,
		PKeyIndex: 1<<16 - 1, AltPKeyIndex: 1<<16 - 1,
		EnSQDAsyncNotify: true, MaxRdAtomic: wrong, MaxDestRdAtomic: wrong, MinRNRTimer: wrong, Port: wrong, AltPort: wrong,
		Timeout: wrong, AltTimeout: wrong, RetryCnt: wrong, RNRRetry: wrong, RateLimit: 1<<32 - 1,
		Cap: ib.QPCap{MaxSendWR: 1<<32 - 1, MaxRecvWR: 1<<32 - 1, MaxSendSGE: 1<<32 - 1, MaxRecvSGE: 1<<32 - 1},
	}
	model.CopyAttr(&n, a, mask)
	for _, f := range []struct {
		bit  ib.QPAttrMask
		copy func()
	}{
		{ib.QPAttrState, func() { n.State = a.State }},
		{ib.QPAttrCurState, func() { n.CurState = a.CurState }},
		{ib.QPAttrEnSQDAsyncNotify, func() { n.EnSQDAsyncNotify = a.EnSQDAsyncNotify }},
		{ib.QPAttrRQPSN, func() { n.RQPSN = a.RQPSN }},
		{ib.QPAttrSQPSN, func() { n.SQPSN = a.SQPSN }},
	} {
		if mask&f.bit != 0 {
			f.copy()
		}
	}
	return n
}

func (c modifyQP) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	e := m.ModifyQP(c.qp, c.resolveAttr(x), c.mask)
	if g != nil && g.err == nil && e == 0 && m.Queues.QPs[c.qp].IsDraining() && !x.searching {
		// A device may begin the request that waits again when the queue pair is back in RTS.
		if a, _, err := x.objs[c.qp].qp.Query(ib.QPAttrState); err == nil && !a.SQDraining {
			x.addToTrace("the request that waits has not begun")
			m.PostponeWaitingRequest(c.qp)
		}
	}
	return wantErrnos(e)
}

// queryQP compares the attributes of a queue pair.
type queryQP struct{ qp model.ID }

func (c queryQP) String() string      { return sprintf("qp%d.Query()", c.qp) }
func (c queryQP) usedIDs() []model.ID { return []model.ID{c.qp} }

func (c queryQP) runOnDevice(x *modelRunner) deviceResult {
	a, init, err := x.objs[c.qp].qp.Query(^ib.QPAttrMask(0))
	return deviceResult{err: err, attr: a, init: init}
}

func (c queryQP) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	if g == nil || g.err != nil {
		return wantErrnos(0)
	}
	q, a := m.Queues.QPs[c.qp], &g.attr
	w, known := q.Attr, q.Known
	for _, f := range []struct {
		bit       ib.QPAttrMask
		name      string
		got, want any
	}{
		{0, "state", a.State, q.State},
		{0, "current state", a.CurState, q.State},
		{0, "draining", a.SQDraining, q.IsDraining()},
		{0, "capacities", g.init.Cap, q.Cap},
		{ib.QPAttrAccessFlags, "access flags", a.AccessFlags, w.AccessFlags},
		{ib.QPAttrPKeyIndex, "P_Key index", a.PKeyIndex, w.PKeyIndex},
		{ib.QPAttrPort, "port", a.Port, w.Port},
		{ib.QPAttrQKey, "Q_Key", a.QKey, w.QKey},
		{ib.QPAttrAV, "destination GID", a.AH.GRH.DGID, w.AH.GRH.DGID},
		{ib.QPAttrAV, "hop limit", a.AH.GRH.HopLimit, w.AH.GRH.HopLimit},
		{ib.QPAttrPathMTU, "path MTU", a.PathMTU, w.PathMTU},
		{ib.QPAttrTimeout, "timeout", a.Timeout, w.Timeout},
		{ib.QPAttrRetryCnt, "retries", a.RetryCnt, w.RetryCnt},
		{ib.QPAttrRNRRetry, "RNR retries", a.RNRRetry, w.RNRRetry},
		{ib.QPAttrMaxRdAtomic, "READs", a.MaxRdAtomic, w.MaxRdAtomic},
		{ib.QPAttrMinRNRTimer, "RNR timer", a.MinRNRTimer, w.MinRNRTimer},
		{ib.QPAttrMaxDestRdAtomic, "READs to serve", a.MaxDestRdAtomic, w.MaxDestRdAtomic},
		{ib.QPAttrDestQPN, "destination", a.DestQPN, w.DestQPN},
	} {
		if f.bit&^known == 0 && f.got != f.want {
			return wantDifference("%s: got %v, want %v", f.name, f.got, f.want)
		}
	}
	return wantErrnos(0)
}

// createAH creates an address handle.
type createAH struct {
	id, pd      model.ID
	unreachable bool // an address of no device
	hops        uint8
	group       int // 0: none
}

func (c createAH) String() string {
	return sprintf("ah%d = pd%d.CreateAH(of no device %v, group %d)", c.id, c.pd, c.unreachable, c.group)
}
func (c createAH) createdID() model.ID { return c.id }
func (c createAH) usedIDs() []model.ID { return []model.ID{c.pd} }

func (x *modelRunner) newAddressAttr(unreachable bool, hops uint8) ib.AHAttr {
	a := ib.AHAttr{HasGRH: true, Port: 1, GRH: ib.GlobalRoute{
		DGID: x.GID, SGIDIndex: uint8(x.GIDIndex), HopLimit: hops,
	}}
	if unreachable {
		a.GRH.DGID[15] ^= 0x55
	}
	return a
}

func (c createAH) addressAttr(x *modelRunner) ib.AHAttr {
	a := x.newAddressAttr(c.unreachable, c.hops)
	if c.group != 0 {
		a.GRH.DGID = x.groupAddress(c.group)
	}
	return a
}

func (c createAH) runOnDevice(x *modelRunner) deviceResult {
	a := c.addressAttr(x)
	ah, err := x.objs[c.pd].pd.CreateAH(&a)
	if err == nil {
		x.addObject(c.id, &deviceObject{ah: ah, over: ah.Destroy})
	}
	return deviceResult{err: err}
}

func (c createAH) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	return wantErrnos(m.CreateAH(model.AH{ID: c.id, PD: c.pd, Attr: c.addressAttr(x)}))
}

// modifyAH changes an address handle.
type modifyAH struct {
	ah model.ID
	to createAH // the new address
}

func (c modifyAH) String() string {
	return sprintf("ah%d.Modify(of no device %v, group %d)", c.ah, c.to.unreachable, c.to.group)
}
func (c modifyAH) usedIDs() []model.ID { return []model.ID{c.ah} }

func (c modifyAH) runOnDevice(x *modelRunner) deviceResult {
	a := c.to.addressAttr(x)
	return deviceResult{err: x.objs[c.ah].ah.Modify(&a)}
}

func (c modifyAH) runOnModel(x *modelRunner, m *model.Model, g *deviceResult) modelResult {
	return wantErrnos(m.ModifyAH(c.ah, c.to.addressAttr(x)))
}
