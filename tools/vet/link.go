package vet

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/callgraph/vta"
	"golang.org/x/tools/go/ssa"
)

// linker determines the callees of the calls of a callGraph.
type linker struct {
	graph    *callGraph
	contract *contract
	values   map[*types.Package][]*ssa.Function // functions used as values; see functionValues
}

// linkCalls determines the callees of all calls.
func (p *Program) linkCalls(every map[*ssa.Function]bool) {
	all := map[*ssa.Function]bool{}
	for f := range every {
		if pkg := pkgOf(f); pkg == nil || p.own[pkg.Path()] {
			all[f] = true
		}
	}
	lk := &linker{graph: &p.callGraph, contract: &p.contract, values: map[*types.Package][]*ssa.Function{}}
	lk.addLibraryCallees(all)
	g := vta.CallGraph(all, nil)
	for f := range all {
		if f.Blocks == nil || !p.isInCheckedModule(pkgOf(f)) {
			continue
		}
		p.funcs[f] = &function{Function: f, allowed: map[string]*Escape{}, runs: map[int]bool{}, wild: map[int]bool{}}
	}
	for _, f := range p.funcs {
		p.order = append(p.order, f)
	}
	slices.SortFunc(p.order, func(a, b *function) int {
		if a.Pos() != b.Pos() {
			return int(a.Pos() - b.Pos())
		}
		return strings.Compare(a.String(), b.String())
	})
	for _, f := range p.order {
		p.applyDirectives(f)
	}
	for _, f := range p.order {
		known := map[ssa.CallInstruction][]*ssa.Function{}
		if n := g.Nodes[f.Function]; n != nil {
			for _, e := range n.Out {
				known[e.Site] = append(known[e.Site], e.Callee.Func)
			}
		}
		lk.scanFunction(f, known)
	}
	lk.resolvePassedFuncs()
	p.traces = newTracer(&p.callGraph)
	lk.refineCallees()
	p.releaseTokens()
	p.trustTestFiles()
	lk.resolveForeignMethods()
	p.checkStreams()
	p.findCompletions()
	p.specialise()
	p.locks.propagateLocks()
	p.locks.markProgramLocks()
}

// addLibraryCallees adds the library functions that the program may call through an interface or a function value.
// These functions are the methods of types that the program converts to interfaces, and the functions that the program
// uses as values.
func (lk *linker) addLibraryCallees(all map[*ssa.Function]bool) {
	types := map[types.Type]bool{}
	add := map[*ssa.Function]bool{}
	for f := range all {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if m, ok := at.(*ssa.MakeInterface); ok {
					types[m.X.Type()] = true
				}
				for _, v := range functionOperands(at) {
					add[v] = true
				}
			}
		}
	}
	for t := range types {
		set := lk.graph.prog.MethodSets.MethodSet(t)
		for i := range set.Len() {
			if fn := lk.graph.prog.MethodValue(set.At(i)); fn != nil {
				add[fn] = true
			}
		}
	}
	for fn := range add {
		all[fn] = true
	}
}

// functionOperands returns the functions that an instruction uses as values.
func functionOperands(at ssa.Instruction) (list []*ssa.Function) {
	if m, ok := at.(*ssa.MakeClosure); ok {
		return []*ssa.Function{m.Fn.(*ssa.Function)}
	}
	for _, v := range at.Operands(nil) {
		if fn, ok := (*v).(*ssa.Function); ok {
			list = append(list, fn)
		}
	}
	return list
}

