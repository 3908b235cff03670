package modeltest

import (
	"cmp"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// callDrawer draws random calls that suit the state of the model.
type callDrawer struct {
	*rand.Rand
	x    *modelRunner
	next model.ID
	todo []call // calls to be made before others are drawn
	seen uint64 // highest ID seen
	plan runPlan

	known  map[keyID]uint32    // keys of regions and windows
	former map[keyID]uint32    // their former keys
	ranges map[model.ID]uint64 // the greatest lengths of regions so far
	resets int                 // resets of the runner so far
}

// keyID names a key: the lkey or rkey of a region, or the key of a window.
type keyID struct {
	id    model.ID
	local bool
}

// runPlan holds the properties of the calls of a run.
type runPlan struct {
	steps  int
	large  bool // some messages exceed 64 KiB
	errors bool // the device enters the error state at some time
	resets bool // the device is reset
	small  bool // completion queues that only calls poll may overflow
	wrong  int  // one in this many values is invalid
	focus  runFocus
	local  bool // most memory belongs to this process
	lazy   int  // one in this many completion queues is polled only by calls
	long   int  // one in this many messages may be too long for its receive

	factors [numActions]int // multiply the weights of actions
	favours []ib.WROpcode   // half of the requests have these opcodes, where they are possible
}

// runFocus is the subject of most calls of a run.
type runFocus int

const (
	onMessages runFocus = iota
	onMemory            // windows and fast registrations
	onQueues            // capacity, notification, shared receive queues
	onStates
	onExtended  // XRC
	onDatagrams // groups
	numFocuses
)

func newCallDrawer(x *modelRunner, seed uint64, steps int) *callDrawer {
	d := &callDrawer{Rand: rand.New(rand.NewPCG(seed, 0x6d6f64656c)), x: x,
		known: map[keyID]uint32{}, former: map[keyID]uint32{}, ranges: map[model.ID]uint64{}}
	d.plan = runPlan{
		steps: steps, large: d.oneInN(6), errors: d.oneInN(8) && !x.episodes, resets: d.oneInN(3) && x.Reset != nil &&
			!x.Shared &&
			!x.episodes, wrong: []int{20, 60, 200, 1000}[d.IntN(4)],
		focus: runFocus(d.IntN(int(numFocuses))),
	}
	d.drawFrequencies()
	d.plan.small = x.Virtual && !x.episodes && d.plan.focus == onQueues && d.oneInN(2)
	d.plan.local = !d.plan.large && d.oneInN(2)
	x.psn = []uint32{0xffffff, 0xfffff0, 0xffff00, 0, 0x123456}[d.IntN(5)]
	d.planCreation()
	return d
}

// drawFrequencies draws the frequencies of calls and operations of a run. Some runs omit calls and repeat others,
// because random calls of equal frequency seldom reach the states that need many calls of a few kinds.
func (d *callDrawer) drawFrequencies() {
	d.plan.lazy = []int{5, 5, 5, 1}[d.IntN(4)]
	d.plan.long = []int{8, 8, 8, 2}[d.IntN(4)]
	for i := range d.plan.factors {
		d.plan.factors[i] = 1
	}
	if d.oneInN(2) {
		return
	}
	for i := range d.plan.factors {
		d.plan.factors[i] = []int{0, 1, 1, 2, 6}[d.IntN(5)]
	}
	for _, i := range []callKind{stepping, receiving} {
		d.plan.factors[i] = max(1, min(2, d.plan.factors[i]))
	}
	for range d.IntN(3) {
		d.plan.favours = append(d.plan.favours, pickOne(d, slices.Sorted(maps.Keys(opcodeNames))))
	}
}

// oneInN returns true with probability 1/n.
func (d *callDrawer) oneInN(n int) bool { return d.IntN(n) == 0 }

// shouldBeInvalid returns true if the next value should be invalid.
func (d *callDrawer) shouldBeInvalid() bool { return d.oneInN(d.plan.wrong) }

// recordKeys records changed keys and lengths.
func (d *callDrawer) recordKeys() {
	note := func(of keyID, key uint32) {
		if was, ok := d.known[of]; ok && was != key {
			d.former[of] = was
		}
		d.known[of] = key
	}
	for id, r := range d.x.m.Regions {
		note(keyID{id, true}, r.LKey)
		note(keyID{id, false}, r.RKey)
		d.ranges[id] = max(d.ranges[id], r.Len)
	}
	for id, w := range d.x.m.Windows {
		note(keyID{id, false}, w.RKey)
	}
}

func (d *callDrawer) nextID() model.ID {
	d.next++
	return d.next
}

// drawLogUniform returns a number up to most, with all bit lengths equally likely. Powers of two and their neighbours
// are frequent.
func (d *callDrawer) drawLogUniform(most uint64) uint64 {
	if most == 0 {
		return 0
	}
	n := uint64(1) << d.IntN(bits.Len64(most))
	switch d.IntN(4) {
	case 0:
		n += d.Uint64N(3) - 1
	case 1, 2:
		n += d.Uint64N(n)
	}
	return min(n, most)
}

// drawWRID returns an unused work request ID. All bits occur, and so do IDs that differ in only one bit.
func (d *callDrawer) drawWRID() uint64 {
	for {
		v := d.Uint64()
		if d.seen != 0 && d.oneInN(2) {
			v = d.seen ^ 1<<d.IntN(64)
		}
		if d.x.ids[v] == "" {
			d.seen = v
			d.x.ids[v] = "?"
			return v
		}
	}
}

func pickOne[T any](d *callDrawer, list []T) (v T) {
	if len(list) == 0 {
		return v
	}
	return list[d.IntN(len(list))]
}

// filterIDs returns the objects that f accepts, in order.
func filterIDs[T any](objects map[model.ID]T, f func(T) bool) []model.ID {
	list := slices.Sorted(maps.Keys(objects)) // f may draw, so the order must be fixed
	return slices.DeleteFunc(list, func(id model.ID) bool { return !f(objects[id]) })
}

func acceptAnyObject[T any](T) bool { return true }

const allAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// planCreation plans the calls that create objects and connect queue pairs.
func (d *callDrawer) planCreation() {
	pds := []model.ID{d.nextID()}
	d.addPlannedCall(allocPD{pds[0]})
	if d.oneInN(3) || d.plan.focus == onExtended {
		pds = append(pds, d.nextID())
		d.addPlannedCall(allocPD{pds[1]})
	}
	var cqs []model.ID
	for range 1 + d.IntN(3) {
		cqs = append(cqs, d.nextID())
		c := createCQ{id: cqs[len(cqs)-1], entries: min(d.x.attr.MaxCQE, 128<<d.IntN(3)), lazy: d.x.Virtual &&
			!d.x.episodes && d.oneInN(d.plan.lazy)}
		if d.plan.small && d.oneInN(2) {
			c.entries, c.lazy = 1+d.IntN(12), true
		}
		d.addPlannedCall(c)
	}
	for range 2 + d.IntN(3) {
		d.addPlannedCall(d.drawRegMR(pds[0], false))
	}
	for _, pd := range pds[1:] {
		d.addPlannedCall(d.drawRegMR(pd, false))
	}
	var srq model.ID
	if d.x.attr.MaxSRQ > 0 && (d.oneInN(4) || d.plan.focus == onQueues && d.oneInN(2)) {
		srq = d.nextID()
		room, elements := 1+d.IntN(min(32, d.x.attr.MaxSRQWR)), 1+d.IntN(min(4, d.x.attr.MaxSRQSGE))
		d.addPlannedCall(createSRQ{id: srq, pd: pickOne(d, pds), room: uint32(room), elements: uint32(elements)})
	}
	extended := d.plan.focus == onExtended && d.x.attr.MaxSRQ > 0 && len(filterSupported(d.x.Abilities,
		[]ib.QPType{ib.QPTypeXRCInit}, ib.QPType.String)) > 0
	if !extended || d.oneInN(4) {
		n := 1 + d.IntN(2)
		if d.plan.focus == onDatagrams {
			n++
		}
		for range n {
			d.planPair(pds[0], cqs, srq)
		}
	}
	if extended || d.x.attr.MaxSRQ > 0 && d.oneInN(4) && (!d.x.episodes || d.oneInN(2)) {
		d.planXRC(pds, cqs)
	}
	if d.plan.focus == onDatagrams {
		d.planMcastGroups(pds[0])
	}
	if d.plan.focus != onMemory {
		return
	}
	if most := d.x.attr.MaxMRSize; !d.plan.local && most > 1<<33 { // for windows of more than 4 GiB
		c := d.drawRegMR(pds[0], false)
		c.access |= (allAccess | ib.AccessMWBind) & d.x.access
		c.at = areaRange{area: 1 + d.IntN(2), off: 8 * d.Uint64N(1<<15), len: min(most, 1<<33+d.Uint64N(1<<34))}
		c.iova &= 1<<50 - 8
		d.addPlannedCall(c)
	}
	for range 2 + d.IntN(2) {
		if d.oneInN(2) {
			d.addPlannedCall(allocMW{d.nextID(), pds[0], pickOne(d, []ib.MWType{ib.MWType1, ib.MWType2})})
		} else {
			d.addPlannedCall(allocMR{d.nextID(), pds[0], 1 + d.IntN(64)})
		}
	}
}

// planMcastGroups plans members of multicast groups, and address handles of the groups.
func (d *callDrawer) planMcastGroups(pd model.ID) {
	for _, c := range slices.Clone(d.todo) {
		if c, ok := c.(createQP); ok && c.kind == ib.QPTypeUD {
			d.addPlannedCall(attachMcast{c.id, 1 + d.IntN(numGroups), false})
		}
	}
	for g := range numGroups {
		d.addPlannedCall(createAH{id: d.nextID(), pd: pd, hops: 64, group: 1 + g})
	}
}

func (d *callDrawer) addPlannedCall(c call) { d.todo = append(d.todo, c) }

// drawRegMR draws a registration. A free one may have any rights.
func (d *callDrawer) drawRegMR(pd model.ID, free bool) regMR {
	c := regMR{id: d.nextID(), pd: pd, access: allAccess | ib.AccessMWBind}
	if d.x.m.Flush {
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
func (d *callDrawer) drawAreaRange() areaRange {
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

// planPair plans two queue pairs, or one that is connected to itself, and their transitions to RTS.
func (d *callDrawer) planPair(pd model.ID, cqs []model.ID, srq model.ID) {
	types := []ib.QPType{ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeUD, ib.QPTypeUC}
	if d.x.Lossy || !d.x.Virtual { // there is no sign when an unreliable message has arrived or is lost
		types = types[:3]
	}
	if d.plan.focus == onDatagrams && len(types) > 3 && !d.oneInN(4) {
		types = []ib.QPType{ib.QPTypeUD}
	}
	kind := pickOne(d, filterSupported(d.x.Abilities, types, ib.QPType.String))
	a, b := d.nextID(), d.nextID()
	if d.oneInN(6) {
		b = a
	}
	most := min(d.x.attr.MaxQPWR, 64)
	for _, id := range slices.Compact([]model.ID{a, b}) {
		c := createQP{
			id: id, pd: pd, send: pickOne(d, cqs), recv: pickOne(d, cqs), kind: kind, peer: a + b - id,
			sigAll: d.oneInN(4) || !d.x.Virtual, // else there is no sign when a request is done
			cap: ib.QPCap{
				MaxSendWR: uint32(1 + d.drawLogUniform(uint64(most-1))), MaxRecvWR: uint32(1 + d.drawLogUniform(uint64(most-1))),
				MaxSendSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxSendSGE))),
				MaxRecvSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxRecvSGE))),
				MaxInlineData: min(uint32(d.IntN(3)*32), d.x.inline),
			},
		}
		if a == b {
			c.peer = a
		}
		if srq != 0 && d.oneInN(2) {
			c.srq, c.cap.MaxRecvWR, c.cap.MaxRecvSGE = srq, 0, 0
		}
		d.addPlannedCall(c)
	}
	d.planConnect(kind, kind, a, b)
}

