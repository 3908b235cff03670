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

// checkKept reports functions that keep memory of their caller: functions of work requests that keep their completion,
// and post methods of drivers that keep work requests.
func (p *Program) checkKept() []Report {
	return append(p.checkKeptCompletions(), p.checkKeptRequests()...)
}

// checkKeptCompletions reports functions of work requests that keep their completion: the completion is valid until the
// function returns. A function that waits may wait for the user of the completion, and is not reported.
func (p *Program) checkKeptCompletions() (reports []Report) {
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
		s := &keptSearch{p: p, kept: keptCompletion, seen: map[ssa.Value]bool{}}
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

// postMethods lists the methods of drivers that receive work requests of the caller.
var postMethods = map[string][]string{
	"DriverQP": {"PostSend", "PostRecv"}, "DriverSRQ": {"PostRecv"}, "SendQueuer": {"QueueSend"},
}

// checkKeptRequests reports post methods of drivers that keep a reference to the list, its elements, inline data, or
// address handles.
func (p *Program) checkKeptRequests() (reports []Report) {
	for _, r := range p.contract.implementingMethods(postMethods) {
		f := r.f
		if len(f.Params) != 2 || isInIB(f) {
			continue
		}
		s := &keptSearch{p: p, kept: keptRequests, seen: map[ssa.Value]bool{}}
		s.follow(f.Params[1], 0)
		if s.pos == token.NoPos || p.escapes.escapeAt(p.Fset, s.pos, Keep) != nil {
			continue
		}
		reports = append(reports, Report{Keep, s.pos, fmt.Sprintf("%s %s: they are valid until the method returns", r.why,
			s.what), []PathStep{{s.pos, functionName(f), s.what}}})
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
	return ok && isWC(p.Elem())
}

// keptKind describes the memory of the caller that a search follows.
type keptKind struct {
	noun  string
	holds func(t types.Type) bool // whether a value of a type may be or contain a reference to the memory
	loads bool                    // whether the memory itself contains references
}

var keptCompletion = &keptKind{"its completion", func(t types.Type) bool { return mayHold(t, isCompletion, 0) }, false}

var keptRequests = &keptKind{"its work requests", func(t types.Type) bool { return mayHold(t, isRequestPart, 0) }, true}

// isRequestPart reports whether a type is a reference to a part of a work request, or a work request, which contains
// such references.
func isRequestPart(t types.Type) bool {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		return isRequest(t)
	case *types.Pointer:
		return isNamed(t.Elem(), ibPath+".SGE") || isNamed(t.Elem(), ibPath+".AH")
	case *types.Slice:
		return isNamed(t.Elem(), ibPath+".SGE") || isByteSlice(t)
	}
	return false
}

// isRequest reports whether a type is ib.SendWR or ib.RecvWR.
func isRequest(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && (isNamed(n, ibPath+".SendWR") || isNamed(n, ibPath+".RecvWR"))
}

// mayHold reports whether a value of a type may contain a value of a wanted type.
func mayHold(t types.Type, wanted func(types.Type) bool, depth int) bool {
	if wanted(t) {
		return true
	}
	if depth > keepDepth || isNamed(t, ibPath+".BindMW") || isNamed(t, ibPath+".FastReg") {
		return false
	}
	switch t := t.Underlying().(type) {
	case *types.Interface, *types.Tuple, *types.Signature:
		return true
	case *types.Slice:
		return mayHold(t.Elem(), wanted, depth+1)
	case *types.Array:
		return mayHold(t.Elem(), wanted, depth+1)
	case *types.Pointer:
		return mayHold(t.Elem(), wanted, depth+1)
	case *types.Struct:
		for i := range t.NumFields() {
			if mayHold(t.Field(i).Type(), wanted, depth+1) {
				return true
			}
		}
	}
	return false
}
