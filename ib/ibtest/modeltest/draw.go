package modeltest

import (
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"

	"verbena/ib"
	"verbena/ib/ibtest/model"
)

// callDrawer draws random calls that suit the state of the model.
type callDrawer struct {
	*randomSource
	x        *modelRunner
	plan     *runPlan
	calls    *plannedCalls
	memory   *memoryDrawer
	requests *requestDrawer
	qpCalls  *qpCallDrawer
	resets   int    // resets of the runner so far
	settings []call // recent calls that set values
}

// randomSource is a source of random values, of which some are invalid.
type randomSource struct {
	*rand.Rand
	wrong int // one in this many values is invalid
}

// plannedCalls holds the calls to be made before others are drawn, and numbers the objects that calls create.
type plannedCalls struct {
	todo []call
	next model.ID
}

// runPlan holds the properties of the calls of a run.
type runPlan struct {
	steps  int
	large  bool // some messages exceed 64 KiB
	errors bool // the device enters the error state at some time
	resets bool // the device is reset
	small  bool // completion queues that only calls poll may overflow
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
	r := &randomSource{Rand: rand.New(rand.NewPCG(seed, 0x6d6f64656c))}
	plan, calls := &runPlan{steps: steps}, &plannedCalls{}
	memory := &memoryDrawer{randomSource: r, x: x, plan: plan, calls: calls,
		known: map[keyID]uint32{}, former: map[keyID]uint32{}, ranges: map[model.ID]uint64{}}
	d := &callDrawer{
		randomSource: r, x: x, plan: plan, calls: calls, memory: memory,
		requests: &requestDrawer{randomSource: r, x: x, plan: plan, calls: calls, memory: memory},
		qpCalls:  &qpCallDrawer{randomSource: r, x: x, plan: plan, calls: calls},
	}
	plan.large, plan.errors = r.oneInN(6), r.oneInN(8) && !x.episodes
	plan.resets = r.oneInN(3) && x.Reset != nil && !x.Shared && !x.episodes
	r.wrong = []int{20, 60, 200, 1000}[r.IntN(4)]
	plan.focus = runFocus(r.IntN(int(numFocuses)))
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
func (r *randomSource) oneInN(n int) bool { return r.IntN(n) == 0 }

// shouldBeInvalid returns true if the next value should be invalid.
func (r *randomSource) shouldBeInvalid() bool { return r.oneInN(r.wrong) }

func (p *plannedCalls) nextID() model.ID {
	p.next++
	return p.next
}

// drawLogUniform returns a number up to most, with all bit lengths equally likely. Powers of two and their neighbours
// are frequent.
func (r *randomSource) drawLogUniform(most uint64) uint64 {
	if most == 0 {
		return 0
	}
	n := uint64(1) << r.IntN(bits.Len64(most))
	switch r.IntN(4) {
	case 0:
		n += r.Uint64N(3) - 1
	case 1, 2:
		n += r.Uint64N(n)
	}
	return min(n, most)
}

// pickOne returns a random element of a list; of an empty list the zero value.
func pickOne[T any](r interface{ IntN(n int) int }, list []T) (v T) {
	if len(list) == 0 {
		return v
	}
	return list[r.IntN(len(list))]
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
	pds := []model.ID{d.calls.nextID()}
	d.calls.add(allocPD{pds[0]})
	if d.oneInN(3) || d.plan.focus == onExtended {
		pds = append(pds, d.calls.nextID())
		d.calls.add(allocPD{pds[1]})
	}
	var cqs []model.ID
	for range 1 + d.IntN(3) {
		cqs = append(cqs, d.calls.nextID())
		c := createCQ{id: cqs[len(cqs)-1], entries: min(d.x.attr.MaxCQE, 128<<d.IntN(3)), lazy: d.x.Virtual &&
			!d.x.episodes && d.oneInN(d.plan.lazy)}
		if d.plan.small && d.oneInN(2) {
			c.entries, c.lazy = 1+d.IntN(12), true
		}
		d.calls.add(c)
	}
	for range 2 + d.IntN(3) {
		d.calls.add(d.memory.drawRegMR(pds[0], false))
	}
	for _, pd := range pds[1:] {
		d.calls.add(d.memory.drawRegMR(pd, false))
	}
	var srq model.ID
	if d.x.attr.MaxSRQ > 0 && (d.oneInN(4) || d.plan.focus == onQueues && d.oneInN(2)) {
		srq = d.calls.nextID()
		room, elements := 1+d.IntN(min(32, d.x.attr.MaxSRQWR)), 1+d.IntN(min(4, d.x.attr.MaxSRQSGE))
		d.calls.add(createSRQ{id: srq, pd: pickOne(d, pds), room: uint32(room), elements: uint32(elements)})
	}
	extended := d.plan.focus == onExtended && d.x.attr.MaxSRQ > 0 && len(filterSupported(d.x.Abilities,
		[]ib.QPType{ib.QPTypeXRCInit}, ib.QPType.String)) > 0
	if !extended || d.oneInN(4) {
		n := 1 + d.IntN(2)
		if d.plan.focus == onDatagrams {
			n++
		}
		for range n {
			d.planPair(pds, cqs, srq)
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
		c := d.memory.drawRegMR(pds[0], false)
		c.access |= (allAccess | ib.AccessMWBind) & d.x.access
		c.at = areaRange{area: 1 + d.IntN(2), off: 8 * d.Uint64N(1<<15), len: min(most, 1<<33+d.Uint64N(1<<34))}
		c.iova &= 1<<50 - 8
		d.calls.add(c)
	}
	for range 2 + d.IntN(2) {
		if d.oneInN(2) {
			d.calls.add(allocMW{d.calls.nextID(), pds[0], pickOne(d, []ib.MWType{ib.MWType1, ib.MWType2})})
		} else {
			d.calls.add(allocMR{d.calls.nextID(), pds[0], 1 + d.IntN(64)})
		}
	}
}

// planMcastGroups plans members of multicast groups, and address handles of the groups.
func (d *callDrawer) planMcastGroups(pd model.ID) {
	for _, c := range slices.Clone(d.calls.todo) {
		if c, ok := c.(createQP); ok && c.kind == ib.QPTypeUD && d.hasLargeGroups() {
			d.calls.add(attachMcast{c.id, 1 + d.IntN(numGroups), false})
		}
	}
	for g := range numGroups {
		d.calls.add(createAH{id: d.calls.nextID(), pd: pd, hops: 64, group: 1 + g})
	}
}

func (p *plannedCalls) add(c call) { p.todo = append(p.todo, c) }

// planPair plans two queue pairs, or one that is connected to itself, and their transitions to RTS. The domain of the
// second may differ from that of the first.
func (d *callDrawer) planPair(pds, cqs []model.ID, srq model.ID) {
	types := []ib.QPType{ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeRC, ib.QPTypeUD, ib.QPTypeUC, ib.QPTypeSRD}
	if d.x.Lossy || !d.x.Virtual { // there is no sign when an unreliable message has arrived or is lost
		types = types[:3]
	} else if d.x.episodes {
		types = types[:5]
	}
	if d.plan.focus == onDatagrams && len(types) > 3 && !d.oneInN(4) {
		types = []ib.QPType{ib.QPTypeUD, ib.QPTypeUD, ib.QPTypeSRD}
	}
	kind := pickOne(d, filterSupported(d.x.Abilities, types, ib.QPType.String))
	a, b := d.calls.nextID(), d.calls.nextID()
	if d.oneInN(6) {
		b = a
	}
	most := min(d.x.attr.MaxQPWR, 64)
	for _, id := range slices.Compact([]model.ID{a, b}) {
		c := createQP{
			id: id, pd: pds[0], send: pickOne(d, cqs), recv: pickOne(d, cqs), kind: kind, peer: a + b - id,
			sigAll: d.oneInN(4) || !d.x.Virtual, // else there is no sign when a request is done
			cap: ib.QPCap{
				MaxSendWR: uint32(1 + d.drawLogUniform(uint64(most-1))), MaxRecvWR: uint32(1 + d.drawLogUniform(uint64(most-1))),
				MaxSendSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxSendSGE))),
				MaxRecvSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxRecvSGE))),
				MaxInlineData: d.drawInlineCap(),
			},
		}
		if a == b {
			c.peer = a
		} else if id == b {
			c.pd = pickOne(d, pds)
		}
		if srq != 0 && kind != ib.QPTypeSRD && d.oneInN(2) {
			c.srq, c.cap.MaxRecvWR, c.cap.MaxRecvSGE = srq, 0, 0
		}
		d.calls.add(c)
	}
	d.qpCalls.planConnect(kind, kind, a, b)
}