// planXRC plans XRC domains with shared receive queues, and a connected initiator and target.
func (d *callDrawer) planXRC(pds, cqs []model.ID) {
	pd := pds[0]
	domains := []model.ID{d.nextID()}
	d.addPlannedCall(allocXRCD{domains[0]})
	if d.oneInN(3) {
		domains = append(domains, d.nextID())
		d.addPlannedCall(allocXRCD{domains[1]})
	}
	for i := range 1 + d.IntN(3) {
		room, elements := 1+d.IntN(min(16, d.x.attr.MaxSRQWR)), 1+d.IntN(min(4, d.x.attr.MaxSRQSGE))
		c := createSRQ{d.nextID(), pd, uint32(room), uint32(elements), domains[i%len(domains)], pickOne(d, cqs)}
		if d.oneInN(2) {
			c.pd = pickOne(d, pds)
		}
		d.addPlannedCall(c)
	}
	for i := range 1 + d.IntN(2) {
		a, b := d.nextID(), d.nextID()
		d.addPlannedCall(createQP{
			id: a, pd: pd, send: pickOne(d, cqs), kind: ib.QPTypeXRCInit, peer: b, sigAll: d.oneInN(4) || !d.x.Virtual,
			cap: ib.QPCap{MaxSendWR: uint32(1 + d.IntN(min(d.x.attr.MaxQPWR, 32))),
				MaxSendSGE: uint32(1 + d.IntN(min(4, d.x.attr.MaxSendSGE)))},
		})
		d.addPlannedCall(createQP{id: b, pd: pickOne(d, pds), kind: ib.QPTypeXRCTgt, peer: a, xrcd: domains[i%len(domains)]})
		d.planConnect(ib.QPTypeXRCInit, ib.QPTypeXRCTgt, a, b)
	}
}

