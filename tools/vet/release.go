package vet

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const releaseDepth = 3 // depth of a search in callees

// poolUse is a change of a pool: a field or variable of a package with the free ones of several things, or with flags
// for those in use.
type poolUse struct {
	pool  *types.Var
	gives bool
	value ssa.Value // the thing given to the pool, or nil
	pos   token.Pos
}

// releaseCheck finds memory and slots that a consumer gives back to a pool although work requests still use them.
type releaseCheck struct {
	p       *Program
	callees map[ssa.Instruction]*call
}

// checkReleases reports three mistakes: a post of several work requests that fails counts as a post of none, a
// destruction that has not ended in time counts as ended, and a posted invalidation counts as completed.
func (p *Program) checkReleases() (reports []Report) {
	r := &releaseCheck{p: p, callees: map[ssa.Instruction]*call{}}
	for _, f := range p.order {
		for _, c := range f.calls {
			r.callees[c.at] = c
		}
	}
	for _, f := range p.order {
		if isMidlayer(f) || f.base != nil {
			continue
		}
		for _, c := range f.calls {
			at, ok := c.at.(*ssa.Call)
			if !ok || c.static == nil || p.escapes.escapeAt(p.Fset, c.pos, Release) != nil {
				continue
			}
			switch name := c.static.FullName(); {
			case listPosts[name]:
				reports = append(reports, r.checkPartialPost(f, at, c)...)
			case limitedEnds[name] && !isUnlimited(at.Common().Args[len(at.Common().Args)-1]), r.limitsEnd(at, c):
				reports = append(reports, r.checkLimitedEnd(f, at, c)...)
			}
		}
	}
	reports = append(reports, r.checkInvalidations()...)
	reports = append(reports, p.checkLives(r)...)
	return append(reports, p.checkSurvivors()...)
}

// checkPartialPost reports a post of a list if an exported function ignores the number of accepted requests, and after
// an error gives all slots back that it has taken before the post.
func (r *releaseCheck) checkPartialPost(f *function, at *ssa.Call, c *call) []Report {
	args := at.Common().Args
	if !token.IsExported(f.Name()) || isSingle(args[len(args)-1]) || resultOf(at, 0) != nil {
		return nil
	}
	failed, later := failureBlock(at, resultOf(at, 1)), false
	if failed == nil {
		failed, later = deferredFailure(f, resultOf(at, 1)), true
	}
	if failed == nil {
		return nil
	}
	taken := map[*types.Var]bool{}
	for _, b := range f.Blocks {
		if b != at.Block() && !reachesBlock(b, at.Block(), nil) {
			continue
		}
		list := b.Instrs
		if b == at.Block() {
			list = list[:slices.Index(list, ssa.Instruction(at))]
		}
		for _, u := range r.poolUses(list, 0) {
			taken[u.pool] = taken[u.pool] || !u.gives
		}
	}
	var given *poolUse
	for _, b := range failed.Parent().Blocks {
		if !later && slices.ContainsFunc(b.Instrs, isDefer) {
			return nil // it may end the queue pair
		}
		if !failed.Dominates(b) {
			continue
		}
		if slices.ContainsFunc(b.Instrs, func(at ssa.Instruction) bool { return r.mayEndRequests(at, 0) }) {
			return nil
		}
		for _, u := range r.poolUses(b.Instrs, 0) {
			if u.gives && taken[u.pool] && given == nil {
				given = &u
			}
		}
	}
	if given == nil {
		return nil
	}
	name := functionName(f)
	return []Report{{Release, c.pos, fmt.Sprintf("%s ignores the number of accepted work requests, and after an error "+
		"gives back %s of all of them", name, given.pool.Name()), []PathStep{{c.pos, name, "calls " + c.static.Name()},
		{given.pos, name, "changes " + given.pool.Name()}}}}
}

