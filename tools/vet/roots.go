package vet

import (
	"fmt"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// root is a function that must satisfy a rule, with the reason.
type root struct {
	f   *function
	why string
}

// contract finds the types and functions of a callGraph that the contract of package ib names.
type contract struct {
	graph      *callGraph
	directives *directives
	handlers   map[*types.Var]string            // see isHandler
	foreigners map[*types.Package]bool          // see foreignMemory
	converted  map[string]map[*types.Named]bool // see convertsTo
}

// namedTypes returns the named types of the program.
func (ct *contract) namedTypes() (list []*types.Named) {
	for _, k := range ct.graph.prog.AllPackages() {
		if !ct.graph.own[k.Pkg.Path()] {
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
	var more []*types.Named // types declared in functions, and instances of generic types
	for _, t := range ct.graph.prog.RuntimeTypes() {
		n, ok := types.Unalias(deref(t)).(*types.Named)
		if ok && n.Obj().Pkg() != nil && ct.graph.own[n.Obj().Pkg().Path()] && !types.IsInterface(n) &&
			(n.TypeArgs().Len() > 0 || n.Obj().Parent() != n.Obj().Pkg().Scope()) {
			more = append(more, n)
		}
	}
	slices.SortFunc(more, func(a, b *types.Named) int { return strings.Compare(a.String(), b.String()) })
	return append(list, slices.CompactFunc(more, func(a, b *types.Named) bool { return a.String() == b.String() })...)
}

// ibInterface returns an interface of package ib, or of a package below it, by its name.
func (ct *contract) ibInterface(name string) *types.Interface {
	path := ibPath
	if below, rest, ok := strings.Cut(name, "."); ok {
		path, name = path+"/"+below, rest
	}
	k := ct.graph.prog.ImportedPackage(path)
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

// implementingMethods returns the methods with which types of the program implement interfaces of package ib.
func (ct *contract) implementingMethods(of map[string][]string) (roots []root) {
	seen := map[*function]bool{}
	for _, n := range ct.namedTypes() {
		for _, i := range slices.Sorted(maps.Keys(of)) {
			t := types.Type(types.NewPointer(n))
			it := ct.ibInterface(i)
			// the consumer's side
			if it == nil || !types.Implements(t, it) || n.Obj().Pkg().Path() == ibPath && n.Obj().Exported() {
				continue
			}
			whose := "is a driver's "
			if base, optional := optionalInterfaces[i]; optional {
				if base != "" && !types.Implements(t, ct.ibInterface(base)) || base == "" && !ct.convertsTo(n, i) {
					continue
				}
				whose = "implements ib."
			}
			for _, m := range of[i] {
				obj, _, _ := types.LookupFieldOrMethod(t, true, n.Obj().Pkg(), m)
				fn, ok := obj.(*types.Func)
				if !ok {
					continue
				}
				ssaFn := ct.graph.prog.FuncValue(fn)
				if ssaFn == nil {
					continue
				}
				if f := ct.graph.funcs[ssaFn]; f != nil && !seen[f] {
					seen[f] = true
					roots = append(roots, root{f, fmt.Sprintf("%s, which %s%s.%s,", functionName(f), whose, i, m)})
				}
			}
		}
	}
	return roots
}

// driverMethods returns the methods of drivers, and of the objects that drivers create.
func (p *Program) driverMethods() []root {
	all := map[string][]string{}
	for _, i := range driverInterfaces {
		it := p.contract.ibInterface(i)
		for k := 0; it != nil && k < it.NumMethods(); k++ {
			all[i] = append(all[i], it.Method(k).Name())
		}
	}
	return p.contract.implementingMethods(all)
}

// convertsTo reports whether the program converts a type, or a pointer to it, to an interface of package ib.
func (ct *contract) convertsTo(n *types.Named, iface string) bool {
	if ct.converted == nil {
		ct.converted = map[string]map[*types.Named]bool{}
	}
	if ct.converted[iface] == nil {
		ct.converted[iface] = ct.conversionsTo(iface)
	}
	return ct.converted[iface][n.Origin()]
}

// conversionsTo returns the types that the program converts to an interface of package ib. Pointers count as their
// targets.
func (ct *contract) conversionsTo(iface string) map[*types.Named]bool {
	found := map[*types.Named]bool{}
	made := func(v ssa.Value) bool {
		_, ok := v.(*ssa.MakeInterface)
		return ok
	}
	for _, f := range ct.graph.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				v, ok := at.(ssa.Value)
				if !ok {
					continue
				}
				to := v.Type()
				switch at := at.(type) {
				case *ssa.MakeInterface, *ssa.ChangeInterface:
				case *ssa.TypeAssert:
					to = at.AssertedType
				default:
					continue
				}
				if !isNamed(to, ibPath+"."+iface) {
					continue
				}
				for _, o := range ct.graph.traces.origins(v, nil, made) {
					if m, ok := o.v.(*ssa.MakeInterface); ok {
						if n := namedOf(m.X.Type()); n != nil {
							found[n.Origin()] = true
						}
					}
				}
			}
		}
	}
	return found
}

// fieldsOf returns the listed fields of the listed structs of a package, each with its qualified name.
func (ct *contract) fieldsOf(path string, fields map[string][]string) map[*types.Var]string {
	of := map[*types.Var]string{}
	k := ct.graph.prog.ImportedPackage(path)
	if k == nil {
		return of
	}
	for t, names := range fields {
		o := k.Pkg.Scope().Lookup(t)
		if o == nil {
			continue
		}
		s, ok := o.Type().Underlying().(*types.Struct)
		for i := 0; ok && i < s.NumFields(); i++ {
			if slices.Contains(names, s.Field(i).Name()) {
				of[s.Field(i)] = typeName(o) + "." + s.Field(i).Name()
			}
		}
	}
	return of
}

// storedHandlers returns the functions of consumers that may not sleep, except those of work requests.
func (p *Program) storedHandlers() []root {
	want := p.contract.fieldsOf(ibPath, handlerFields)
	maps.Copy(want, p.contract.fieldsOf(completionPath, completionFields))
	for v := range p.nosleepFields {
		want[v] = v.Name()
	}
	return p.storedFuncs(want, handlerArgs)
}

// storedFuncs returns the functions that are stored in fields of package ib or passed to functions of package ib.
func (p *Program) storedFuncs(want map[*types.Var]string, args map[string]int) (roots []root) {
	seen := map[*function]bool{}
	add := func(v ssa.Value, what string) {
		fn := functionOf(v)
		if fn == nil {
			return
		}
		if f := p.funcs[fn]; f != nil && !seen[f] {
			seen[f] = true
			roots = append(roots, root{f, fmt.Sprintf("%s, which is called as %s,", functionName(f), what)})
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
					if fn := at.Common().StaticCallee(); fn != nil && objectOf(fn) != nil {
						if o, ok := objectOf(fn).(*types.Func); ok {
							if i, ok := args[o.FullName()]; ok {
								for _, from := range p.traces.origins(at.Common().Args[i+1], nil, isFunction) {
									add(from.v, "the function of "+shortName(o))
								}
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
						roots = append(roots, root{g, fmt.Sprintf("%s, which is called as %s,", functionName(g), what)})
					}
				}
			}
		}
	}
	return roots
}

// isFunction reports whether a value is a known function.
func isFunction(v ssa.Value) bool { return functionOf(v) != nil }

// noSleepRoots returns the functions that may not sleep.
func (p *Program) noSleepRoots() []root {
	roots := p.contract.implementingMethods(noSleepMethods)
	roots = append(roots, p.storedHandlers()...)
	roots = append(roots, p.storedFuncs(p.contract.fieldsOf(ibPath, driverFields), driverArgs)...)
	roots = append(roots, p.completionRoots()...)
	for _, f := range p.order {
		if f.nosleep {
			roots = append(roots, root{f, fmt.Sprintf("%s, which is marked %snosleep,", functionName(f), directivePrefix)})
		}
	}
	return roots
}

// rootVisit is a function that a root reaches.
type rootVisit struct {
	f    *function
	from *rootVisit
	by   *call
	root *root
}

// visitReachable visits all functions that the roots reach, in the order of their distance. visitReachable does not
// follow calls with an escape. For a call for which stop returns true, check Callback follows no callee, and check
// NoSleep follows no function of a helper package. stop may be nil.
func (p *Program) visitReachable(check string, roots []root, stop func(*call) bool,
	f func(*rootVisit)) map[*function]*rootVisit {
	seen := map[*function]*rootVisit{}
	var queue []*rootVisit
	for i := range roots {
		r := &roots[i]
		if r.f.allowed[check] != nil {
			r.f.allowed[check].Used = true
			continue
		}
		if seen[r.f] == nil {
			v := &rootVisit{f: r.f, root: r}
			seen[r.f] = v
			queue = append(queue, v)
		}
	}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		f(v)
		for _, c := range v.f.calls {
			if c.spawns || check == NoSleep && c.agreed || check == Hotplug && c.done || len(c.callees) == 0 ||
				p.escapes.escapeAt(p.Fset, c.pos, check) != nil {
				continue
			}
			into := (check == NoSleep || check == Callback) && entersIB(v.f, c)
			if into && c.static != nil || check == Callback && stop != nil && stop(c) {
				continue
			}
			for _, g := range c.callees {
				if into && isInIB(g) || check == NoSleep && stop != nil && stop(c) && entersHelperPackage(v.f, c, g) {
					continue
				}
				if x := g.allowed[check]; x != nil {
					x.Used = true
				} else if seen[g] == nil {
					seen[g] = &rootVisit{f: g, from: v, by: c, root: v.root}
					queue = append(queue, seen[g])
				}
			}
		}
	}
	return seen
}

