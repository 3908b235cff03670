package vet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// indexCallers indexes the calls through which the order of locks continues.
func (o *lockOrder) indexCallers() {
	o.callers = map[*function][]caller{}
	for _, f := range o.p.order {
		for _, c := range f.calls {
			for _, g := range o.calleesOf(f, c) {
				o.callers[g] = append(o.callers[g], caller{f, c})
			}
		}
	}
}

// isOrdered reports whether the order of two locks counts. Two values of one type have no order.
func (o *lockOrder) isOrdered(a, b *lock) bool {
	return !a.hold && o.released[a] && !a.overlaps(b) && (a.class == nil || a.class != b.class)
}

// cyclicLocks returns the locks of all cycles, without regard to gates and threads. A program has few of them, so the
// exact search is short.
func (o *lockOrder) cyclicLocks() lockSet {
	acquired := map[*function]lockSet{}
	work := slices.Clone(o.p.order)
	for _, f := range o.p.order {
		acquired[f] = lockSet{}
		for _, s := range f.locks.direct {
			if s.l != nil {
				acquired[f][s.l] = true
			}
		}
	}
	for ; len(work) > 0; work = work[1:] {
		for _, k := range o.callers[work[0]] {
			n := len(acquired[k.in])
			maps.Copy(acquired[k.in], acquired[work[0]])
			if len(acquired[k.in]) > n {
				work = append(work, k.in)
			}
		}
	}
	next := map[*lock]lockSet{}
	add := func(held, to lockSet) {
		for l := range held {
			for k := range to {
				if o.isOrdered(l, k) {
					if next[l] == nil {
						next[l] = lockSet{}
					}
					next[l][k] = true
				}
			}
		}
	}
	for _, f := range o.p.order {
		for _, s := range f.locks.direct {
			if s.l != nil {
				add(f.locks.must[s.at], lockSet{s.l: true})
			}
		}
		for _, c := range f.calls {
			for _, g := range o.calleesOf(f, c) {
				add(f.locks.must[c.at], acquired[g])
			}
			for _, u := range c.funcsPassedWithLocks(&o.p.locks, mustHeld) {
				add(u.held, acquired[u.f])
			}
		}
	}
	cyclic := lockSet{}
	for l := range next {
		if reachesLock(next, l, l) {
			cyclic[l] = true
		}
	}
	return cyclic
}

// reachesLock reports whether a path of edges leads from a lock to another one.
func reachesLock(next map[*lock]lockSet, from, to *lock) bool {
	seen := lockSet{}
	for work := []*lock{from}; len(work) > 0; work = work[1:] {
		for l := range next[work[0]] {
			if l == to {
				return true
			}
			if !seen[l] {
				seen[l] = true
				work = append(work, l)
			}
		}
	}
	return false
}

// cyclesFrom returns the shortest feasible cycle through a lock and each of its successors.
func (o *lockOrder) cyclesFrom(l *lock) (cycles [][]*lockEdge) {
	next := lockSet{}
	for to := range o.edges[l] {
		next[to] = true
	}
	for _, to := range next.sortedLocks() {
		path := o.pathBetween(to, l)
		if path == nil {
			continue
		}
		if cycle := o.chooseEdges(append([]*lock{l}, path...), nil); cycle != nil {
			cycles = append(cycles, cycle)
		}
	}
	return cycles
}

// pathBetween returns the shortest path of locks between two locks, or nil.
func (o *lockOrder) pathBetween(from, to *lock) []*lock {
	before := map[*lock]*lock{from: nil}
	for work := []*lock{from}; len(work) > 0; work = work[1:] {
		l := work[0]
		if l == to {
			var path []*lock
			for ; l != nil; l = before[l] {
				path = append([]*lock{l}, path...)
			}
			return path
		}
		next := lockSet{}
		for k := range o.edges[l] {
			next[k] = true
		}
		for _, k := range next.sortedLocks() {
			if _, seen := before[k]; !seen {
				before[k] = l
				work = append(work, k)
			}
		}
	}
	return nil
}

// chooseEdges returns one edge for each step of a cycle, so that different threads can take the edges at one time. It
// returns nil if the edges exclude each other.
func (o *lockOrder) chooseEdges(path []*lock, chosen []*lockEdge) []*lockEdge {
	if len(path) == 1 {
		if o.isParallel(chosen) {
			return chosen
		}
		return nil
	}
	for _, e := range o.edges[path[0]][path[1]] {
		if !slices.ContainsFunc(chosen, func(c *lockEdge) bool { return intersect(c.gates, e.gates) }) {
			if found := o.chooseEdges(path[1:], append(slices.Clip(chosen), e)); found != nil {
				return found
			}
		}
	}
	return nil
}

func intersect(a, b lockSet) bool {
	for l := range a {
		if b.findOverlap(l) != nil {
			return true
		}
	}
	return false
}

// isParallel reports whether different threads can take the edges of a cycle, and one of them writes.
func (o *lockOrder) isParallel(cycle []*lockEdge) bool {
	if !slices.ContainsFunc(cycle, func(e *lockEdge) bool { return !e.reads }) {
		return false
	}
	roots := map[*function]bool{}
	for _, e := range cycle {
		maps.Copy(roots, o.rootsOf(e.in))
	}
	if len(roots) != 1 {
		return len(roots) > 1
	}
	for f := range roots {
		return o.runsInParallel(f)
	}
	return false
}

// rootsOf returns the functions with which threads enter the program that lead to a function.
func (o *lockOrder) rootsOf(f *function) map[*function]bool {
	if o.roots == nil {
		o.roots = map[*function]map[*function]bool{}
	}
	if r := o.roots[f]; r != nil {
		return r
	}
	roots := map[*function]bool{}
	seen := map[*function]bool{}
	var visit func(f *function)
	visit = func(f *function) {
		if seen[f] {
			return
		}
		seen[f] = true
		callers := o.p.traces.callers[f.Function]
		if len(callers) == 0 {
			roots[f] = true
		}
		for _, k := range callers {
			if k.c.spawns || k.c.agreed {
				roots[f] = true
				continue
			}
			visit(k.in)
		}
	}
	visit(f)
	o.roots[f] = roots
	return roots
}

// runsInParallel reports whether several threads may execute an entry point at one time.
func (o *lockOrder) runsInParallel(f *function) bool {
	if f.Name() == "main" || f.Name() == "init" || strings.HasPrefix(f.Name(), "init#") {
		return false
	}
	callers := o.p.traces.callers[f.Function]
	starts := slices.DeleteFunc(slices.Clone(callers), func(k caller) bool { return !k.c.spawns })
	if len(starts) == 1 && len(callers) == 1 { // one goroutine
		b := starts[0].c.at.Block()
		return reachesBlock(b, b, nil)
	}
	return !slices.ContainsFunc(o.p.storedFuncs(o.p.contract.fieldsOf(ibPath, armedFields), nil), func(r root) bool {
		return cmp.Or(r.f.base, r.f).Function == f.Function
	})
}
