package vet

import (
	"fmt"
	"go/token"
	"maps"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// locksAtEntry maps each function to the locks that all of its callers hold. A function without an entry has no known
// caller.
type locksAtEntry map[*function]lockSet

// callersHold reports whether all callers of a function hold a lock and the function itself does not release the lock.
func (e locksAtEntry) callersHold(f *function, l *lock) bool {
	held, ok := e[f]
	return ok && held.findOverlap(l) != nil && f.locks.entered.findOverlap(l) == nil
}

// entryLocks returns the result of findEntryLocks.
func (lt *lockTable) entryLocks() locksAtEntry {
	if lt.entry == nil {
		lt.entry = lt.findEntryLocks()
	}
	return lt.entry
}

// findEntryLocks finds the locks that are held at every call of a function, by its direct callers or by their callers.
func (lt *lockTable) findEntryLocks() locksAtEntry {
	callers := map[*function][]caller{}
	for _, f := range lt.graph.order {
		for _, c := range f.calls {
			for _, g := range c.ownCallees() {
				callers[g] = append(callers[g], caller{f, c})
			}
		}
	}
	e := locksAtEntry{}
	for _, f := range lt.graph.order {
		// The compiler generates a wrapper for each promoted method. A wrapper without callers is no entry point of
		// an unexported method.
		if len(callers[f]) == 0 && (f.Synthetic == "" || token.IsExported(f.Name())) {
			e[f] = lockSet{}
		}
	}
	for changed := true; changed; {
		changed = false
		for _, f := range lt.graph.order {
			var all lockSet // nil until a caller was examined
			for _, k := range callers[f] {
				at := lockSet{}
				if above, ok := e[k.in]; !ok {
					continue
				} else if !k.c.spawns {
					at = k.in.locks.must[k.c.at].clone()
					for l := range above {
						if k.in.locks.entered.findOverlap(l) == nil {
							at[l] = true
						}
					}
				}
				if all == nil {
					all = at
				}
				maps.DeleteFunc(all, func(l *lock, _ bool) bool { return at.findOverlap(l) == nil })
			}
			if old, ok := e[f]; all != nil && (!ok || !maps.Equal(old, all)) {
				e[f], changed = all, true
			}
		}
	}
	return e
}

func (p *Program) checkHeld() (reports []Report) {
	entry := p.locks.entryLocks()
	called := map[*function]bool{}
	for _, f := range p.order {
		for _, c := range f.calls {
			for _, g := range c.ownCallees() {
				called[g] = true
				for _, to := range g.wrappedMethods() {
					if !f.isWrapper() {
						reports = append(reports, p.checkHeldAt(entry, f, c, g, to)...)
					}
				}
			}
		}
	}
	for _, f := range p.order {
		if called[f] || !f.isWrapper() {
			continue
		}
		for _, m := range p.traces.closures[f.Function] { // an unknown function calls the method value
			for _, g := range f.wrappedMethods() {
				if len(g.held) > 0 && p.escapes.escapeAt(p.Fset, m.Pos(), Held) == nil {
					in := p.parentOf(m)
					reports = append(reports, Report{Held, m.Pos(), fmt.Sprintf("%s passes %s, for calls without %s held",
						functionName(in), functionName(g), g.held[0].name), []PathStep{{m.Pos(), functionName(in), "passes " +
						functionName(g)}}})
				}
			}
		}
	}
	return reports
}

// isWrapper reports whether the compiler has generated a function that calls a method: a method value, a method
// expression, or a promoted method.
func (f *function) isWrapper() bool {
	return strings.Contains(f.Synthetic, "wrapper for") || strings.HasPrefix(f.Synthetic, "thunk for")
}

// wrappedMethods returns the methods that a wrapper calls. For any other function it returns the function itself.
func (f *function) wrappedMethods() (list []*function) {
	if !f.isWrapper() {
		return []*function{f}
	}
	for _, c := range f.calls {
		if c.static == nil {
			continue // the wrapper of an interface's method
		}
		for _, g := range c.ownCallees() {
			list = append(list, g.wrappedMethods()...)
		}
	}
	return list
}

// checkHeldAt reports the locks that a function requires and that a call does not hold. The call calls the function
// directly or by a wrapper.
func (p *Program) checkHeldAt(entry locksAtEntry, f *function, c *call, by, g *function) (reports []Report) {
	if len(g.held) == 0 || p.escapes.escapeAt(p.Fset, c.pos, Held) != nil {
		return nil
	}
	for _, l := range g.held {
		other := by == g && f.isOtherInstance(c, g, l)
		if !c.spawns && (f.locks.must[c.at].findOverlap(l) != nil && !other || entry.callersHold(f, l)) {
			continue
		}
		how := "without " + l.name + " held"
		switch {
		case c.spawns:
			how = "on a goroutine, which holds no lock, and so " + how
		case f.locks.must[c.at].findOverlap(l) != nil:
			how = "with " + l.name + " of another value held"
		case f.locks.may[c.at].findOverlap(l) != nil:
			how = "perhaps " + how
		}
		reports = append(reports, Report{Held, c.pos, fmt.Sprintf("%s calls %s %s", functionName(f), functionName(g), how),
			[]PathStep{{c.pos, functionName(f), "calls " + functionName(g)}}})
	}
	return reports
}

// isOtherInstance reports whether the lock held at a call belongs to another value than the lock that the callee
// requires.
func (f *function) isOtherInstance(c *call, g *function, l *lock) bool {
	want, ok := g.heldBy[l]
	at, is := c.at.(ssa.CallInstruction)
	if !ok || !is || c.static == nil || want.param >= len(at.Common().Args) {
		return false
	}
	held, path := f.locks.which[c.at][f.locks.must[c.at].findOverlap(l)], pointerPath(at.Common().Args[want.param])
	return held != "" && path != "" && held != path+want.fields
}
