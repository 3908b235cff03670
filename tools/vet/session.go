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
// of a session waits for Release, and only this end may flush the requests. The check reports a wait for a channel if
// only completion functions and handlers send to the channel or close it.
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
	waits := p.newEffect(Session)
	direct := map[ssa.Instruction]*effectCause{}
	reached, signalled := p.completionChannels()
	for _, f := range p.order {
		if reached[f] != nil {
			continue
		}
		for _, o := range f.ops {
			if o.kind == opSleep && p.waitsOnlyFor(o.at, signalled) &&
				p.escapes.escapeAt(p.Fset, o.pos, Session) == nil {
				direct[o.at] = &effectCause{at: o.at, pos: o.pos, what: o.what + " to which only completions send"}
				waits.addCause(f, direct[o.at])
			}
		}
	}
	callers := p.callers(Session)
	for g, list := range callers { // package ib waits for no completions of a consumer
		callers[g] = slices.DeleteFunc(list, func(k caller) bool { return isMidlayer(k.in) })
	}
	p.propagateEffect(waits, callers)
	for _, a := range acquires {
		if r := p.findWaitInSession(a, waits, direct); r != nil {
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

// completionChannels returns the functions that completions and handlers call, and the channels to which only these
// functions send, or which only they close.
func (p *Program) completionChannels() (reached map[*function]*rootVisit, all map[*ssa.MakeChan]bool) {
	roots := p.storedHandlers()
	for _, k := range p.completions {
		roots = append(roots, root{k.f, functionName(k.f)})
	}
	reached = p.visitReachable(Session, roots, nil, func(*rootVisit) {})
	all = map[*ssa.MakeChan]bool{}
	add := func(f *function, ch ssa.Value) {
		for _, o := range p.traces.containerAllocs(ch) {
			m := o.v.(*ssa.MakeChan)
			before, known := all[m]
			all[m] = reached[f] != nil && (before || !known)
		}
	}
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				switch at := at.(type) {
				case *ssa.Send:
					add(f, at.Chan)
				case *ssa.Select:
					for _, s := range at.States {
						if s.Dir == types.SendOnly {
							add(f, s.Chan)
						}
					}
				case ssa.CallInstruction:
					if b, ok := at.Common().Value.(*ssa.Builtin); ok && b.Name() == "close" {
						add(f, at.Common().Args[0])
					}
				}
			}
		}
	}
	return reached, all
}

// waitsOnlyFor reports whether an operation waits for channels of the set and for nothing else.
func (p *Program) waitsOnlyFor(at ssa.Instruction, set map[*ssa.MakeChan]bool) bool {
	in := func(ch ssa.Value) bool {
		from := p.traces.containerAllocs(ch)
		return len(from) > 0 && !slices.ContainsFunc(from, func(o valueOrigin) bool { return !set[o.v.(*ssa.MakeChan)] })
	}
	switch at := at.(type) {
	case *ssa.UnOp:
		return at.Op == token.ARROW && in(at.X)
	case *ssa.Select:
		return at.Blocking && !slices.ContainsFunc(at.States, func(s *ssa.SelectState) bool {
			return s.Dir == types.SendOnly || !in(s.Chan)
		})
	}
	return false
}

// findWaitInSession returns a report for the first wait on a path from an Acquire that precedes Release.
func (p *Program) findWaitInSession(a caller, waits *effect, direct map[ssa.Instruction]*effectCause) *Report {
	calls := map[ssa.Instruction]*call{}
	for _, c := range a.in.calls {
		calls[c.at] = c
	}
	b := a.c.at.Block()
	seen := map[*ssa.BasicBlock]bool{}
	work := []*ssa.BasicBlock{b}
	for first := true; len(work) > 0; first = false {
		b, work = work[0], work[1:]
		list := b.Instrs
		if first {
			list = list[slices.Index(list, ssa.Instruction(a.c.at))+1:]
		}
		released := false
		for _, at := range list {
			c := calls[at]
			if _, now := at.(*ssa.Call); now && c != nil && isAttachMethod(c.static, "Release") {
				released = true
				break
			}
			if d := direct[at]; d != nil {
				return p.newSessionReport(a, d.pos, d.what, nil)
			}
			if c == nil || c.spawns || p.escapes.escapeAt(p.Fset, c.pos, Session) != nil {
				continue
			}
			for _, g := range c.callees {
				if waits.of[g] != nil {
					return p.newSessionReport(a, c.pos, "calls "+functionName(g), waits.callPath(g))
				}
			}
		}
		if released {
			continue
		}
		for _, to := range b.Succs {
			if !seen[to] {
				seen[to] = true
				work = append(work, to)
			}
		}
	}
	return nil
}

func (p *Program) newSessionReport(a caller, pos token.Pos, what string, path []PathStep) *Report {
	name := functionName(a.in)
	return &Report{Session, pos, name + " waits for completions of a session before Release: it " + what,
		append([]PathStep{{a.c.pos, name, "calls " + a.c.static.Name()}, {pos, name, what}}, path...)}
}
