package vet

import (
	"go/token"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// A callback returns: it neither panics nor ends its goroutine or the process. A panic is an assertion of the
// programmer if it depends only on the program's own state. A panic that depends on data is reported (peerdata.go).

// endFuncs lists the functions that end the goroutine or the process.
var endFuncs = map[string]bool{
	"runtime.Goexit": true, "os.Exit": true, "syscall.Exit": true, "log.Fatal": true, "log.Fatalf": true,
	"log.Fatalln": true, "(*log.Logger).Fatal": true, "(*log.Logger).Fatalf": true, "(*log.Logger).Fatalln": true,
}

// panicFuncs lists the functions of the library that panic.
var panicFuncs = map[string]bool{
	"log.Panic": true, "log.Panicf": true, "log.Panicln": true, "(*log.Logger).Panic": true, "(*log.Logger).Panicf": true,
	"(*log.Logger).Panicln": true,
}

func isEndFunc(name string) bool   { return endFuncs[name] }
func isPanicFunc(name string) bool { return panicFuncs[name] }

// maxPaths limits the number of paths to one function that the search distinguishes.
const maxPaths = 8

// checkPanics reports callbacks that do not return.
func (p *Program) checkPanics() (reports []Report) {
	said := map[token.Pos]bool{}
	report := func(v *rootVisit, pos token.Pos, what string) {
		if said[pos] || p.escapes.escapeAt(p.Fset, pos, Panic) != nil {
			return
		}
		said[pos] = true
		reports = append(reports, Report{Panic, pos, v.root.why + " may not return: it " + what,
			v.pathTo(PathStep{pos, functionName(v.f), what})})
	}
	for _, recovers := range []bool{true, false} {
		p.visitCallbacks(recovers, func(v *rootVisit) {
			for _, c := range v.f.calls {
				if c.spawns {
					continue
				}
				ends, panics := c.findReachableFunc(isEndFunc), c.findReachableFunc(isPanicFunc)
				switch {
				case ends != "" && !recovers:
					report(v, c.pos, "calls "+ends)
				case panics != "" && recovers && p.dependsOnData(v, c.at):
					report(v, c.pos, "calls "+panics)
				}
			}
			for _, b := range v.f.Blocks {
				at, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Panic)
				if ok && recovers && at.Pos().IsValid() && p.dependsOnData(v, at) {
					report(v, at.Pos(), "panics")
				}
			}
		})
	}
	return reports
}

// callbackRoots returns the handlers of consumers, and the functions of work requests.
func (p *Program) callbackRoots() []root {
	want := p.contract.fieldsOf(ibPath, handlerFields)
	maps.Copy(want, p.contract.fieldsOf(completionPath, completionFields))
	roots := p.storedFuncs(want, handlerArgs)
	for _, k := range p.completions {
		roots = append(roots, root{k.f, functionName(k.f) + ", which a completion calls,"})
	}
	return slices.DeleteFunc(roots, func(r root) bool {
		return isMidlayer(r.f) || strings.HasSuffix(p.Fset.Position(r.f.Pos()).Filename, "_test.go")
	})
}

// visitCallbacks visits the functions that callbacks reach in their own module, on up to maxPaths paths. recovers
// omits functions that recover from panics.
func (p *Program) visitCallbacks(recovers bool, f func(*rootVisit)) {
	var queue []*rootVisit
	paths := map[*function]int{}
	add := func(v *rootVisit) {
		if paths[v.f] < maxPaths && !isMidlayer(v.f) && !(recovers && v.f.recovers()) && v.f.allowed[Panic] == nil {
			paths[v.f]++
			queue = append(queue, v)
		}
		if x := v.f.allowed[Panic]; x != nil {
			x.Used = true
		}
	}
	for _, r := range p.callbackRoots() {
		add(&rootVisit{f: r.f, root: &r})
	}
	for ; len(queue) > 0; queue = queue[1:] {
		v := queue[0]
		f(v)
		for _, c := range v.f.calls {
			if c.spawns || c.agreed || p.escapes.escapeAt(p.Fset, c.pos, Panic) != nil {
				continue
			}
			for i, g := range c.callees {
				if i < c.own || !recovers || !slices.ContainsFunc(c.callees[:c.own], (*function).recovers) {
					add(&rootVisit{f: g, from: v, by: c, root: v.root})
				}
			}
		}
	}
}

// recovers reports whether a function defers a function that recovers from panics.
func (f *function) recovers() bool {
	return slices.ContainsFunc(f.calls, func(c *call) bool {
		_, deferred := c.at.(*ssa.Defer)
		return deferred && slices.ContainsFunc(c.ownCallees(), func(g *function) bool { return callsRecover(g.Function) })
	})
}

// branch is an outcome of a condition.
type branch struct {
	cond    ssa.Value
	outcome bool
	nearest bool
}

// dependsOnData reports whether data decides that a function executes an instruction. If the function always executes
// it, the conditions of its caller count.
func (p *Program) dependsOnData(v *rootVisit, at ssa.Instruction) bool {
	branches := branchesTo(at.Block())
	if len(branches) == 0 {
		return v.from == nil || p.dependsOnData(v.from, v.by.at)
	}
	d := &dataSearch{p: p, seen: map[dataPoint]bool{}}
	return slices.ContainsFunc(branches, func(b branch) bool {
		return (b.nearest || p.isFailure(b)) && d.isData(b.cond, v, 0)
	})
}

// branchesTo returns the conditions that lead to a block.
func branchesTo(b *ssa.BasicBlock) (list []branch) {
	nearest := true
	for d := b; d != nil; d = d.Idom() {
		if cond, ok := d.Instrs[len(d.Instrs)-1].(*ssa.If); ok && d != b {
			for i, to := range d.Succs {
				if to.Dominates(b) && len(to.Preds) == 1 {
					list = append(list, branch{cond.Cond, i == 0, nearest})
					nearest = false
				}
			}
		}
		if len(d.Preds) < 2 || !nearest {
			continue
		}
		for _, from := range d.Preds { // one of several conditions
			if cond, ok := from.Instrs[len(from.Instrs)-1].(*ssa.If); ok && !d.Dominates(from) {
				list = append(list, branch{cond.Cond, from.Succs[0] == d, true})
			}
		}
		nearest = len(list) == 0
	}
	return list
}

// isFailure reports whether an outcome means that something has failed: an error that is not nil, a status that is not
// a success, or an absent element.
func (p *Program) isFailure(b branch) bool {
	switch x := b.cond.(type) {
	case *ssa.UnOp:
		if x.Op == token.NOT {
			return p.isFailure(branch{x.X, !b.outcome, b.nearest})
		}
	case *ssa.BinOp:
		if _, ok := x.Y.(*ssa.Const); !ok || x.Op != token.EQL && x.Op != token.NEQ {
			return false
		}
		isFailing := isErrorType(x.X.Type()) || p.isIBType(x.X.Type(), "WCStatus")
		return isFailing && b.outcome == (x.Op == token.NEQ)
	case *ssa.Extract:
		_, lookup := x.Tuple.(*ssa.Lookup)
		return lookup && !b.outcome
	}
	return false
}