// newValidQPAttr returns valid values of all attributes of a queue pair.
func (d *callDrawer) newValidQPAttr() ib.QPAttr {
	a := ib.QPAttr{
		Port: 1, QKey: 0x11223344, AccessFlags: d.drawAccessRights(), PathMTU: d.runMTU(), AH: d.x.newAddressAttr(false, 64),
		MaxRdAtomic: 1, MaxDestRdAtomic: uint8(1 + d.IntN(min(4, max(1, d.x.attr.MaxQPRdAtom)))),
		MinRNRTimer: []uint8{0, 28, 31}[d.IntN(3)], Timeout: uint8(8 + d.IntN(7)), RetryCnt: 7, RNRRetry: 7,
	}
	if !d.x.Virtual { // the run waits for the timers
		a.MinRNRTimer, a.Timeout = 1, 8
	}
	return a
}

func (d *callDrawer) drawAccessRights() ib.AccessFlags {
	a := allAccess
	if d.x.m.Flush {
		a |= ib.AccessFlushGlobal
	}
	if d.oneInN(4) {
		a &^= pickOne(d, []ib.AccessFlags{
			ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessFlushGlobal,
		})
	}
	return a
}

// runMTU returns the path MTU, which is the same for all queue pairs of a run.
func (d *callDrawer) runMTU() ib.MTU {
	return ib.MTU256 + ib.MTU(d.x.psn>>4%5)%(d.x.Port.ActiveMTU-ib.MTU256+1)
}

