package modeltest

import (
	"cmp"
	"maps"
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// qpCallDrawer draws calls that modify and query queue pairs.
type qpCallDrawer struct {
	*randomSource
	x     *modelRunner
	plan  *runPlan
	calls *plannedCalls
}

// newValidQPAttr returns valid values of all attributes of a queue pair.
func (d *qpCallDrawer) newValidQPAttr() ib.QPAttr {
	a := ib.QPAttr{
		Port: 1, QKey: 0x11223344, AccessFlags: d.drawAccessRights(), PathMTU: d.x.runMTU(),
		AH: d.x.newAddressAttr(false, 64), MaxRdAtomic: 1,
		MaxDestRdAtomic: uint8(1 + d.IntN(min(4, max(1, d.x.attr.MaxQPRdAtom)))), MinRNRTimer: []uint8{0, 28, 31}[d.IntN(3)],
		Timeout: uint8(8 + d.IntN(7)), RetryCnt: 7, RNRRetry: 7,
	}
	if !d.x.Virtual { // the run waits for the timers
		a.MinRNRTimer, a.Timeout = 1, 8
	}
	return a
}

func (d *qpCallDrawer) drawAccessRights() ib.AccessFlags {
	a := allAccess
	if d.x.m.Device.Flush {
		a |= ib.AccessFlushGlobal
	}
	if d.oneInN(4) {
		a &^= pickOne(d, []ib.AccessFlags{
			ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessFlushGlobal,
		})
	}
	return a
}

// transitionMasks returns the masks of the transitions up to RTS, by type.
func transitionMasks(kind ib.QPType, s ib.QPState) ib.QPAttrMask {
	mask := ib.QPAttrState
	switch {
	case s == ib.QPInit && isAddressedByRequest(kind):
		return mask | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey
	case s == ib.QPInit:
		return mask | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags
	case s == ib.QPRTR && isAddressedByRequest(kind):
		return mask
	case kind == ib.QPTypeSRD:
		return mask | ib.QPAttrSQPSN | ib.QPAttrRNRRetry
	case s == ib.QPRTR:
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
		if kind == ib.QPTypeRC || kind == ib.QPTypeXRCTgt {
			mask |= ib.QPAttrMaxDestRdAtomic | ib.QPAttrMinRNRTimer
		}
		return mask
	case kind == ib.QPTypeXRCTgt:
		return mask | ib.QPAttrSQPSN | ib.QPAttrTimeout
	case kind == ib.QPTypeRC || kind == ib.QPTypeXRCInit:
		return mask | ib.QPAttrSQPSN | ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRdAtomic
	}
	return mask | ib.QPAttrSQPSN
}

// isAddressedByRequest reports whether the requests of a service type have a destination of their own.
func isAddressedByRequest(t ib.QPType) bool { return t == ib.QPTypeUD || t == ib.QPTypeSRD }

// planConnect plans the transitions of two queue pairs from RESET to RTS. Some of them stay in a lower state for a
// while.
func (d *qpCallDrawer) planConnect(kindA, kindB ib.QPType, a, b model.ID) {
	for s := ib.QPInit; s <= ib.QPRTS; s++ {
		for _, id := range slices.Compact([]model.ID{a, b}) {
			if d.oneInN(40) {
				return
			}
			kind := kindA
			if id == b {
				kind = kindB
			}
			c := modifyQP{qp: id, dest: a + b - id, attr: d.newValidQPAttr(), mask: transitionMasks(kind, s)}
			if a == b {
				c.dest = a
			}
			c.attr.State = s
			if d.oneInN(12) {
				d.calls.add(d.withInvalidAttr(c))
			}
			if d.oneInN(12) && !d.x.Lossy {
				c.attr.RNRRetry = 0
			}
			d.calls.add(c)
		}
	}
}

// pickQP picks a queue pair, mostly one that can send.
func (d *qpCallDrawer) pickQP() *model.QP {
	qps := slices.SortedFunc(maps.Values(d.x.m.Queues.QPs), func(a, b *model.QP) int { return cmp.Compare(a.ID, b.ID) })
	idle := func(q *model.QP) bool { return q.State != ib.QPRTS && q.State != ib.QPSQD }
	ready := slices.DeleteFunc(slices.Clone(qps), idle)
	if len(ready) > 0 && !d.oneInN(12) {
		qps = ready
	}
	// Queue pairs of the other types do not fail, so they would get most of the requests.
	list := slices.DeleteFunc(slices.Clone(qps), func(q *model.QP) bool { return !isAcknowledged(q.Type) })
	if len(list) > 0 && !d.x.episodes && d.plan.focus != onDatagrams && d.oneInN(2) {
		qps = list
	}
	return pickOne(d, qps)
}

// isAcknowledged reports whether requests of a service type are acknowledged, or arrive by such a service.
func isAcknowledged(t ib.QPType) bool { return t != ib.QPTypeUC && t != ib.QPTypeUD }

// hasQPInErr reports whether a queue pair of an acknowledged service is in ERR.
func (d *qpCallDrawer) hasQPInErr() bool {
	return len(filterIDs(d.x.m.Queues.QPs, func(q *model.QP) bool {
		return isAcknowledged(q.Type) && q.State == ib.QPErr
	})) > 0
}

// readyQPCount returns the number of queue pairs that can send.
func (d *qpCallDrawer) readyQPCount() int {
	return len(filterIDs(d.x.m.Queues.QPs, func(q *model.QP) bool { return q.State == ib.QPRTS }))
}

// drawQPTransition moves a queue pair, or a pair, that is not in RTS towards it, or back.
func (d *qpCallDrawer) drawQPTransition() call {
	for _, id := range filterIDs(d.x.m.Queues.QPs, func(q *model.QP) bool { return q.State != ib.QPRTS }) {
		if d.oneInN(2) {
			continue
		}
		q, peer := d.x.m.Queues.QPs[id], d.x.objs[id].peer
		attr := d.newValidQPAttr()
		switch q.State {
		case ib.QPSQD, ib.QPSQE:
			attr.State = ib.QPRTS
			return modifyQP{qp: id, attr: attr, mask: ib.QPAttrState}
		case ib.QPReset, ib.QPInit, ib.QPRTR:
			if p := d.x.m.Queues.QPs[peer]; p != nil && p.State <= ib.QPRTR || d.oneInN(3) {
				attr.State = q.State + 1
				return modifyQP{qp: id, dest: peer, attr: attr, mask: transitionMasks(q.Type, attr.State)}
			}
		}
		reset := func(id model.ID) call {
			return modifyQP{qp: id, attr: ib.QPAttr{State: ib.QPReset}, mask: ib.QPAttrState}
		}
		if d.oneInN(4) {
			return reset(id)
		}
		kind := q.Type
		if p := d.x.m.Queues.QPs[peer]; p != nil && p != q {
			d.calls.add(reset(peer))
			kind = p.Type
		}
		d.planConnect(q.Type, kind, id, peer)
		return reset(id)
	}
	return nil
}

// drawModifyQP changes a state or an attribute.
func (d *qpCallDrawer) drawModifyQP() call {
	q := d.pickQP()
	if q == nil {
		return nil
	}
	c := modifyQP{qp: q.ID, dest: d.x.objs[q.ID].peer, attr: d.newValidQPAttr(), mask: ib.QPAttrState}
	// requests are in flight in SQD
	if waits := filterIDs(d.x.m.Queues.QPs, (*model.QP).IsWaiting); len(waits) > 0 && d.oneInN(3) {
		c.qp, c.attr.State = pickOne(d, waits), ib.QPSQD
		d.drawDrainedEvent(&c)
		d.calls.add(queryQP{c.qp})
		if d.oneInN(2) { // a rejected call changes nothing, also not the pending event
			r := modifyQP{qp: c.qp, attr: d.newValidQPAttr(), mask: ib.QPAttrState | ib.QPAttrMinRNRTimer}
			r.attr.State = ib.QPRTS
			d.calls.add(d.withInvalidAttr(r))
		}
		return c
	}
	switch d.IntN(11) {
	case 0:
		c.attr.State = ib.QPErr
	case 1:
		c.attr.State = ib.QPReset
	case 2, 3:
		c.attr.State = ib.QPSQD
		d.drawDrainedEvent(&c)
	case 4, 5:
		c.attr.State = q.State
		if c.mask |= ib.QPAttrAccessFlags; isAddressedByRequest(q.Type) {
			c.mask ^= ib.QPAttrAccessFlags | ib.QPAttrQKey
			c.attr.QKey = 0x11223344 ^ uint32(d.IntN(2))
		}
	case 6:
		c.attr.State = ib.QPState(d.IntN(7))
		c.mask = transitionMasks(q.Type, min(c.attr.State, ib.QPRTS))
	case 7:
		c.attr.State = q.State
		if c.mask |= ib.QPAttrMinRNRTimer; q.Type == ib.QPTypeRC {
			return d.withInvalidAttr(c)
		}
	case 8:
		c.attr.State, c.attr.CurState = ib.QPRTS, ib.QPState(d.IntN(7))
		c.mask |= ib.QPAttrCurState
	case 9, 10: // any attributes, in a state that may permit them
		c.attr.State = q.State
		if q.State == ib.QPSQD && d.oneInN(2) {
			c.attr.State = ib.QPRTS
		}
		for range 1 + d.IntN(2) {
			c.mask |= pickOne(d, optionalMasks)
		}
		if d.oneInN(2) && !d.x.Lossy {
			c.attr.RNRRetry = 0
		}
	}
	return c
}

// drawDrainedEvent may request EventSQDrained for a transition to SQD.
func (d *qpCallDrawer) drawDrainedEvent(c *modifyQP) {
	if d.oneInN(2) {
		c.mask |= ib.QPAttrEnSQDAsyncNotify
		c.attr.EnSQDAsyncNotify = !d.oneInN(4)
	}
}

// optionalMasks lists the attributes that some transitions permit without requiring them.
var optionalMasks = []ib.QPAttrMask{
	ib.QPAttrPKeyIndex, ib.QPAttrPort, ib.QPAttrAV, ib.QPAttrPathMTU, ib.QPAttrTimeout, ib.QPAttrRetryCnt,
	ib.QPAttrRNRRetry, ib.QPAttrRNRRetry, ib.QPAttrMaxRdAtomic, ib.QPAttrMaxDestRdAtomic, ib.QPAttrMinRNRTimer,
	ib.QPAttrQKey, ib.QPAttrAccessFlags, ib.QPAttrDestQPN,
}

// withInvalidAttr returns a call with one invalid attribute value. The device must reject it and change nothing.
func (d *qpCallDrawer) withInvalidAttr(c modifyQP) call {
	a := &c.attr
	wrong := map[ib.QPAttrMask]func(){
		ib.QPAttrPort:            func() { a.Port = uint8(2 * d.IntN(2)) },
		ib.QPAttrPKeyIndex:       func() { a.PKeyIndex = uint16(d.x.Port.PKeyTableLen) },
		ib.QPAttrPathMTU:         func() { a.PathMTU = ib.MTU(6 * d.IntN(2)) },
		ib.QPAttrTimeout:         func() { a.Timeout = 32 },
		ib.QPAttrRetryCnt:        func() { a.RetryCnt = 8 },
		ib.QPAttrRNRRetry:        func() { a.RNRRetry = 8 },
		ib.QPAttrMinRNRTimer:     func() { a.MinRNRTimer = 32 },
		ib.QPAttrMaxRdAtomic:     func() { a.MaxRdAtomic = uint8(min(d.x.m.Device.InitReads+1, 255)) },
		ib.QPAttrMaxDestRdAtomic: func() { a.MaxDestRdAtomic = uint8(min(d.x.m.Device.Reads+1, 255)) },
		ib.QPAttrAV:              func() { a.AH.Port = 2 },
	}
	bits := slices.DeleteFunc(slices.Sorted(maps.Keys(wrong)), func(b ib.QPAttrMask) bool { return c.mask&b == 0 })
	if len(bits) > 0 {
		wrong[pickOne(d, bits)]()
	}
	return c
}

func (d *qpCallDrawer) drawQueryQP() call {
	if len(d.x.m.Queues.QPs) == 0 {
		return nil
	}
	return queryQP{pickOne(d, filterIDs(d.x.m.Queues.QPs, acceptAnyObject))}
}
