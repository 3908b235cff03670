package vet

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// pkgOf returns the package of a function. For a synthetic function pkgOf returns the package of the function's
// origin, or nil if there is none.
func pkgOf(f *ssa.Function) *types.Package {
	for f.Parent() != nil {
		f = f.Parent()
	}
	if o := f.Origin(); o != nil {
		f = o
	}
	if f.Pkg != nil {
		return f.Pkg.Pkg
	}
	if o := f.Object(); o != nil {
		return o.Pkg()
	}
	return nil
}

func deref(t types.Type) types.Type {
	if ptr, ok := t.Underlying().(*types.Pointer); ok {
		return ptr.Elem()
	}
	return t
}

// pointedVariable returns the variable or field to which a pointer points, or nil if it is unknown.
func pointedVariable(v ssa.Value) any {
	switch v := v.(type) {
	case *ssa.Global:
		return v
	case *ssa.FieldAddr:
		return fieldVar(v.X.Type(), v.Field)
	case *ssa.Alloc: // a composite literal that is stored in a single location
		for _, r := range *v.Referrers() {
			switch r := r.(type) {
			case *ssa.UnOp:
				for _, s := range *r.Referrers() {
					if s, ok := s.(*ssa.Store); ok {
						return pointedVariable(s.Addr)
					}
				}
			case *ssa.Store:
				if r.Val == ssa.Value(v) {
					return pointedVariable(r.Addr)
				}
			}
		}
	case *ssa.UnOp:
		if v.Op == token.MUL {
			return pointedVariable(v.X)
		}
	}
	return nil
}

// addressEscapes reports whether the address of a variable is used other than by loads, stores and closures.
func addressEscapes(a *ssa.Alloc) bool {
	for _, r := range *a.Referrers() {
		switch r := r.(type) {
		case *ssa.Store:
			if r.Val == ssa.Value(a) {
				return true
			}
		case *ssa.UnOp, *ssa.DebugRef, *ssa.MakeClosure:
		default:
			return true
		}
	}
	return false
}

func appendFunction(list []*ssa.Function, v ssa.Value) []*ssa.Function {
	fn := functionOf(v)
	if fn == nil || slices.Contains(list, fn) {
		return list
	}
	return append(list, fn)
}

func objectOf(fn *ssa.Function) types.Object {
	if o := fn.Origin(); o != nil {
		fn = o
	}
	return fn.Object()
}

// functionOf returns the function that a value denotes, or nil if the function is unknown.
func functionOf(v ssa.Value) *ssa.Function {
	switch v := v.(type) {
	case *ssa.Function:
		return v
	case *ssa.MakeClosure:
		return v.Fn.(*ssa.Function)
	case *ssa.ChangeType:
		return functionOf(v.X)
	case *ssa.MakeInterface:
		return functionOf(v.X)
	}
	return nil
}

// fieldOf returns the field from which an instruction has read a value, or nil.
func fieldOf(v ssa.Value) *types.Var {
	switch v := v.(type) {
	case *ssa.UnOp:
		if a, ok := v.X.(*ssa.FieldAddr); ok && v.Op == token.MUL {
			return fieldVar(a.X.Type(), a.Field)
		}
	case *ssa.Field:
		return fieldVar(v.X.Type(), v.Field)
	}
	return nil
}

func fieldVar(t types.Type, i int) *types.Var {
	if s, ok := deref(t).Underlying().(*types.Struct); ok {
		return s.Field(i).Origin()
	}
	return nil
}

// isNamed reports whether a type has the name "path.Name".
func isNamed(t types.Type, name string) bool {
	n, ok := types.Unalias(deref(t)).(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path()+"."+n.Obj().Name() == name
}

// shortName returns the name of a function in the form for reports.
func shortName(f *types.Func) string {
	name := f.FullName()
	pkg := ""
	if f.Pkg() != nil {
		pkg = f.Pkg().Path()
	}
	return strings.ReplaceAll(name, pkg+".", f.Pkg().Name()+".")
}

// boundValueOf returns the value in the enclosing function to which a closure's variable is bound.
func boundValueOf(v *ssa.FreeVar) ssa.Value {
	fn := v.Parent()
	i := slices.Index(fn.FreeVars, v)
	if fn.Parent() == nil {
		return nil
	}
	for _, b := range fn.Parent().Blocks {
		for _, at := range b.Instrs {
			if m, ok := at.(*ssa.MakeClosure); ok && m.Fn == fn {
				return m.Bindings[i]
			}
		}
	}
	return nil
}

// isCallResult reports whether a condition is the result of a call, or the negation of the result.
func isCallResult(cond ssa.Value, c *ssa.Call) (yes, is bool) {
	if u, ok := cond.(*ssa.UnOp); ok && u.Op == token.NOT {
		yes, is = isCallResult(u.X, c)
		return !yes, is
	}
	return true, cond == ssa.Value(c)
}

func calleeObject(c *ssa.Call) types.Object {
	if fn := c.Call.StaticCallee(); fn != nil {
		return objectOf(fn)
	}
	if c.Call.IsInvoke() {
		return c.Call.Method
	}
	return nil
}
