package vet

import (
	"fmt"
	"go/token"
	"strings"
)

func (p *Program) checkCallbacks() (reports []Report) {
	callbacks := map[*function]root{}
	for _, r := range p.storedHandlers() {
		callbacks[r.f] = r
	}
	fields := p.contract.fieldsOf(ibPath, handlerFields)
	// calls returns the callbacks that a call makes.
	calls := func(c *call) string {
		if c.spawns || p.escapes.escapeAt(p.Fset, c.pos, Callback) != nil {
			return ""
		}
		for _, g := range c.callees {
			if r, ok := callbacks[g]; ok {
				return functionName(r.f)
			}
		}
		if c.field != nil && fields[c.field] != "" {
			return "a consumer's callback"
		}
		return ""
	}
	by := p.newEffect(Callback)
	for _, f := range p.order {
		for _, c := range f.calls {
			if what := calls(c); what != "" {
				by.addCause(f, &effectCause{at: c.at, pos: c.pos, what: "calls " + what})
			}
		}
	}
	p.propagateEffect(by, p.callers(Callback))
	said := map[token.Pos]bool{}
	p.visitReachable(Callback, p.driverMethods(), func(c *call) bool { return calls(c) != "" },
		func(v *rootVisit) {
			for _, c := range v.f.calls {
				if said[c.pos] {
					continue
				}
				what := calls(c)
				path := []PathStep{{c.pos, functionName(v.f), "calls " + what}}
				if entersIB(v.f, c) && !c.spawns && p.escapes.escapeAt(p.Fset, c.pos, Callback) == nil {
					for _, g := range c.callees {
						if by.of[g] != nil {
							what = "a consumer's callback, by " + c.calleeName() + ","
							path = append([]PathStep{{c.pos, functionName(v.f), "calls " + functionName(g)}}, by.callPath(g)...)
						}
					}
				}
				if what == "" {
					continue
				}
				said[c.pos] = true
				reports = append(reports, Report{Callback, c.pos, v.root.why + " calls " + what + " from its callchain",
					append(v.pathTo(path[0]), path[1:]...)})
			}
		})
	return reports
}

func (p *Program) checkHotplug(callers map[*function][]caller) (reports []Report) {
	// The following functions register clients or devices, by themselves or through their callees.
	plugs := p.newEffect(Hotplug)
	for _, f := range p.order {
		for _, c := range f.calls {
			if c.static != nil && hotplugFuncs[c.static.FullName()] && !c.spawns && p.escapes.escapeAt(p.Fset, c.pos,
				Hotplug) == nil {
				plugs.addCause(f, &effectCause{at: c.at, pos: c.pos, what: "calls " + shortName(c.static)})
			}
		}
	}
	p.propagateEffect(plugs, callers)
	said := map[token.Pos]bool{}
	p.visitReachable(Hotplug, p.noSleepRoots(), nil, func(v *rootVisit) {
		for _, c := range v.f.calls {
			if c.static != nil && hotplugFuncs[c.static.FullName()] && !c.spawns && !said[c.pos] &&
				p.escapes.escapeAt(p.Fset, c.pos, Hotplug) == nil {
				said[c.pos] = true
				reports = append(reports, Report{Hotplug, c.pos, v.root.why + " calls " + shortName(c.static) +
					", which is not for where one may not sleep",
					v.pathTo(PathStep{c.pos, functionName(v.f), "calls " + shortName(c.static)})})
			}
		}
	})
	// The following locks are acquired by callbacks, and by the methods that a consumer calls.
	taken := map[*lock]*rootVisit{}
	locks := lockSet{}
	where := map[*lock]token.Pos{}
	roots := append(p.storedHandlers(), p.storedFuncs(p.contract.fieldsOf(ibPath, clientFields), nil)...)
	for _, k := range p.completions {
		roots = append(roots, root{k.f, functionName(k.f) + ", which a completion calls,"})
	}
	roots = append(roots, p.driverMethods()...) // Remove calls them by the verbs that destroy
	p.visitReachable(Hotplug, roots, nil, func(v *rootVisit) {
		for _, s := range v.f.locks.direct {
			if l := s.l; l != nil && taken[l] == nil {
				taken[l], where[l], locks[l] = v, s.at.Pos(), true
			}
		}
	})
	// report reports the locks that are held while a function calls next, or a function of hotplugFuncs.
	report := func(f *function, c *call, held lockSet, what string, next *function) {
		for _, l := range held.sortedLocks() {
			k := locks.findOverlap(l)
			if k == nil || said[c.pos] {
				continue
			}
			v := taken[k]
			said[c.pos] = true
			path := []PathStep{{c.pos, functionName(f), what}}
			if next != nil {
				path = append(path, plugs.callPath(next)...)
			}
			path = append(path, v.pathTo(PathStep{where[k], functionName(v.f), "locks " + k.name})...)
			reports = append(reports, Report{Hotplug, c.pos,
				fmt.Sprintf("%s %s with %s held, for which %s may wait", functionName(f), what, l.name,
					strings.TrimSuffix(v.root.why, ",")), path})
		}
	}
	for _, f := range p.order {
		if pkg := pkgOf(f.Function); pkg != nil && pkg.Path() == ibPath {
			continue // the locks that Register holds are its own
		}
		for _, c := range f.calls {
			if c.spawns || said[c.pos] || p.escapes.escapeAt(p.Fset, c.pos, Hotplug) != nil {
				continue
			}
			held := f.locks.may[c.at]
			if c.static != nil && hotplugFuncs[c.static.FullName()] {
				report(f, c, held, "calls "+shortName(c.static), nil)
				continue
			}
			for _, g := range c.callees {
				if plugs.of[g] != nil {
					report(f, c, c.locksHeldIn(&p.locks, g, held), "calls "+functionName(g), g)
				}
			}
			for _, u := range c.funcsPassedWithLocks(&p.locks, mayHeld) {
				if plugs.of[u.f] != nil {
					report(u.by, c, u.f.locksHeldThroughout(u.held), "calls "+functionName(u.f), u.f)
				}
			}
		}
	}
	return reports
}
