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

// drawer draws random calls that suit the state of the model.
type drawer struct {
	*rand.Rand
	x    *runner
	next model.ID
	todo []call // calls to be made before others are drawn
	seen uint64 // highest ID seen
	plan plan

	known  map[keyOf]uint32    // keys of regions and windows
	former map[keyOf]uint32    // their former keys
	ranges map[model.ID]uint64 // the greatest lengths of regions so far
	resets int                 // resets of the runner so far
}

// keyOf names a key: the lkey or rkey of a region, or the key of a window.
type keyOf struct {
	id    model.ID
	local bool
}

// plan holds the properties of the calls of a run.
type plan struct {
	steps  int
	large  bool // some messages exceed 64 KiB
	errors bool // the device enters the error state at some time
	resets bool // the device is reset
	small  bool // completion queues that only calls poll may overflow
	wrong  int  // one in this many values is invalid
	focus  focus
	local  bool // most memory belongs to this process
	lazy   int  // one in this many completion queues is polled only by calls
	long   int  // one in this many messages may be too long for its receive

	factors [numActions]int // multiply the weights of actions
	favours []ib.WROpcode   // half of the requests have these opcodes, where they are possible
}

// focus is the subject of most calls of a run.
type focus int

const (
	onMessages focus = iota
	onMemory         // windows and fast registrations
	onQueues         // capacity, notification, shared receive queues
	onStates
	onExtended  // XRC
	onDatagrams // groups
	numFocuses
)

func newDrawer(x *runner, seed uint64, steps int) *drawer {
	d := &drawer{Rand: rand.New(rand.NewPCG(seed, 0x6d6f64656c)), x: x,
		known: map[keyOf]uint32{}, former: map[keyOf]uint32{}, ranges: map[model.ID]uint64{}}
	d.plan = plan{
		steps: steps, large: d.one(6), errors: d.one(8) && !x.episodes, resets: d.one(3) && x.Reset != nil && !x.Shared &&
			!x.episodes, wrong: []int{20, 60, 200, 1000}[d.IntN(4)],
		focus: focus(d.IntN(int(numFocuses))),
	}
	d.vary()
	d.plan.small = x.Virtual && !x.episodes && d.plan.focus == onQueues && d.one(2)
	d.plan.local = !d.plan.large && d.one(2)
	x.psn = []uint32{0xffffff, 0xfffff0, 0xffff00, 0, 0x123456}[d.IntN(5)]
	d.prepare()
	return d
}

// vary draws the frequencies of calls and operations of a run. Some runs omit calls and repeat others, because random
// calls of equal frequency seldom reach the states that need many calls of a few kinds.
func (d *drawer) vary() {
	d.plan.lazy = []int{5, 5, 5, 1}[d.IntN(4)]
	d.plan.long = []int{8, 8, 8, 2}[d.IntN(4)]
	for i := range d.plan.factors {
		d.plan.factors[i] = 1
	}
	if d.one(2) {
		return
	}
	for i := range d.plan.factors {
		d.plan.factors[i] = []int{0, 1, 1, 2, 6}[d.IntN(5)]
	}
	for _, i := range []action{stepping, receiving} {
		d.plan.factors[i] = max(1, min(2, d.plan.factors[i]))
	}
	for range d.IntN(3) {
		d.plan.favours = append(d.plan.favours, pick(d, slices.Sorted(maps.Keys(opNames))))
	}
}

// one returns true with probability 1/n.
func (d *drawer) one(n int) bool { return d.IntN(n) == 0 }

// bad returns true if the next value should be invalid.
func (d *drawer) bad() bool { return d.one(d.plan.wrong) }

// learn records changed keys and lengths.
func (d *drawer) learn() {
	note := func(of keyOf, key uint32) {
		if was, ok := d.known[of]; ok && was != key {
			d.former[of] = was
		}
		d.known[of] = key
	}
	for id, r := range d.x.m.Regions {
		note(keyOf{id, true}, r.LKey)
		note(keyOf{id, false}, r.RKey)
		d.ranges[id] = max(d.ranges[id], r.Len)
	}
	for id, w := range d.x.m.Windows {
		note(keyOf{id, false}, w.RKey)
	}
}

func (d *drawer) id() model.ID {
	d.next++
	return d.next
}