// entersIB reports whether a call enters package ib from another package. In this case the promise of package ib
// applies to the callee. The check of package ib itself verifies the promise.
func entersIB(f *function, c *call) bool {
	pkg := pkgOf(f.Function)
	if pkg != nil && pkg.Path() == ibPath || pkg == nil && c.static == nil {
		return false
	}
	if c.static != nil {
		return c.static.Pkg() != nil && c.static.Pkg().Path() == ibPath
	}
	return (c.iface != nil || pkg != nil && c.callsValue()) && slices.ContainsFunc(c.callees, isInIB) && !c.agreed
}

// isInIB reports whether a function belongs to package ib. Callers in other packages reach it through an interface, or
// through a function value that package ib has returned.
func isInIB(f *function) bool {
	pkg := pkgOf(f.Function)
	return pkg != nil && pkg.Path() == ibPath
}

// isInHelperPackage reports whether a function belongs to a package below package ib, such as ib/completion.
func isInHelperPackage(f *function) bool {
	pkg := pkgOf(f.Function)
	return pkg != nil && strings.HasPrefix(pkg.Path(), ibPath+"/")
}

// entersHelperPackage reports whether a callee of a call belongs to a package below package ib, and the caller does
// not.
func entersHelperPackage(f *function, c *call, g *function) bool {
	return !c.agreed && !isInIB(f) && !isInHelperPackage(f) && isInHelperPackage(g)
}

