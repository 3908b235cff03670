package vet

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// refineCallees improves the callees of function values. It removes functions from other maps, because the call graph
// does not distinguish maps. It adds functions that are called by reflection or by other packages.
func (lk *linker) refineCallees() {
	for _, f := range lk.graph.order {
		for _, c := range f.calls {
			common := c.at.(ssa.CallInstruction).Common()
			lk.addArgumentCallees(c, common)
			switch {
			case c.static != nil && reflectCalls[c.static.FullName()]:
				for _, o := range lk.graph.traces.origins(common.Args[0], nil, nil) {
					if k, ok := o.v.(*ssa.Call); ok && fullName(k.Call.StaticCallee()) == "reflect.ValueOf" {
						for _, fn := range lk.graph.traces.possibleFuncs(k.Call.Args[0]) {
							lk.graph.addCallee(c, fn)
						}
					}
				}
			case c.callsValue() && len(c.callees) > 1:
				if list := lk.graph.traces.possibleFuncs(common.Value); list != nil {
					c.filterCallees(func(g *function) bool { return slices.Contains(list, g.Function) })
				}
			case c.callsValue() && len(c.callees) == 0:
				lk.addWrappedFuncs(c, common)
			}
		}
	}
}

// callsValue reports whether a call calls a function value that is not a parameter.
func (c *call) callsValue() bool {
	common := c.at.(ssa.CallInstruction).Common()
	return !common.IsInvoke() && common.StaticCallee() == nil && c.through == nil && c.param == 0
}

// filterCallees removes the unwanted callees from the callees of this call itself. The callees that other functions
// call are not removed.
func (c *call) filterCallees(wanted func(*function) bool) {
	own := slices.DeleteFunc(slices.Clone(c.callees[:c.own]), func(g *function) bool { return !wanted(g) })
	c.callees, c.own = append(own, c.callees[c.own:]...), len(own)
}

// addArgumentCallees adds the callees that a call of another package reaches through its arguments. These are functions
// in variables, and methods of values that are passed as interfaces, as to sort.Sort and fmt.Sprint.
func (lk *linker) addArgumentCallees(c *call, common *ssa.CallCommon) {
	if c.static == nil || lk.graph.isInCheckedModule(c.static.Pkg()) || postFuncs[c.static.FullName()] != (postArgs{}) {
		return
	}
	for _, a := range common.Args {
		if _, ok := a.Type().Underlying().(*types.Signature); ok && functionOf(a) == nil {
			for _, fn := range lk.graph.traces.possibleFuncs(a) {
				lk.graph.addCallee(c, fn)
			}
		}
		for _, v := range variadicElements(a) {
			if m, ok := v.(*ssa.MakeInterface); ok {
				lk.addMethods(c, m)
			}
		}
	}
}

// variadicElements returns the elements of a slice for a variadic call. For any other value variadicElements returns
// the value itself.
func variadicElements(v ssa.Value) (list []ssa.Value) {
	s, ok := v.(*ssa.Slice)
	if !ok {
		return []ssa.Value{v}
	}
	if a, ok := s.X.(*ssa.Alloc); ok {
		for _, r := range *a.Referrers() {
			if i, ok := r.(*ssa.IndexAddr); ok {
				for _, r := range *i.Referrers() {
					if st, ok := r.(*ssa.Store); ok {
						list = append(list, st.Val)
					}
				}
			}
		}
	}
	return list
}

// formatMethods lists the methods that package fmt and the encoders call on values.
var formatMethods = []string{
	"String", "Error", "Format", "GoString", "MarshalJSON", "MarshalText", "MarshalBinary", "LogValue",
}

// addMethods adds the methods that another package calls on a value that is passed as an interface. These are the
// methods of the interface, or else the formatters.
func (lk *linker) addMethods(c *call, m *ssa.MakeInterface) {
	it, ok := m.Type().Underlying().(*types.Interface)
	if !ok || isStream(m.Type()) {
		return
	}
	names := formatMethods
	if it.NumMethods() > 0 {
		names = nil
		for x := range it.Methods() {
			names = append(names, x.Name())
		}
	} else if !callsFormatters(c.static.Pkg()) {
		return
	}
	set := lk.graph.prog.MethodSets.MethodSet(m.X.Type())
	for i := range set.Len() {
		if slices.Contains(names, set.At(i).Obj().Name()) {
			if fn := lk.graph.prog.MethodValue(set.At(i)); fn != nil {
				lk.graph.addCallee(c, fn)
			}
		}
	}
}