// resolvePassedFuncs resolves functions that are passed as arguments. It treats them as if the passing function called
// them. Thus a function with function parameters does not connect each of its callers with the arguments of the
// other callers.
func (lk *linker) resolvePassedFuncs() {
	lk.releaseCapturedParameters()
	for changed := true; changed; {
		changed = false
		for _, f := range lk.graph.order {
			for _, c := range f.calls {
				if c.spawns {
					continue
				}
				if c.param > 0 && !f.runs[c.param] {
					f.runs[c.param], changed = true, true
				}
				for _, a := range c.passes {
					for _, g := range c.callees {
						switch {
						case !g.runs[a.param]:
						case a.from > 0 && !f.runs[a.from]:
							f.runs[a.from], changed = true, true
						case a.from == 0 && a.f == nil && !g.wild[a.param]:
							g.wild[a.param], changed = true, true
						}
						if a.from > 0 && f.wild[a.from] && !g.wild[a.param] {
							g.wild[a.param], changed = true, true
						}
					}
				}
			}
			// A closure that runs only during the enclosing function can call a parameter of the enclosing function.
			if outer := lk.graph.funcs[f.Parent()]; outer != nil {
				for _, c := range f.calls {
					if c.param < 0 && !c.spawns && !outer.runs[-c.param] {
						outer.runs[-c.param], changed = true, true
					}
				}
			}
		}
	}
	for _, f := range lk.graph.order {
		for _, c := range f.calls {
			n := len(c.callees)
			c.own = n
			for _, a := range c.passes {
				for _, g := range c.callees[:n] {
					if g.runs[a.param] && a.f != nil && !slices.Contains(c.callees, a.f) {
						c.callees = append(c.callees, a.f)
					}
				}
			}
			switch outer := lk.graph.funcs[f.Parent()]; {
			case c.spawns: // the function that passes the argument does not call it
			case c.param > 0 && !f.wild[c.param], c.param < 0 && !outer.wild[-c.param]:
				c.through, c.callees, c.own = c.callees, nil, 0
			}
		}
	}
}

// releaseCapturedParameters treats a captured parameter as any other value, except in a closure that the enclosing
// function runs before it returns. The callers of the enclosing function do not run any other closure.
func (lk *linker) releaseCapturedParameters() {
	calls := map[ssa.Instruction]*call{}
	for _, f := range lk.graph.order {
		for _, c := range f.calls {
			calls[c.at] = c
		}
	}
	for _, f := range lk.graph.order {
		var how useKind
		for _, c := range f.calls {
			if c.param >= 0 {
				continue
			}
			if how == 0 {
				how = lk.closureUses(f.Function, calls)
			}
			if how&(usedHere|usedLater) != usedHere {
				c.param = 0
			}
		}
	}
}

// useKind is a set of the ways in which a program uses a function value.
type useKind uint8

const (
	usedHere    useKind = 1 << iota // called before the function that has created the value returns
	usedSpawned                     // called on a new goroutine
	usedLater                       // stored or returned, so that any function may call it
)

// closureUses returns the uses of all closures of a function literal.
func (lk *linker) closureUses(fn *ssa.Function, calls map[ssa.Instruction]*call) (how useKind) {
	if fn.Parent() == nil || lk.graph.funcs[fn.Parent()] == nil {
		return usedLater
	}
	for _, b := range fn.Parent().Blocks {
		for _, at := range b.Instrs {
			if m, ok := at.(*ssa.MakeClosure); ok && m.Fn == fn {
				how |= (&useFinder{graph: lk.graph, calls: calls}).findUses(m)
			}
		}
	}
	return how
}

// useFinder finds the uses of function values.
type useFinder struct {
	graph *callGraph
	calls map[ssa.Instruction]*call
	stack []ssa.Value // the values with a search in progress
	seen  map[ssa.Value]bool
	how   useKind
}

const maxCaptureDepth = 8 // maximum depth of closures that capture closures

// findUses returns the uses of a function value.
func (u *useFinder) findUses(v ssa.Value) useKind {
	switch {
	case slices.Contains(u.stack, v):
		return 0 // a recursive closure
	case len(u.stack) == maxCaptureDepth:
		return usedLater
	}
	inner := &useFinder{graph: u.graph, calls: u.calls, stack: append(slices.Clip(u.stack), v), seen: map[ssa.Value]bool{}}
	inner.visit(v)
	return inner.how
}