// checkLimitedEnd reports memory that a function gives to a pool after a destruction with a time limit, if this does
// not depend on the end of the destruction.
func (r *releaseCheck) checkLimitedEnd(f *function, at *ssa.Call, c *call) (reports []Report) {
	var given []poolUse
	seen := map[*ssa.BasicBlock]bool{}
	var visit func(b *ssa.BasicBlock, list []ssa.Instruction)
	visit = func(b *ssa.BasicBlock, list []ssa.Instruction) {
		for i, x := range list {
			if r.mayEndRequests(x, 0) {
				return
			}
			given = append(given, r.poolUses(list[i:i+1], 0)...)
			if _, ok := x.(*ssa.RunDefers); ok {
				given = append(given, r.deferredUses(f)...)
			}
		}
		next := b.Succs
		if branch, ok := list[len(list)-1].(*ssa.If); ok {
			switch failed, on := failureEdge(branch, at); {
			case on:
				next = b.Succs[failed : failed+1]
			case dependsOn(branch.Cond, at, 0):
				return
			}
		}
		for _, to := range next {
			if !seen[to] {
				seen[to] = true
				visit(to, to.Instrs)
			}
		}
	}
	visit(at.Block(), at.Block().Instrs[slices.Index(at.Block().Instrs, ssa.Instruction(at))+1:])
	for _, u := range given {
		if u.gives && u.value != nil && r.isMemory(u.value, pkgOf(f.Function)) && r.isTakenForUse(u.pool) {
			name := functionName(f)
			return []Report{{Release, c.pos, fmt.Sprintf("%s gives memory to %s also if %s has not ended in time: the peer may "+
				"still change the memory", name, u.pool.Name(), c.static.Name()),
				[]PathStep{{c.pos, name, "calls " + c.static.Name()}, {u.pos, name, "changes " + u.pool.Name()}}}}
		}
	}
	return nil
}

// limitsEnd reports whether a call passes a destruction, as a method value, to a function that calls it with a time
// limit.
func (r *releaseCheck) limitsEnd(at *ssa.Call, c *call) bool {
	for i, arg := range at.Common().Args {
		end := functionOf(arg)
		if end == nil || !limitedEnds[fullName(boundMethod(end))] {
			continue
		}
		for _, g := range c.callees {
			for _, k := range g.calls {
				inner, ok := k.at.(*ssa.Call)
				if ok && i < len(g.Params) && inner.Call.Value == ssa.Value(g.Params[i]) && !isUnlimited(inner.Call.Args[0]) {
					return true
				}
			}
		}
	}
	return false
}

// deferredUses returns the changes of pools by the deferred functions that neither test an error nor end requests.
func (r *releaseCheck) deferredUses(f *function) (uses []poolUse) {
	for _, c := range f.calls {
		if !isDefer(c.at) {
			continue
		}
		for _, g := range c.callees {
			var own []poolUse
			for _, b := range g.Blocks {
				branch, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If)
				if ok && testsError(branch) || slices.ContainsFunc(b.Instrs, func(at ssa.Instruction) bool {
					return r.mayEndRequests(at, 0)
				}) {
					return nil
				}
				own = append(own, r.poolUses(b.Instrs, 0)...)
			}
			uses = append(uses, own...)
		}
	}
	return uses
}

// testsError reports whether a branch compares an error.
func testsError(branch *ssa.If) bool {
	o, ok := branch.Cond.(*ssa.BinOp)
	return ok && isErrorType(o.X.Type())
}

func isDefer(at ssa.Instruction) bool {
	_, ok := at.(*ssa.Defer)
	return ok
}

// isUnlimited reports whether a context never ends.
func isUnlimited(ctx ssa.Value) bool {
	c, ok := ctx.(*ssa.Call)
	return ok && strings.HasPrefix(fullName(c.Common().StaticCallee()), "context.") && len(c.Common().Args) == 0
}

// isSingle reports whether a list of variadic arguments has at most one element.
func isSingle(v ssa.Value) bool {
	if c, ok := v.(*ssa.Const); ok {
		return c.IsNil()
	}
	s, ok := v.(*ssa.Slice)
	if !ok {
		return false
	}
	a, ok := deref(s.X.Type()).Underlying().(*types.Array)
	return ok && a.Len() <= 1
}