// transitionMasks returns the masks of the transitions up to RTS, by type.
func transitionMasks(kind ib.QPType, s ib.QPState) ib.QPAttrMask {
	mask := ib.QPAttrState
	switch {
	case s == ib.QPInit && kind == ib.QPTypeUD:
		return mask | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey
	case s == ib.QPInit:
		return mask | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags
	case s == ib.QPRTR && kind == ib.QPTypeUD:
		return mask
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

// planConnect plans the transitions of two queue pairs from RESET to RTS. Some of them stay in a lower state for a
// while.
func (d *callDrawer) planConnect(kindA, kindB ib.QPType, a, b model.ID) {
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
				d.addPlannedCall(d.withInvalidAttr(c))
			}
			if d.oneInN(12) && !d.x.Lossy {
				c.attr.RNRRetry = 0
			}
			d.addPlannedCall(c)
		}
	}
}

// nextCall returns the next call that can be made.
func (d *callDrawer) nextCall() call {
	if d.resets != d.x.resets {
		d.resets, d.todo = d.x.resets, nil
		d.planCreation()
	}
	d.recordKeys()
	for range 50 {
		var c call
		if len(d.todo) > 0 {
			c, d.todo = d.todo[0], d.todo[1:]
		} else {
			c = d.drawCall()
		}
		if m, ok := c.(modifyQP); ok && d.oneInN(3) {
			m.noise = true
			c = m
		}
		if c != nil && d.x.isPossible(c) {
			return c
		}
	}
	return nil
}

