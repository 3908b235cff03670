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

// definedFields lists the fields of a completion that are defined for every status.
var definedFields = []string{"ID", "Status", "VendorErr", "QPNum", "QPN", "QP"}

// undefinedUse is a use of a field of a completion that is undefined after an error.
type undefinedUse struct {
	at   ssa.Instruction
	pos  token.Pos
	what string
}

// fieldUses finds uses of undefined fields that no examination of the status precedes.
type fieldUses struct {
	p       *Program
	polled  map[any]bool           // the memory that CQ.Poll fills: variables, fields and allocations
	done    map[*ssa.Function]bool // the functions of work requests
	field   string                 // the field of the current search
	reports []Report
	said    map[token.Pos]bool
}

// checkUndefined reports uses of fields of completions without a prior examination of the status.
func (p *Program) checkUndefined() []Report {
	u := &fieldUses{p: p, polled: map[any]bool{}, done: map[*ssa.Function]bool{}, said: map[token.Pos]bool{}}
	for _, k := range p.completions {
		u.done[k.f.Function] = true
	}
	for _, f := range p.order {
		for _, c := range f.calls {
			if at, ok := c.at.(ssa.CallInstruction); ok && !isMidlayer(f) && c.static != nil &&
				slices.Contains(pollFuncs, c.static.FullName()) && len(at.Common().Args) > 1 {
				u.addPolled(at.Common().Args[len(at.Common().Args)-1], 0)
			}
		}
	}
	for _, f := range p.order {
		if f.base == nil && !isLibrary(f) && !strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go") {
			u.checkFunction(f)
		}
	}
	return u.reports
}

// addPolled records the memory of a slice that a poll fills.
func (u *fieldUses) addPolled(v ssa.Value, depth int) {
	root := storageOf(v)
	u.polled[root] = true
	x, ok := root.(*ssa.Parameter)
	if !ok || depth > maxFrames {
		return
	}
	for _, k := range u.p.traces.callers[x.Parent()] {
		if a := argumentFor(k.c, x.Parent(), slices.Index(x.Parent().Params, x)); a != nil {
			u.addPolled(a, depth+1)
		}
	}
}

// storageOf identifies the memory that a pointer or slice refers to: a field, or a value.
func storageOf(v ssa.Value) any {
	switch x := v.(type) {
	case *ssa.Slice:
		return storageOf(x.X)
	case *ssa.IndexAddr:
		return storageOf(x.X)
	case *ssa.FieldAddr:
		return fieldVar(x.X.Type(), x.Field)
	case *ssa.FreeVar:
		if b := boundValueOf(x); b != nil {
			return storageOf(b)
		}
	case *ssa.UnOp:
		if a, ok := x.X.(*ssa.Alloc); ok {
			if v := onlyStore(a); v != nil {
				return storageOf(v)
			}
		}
		return storageOf(x.X)
	}
	return v
}

// onlyStore returns the only value that is stored in a variable, or nil.
func onlyStore(a *ssa.Alloc) (v ssa.Value) {
	for _, r := range *a.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Addr == ssa.Value(a) {
			if v != nil {
				return nil
			}
			v = s.Val
		}
	}
	return v
}

// isWC reports whether a type is a completion of package ib or verbs.
func isWC(t types.Type) bool { return isNamed(t, ibPath+".WC") || isNamed(t, providerPath+".WC") }

// completionAt returns a value that identifies the completion to which a pointer points, or that a value copies.
func completionAt(v ssa.Value) ssa.Value {
	switch x := v.(type) {
	case *ssa.UnOp:
		if x.Op == token.MUL {
			return completionAt(x.X)
		}
	case *ssa.Alloc: // a variable with a copy, or with a pointer
		if s := onlyStore(x); s != nil && isWC(s.Type()) {
			return completionAt(s)
		}
	}
	return v
}

// sameCompletion reports whether two results of completionAt denote one completion.
func sameCompletion(a, b ssa.Value) bool {
	x, ok1 := a.(*ssa.IndexAddr)
	y, ok2 := b.(*ssa.IndexAddr)
	if ok1 && ok2 {
		return storageOf(x.X) == storageOf(y.X) && (sameValue(x.Index, y.Index) || sameConst(x.Index, y.Index))
	}
	return a == b
}

func sameConst(a, b ssa.Value) bool {
	x, ok1 := a.(*ssa.Const)
	y, ok2 := b.(*ssa.Const)
	return ok1 && ok2 && x.Value != nil && y.Value != nil && constant.Compare(x.Value, token.EQL, y.Value)
}