// resultOf returns result i of a call with several results, or nil if it is not used.
func resultOf(c *ssa.Call, i int) ssa.Value {
	for _, user := range *c.Referrers() {
		if e, ok := user.(*ssa.Extract); ok && e.Index == i && len(*e.Referrers()) > 0 {
			return e
		}
	}
	return nil
}

// failureBlock returns the block that runs only if the error of a call is not nil, or nil.
func failureBlock(c *ssa.Call, err ssa.Value) *ssa.BasicBlock {
	if err == nil {
		return nil
	}
	for _, b := range c.Parent().Blocks {
		if branch, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If); ok {
			if i, on := failureEdge(branch, err); on && len(b.Succs[i].Preds) == 1 {
				return b.Succs[i]
			}
		}
	}
	return nil
}

// deferredFailure returns the block of the only deferred function that runs only if an error, which the function stores
// in a captured variable, is not nil. It returns nil without one.
func deferredFailure(f *function, err ssa.Value) *ssa.BasicBlock {
	var deferred []*ssa.MakeClosure
	for _, c := range f.calls {
		if d, ok := c.at.(*ssa.Defer); ok {
			m, _ := d.Call.Value.(*ssa.MakeClosure)
			deferred = append(deferred, m)
		}
	}
	if err == nil || len(deferred) != 1 || deferred[0] == nil {
		return nil
	}
	g := deferred[0].Fn.(*ssa.Function)
	for _, user := range *err.Referrers() {
		s, ok := user.(*ssa.Store)
		i := -1
		if ok {
			i = slices.Index(deferred[0].Bindings, s.Addr)
		}
		if i < 0 {
			continue
		}
		for _, b := range g.Blocks {
			branch, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If)
			if !ok {
				continue
			}
			o, ok := branch.Cond.(*ssa.BinOp)
			if !ok {
				continue
			}
			load, ok := o.X.(*ssa.UnOp)
			if !ok || load.X != ssa.Value(g.FreeVars[i]) {
				continue
			}
			if to, on := failureEdge(branch, load); on && len(b.Succs[to].Preds) == 1 {
				return b.Succs[to]
			}
		}
	}
	return nil
}

// failureEdge returns the index of the successor for an error that is not nil. on reports whether the branch compares
// the error err with nil.
func failureEdge(branch *ssa.If, err ssa.Value) (index int, on bool) {
	o, ok := branch.Cond.(*ssa.BinOp)
	if !ok || o.Op != token.NEQ && o.Op != token.EQL {
		return 0, false
	}
	nilConst, ok := o.Y.(*ssa.Const)
	if !ok || !nilConst.IsNil() || !isStoredValue(o.X, err) {
		return 0, false
	}
	if o.Op == token.EQL {
		return 1, true
	}
	return 0, true
}

// isStoredValue reports whether a value is v, or is read from a variable to which v was just stored.
func isStoredValue(x, v ssa.Value) bool {
	if x == v {
		return true
	}
	load, ok := x.(*ssa.UnOp)
	if !ok || load.Op != token.MUL {
		return false
	}
	for _, user := range *v.Referrers() {
		if s, ok := user.(*ssa.Store); ok && s.Addr == load.X && s.Val == v && s.Block() == load.Block() {
			return true
		}
	}
	return false
}

// dependsOn reports whether a value is computed from v.
func dependsOn(x, v ssa.Value, depth int) bool {
	if isStoredValue(x, v) {
		return true
	}
	at, ok := x.(ssa.Instruction)
	if !ok || depth > 8 {
		return false
	}
	for _, o := range at.Operands(nil) {
		if *o != nil && dependsOn(*o, v, depth+1) {
			return true
		}
	}
	return false
}

