package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// The checks, by the names that reports and escapes have.
const (
	NoSleep  = "nosleep"
	Copy     = "copy"
	Serial   = "serial"
	Callback = "callback"
	Hotplug  = "hotplug"
	Held     = "held"

	program = "program" // not a check: a directive that says of a lock what escapes say of code
)

// Report is a breach of a rule.
type Report struct {
	Check string
	Pos   token.Pos
	Text  string
	Path  []Step // how it comes there, from the outermost function
}

// Step is a place on a path.
type Step struct {
	Pos  token.Pos
	In   string
	What string
}

// cause is why a function has an effect: an operation of its own, or a call.
type cause struct {
	at   ssa.Instruction
	pos  token.Pos
	what string
	next *function
}

// effect is what functions do by themselves or by what they call.
type effect struct {
	check string
	of    map[*function]*cause
	queue []*function
}

func (p *Program) newEffect(check string) *effect {
	return &effect{check: check, of: map[*function]*cause{}}
}

func (e *effect) add(f *function, c *cause) {
	if x := f.allowed[e.check]; x != nil {
		x.Used = true
	} else if e.of[f] == nil {
		e.of[f] = c
		e.queue = append(e.queue, f)
	}
}

// caller is a call of a function.
type caller struct {
	in *function
	c  *call
}

func (p *Program) callers(check string) map[*function][]caller {
	m := map[*function][]caller{}
	for _, f := range p.order {
		for _, c := range f.calls {
			if c.spawns || c.agreed && check == NoSleep || c.atomic && check == Copy {
				continue
			}
			for _, g := range c.callees {
				m[g] = append(m[g], caller{f, c})
			}
		}
	}
	return m
}

// spread gives the effect to all that call a function that has it, unless an escape cuts the call.
func (p *Program) spread(e *effect, callers map[*function][]caller) {
	for len(e.queue) > 0 {
		g := e.queue[0]
		e.queue = e.queue[1:]
		for _, k := range callers[g] {
			if e.of[k.in] == nil && p.escapes.at(p.Fset, k.c.pos, e.check) == nil {
				e.add(k.in, &cause{at: k.c.at, pos: k.c.pos, what: "calls " + name(g), next: g})
			}
		}
	}
}

// path is how a function comes to an effect.
func (e *effect) path(f *function) (steps []Step) {
	for f != nil {
		c := e.of[f]
		if c == nil || len(steps) > 60 {
			break
		}
		steps = append(steps, Step{c.pos, name(f), c.what})
		f = c.next
	}
	return steps
}

func name(f *function) string {
	s := f.Function.RelString(nil)
	return strings.ReplaceAll(strings.ReplaceAll(s, module+"/", ""), "command-line-arguments.", "")
}

// Check applies all checks.
func (p *Program) Check() []Report {
	callers := p.callers(NoSleep)
	sleep := p.newEffect(NoSleep)
	for _, f := range p.order {
		for i := range f.ops {
			if o := &f.ops[i]; o.kind == opSleep && p.escapes.at(p.Fset, o.pos, NoSleep) == nil {
				sleep.add(f, &cause{at: o.at, pos: o.pos, what: o.what})
			}
		}
	}
	p.spread(sleep, callers)
	p.sleepyLocks(sleep, callers)
	p.sleep = sleep

	reports := slices.Clone(p.problems)
	reports = append(reports, p.checkNoSleep(sleep)...)
	reports = append(reports, p.checkCopies(p.callers(Copy))...)
	reports = append(reports, p.checkSerial()...)
	reports = append(reports, p.checkCallbacks()...)
	reports = append(reports, p.checkHotplug(p.callers(Hotplug))...)
	reports = append(reports, p.checkHeld()...)
	reports = append(reports, p.checkGuards()...)
	reports = append(reports, p.checkEscapes()...)
	slices.SortStableFunc(reports, func(a, b Report) int {
		x, y := p.Fset.Position(a.Pos), p.Fset.Position(b.Pos)
		if x.Filename != y.Filename {
			return strings.Compare(x.Filename, y.Filename)
		}
		return x.Line - y.Line
	})
	said := map[line]string{}
	return slices.DeleteFunc(reports, func(r Report) bool { // one of a kind is enough for a line
		at := p.Fset.Position(r.Pos)
		l := line{at.Filename, at.Line}
		again := strings.Contains(said[l], r.Check+" ")
		said[l] += r.Check + " "
		return again
	})
}

