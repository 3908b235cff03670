package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// fetchingOpcodes lists the opcodes of requests that store data in local memory.
var fetchingOpcodes = []string{"WRRDMARead", "WRAtomicCmpAndSwp", "WRAtomicFetchAdd"}

// checkStatus reports functions that use data without a successful completion.
func (p *Program) checkStatus() []Report {
	return slices.Concat(p.checkFetches(), p.checkHeaders(), p.checkUndefined())
}

// checkHeaders reports functions of receives that read bytes before they examine the status of the completion.
func (p *Program) checkHeaders() (reports []Report) {
	for f := range p.calledBy(func(name string) bool { return name == postRecv || name == postOnSRQ }) {
		if len(f.Params) == 0 || f.base != nil || strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go") {
			continue
		}
		wc := f.Params[len(f.Params)-1]
		if !isCompletion(wc.Type()) || !readsStatus(f) && mayExamineStatus(f) {
			continue
		}
		for _, at := range f.Blocks[0].Instrs { // up to the first condition
			if a, ok := at.(*ssa.FieldAddr); ok && isStatus(a) {
				break
			}
			if passes(at, wc) || !p.readsBytes(at, nil, 0) || p.escapes.escapeAt(p.Fset, at.Pos(), Status) != nil {
				continue
			}
			name := functionName(f)
			reports = append(reports, Report{Status, at.Pos(), name + ", which a completion calls, reads bytes before the " +
				"status", []PathStep{{at.Pos(), name, "reads bytes"}}})
			break
		}
	}
	return reports
}

// readsBytes reports whether an instruction, or a called function, reads elements of a slice of bytes. If from is not
// nil, only slices of from count.
func (p *Program) readsBytes(at ssa.Instruction, from ssa.Value, depth int) bool {
	of := func(v ssa.Value) bool { return isByteSlice(v.Type()) && (from == nil || isPartOf(v, from)) }
	switch at := at.(type) {
	case *ssa.UnOp:
		a, ok := at.X.(*ssa.IndexAddr)
		return ok && at.Op == token.MUL && of(a.X)
	case *ssa.Convert:
		return of(at.X)
	case *ssa.Call:
		fn := at.Common().StaticCallee()
		for i, arg := range at.Common().Args {
			if !of(arg) && !(isMessage(arg.Type()) && (from == nil || isPartOf(arg, from))) {
				continue
			}
			if k := packageOf(fn); k != nil && k.Path() == "encoding/binary" && strings.HasPrefix(fn.Name(), "Uint") ||
				depth < keepDepth && p.calleeReadsBytes(at, i, depth) {
				return true
			}
		}
	}
	return false
}

// passes reports whether an instruction is a call with an argument, a completion, which the callee may examine.
func passes(at ssa.Instruction, arg ssa.Value) bool {
	c, ok := at.(*ssa.Call)
	return ok && slices.Contains(c.Common().Args, arg)
}

