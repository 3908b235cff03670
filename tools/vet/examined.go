package vet

import (
	"go/constant"
	"go/token"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// reaches reports whether a path leads from the poll of a completion to an instruction, without an examination of the
// status. If of is nil, the caller knows of such a path.
func (u *fieldUses) reaches(at ssa.Instruction, of ssa.Value, depth int) bool {
	if of == nil {
		return true
	}
	if depth > maxFrames || u.isExamined(at.Block(), of) {
		return false
	}
	switch x := of.(type) {
	case *ssa.Parameter:
		fn := x.Parent()
		if u.done[fn] {
			return true
		}
		i := slices.Index(fn.Params, x)
		return slices.ContainsFunc(u.p.traces.callers[fn], func(k caller) bool {
			a := argumentFor(k.c, fn, i)
			return a != nil && !isMidlayer(k.in) && u.reaches(k.c.at, completionAt(a), depth+1)
		})
	case *ssa.FreeVar:
		return slices.ContainsFunc(u.p.traces.closures[x.Parent()], func(m *ssa.MakeClosure) bool {
			return u.reaches(m, completionAt(m.Bindings[slices.Index(x.Parent().FreeVars, x)]), depth+1)
		})
	case *ssa.Phi:
		return false
	}
	root := storageOf(of)
	if x, ok := root.(*ssa.Parameter); ok { // a slice of completions
		return u.polled[root] || u.reaches(at, x, depth+1)
	}
	return u.polled[root]
}

// isExamined reports whether each path to a block passes a condition on the status of a completion, with an outcome
// for which the fields may be defined.
func (u *fieldUses) isExamined(b *ssa.BasicBlock, of ssa.Value) bool {
	for d := b.Idom(); d != nil; d = d.Idom() {
		cond, ok := d.Instrs[len(d.Instrs)-1].(*ssa.If)
		if !ok {
			continue
		}
		for i, to := range d.Succs {
			if isEnteredFrom(to, d) && to.Dominates(b) && u.outcomeAllows(cond.Cond, i == 0, of) {
				return true
			}
		}
	}
	return false
}

// isEnteredFrom reports whether a block is entered only from another one. The jumps back of a loop do not count.
func isEnteredFrom(b, from *ssa.BasicBlock) bool {
	return !slices.ContainsFunc(b.Preds, func(p *ssa.BasicBlock) bool { return p != from && !b.Dominates(p) }) &&
		from.Succs[0] != from.Succs[len(from.Succs)-1]
}

// outcomeAllows reports whether the outcome of a condition means that the status of a completion was examined, and is
// not an error.
func (u *fieldUses) outcomeAllows(cond ssa.Value, outcome bool, of ssa.Value) bool {
	switch x := cond.(type) {
	case *ssa.UnOp:
		if x.Op == token.NOT {
			return u.outcomeAllows(x.X, !outcome, of)
		}
	case *ssa.BinOp:
		if c, ok := x.Y.(*ssa.Const); ok && isStatusOf(x.X, of) && c.Value != nil {
			success := constant.Sign(c.Value) == 0
			if flush := u.p.ibConst("WCWRFlushErr"); u.field == "Opcode" && flush != nil && isConst(c, flush) {
				return outcome == (x.Op == token.EQL)
			}
			return success && outcome == (x.Op == token.EQL) || !success && x.Op != token.EQL && x.Op != token.NEQ
		}
	}
	return u.dependsOnStatus(cond, of, 0)
}

// isStatusOf reports whether a value is the status of a completion.
func isStatusOf(v, of ssa.Value) bool {
	at, ok := v.(ssa.Instruction)
	if !ok {
		return false
	}
	field, x := readField(at)
	return field == "Status" && sameCompletion(x, of)
}

// dependsOnStatus reports whether a value depends on the status of a completion, or on a function that receives the
// completion.
func (u *fieldUses) dependsOnStatus(v, of ssa.Value, depth int) bool {
	if depth > 6 {
		return false
	}
	if isStatusOf(v, of) || isWC(v.Type()) && sameCompletion(completionAt(v), of) {
		return true
	}
	var list []ssa.Value
	switch x := v.(type) {
	case *ssa.Call:
		list = x.Call.Args
		if x.Call.StaticCallee() == nil {
			list = append(slices.Clone(list), x.Call.Value)
		}
	case *ssa.Phi:
		list = x.Edges
	case *ssa.BinOp:
		list = []ssa.Value{x.X, x.Y}
	case *ssa.UnOp:
		if list = []ssa.Value{x.X}; x.Op == token.MUL {
			a, ok := x.X.(*ssa.Alloc)
			if !ok || onlyStore(a) == nil {
				field, _ := readField(x)
				return field == "" && u.readsLocal(x.X, of, depth)
			}
			list = []ssa.Value{onlyStore(a)}
		}
	case *ssa.Extract:
		list = []ssa.Value{x.Tuple}
	case *ssa.Lookup:
		list = []ssa.Value{x.Index}
	case *ssa.MakeInterface:
		list = []ssa.Value{x.X}
	case *ssa.ChangeType:
		list = []ssa.Value{x.X}
	case *ssa.ChangeInterface:
		list = []ssa.Value{x.X}
	case *ssa.Convert:
		list = []ssa.Value{x.X}
	case *ssa.MakeClosure:
		list = x.Bindings
	}
	return slices.ContainsFunc(list, func(x ssa.Value) bool { return u.dependsOnStatus(x, of, depth+1) })
}

// readsLocal reports whether a variable at an address has a value that depends on the status of a completion.
func (u *fieldUses) readsLocal(addr, of ssa.Value, depth int) bool {
	a, ok := storageRoot(addr).(*ssa.Alloc)
	if !ok {
		return false
	}
	return slices.ContainsFunc(*a.Referrers(), func(at ssa.Instruction) bool {
		s, ok := at.(*ssa.Store)
		return ok && u.dependsOnStatus(s.Val, of, depth+1)
	})
}

// isJointCondition reports whether a condition on another field only precedes one on the status, with the same
// consequence for an error: `wc.Opcode == ib.WCRecv && wc.Status == ib.WCSuccess`.
func isJointCondition(at *ssa.If, of ssa.Value) bool {
	b := at.Block()
	for i, to := range b.Succs {
		cond, ok := to.Instrs[len(to.Instrs)-1].(*ssa.If)
		if !ok || len(to.Preds) != 1 {
			continue
		}
		if x, ok := cond.Cond.(*ssa.BinOp); ok && isStatusOf(x.X, of) && slices.Contains(to.Succs, b.Succs[1-i]) {
			return true
		}
	}
	return false
}