// sleepyLocks finds the locks that are held across what sleeps, and then what waits for them sleeps, too.
func (p *Program) sleepyLocks(sleep *effect, callers map[*function][]caller) {
	conds := p.condLocks()
	mark := func(f *function, held lockSet, c *cause, cond, plug bool) {
		for l := range held {
			if (l.sleepy == nil || l.sleepy.plug && !plug) && !(cond && (conds[l] || len(held) == 1)) {
				l.sleepy = &heldSleep{in: f, pos: c.pos, what: c.what, plug: plug}
			}
		}
	}
	for {
		before := 0
		for _, l := range p.locks {
			if l.sleepy != nil {
				before++
			}
		}
		for _, f := range p.order {
			for i := range f.ops {
				o := &f.ops[i]
				if o.kind == opSleep && f.allowed[NoSleep] == nil && p.escapes.at(p.Fset, o.pos, NoSleep) == nil {
					mark(f, f.locks.may[o.at], &cause{pos: o.pos, what: o.what}, strings.Contains(o.what, "Cond).Wait"), false)
				}
			}
			for _, c := range f.calls {
				held := f.locks.may[c.at]
				if c.spawns || c.agreed || len(held) == 0 || f.allowed[NoSleep] != nil {
					continue
				}
				for _, g := range c.callees {
					if sleep.of[g] != nil && p.escapes.at(p.Fset, c.pos, NoSleep) == nil {
						mark(f, g.without(held), &cause{pos: c.pos, what: "calls " + name(g), next: g}, sleep.endsInCond(g), c.static != nil && hotplug[c.static.FullName()])
					}
				}
			}
		}
		after := 0
		for _, l := range p.locks {
			if l.sleepy == nil {
				continue
			}
			after++
			for _, s := range l.sites {
				if p.escapes.at(p.Fset, s.at.Pos(), NoSleep) == nil {
					sleep.add(s.in, &cause{at: s.at, pos: s.at.Pos(), what: fmt.Sprintf("locks %s, which is held at %s across a call that sleeps (%s)", l.name, p.Place(l.sleepy.pos), l.sleepy.what)})
				}
			}
		}
		p.spread(sleep, callers)
		if after == before {
			return
		}
	}
}

// without returns what is held in a function all the time that it is called with some locks held. Those that its callers have to hold
// it may let go of: what it does with them is seen in itself.
func (f *function) without(held lockSet) lockSet {
	left := held
	for l := range held {
		if f.locks.entered[l] || slices.Contains(f.held, l) {
			if len(left) == len(held) {
				left = held.clone()
			}
			delete(left, l)
		}
	}
	return left
}

func (e *effect) endsInCond(f *function) bool {
	steps := e.path(f)
	return len(steps) > 0 && strings.Contains(steps[len(steps)-1].What, "Cond).Wait")
}

// condLocks are the locks that sync.Cond.Wait lets go of.
func (p *Program) condLocks() lockSet {
	conds := lockSet{}
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				var v ssa.Value
				switch at := at.(type) {
				case *ssa.Call:
					if fn := at.Call.StaticCallee(); fn != nil && fn.String() == "sync.NewCond" {
						v = at.Call.Args[0]
					}
				case *ssa.Store:
					if a, ok := at.Addr.(*ssa.FieldAddr); ok && isNamed(a.X.Type(), "sync.Cond") {
						v = at.Val
					}
				}
				if m, ok := v.(*ssa.MakeInterface); ok {
					if l := p.lockOf(m.X); l != nil {
						conds[l] = true
					}
				}
			}
		}
	}
	return conds
}

// root is a function that has to keep a rule, and why.
type root struct {
	f   *function
	why string
}