// drawInlineCap draws the inline capacity of a queue pair. Large inline data occupy several units of a driver's ring.
func (d *callDrawer) drawInlineCap() uint32 {
	if d.oneInN(2) {
		return uint32(d.drawLogUniform(uint64(d.x.inline)))
	}
	return min(uint32(d.IntN(3)*32), d.x.inline)
}

// planXRC plans XRC domains with shared receive queues, and a connected initiator and target.
func (d *callDrawer) planXRC(pds, cqs []model.ID) {
	pd := pds[0]
	domains := []model.ID{d.calls.nextID()}
	d.calls.add(allocXRCD{domains[0]})
	if d.oneInN(3) {
		domains = append(domains, d.calls.nextID())
		d.calls.add(allocXRCD{domains[1]})
	}
	for i := range 1 + d.IntN(3) {
		room, elements := 1+d.IntN(min(16, d.x.attr.MaxSRQWR)), 1+d.IntN(min(4, d.x.attr.MaxSRQSGE))
		c := createSRQ{d.calls.nextID(), pd, uint32(room), uint32(elements), domains[i%len(domains)], pickOne(d, cqs)}
		if d.oneInN(2) {
			c.pd = pickOne(d, pds)
		}
		d.calls.add(c)
	}
	for i := range 1 + d.IntN(2) {
		a, b := d.calls.nextID(), d.calls.nextID()
		d.calls.add(createQP{
			id: a, pd: pd, send: pickOne(d, cqs), kind: ib.QPTypeXRCInit, peer: b, sigAll: d.oneInN(4) || !d.x.Virtual,
			cap: ib.QPCap{MaxSendWR: uint32(1 + d.IntN(min(d.x.attr.MaxQPWR, 32))),
				MaxSendSGE:    uint32(1 + d.IntN(min(4, d.x.attr.MaxSendSGE))),
				MaxInlineData: d.drawInlineCap()},
		})
		d.calls.add(createQP{id: b, pd: pickOne(d, pds), kind: ib.QPTypeXRCTgt, peer: a, xrcd: domains[i%len(domains)]})
		d.qpCalls.planConnect(ib.QPTypeXRCInit, ib.QPTypeXRCTgt, a, b)
	}
}