// drawCall draws a call.
func (d *callDrawer) drawCall() call {
	if list := d.destroyableIDs(); d.x.m.Dead && len(list) > 0 && d.oneInN(3) {
		return destroyObject{pickOne(d, list)}
	}
	if d.plan.resets && d.oneInN(25) || d.x.m.Dead && d.plan.resets && d.oneInN(6) {
		return resetDevice{}
	}
	if d.readyQPCount() == 0 && !d.oneInN(4) || !d.x.episodes && d.hasQPInErr() && d.oneInN(4) {
		return d.drawQPTransition()
	}
	for i, k := range d.weightedActions() {
		weight := k.weight * d.plan.factors[i]
		if slices.Contains(k.focus, d.plan.focus) {
			weight *= 4
		}
		if d.IntN(1000) < weight {
			return k.f()
		}
	}
	return d.drawPostSend()
}

// callKind is a kind of calls.
type callKind int

const (
	stepping callKind = iota
	modifying
	changingMemory
	making
	failing
	arming
	polling
	modifyingSRQs
	resizing
	moderating
	joining
	storing
	ending
	querying
	reusing
	receiving
	numActions
)

// weightedAction describes an action: its frequency in thousandths, the subjects that multiply it by four, and its
// function.
type weightedAction struct {
	weight int
	focus  []runFocus
	f      func() call
}

// weightedActions returns all actions except posting sends, in the order in which they are tried.
func (d *callDrawer) weightedActions() [numActions]weightedAction {
	queues, memory := []runFocus{onQueues}, []runFocus{onMemory}
	states, datagrams := []runFocus{onStates}, []runFocus{onDatagrams}
	return [numActions]weightedAction{
		stepping:       {100, nil, d.drawQPTransition},
		modifying:      {25, states, d.drawModifyQP},
		changingMemory: {30, memory, d.drawMemoryCall},
		making:         {30, nil, d.drawCreateObject},
		failing:        {6, states, d.drawSetError},
		arming:         {20, append(datagrams, onQueues), d.drawArmCQ},
		polling:        {15, queues, d.drawPollCQ},
		modifyingSRQs:  {8, queues, d.drawSRQCall},
		resizing:       {6, queues, d.drawResizeCQ},
		moderating:     {10, queues, d.drawModerateCQ},
		joining:        {40, datagrams, d.drawAttachMcast},
		storing:        {30, nil, d.drawStoreMemory},
		ending:         {7, []runFocus{onStates, onMemory, onExtended}, d.drawDestroyObject},
		querying:       {15, nil, d.drawQueryQP},
		reusing:        {20, nil, d.drawUseStaleObject},
		receiving:      {300, nil, d.drawPostRecv},
	}
}

func (d *callDrawer) destroyableIDs() []model.ID {
	return filterIDs(d.x.objs, func(o *deviceObject) bool { return !o.dead })
}