// typesOf are the named types of the program.
func (p *Program) typesOf() (list []*types.Named) {
	for _, k := range p.prog.AllPackages() {
		if !p.own[k.Pkg.Path()] {
			continue
		}
		for _, m := range slices.Sorted(maps.Keys(k.Members)) {
			if t, ok := k.Members[m].(*ssa.Type); ok {
				if n, ok := t.Type().(*types.Named); ok && !types.IsInterface(n) && n.TypeParams().Len() == 0 {
					list = append(list, n)
				}
			}
		}
	}
	var more []*types.Named // of functions, and instances of generic ones
	for _, t := range p.prog.RuntimeTypes() {
		n, ok := types.Unalias(deref(t)).(*types.Named)
		if ok && n.Obj().Pkg() != nil && p.own[n.Obj().Pkg().Path()] && !types.IsInterface(n) && (n.TypeArgs().Len() > 0 || n.Obj().Parent() != n.Obj().Pkg().Scope()) {
			more = append(more, n)
		}
	}
	slices.SortFunc(more, func(a, b *types.Named) int { return strings.Compare(a.String(), b.String()) })
	return append(list, slices.CompactFunc(more, func(a, b *types.Named) bool { return a.String() == b.String() })...)
}

// ifaces returns interfaces of package ib.
func (p *Program) iface(name string) *types.Interface {
	k := p.prog.ImportedPackage(ibPath)
	if k == nil {
		return nil
	}
	o := k.Pkg.Scope().Lookup(name)
	if o == nil {
		return nil
	}
	i, _ := o.Type().Underlying().(*types.Interface)
	return i
}

// methods returns the methods of the types of the program that implement interfaces of package ib.
func (p *Program) methods(of map[string][]string) (roots []root) {
	seen := map[*function]bool{}
	for _, n := range p.typesOf() {
		for _, i := range slices.Sorted(maps.Keys(of)) {
			t := types.Type(types.NewPointer(n))
			it := p.iface(i)
			if it == nil || !types.Implements(t, it) || n.Obj().Pkg().Path() == ibPath && n.Obj().Exported() { // the consumer's side
				continue
			}
			for _, m := range of[i] {
				obj, _, _ := types.LookupFieldOrMethod(t, true, n.Obj().Pkg(), m)
				fn, ok := obj.(*types.Func)
				if !ok {
					continue
				}
				ssaFn := p.prog.FuncValue(fn)
				if ssaFn == nil {
					continue
				}
				if f := p.funcs[ssaFn]; f != nil && !seen[f] {
					seen[f] = true
					roots = append(roots, root{f, fmt.Sprintf("%s, which is a driver's %s.%s,", name(f), i, m)})
				}
			}
		}
	}
	return roots
}

// stored returns the functions that are stored in fields of package ib, or given to its functions.
func (p *Program) stored(fields map[string][]string, args bool) (roots []root) {
	want := map[*types.Var]string{}
	if k := p.prog.ImportedPackage(ibPath); k != nil {
		for t, names := range fields {
			o := k.Pkg.Scope().Lookup(t)
			if o == nil {
				continue
			}
			s, ok := o.Type().Underlying().(*types.Struct)
			for i := 0; ok && i < s.NumFields(); i++ {
				if slices.Contains(names, s.Field(i).Name()) {
					want[s.Field(i)] = "ib." + t + "." + s.Field(i).Name()
				}
			}
		}
	}
	if args {
		for v := range p.nosleepFields {
			want[v] = v.Name()
		}
	}
	seen := map[*function]bool{}
	add := func(v ssa.Value, what string) {
		fn := functionOf(v)
		if fn == nil {
			return
		}
		if f := p.funcs[fn]; f != nil && !seen[f] {
			seen[f] = true
			roots = append(roots, root{f, fmt.Sprintf("%s, which is called as %s,", name(f), what)})
		}
	}
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				switch at := at.(type) {
				case *ssa.Store:
					if a, ok := at.Addr.(*ssa.FieldAddr); ok {
						if what := want[fieldVar(a.X.Type(), a.Field)]; what != "" {
							add(at.Val, what)
						}
					}
				case ssa.CallInstruction:
					if fn := at.Common().StaticCallee(); args && fn != nil && objectOf(fn) != nil {
						if o, ok := objectOf(fn).(*types.Func); ok {
							if i, ok := handlerArgs[o.FullName()]; ok {
								add(at.Common().Args[i+1], "the function of "+short(o))
							}
						}
					}
				}
			}
		}
	}
	for _, f := range p.order {
		for _, c := range f.calls {
			if what := want[c.field]; c.field != nil && what != "" {
				for _, g := range c.callees {
					if !seen[g] {
						seen[g] = true
						roots = append(roots, root{g, fmt.Sprintf("%s, which is called as %s,", name(g), what)})
					}
				}
			}
		}
	}
	return roots
}

