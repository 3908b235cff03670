package vet

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const attachPath = module + "/ib/attach"

// checkSessions finds waits for completions between Acquire and Release of an attachment (package ib/attach). The end
// of a session waits for Release, and only this end may flush the requests. The check reports a wait for a signal that
// only completion functions and handlers raise.
func (p *Program) checkSessions() (reports []Report) {
	var acquires []caller
	for _, f := range p.order {
		for _, c := range f.calls {
			if !c.spawns && (isAttachMethod(c.static, "Acquire") || isAttachMethod(c.static, "TryAcquire")) {
				acquires = append(acquires, caller{f, c})
			}
		}
	}
	if acquires == nil {
		return nil
	}
	w := &completionWaits{p: p, effect: p.newEffect(Session), direct: map[ssa.Instruction]*effectCause{},
		signalled: map[signal]bool{}}
	w.find()
	for _, a := range acquires {
		if r := w.findBeforeRelease(a); r != nil {
			reports = append(reports, *r)
		}
	}
	return reports
}

// isMidlayer reports whether a function belongs to package ib or to a package below it.
func isMidlayer(f *function) bool {
	k := pkgOf(f.Function)
	return k != nil && (k.Path() == ibPath || strings.HasPrefix(k.Path(), ibPath+"/"))
}

// isAttachMethod reports whether a function is a method of an attachment.
func isAttachMethod(f *types.Func, name string) bool {
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == attachPath && f.Name() == name
}

// completionWaits holds the waits of a program. Only completions end these waits.
type completionWaits struct {
	p       *Program
	effect  *effect                          // functions that wait, also through callees
	direct  map[ssa.Instruction]*effectCause // the waits
	reached map[*function]*rootVisit         // functions that completions and handlers call
	// signalled holds the signals that the program raises. The value is true if only the functions of reached do.
	signalled map[signal]bool
}

// find finds the waits.
func (w *completionWaits) find() {
	p := w.p
	roots := p.storedHandlers()
	for _, k := range p.completions {
		roots = append(roots, root{k.f, functionName(k.f)})
	}
	w.reached = p.visitReachable(Session, roots, nil, func(*rootVisit) {})
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				w.recordInstruction(f, at)
			}
		}
	}
	for _, f := range p.order {
		if w.reached[f] != nil {
			continue
		}
		for _, o := range f.ops {
			if o.kind == opSleep && p.waitsOnlyFor(o.at, func(s signal) bool { return w.signalled[s] }) &&
				p.escapes.escapeAt(p.Fset, o.pos, Session) == nil {
				w.direct[o.at] = &effectCause{at: o.at, pos: o.pos, what: o.what + ", and only completions end the wait"}
				w.effect.addCause(f, w.direct[o.at])
			}
		}
	}
	callers := p.callers(Session)
	for g, list := range callers { // package ib waits for no completions of a consumer
		callers[g] = slices.DeleteFunc(list, func(k caller) bool { return isMidlayer(k.in) })
	}
	p.propagateEffect(w.effect, callers)
}

// recordInstruction records the signals that an instruction raises, and the channels that it passes to another module,
// which may raise them.
func (w *completionWaits) recordInstruction(f *function, at ssa.Instruction) {
	w.addSignals(w.p.raisedSignals(at), w.reached[f] != nil)
	c, ok := at.(ssa.CallInstruction)
	if !ok {
		return
	}
	if fn, ok := c.Common().Value.(*ssa.Function); ok && w.p.funcs[fn] == nil {
		for _, arg := range c.Common().Args {
			w.addSignals(w.p.channelSignals(arg), false)
		}
	}
}

// addSignals records that a function raises signals. completes reports whether completions and handlers call the
// function.
func (w *completionWaits) addSignals(list []signal, completes bool) {
	for _, s := range list {
		before, known := w.signalled[s]
		w.signalled[s] = completes && (before || !known)
	}
}

// findBeforeRelease returns a report for the first wait on a path from an Acquire that precedes Release.
func (w *completionWaits) findBeforeRelease(a caller) *Report {
	calls := map[ssa.Instruction]*call{}
	for _, c := range a.in.calls {
		calls[c.at] = c
	}
	first := a.c.at.Block()
	seen := map[*ssa.BasicBlock]bool{}
	list := first.Instrs[slices.Index(first.Instrs, ssa.Instruction(a.c.at))+1:]
	for work := []*ssa.BasicBlock{first}; ; list = work[0].Instrs {
		r, released := w.findInList(a, list, calls)
		if r != nil {
			return r
		}
		b := work[0]
		work = work[1:]
		for _, to := range b.Succs {
			if !released && !seen[to] {
				seen[to] = true
				work = append(work, to)
			}
		}
		if len(work) == 0 {
			return nil
		}
	}
}

// findInList returns a report for the first wait in a list of instructions. released reports whether the list calls
// Release before a wait.
func (w *completionWaits) findInList(a caller, list []ssa.Instruction, calls map[ssa.Instruction]*call) (r *Report,
	released bool) {
	for _, at := range list {
		c := calls[at]
		if _, now := at.(*ssa.Call); now && c != nil && isAttachMethod(c.static, "Release") {
			return nil, true
		}
		if d := w.direct[at]; d != nil {
			return newSessionReport(a, d.pos, d.what, nil), false
		}
		if c == nil || c.spawns || w.p.escapes.escapeAt(w.p.Fset, c.pos, Session) != nil {
			continue
		}
		for _, g := range append(w.p.passedFuncs(c), c.callees...) {
			if w.effect.of[g] != nil {
				return newSessionReport(a, c.pos, "calls "+functionName(g), w.effect.callPath(g)), false
			}
		}
	}
	return nil, false
}

func newSessionReport(a caller, pos token.Pos, what string, path []PathStep) *Report {
	name := functionName(a.in)
	return &Report{Session, pos, name + " waits for completions of a session before Release: it " + what,
		append([]PathStep{{a.c.pos, name, "calls " + a.c.static.Name()}, {pos, name, what}}, path...)}
}