// runMTU returns the path MTU, which is the same for all queue pairs of a run.
func (x *modelRunner) runMTU() ib.MTU {
	return ib.MTU256 + ib.MTU(x.psn>>4%5)%(x.Port.ActiveMTU-ib.MTU256+1)
}

// nextCall returns the next call that can be made.
func (d *callDrawer) nextCall() call {
	if d.resets != d.x.resets {
		d.resets, d.calls.todo, d.settings = d.x.resets, nil, nil
		d.planCreation()
	}
	d.memory.recordKeys()
	for range 50 {
		var c call
		if len(d.calls.todo) > 0 {
			c, d.calls.todo = d.calls.todo[0], d.calls.todo[1:]
		} else {
			c = d.drawCall()
		}
		if m, ok := c.(modifyQP); ok && d.oneInN(3) {
			m.noise = true
			c = m
		}
		if c != nil && d.x.isPossible(c) {
			d.recordSetting(c)
			return c
		}
	}
	return nil
}

// recordSetting records a call that sets values. A driver must execute such a call even if it has set these values
// before: a limit may have been reached, and a notification delivered, since then.
func (d *callDrawer) recordSetting(c call) {
	switch c := c.(type) {
	case modifySRQ, moderateCQ, resizeCQ, modifyAH:
	case modifyQP:
		if q := d.x.m.Queues.QPs[c.qp]; q == nil || c.attr.State != q.State {
			return
		}
	default:
		return
	}
	if d.settings = append(d.settings, c); len(d.settings) > 6 {
		d.settings = d.settings[1:]
	}
}

// drawCall draws a call.
func (d *callDrawer) drawCall() call {
	if len(d.settings) > 0 && d.oneInN(25) {
		return pickOne(d, d.settings)
	}
	if list := d.destroyableIDs(); d.x.m.Device.Dead && len(list) > 0 && d.oneInN(3) {
		return destroyObject{pickOne(d, list)}
	}
	if d.plan.resets && d.oneInN(25) || d.x.m.Device.Dead && d.plan.resets && d.oneInN(6) {
		return resetDevice{}
	}
	if d.qpCalls.readyQPCount() == 0 && !d.oneInN(4) || !d.x.episodes && d.qpCalls.hasQPInErr() && d.oneInN(4) {
		return d.qpCalls.drawQPTransition()
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
	return d.requests.drawPostSend(d.qpCalls.pickQP())
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
		stepping:       {100, nil, d.qpCalls.drawQPTransition},
		modifying:      {25, states, d.qpCalls.drawModifyQP},
		changingMemory: {30, memory, d.memory.drawMemoryCall},
		making:         {30, nil, d.drawCreateObject},
		failing:        {6, states, d.drawSetError},
		arming:         {20, append(datagrams, onQueues), d.drawArmCQ},
		polling:        {15, queues, d.drawPollCQ},
		modifyingSRQs:  {8, queues, d.drawSRQCall},
		resizing:       {6, queues, d.drawResizeCQ},
		moderating:     {10, queues, d.drawModerateCQ},
		joining:        {40, datagrams, d.drawAttachMcast},
		storing:        {30, nil, d.memory.drawStoreMemory},
		ending:         {7, []runFocus{onStates, onMemory, onExtended}, d.drawDestroyObject},
		querying:       {15, nil, d.qpCalls.drawQueryQP},
		reusing:        {20, nil, d.drawUseStaleObject},
		receiving:      {300, nil, d.requests.drawPostRecv},
	}
}

func (d *callDrawer) destroyableIDs() []model.ID {
	return filterIDs(d.x.objs, func(o *deviceObject) bool { return !o.dead })
}
