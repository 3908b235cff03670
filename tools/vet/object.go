package vet

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// The analysis distinguishes locks of one type by their place. A place is a field of a struct, or a variable. The
// target of a pointer is known in three cases. Either the pointer is the address of a field or variable, or only
// one such address is assigned to the pointer, or the pointer is a parameter of a function that has been
// specialised for the place.

// location is a field, variable or allocation, as it appears in a function. The zero value denotes an unknown place.
type location struct {
	addr ssa.Value // *ssa.FieldAddr, *ssa.IndexAddr, *ssa.Global, *ssa.Alloc, or nil if unknown
	in   *function
	typ  types.Type // the type of the value in an interface, or nil if unknown
}

// maxPointerSteps limits the number of steps with which the analysis follows a pointer.
const maxPointerSteps = 12

// objectTable finds the objects that values refer to.
type objectTable struct {
	graph *callGraph
	split distinguishedTypes
}

// locationAt returns the target of a pointer.
func (ot *objectTable) locationAt(f *function, v ssa.Value) location {
	return ot.followPointer(f, v, maxPointerSteps)
}

func (ot *objectTable) followPointer(f *function, v ssa.Value, left int) location {
	if left == 0 || f == nil || v == nil {
		return location{}
	}
	switch v := v.(type) {
	case *ssa.FieldAddr, *ssa.IndexAddr, *ssa.Global, *ssa.Alloc:
		return location{addr: v, in: f}
	case *ssa.Parameter:
		return f.binds[slices.Index(f.Params, v)]
	case *ssa.FreeVar:
		outer, b := ot.boundValue(f, v)
		return ot.followPointer(outer, b, left-1)
	case *ssa.UnOp:
		return ot.pointee(f, v.X, left-1)
	case *ssa.Phi:
		return ot.commonLocation(v.Edges, func(ssa.Value) *function { return f }, left-1)
	case *ssa.ChangeType:
		return ot.followPointer(f, v.X, left-1)
	case *ssa.ChangeInterface:
		return ot.followPointer(f, v.X, left-1)
	case *ssa.MakeInterface:
		at := ot.followPointer(f, v.X, left-1)
		at.typ = v.X.Type()
		return at
	case *ssa.TypeAssert:
		return ot.followPointer(f, v.X, left-1)
	case *ssa.Call:
		return ot.returnedTarget(f, v, left-1)
	}
	return location{}
}

// boundValue returns the value to which a closure's variable is bound, and the function that creates the closure.
func (ot *objectTable) boundValue(f *function, v *ssa.FreeVar) (*function, ssa.Value) {
	if b := boundValueOf(v); b != nil {
		if f.outer != nil {
			return f.outer, b
		}
		return ot.graph.funcs[f.Parent()], b
	}
	if list := ot.graph.traces.closures[f.Function]; len(list) == 1 { // a closure that is a method value
		return ot.graph.funcs[list[0].Parent()], list[0].Bindings[slices.Index(f.FreeVars, v)]
	}
	return nil, nil
}

// pointee returns the target of the pointer at an address.
func (ot *objectTable) pointee(f *function, addr ssa.Value, left int) location {
	at := ot.followPointer(f, addr, left)
	switch v := at.addr.(type) {
	case *ssa.Alloc:
		return ot.commonLocation(ot.graph.traces.variable[v], func(ssa.Value) *function { return at.in }, left)
	case *ssa.Global:
		return ot.commonLocation(ot.graph.traces.variable[v], ot.graph.parentOf, left)
	case *ssa.FieldAddr:
		return ot.commonLocation(ot.graph.traces.fields[fieldVar(v.X.Type(), v.Field)], ot.graph.parentOf, left)
	}
	return location{}
}

// parentOf returns the function that contains a value. The result has no bindings of parameters.
func (cg *callGraph) parentOf(v ssa.Value) *function { return cg.funcs[v.Parent()] }

// commonLocation returns the place to which all values point, if there is exactly one such place.
func (ot *objectTable) commonLocation(list []ssa.Value, in func(ssa.Value) *function, left int) (one location) {
	key := ""
	for _, v := range list {
		if isNil(v) {
			continue
		}
		at := ot.followPointer(in(v), v, left)
		k := ot.locationKey(at)
		if k == "" || key != "" && k != key {
			return location{}
		}
		one, key = at, k
	}
	return one
}

// returnedTarget returns the target of the pointer that a call returns.
func (ot *objectTable) returnedTarget(f *function, v *ssa.Call, left int) location {
	if fullName(v.Call.StaticCallee()) == "(*sync.RWMutex).RLocker" {
		return ot.followPointer(f, v.Call.Args[0], left)
	}
	c := ot.graph.traces.calls[v]
	if c == nil || len(c.ownCallees()) != 1 {
		return location{}
	}
	g := c.originalFuncs(c.ownCallees())[0]
	g = &function{Function: g.Function, outer: g.outer, binds: ot.argumentTargets(f, c, g)}
	var results []ssa.Value
	for _, b := range g.Blocks {
		if r, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Return); ok && len(r.Results) == 1 {
			results = append(results, r.Results[0])
		}
	}
	return ot.commonLocation(results, func(ssa.Value) *function { return g }, left)
}

// argumentTargets returns the targets of the arguments of a call, keyed by the index of the callee's parameter.
func (ot *objectTable) argumentTargets(f *function, c *call, g *function) map[int]location {
	binds := map[int]location{}
	for i, v := range g.Params {
		if !g.needs[i] && !ot.split.needsTarget(v.Type()) {
			continue
		}
		if at := ot.locationAt(f, argumentFor(c, g.Function, i)); bindingKey(ot, at) != "" {
			binds[i] = at
		}
	}
	return binds
}