// mayEndRequests reports whether an instruction may end work requests, or wait for their end: it calls package ib or
// one below it, an unknown function, or starts a goroutine.
func (r *releaseCheck) mayEndRequests(at ssa.Instruction, depth int) bool {
	c := r.callees[at]
	switch {
	case c == nil:
		return false
	case c.spawns:
		return true
	case c.static != nil && c.static.Pkg() != nil && isMidlayerPath(c.static.Pkg().Path()):
		return !readsObject(c.static)
	case c.static == nil && len(c.callees) == 0 && len(c.library) == 0:
		return true
	case depth == releaseDepth:
		return len(c.callees) > 0
	}
	for _, g := range c.callees {
		for _, b := range g.Blocks {
			if slices.ContainsFunc(b.Instrs, func(x ssa.Instruction) bool { return r.mayEndRequests(x, depth+1) }) {
				return true
			}
		}
	}
	return false
}

func isMidlayerPath(path string) bool { return path == ibPath || strings.HasPrefix(path, ibPath+"/") }

// readsObject reports whether a method of package ib only returns an attribute.
func readsObject(f *types.Func) bool {
	return slices.Contains([]string{"Addr", "LKey", "RKey", "Num", "Error", "String", "State", "Name"}, f.Name())
}

// poolUses returns the changes of pools by a list of instructions and by the functions that it calls.
func (r *releaseCheck) poolUses(list []ssa.Instruction, depth int) (uses []poolUse) {
	for _, at := range list {
		if u, ok := poolUseOf(at); ok && u.pool != nil {
			u.pos = at.Pos()
			uses = append(uses, u)
		}
		if c := r.callees[at]; c != nil && !c.spawns && depth < releaseDepth {
			for _, g := range c.callees {
				for _, b := range g.Blocks {
					if !isMidlayer(g) {
						uses = append(uses, r.poolUses(b.Instrs, depth+1)...)
					}
				}
			}
		}
	}
	return uses
}

// poolUseOf returns the change of a pool by an instruction.
func poolUseOf(at ssa.Instruction) (u poolUse, ok bool) {
	switch at := at.(type) {
	case *ssa.Send:
		return poolUse{pool: poolOf(at.Chan), gives: true, value: at.X}, true
	case *ssa.UnOp:
		return poolUse{pool: poolOf(at.X)}, at.Op == token.ARROW
	case *ssa.Select:
		if len(at.States) != 1 {
			return u, false
		}
		x := at.States[0]
		return poolUse{pool: poolOf(x.Chan), gives: x.Dir == types.SendOnly, value: x.Send}, true
	case *ssa.Call:
		switch args := at.Common().Args; fullName(at.Common().StaticCallee()) {
		case "(*sync.Pool).Put":
			u = poolUse{pool: placeVar(args[0]), gives: true, value: args[1]}
			if m, ok := args[1].(*ssa.MakeInterface); ok {
				u.value = m.X
			}
			return u, true
		case "(*sync.Pool).Get":
			return poolUse{pool: placeVar(args[0])}, true
		}
	case *ssa.Store:
		switch to := at.Addr.(type) {
		case *ssa.IndexAddr: // a flag
			pool := fieldOf(to.X)
			if a, ok := to.X.(*ssa.FieldAddr); ok {
				pool = fieldVar(a.X.Type(), a.Field)
			}
			basic, ok := at.Val.Type().Underlying().(*types.Basic)
			return poolUse{pool: pool, gives: isFalseConst(at.Val), value: to.Index}, ok && basic.Kind() == types.Bool
		case *ssa.FieldAddr, *ssa.Global: // a list
			pool := placeVar(to)
			switch v := at.Val.(type) {
			case *ssa.Slice:
				return poolUse{pool: pool}, poolOf(v.X) == pool
			case *ssa.Call:
				b, ok := v.Common().Value.(*ssa.Builtin)
				if ok && b.Name() == "append" && poolOf(v.Common().Args[0]) == pool {
					return poolUse{pool: pool, gives: true, value: appendedValue(v)}, true
				}
			}
		}
	}
	return poolUse{}, false
}

// poolOf returns the field or the variable of a package from which a channel or a list was read, or nil.
func poolOf(v ssa.Value) *types.Var {
	if f := fieldOf(v); f != nil {
		return f
	}
	if load, ok := v.(*ssa.UnOp); ok && load.Op == token.MUL {
		return placeVar(load.X)
	}
	return nil
}

