package vet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// Two threads that lock two locks in different orders can wait for each other. The locks of a cycle are distinct: the
// analysis does not distinguish two values of one type.

// maxGates limits the number of sets of gates that the search distinguishes for one acquisition.
const maxGates = 4

// acquisition is a way in which a function acquires a lock.
type acquisition struct {
	l     *lock
	reads bool    // whether the lock is only read-locked
	gates lockSet // locks that the function and its callees hold meanwhile
	c     *call   // the call of next, or nil
	at    PathStep
	next  *acquisition
}

// lockEdge is an acquisition of a lock with another lock held.
type lockEdge struct {
	from, to *lock
	in       *function
	how      *acquisition
	reads    bool    // whether both locks are only read-locked
	gates    lockSet // the other locks that are held
}

// lockOrder finds cycles in the order of the locks.
type lockOrder struct {
	p        *Program
	acquires map[*function][]*acquisition
	edges    map[*lock]map[*lock][]*lockEdge
	entry    locksAtEntry
	callers  map[*function][]caller
	only     lockSet                          // the locks of cycles
	released lockSet                          // locks that the program also releases
	made     map[*ssa.Function][]string       // see makesOwner
	roots    map[*function]map[*function]bool // the functions from which threads reach a function
}

// checkOrder reports locks that threads lock in different orders.
func (p *Program) checkOrder() (reports []Report) {
	o := &lockOrder{p: p, acquires: map[*function][]*acquisition{}, edges: map[*lock]map[*lock][]*lockEdge{},
		entry: p.locks.entryLocks(), made: map[*ssa.Function][]string{}}
	o.released = p.locks.releasedLocks()
	o.indexCallers()
	if o.only = o.cyclicLocks(); len(o.only) == 0 {
		return nil
	}
	o.findAcquisitions()
	o.findEdges()
	said := map[string]bool{}
	locks := lockSet{}
	for l := range o.edges {
		locks[l] = true
	}
	for _, l := range locks.sortedLocks() {
		for _, cycle := range o.cyclesFrom(l) {
			key := cycleKey(cycle)
			if said[key] {
				continue
			}
			said[key] = true
			reports = append(reports, o.report(cycle))
		}
	}
	return reports
}