// logSize returns a number up to most, with all bit lengths equally likely. Powers of two and their neighbours are
// frequent.
func (d *drawer) logSize(most uint64) uint64 {
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

// wrID returns an unused work request ID. All bits occur, and so do IDs that differ in only one bit.
func (d *drawer) wrID() uint64 {
	for {
		v := d.Uint64()
		if d.seen != 0 && d.one(2) {
			v = d.seen ^ 1<<d.IntN(64)
		}
		if d.x.ids[v] == "" {
			d.seen = v
			d.x.ids[v] = "?"
			return v
		}
	}
}

func pick[T any](d *drawer, list []T) (v T) {
	if len(list) == 0 {
		return v
	}
	return list[d.IntN(len(list))]
}

// ids returns the objects that f accepts, in order.
func ids[T any](objects map[model.ID]T, f func(T) bool) []model.ID {
	list := slices.Sorted(maps.Keys(objects)) // f may draw, so the order must be fixed
	return slices.DeleteFunc(list, func(id model.ID) bool { return !f(objects[id]) })
}

func all[T any](T) bool { return true }

const everything = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// prepare plans the calls that create objects and connect queue pairs.
func (d *drawer) prepare() {
	pds := []model.ID{d.id()}
	d.plan1(allocPD{pds[0]})
	if d.one(3) || d.plan.focus == onExtended {
		pds = append(pds, d.id())
		d.plan1(allocPD{pds[1]})
	}
	var cqs []model.ID
	for range 1 + d.IntN(3) {
		cqs = append(cqs, d.id())
		c := createCQ{id: cqs[len(cqs)-1], entries: min(d.x.attr.MaxCQE, 128<<d.IntN(3)), lazy: d.x.Virtual &&
			!d.x.episodes && d.one(d.plan.lazy)}
		if d.plan.small && d.one(2) {
			c.entries, c.lazy = 1+d.IntN(12), true
		}
		d.plan1(c)
	}
	for range 2 + d.IntN(3) {
		d.plan1(d.region(pds[0], false))
	}
	for _, pd := range pds[1:] {
		d.plan1(d.region(pd, false))
	}
	var srq model.ID
	if d.x.attr.MaxSRQ > 0 && (d.one(4) || d.plan.focus == onQueues && d.one(2)) {
		srq = d.id()
		room, elements := 1+d.IntN(min(32, d.x.attr.MaxSRQWR)), 1+d.IntN(min(4, d.x.attr.MaxSRQSGE))
		d.plan1(createSRQ{id: srq, pd: pick(d, pds), room: uint32(room), elements: uint32(elements)})
	}
	extended := d.plan.focus == onExtended && d.x.attr.MaxSRQ > 0 && len(supported(d.x.Abilities,
		[]ib.QPType{ib.QPTypeXRCInit}, ib.QPType.String)) > 0
	if !extended || d.one(4) {
		n := 1 + d.IntN(2)
		if d.plan.focus == onDatagrams {
			n++
		}
		for range n {
			d.pair(pds[0], cqs, srq)
		}
	}
	if extended || d.x.attr.MaxSRQ > 0 && d.one(4) && (!d.x.episodes || d.one(2)) {
		d.extended(pds, cqs)
	}
	if d.plan.focus == onDatagrams {
		d.groups(pds[0])
	}
	if d.plan.focus != onMemory {
		return
	}
	if most := d.x.attr.MaxMRSize; !d.plan.local && most > 1<<33 { // for windows of more than 4 GiB
		c := d.region(pds[0], false)
		c.access |= (everything | ib.AccessMWBind) & d.x.access
		c.at = place{area: 1 + d.IntN(2), off: 8 * d.Uint64N(1<<15), len: min(most, 1<<33+d.Uint64N(1<<34))}
		c.iova &= 1<<50 - 8
		d.plan1(c)
	}
	for range 2 + d.IntN(2) {
		if d.one(2) {
			d.plan1(allocMW{d.id(), pds[0], pick(d, []ib.MWType{ib.MWType1, ib.MWType2})})
		} else {
			d.plan1(allocMR{d.id(), pds[0], 1 + d.IntN(64)})
		}
	}
}

// groups plans members of multicast groups, and address handles of the groups.
func (d *drawer) groups(pd model.ID) {
	for _, c := range slices.Clone(d.todo) {
		if c, ok := c.(createQP); ok && c.kind == ib.QPTypeUD {
			d.plan1(attachMcast{c.id, 1 + d.IntN(numGroups), false})
		}
	}
	for g := range numGroups {
		d.plan1(createAH{id: d.id(), pd: pd, hops: 64, group: 1 + g})
	}
}

func (d *drawer) plan1(c call) { d.todo = append(d.todo, c) }

// region draws a registration. A free one may have any rights.
func (d *drawer) region(pd model.ID, free bool) regMR {
	c := regMR{id: d.id(), pd: pd, access: everything | ib.AccessMWBind}
	if d.x.m.Flush {
		c.access |= ib.AccessFlushGlobal
	}
	if free || d.one(3) {
		for _, a := range []ib.AccessFlags{
			ib.AccessLocalWrite, ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessMWBind,
			ib.AccessFlushGlobal,
		} {
			if d.one(3) {
				c.access &^= a
			}
		}
		if c.access&ib.AccessLocalWrite == 0 && !d.bad() {
			c.access &^= ib.AccessRemoteWrite | ib.AccessRemoteAtomic
		}
	}
	c.access &= d.x.access
	c.at = d.place()
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

// place draws memory to register: in the process, across 4 GiB, or at high addresses, up to the largest region.
func (d *drawer) place() place {
	p := place{area: 1 + d.IntN(2)}
	if d.plan.local || d.one(3) {
		p.area = 0
	}
	if p.area == 0 {
		p.len = 1 + d.logSize(localSize/2)
		if d.one(2) {
			p.len = localSize/4 + d.Uint64N(localSize/4)
		}
		p.off = d.Uint64N(localSize - p.len)
	} else if d.plan.large && !d.one(4) {
		p.len = min(d.x.attr.MaxMRSize, 1<<20+d.Uint64N(1<<20))
		p.off = d.Uint64N(1 << 18)
	} else {
		half := d.x.areas[p.area].size / 2
		p.len = 1 + d.logSize(min(d.x.attr.MaxMRSize-1, half-1))
		if d.one(2) {
			p.len = min(d.x.attr.MaxMRSize, 1<<18+d.Uint64N(1<<18))
		}
		if p.off = d.Uint64N(1 << 18); d.one(4) {
			p.off = d.logSize(half)
		}
	}
	if d.one(2) {
		p.off &^= 7
	}
	return p
}

// pair plans two queue pairs, or one that is connected to itself, and their transitions to RTS.
func (d *drawer) pair(pd model.ID, cqs []model.ID, srq model.ID) {
	types := []ib.QPType{ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeUD, ib.QPTypeUC}
	if d.x.Lossy || !d.x.Virtual { // there is no sign when an unreliable message has arrived or is lost
		types = types[:3]
	}
	if d.plan.focus == onDatagrams && len(types) > 3 && !d.one(4) {
		types = []ib.QPType{ib.QPTypeUD}
	}
	kind := pick(d, supported(d.x.Abilities, types, ib.QPType.String))
	a, b := d.id(), d.id()
	if d.one(6) {
		b = a
	}
	most := min(d.x.attr.MaxQPWR, 64)
	for _, id := range slices.Compact([]model.ID{a, b}) {
		c := createQP{
			id: id, pd: pd, send: pick(d, cqs), recv: pick(d, cqs), kind: kind, peer: a + b - id,
			sigAll: d.one(4) || !d.x.Virtual, // else there is no sign when a request is done
			cap: ib.QPCap{
				MaxSendWR: uint32(1 + d.logSize(uint64(most-1))), MaxRecvWR: uint32(1 + d.logSize(uint64(most-1))),
				MaxSendSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxSendSGE))),
				MaxRecvSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxRecvSGE))),
				MaxInlineData: min(uint32(d.IntN(3)*32), d.x.inline),
			},
		}
		if a == b {
			c.peer = a
		}
		if srq != 0 && d.one(2) {
			c.srq, c.cap.MaxRecvWR, c.cap.MaxRecvSGE = srq, 0, 0
		}
		d.plan1(c)
	}
	d.connect(kind, kind, a, b)
}