// placeVar returns the field or the variable of a package with an address, or nil.
func placeVar(addr ssa.Value) *types.Var {
	switch a := addr.(type) {
	case *ssa.FieldAddr:
		return fieldVar(a.X.Type(), a.Field)
	case *ssa.Global:
		v, _ := a.Object().(*types.Var)
		return v
	}
	return nil
}

func isFalseConst(v ssa.Value) bool {
	c, ok := v.(*ssa.Const)
	return ok && c.Value != nil && c.Value.Kind() == constant.Bool && !constant.BoolVal(c.Value)
}

// appendedValue returns the value that an append of one value appends, or nil.
func appendedValue(c *ssa.Call) ssa.Value {
	s, ok := c.Common().Args[1].(*ssa.Slice)
	if !ok || !isSingle(s) {
		return nil
	}
	a, ok := s.X.(*ssa.Alloc)
	if !ok {
		return nil
	}
	for _, user := range *a.Referrers() {
		if at, ok := user.(*ssa.IndexAddr); ok {
			for _, w := range *at.Referrers() {
				if store, ok := w.(*ssa.Store); ok {
					return store.Val
				}
			}
		}
	}
	return nil
}

// isTakenForUse reports whether all functions that take from a pool use the taken memory: they destroy nothing.
func (r *releaseCheck) isTakenForUse(pool *types.Var) (taken bool) {
	for _, f := range r.p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if u, ok := poolUseOf(at); !ok || u.gives || u.pool != pool {
					continue
				}
				if r.destroys(f, 0) {
					return false
				}
				taken = true
			}
		}
	}
	return taken
}

// destroys reports whether a function destroys objects.
func (r *releaseCheck) destroys(f *function, depth int) bool {
	for _, c := range f.calls {
		if c.static != nil && c.static.Pkg() != nil && isMidlayerPath(c.static.Pkg().Path()) {
			for _, verb := range []string{"Destroy", "Dereg", "Dealloc", "Close"} {
				if strings.HasPrefix(c.static.Name(), verb) {
					return true
				}
			}
			continue
		}
		for _, g := range c.callees {
			if depth < releaseDepth && r.destroys(g, depth+1) {
				return true
			}
		}
	}
	return false
}

// isMemory reports whether a value is memory, or the index of memory.
func (r *releaseCheck) isMemory(v ssa.Value, k *types.Package) bool {
	if isMemoryType(v.Type(), 0) {
		return true
	}
	index := fieldOf(v)
	if index == nil {
		return false
	}
	for _, f := range r.p.order {
		if pkgOf(f.Function) != k {
			continue
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if s, ok := at.(*ssa.Slice); ok && isMemoryType(s.X.Type(), 0) && s.Low != nil && isFrom(s.Low, index) {
					return true
				}
			}
		}
	}
	return false
}

// isFrom reports whether an index is computed from a field.
func isFrom(v ssa.Value, field *types.Var) bool {
	switch x := v.(type) {
	case *ssa.BinOp:
		return isFrom(x.X, field) || isFrom(x.Y, field)
	case *ssa.Convert:
		return isFrom(x.X, field)
	}
	return fieldOf(v) == field
}

// isMemoryType reports whether values of a type are memory of work requests, or contain it.
func isMemoryType(t types.Type, depth int) bool {
	if isNamed(t, ibPath+".MR") {
		return true
	}
	switch u := deref(t).Underlying().(type) {
	case *types.Slice:
		b, ok := u.Elem().Underlying().(*types.Basic)
		return ok && b.Kind() == types.Byte
	case *types.Array:
		b, ok := u.Elem().Underlying().(*types.Basic)
		return ok && b.Kind() == types.Byte
	case *types.Struct:
		for i := range u.NumFields() {
			if depth == 0 && isMemoryType(u.Field(i).Type(), 1) {
				return true
			}
		}
	}
	return false
}