// bindingKey returns a key for a place and the type of the value.
func bindingKey(ot *objectTable, at location) string {
	key := ot.locationKey(at)
	if at.typ != nil {
		key += " " + at.typ.String()
	}
	return key
}

// locationKey returns the key of a place, or "" if there are several possible places.
func (ot *objectTable) locationKey(at location) string {
	switch v := at.addr.(type) {
	case *ssa.Global:
		return v.String()
	case *ssa.Alloc:
		if n := namedOf(v.Type()); n != nil && !ot.split.isLockLike(n) && !isMutex(n) {
			return "new " + n.String()
		}
		return ot.graph.Fset.Position(v.Pos()).String()
	case *ssa.IndexAddr:
		if key := ot.locationKey(ot.containerOf(at.in, v.X)); key != "" {
			return key + "[]"
		}
	case *ssa.FieldAddr:
		if key := ot.ownerKey(at.in, v.X); key != "" {
			return key + "." + fieldVar(v.X.Type(), v.Field).Name()
		}
	}
	return ""
}

// containerOf returns the array that contains an element. For an element of a slice, containerOf returns the variable
// with the slice.
func (ot *objectTable) containerOf(f *function, v ssa.Value) location {
	if u, ok := v.(*ssa.UnOp); ok {
		return ot.locationAt(f, u.X)
	}
	return ot.locationAt(f, v)
}

// ownerKey returns the name of the struct to which a pointer points. If the type is not in split, the name stands
// for all structs of the type.
func (ot *objectTable) ownerKey(f *function, v ssa.Value) string {
	n := namedOf(v.Type())
	if n != nil && !ot.split.types[n.Origin()] {
		return n.Origin().String()
	}
	return ot.locationKey(ot.locationAt(f, v))
}

func namedOf(t types.Type) *types.Named {
	n, _ := types.Unalias(deref(t)).(*types.Named)
	return n
}

// distinguishedTypes holds the types whose places the analysis distinguishes. These are structs with locks that several
// structs or variables contain by value, and types that are locks themselves.
type distinguishedTypes struct {
	types map[*types.Named]bool
}

// findDistinguishedTypes finds the types whose places the analysis distinguishes.
func (ot *objectTable) findDistinguishedTypes() {
	ot.split = distinguishedTypes{types: map[*types.Named]bool{}}
	count := map[*types.Named]int{}
	for _, k := range ot.graph.prog.AllPackages() {
		if !ot.graph.own[k.Pkg.Path()] {
			continue
		}
		for _, m := range k.Members {
			switch m := m.(type) {
			case *ssa.Type:
				countFields(m.Type(), count)
			case *ssa.Global:
				countStructTypes(deref(m.Type()), count)
			}
		}
	}
	made := map[*types.Named]bool{} // types whose values are also allocated separately
	for _, f := range ot.graph.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if a, ok := at.(*ssa.Alloc); ok {
					if n := namedOf(a.Type()); n != nil {
						made[n.Origin()] = true
					}
				}
			}
		}
	}
	for n, times := range count {
		if made[n] {
			times++
		}
		if times > 1 && hasLock(n, 0) {
			ot.split.types[n] = true
		}
	}
	for n := range made {
		if ot.split.isLockLike(n) && hasLock(n, 0) {
			ot.split.types[n] = true
		}
	}
}

// countFields counts the fields of a struct that have struct types.
func countFields(t types.Type, count map[*types.Named]int) {
	if s, ok := t.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			countStructTypes(f.Type(), count)
		}
	}
}

func countStructTypes(t types.Type, count map[*types.Named]int) {
	switch u := types.Unalias(t).(type) {
	case *types.Named:
		if _, ok := u.Underlying().(*types.Struct); ok && !isMutex(u) {
			count[u.Origin()]++
		}
	case *types.Struct:
		countFields(u, count)
	case *types.Array:
		countStructTypes(u.Elem(), count)
	case *types.Slice:
		countStructTypes(u.Elem(), count)
	}
}

// hasLock reports whether a struct contains a mutex.
func hasLock(t types.Type, depth int) bool {
	if isMutex(t) {
		return true
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok || depth > 6 {
		return false
	}
	for f := range s.Fields() {
		if isMutex(deref(f.Type())) || hasLock(f.Type(), depth+1) {
			return true
		}
	}
	return false
}

// isLockLike reports whether a type has the methods of a lock.
func (distinguishedTypes) isLockLike(n *types.Named) bool {
	set := types.NewMethodSet(types.NewPointer(n))
	has := func(name string) bool { return set.Lookup(n.Obj().Pkg(), name) != nil }
	return has("Lock") && has("Unlock") || has("lock") && has("unlock")
}

// needsTarget reports whether the analysis needs the target of a parameter of a type.
func (s distinguishedTypes) needsTarget(t types.Type) bool {
	if types.IsInterface(t) {
		return hasMethod(t, "Lock")
	}
	if _, ok := t.Underlying().(*types.Pointer); !ok {
		return false
	}
	n := namedOf(t)
	return n != nil && (isMutex(n) || s.types[n.Origin()])
}

// shortKey returns the key of a place in the form for reports.
func shortKey(key string) string {
	key = strings.TrimPrefix(key, "new ")
	return key[strings.LastIndexByte(key, '/')+1:]
}
