package check

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"verbena/umem"
)

// The periods in which the mappings of outstanding requests are examined: the first one after a post, and the longest.
const (
	minMappingPeriod = 4 * time.Millisecond
	maxMappingPeriod = 256 * time.Millisecond
)

// maxMappingLook limits the requests that one examination considers.
const maxMappingLook = 4096

// mappingWatch examines the mappings of a program while requests are outstanding.
type mappingWatch struct {
	mu     sync.Mutex // a leaf
	timer  *time.Timer
	period time.Duration // 0: no examination is due
	closed bool
}

// start begins the examination after a post, unless one is due. A busy program is examined once in maxMappingPeriod.
func (m *mappingWatch) start(p *Program) {
	if !p.cfg.Rules.Has(RuleUnmapped) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.period != 0 {
		return
	}
	m.period = minMappingPeriod
	if m.timer == nil {
		m.timer = time.AfterFunc(m.period, func() { m.examine(p) })
	} else {
		m.timer.Reset(m.period)
	}
}

func (m *mappingWatch) examine(p *Program) {
	outstanding := !p.isEnding() && p.checkMappings(p.k.trackers())
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !outstanding {
		m.period = 0
		return
	}
	m.period = min(2*m.period, maxMappingPeriod)
	m.timer.Reset(m.period)
}

func (m *mappingWatch) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
}

// mappedElement is an element of an outstanding request.
type mappedElement struct {
	w     *workTracker
	r     *trackedRequest
	of    *memoryRegion
	index int    // in the list of the request
	addr  uint64 // in the region's addresses
	n     uint64
	write bool
}

// checkMappings reports outstanding requests of queues with unmapped memory. It returns false if no request is
// outstanding. It waits for the memory of the program.
func (p *Program) checkMappings(of []*workTracker) (outstanding bool) {
	var list []mappedElement
	for _, w := range of {
		if w.isInErr() {
			continue
		}
		w.mu.Lock()
		for _, r := range slices.Concat(w.send, w.recv) {
			if r.end != 0 && !r.visible && !r.unmapped && len(list) < maxMappingLook {
				list = append(list, w.mappedElements(r)...)
			}
		}
		w.mu.Unlock()
	}
	outstanding = len(list) > 0
	slices.SortFunc(list, func(a, b mappedElement) int {
		return cmp.Or(cmp.Compare(a.of.key.lkey, b.of.key.lkey), cmp.Compare(a.addr, b.addr))
	})
	for len(list) > 0 { // adjacent elements are checked together
		first, end, n := list[0], list[0].addr+list[0].n, 1
		for ; n < len(list) && list[n].of == first.of && list[n].addr <= end; n++ {
			end = max(end, list[n].addr+list[n].n)
		}
		if first.of.isUnmapped(first.addr, end-first.addr, false) {
			for _, e := range list[:n] {
				if e.of.isUnmapped(e.addr, e.n, false) {
					e.w.checkMapped(e.r)
				}
			}
		}
		list = list[n:]
	}
	return outstanding
}

// trackers returns the queues with tracked work requests.
func (k *checker) trackers() (all []*workTracker) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for o := range k.live {
		if o.work != nil {
			all = append(all, o.work)
		}
	}
	return all
}

// CheckMapped reports outstanding requests of the queue with unmapped memory, when the program ends the queue. It waits
// for the memory of the program.
func (q *userQueue) CheckMapped() {
	if q.p.cfg.Rules.Has(RuleUnmapped) && !q.p.isEnding() {
		q.p.checkMappings([]*workTracker{q.o.work})
	}
}

// mappedElements returns the elements of a request that lie in regions with pinned memory.
func (w *workTracker) mappedElements(r *trackedRequest) (list []mappedElement) {
	for i, s := range r.list {
		if of := w.o.findRegion(s); of != nil && s.Length > 0 && !of.memory.OnDemand() {
			list = append(list, mappedElement{w, r, of, i, s.Addr, uint64(s.Length), len(r.targets) > 0})
		}
	}
	return list
}

// isUnmapped reports whether the program has unmapped a range of a region, or has taken the right to read or write it.
// The end of the address space does not count.
func (m *memoryRegion) isUnmapped(addr, n uint64, write bool) bool {
	return m.isFault(addr, n, write) && !m.hasEnded()
}

// isFault reports whether a program cannot access a range of a region that exists.
func (m *memoryRegion) isFault(addr, n uint64, write bool) bool {
	m.reading.RLock()
	defer m.reading.RUnlock()
	return !m.isGone() && errors.Is(m.memory.CheckRange(addr, n, write), umem.ErrFault)
}

// hasEnded reports whether the address space has ended.
//
//verbena:allow nosleep only threads of the program itself wait for its memory
func (m *memoryRegion) hasEnded() bool { return m.memory.SpaceGone() }

// checkMapped reports a request with unmapped memory, once. It waits for the memory of the program.
func (w *workTracker) checkMapped(r *trackedRequest) {
	w.mu.Lock()
	seen := r.unmapped
	list := w.mappedElements(r)
	w.mu.Unlock()
	i := slices.IndexFunc(list, func(e mappedElement) bool { return e.of.isUnmapped(e.addr, e.n, e.write) })
	if seen || i < 0 {
		return
	}
	w.mu.Lock()
	r.unmapped = true
	w.mu.Unlock()
	e := &list[i]
	w.o.k.report(Violation{
		Rule: RuleUnmapped,
		What: fmt.Sprintf("the memory of an outstanding work request was unmapped: sg_list[%d], %d bytes at %#x, in the region "+
			"with the local key %#x", e.index, e.n, e.addr, e.of.key.lkey),
		Requests: describe(r), atEnd: true,
	}, w.o.dev, nil)
}