// callsFormatters reports whether the functions of a package call the formatters.
func callsFormatters(k *types.Package) bool {
	return k != nil && (k.Path() == "fmt" || k.Path() == "log/slog" || strings.HasPrefix(k.Path(), "encoding/"))
}

// addWrappedFuncs adds the functions that a wrapper of another package calls. For example, sync.OnceFunc and iter.Pull
// return wrappers.
func (lk *linker) addWrappedFuncs(c *call, common *ssa.CallCommon) {
	for _, o := range lk.graph.traces.origins(common.Value, nil, nil) {
		k, ok := o.v.(*ssa.Call)
		if x, is := o.v.(*ssa.Extract); is {
			k, ok = x.Tuple.(*ssa.Call)
		}
		if !ok {
			continue
		}
		by, is := calleeObject(k).(*types.Func)
		if !is || lk.graph.isInCheckedModule(by.Pkg()) {
			continue
		}
		// The result of context.AfterFunc stops the function and does not call it.
		if kind, _ := externalKind(by); kind == spawns {
			delete(lk.graph.unresolved, c.pos)
			continue
		}
		for _, a := range k.Call.Args {
			for _, fn := range lk.graph.traces.possibleFuncs(a) {
				lk.graph.addCallee(c, fn)
				delete(lk.graph.unresolved, c.pos)
			}
		}
	}
}

// reflectCalls lists functions that call the function in a reflect.Value.
var reflectCalls = map[string]bool{"(reflect.Value).Call": true, "(reflect.Value).CallSlice": true}

// possibleFuncs returns the possible functions of a value, or nil if a possible function is unknown.
func (t *valueTracer) possibleFuncs(v ssa.Value) (list []*ssa.Function) {
	for _, o := range t.origins(v, nil, nil) {
		fn := functionOf(o.v)
		if fn == nil && !isNil(o.v) {
			return nil
		}
		if fn != nil {
			list = append(list, fn)
		}
	}
	return list
}

// resolveForeignMethods resolves interface calls on values that other packages return. For example, net.Dial returns a
// net.Conn.
func (lk *linker) resolveForeignMethods() {
	for _, f := range lk.graph.order {
		for _, c := range f.calls {
			if c.iface == nil || c.agreed || c.stream != nil || isErrorMethod(c.iface) || f.sleepsAt(c.at) {
				continue
			}
			if m := lk.foreignMethod(c); m != nil && m != c.iface {
				delete(lk.graph.unresolved, c.pos)
				lk.applyLibraryCall(f, c, m)
			} else if m != nil && len(c.library) > 0 {
				lk.applyLibraryCall(f, c, m)
			}
		}
	}
}

func isErrorMethod(m *types.Func) bool {
	return m.Pkg() == nil || m.Name() == "Error" || m.Name() == "String"
}

// foreignMethod returns the method of another package's interface that a call calls, or nil.
func (lk *linker) foreignMethod(c *call) *types.Func {
	for _, o := range lk.graph.traces.origins(c.at.(ssa.CallInstruction).Common().Value, nil, nil) {
		if o.v == nil || !types.IsInterface(o.v.Type()) {
			continue
		}
		k, ok := o.v.(*ssa.Call)
		if x, is := o.v.(*ssa.Extract); is {
			k, ok = x.Tuple.(*ssa.Call)
		}
		if !ok {
			continue
		}
		by, is := calleeObject(k).(*types.Func)
		if !is || lk.graph.isInCheckedModule(by.Pkg()) || by.Pkg() != nil && nonSleepingPackages[by.Pkg().Path()] {
			continue
		}
		obj, _, _ := types.LookupFieldOrMethod(o.v.Type(), false, c.iface.Pkg(), c.iface.Name())
		if m, ok := obj.(*types.Func); ok && !lk.graph.isInCheckedModule(m.Pkg()) {
			return m
		}
	}
	return nil
}

// sleepsAt reports whether the operation of an instruction sleeps.
func (f *function) sleepsAt(at ssa.Instruction) bool {
	return slices.ContainsFunc(f.ops, func(o operation) bool { return o.at == at && o.kind == opSleep })
}