// noSleepRoots are the functions that may not sleep.
func (p *Program) noSleepRoots() []root {
	roots := p.methods(noSleepMethods)
	roots = append(roots, p.stored(handlerFields, true)...)
	for _, f := range p.order {
		if f.nosleep {
			roots = append(roots, root{f, fmt.Sprintf("%s, which is marked %snosleep,", name(f), prefix)})
		}
	}
	return roots
}

// visit is a function that roots lead to.
type visit struct {
	f    *function
	from *visit
	by   *call
	root *root
}

// reach visits all functions that roots lead to, nearest first, except by calls that an escape cuts.
func (p *Program) reach(check string, roots []root, stop func(*call) bool, f func(*visit)) map[*function]*visit {
	seen := map[*function]*visit{}
	var queue []*visit
	for i := range roots {
		r := &roots[i]
		if r.f.allowed[check] != nil {
			r.f.allowed[check].Used = true
			continue
		}
		if seen[r.f] == nil {
			v := &visit{f: r.f, root: r}
			seen[r.f] = v
			queue = append(queue, v)
		}
	}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		f(v)
		for _, c := range v.f.calls {
			if c.spawns || check == NoSleep && c.agreed || len(c.callees) == 0 || p.escapes.at(p.Fset, c.pos, check) != nil {
				continue
			}
			into := (check == NoSleep || check == Callback) && intoIB(v.f, c)
			if into && c.static != nil || check == Callback && stop != nil && stop(c) {
				continue
			}
			for _, g := range c.callees {
				if into && isIB(g) {
					continue
				}
				if x := g.allowed[check]; x != nil {
					x.Used = true
				} else if seen[g] == nil {
					seen[g] = &visit{f: g, from: v, by: c, root: v.root}
					queue = append(queue, seen[g])
				}
			}
		}
	}
	return seen
}

// intoIB reports whether a call leads into package ib from elsewhere. What that package promises counts then; whether it keeps it,
// is seen where it is looked at itself.
func intoIB(f *function, c *call) bool {
	pkg := pkgOf(f.Function)
	if pkg != nil && pkg.Path() == ibPath || pkg == nil && c.static == nil {
		return false
	}
	if c.static != nil {
		return c.static.Pkg() != nil && c.static.Pkg().Path() == ibPath
	}
	return c.iface != nil && slices.ContainsFunc(c.callees, isIB) && !c.agreed
}

// isIB reports whether a function is of package ib, called by an interface of somebody else's.
func isIB(f *function) bool {
	pkg := pkgOf(f.Function)
	return pkg != nil && pkg.Path() == ibPath && f.Parent() == nil
}

// called is the name of what is called.
func (c *call) called() string {
	if c.static != nil {
		return short(c.static)
	}
	return short(c.iface)
}

func (v *visit) path(end Step) []Step {
	steps := []Step{end}
	for ; v.from != nil; v = v.from {
		steps = append(steps, Step{v.by.pos, name(v.from.f), "calls " + name(v.f)})
	}
	slices.Reverse(steps)
	return steps
}

