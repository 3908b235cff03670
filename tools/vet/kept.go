package vet

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// keptSearch follows references to memory of the caller through a function and its callees.
type keptSearch struct {
	p     *Program
	kept  *keptKind
	seen  map[ssa.Value]bool
	calls []ssa.Instruction // the calls through which the search has entered the current function
	pos   token.Pos         // position of the instruction that keeps a reference
	what  string
}

func (s *keptSearch) keep(pos token.Pos, format string) {
	if s.pos == token.NoPos {
		s.pos, s.what = pos, strings.Replace(format, "%", s.kept.noun, 1)
	}
}

const (
	sendsKept  = "sends % to a channel"
	storesKept = "stores %"
	startsWith = "starts a goroutine with %"
)

// follow follows a value that is or contains a reference.
func (s *keptSearch) follow(v ssa.Value, depth int) {
	if s.seen[v] || v.Referrers() == nil {
		return
	}
	s.seen[v] = true
	for _, r := range *v.Referrers() {
		switch r := r.(type) {
		case *ssa.Phi, *ssa.ChangeType, *ssa.MakeInterface, *ssa.ChangeInterface, *ssa.TypeAssert, *ssa.Slice, *ssa.Field,
			*ssa.Extract:
			s.followResult(r.(ssa.Value), depth)
		case *ssa.IndexAddr, *ssa.FieldAddr, *ssa.UnOp:
			if s.kept.loads {
				s.followResult(r.(ssa.Value), depth)
			}
		default:
			s.use(r, v, depth)
		}
	}
}

// followResult follows the result of an instruction, if its type may hold a reference.
func (s *keptSearch) followResult(v ssa.Value, depth int) {
	if s.kept.holds(v.Type()) {
		s.follow(v, depth)
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
			s.keep(at.Pos(), sendsKept)
		}
	case *ssa.Select:
		for _, c := range at.States {
			if c.Send == v {
				s.keep(c.Pos, sendsKept)
			}
		}
	case *ssa.MapUpdate:
		if at.Value == v {
			s.keep(at.Pos(), storesKept)
		}
	case *ssa.MakeClosure:
		s.capture(at, v, depth)
	case *ssa.Return:
		s.returnValue(at, v, depth)
	case ssa.CallInstruction:
		s.pass(at, v, depth)
	}
}

// returnValue follows a value that a function returns to its caller.
func (s *keptSearch) returnValue(at *ssa.Return, v ssa.Value, depth int) {
	n := len(s.calls)
	if n == 0 {
		return
	}
	call, ok := s.calls[n-1].(*ssa.Call)
	if !ok {
		return
	}
	s.calls = s.calls[:n-1]
	defer func() { s.calls = append(s.calls, call) }()
	if len(at.Results) == 1 {
		s.followResult(call, depth-1)
		return
	}
	for _, r := range *call.Referrers() {
		if x, ok := r.(*ssa.Extract); ok && at.Results[x.Index] == v {
			s.followResult(x, depth-1)
		}
	}
}

// store follows a reference that an instruction stores at an address.
func (s *keptSearch) store(at ssa.Instruction, addr ssa.Value, depth int) {
	for to := addr; ; {
		switch a := to.(type) {
		case *ssa.FieldAddr:
			to = a.X
			continue
		case *ssa.IndexAddr:
			to = a.X
			continue
		case *ssa.Slice:
			to = a.X
			continue
		case *ssa.Alloc:
			s.load(a, depth)
		case *ssa.MakeSlice:
			s.follow(a, depth)
		default:
			if !s.isDropped(at, addr) {
				s.keep(at.Pos(), storesKept)
			}
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
			if !isRequest(r.Type()) || !replacesList(addr) {
				s.followResult(r, depth)
			}
		case *ssa.FieldAddr, *ssa.IndexAddr:
			if x := r.(ssa.Value); s.kept.holds(deref(x.Type())) {
				s.load(x, depth)
			}
		case *ssa.Slice:
			s.follow(r, depth)
		default:
			s.use(r, addr, depth)
		}
	}
}

// capture follows a value that a function literal captures, and the function literal.
func (s *keptSearch) capture(c *ssa.MakeClosure, v ssa.Value, depth int) {
	for _, r := range *c.Referrers() {
		switch r := r.(type) {
		case *ssa.Go:
			s.keep(r.Pos(), startsWith)
		case ssa.CallInstruction:
			if k := s.p.traces.calls[r]; k != nil && k.spawns || isStart(r) {
				s.keep(r.Pos(), startsWith)
			}
		}
	}
	fn, ok := c.Fn.(*ssa.Function)
	for i, b := range c.Bindings {
		if ok && b == v && depth < keepDepth {
			if x := ssa.Value(fn.FreeVars[i]); types.Identical(x.Type(), v.Type()) && !isAddress(v) {
				s.follow(x, depth+1)
			} else {
				s.load(x, depth+1)
			}
		}
	}
	if depth < keepDepth {
		s.follow(c, depth)
	}
}

func isAddress(v ssa.Value) bool {
	_, ok := v.(*ssa.Alloc)
	return ok
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
		s.passToBuiltin(at, b.Name(), v, depth)
		return
	}
	if _, ok := at.(*ssa.Go); ok {
		s.keep(at.Pos(), startsWith)
		return
	}
	k := s.p.traces.calls[at]
	if k == nil || k.agreed || depth >= keepDepth {
		return
	}
	s.calls = append(s.calls, at)
	defer func() { s.calls = s.calls[:len(s.calls)-1] }()
	for _, g := range k.ownCallees() {
		if isMidlayer(g) || slices.ContainsFunc(g.ops, func(o operation) bool { return o.kind == opSleep && !isSend(o.at) }) {
			continue // a function that sleeps may wait for the user
		}
		for i, x := range g.Params {
			switch {
			case argumentFor(k, g.Function, i) != v:
			case isAddress(v):
				s.load(x, depth+1)
			default:
				s.follow(x, depth+1)
			}
		}
	}
}

// passToBuiltin follows a value that is an argument of append or copy.
func (s *keptSearch) passToBuiltin(at ssa.CallInstruction, name string, v ssa.Value, depth int) {
	args := at.Common().Args
	x, ok := at.(*ssa.Call)
	if !ok || len(args) < 2 {
		return
	}
	elem, ok := args[0].Type().Underlying().(*types.Slice)
	switch copies := ok && s.kept.holds(elem.Elem()); {
	case name == "append" && (args[0] == v || copies):
		s.follow(x, depth)
	case name == "copy" && args[1] == v && copies:
		s.store(at, args[0], depth)
	}
}