// pickQP picks a queue pair, mostly one that can send.
func (d *callDrawer) pickQP() *model.QP {
	qps := slices.SortedFunc(maps.Values(d.x.m.QPs), func(a, b *model.QP) int { return cmp.Compare(a.ID, b.ID) })
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
func (d *callDrawer) hasQPInErr() bool {
	return len(filterIDs(d.x.m.QPs, func(q *model.QP) bool { return isAcknowledged(q.Type) && q.State == ib.QPErr })) > 0
}

// readyQPCount returns the number of queue pairs that can send.
func (d *callDrawer) readyQPCount() int {
	return len(filterIDs(d.x.m.QPs, func(q *model.QP) bool { return q.State == ib.QPRTS }))
}

// drawQPTransition moves a queue pair, or a pair, that is not in RTS towards it, or back.
func (d *callDrawer) drawQPTransition() call {
	for _, id := range filterIDs(d.x.m.QPs, func(q *model.QP) bool { return q.State != ib.QPRTS }) {
		if d.oneInN(2) {
			continue
		}
		q, peer := d.x.m.QPs[id], d.x.objs[id].peer
		attr := d.newValidQPAttr()
		switch q.State {
		case ib.QPSQD, ib.QPSQE:
			attr.State = ib.QPRTS
			return modifyQP{qp: id, attr: attr, mask: ib.QPAttrState}
		case ib.QPReset, ib.QPInit, ib.QPRTR:
			if p := d.x.m.QPs[peer]; p != nil && p.State <= ib.QPRTR || d.oneInN(3) {
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
		if p := d.x.m.QPs[peer]; p != nil && p != q {
			d.addPlannedCall(reset(peer))
			kind = p.Type
		}
		d.planConnect(q.Type, kind, id, peer)
		return reset(id)
	}
	return nil
}

// drawModifyQP changes a state or an attribute.
func (d *callDrawer) drawModifyQP() call {
	q := d.pickQP()
	if q == nil {
		return nil
	}
	c := modifyQP{qp: q.ID, dest: d.x.objs[q.ID].peer, attr: d.newValidQPAttr(), mask: ib.QPAttrState}
	// requests are in flight in SQD
	if waits := filterIDs(d.x.m.QPs, (*model.QP).IsWaiting); len(waits) > 0 && d.oneInN(3) {
		c.qp, c.attr.State = pickOne(d, waits), ib.QPSQD
		d.addPlannedCall(queryQP{c.qp})
		return c
	}
	switch d.IntN(11) {
	case 0:
		c.attr.State = ib.QPErr
	case 1:
		c.attr.State = ib.QPReset
	case 2, 3:
		if c.attr.State = ib.QPSQD; d.oneInN(2) {
			c.mask |= ib.QPAttrEnSQDAsyncNotify
			c.attr.EnSQDAsyncNotify = !d.oneInN(4)
		}
	case 4, 5:
		c.attr.State = q.State
		if c.mask |= ib.QPAttrAccessFlags; q.Type == ib.QPTypeUD {
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

// optionalMasks lists the attributes that some transitions permit without requiring them.
var optionalMasks = []ib.QPAttrMask{
	ib.QPAttrPKeyIndex, ib.QPAttrPort, ib.QPAttrAV, ib.QPAttrPathMTU, ib.QPAttrTimeout, ib.QPAttrRetryCnt,
	ib.QPAttrRNRRetry, ib.QPAttrRNRRetry, ib.QPAttrMaxRdAtomic, ib.QPAttrMaxDestRdAtomic, ib.QPAttrMinRNRTimer,
	ib.QPAttrQKey, ib.QPAttrAccessFlags, ib.QPAttrDestQPN,
}

// withInvalidAttr returns a call with one invalid attribute value. The device must reject it and change nothing.
func (d *callDrawer) withInvalidAttr(c modifyQP) call {
	a := &c.attr
	wrong := map[ib.QPAttrMask]func(){
		ib.QPAttrPort:            func() { a.Port = uint8(2 * d.IntN(2)) },
		ib.QPAttrPKeyIndex:       func() { a.PKeyIndex = uint16(d.x.Port.PKeyTableLen) },
		ib.QPAttrPathMTU:         func() { a.PathMTU = ib.MTU(6 * d.IntN(2)) },
		ib.QPAttrTimeout:         func() { a.Timeout = 32 },
		ib.QPAttrRetryCnt:        func() { a.RetryCnt = 8 },
		ib.QPAttrRNRRetry:        func() { a.RNRRetry = 8 },
		ib.QPAttrMinRNRTimer:     func() { a.MinRNRTimer = 32 },
		ib.QPAttrMaxRdAtomic:     func() { a.MaxRdAtomic = uint8(min(d.x.m.InitReads+1, 255)) },
		ib.QPAttrMaxDestRdAtomic: func() { a.MaxDestRdAtomic = uint8(min(d.x.m.Reads+1, 255)) },
		ib.QPAttrAV:              func() { a.AH.Port = 2 },
	}
	bits := slices.DeleteFunc(slices.Sorted(maps.Keys(wrong)), func(b ib.QPAttrMask) bool { return c.mask&b == 0 })
	if len(bits) > 0 {
		wrong[pickOne(d, bits)]()
	}
	return c
}

func (d *callDrawer) drawQueryQP() call {
	if len(d.x.m.QPs) == 0 {
		return nil
	}
	return queryQP{pickOne(d, filterIDs(d.x.m.QPs, acceptAnyObject))}
}