// readField returns the field of a completion that an instruction reads, with the completion.
func readField(at ssa.Instruction) (field string, of ssa.Value) {
	switch at := at.(type) {
	case *ssa.UnOp:
		if a, ok := at.X.(*ssa.FieldAddr); ok && at.Op == token.MUL && isWC(a.X.Type()) {
			return fieldVar(a.X.Type(), a.Field).Name(), completionAt(a.X)
		}
	case *ssa.Field:
		if isWC(at.X.Type()) {
			return fieldVar(at.X.Type(), at.Field).Name(), completionAt(at.X)
		}
	}
	return "", nil
}

// checkFunction reports the undefined uses of a function.
func (u *fieldUses) checkFunction(f *function) {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			field, of := readField(at)
			if field == "" || slices.Contains(definedFields, field) || comesWithError(of) {
				continue
			}
			u.field = field
			s := &useSearch{fieldUses: u, of: of, seen: map[ssa.Value]bool{}}
			s.follow(at.(ssa.Value), 0)
			if s.found == nil || u.said[s.found.pos] {
				continue
			}
			pos := s.found.pos
			if !pos.IsValid() {
				pos = at.Pos()
			}
			if u.p.escapes.escapeAt(u.p.Fset, pos, Status) != nil {
				continue
			}
			u.said[pos] = true
			f := u.p.funcs[s.found.at.Parent()]
			u.reports = append(u.reports, Report{Status, pos, fmt.Sprintf("%s %s, which is undefined after an error, without "+
				"an examination of the status", functionName(f), s.found.what), []PathStep{{pos, functionName(f), s.found.what}}})
		}
	}
}

// comesWithError reports whether a completion is a parameter beside its error, which the function uses, as in a loop
// over CQ.Completions.
func comesWithError(v ssa.Value) bool {
	x, ok := v.(*ssa.Parameter)
	return ok && slices.ContainsFunc(x.Parent().Params, func(p *ssa.Parameter) bool {
		return isErrorType(p.Type()) && len(*p.Referrers()) > 0
	})
}

// useSearch follows the value of one field to its uses.
type useSearch struct {
	*fieldUses
	of    ssa.Value
	seen  map[ssa.Value]bool
	found *undefinedUse
}

// add records a use, unless the status is examined before on each path from the poll.
func (s *useSearch) add(at ssa.Instruction, pos token.Pos, how string) {
	if s.found == nil && s.reaches(at, s.of, 0) {
		s.found = &undefinedUse{at, pos, how + " WC." + s.field}
	}
}

// follow follows a value that depends on the field.
func (s *useSearch) follow(v ssa.Value, depth int) {
	if s.seen[v] || v.Referrers() == nil {
		return
	}
	s.seen[v] = true
	for _, r := range *v.Referrers() {
		switch r := r.(type) {
		case *ssa.BinOp, *ssa.Convert, *ssa.ChangeType, *ssa.Phi:
			s.follow(r.(ssa.Value), depth)
		case *ssa.UnOp:
			s.follow(r, depth)
		case *ssa.Slice:
			if r.X != v {
				s.add(r, r.Pos(), "slices by")
			}
		case *ssa.IndexAddr:
			s.add(r, r.Pos(), "indexes by")
		case *ssa.Lookup:
			s.add(r, r.Pos(), "looks up")
		case *ssa.MapUpdate:
			s.add(r, r.Pos(), "stores")
		case *ssa.MakeSlice:
			s.add(r, r.Pos(), "allocates by")
		case *ssa.If:
			if !isJointCondition(r, s.of) && !s.statusLeaves(r.Parent(), isStore) {
				s.add(r, v.Pos(), "decides by")
			}
		case *ssa.Store:
			s.store(r, v, depth)
		case *ssa.Send:
			s.leave(r, r.X, "sends")
		case *ssa.Return:
			s.returnValue(r, v, depth)
		case ssa.CallInstruction:
			s.pass(r, v, depth)
		}
	}
}