// extended plans XRC domains with shared receive queues, and a connected initiator and target.
func (d *drawer) extended(pds, cqs []model.ID) {
	pd := pds[0]
	domains := []model.ID{d.id()}
	d.plan1(allocXRCD{domains[0]})
	if d.one(3) {
		domains = append(domains, d.id())
		d.plan1(allocXRCD{domains[1]})
	}
	for i := range 1 + d.IntN(3) {
		room, elements := 1+d.IntN(min(16, d.x.attr.MaxSRQWR)), 1+d.IntN(min(4, d.x.attr.MaxSRQSGE))
		c := createSRQ{d.id(), pd, uint32(room), uint32(elements), domains[i%len(domains)], pick(d, cqs)}
		if d.one(2) {
			c.pd = pick(d, pds)
		}
		d.plan1(c)
	}
	for i := range 1 + d.IntN(2) {
		a, b := d.id(), d.id()
		d.plan1(createQP{
			id: a, pd: pd, send: pick(d, cqs), kind: ib.QPTypeXRCInit, peer: b, sigAll: d.one(4) || !d.x.Virtual,
			cap: ib.QPCap{MaxSendWR: uint32(1 + d.IntN(min(d.x.attr.MaxQPWR, 32))),
				MaxSendSGE: uint32(1 + d.IntN(min(4, d.x.attr.MaxSendSGE)))},
		})
		d.plan1(createQP{id: b, pd: pick(d, pds), kind: ib.QPTypeXRCTgt, peer: a, xrcd: domains[i%len(domains)]})
		d.connect(ib.QPTypeXRCInit, ib.QPTypeXRCTgt, a, b)
	}
}

