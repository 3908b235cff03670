package vet

import (
	"fmt"
	"go/token"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// A function may store a reference in an object and take it out again before it returns.

// isDropped reports whether the function of a store, or one of its callers, overwrites the field or the list of the
// request on each path after the store.
func (s *keptSearch) isDropped(at ssa.Instruction, addr ssa.Value) bool {
	fields := []string{memoryKey(addr)}
	if st, ok := at.(*ssa.Store); ok && isRequest(st.Val.Type()) {
		fields = append(fields, "SGList")
	}
	for _, at := range slices.Backward(append(slices.Clone(s.calls), at)) {
		if s.alwaysClears(at, fields) {
			return true
		}
	}
	return false
}

// innermostField returns the address of the field that contains an address or a slice, or nil.
func innermostField(addr ssa.Value) *ssa.FieldAddr {
	switch a := addr.(type) {
	case *ssa.FieldAddr:
		return a
	case *ssa.IndexAddr:
		return innermostField(a.X)
	case *ssa.Slice:
		return innermostField(a.X)
	case *ssa.UnOp:
		return innermostField(a.X)
	}
	return nil
}

// memoryKey identifies the field that contains an address or a slice, or the pointer that leads there.
func memoryKey(addr ssa.Value) string {
	if a := innermostField(addr); a != nil {
		return fieldKey(a)
	}
	for {
		switch a := addr.(type) {
		case *ssa.IndexAddr:
			addr = a.X
		case *ssa.Slice:
			addr = a.X
		case *ssa.UnOp:
			addr = a.X
		default:
			return fmt.Sprintf("%p", addr)
		}
	}
}

// fieldKey identifies a field. The list of a work request has the same key in all requests.
func fieldKey(a *ssa.FieldAddr) string {
	v := fieldVar(a.X.Type(), a.Field)
	if isRequest(deref(a.X.Type())) {
		return v.Name()
	}
	return namedKey(a) + "." + v.Name()
}

func namedKey(a *ssa.FieldAddr) string {
	if n := namedOf(a.X.Type()); n != nil {
		return n.String()
	}
	return ""
}

// alwaysClears reports whether each path from an instruction to the end of its function clears a field.
func (s *keptSearch) alwaysClears(at ssa.Instruction, fields []string) bool {
	b := at.Block()
	seen := map[*ssa.BasicBlock]bool{}
	clears := func(list []ssa.Instruction) bool {
		return slices.ContainsFunc(list, func(x ssa.Instruction) bool { return s.clears(x, fields, 0) })
	}
	for _, x := range b.Parent().Blocks { // a deferred function
		for _, d := range x.Instrs {
			if c, ok := d.(*ssa.Defer); ok && s.clears(c, fields, 0) && (x == b || x.Dominates(b)) {
				return true
			}
		}
	}
	if clears(b.Instrs[slices.Index(b.Instrs, at)+1:]) {
		return true
	}
	var ends func(b *ssa.BasicBlock) bool // whether a path ends without a clearing instruction
	ends = func(b *ssa.BasicBlock) bool {
		if len(b.Succs) == 0 {
			_, panics := b.Instrs[len(b.Instrs)-1].(*ssa.Panic)
			return !panics
		}
		for _, to := range b.Succs {
			if !seen[to] {
				seen[to] = true
				if !clears(to.Instrs) && ends(to) {
					return true
				}
			}
		}
		return false
	}
	return !ends(b)
}

// clears reports whether an instruction, or a function that it calls, overwrites one of the fields with a value that
// holds no reference.
func (s *keptSearch) clears(at ssa.Instruction, fields []string, depth int) bool {
	switch at := at.(type) {
	case *ssa.Store:
		if slices.Contains(fields, memoryKey(at.Addr)) {
			return holdsNothing(at.Val)
		}
	case ssa.CallInstruction:
		if b, ok := at.Common().Value.(*ssa.Builtin); ok {
			return b.Name() == "clear" && slices.Contains(fields, memoryKey(at.Common().Args[0]))
		}
		k := s.p.traces.calls[at]
		if k == nil || k.spawns || len(k.ownCallees()) != 1 || depth > 1 {
			return false
		}
		for _, b := range k.ownCallees()[0].Blocks {
			if slices.ContainsFunc(b.Instrs, func(x ssa.Instruction) bool { return s.clears(x, fields, depth+1) }) {
				return true
			}
		}
	}
	return false
}

// holdsNothing reports whether a value is zero, or an empty part of a slice.
func holdsNothing(v ssa.Value) bool {
	switch v := v.(type) {
	case *ssa.Const:
		return true
	case *ssa.Slice:
		c, ok := v.High.(*ssa.Const)
		return ok && c.Value != nil && c.Int64() == 0
	case *ssa.UnOp: // a zero composite literal
		a, ok := v.X.(*ssa.Alloc)
		return ok && v.Op == token.MUL && len(*a.Referrers()) == 1
	}
	return false
}

// replacesList reports whether a function stores another list in a copy of a work request at an address.
func replacesList(addr ssa.Value) bool {
	for _, r := range *addr.Referrers() {
		a, ok := r.(*ssa.FieldAddr)
		if !ok || fieldVar(a.X.Type(), a.Field).Name() != "SGList" {
			continue
		}
		for _, u := range *a.Referrers() {
			if st, ok := u.(*ssa.Store); ok && st.Addr == ssa.Value(a) && !isOwnList(st.Val) {
				return true
			}
		}
	}
	return false
}

// isOwnList reports whether a value is a part of the list of a work request.
func isOwnList(v ssa.Value) bool {
	switch v := v.(type) {
	case *ssa.Slice:
		return isOwnList(v.X)
	case *ssa.UnOp:
		a, ok := v.X.(*ssa.FieldAddr)
		return ok && isRequest(deref(a.X.Type()))
	}
	return false
}