// returnValue follows the result of a function to its callers, unless the function also returns the status.
func (s *useSearch) returnValue(at *ssa.Return, v ssa.Value, depth int) {
	fn := at.Parent()
	x, ok := s.of.(*ssa.Parameter)
	if !ok || depth >= keepDepth || s.isExamined(at.Block(), s.of) ||
		slices.ContainsFunc(at.Results, func(v ssa.Value) bool { return s.dependsOnStatus(v, s.of, 0) }) {
		return
	}
	for _, k := range s.p.traces.callers[fn] {
		a, call := argumentFor(k.c, fn, slices.Index(fn.Params, x)), valueOfCall(k.c)
		if a == nil || call == nil || isMidlayer(k.in) {
			continue
		}
		inner := &useSearch{fieldUses: s.fieldUses, of: completionAt(a), seen: s.seen}
		if len(at.Results) == 1 {
			inner.follow(call, depth+1)
		}
		for _, r := range *call.Referrers() {
			if x, ok := r.(*ssa.Extract); ok && at.Results[x.Index] == v {
				inner.follow(x, depth+1)
			}
		}
		if s.found == nil {
			s.found = inner.found
		}
	}
}

// valueOfCall returns the result of a call, or nil for a deferred call and a start of a goroutine.
func valueOfCall(c *call) *ssa.Call {
	v, _ := c.at.(*ssa.Call)
	return v
}

// store follows a value that is stored.
func (s *useSearch) store(at *ssa.Store, v ssa.Value, depth int) {
	switch a := at.Addr.(type) {
	case *ssa.Alloc:
		for _, r := range *a.Referrers() {
			if x, ok := r.(*ssa.UnOp); ok {
				s.follow(x, depth)
			}
		}
		return
	case *ssa.FieldAddr, *ssa.IndexAddr:
		if _, local := storageRoot(a).(*ssa.Alloc); local {
			return // a struct, perhaps with the status
		}
	}
	s.leave(at, v, "stores")
}

// storageRoot returns the variable or pointer with the memory at an address.
func storageRoot(v ssa.Value) ssa.Value {
	switch x := v.(type) {
	case *ssa.FieldAddr:
		return storageRoot(x.X)
	case *ssa.IndexAddr:
		return storageRoot(x.X)
	}
	return v
}

// leave records a value that leaves the function, unless it is the unchanged field and the status leaves too.
func (s *useSearch) leave(at ssa.Instruction, v ssa.Value, how string) {
	if !isUnchanged(v) || !s.statusLeaves(at.Parent(), isStoreOrCall) {
		s.add(at, at.Pos(), how)
	}
}

// isUnchanged reports whether a value is a field of a completion, perhaps of another type.
func isUnchanged(v ssa.Value) bool {
	for {
		switch x := v.(type) {
		case *ssa.Convert:
			v = x.X
		case *ssa.ChangeType:
			v = x.X
		case *ssa.UnOp, *ssa.Field:
			return true
		default:
			return false
		}
	}
}

// statusLeaves reports whether a function stores the status of the completion, or uses it in another way that counts.
func (s *useSearch) statusLeaves(fn *ssa.Function, counts func(ssa.Instruction) bool) bool {
	for _, b := range fn.Blocks {
		for _, at := range b.Instrs {
			if field, of := readField(at); field == "Status" && s.of != nil && sameCompletion(of, s.of) &&
				slices.ContainsFunc(*at.(ssa.Value).Referrers(), counts) {
				return true
			}
		}
	}
	return false
}

func isStore(at ssa.Instruction) bool {
	_, ok := at.(*ssa.Store)
	return ok
}

func isStoreOrCall(at ssa.Instruction) bool {
	switch at := at.(type) {
	case *ssa.Store, *ssa.Send, ssa.CallInstruction:
		return true
	case *ssa.MakeInterface, *ssa.Convert, *ssa.ChangeType, *ssa.BinOp:
		return slices.ContainsFunc(*at.(ssa.Value).Referrers(), isStoreOrCall)
	}
	return false
}

// pass follows a value that is an argument of a call. The callee may examine the completion if it is an argument too.
func (s *useSearch) pass(at ssa.CallInstruction, v ssa.Value, depth int) {
	k := s.p.traces.calls[at]
	if k == nil || k.spawns || depth >= keepDepth || !s.reaches(at, s.of, 0) {
		return
	}
	for _, a := range at.Common().Args {
		if a != v && (isWC(a.Type()) || s.p.isIBType(a.Type(), "WCStatus")) {
			return
		}
	}
	for _, g := range k.ownCallees() {
		if isMidlayer(g) {
			continue
		}
		for i, x := range g.Params {
			if argumentFor(k, g.Function, i) == v {
				inner := &useSearch{fieldUses: s.fieldUses, seen: s.seen}
				inner.follow(x, depth+1)
				if s.found == nil && inner.found != nil {
					s.found = &undefinedUse{at, posOf(at), "calls " + functionName(g) + ", which " + inner.found.what}
				}
			}
		}
	}
}