// attributes returns valid values of all attributes of a queue pair.
func (d *drawer) attributes() ib.QPAttr {
	a := ib.QPAttr{
		Port: 1, QKey: 0x11223344, AccessFlags: d.rights(), PathMTU: d.mtu(), AH: d.x.route(false, 64),
		MaxRdAtomic: 1, MaxDestRdAtomic: uint8(1 + d.IntN(min(4, max(1, d.x.attr.MaxQPRdAtom)))),
		MinRNRTimer: []uint8{0, 28, 31}[d.IntN(3)], Timeout: uint8(8 + d.IntN(7)), RetryCnt: 7, RNRRetry: 7,
	}
	if !d.x.Virtual { // the run waits for the timers
		a.MinRNRTimer, a.Timeout = 1, 8
	}
	return a
}

func (d *drawer) rights() ib.AccessFlags {
	a := everything
	if d.x.m.Flush {
		a |= ib.AccessFlushGlobal
	}
	if d.one(4) {
		a &^= pick(d, []ib.AccessFlags{
			ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessFlushGlobal,
		})
	}
	return a
}

// mtu returns the path MTU, which is the same for all queue pairs of a run.
func (d *drawer) mtu() ib.MTU {
	return ib.MTU256 + ib.MTU(d.x.psn>>4%5)%(d.x.Port.ActiveMTU-ib.MTU256+1)
}

