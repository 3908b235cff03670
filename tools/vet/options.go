package vet

import (
	"slices"

	"golang.org/x/tools/go/ssa"
)

// Functional options change a default: a constructor assigns the default to a field of a local variable, and then calls
// functions with the address of the variable. The trace of the field would mix the default with the values of all
// options. contextsOfOptions applies the options of one call of the constructor in their order instead.

// contextsOfOptions returns the contexts that a field of a local variable has after the options of a call. ok is false
// if the value is no such field, or if an option is unknown.
func (q *queueQuery) contextsOfOptions(v ssa.Value, at *callFrame) (in contextSet, ok bool) {
	u, ok := v.(*ssa.UnOp)
	if !ok {
		return 0, false
	}
	addr, ok := u.X.(*ssa.FieldAddr)
	if !ok {
		return 0, false
	}
	a, ok := addr.X.(*ssa.Alloc)
	if !ok {
		return 0, false
	}
	return q.contextsOfOptionField(a, addr.Field, at)
}

// contextsOfOptionField returns the contexts of a field of a variable in the same way as contextsOfOptions.
func (q *queueQuery) contextsOfOptionField(a *ssa.Alloc, field int, at *callFrame) (in contextSet, ok bool) {
	if at == nil || at.in != a.Parent() {
		return 0, false
	}
	in = ctxDirect // the zero value
	var options []valueOrigin
	stored := 0
	for _, r := range *a.Referrers() {
		switch r := r.(type) {
		case *ssa.FieldAddr:
			if r.Field == field {
				for _, s := range storesTo(r) {
					in = q.contextsOfConstant(s.Val, at)
					stored++
				}
			}
		case *ssa.Store: // the value is a composite literal
			stored++
			if in, ok = q.contextsOfLiteral(r.Val, field, at); !ok || r.Addr != ssa.Value(a) {
				return 0, false
			}
		case *ssa.Call:
			list := q.optionFuncs(r, a, at)
			if list == nil {
				return 0, false
			}
			options = append(options, list...)
		case *ssa.UnOp, *ssa.DebugRef:
		default:
			return 0, false
		}
	}
	if options == nil || stored > 1 {
		return 0, false
	}
	for _, o := range options {
		fn := functionOf(o.v)
		if len(fn.Params) != 1 {
			return 0, false
		}
		to, always, known := q.contextsSetByOption(fn, field, o)
		switch {
		case !known:
			return 0, false
		case always:
			in = to
		default:
			in |= to
		}
	}
	return in, true
}

// contextsOfLiteral returns the contexts of a field of a composite literal.
func (q *queueQuery) contextsOfLiteral(v ssa.Value, field int, at *callFrame) (in contextSet, ok bool) {
	u, ok := v.(*ssa.UnOp)
	if !ok {
		return 0, false
	}
	a, ok := u.X.(*ssa.Alloc)
	if !ok {
		return 0, false
	}
	in = ctxDirect
	for _, r := range *a.Referrers() {
		if f, ok := r.(*ssa.FieldAddr); ok && f.Field == field {
			for _, s := range storesTo(f) {
				in = q.contextsOfConstant(s.Val, at)
			}
		}
	}
	return in, true
}

// optionFuncs returns the functions that a call with the address of a variable may call, in their order, or nil if a
// function is unknown.
func (q *queueQuery) optionFuncs(c *ssa.Call, a *ssa.Alloc, at *callFrame) []valueOrigin {
	if c.Call.IsInvoke() || len(c.Call.Args) != 1 || c.Call.Args[0] != ssa.Value(a) {
		return nil
	}
	list := []ssa.Value{c.Call.Value}
	if u, ok := c.Call.Value.(*ssa.UnOp); ok {
		i, ok := u.X.(*ssa.IndexAddr)
		if !ok {
			return nil
		}
		k, ok := i.X.(*ssa.Parameter)
		if !ok {
			return nil
		}
		args := argumentFor(at.call, at.in, slices.Index(at.in.Params, k))
		switch args := args.(type) {
		case *ssa.Const: // without options
			return []valueOrigin{}
		case *ssa.Slice:
			if list = variadicElements(args); len(list) == 0 {
				return nil
			}
		default:
			return nil
		}
		at = at.up
	}
	var options []valueOrigin
	for _, v := range list {
		from := q.p.traces.origins(v, at, nil)
		if len(from) != 1 || functionOf(from[0].v) == nil {
			return nil
		}
		options = append(options, from[0])
	}
	return options
}

// contextsSetByOption returns the contexts that an option stores in a field of its argument. always is false if a path
// of the option stores nothing. known is false if the option passes its argument on.
func (q *queueQuery) contextsSetByOption(fn *ssa.Function, field int, o valueOrigin) (in contextSet, always,
	known bool) {
	for _, r := range *fn.Params[0].Referrers() {
		f, ok := r.(*ssa.FieldAddr)
		if !ok {
			return 0, false, false
		}
		if f.Field != field {
			continue
		}
		for _, s := range storesTo(f) {
			in |= q.contextsOfBound(s.Val, o)
			always = always || s.Block() == fn.Blocks[0]
		}
	}
	return in, always, true
}

// contextsOfBound returns the contexts of a value of a closure, with the variables of the call that created the
// closure.
func (q *queueQuery) contextsOfBound(v ssa.Value, o valueOrigin) (in contextSet) {
	m, ok := o.v.(*ssa.MakeClosure)
	u, is := v.(*ssa.UnOp)
	if !ok || !is {
		return q.contextsOfConstant(v, nil)
	}
	free, ok := u.X.(*ssa.FreeVar)
	if !ok {
		return q.contextsOfConstant(v, nil)
	}
	a, ok := m.Bindings[slices.Index(free.Parent().FreeVars, free)].(*ssa.Alloc)
	if !ok {
		return q.contextsOfConstant(v, nil)
	}
	for _, x := range q.p.traces.variable[a] {
		in |= q.contextsOfConstant(x, o.at)
	}
	return in
}

// storesTo returns the stores to an address.
func storesTo(addr ssa.Value) (list []*ssa.Store) {
	for _, r := range *addr.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Addr == addr {
			list = append(list, s)
		}
	}
	return list
}
