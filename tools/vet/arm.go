package vet

import (
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const (
	armVerbsCQ     = "(*" + verbsPath + ".CQ).Arm"
	waitForChannel = "(*" + verbsPath + ".Channel).Wait"
	reportMissed   = 4 // ib.NotifyReportMissed
)

// These functions poll, arm and create completion queues.
var (
	pollFuncs   = []string{pollCQ, "(*" + verbsPath + ".CQ).Poll", "(*" + verbsPath + ".CQ).Wait"}
	armFuncs    = []string{"(*" + ibPath + ".CQ).ReqNotify", armVerbsCQ}
	createFuncs = []string{"(*" + ibPath + ".Device).CreateCQ", "(*" + verbsPath + ".Device).CreateCQ"}
)

// armedFields lists the fields of package ib with completion handlers.
var armedFields = map[string][]string{"CQInit": {"Handler"}, "CQ": {"handler"}}

// armFlow finds completion queues that a thread polls until they are empty, and then arms without a further poll.
// Completions that arrive in between raise no handler call.
type armFlow struct {
	p        *Program
	polls    *effect
	creates  *effect
	waits    map[*function]bool
	lost     map[*function][]lostArm
	handlers map[*function]bool
}

// lostArm is a call that arms a queue, or that calls a function which ends in such a call. No poll follows the call in
// its function.
type lostArm struct {
	in    *function
	c     *call
	waits bool // whether the function waits after the call
	by    *lostArm
}

// checkArms reports queues that are armed after the last poll.
func (p *Program) checkArms() (reports []Report) {
	a := &armFlow{p: p, polls: p.callersOf(pollFuncs...), creates: p.callersOf(createFuncs...),
		waits: map[*function]bool{}, lost: map[*function][]lostArm{}, handlers: map[*function]bool{}}
	roots := p.storedFuncs(p.contract.fieldsOf(ibPath, armedFields), nil)
	for _, r := range roots {
		a.handlers[r.f] = true
	}
	said := map[token.Pos]bool{}
	for _, f := range p.order {
		if isLibrary(f) || f.base != nil || strings.HasSuffix(p.Fset.Position(f.Pos()).Filename, "_test.go") {
			continue
		}
		for _, l := range a.lostArms(f, 0) {
			if !a.handlers[f] && !(l.waits && l.isIn(pkgOf(f.Function))) {
				continue
			}
			at := a.polledBefore(&l)
			if at == nil || said[at.c.pos] || p.escapes.escapeAt(p.Fset, at.c.pos, Arm) != nil || a.isPolledElsewhere(f) {
				continue
			}
			said[at.c.pos] = true
			reports = append(reports, Report{Arm, at.c.pos, functionName(at.in) + " arms a completion queue after its last " +
				"poll: a completion between the poll and ReqNotify raises no handler call", l.path()})
		}
	}
	return reports
}

// callersOf returns the functions outside packages ib and verbs that call one of some functions, directly or
// indirectly.
func (p *Program) callersOf(names ...string) *effect {
	e := p.newEffect(Arm)
	for _, f := range p.order {
		for _, c := range f.calls {
			if !c.spawns && !isLibrary(f) && c.reachesMethod(names...) {
				e.addCause(f, &effectCause{at: c.at, pos: c.pos, what: "calls " + names[0]})
			}
		}
	}
	callers := p.callers(Arm)
	for g := range callers {
		if isLibrary(g) {
			delete(callers, g)
		}
	}
	p.propagateEffect(e, callers)
	return e
}

// reachesMethod reports whether a call calls one of some methods, also by a method value.
func (c *call) reachesMethod(names ...string) bool {
	return c.findReachableFunc(func(n string) bool { return slices.Contains(names, n) }) != ""
}

// isIn reports whether all functions on the path to the arming belong to a package.
func (l *lostArm) isIn(k *types.Package) bool {
	return pkgOf(l.in.Function) == k && (l.by == nil || l.by.isIn(k))
}

func (l *lostArm) path() (steps []PathStep) {
	for ; l != nil; l = l.by {
		what := "calls ReqNotify"
		if l.by != nil {
			what = "calls " + functionName(l.by.in)
		}
		steps = append(steps, PathStep{l.c.pos, functionName(l.in), what})
	}
	return steps
}

// lostArms returns the calls of a function that arm a queue, without a later poll in the function.
func (a *armFlow) lostArms(f *function, depth int) []lostArm {
	if list, ok := a.lost[f]; ok || depth > 10 {
		return list
	}
	a.lost[f] = nil
	var list []lostArm
	for _, c := range f.calls {
		if c.spawns {
			continue
		}
		var arms []lostArm
		if c.reachesMethod(armFuncs...) {
			if a.isBlind(c) {
				arms = []lostArm{{in: f, c: c}}
			}
		} else if c.static != nil || len(c.ownCallees()) == 1 { // not a table of functions
			for _, g := range c.callees {
				if isLibrary(g) {
					continue
				}
				for _, l := range a.lostArms(g, depth+1) {
					arms = append(arms, lostArm{in: f, c: c, by: &l, waits: l.waits})
				}
			}
		}
		if len(arms) == 0 {
			continue
		}
		polls, waits := a.after(f, c)
		for _, l := range arms {
			if l.waits = l.waits || waits; !polls || l.by != nil && l.by.waits {
				list = append(list, l)
			}
		}
	}
	a.lost[f] = list
	return list
}

// isBlind reports whether a call does not report missed completions, or its caller ignores the report. Package verbs
// has no report.
func (a *armFlow) isBlind(c *call) bool {
	args := c.at.(ssa.CallInstruction).Common().Args
	if c.reachesMethod(armVerbsCQ) {
		return true
	}
	if len(args) == 0 {
		return false
	}
	reported, silent := 0, 0
	for _, o := range a.p.traces.origins(args[len(args)-1], nil, nil) {
		k, ok := o.v.(*ssa.Const)
		if !ok || k.Value == nil {
			return false
		}
		if n, _ := constant.Int64Val(constant.ToInt(k.Value)); n&reportMissed != 0 {
			reported++
		} else {
			silent++
		}
	}
	return silent > 0 && reported == 0 || silent == 0 && !a.usesMissed(c, 0)
}

// usesMissed reports whether the first result of a call has a use.
func (a *armFlow) usesMissed(c *call, depth int) bool {
	v := valueOfCall(c)
	if v == nil || depth > keepDepth {
		return false
	}
	uses := *v.Referrers()
	if _, tuple := v.Type().(*types.Tuple); tuple {
		uses = slices.DeleteFunc(slices.Clone(uses), func(at ssa.Instruction) bool {
			x, ok := at.(*ssa.Extract)
			return ok && x.Index != 0
		})
	}
	return slices.ContainsFunc(uses, func(at ssa.Instruction) bool { return a.isUse(at, depth) })
}

// isUse reports whether an instruction uses the report of missed completions.
func (a *armFlow) isUse(at ssa.Instruction, depth int) bool {
	switch at := at.(type) {
	case *ssa.DebugRef:
		return false
	case *ssa.Extract:
		return slices.ContainsFunc(*at.Referrers(), func(at ssa.Instruction) bool { return a.isUse(at, depth) })
	case *ssa.Return:
		callers := a.p.traces.callers[at.Parent()]
		return len(callers) == 0 || slices.ContainsFunc(callers, func(k caller) bool { return a.usesMissed(k.c, depth+1) })
	}
	return true
}

// after reports whether a poll may follow a call in its function, and whether the function waits instead. A path ends
// where the thread waits for another thread.
func (a *armFlow) after(f *function, c *call) (polls, waits bool) {
	if _, deferred := c.at.(*ssa.Defer); deferred {
		return false, false
	}
	b := c.at.Block()
	seen := map[*ssa.BasicBlock]bool{}
	var walk func(list []ssa.Instruction, b *ssa.BasicBlock)
	walk = func(list []ssa.Instruction, b *ssa.BasicBlock) {
		for _, at := range list {
			if k := a.p.traces.calls[at]; k != nil && a.isPoll(k) {
				polls = true
				return
			}
			if a.isWait(at) {
				waits = true
				return
			}
		}
		for _, to := range b.Succs {
			if !seen[to] {
				seen[to] = true
				walk(to.Instrs, to)
			}
		}
	}
	walk(b.Instrs[slices.Index(b.Instrs, c.at)+1:], b)
	return polls, waits
}

// isPoll reports whether a call polls a completion queue, or calls a function that does.
func (a *armFlow) isPoll(c *call) bool {
	return !c.spawns && (c.reachesMethod(pollFuncs...) || slices.ContainsFunc(c.callees, func(g *function) bool {
		return a.polls.of[g] != nil && !isLibrary(g)
	}))
}

// isWait reports whether an instruction waits until another thread acts. A wait with a time limit does not count, and
// neither does a wait for work.
func (a *armFlow) isWait(at ssa.Instruction) bool {
	switch at := at.(type) {
	case *ssa.UnOp:
		return at.Op == token.ARROW && isSignal(at.X)
	case *ssa.Select:
		return at.Blocking && !slices.ContainsFunc(at.States, func(s *ssa.SelectState) bool {
			return s.Dir == types.SendOnly || !isSignal(s.Chan)
		})
	case *ssa.Call:
		switch fullName(at.Call.StaticCallee()) {
		case condWait:
			return true
		case waitForChannel:
			return !a.hasTimeLimit(at.Call.Args[1])
		}
		c := a.p.traces.calls[at]
		return c != nil && len(c.ownCallees()) == 1 && a.waitsInside(c.ownCallees()[0])
	}
	return false
}

// hasTimeLimit reports whether a context may have a time limit.
func (a *armFlow) hasTimeLimit(ctx ssa.Value) bool {
	return slices.ContainsFunc(a.p.traces.origins(ctx, nil, nil), func(o valueOrigin) bool {
		return creatingCall(o.v, "context.WithTimeout", "context.WithDeadline") != nil
	})
}

// waitsInside reports whether a function waits, and does not poll.
func (a *armFlow) waitsInside(g *function) bool {
	if is, ok := a.waits[g]; ok {
		return is
	}
	a.waits[g] = false
	if isLibrary(g) || a.polls.of[g] != nil {
		return false
	}
	for _, b := range g.Blocks {
		a.waits[g] = a.waits[g] || slices.ContainsFunc(b.Instrs, a.isWait)
	}
	return a.waits[g]
}

// isSignal reports whether the elements of a channel carry no data, or only the queue that a handler was called for.
func isSignal(ch ssa.Value) bool {
	c, ok := ch.Type().Underlying().(*types.Chan)
	if !ok {
		return false
	}
	s, ok := c.Elem().Underlying().(*types.Struct)
	return ok && s.NumFields() == 0 || isNamed(c.Elem(), ibPath+".CQ")
}

// polledBefore returns the innermost call on the path to an arming that a poll precedes, or nil.
func (a *armFlow) polledBefore(l *lostArm) *lostArm {
	if l.by != nil {
		if at := a.polledBefore(l.by); at != nil {
			return at
		}
	}
	_, deferred := l.c.at.(*ssa.Defer)
	for _, c := range l.in.calls {
		if c == l.c || !a.isPoll(c) {
			continue
		}
		from, to := c.at.Block(), l.c.at.Block()
		if deferred || from == to && slices.Index(from.Instrs, c.at) < slices.Index(to.Instrs, l.c.at) ||
			reachesBlock(from, to, nil) {
			return l
		}
	}
	return nil
}

// isPolledElsewhere reports whether another thread polls the queues of a function's package: a function that is no
// handler, calls no function of the given one, and does not create the queue.
func (a *armFlow) isPolledElsewhere(f *function) bool {
	own := a.queuesPolledBy(f)
	for _, g := range a.p.order {
		if pkgOf(g.Function) != pkgOf(f.Function) || g == f || g.base != nil {
			continue
		}
		for _, c := range g.calls {
			if c.spawns || !c.reachesMethod(pollFuncs...) {
				continue
			}
			q := queueOf(c)
			if (q == nil || len(own) == 0 || own[q]) && a.hasOtherRoot(g, f, map[*function]bool{}) {
				return true
			}
		}
	}
	return false
}

// hasOtherRoot reports whether a thread calls a function, other than by f, by a handler, or by a function that creates
// the queue.
func (a *armFlow) hasOtherRoot(g, f *function, seen map[*function]bool) bool {
	if g == f || a.handlers[g] || a.creates.of[g] != nil || seen[g] {
		return false
	}
	seen[g] = true
	callers := a.p.traces.callers[g.Function]
	return len(callers) == 0 || slices.ContainsFunc(callers, func(k caller) bool {
		return k.c.spawns || a.hasOtherRoot(k.in, f, seen)
	})
}

// queuesPolledBy returns the fields with the queues that a function polls, or that a queue with this handler is stored
// in.
func (a *armFlow) queuesPolledBy(f *function) map[*types.Var]bool {
	fields := map[*types.Var]bool{}
	for g := range (&eventFlow{p: a.p}).callees(f) {
		for _, c := range g.calls {
			if q := queueOf(c); c.reachesMethod(pollFuncs...) && q != nil {
				fields[q] = true
			}
		}
	}
	if len(fields) == 0 {
		a.addCreatedQueues(f, fields)
	}
	return fields
}

// addCreatedQueues adds the fields in which a queue with a given handler is stored when it is created.
func (a *armFlow) addCreatedQueues(handler *function, fields map[*types.Var]bool) {
	for _, v := range a.p.handlerStores() {
		if functionOf(v.Val) != handler.Function {
			continue
		}
		forEachCall(v.Parent(), func(at ssa.CallInstruction, name string, _ []ssa.Value) {
			c, ok := at.(*ssa.Call)
			if !ok || !slices.Contains(createFuncs, name) {
				return
			}
			for _, r := range *c.Referrers() {
				if x, ok := r.(*ssa.Extract); ok && x.Index == 0 {
					for _, user := range usersOf(x) {
						if s, ok := user.(*ssa.Store); ok && s.Val == ssa.Value(x) && innermostField(s.Addr) != nil {
							to := innermostField(s.Addr)
							fields[fieldVar(to.X.Type(), to.Field)] = true
						}
					}
				}
			}
		})
	}
}

// handlerStores returns the stores to the handler of a CQInit.
func (p *Program) handlerStores() (list []*ssa.Store) {
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				if a, ok := s.Addr.(*ssa.FieldAddr); ok && isNamed(a.X.Type(), ibPath+".CQInit") &&
					fieldVar(a.X.Type(), a.Field).Name() == "Handler" {
					list = append(list, s)
				}
			}
		}
	}
	return list
}

// queueOf returns the field with the queue of a poll, or nil.
func queueOf(c *call) *types.Var {
	at := c.at.(ssa.CallInstruction).Common()
	if len(at.Args) == 0 {
		return nil
	}
	return fieldOf(at.Args[0])
}