func (p *Program) checkNoSleep(sleep *effect) (reports []Report) {
	said := map[*lock]bool{}
	at := map[token.Pos]bool{}
	p.reach(NoSleep, p.noSleepRoots(), nil, func(v *visit) {
		for i := range v.f.ops {
			o := &v.f.ops[i]
			if o.kind != opSleep || p.escapes.at(p.Fset, o.pos, NoSleep) != nil || at[o.pos] {
				continue
			}
			at[o.pos] = true
			reports = append(reports, Report{NoSleep, o.pos, v.root.why + " may sleep: it " + o.what, v.path(Step{o.pos, name(v.f), o.what})})
		}
		for _, c := range v.f.calls {
			if c.spawns || !intoIB(v.f, c) || at[c.pos] || c.static != nil && hotplug[c.static.FullName()] { // of which checkHotplug speaks
				continue
			}
			for _, g := range c.callees {
				if sleep.of[g] == nil || p.escapes.at(p.Fset, c.pos, NoSleep) != nil {
					continue
				}
				at[c.pos] = true
				path := append(v.path(Step{c.pos, name(v.f), "calls " + name(g)}), sleep.path(g)...)
				reports = append(reports, Report{NoSleep, c.pos, v.root.why + " may sleep: it calls " + c.called(), path})
			}
		}
		for _, s := range v.f.locks.direct {
			l := p.lockOf(s.at.Common().Args[0])
			if l == nil || l.sleepy == nil || l.sleepy.plug || said[l] || p.escapes.at(p.Fset, s.at.Pos(), NoSleep) != nil {
				continue
			}
			said[l] = true
			h := l.sleepy
			end := Step{s.at.Pos(), name(v.f), "locks " + l.name}
			path := append(v.path(end), Step{h.pos, name(h.in), "meanwhile, with " + l.name + " held, " + h.what})
			reports = append(reports, Report{NoSleep, s.at.Pos(), fmt.Sprintf("%s may sleep: it locks %s, which is held at %s across a call that sleeps (%s)",
				v.root.why, l.name, p.Place(h.pos), h.what), path})
		}
	})
	return reports
}

func (p *Program) checkCopies(callers map[*function][]caller) (reports []Report) {
	copies := p.newEffect(Copy)
	for _, f := range p.order {
		for i := range f.ops {
			if o := &f.ops[i]; o.kind == opCopy {
				copies.add(f, &cause{at: o.at, pos: o.pos, what: o.what})
			}
		}
	}
	p.spread(copies, callers)
	p.copies = copies
	said := map[*lock]bool{}
	report := func(f *function, held lockSet, pos token.Pos, what string, next *function) {
		for _, l := range held.sorted() {
			if l.program != nil {
				l.program.Used = true
				continue
			}
			if said[l] {
				continue
			}
			said[l] = true
			path := []Step{{pos, name(f), what}}
			if next != nil {
				path = append(path, copies.path(next)...)
			}
			reports = append(reports, Report{Copy, pos, fmt.Sprintf("%s copies to or from the memory of a process, which can stall the copy, with %s held", name(f), l.name), path})
		}
	}
	for _, f := range p.order {
		for i := range f.ops {
			if o := &f.ops[i]; o.kind == opCopy {
				report(f, f.locks.may[o.at], o.pos, o.what, nil)
			}
		}
		for _, c := range f.calls {
			if c.spawns || c.atomic {
				continue
			}
			for _, g := range c.callees {
				if copies.of[g] != nil {
					report(f, g.without(f.locks.may[c.at]), c.pos, "calls "+name(g), g)
				}
			}
		}
	}
	return reports
}

// isDriverMethod reports whether a method belongs to an interface of a driver.
func (p *Program) isDriverMethod(recv types.Type, m *types.Func) bool {
	return m.Pkg() != nil && m.Pkg().Path() == ibPath && p.driverIface(recv) != ""
}

// driverIface is the interface of a driver that a type of package ib is, or a part of.
func (p *Program) driverIface(recv types.Type) string {
	n, ok := types.Unalias(recv).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != ibPath {
		return ""
	}
	if slices.Contains(driverInterfaces, n.Obj().Name()) {
		return n.Obj().Name()
	}
	if part, ok := n.Underlying().(*types.Interface); ok && part.NumMethods() > 0 {
		for _, i := range driverInterfaces {
			if it := p.iface(i); it != nil && types.Implements(it, part) {
				return i
			}
		}
	}
	return ""
}