// calleeName returns the name of the callee of a call.
func (c *call) calleeName() string {
	if c.static != nil {
		return shortName(c.static)
	}
	if c.iface == nil {
		for _, g := range c.callees {
			if isInIB(g) {
				return functionName(g)
			}
		}
	}
	return shortName(c.iface)
}

func (v *rootVisit) pathTo(end PathStep) []PathStep {
	steps := []PathStep{end}
	for ; v.from != nil; v = v.from {
		steps = append(steps, PathStep{v.by.pos, functionName(v.from.f), "calls " + functionName(v.f)})
	}
	slices.Reverse(steps)
	return steps
}

// isDriverMethod reports whether a method belongs to an interface of a driver.
func (ct *contract) isDriverMethod(recv types.Type, m *types.Func) bool {
	return m.Pkg() != nil && m.Pkg().Path() == ibPath && ct.driverInterfaceOf(recv) != ""
}

// driverInterfaceOf returns the driver interface that a type of package ib is or contains.
func (ct *contract) driverInterfaceOf(recv types.Type) string {
	n, ok := types.Unalias(recv).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != ibPath {
		return ""
	}
	if slices.Contains(driverInterfaces, n.Obj().Name()) {
		return n.Obj().Name()
	}
	if part, ok := n.Underlying().(*types.Interface); ok && part.NumMethods() > 0 {
		for _, i := range driverInterfaces {
			if it := ct.ibInterface(i); it != nil && types.Implements(it, part) {
				return i
			}
		}
	}
	return ""
}

// isOptionalNoSleepMethod reports whether a method belongs to an interface that is no driver interface, and may not
// sleep.
func isOptionalNoSleepMethod(recv types.Type, m *types.Func) bool {
	n, ok := types.Unalias(recv).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != ibPath {
		return false
	}
	_, optional := optionalInterfaces[n.Obj().Name()]
	return optional && slices.Contains(noSleepMethods[n.Obj().Name()], m.Name())
}

func (ct *contract) mayNotSleep(recv types.Type, m *types.Func) bool {
	// interfaces that the interface may embed
	for _, i := range append([]string{ct.driverInterfaceOf(recv)}, "DriverQP", "DriverSRQ", "DriverMR") {
		if it := ct.ibInterface(i); it != nil && slices.Contains(noSleepMethods[i], m.Name()) &&
			(i == ct.driverInterfaceOf(recv) || types.Implements(recv, it)) {
			return true
		}
	}
	return false
}
