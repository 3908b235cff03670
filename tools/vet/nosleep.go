package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ssa"

	"verbena/internal/layers"
)

func (p *Program) checkNoSleep(sleep *effect) (reports []Report) {
	said := map[*lock]bool{}
	at := map[token.Pos]bool{}
	// A sleeping function of a helper package is reported at the call, because the caller can correct only the call.
	reported := func(c *call) bool { return at[c.pos] }
	p.visitReachable(NoSleep, p.noSleepRoots(), reported, func(v *rootVisit) {
		for i := range v.f.ops {
			o := &v.f.ops[i]
			if o.kind != opSleep || p.escapes.escapeAt(p.Fset, o.pos, NoSleep) != nil || at[o.pos] {
				continue
			}
			at[o.pos] = true
			reports = append(reports, Report{NoSleep, o.pos, v.root.why + " may sleep: it " + o.what,
				v.pathTo(PathStep{o.pos, functionName(v.f), o.what})})
		}
		for _, c := range v.f.calls {
			// reported by checkHotplug
			if c.spawns || at[c.pos] || c.static != nil && hotplugFuncs[c.static.FullName()] {
				continue
			}
			ib := entersIB(v.f, c)
			for _, g := range c.callees {
				called := c.calleeName
				if entersHelperPackage(v.f, c, g) {
					called = func() string { return functionName(g) }
				} else if !ib || c.static == nil && !isInIB(g) {
					continue
				}
				if sleep.of[g] == nil || p.escapes.escapeAt(p.Fset, c.pos, NoSleep) != nil {
					continue
				}
				at[c.pos] = true
				path := append(v.pathTo(PathStep{c.pos, functionName(v.f), "calls " + functionName(g)}), sleep.callPath(g)...)
				reports = append(reports,
					Report{NoSleep, c.pos, v.root.why + " may sleep: it calls " + called(), path})
			}
		}
		for _, s := range v.f.locks.direct {
			l := s.l
			// The rule reports the sleeping call of a sync.Once.Do at the call.
			if l == nil || l.findHeldSleep() == nil || l.findHeldSleep().plug || said[l] ||
				l.findHeldSleep().pos == s.at.Pos() ||
				p.escapes.escapeAt(p.Fset, s.at.Pos(), NoSleep) != nil {
				continue
			}
			said[l] = true
			h := l.findHeldSleep()
			end := PathStep{s.at.Pos(), functionName(v.f), "locks " + l.name}
			path := append(v.pathTo(end), PathStep{h.pos, functionName(h.in), "meanwhile, with " + l.name + " held, " + h.what})
			reports = append(reports, Report{NoSleep, s.at.Pos(),
				fmt.Sprintf("%s may sleep: it locks %s, which is held at %s across a call that sleeps (%s)",
					v.root.why, l.name, p.FormatPos(h.pos), h.what), path})
		}
	})
	return reports
}

func (p *Program) checkCopies(callers map[*function][]caller) (reports []Report) {
	copies := p.newEffect(Copy)
	for _, f := range p.order {
		for i := range f.ops {
			if o := &f.ops[i]; o.kind == opCopy {
				copies.addCause(f, &effectCause{at: o.at, pos: o.pos, what: o.what})
			}
		}
	}
	p.propagateEffect(copies, callers)
	p.copies = copies
	said := map[*lock]bool{}
	report := func(f *function, held lockSet, pos token.Pos, what string, next *function) {
		if p.isOutsideConsumer(f) {
			return
		}
		for _, l := range held.sortedLocks() {
			if l.program != nil {
				l.program.Used = true
				continue
			}
			if said[l] || l.hold { // another thread runs the callbacks of a blocked copy
				continue
			}
			said[l] = true
			path := []PathStep{{pos, functionName(f), what}}
			if next != nil {
				path = append(path, copies.callPath(next)...)
			}
			reports = append(reports,
				Report{Copy, pos, fmt.Sprintf("%s copies to or from the memory of a process, which can stall the copy, with %s held",
					functionName(f), l.name), path})
		}
	}
	for _, f := range p.order {
		for i := range f.ops {
			if o := &f.ops[i]; o.kind == opCopy {
				report(f, f.locks.may[o.at], o.pos, o.what, nil)
			}
		}
		for _, c := range f.calls {
			if c.spawns || c.atomic || p.contract.copiesOwnMemory(f, c.static) {
				continue
			}
			for _, g := range c.callees {
				if copies.of[g] != nil && !p.contract.copiesOwnMemory(f, methodOfValue(g)) {
					report(f, c.locksHeldIn(&p.locks, g, f.locks.may[c.at]), c.pos, "calls "+functionName(g), g)
				}
			}
		}
	}
	return reports
}