func (p *Program) mayNotSleep(recv types.Type, m *types.Func) bool {
	for _, i := range append([]string{p.driverIface(recv)}, "DriverQP", "DriverSRQ", "DriverMR") { // what it may embed
		if it := p.iface(i); it != nil && slices.Contains(noSleepMethods[i], m.Name()) && (i == p.driverIface(recv) || types.Implements(recv, it)) {
			return true
		}
	}
	return false
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
			if len(held) == 0 || !p.isDriverMethod(common.Value.Type(), c.iface) || p.escapes.at(p.Fset, c.pos, Serial) != nil {
				continue
			}
			l := held.sorted()[0]
			reports = append(reports, Report{Serial, c.pos, fmt.Sprintf("%s calls %s with %s held: the midlayer serialises the calls of a driver's methods", name(f), short(c.iface), l.name),
				[]Step{{c.pos, name(f), "calls " + short(c.iface)}}})
		}
	}
	return reports
}

func (p *Program) checkCallbacks() (reports []Report) {
	all := map[string][]string{}
	for _, i := range driverInterfaces {
		it := p.iface(i)
		for k := 0; it != nil && k < it.NumMethods(); k++ {
			all[i] = append(all[i], it.Method(k).Name())
		}
	}
	callbacks := map[*function]root{}
	for _, r := range p.stored(handlerFields, true) {
		callbacks[r.f] = r
	}
	fields := map[*types.Var]bool{}
	if k := p.prog.ImportedPackage(ibPath); k != nil {
		for t, names := range handlerFields {
			if o := k.Pkg.Scope().Lookup(t); o != nil {
				if s, ok := o.Type().Underlying().(*types.Struct); ok {
					for i := range s.NumFields() {
						if slices.Contains(names, s.Field(i).Name()) {
							fields[s.Field(i)] = true
						}
					}
				}
			}
		}
	}
	// calls returns what of a call is a callback.
	calls := func(c *call) string {
		if c.spawns || p.escapes.at(p.Fset, c.pos, Callback) != nil {
			return ""
		}
		for _, g := range c.callees {
			if r, ok := callbacks[g]; ok {
				return name(r.f)
			}
		}
		if c.field != nil && fields[c.field] {
			return "a consumer's callback"
		}
		return ""
	}
	by := p.newEffect(Callback)
	for _, f := range p.order {
		for _, c := range f.calls {
			if what := calls(c); what != "" {
				by.add(f, &cause{at: c.at, pos: c.pos, what: "calls " + what})
			}
		}
	}
	p.spread(by, p.callers(Callback))
	said := map[token.Pos]bool{}
	p.reach(Callback, p.methods(all), func(c *call) bool { return calls(c) != "" }, func(v *visit) {
		for _, c := range v.f.calls {
			if said[c.pos] {
				continue
			}
			what := calls(c)
			path := []Step{{c.pos, name(v.f), "calls " + what}}
			if intoIB(v.f, c) && !c.spawns && p.escapes.at(p.Fset, c.pos, Callback) == nil {
				for _, g := range c.callees {
					if by.of[g] != nil {
						what = "a consumer's callback, by " + c.called() + ","
						path = append([]Step{{c.pos, name(v.f), "calls " + name(g)}}, by.path(g)...)
					}
				}
			}
			if what == "" {
				continue
			}
			said[c.pos] = true
			reports = append(reports, Report{Callback, c.pos, v.root.why + " calls " + what + " from its callchain", append(v.path(path[0]), path[1:]...)})
		}
	})
	return reports
}

