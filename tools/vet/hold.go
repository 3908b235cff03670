package vet

import (
	"fmt"
	"go/token"
	"strings"
)

// A thread that holds callbacks (HoldCallbacks, Hold.Add) must not sleep before it runs them (RunCallbacks, Hold.Run).
// The lock flow treats the hold as a lock that no function waits for. A Hold may also belong to the caller of a
// function, which may then sleep: only an Add and a Run in one function count.

// newHolds returns the holds, indexed by the functions that begin and end them.
func newHolds() map[string]*lock {
	holds := map[string]*lock{}
	for start, end := range holdStarts {
		l := &lock{name: shortHoldName(start) + " and " + shortHoldName(end), key: start, hold: true, local: start == holdAdd}
		holds[start], holds[end] = l, l
	}
	return holds
}

func shortHoldName(full string) string {
	return strings.NewReplacer("(*"+ibPath+".DeviceHandle).", "", "(*"+ibPath+".", "", ")", "").Replace(full)
}

// holdOperation returns the hold that a call begins or ends, or nil.
func (lt *lockTable) holdOperation(c *call) (l *lock, starts bool) {
	if c.static == nil || c.spawns {
		return nil, false
	}
	name := c.static.FullName()
	return lt.holds[name], holdStarts[name] != ""
}

// hold returns a hold of the set, or nil.
func (s lockSet) hold() *lock {
	for _, l := range s.sortedLocks() {
		if l.hold {
			return l
		}
	}
	return nil
}

// checkHolds reports operations that sleep while callbacks are held, and locks that are held while callbacks run.
func (p *Program) checkHolds() (reports []Report) {
	h := &holdChecker{p: p, said: map[token.Pos]bool{}}
	for _, f := range p.order {
		if !isInIB(f) {
			h.checkSleeps(f)
		}
	}
	return append(h.reports, h.checkLocks()...)
}

type holdChecker struct {
	p       *Program
	said    map[token.Pos]bool
	reports []Report
}

// checkSleeps reports the operations of a function that sleep while callbacks are held.
func (h *holdChecker) checkSleeps(f *function) {
	for _, o := range f.ops {
		if o.kind == opSleep {
			h.addSleep(f, f.locks.must[o.at], o.pos, o.what, nil)
		}
	}
	for _, s := range f.locks.direct {
		if s.l != nil && s.l.findHeldSleep() != nil {
			across := s.l.findHeldSleep()
			h.addSleep(f, f.locks.must[s.at], s.at.Pos(), fmt.Sprintf("locks %s, which is held at %s across a call that "+
				"sleeps (%s)", s.l.name, h.p.FormatPos(across.pos), across.what), nil)
		}
	}
	for _, c := range f.calls {
		if c.spawns || c.agreed {
			continue
		}
		for _, g := range c.callees {
			if h.p.sleep.of[g] != nil {
				h.addSleep(f, c.locksHeldIn(&h.p.locks, g, f.locks.must[c.at]), c.pos, "calls "+functionName(g), g)
			}
		}
		for _, u := range c.funcsPassedWithLocks(&h.p.locks, mustHeld) {
			if h.p.sleep.of[u.f] != nil {
				h.addSleep(u.by, u.f.locksHeldThroughout(u.held), c.pos, "calls "+functionName(u.f), u.f)
			}
		}
	}
}

func (h *holdChecker) addSleep(f *function, held lockSet, pos token.Pos, what string, next *function) {
	l := held.hold()
	if l == nil || h.said[pos] || h.p.escapes.escapeAt(h.p.Fset, pos, NoSleep) != nil {
		return
	}
	h.said[pos] = true
	path := append([]PathStep{{pos, functionName(f), what}}, h.p.sleep.callPath(next)...)
	h.reports = append(h.reports, Report{NoSleep, pos,
		fmt.Sprintf("%s may sleep between %s: it %s", functionName(f), l.name, what), path})
}

// checkLocks reports locks that are held while callbacks run.
func (h *holdChecker) checkLocks() (reports []Report) {
	runs := h.p.newEffect(Callback)
	isEnd := func(c *call) bool { return !c.spawns && c.static != nil && c.static.FullName() == runCallbacks }
	for _, f := range h.p.order {
		for _, c := range f.calls {
			if isEnd(c) {
				runs.addCause(f, &effectCause{at: c.at, pos: c.pos, what: "calls " + shortName(c.static)})
			}
		}
	}
	h.p.propagateEffect(runs, h.p.callers(NoSleep)) // not through the interfaces of drivers
	report := func(f *function, c *call, held lockSet, what string, next *function) {
		for _, l := range held.sortedLocks() {
			if l.hold || h.said[c.pos] || h.p.escapes.escapeAt(h.p.Fset, c.pos, Callback) != nil {
				continue
			}
			h.said[c.pos] = true
			path := append([]PathStep{{c.pos, functionName(f), what}}, runs.callPath(next)...)
			reports = append(reports, Report{Callback, c.pos, fmt.Sprintf("%s %s, which runs callbacks, with %s held",
				functionName(f), what, l.name), path})
		}
	}
	for _, f := range h.p.order {
		for _, c := range f.calls {
			if isInIB(f) || c.spawns || c.agreed {
				continue
			}
			if isEnd(c) {
				report(f, c, f.locks.must[c.at], "calls "+shortName(c.static), nil)
				continue
			}
			for _, g := range c.callees {
				if runs.of[g] != nil {
					report(f, c, c.locksHeldIn(&h.p.locks, g, f.locks.must[c.at]), "calls "+functionName(g), g)
				}
			}
			for _, u := range c.funcsPassedWithLocks(&h.p.locks, mustHeld) {
				if runs.of[u.f] != nil {
					report(u.by, c, u.f.locksHeldThroughout(u.held), "calls "+functionName(u.f), u.f)
				}
			}
		}
	}
	return reports
}
