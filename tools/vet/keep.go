package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// keepDepth is the depth of a search for kept values in callees.
const keepDepth = 4

// checkKept reports functions of work requests that keep their completion: the completion is valid until the function
// returns. A function that waits may wait for the user of the completion, and is not reported.
func (p *Program) checkKept() (reports []Report) {
	for _, k := range p.completions {
		f := k.f
		if len(f.Params) == 0 || strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go") ||
			slices.ContainsFunc(f.ops, func(o operation) bool { return o.kind == opSleep && !isSend(o.at) }) {
			continue
		}
		wc := f.Params[len(f.Params)-1]
		if !isCompletion(wc.Type()) {
			continue
		}
		s := &keptSearch{p: p, seen: map[ssa.Value]bool{}}
		s.follow(wc, 0)
		if s.pos == token.NoPos || p.escapes.escapeAt(p.Fset, s.pos, Keep) != nil {
			continue
		}
		name := strings.TrimSuffix(functionName(f), "$bound")
		reports = append(reports, Report{Keep, s.pos, fmt.Sprintf("%s, which a completion calls, %s: the completion is "+
			"valid until the function returns", name, s.what), []PathStep{{s.pos, name, s.what}}})
	}
	return reports
}

func isSend(at ssa.Instruction) bool {
	_, ok := at.(*ssa.Send)
	return ok
}

// isCompletion reports whether a type is *ib.WC.
func isCompletion(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	return ok && isNamed(p.Elem(), ibPath+".WC")
}

// mayHoldCompletion reports whether a value of a type may contain an *ib.WC.
func mayHoldCompletion(t types.Type, depth int) bool {
	if isCompletion(t) {
		return true
	}
	if depth > keepDepth {
		return false
	}
	switch t := t.Underlying().(type) {
	case *types.Interface:
		return true
	case *types.Slice:
		return mayHoldCompletion(t.Elem(), depth+1)
	case *types.Array:
		return mayHoldCompletion(t.Elem(), depth+1)
	case *types.Pointer:
		return mayHoldCompletion(t.Elem(), depth+1)
	case *types.Tuple:
		return true
	case *types.Struct:
		for i := range t.NumFields() {
			if mayHoldCompletion(t.Field(i).Type(), depth+1) {
				return true
			}
		}
	}
	return false
}

// keptSearch follows a pointer to a completion through a function and its callees.
type keptSearch struct {
	p    *Program
	seen map[ssa.Value]bool
	pos  token.Pos // position of the instruction that keeps the pointer
	what string
}

const (
	sendsCompletion  = "sends its completion to a channel"
	storesCompletion = "stores its completion"
	startsWith       = "starts a goroutine with its completion"
)

func (s *keptSearch) keep(pos token.Pos, what string) {
	if s.pos == token.NoPos {
		s.pos, s.what = pos, what
	}
}

// follow follows a value that contains the pointer.
func (s *keptSearch) follow(v ssa.Value, depth int) {
	if s.seen[v] || v.Referrers() == nil {
		return
	}
	s.seen[v] = true
	for _, r := range *v.Referrers() {
		switch r := r.(type) {
		case *ssa.Phi, *ssa.ChangeType, *ssa.MakeInterface, *ssa.ChangeInterface, *ssa.TypeAssert, *ssa.Slice, *ssa.Field,
			*ssa.Extract:
			if x := r.(ssa.Value); mayHoldCompletion(x.Type(), 0) {
				s.follow(x, depth)
			}
		default:
			s.use(r, v, depth)
		}
	}
}

// use follows a value that an instruction stores, sends, captures or passes.
func (s *keptSearch) use(at ssa.Instruction, v ssa.Value, depth int) {
	switch at := at.(type) {
	case *ssa.Store:
		if at.Val == v {
			s.store(at, at.Addr, depth)
		}
	case *ssa.Send:
		if at.X == v {
			s.keep(at.Pos(), sendsCompletion)
		}
	case *ssa.Select:
		for _, c := range at.States {
			if c.Send == v {
				s.keep(c.Pos, sendsCompletion)
			}
		}
	case *ssa.MapUpdate:
		if at.Value == v {
			s.keep(at.Pos(), storesCompletion)
		}
	case *ssa.MakeClosure:
		s.capture(at, v, depth)
	case ssa.CallInstruction:
		s.pass(at, v, depth)
	}
}