func (p *Program) checkHotplug(callers map[*function][]caller) (reports []Report) {
	// Who registers, by itself or by what it calls.
	plugs := p.newEffect(Hotplug)
	for _, f := range p.order {
		for _, c := range f.calls {
			if c.static != nil && hotplug[c.static.FullName()] && !c.spawns && p.escapes.at(p.Fset, c.pos, Hotplug) == nil {
				plugs.add(f, &cause{at: c.at, pos: c.pos, what: "calls " + short(c.static)})
			}
		}
	}
	p.spread(plugs, callers)
	said := map[token.Pos]bool{}
	p.reach(Hotplug, p.noSleepRoots(), nil, func(v *visit) {
		for _, c := range v.f.calls {
			if c.static != nil && hotplug[c.static.FullName()] && !c.spawns && !said[c.pos] && p.escapes.at(p.Fset, c.pos, Hotplug) == nil {
				said[c.pos] = true
				reports = append(reports, Report{Hotplug, c.pos, v.root.why + " calls " + short(c.static) + ", which is not for where one may not sleep",
					v.path(Step{c.pos, name(v.f), "calls " + short(c.static)})})
			}
		}
	})
	// The locks that callbacks take.
	taken := map[*lock]*visit{}
	where := map[*lock]token.Pos{}
	roots := append(p.stored(handlerFields, true), p.stored(clientFields, false)...)
	p.reach(Hotplug, roots, nil, func(v *visit) {
		for _, s := range v.f.locks.direct {
			if l := p.lockOf(s.at.Common().Args[0]); l != nil && taken[l] == nil {
				taken[l], where[l] = v, s.at.Pos()
			}
		}
	})
	for _, f := range p.order {
		if pkg := pkgOf(f.Function); pkg != nil && pkg.Path() == ibPath {
			continue // its own locks are what Register is made of
		}
		for _, c := range f.calls {
			held := f.locks.may[c.at]
			if c.spawns || len(held) == 0 || said[c.pos] || p.escapes.at(p.Fset, c.pos, Hotplug) != nil {
				continue
			}
			what, next := "", (*function)(nil)
			if c.static != nil && hotplug[c.static.FullName()] {
				what = "calls " + short(c.static)
			} else {
				for _, g := range c.callees {
					if plugs.of[g] != nil {
						what, next = "calls "+name(g), g
					}
				}
			}
			if what == "" {
				continue
			}
			for _, l := range held.sorted() {
				v := taken[l]
				if v == nil || next != nil && !next.without(held)[l] {
					continue
				}
				said[c.pos] = true
				path := []Step{{c.pos, name(f), what}}
				if next != nil {
					path = append(path, plugs.path(next)...)
				}
				path = append(path, v.path(Step{where[l], name(v.f), "locks " + l.name})...)
				reports = append(reports, Report{Hotplug, c.pos, fmt.Sprintf("%s %s with %s held, for which %s may wait", name(f), what, l.name, strings.TrimSuffix(v.root.why, ",")), path})
				break
			}
		}
	}
	return reports
}

// entries are the locks that all callers of a function hold. A function without one is called by nobody that is known.
type entries map[*function]lockSet

// holds reports whether all callers of a function hold a lock, and it does not release it itself.
func (e entries) holds(f *function, l *lock) bool {
	held, ok := e[f]
	return ok && held[l] && !f.locks.entered[l]
}

// entryLocks finds what is held at every call of a function, by its caller or by those that call that.
func (p *Program) entryLocks() entries {
	callers := map[*function][]caller{}
	for _, f := range p.order {
		for _, c := range f.calls {
			for _, g := range c.here() {
				callers[g] = append(callers[g], caller{f, c})
			}
		}
	}
	e := entries{}
	for _, f := range p.order {
		if len(callers[f]) == 0 {
			e[f] = lockSet{}
		}
	}
	for changed := true; changed; {
		changed = false
		for _, f := range p.order {
			var all lockSet // nil: nothing is known yet
			for _, k := range callers[f] {
				at := lockSet{}
				if above, ok := e[k.in]; !ok {
					continue
				} else if !k.c.spawns {
					at = k.in.locks.must[k.c.at].clone()
					for l := range above {
						if !k.in.locks.entered[l] {
							at[l] = true
						}
					}
				}
				if all == nil {
					all = at
				}
				maps.DeleteFunc(all, func(l *lock, _ bool) bool { return !at[l] })
			}
			if old, ok := e[f]; all != nil && (!ok || !maps.Equal(old, all)) {
				e[f], changed = all, true
			}
		}
	}
	return e
}