// cycleKey identifies the locks of a cycle.
func cycleKey(cycle []*lockEdge) string {
	var names []string
	for _, e := range cycle {
		names = append(names, e.from.key)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (o *lockOrder) report(cycle []*lockEdge) Report {
	first := cycle[0]
	var path []PathStep
	others := []string{}
	for _, e := range cycle {
		for a := e.how; a != nil; a = a.next {
			path = append(path, a.at)
		}
		if e != first {
			others = append(others, fmt.Sprintf("%s locks %s with %s held", functionName(e.in), e.to.name, e.from.name))
		}
	}
	return Report{Order, first.how.at.Pos, fmt.Sprintf("%s locks %s with %s held, but %s", functionName(first.in),
		first.to.name, first.from.name, strings.Join(others, ", and ")), path}
}

// isReadLock reports whether a lock site is an RLock.
func isReadLock(at ssa.CallInstruction) bool {
	if fn := at.Common().StaticCallee(); fn != nil {
		return fn.Name() == "RLock"
	}
	return at.Common().IsInvoke() && at.Common().Method.Name() == "RLock"
}

// onlyReads reports whether a function itself acquires a lock, and only by RLock.
func (f *function) onlyReads(l *lock) bool {
	reads := false
	for _, s := range f.locks.direct {
		if s.l == l {
			if reads = isReadLock(s.at); !reads {
				return false
			}
		}
	}
	return reads
}

// gates returns those held locks that exclude other threads, except some.
func (f *function) gates(held lockSet, except ...*lock) lockSet {
	gates := lockSet{}
	for l := range held {
		if !l.hold && !slices.Contains(except, l) && !f.onlyReads(l) {
			gates[l] = true
		}
	}
	return gates
}

// isNewObject reports whether a lock belongs to a struct that the function has just made.
func isNewObject(s lockSite) bool {
	if len(s.at.Common().Args) == 0 {
		return false
	}
	a, ok := storageRoot(s.at.Common().Args[0]).(*ssa.Alloc)
	return ok && a.Comment == "complit"
}

// makesOwner reports whether a function, or the enclosing function, makes a struct of the type that has a lock. The
// lock is then assumed to be that of the new struct, which no other thread has.
func (o *lockOrder) makesOwner(fn *ssa.Function, l *lock) bool {
	if fn == nil {
		return false
	}
	made, ok := o.made[fn]
	if !ok {
		made = madeTypes(fn)
		o.made[fn] = made
	}
	return slices.ContainsFunc(made, func(name string) bool { return strings.Contains(l.key, name+".") }) ||
		o.makesOwner(fn.Parent(), l)
}

// madeTypes returns the names of the types of the composite literals in a function.
func madeTypes(fn *ssa.Function) (names []string) {
	for _, b := range fn.Blocks {
		for _, at := range b.Instrs {
			if a, ok := at.(*ssa.Alloc); ok && a.Comment == "complit" && namedOf(a.Type()) != nil {
				names = append(names, namedOf(a.Type()).Origin().String())
			}
		}
	}
	return names
}

// releasedLocks returns the locks that the program releases after it has locked them for writing. A lock that remains
// locked marks its object as dead. The result also contains locks that are only read-locked.
func (lt *lockTable) releasedLocks() lockSet {
	released, locked := lockSet{}, lockSet{}
	for _, f := range lt.graph.order {
		for _, c := range f.calls {
			kind, v := c.lockOperation()
			if kind == noLockCall {
				continue
			}
			l := lt.lockAt(f, v)
			at := c.at.(ssa.CallInstruction).Common()
			name := ""
			if at.IsInvoke() {
				name = at.Method.Name()
			} else {
				name = at.StaticCallee().Name()
			}
			switch {
			case l == nil:
			case name == "Lock":
				locked[l] = true
			case name == "Unlock":
				released[l] = true
			}
		}
	}
	for _, l := range lt.locks {
		if !locked[l] {
			released[l] = true
		}
	}
	return released
}

// sitesOf returns the acquisitions by the lock operations of a function. A TryLock does not wait.
func (o *lockOrder) sitesOf(f *function) (list []*acquisition) {
	for _, s := range f.locks.direct {
		if o.only[s.l] && !isNewObject(s) {
			list = append(list, &acquisition{l: s.l, reads: isReadLock(s.at), gates: f.gates(f.locks.must[s.at], s.l),
				at: PathStep{s.at.Pos(), functionName(f), "locks " + s.l.name}})
		}
	}
	return list
}

// findAcquisitions finds the locks that each function acquires, by itself or by its callees.
func (o *lockOrder) findAcquisitions() {
	for _, f := range o.p.order {
		for _, a := range o.sitesOf(f) {
			o.add(f, a)
		}
	}
	work := slices.Clone(o.p.order)
	queued := map[*function]bool{}
	for len(work) > 0 {
		g := work[0]
		work = work[1:]
		queued[g] = false
		for _, k := range o.callers[g] {
			if o.inherit(k, g) && !queued[k.in] {
				queued[k.in] = true
				work = append(work, k.in)
			}
		}
	}
}

// calleesOf returns the callees of a call, but not those on another goroutine, or on another side of the contract.
func (o *lockOrder) calleesOf(f *function, c *call) []*function {
	if c.spawns || c.agreed || o.p.escapes.escapeAt(o.p.Fset, c.pos, Order) != nil {
		return nil
	}
	if !isMidlayer(f) {
		return c.callees
	}
	return slices.DeleteFunc(slices.Clone(c.callees), func(g *function) bool { return !isMidlayer(g) })
}

// inherit adds the acquisitions of a callee to the caller.
func (o *lockOrder) inherit(k caller, g *function) (changed bool) {
	if len(o.acquires[g]) == 0 {
		return false
	}
	held := k.c.locksHeldIn(&o.p.locks, g, k.in.locks.must[k.c.at])
	for _, a := range o.acquires[g] {
		if o.makesOwner(k.in.Function, a.l) {
			continue
		}
		gates := k.in.gates(held, a.l)
		maps.Copy(gates, a.gates)
		changed = o.add(k.in, &acquisition{l: a.l, reads: a.reads, gates: gates, c: k.c, next: a,
			at: PathStep{k.c.pos, functionName(k.in), "calls " + functionName(g)}}) || changed
	}
	return changed
}

// add adds an acquisition to those of a function, unless the function has one with the same gates or fewer.
func (o *lockOrder) add(f *function, a *acquisition) bool {
	n := 0
	for _, b := range o.acquires[f] {
		if b.l != a.l {
			continue
		}
		if n++; n >= maxGates || contains(a.gates, b.gates) && (a.reads || !b.reads) {
			return false
		}
	}
	o.acquires[f] = append(o.acquires[f], a)
	return true
}

// contains reports whether a set contains all locks of another set.
func contains(s, part lockSet) bool {
	for l := range part {
		if !s[l] {
			return false
		}
	}
	return true
}

// findEdges finds the pairs of locks of which one is acquired with the other held.
func (o *lockOrder) findEdges() {
	for _, f := range o.p.order {
		for _, s := range f.locks.direct {
			if !o.only[s.l] || isNewObject(s) || o.p.escapes.escapeAt(o.p.Fset, s.at.Pos(), Order) != nil {
				continue
			}
			o.addEdges(f, f.locks.must[s.at], &acquisition{l: s.l, reads: isReadLock(s.at), gates: lockSet{},
				at: PathStep{s.at.Pos(), functionName(f), "locks " + s.l.name}})
		}
		for _, c := range f.calls {
			o.addCallEdges(f, c)
		}
	}
}

// addCallEdges adds the edges from the locks that are held at a call.
func (o *lockOrder) addCallEdges(f *function, c *call) {
	add := func(by *function, held lockSet, g *function) {
		for _, a := range o.acquires[g] {
			if o.makesOwner(f.Function, a.l) {
				continue
			}
			o.addEdges(by, held, &acquisition{l: a.l, reads: a.reads, gates: a.gates, next: a,
				at: PathStep{c.pos, functionName(f), "calls " + functionName(g)}})
		}
	}
	held := f.locks.must[c.at]
	callees := o.calleesOf(f, c)
	for _, g := range callees {
		if len(held) > 0 {
			add(f, c.locksHeldIn(&o.p.locks, g, held), g)
		}
	}
	if len(callees) == 0 {
		return
	}
	for _, u := range c.funcsPassedWithLocks(&o.p.locks, mustHeld) {
		add(u.by, u.f.locksHeldThroughout(u.held), u.f)
	}
}

func (o *lockOrder) addEdges(f *function, held lockSet, a *acquisition) {
	for l := range held {
		if !o.only[l] || !o.isOrdered(l, a.l) {
			continue
		}
		gates := f.gates(held, l, a.l)
		maps.Copy(gates, a.gates)
		maps.Copy(gates, o.entry[f])
		delete(gates, l)
		e := &lockEdge{from: l, to: a.l, in: f, how: a, reads: a.reads && f.onlyReads(l), gates: gates}
		if o.edges[l] == nil {
			o.edges[l] = map[*lock][]*lockEdge{}
		}
		o.edges[l][a.l] = append(o.edges[l][a.l], e)
	}
}
