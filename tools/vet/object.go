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

// locationAt returns the target of a pointer.
func (p *Program) locationAt(f *function, v ssa.Value) location {
	return p.followPointer(f, v, maxPointerSteps)
}

func (p *Program) followPointer(f *function, v ssa.Value, left int) location {
	if left == 0 || f == nil || v == nil {
		return location{}
	}
	switch v := v.(type) {
	case *ssa.FieldAddr, *ssa.IndexAddr, *ssa.Global, *ssa.Alloc:
		return location{addr: v, in: f}
	case *ssa.Parameter:
		return f.binds[slices.Index(f.Params, v)]
	case *ssa.FreeVar:
		outer, b := p.boundValue(f, v)
		return p.followPointer(outer, b, left-1)
	case *ssa.UnOp:
		return p.pointee(f, v.X, left-1)
	case *ssa.Phi:
		return p.commonLocation(v.Edges, func(ssa.Value) *function { return f }, left-1)
	case *ssa.ChangeType:
		return p.followPointer(f, v.X, left-1)
	case *ssa.ChangeInterface:
		return p.followPointer(f, v.X, left-1)
	case *ssa.MakeInterface:
		at := p.followPointer(f, v.X, left-1)
		at.typ = v.X.Type()
		return at
	case *ssa.TypeAssert:
		return p.followPointer(f, v.X, left-1)
	case *ssa.Call:
		return p.returnedTarget(f, v, left-1)
	}
	return location{}
}

// boundValue returns the value to which a closure's variable is bound, and the function that creates the closure.
func (p *Program) boundValue(f *function, v *ssa.FreeVar) (*function, ssa.Value) {
	if b := boundValueOf(v); b != nil {
		if f.outer != nil {
			return f.outer, b
		}
		return p.funcs[f.Parent()], b
	}
	if list := p.traces.closures[f.Function]; len(list) == 1 { // a closure that is a method value
		return p.funcs[list[0].Parent()], list[0].Bindings[slices.Index(f.FreeVars, v)]
	}
	return nil, nil
}

// pointee returns the target of the pointer at an address.
func (p *Program) pointee(f *function, addr ssa.Value, left int) location {
	at := p.followPointer(f, addr, left)
	switch v := at.addr.(type) {
	case *ssa.Alloc:
		return p.commonLocation(p.traces.variable[v], func(ssa.Value) *function { return at.in }, left)
	case *ssa.Global:
		return p.commonLocation(p.traces.variable[v], p.parentOf, left)
	case *ssa.FieldAddr:
		return p.commonLocation(p.traces.fields[fieldVar(v.X.Type(), v.Field)], p.parentOf, left)
	}
	return location{}
}

// parentOf returns the function that contains a value. The result has no bindings of parameters.
func (p *Program) parentOf(v ssa.Value) *function { return p.funcs[v.Parent()] }

// commonLocation returns the place to which all values point, if there is exactly one such place.
func (p *Program) commonLocation(list []ssa.Value, in func(ssa.Value) *function, left int) (one location) {
	key := ""
	for _, v := range list {
		if isNil(v) {
			continue
		}
		at := p.followPointer(in(v), v, left)
		k := p.locationKey(at)
		if k == "" || key != "" && k != key {
			return location{}
		}
		one, key = at, k
	}
	return one
}

// returnedTarget returns the target of the pointer that a call returns.
func (p *Program) returnedTarget(f *function, v *ssa.Call, left int) location {
	if fullName(v.Call.StaticCallee()) == "(*sync.RWMutex).RLocker" {
		return p.followPointer(f, v.Call.Args[0], left)
	}
	c := p.traces.calls[v]
	if c == nil || len(c.ownCallees()) != 1 {
		return location{}
	}
	g := c.originalFuncs(c.ownCallees())[0]
	g = &function{Function: g.Function, outer: g.outer, binds: p.argumentTargets(f, c, g)}
	var results []ssa.Value
	for _, b := range g.Blocks {
		if r, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Return); ok && len(r.Results) == 1 {
			results = append(results, r.Results[0])
		}
	}
	return p.commonLocation(results, func(ssa.Value) *function { return g }, left)
}

// argumentTargets returns the targets of the arguments of a call, keyed by the index of the callee's parameter.
func (p *Program) argumentTargets(f *function, c *call, g *function) map[int]location {
	binds := map[int]location{}
	for i, v := range g.Params {
		if !g.needs[i] && !p.split.needsTarget(v.Type()) {
			continue
		}
		if at := p.locationAt(f, argumentFor(c, g.Function, i)); bindingKey(p, at) != "" {
			binds[i] = at
		}
	}
	return binds
}

// bindingKey returns a key for a place and the type of the value.
func bindingKey(p *Program, at location) string {
	key := p.locationKey(at)
	if at.typ != nil {
		key += " " + at.typ.String()
	}
	return key
}

// locationKey returns the key of a place, or "" if there are several possible places.
func (p *Program) locationKey(at location) string {
	switch v := at.addr.(type) {
	case *ssa.Global:
		return v.String()
	case *ssa.Alloc:
		if n := namedOf(v.Type()); n != nil && !p.split.isLockLike(n) && !isMutex(n) {
			return "new " + n.String()
		}
		return p.Fset.Position(v.Pos()).String()
	case *ssa.IndexAddr:
		if key := p.locationKey(p.containerOf(at.in, v.X)); key != "" {
			return key + "[]"
		}
	case *ssa.FieldAddr:
		if key := p.ownerKey(at.in, v.X); key != "" {
			return key + "." + fieldVar(v.X.Type(), v.Field).Name()
		}
	}
	return ""
}

// containerOf returns the array that contains an element. For an element of a slice, containerOf returns the variable
// with the slice.
func (p *Program) containerOf(f *function, v ssa.Value) location {
	if u, ok := v.(*ssa.UnOp); ok {
		return p.locationAt(f, u.X)
	}
	return p.locationAt(f, v)
}

// ownerKey returns the name of the struct to which a pointer points. If the type is not in split, the name stands
// for all structs of the type.
func (p *Program) ownerKey(f *function, v ssa.Value) string {
	n := namedOf(v.Type())
	if n != nil && !p.split.types[n.Origin()] {
		return n.Origin().String()
	}
	return p.locationKey(p.locationAt(f, v))
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
func (p *Program) findDistinguishedTypes() {
	p.split = distinguishedTypes{types: map[*types.Named]bool{}}
	count := map[*types.Named]int{}
	for _, k := range p.prog.AllPackages() {
		if !p.own[k.Pkg.Path()] {
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
	for _, f := range p.order {
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
			p.split.types[n] = true
		}
	}
	for n := range made {
		if p.split.isLockLike(n) && hasLock(n, 0) {
			p.split.types[n] = true
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