func (p *Program) checkHeld() (reports []Report) {
	entry := p.entryLocks()
	for _, f := range p.order {
		for _, c := range f.calls {
			for _, g := range c.here() {
				if len(g.held) == 0 || p.escapes.at(p.Fset, c.pos, Held) != nil {
					continue
				}
				for _, l := range g.held {
					if !c.spawns && (f.locks.must[c.at][l] && !f.otherInstance(c, g, l) || entry.holds(f, l)) {
						continue
					}
					how := "without " + l.name + " held"
					if c.spawns {
						how = "on a goroutine, which holds no lock, and so " + how
					} else if f.locks.may[c.at][l] {
						how = "perhaps " + how
					}
					if !c.spawns && f.locks.must[c.at][l] {
						how = "with " + l.name + " of another value held"
					}
					reports = append(reports, Report{Held, c.pos, fmt.Sprintf("%s calls %s %s", name(f), name(g), how), []Step{{c.pos, name(f), "calls " + name(g)}}})
				}
			}
		}
	}
	return reports
}

// otherInstance reports whether the lock that is held at a call is that of another value than the callee wants.
func (f *function) otherInstance(c *call, g *function, l *lock) bool {
	want, ok := g.heldBy[l]
	at, is := c.at.(ssa.CallInstruction)
	if !ok || !is || c.static == nil || want.param >= len(at.Common().Args) {
		return false
	}
	held, path := f.locks.which[c.at][l], pathOf(at.Common().Args[want.param])
	return held != "" && path != "" && held != path+want.fields
}

// excusable are the checks that an escape can be about.
var excusable = []string{NoSleep, Serial, Callback, Hotplug, Held, program, Open, Restat, Receive, Close, Recover}

// checkEscapes finds escapes without a reason.
func (p *Program) checkEscapes() (reports []Report) {
	for _, x := range p.all {
		switch {
		case x.Check == Copy:
			reports = append(reports, Report{"directive", x.Pos, "a copy with a lock held cannot be excused", nil})
		case !slices.Contains(excusable, x.Check):
			reports = append(reports, Report{"directive", x.Pos, fmt.Sprintf("unknown check %q", x.Check), nil})
		case len(strings.Fields(x.Reason)) < 3:
			reports = append(reports, Report{"directive", x.Pos, "an escape needs a reason of at least three words", nil})
		}
	}
	return reports
}

// Unused returns a report for each escape of the module that none of the programs has a use for. They have been checked.
func Unused(programs []*Program) (reports []Report) {
	used := map[token.Pos]bool{}
	for _, p := range programs {
		for _, x := range p.all {
			used[x.Pos] = used[x.Pos] || x.Used || !slices.Contains(excusable, x.Check) || !p.main[p.Fset.Position(x.Pos).Filename]
		}
	}
	for _, pos := range slices.Sorted(maps.Keys(used)) {
		if !used[pos] {
			reports = append(reports, Report{"directive", pos, "unused escape: the check reports nothing here", nil})
		}
	}
	return reports
}

// Escapes returns the escapes of the program.
func (p *Program) Escapes() []*Escape { return p.all }

// Unresolved returns the calls whose callees are not known.
func (p *Program) Unresolved() map[token.Pos]string { return p.unresolved }

// Format prints a report with its path.
func (p *Program) Format(r *Report, long bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", p.Place(r.Pos), r.Check, r.Text)
	if long {
		for _, s := range r.Path {
			if s.Pos.IsValid() { // else it is a wrapper of the compiler's
				fmt.Fprintf(&b, "\n\t%s: %s %s", p.Place(s.Pos), s.In, s.What)
			}
		}
	}
	return b.String()
}

func (p *Program) relative(file string) string {
	if wd, err := filepath.Abs("."); err == nil {
		if rel, err := filepath.Rel(wd, file); err == nil && !strings.HasPrefix(rel, "../..") {
			return rel
		}
	}
	return file
}
