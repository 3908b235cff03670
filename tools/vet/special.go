package vet

import (
	"fmt"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// maxCopies limits the number of places for which one function is specialised. Beyond the limit, the locks of the
// function stand for the locks of all places.
const maxCopies = 32

// specialise replaces functions with locks or interfaces in their parameters by copies. There is one copy for each
// place or type that callers pass.
func (p *Program) specialise() {
	p.objects.findDistinguishedTypes()
	if !p.markNeededParameters() {
		return
	}
	s := &specialiser{p: p, made: map[string]*function{}, count: map[*ssa.Function]int{}}
	s.work = slices.Clone(p.order)
	called := map[*function]bool{} // functions called before the specialisation
	for _, f := range p.order {
		for _, c := range f.calls {
			for _, g := range c.callees {
				called[g] = true
			}
		}
	}
	for len(s.work) > 0 {
		f := s.work[0]
		s.work = s.work[1:]
		for _, c := range f.calls {
			s.specialiseCall(f, c)
		}
	}
	p.keepReachedFunctions(called)
}

// markNeededParameters marks parameters in a function, its callees and its closures. The marked parameters lead to
// locks, or determine which of several methods is called.
func (p *Program) markNeededParameters() (any bool) {
	mark := func(f *function, v ssa.Value) bool {
		f, i := p.objects.rootParameter(f, v)
		if f == nil || f.needs[i] {
			return false
		}
		if f.needs == nil {
			f.needs = map[int]bool{}
		}
		f.needs[i] = true
		return true
	}
	for _, f := range p.order {
		for _, c := range f.calls {
			if kind, v := c.lockOperation(); kind != noLockCall && mark(f, v) {
				any = true
			}
			if p.mayCallSeveral(c) && mark(f, c.at.(ssa.CallInstruction).Common().Value) {
				any = true
			}
		}
	}
	for changed := any; changed; {
		changed = false
		for _, f := range p.order {
			for _, c := range f.calls {
				for _, g := range c.callees {
					for i := range g.needs {
						if v := argumentFor(c, g.Function, i); v != nil && mark(f, v) {
							changed = true
						}
					}
				}
			}
		}
	}
	return any
}

// mayCallSeveral reports whether a call through an interface of the program may call several methods.
func (p *Program) mayCallSeveral(c *call) bool {
	return c.iface != nil && !c.agreed && p.isInCheckedModule(c.iface.Pkg()) && c.iface.Pkg().Path() != ibPath &&
		len(c.callees)+len(c.library) > 1
}

// rootParameter returns the parameter on which a place depends, and the function with the parameter: f or an
// enclosing function.
func (ot *objectTable) rootParameter(f *function, v ssa.Value) (*function, int) {
	for range maxPointerSteps {
		switch x := v.(type) {
		case *ssa.Parameter:
			if ot.split.needsTarget(x.Type()) || types.IsInterface(x.Type()) {
				return f, slices.Index(f.Params, x)
			}
			return nil, 0
		case *ssa.FieldAddr:
			if n := namedOf(x.X.Type()); n != nil && !ot.split.types[n.Origin()] {
				return nil, 0
			}
			v = x.X
		case *ssa.FreeVar:
			f, v = ot.boundValue(f, x)
			if f == nil {
				return nil, 0
			}
		case *ssa.Alloc: // the variable may be a captured parameter
			n := spilledParameter(f.Function, x)
			if n == 0 {
				return nil, 0
			}
			v = f.Params[n-1]
		case *ssa.UnOp:
			v = x.X
			if _, ok := v.(*ssa.FieldAddr); ok {
				return nil, 0
			}
		case *ssa.MakeInterface:
			v = x.X
		case *ssa.ChangeInterface:
			v = x.X
		case *ssa.ChangeType:
			v = x.X
		default:
			return nil, 0
		}
	}
	return nil, 0
}

// specialiser creates the copies of functions.
type specialiser struct {
	p     *Program
	made  map[string]*function
	count map[*ssa.Function]int
	work  []*function
}

// specialiseCall replaces the callees of a call by copies.
func (s *specialiser) specialiseCall(f *function, c *call) {
	if f.base != nil && s.p.mayCallSeveral(c) {
		s.p.objects.chooseCallee(f, c)
	}
	for i, g := range c.callees {
		c.callees[i] = s.calleeCopy(f, c, g)
	}
	for i, g := range c.through {
		c.through[i] = s.calleeCopy(f, c, g)
	}
}

// chooseCallee reduces the callees of an interface call to the method of the type for which the function has been
// specialised.
func (ot *objectTable) chooseCallee(f *function, c *call) {
	at := ot.locationAt(f, c.at.(ssa.CallInstruction).Common().Value)
	if at.typ == nil {
		return
	}
	sel := ot.graph.prog.MethodSets.MethodSet(at.typ).Lookup(c.iface.Pkg(), c.iface.Name())
	if sel == nil {
		return
	}
	fn := ot.graph.prog.MethodValue(sel)
	is := func(g *function) bool { return g.Function == fn }
	if !slices.ContainsFunc(c.callees, is) {
		return
	}
	c.filterCallees(is)
	if len(c.library) > 0 { // the chosen callee is a function of the program, not of the library
		c.library = nil
		f.ops = slices.DeleteFunc(f.ops, func(o operation) bool { return o.at == c.at && o.kind == opSleep })
	}
}

// calleeCopy returns the copy of a callee for the places that a call passes. Without a copy calleeCopy returns the
// callee itself.
func (s *specialiser) calleeCopy(f *function, c *call, g *function) *function {
	if g.binds != nil || g.outer != nil { // a copy is not specialised again
		return g
	}
	outer := f.enclosingCopy(g)
	if len(g.needs) == 0 && outer == nil {
		return g
	}
	binds := map[int]location{}
	for i, at := range s.p.objects.argumentTargets(f, c, g) {
		if g.needs[i] {
			binds[i] = at
		}
	}
	if len(binds) == 0 && outer == nil {
		return g
	}
	key := fmt.Sprintf("%p %p", g, outer)
	for _, i := range slices.Sorted(maps.Keys(binds)) {
		key += fmt.Sprintf(" %d=%s", i, bindingKey(&s.p.objects, binds[i]))
	}
	if s.made[key] == nil {
		if s.count[g.Function] >= maxCopies {
			return g
		}
		s.count[g.Function]++
		s.made[key] = g.newCopyFor(binds, outer)
		s.work = append(s.work, s.made[key])
	}
	return s.made[key]
}

// enclosingCopy returns the copy that contains a closure: f or an enclosing function. If neither is a copy,
// enclosingCopy returns nil.
func (f *function) enclosingCopy(g *function) *function {
	for x := f; x != nil; x = x.outer {
		if g.Parent() == x.Function && (x.binds != nil || x.outer != nil) {
			return x
		}
	}
	return nil
}

// newCopyFor returns a copy of a function for the targets of its parameters. The copy belongs to a copy of the
// enclosing function.
func (f *function) newCopyFor(binds map[int]location, outer *function) *function {
	g := *f
	g.binds, g.outer, g.base = binds, outer, f
	g.pointers = nil
	g.ops = slices.Clone(f.ops)
	g.calls = make([]*call, len(f.calls))
	for i, c := range f.calls {
		k := *c
		k.callees, k.through = slices.Clone(c.originalFuncs(c.callees)), slices.Clone(c.originalFuncs(c.through))
		g.calls[i] = &k
	}
	return &g
}

// originalFuncs returns the original functions that copies have replaced.
func (c *call) originalFuncs(list []*function) []*function {
	out := make([]*function, len(list))
	for i, f := range list {
		if out[i] = f; f.base != nil {
			out[i] = f.base
		}
	}
	if list == nil {
		return nil
	}
	return out
}

// keepReachedFunctions removes all functions except the entry points and their direct and indirect callees. It keeps
// the order of the program.
func (p *Program) keepReachedFunctions(called map[*function]bool) {
	reached := map[*function]bool{}
	var work []*function
	add := func(f *function) {
		if !reached[f] {
			reached[f] = true
			work = append(work, f)
		}
	}
	entries := p.entryPoints()
	for _, f := range p.order {
		if !called[f] || len(f.needs) == 0 || entries[f] {
			add(f)
		}
	}
	var copies []*function
	for len(work) > 0 {
		f := work[0]
		work = work[1:]
		if f.base != nil {
			copies = append(copies, f)
		}
		for _, c := range f.calls {
			for _, g := range append(slices.Clone(c.callees), c.through...) {
				add(g)
			}
		}
	}
	slices.SortStableFunc(copies, func(a, b *function) int { return strings.Compare(a.String(), b.String()) })
	p.order = append(slices.DeleteFunc(p.order, func(f *function) bool { return !reached[f] }), copies...)
}

// entryPoints returns the functions that package ib or a new goroutine calls.
func (p *Program) entryPoints() map[*function]bool {
	is := map[*function]bool{}
	clients := p.storedFuncs(p.contract.fieldsOf(ibPath, clientFields), nil)
	roots := slices.Concat(p.driverMethods(), p.noSleepRoots(), clients)
	for _, r := range roots {
		is[r.f] = true
	}
	return is
}

// lockOperation returns the kind of the lock operation of a call, and the pointer to the lock.
func (c *call) lockOperation() (lockCallKind, ssa.Value) {
	at, ok := c.at.(ssa.CallInstruction)
	if !ok {
		return noLockCall, nil
	}
	common := at.Common()
	if fn := common.StaticCallee(); fn != nil && lockCallKindOf(fn) != noLockCall && len(common.Args) > 0 {
		return lockCallKindOf(fn), common.Args[0]
	}
	if common.IsInvoke() && len(c.callees) == 0 {
		for _, o := range append(slices.Clip(c.library), common.Method) {
			if r := o.Signature().Recv(); r != nil && (isMutex(deref(r.Type())) || isNamed(r.Type(), "sync.Locker")) {
				return lockKindOfMethod(o.Name()), common.Value
			}
		}
	}
	return noLockCall, nil
}