// ladder returns the masks of the transitions up to RTS, by type.
func ladder(kind ib.QPType, s ib.QPState) ib.QPAttrMask {
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

// connect plans the transitions of two queue pairs from RESET to RTS. Some of them stay in a lower state for a while.
func (d *drawer) connect(kindA, kindB ib.QPType, a, b model.ID) {
	for s := ib.QPInit; s <= ib.QPRTS; s++ {
		for _, id := range slices.Compact([]model.ID{a, b}) {
			if d.one(40) {
				return
			}
			kind := kindA
			if id == b {
				kind = kindB
			}
			c := modifyQP{qp: id, dest: a + b - id, attr: d.attributes(), mask: ladder(kind, s)}
			if a == b {
				c.dest = a
			}
			c.attr.State = s
			if d.one(12) {
				d.plan1(d.spoilt(c))
			}
			if d.one(12) && !d.x.Lossy {
				c.attr.RNRRetry = 0
			}
			d.plan1(c)
		}
	}
}

// draw returns the next call that can be made.
func (d *drawer) draw() call {
	if d.resets != d.x.resets {
		d.resets, d.todo = d.x.resets, nil
		d.prepare()
	}
	d.learn()
	for range 50 {
		var c call
		if len(d.todo) > 0 {
			c, d.todo = d.todo[0], d.todo[1:]
		} else {
			c = d.any()
		}
		if m, ok := c.(modifyQP); ok && d.one(3) {
			m.noise = true
			c = m
		}
		if c != nil && d.x.fit(c) {
			return c
		}
	}
	return nil
}

// any draws a call.
func (d *drawer) any() call {
	if list := d.destroyable(); d.x.m.Dead && len(list) > 0 && d.one(3) {
		return destroy{pick(d, list)}
	}
	if d.plan.resets && d.one(25) || d.x.m.Dead && d.plan.resets && d.one(6) {
		return reset{}
	}
	if d.ready() == 0 && !d.one(4) || !d.x.episodes && d.anyInError() && d.one(4) {
		return d.steps()
	}
	for i, k := range d.actions() {
		weight := k.weight * d.plan.factors[i]
		if slices.Contains(k.focus, d.plan.focus) {
			weight *= 4
		}
		if d.IntN(1000) < weight {
			return k.f()
		}
	}
	return d.posts()
}

// action is a kind of calls.
type action int

const (
	stepping action = iota
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

// weighted describes an action: its frequency in thousandths, the subjects that multiply it by four, and its function.
type weighted struct {
	weight int
	focus  []focus
	f      func() call
}

// actions returns all actions except posting sends, in the order in which they are tried.
func (d *drawer) actions() [numActions]weighted {
	queues, memory, states, datagrams := []focus{onQueues}, []focus{onMemory}, []focus{onStates}, []focus{onDatagrams}
	return [numActions]weighted{
		stepping:       {100, nil, d.steps},
		modifying:      {25, states, d.modifies},
		changingMemory: {30, memory, d.memory},
		making:         {30, nil, d.makes},
		failing:        {6, states, d.fails},
		arming:         {20, append(datagrams, onQueues), d.arms},
		polling:        {15, queues, d.polls},
		modifyingSRQs:  {8, queues, d.sharedQueues},
		resizing:       {6, queues, d.resizes},
		moderating:     {10, queues, d.moderates},
		joining:        {40, datagrams, d.joins},
		storing:        {30, nil, d.stores},
		ending:         {7, []focus{onStates, onMemory, onExtended}, d.ends},
		querying:       {15, nil, d.queries},
		reusing:        {20, nil, d.stales},
		receiving:      {300, nil, d.receives},
	}
}

func (d *drawer) destroyable() []model.ID {
	return ids(d.x.objs, func(o *object) bool { return !o.dead })
}

// qp picks a queue pair, mostly one that can send.
func (d *drawer) qp() *model.QP {
	qps := slices.SortedFunc(maps.Values(d.x.m.QPs), func(a, b *model.QP) int { return cmp.Compare(a.ID, b.ID) })
	idle := func(q *model.QP) bool { return q.State != ib.QPRTS && q.State != ib.QPSQD }
	ready := slices.DeleteFunc(slices.Clone(qps), idle)
	if len(ready) > 0 && !d.one(12) {
		qps = ready
	}
	// Queue pairs of the other types do not fail, so they would get most of the requests.
	list := slices.DeleteFunc(slices.Clone(qps), func(q *model.QP) bool { return !acknowledged(q.Type) })
	if len(list) > 0 && !d.x.episodes && d.plan.focus != onDatagrams && d.one(2) {
		qps = list
	}
	return pick(d, qps)
}

// acknowledged reports whether requests of a service type are acknowledged, or arrive by such a service.
func acknowledged(t ib.QPType) bool { return t != ib.QPTypeUC && t != ib.QPTypeUD }

// anyInError reports whether a queue pair of an acknowledged service is in ERR.
func (d *drawer) anyInError() bool {
	return len(ids(d.x.m.QPs, func(q *model.QP) bool { return acknowledged(q.Type) && q.State == ib.QPErr })) > 0
}

// ready returns the number of queue pairs that can send.
func (d *drawer) ready() int {
	return len(ids(d.x.m.QPs, func(q *model.QP) bool { return q.State == ib.QPRTS }))
}

// steps moves a queue pair, or a pair, that is not in RTS towards it, or back.
func (d *drawer) steps() call {
	for _, id := range ids(d.x.m.QPs, func(q *model.QP) bool { return q.State != ib.QPRTS }) {
		if d.one(2) {
			continue
		}
		q, peer := d.x.m.QPs[id], d.x.objs[id].peer
		attr := d.attributes()
		switch q.State {
		case ib.QPSQD, ib.QPSQE:
			attr.State = ib.QPRTS
			return modifyQP{qp: id, attr: attr, mask: ib.QPAttrState}
		case ib.QPReset, ib.QPInit, ib.QPRTR:
			if p := d.x.m.QPs[peer]; p != nil && p.State <= ib.QPRTR || d.one(3) {
				attr.State = q.State + 1
				return modifyQP{qp: id, dest: peer, attr: attr, mask: ladder(q.Type, attr.State)}
			}
		}
		reset := func(id model.ID) call {
			return modifyQP{qp: id, attr: ib.QPAttr{State: ib.QPReset}, mask: ib.QPAttrState}
		}
		if d.one(4) {
			return reset(id)
		}
		kind := q.Type
		if p := d.x.m.QPs[peer]; p != nil && p != q {
			d.plan1(reset(peer))
			kind = p.Type
		}
		d.connect(q.Type, kind, id, peer)
		return reset(id)
	}
	return nil
}

// modifies changes a state or an attribute.
func (d *drawer) modifies() call {
	q := d.qp()
	if q == nil {
		return nil
	}
	c := modifyQP{qp: q.ID, dest: d.x.objs[q.ID].peer, attr: d.attributes(), mask: ib.QPAttrState}
	if waits := ids(d.x.m.QPs, (*model.QP).Waiting); len(waits) > 0 && d.one(3) { // requests are in flight in SQD
		c.qp, c.attr.State = pick(d, waits), ib.QPSQD
		d.plan1(queryQP{c.qp})
		return c
	}
	switch d.IntN(11) {
	case 0:
		c.attr.State = ib.QPErr
	case 1:
		c.attr.State = ib.QPReset
	case 2, 3:
		if c.attr.State = ib.QPSQD; d.one(2) {
			c.mask |= ib.QPAttrEnSQDAsyncNotify
			c.attr.EnSQDAsyncNotify = !d.one(4)
		}
	case 4, 5:
		c.attr.State = q.State
		if c.mask |= ib.QPAttrAccessFlags; q.Type == ib.QPTypeUD {
			c.mask ^= ib.QPAttrAccessFlags | ib.QPAttrQKey
			c.attr.QKey = 0x11223344 ^ uint32(d.IntN(2))
		}
	case 6:
		c.attr.State = ib.QPState(d.IntN(7))
		c.mask = ladder(q.Type, min(c.attr.State, ib.QPRTS))
	case 7:
		c.attr.State = q.State
		if c.mask |= ib.QPAttrMinRNRTimer; q.Type == ib.QPTypeRC {
			return d.spoilt(c)
		}
	case 8:
		c.attr.State, c.attr.CurState = ib.QPRTS, ib.QPState(d.IntN(7))
		c.mask |= ib.QPAttrCurState
	case 9, 10: // any attributes, in a state that may permit them
		c.attr.State = q.State
		if q.State == ib.QPSQD && d.one(2) {
			c.attr.State = ib.QPRTS
		}
		for range 1 + d.IntN(2) {
			c.mask |= pick(d, optional)
		}
		if d.one(2) && !d.x.Lossy {
			c.attr.RNRRetry = 0
		}
	}
	return c
}

// optional lists the attributes that some transitions permit without requiring them.
var optional = []ib.QPAttrMask{
	ib.QPAttrPKeyIndex, ib.QPAttrPort, ib.QPAttrAV, ib.QPAttrPathMTU, ib.QPAttrTimeout, ib.QPAttrRetryCnt,
	ib.QPAttrRNRRetry, ib.QPAttrRNRRetry, ib.QPAttrMaxRdAtomic, ib.QPAttrMaxDestRdAtomic, ib.QPAttrMinRNRTimer,
	ib.QPAttrQKey, ib.QPAttrAccessFlags, ib.QPAttrDestQPN,
}

// spoilt returns a call with one invalid attribute value. The device must reject it and change nothing.
func (d *drawer) spoilt(c modifyQP) call {
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
		wrong[pick(d, bits)]()
	}
	return c
}

func (d *drawer) queries() call {
	if len(d.x.m.QPs) == 0 {
		return nil
	}
	return queryQP{pick(d, ids(d.x.m.QPs, all))}
}