// store follows a pointer that is stored at an address.
func (s *keptSearch) store(at *ssa.Store, addr ssa.Value, depth int) {
	for {
		switch a := addr.(type) {
		case *ssa.FieldAddr:
			addr = a.X
			continue
		case *ssa.IndexAddr:
			addr = a.X
			continue
		case *ssa.Alloc:
			s.load(a, depth)
		default:
			s.keep(at.Pos(), storesCompletion)
		}
		return
	}
}

// load follows the contents of a local variable at an address.
func (s *keptSearch) load(addr ssa.Value, depth int) {
	if s.seen[addr] {
		return
	}
	s.seen[addr] = true
	for _, r := range *addr.Referrers() {
		switch r := r.(type) {
		case *ssa.UnOp:
			if mayHoldCompletion(r.Type(), 0) {
				s.follow(r, depth)
			}
		case *ssa.FieldAddr, *ssa.IndexAddr:
			if x := r.(ssa.Value); mayHoldCompletion(deref(x.Type()), 0) {
				s.load(x, depth)
			}
		case *ssa.Slice:
			s.follow(r, depth)
		default:
			s.use(r, addr, depth)
		}
	}
}

// capture follows a value that a function literal captures.
func (s *keptSearch) capture(c *ssa.MakeClosure, v ssa.Value, depth int) {
	for _, r := range *c.Referrers() {
		switch r := r.(type) {
		case *ssa.Go:
			s.keep(r.Pos(), startsWith)
		case ssa.CallInstruction:
			if k := s.callOf(r); k != nil && k.spawns || isStart(r) {
				s.keep(r.Pos(), startsWith)
			}
		}
	}
	fn, ok := c.Fn.(*ssa.Function)
	for i, b := range c.Bindings {
		if ok && b == v && depth < keepDepth {
			if x := ssa.Value(fn.FreeVars[i]); isCompletion(x.Type()) {
				s.follow(x, depth+1)
			} else {
				s.load(x, depth+1)
			}
		}
	}
}

// startFuncs lists functions of the standard library that run their argument on another goroutine.
var startFuncs = []string{"(*sync.WaitGroup).Go", "time.AfterFunc"}

func isStart(at ssa.CallInstruction) bool {
	return slices.Contains(startFuncs, fullName(at.Common().StaticCallee()))
}

// pass follows a value that is an argument of a call.
func (s *keptSearch) pass(at ssa.CallInstruction, v ssa.Value, depth int) {
	common := at.Common()
	if b, ok := common.Value.(*ssa.Builtin); ok {
		if x, ok := at.(*ssa.Call); ok && b.Name() == "append" {
			s.follow(x, depth)
		}
		return
	}
	if _, ok := at.(*ssa.Go); ok {
		s.keep(at.Pos(), startsWith)
		return
	}
	fn := common.StaticCallee()
	if fn == nil || s.p.funcs[fn] == nil || isMidlayer(s.p.funcs[fn]) || depth >= keepDepth {
		return
	}
	if slices.ContainsFunc(s.p.funcs[fn].ops, func(o operation) bool { return o.kind == opSleep && !isSend(o.at) }) {
		return // waits, perhaps for the user
	}
	for i, arg := range common.Args {
		if arg != v || i >= len(fn.Params) {
			continue
		}
		if _, isAddress := v.(*ssa.Alloc); isAddress {
			s.load(fn.Params[i], depth+1)
		} else {
			s.follow(fn.Params[i], depth+1)
		}
	}
}

// callOf returns the call of an instruction, or nil.
func (s *keptSearch) callOf(at ssa.CallInstruction) *call {
	if f := s.p.funcs[at.Parent()]; f != nil {
		for _, c := range f.calls {
			if c.at == at {
				return c
			}
		}
	}
	return nil
}