// isOutsideConsumer reports whether a function belongs to a consumer that has no layer in this repository and only the
// memory of its own process. The consumer may hold its locks across functions that may sleep, also by function values.
func (p *Program) isOutsideConsumer(f *function) bool {
	pkg := pkgOf(f.Function)
	if pkg == nil || layers.HasLayer(pkg.Path()) {
		return false
	}
	is, known := p.outside[pkg]
	if !known {
		is = !p.isDriverPackage(pkg) && !p.contract.isForeign(pkg)
		p.outside[pkg] = is
	}
	return is
}

// copiesOwnMemory reports whether a call is a verb that may sleep, of a package that has only the memory of its own
// process. Such a call does not wait for the memory of another process.
func (ct *contract) copiesOwnMemory(f *function, callee *types.Func) bool {
	pkg := pkgOf(f.Function)
	if callee == nil || pkg == nil || pkg.Path() == ibPath || !sleepingVerbs[callee.FullName()] {
		return false
	}
	return !ct.isForeign(pkg)
}

// methodOfValue returns the method of a method value, or nil.
func methodOfValue(g *function) *types.Func {
	m := boundMethod(g.Function)
	if m == g.Function {
		return nil
	}
	f, _ := m.Object().(*types.Func)
	return f
}

// isForeign reports whether a package has memory of other processes.
func (ct *contract) isForeign(pkg *types.Package) bool {
	if ct.foreigners == nil {
		ct.foreigners = ct.foreignMemory()
	}
	return ct.foreigners[pkg]
}

// foreignMemory returns the packages that have memory of other processes: values of copyInterface, except a converted
// ownMemory, and values of its other implementations.
func (ct *contract) foreignMemory() map[*types.Package]bool {
	foreign := map[*types.Package]bool{}
	i := strings.LastIndex(copyInterface, ".")
	k := ct.graph.prog.ImportedPackage(copyInterface[:i])
	if k == nil {
		return foreign
	}
	it, ok := k.Pkg.Scope().Lookup(copyInterface[i+1:]).Type().Underlying().(*types.Interface)
	if !ok {
		return foreign
	}
	for _, f := range ct.graph.order {
		pkg := pkgOf(f.Function)
		look := func(v ssa.Value) {
			if m, ok := v.(*ssa.MakeInterface); ok && isNamed(m.X.Type(), ownMemory) {
				return
			}
			if types.Implements(v.Type(), it) && !isNamed(v.Type(), ownMemory) {
				foreign[pkg] = true
			}
		}
		for _, v := range f.Params {
			look(v)
		}
		for _, v := range f.FreeVars {
			look(v)
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if v, ok := at.(ssa.Value); ok {
					look(v)
				}
			}
		}
	}
	return foreign
}

func (p *Program) checkSerial() (reports []Report) {
	for _, f := range p.order {
		if pkg := pkgOf(f.Function); pkg == nil || pkg.Path() != ibPath {
			continue
		}
		for _, c := range f.calls {
			if c.iface == nil || c.spawns {
				continue
			}
			common := c.at.(ssa.CallInstruction).Common()
			held := f.locks.may[c.at]
			if len(held) == 0 || !p.contract.isDriverMethod(common.Value.Type(), c.iface) || p.escapes.escapeAt(p.Fset, c.pos,
				Serial) != nil {
				continue
			}
			l := held.sortedLocks()[0]
			reports = append(reports,
				Report{Serial, c.pos,
					fmt.Sprintf("%s calls %s with %s held: the midlayer serialises the calls of a driver's methods",
						functionName(f), shortName(c.iface), l.name),
					[]PathStep{{c.pos, functionName(f), "calls " + shortName(c.iface)}}})
		}
	}
	return reports
}