// visit adds the uses of a function value, or of a variable that holds the value.
func (u *useFinder) visit(v ssa.Value) {
	if u.seen[v] {
		return
	}
	u.seen[v] = true
	if v.Referrers() == nil {
		u.how |= usedLater
		return
	}
	for _, at := range *v.Referrers() {
		switch at := at.(type) {
		case *ssa.DebugRef, *ssa.BinOp: // a comparison with nil
		case *ssa.ChangeType:
			u.visit(at)
		case *ssa.Phi:
			u.visit(at)
		case *ssa.UnOp:
			u.visit(at)
		case *ssa.Store:
			if a, ok := at.Addr.(*ssa.Alloc); ok {
				u.visit(a)
			} else if at.Addr != v {
				u.how |= usedLater
			}
		case *ssa.MakeClosure:
			u.visitCapturedValue(at, v)
		case ssa.CallInstruction:
			u.visitCall(at, v)
		default:
			u.how |= usedLater
		}
	}
}

// visitCapturedValue adds the uses of a value by a closure that captures it.
func (u *useFinder) visitCapturedValue(m *ssa.MakeClosure, v ssa.Value) {
	fn := m.Fn.(*ssa.Function)
	how := u.findUses(m)
	inner := &useFinder{graph: u.graph, calls: u.calls, stack: append(slices.Clip(u.stack), m), seen: u.seen}
	for i, b := range m.Bindings {
		if b == v && i < len(fn.FreeVars) {
			inner.visit(fn.FreeVars[i])
		}
	}
	if inner.how&usedHere != 0 { // the closure calls the value in its own context
		inner.how = inner.how&^usedHere | how
	}
	u.how |= inner.how
}

// visitCall adds the uses of a value by a call of the value, or by a call with the value as an argument.
func (u *useFinder) visitCall(at ssa.CallInstruction, v ssa.Value) {
	c := u.calls[at]
	if c == nil {
		u.how |= usedLater
		return
	}
	args := at.Common().Args
	inner := &useFinder{graph: u.graph, calls: u.calls, stack: u.stack, seen: u.seen}
	if at.Common().Value == v {
		inner.how |= usedHere
	}
	switch {
	case !slices.Contains(args, v):
	case c.static != nil && !u.graph.isInCheckedModule(c.static.Pkg()):
		inner.how |= usedHere // the tables contain the functions of other packages that start a goroutine
	case len(c.callees) == 0 || len(c.library) > 0:
		inner.how |= usedLater
	}
	for _, g := range c.callees {
		first := len(g.Params) - len(args) // 1 for the receiver of an interface method
		for i, a := range args {
			switch {
			case a != v:
			case first < 0 || first > 1:
				inner.how |= usedLater
			default:
				inner.visit(g.Params[first+i])
			}
		}
	}
	if c.spawns && inner.how&usedHere != 0 {
		inner.how = inner.how&^usedHere | usedSpawned
	}
	u.how |= inner.how
}

// parameterNumber returns the number of the parameter that a value denotes, counted from 1. A negative number denotes a
// parameter of the enclosing function, and 0 means that the value is no parameter.
func parameterNumber(f *ssa.Function, v ssa.Value) int {
	switch v := v.(type) {
	case *ssa.Parameter:
		return slices.Index(f.Params, v) + 1
	case *ssa.FreeVar:
		b := boundValueOf(v)
		if k, ok := b.(*ssa.Parameter); ok && f.Parent() != nil {
			return -(slices.Index(f.Parent().Params, k) + 1)
		}
		if a, ok := b.(*ssa.Alloc); ok { // the parameter is captured by a closure
			return -spilledParameter(f.Parent(), a)
		}
	case *ssa.UnOp:
		if v.Op == token.MUL {
			switch x := v.X.(type) {
			case *ssa.FreeVar:
				return parameterNumber(f, x)
			case *ssa.Alloc:
				return spilledParameter(f, x)
			}
		}
	case *ssa.ChangeType:
		return parameterNumber(f, v.X)
	}
	return 0
}