// isPartOf reports whether a value is another one, a slice of it, or read from a field of it.
func isPartOf(v, whole ssa.Value) bool {
	for v != whole {
		switch x := v.(type) {
		case *ssa.Slice:
			v = x.X
		case *ssa.Field:
			v = x.X
		case *ssa.FieldAddr:
			v = x.X
		case *ssa.ChangeType:
			v = x.X
		case *ssa.UnOp:
			if x.Op != token.MUL {
				return false
			}
			v = x.X
		case *ssa.Alloc:
			if v = onlyStore(x); v == nil {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// isMessage reports whether a type is a struct, or a pointer to one, of slices of bytes and simple values.
func isMessage(t types.Type) bool {
	s, ok := deref(t).Underlying().(*types.Struct)
	if !ok {
		return false
	}
	bytes := false
	for i := range s.NumFields() {
		of := s.Field(i).Type()
		_, simple := of.Underlying().(*types.Basic)
		if bytes = bytes || isByteSlice(of); !simple && !isByteSlice(of) {
			return false
		}
	}
	return bytes
}

// packageOf returns the package of a function, or nil if there is no function.
func packageOf(fn *ssa.Function) *types.Package {
	if fn == nil {
		return nil
	}
	return pkgOf(fn)
}

// calleeReadsBytes reports whether a called function reads elements of its argument number i, a slice of bytes.
func (p *Program) calleeReadsBytes(at *ssa.Call, i, depth int) bool {
	c := p.traces.calls[at]
	if c == nil {
		return false
	}
	return slices.ContainsFunc(c.ownCallees(), func(g *function) bool {
		receiver := len(g.Params) - len(at.Common().Args) // 1 for a call of an interface
		if receiver < 0 || receiver > 1 {
			return false
		}
		return slices.ContainsFunc(g.Blocks, func(b *ssa.BasicBlock) bool {
			return slices.ContainsFunc(b.Instrs, func(x ssa.Instruction) bool {
				return p.readsBytes(x, g.Params[receiver+i], depth+1)
			})
		})
	})
}

// readsStatus reports whether a function itself reads the status of its completion.
func readsStatus(f *function) bool {
	return slices.ContainsFunc(*f.Params[len(f.Params)-1].Referrers(), func(at ssa.Instruction) bool {
		a, ok := at.(*ssa.FieldAddr)
		return ok && isStatus(a)
	})
}

func isByteSlice(t types.Type) bool {
	s, ok := t.Underlying().(*types.Slice)
	return ok && types.Identical(s.Elem(), types.Typ[types.Byte])
}

func isStatus(a *ssa.FieldAddr) bool {
	return isWC(deref(a.X.Type())) && fieldVar(a.X.Type(), a.Field).Name() == "Status"
}

// checkFetches reports functions that post a READ or an atomic and wait for its completion, if the function of the
// completion does not examine the status. After an error the data are those from before. A function that also posts
// other requests may learn of the error from them, and is not reported.
func (p *Program) checkFetches() (reports []Report) {
	for _, f := range p.order {
		if isMidlayer(f) || f.base != nil || strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go") {
			continue
		}
		var post *ssa.Call
		posts := 0
		for _, c := range f.calls {
			if name := c.findReachableFunc(isPostFunc); name == "" {
				continue
			} else if at, ok := c.at.(*ssa.Call); ok && c.static != nil && name == postOneSend {
				post = at
			}
			posts++
		}
		if post == nil || posts > 1 || p.escapes.escapeAt(p.Fset, post.Pos(), Status) != nil {
			continue
		}
		if !p.fetches(post.Common().Args[1], 0) {
			continue
		}
		for _, o := range p.traces.origins(post.Common().Args[2], nil, nil) {
			g := p.funcs[functionOf(o.v)]
			if g == nil || mayExamineStatus(g) || !p.waitsFor(f, g) {
				continue
			}
			name := functionName(f)
			reports = append(reports, Report{Status, post.Pos(), fmt.Sprintf("%s waits for data, but %s does not examine "+
				"the status of the completion", name, functionName(g)), []PathStep{{post.Pos(), name, "posts a request for data"}}})
			break
		}
	}
	return reports
}

func isPostFunc(name string) bool { _, ok := postFuncs[name]; return ok }

// fetches reports whether a work request stores data in local memory. The request may be an argument of all callers, or
// the result of a function.
func (p *Program) fetches(wr ssa.Value, depth int) bool {
	if depth > maxFrames {
		return false
	}
	switch v := wr.(type) {
	case *ssa.Parameter:
		i := slices.Index(v.Parent().Params, v)
		callers := p.traces.callers[v.Parent()]
		return len(callers) > 0 && !slices.ContainsFunc(callers, func(k caller) bool {
			at, ok := k.c.at.(ssa.CallInstruction)
			return !ok || at.Common().StaticCallee() != v.Parent() || !p.fetches(at.Common().Args[i], depth+1)
		})
	case *ssa.Call:
		f := v.Common().StaticCallee()
		if f == nil {
			return false
		}
		found := false
		for _, b := range f.Blocks {
			if r, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Return); ok && len(r.Results) == 1 {
				if found = true; !p.fetches(r.Results[0], depth+1) {
					return false
				}
			}
		}
		return found
	}
	op := opcodeOf(wr)
	return op != nil && slices.ContainsFunc(fetchingOpcodes, func(name string) bool {
		want := p.ibConst(name)
		return want != nil && isConst(op, want)
	})
}

// opcodeOf returns the opcode of a work request that is an argument, or nil.
func opcodeOf(wr ssa.Value) (op ssa.Value) {
	load, ok := wr.(*ssa.UnOp)
	if !ok {
		return nil
	}
	for _, r := range *load.X.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Addr == load.X && op == nil {
			op = opcodeOf(s.Val) // a copy of a literal
		}
		a, ok := r.(*ssa.FieldAddr)
		if !ok || fieldVar(a.X.Type(), a.Field).Name() != "Opcode" {
			continue
		}
		for _, s := range *a.Referrers() {
			if s, ok := s.(*ssa.Store); ok && s.Addr == a {
				op = s.Val
			}
		}
	}
	return op
}

// mayExamineStatus reports whether a function of a work request reads the status of its completion, or passes the
// completion on.
func mayExamineStatus(f *function) bool {
	if len(f.Params) == 0 {
		return true
	}
	wc := f.Params[len(f.Params)-1]
	return !isCompletion(wc.Type()) || slices.ContainsFunc(*wc.Referrers(), func(at ssa.Instruction) bool {
		switch at := at.(type) {
		case *ssa.DebugRef:
			return false
		case *ssa.FieldAddr:
			return isStatus(at)
		}
		return true
	})
}

// waitsFor reports whether a function, or a caller to which it returns the channel, receives from a channel to which
// another function sends, or which it closes.
func (p *Program) waitsFor(f, by *function) bool {
	var wakes []signal
	for _, b := range by.Blocks {
		for _, at := range b.Instrs {
			wakes = append(wakes, p.raisedSignals(at)...)
		}
	}
	waiters := []*function{f}
	for _, k := range p.traces.callers[f.Function] {
		waiters = append(waiters, k.in)
	}
	for _, f := range waiters {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if intersectSignals(wakes, p.awaitedSignals(at)) {
					return true
				}
			}
		}
	}
	return false
}