// spilledParameter returns the number, counted from 1, of the parameter that is the only value stored in a variable, or
// 0.
func spilledParameter(f *ssa.Function, a *ssa.Alloc) int {
	n := 0
	for _, r := range *a.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Addr == a {
			k, ok := s.Val.(*ssa.Parameter)
			if !ok || n != 0 {
				return 0
			}
			n = slices.Index(f.Params, k) + 1
		}
	}
	return n
}

// recordPassedFuncs records the functions among the arguments of a call.
func (lk *linker) recordPassedFuncs(f *function, c *call, common *ssa.CallCommon) {
	first := 1
	if common.IsInvoke() {
		first = 2 // the receiver comes first
	}
	for i, a := range common.Args {
		if _, ok := a.Type().Underlying().(*types.Signature); !ok {
			continue
		}
		k := passedFunc{param: i + first}
		if fn := functionOf(a); fn != nil {
			if k.f = lk.graph.funcs[fn]; k.f == nil {
				continue
			}
		} else if n := parameterNumber(f.Function, a); n > 0 {
			k.from = n
		} else if cst, ok := a.(*ssa.Const); ok && cst.IsNil() {
			continue
		}
		c.passes = append(c.passes, k)
	}
}

// candidateFuncs returns the possible functions of a value that has an unknown origin because it passed through another
// package, such as sync/atomic. The candidates are the functions of the same type in the same package that are used as
// values.
func (lk *linker) candidateFuncs(f *function, common *ssa.CallCommon) (list []*ssa.Function) {
	if _, ok := common.Value.(*ssa.Parameter); ok {
		return nil // the callers resolve the parameter
	}
	pkg := pkgOf(f.Function)
	for _, fn := range lk.functionValues(pkg) {
		if types.Identical(fn.Signature, common.Signature()) {
			list = append(list, fn)
		}
	}
	return list
}

// functionValues returns the functions that a package uses as values, because it passes them to another package or
// stores them behind pointers.
func (lk *linker) functionValues(pkg *types.Package) []*ssa.Function {
	if pkg == nil {
		return nil
	}
	if list, ok := lk.values[pkg]; ok {
		return list
	}
	list := []*ssa.Function{}
	for _, g := range lk.graph.order {
		if pkgOf(g.Function) != pkg {
			continue
		}
		for _, b := range g.Blocks {
			for _, at := range b.Instrs {
				switch at := at.(type) {
				case *ssa.Store:
					if a, ok := at.Addr.(*ssa.Alloc); !ok || addressEscapes(a) {
						list = appendFunction(list, at.Val)
					}
				case *ssa.MakeInterface:
					list = appendFunction(list, at.X)
				}
			}
		}
	}
	lk.values[pkg] = list
	return list
}

// poolNewFuncs returns the functions that create the values of a pool. If the field or variable of the pool is unknown,
// poolNewFuncs returns the functions of all pools of the package.
func (lk *linker) poolNewFuncs(f *function, pool ssa.Value) (list []*ssa.Function) {
	var all []*ssa.Function
	pkg := pkgOf(f.Function)
	if pkg == nil {
		return nil
	}
	where := pointedVariable(pool)
	initial := lk.graph.prog.Package(pkg).Func("init")
	look := func(g *ssa.Function) {
		for _, b := range g.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				a, ok := s.Addr.(*ssa.FieldAddr)
				if !ok || !isNamed(a.X.Type(), "sync.Pool") {
					continue
				}
				all = appendFunction(all, s.Val)
				if w := pointedVariable(a.X); w != nil && w == where {
					list = appendFunction(list, s.Val)
				}
			}
		}
	}
	if initial != nil {
		look(initial)
	}
	for _, g := range lk.graph.order {
		if pkgOf(g.Function) == pkg && g.Function != initial {
			look(g.Function)
		}
	}
	if list == nil {
		return all
	}
	return list
}

func (cg *callGraph) addCallee(c *call, fn *ssa.Function) {
	if g := cg.funcs[fn]; g != nil && !slices.Contains(c.callees, g) {
		c.callees = append(c.callees, g)
	}
}
