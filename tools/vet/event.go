package vet

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// eventFlow finds mistakes of consumers on paths that only an asynchronous event takes.
type eventFlow struct {
	p       *Program
	callers map[*function][]caller        // also starts of goroutines
	senders map[*ssa.MakeChan][]*function // functions that send to a channel
	closers map[*ssa.MakeChan][]*function // functions that close a channel
	unknown map[string]bool               // classes of channels with sends to an unknown channel
	events  map[string]map[*function]bool // functions that compare an event with a constant, by its name
	static  map[string][]caller           // calls of functions, by the name of the callee
}

const (
	limitEvent = "EventSRQLimitReached"
	lastEvent  = "EventQPLastWQEReached"

	modifySRQ     = "(*" + ibPath + ".SRQ).Modify"
	createSRQ     = "(*" + ibPath + ".PD).CreateSRQ"
	createUserSRQ = "(*" + verbsPath + ".PD).CreateSRQ"
	postUserSRQ   = "(*" + verbsPath + ".SRQ).PostRecv"
	setLimit      = "(*" + verbsPath + ".SRQ).SetLimit"
	postSRQ       = "(*" + ibPath + ".SRQ).PostRecv"
	postOnSRQ     = "(*" + completionPath + ".CQ).PostSRQ"
	pollCQ        = "(*" + ibPath + ".CQ).Poll"
	destroyQP     = "(*" + ibPath + ".QP).Destroy"
	destroyCQ     = "(*" + ibPath + ".CQ).Destroy"
	limitFlag     = "SRQAttrLimit"
	maxCallers    = 64 // depth of a search for callers
)

// checkEvents reports a limit of a shared receive queue that is not armed again, and completions of destroyed queue
// pairs that are used.
func (p *Program) checkEvents() (reports []Report) {
	e := &eventFlow{p: p, callers: map[*function][]caller{}, senders: map[*ssa.MakeChan][]*function{},
		closers: map[*ssa.MakeChan][]*function{}, unknown: map[string]bool{},
		events: map[string]map[*function]bool{}, static: map[string][]caller{}}
	for _, name := range []string{limitEvent, lastEvent} {
		e.events[name] = e.comparingFuncs(name)
	}
	if len(e.events[limitEvent])+len(e.events[lastEvent]) == 0 {
		return nil
	}
	e.index()
	return append(e.checkLimits(), e.checkDestroyedQPs()...)
}

// verbsConsts contains the names in package verbs of constants of package ib.
var verbsConsts = map[string]string{
	limitEvent: "EventSRQLimit", wrLocalInv: "LocalInvalidate", "WRSend": "Send", "WRSendWithImm": "SendWithImm",
	"WRSendWithInv": "SendInvalidate", "WRRDMAWrite": "Write", "WRRDMAWriteWithImm": "WriteWithImm",
}

// ibConst returns a constant of package ib, or its equal in package verbs if the program does not contain package ib,
// or nil.
func (p *Program) ibConst(name string) *types.Const {
	k := p.prog.ImportedPackage(ibPath)
	if k == nil {
		if k = p.prog.ImportedPackage(verbsPath); k == nil || verbsConsts[name] == "" {
			return nil
		}
		name = verbsConsts[name]
	}
	c, _ := k.Pkg.Scope().Lookup(name).(*types.Const)
	return c
}

// comparingFuncs returns the functions of consumers that compare a value with a constant of package ib.
func (e *eventFlow) comparingFuncs(name string) map[*function]bool {
	found := map[*function]bool{}
	want := e.p.ibConst(name)
	if want == nil {
		return nil
	}
	for _, f := range e.p.order {
		if isMidlayer(f) {
			continue
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if o, ok := at.(*ssa.BinOp); ok && (isConst(o.X, want) || isConst(o.Y, want)) {
					found[f] = true
				}
			}
		}
	}
	return found
}

func isConst(v ssa.Value, want *types.Const) bool {
	c, ok := v.(*ssa.Const)
	return ok && c.Value != nil && types.Identical(c.Type(), want.Type()) &&
		constant.Compare(c.Value, token.EQL, want.Val())
}

// index indexes the calls and channels of the program.
func (e *eventFlow) index() {
	record := func(to map[*ssa.MakeChan][]*function, f *function, ch ssa.Value) {
		from := e.p.traces.containerAllocs(ch)
		if from == nil {
			e.unknown[channelClass(f, ch)] = true
		}
		for _, o := range from {
			if m, ok := o.v.(*ssa.MakeChan); ok {
				to[m] = append(to[m], f)
			}
		}
	}
	for _, f := range e.p.order {
		for _, c := range f.calls {
			if c.static != nil {
				e.static[c.static.FullName()] = append(e.static[c.static.FullName()], caller{f, c})
			}
			for _, g := range c.callees {
				e.callers[g] = append(e.callers[g], caller{f, c})
			}
		}
		if isMidlayer(f) {
			continue
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				switch at := at.(type) {
				case *ssa.Send:
					record(e.senders, f, at.Chan)
				case *ssa.Select:
					for _, s := range at.States {
						if s.Dir == types.SendOnly {
							record(e.senders, f, s.Chan)
						}
					}
				case ssa.CallInstruction:
					if fn, ok := at.Common().Value.(*ssa.Builtin); ok && fn.Name() == "close" {
						record(e.closers, f, at.Common().Args[0])
					}
				}
			}
		}
	}
}

// all reports whether f is in the set, or all callers of f are. A start of a goroutine is no call.
func (e *eventFlow) all(f *function, set func(*function) bool, depth int) bool {
	if set(f) {
		return true
	}
	list := e.callers[f]
	return depth < maxCallers && len(list) > 0 && !slices.ContainsFunc(list, func(k caller) bool {
		return k.c.spawns || k.in == f || !e.all(k.in, set, depth+1)
	})
}

// isEventFunc reports whether only the event calls a function.
func (e *eventFlow) isEventFunc(f *function, event string) bool {
	return e.all(f, func(g *function) bool { return e.events[event][g] }, 0)
}

// isCreation reports whether a function runs only while a shared receive queue is created.
func (e *eventFlow) isCreation(f *function) bool {
	return e.all(f, func(g *function) bool {
		return createsSRQ(g) || !hasLoop(g) && slices.ContainsFunc(g.calls, func(c *call) bool {
			return !c.spawns && len(c.callees) == 1 && createsSRQ(c.callees[0]) && !isMidlayer(c.callees[0])
		})
	}, 0)
}

func createsSRQ(f *function) bool {
	return slices.ContainsFunc(f.calls, func(c *call) bool {
		return c.static != nil && slices.Contains([]string{createSRQ, createUserSRQ}, c.static.FullName())
	})
}

func hasLoop(f *function) bool {
	return slices.ContainsFunc(f.Blocks, func(b *ssa.BasicBlock) bool { return reachesBlock(b, b, nil) })
}

// callees returns f and the functions of consumers that f calls.
func (e *eventFlow) callees(f *function) map[*function]bool {
	seen := map[*function]bool{f: true}
	for work := []*function{f}; len(work) > 0; work = work[1:] {
		for _, c := range work[0].calls {
			for _, g := range c.callees {
				if !c.spawns && !seen[g] && !isMidlayer(g) {
					seen[g] = true
					work = append(work, g)
				}
			}
		}
	}
	return seen
}

// calls reports whether functions call one of the named functions.
func calls(funcs map[*function]bool, names ...string) bool {
	for f := range funcs {
		if slices.ContainsFunc(f.calls, func(c *call) bool {
			return c.findReachableFunc(func(name string) bool { return slices.Contains(names, name) }) != ""
		}) {
			return true
		}
	}
	return false
}

// waitsOnlyForEvent reports whether functions wait for channels, and only the event sends to these channels. closes
// reports whether other functions may close a channel, to end the wait.
func (e *eventFlow) waitsOnlyForEvent(funcs map[*function]bool, event string, closes bool) bool {
	waits := false
	for f := range funcs {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				for _, ch := range receivedChannels(at) {
					from := e.p.traces.containerAllocs(ch)
					if len(from) == 0 || e.unknown[channelClass(f, ch)] {
						return false
					}
					waits = true
					for _, o := range from {
						m, _ := o.v.(*ssa.MakeChan)
						by := e.senders[m]
						if !closes {
							by = slices.Concat(by, e.closers[m])
						}
						if m == nil || slices.ContainsFunc(by, func(g *function) bool { return !e.isEventFunc(g, event) }) {
							return false
						}
					}
				}
			}
		}
	}
	return waits
}

// channelClass identifies the channels of a package with one element type.
func channelClass(f *function, ch ssa.Value) string {
	k := pkgOf(f.Function)
	c, ok := ch.Type().Underlying().(*types.Chan)
	if !ok || k == nil {
		return ""
	}
	return k.Path() + " " + c.Elem().String()
}

// checkLimits reports a limit that is armed only when its queue is created, if the event is the only cause of further
// receives. Another package may arm it only if it imports the package that handles the event.
func (e *eventFlow) checkLimits() (reports []Report) {
	seen := map[*types.Package]bool{}
	for _, f := range e.p.order {
		k := pkgOf(f.Function)
		if !e.events[limitEvent][f] || seen[k] {
			continue
		}
		seen[k] = true
		if !e.fillsOnlyAfterLimit(k) {
			continue
		}
		first := e.onlyArming(k)
		if first == nil || e.p.escapes.escapeAt(e.p.Fset, first.c.pos, Event) != nil {
			continue
		}
		reports = append(reports, Report{Event, first.c.pos, fmt.Sprintf("%s arms the limit of a shared receive queue, "+
			"which is not armed again after EventSRQLimitReached: the second time the queue runs dry",
			functionName(first.in)), nil})
	}
	return reports
}

// callsOf returns the calls of the named functions in a package, or in a package that imports it.
func (e *eventFlow) callsOf(k *types.Package, names ...string) (list []caller) {
	for _, name := range names {
		for _, c := range e.static[name] {
			in := pkgOf(c.in.Function)
			if in != nil && !isMidlayer(c.in) && (in.Path() == k.Path() || slices.Contains(in.Imports(), k)) {
				list = append(list, c)
			}
		}
	}
	return list
}

// onlyArming returns the call that arms a limit at the creation of a queue, or nil if other calls may arm it later.
func (e *eventFlow) onlyArming(k *types.Package) (first *caller) {
	flag := e.p.ibConst(limitFlag)
	for _, c := range e.callsOf(k, modifySRQ, setLimit) {
		args := c.c.at.(ssa.CallInstruction).Common().Args
		if c.c.static.FullName() == setLimit {
			if !e.isCreation(c.in) {
				return nil
			}
			if first == nil {
				first = &c
			}
			continue
		}
		mask, ok := args[len(args)-1].(*ssa.Const)
		if !ok || flag == nil || !e.isCreation(c.in) {
			return nil
		}
		arms := constant.Sign(constant.BinaryOp(constant.ToInt(mask.Value), token.AND, constant.ToInt(flag.Val()))) != 0
		if arms && first == nil {
			first = &c
		}
	}
	return first
}

// fillsOnlyAfterLimit reports whether a package posts receives to shared receive queues at their creation, and
// otherwise only after the event.
func (e *eventFlow) fillsOnlyAfterLimit(k *types.Package) bool {
	later := false
	for _, c := range e.callsOf(k, postSRQ, postOnSRQ, postUserSRQ) {
		only, after := e.isLimitDriven(c.in, 0)
		if !only {
			return false
		}
		later = later || after
	}
	return later
}

// isLimitDriven reports whether a function runs only at the creation of a queue or after the event. after reports
// whether it runs after the event.
func (e *eventFlow) isLimitDriven(f *function, depth int) (only, after bool) {
	switch {
	case e.isCreation(f):
		return true, false
	case e.isEventFunc(f, limitEvent):
		return true, true
	case len(e.callers[f]) == 0 || depth == maxCallers:
		return false, false
	}
	for _, k := range e.callers[f] {
		o, a := false, true
		switch {
		case k.c.spawns && e.isEventFunc(k.in, limitEvent):
			o = true
		case k.c.spawns:
			all := e.callees(f)
			o = e.waitsOnlyForEvent(all, limitEvent, true) && !calls(all, pollCQ, process)
		case k.in == f:
			o, a = true, false
		default:
			o, a = e.isLimitDriven(k.in, depth+1)
		}
		if !o {
			return false, false
		}
		after = after || a
	}
	return true, after
}

// checkDestroyedQPs reports uses of WC.QP without a comparison with nil, in packages that destroy a queue pair after
// EventQPLastWQEReached without a further wait: its completions may still be in the queue.
func (e *eventFlow) checkDestroyedQPs() (reports []Report) {
	packages := map[*types.Package]*function{}
	for _, k := range e.static[destroyQP] {
		if isMidlayer(k.in) || !e.waitsOnlyForEvent(map[*function]bool{k.in: true}, lastEvent, false) ||
			e.sleepsOtherwise(k.in) || calls(e.callees(k.in), pollCQ, process, destroyCQ) {
			continue
		}
		packages[pkgOf(k.in.Function)] = k.in
	}
	for _, f := range e.p.order {
		by := packages[pkgOf(f.Function)]
		if by == nil {
			continue
		}
		if at := uncheckedQP(f); at != nil && e.p.escapes.escapeAt(e.p.Fset, at.Pos(), Event) == nil {
			reports = append(reports, Report{Event, at.Pos(), fmt.Sprintf("%s uses WC.QP, which is nil if %s has destroyed the "+
				"queue pair: completions may remain in the queue after EventQPLastWQEReached", functionName(f),
				functionName(by)), nil})
		}
	}
	return reports
}

// sleepsOtherwise reports whether a function waits for something else than a channel.
func (e *eventFlow) sleepsOtherwise(f *function) bool {
	return slices.ContainsFunc(f.ops, func(o operation) bool {
		return o.kind == opSleep && len(receivedChannels(o.at)) == 0
	})
}

// uncheckedQP returns an instruction that uses the queue pair of a completion, in a function that does not compare such
// a queue pair with nil, or nil.
func uncheckedQP(f *function) (use ssa.Instruction) {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			v, ok := at.(ssa.Value)
			if !ok || !isCompletionQP(v) {
				continue
			}
			for _, r := range *v.Referrers() {
				switch r := r.(type) {
				case *ssa.BinOp:
					return nil
				case *ssa.FieldAddr:
					use = r
				case ssa.CallInstruction:
					if args := r.Common().Args; len(args) > 0 && args[0] == v && r.Common().StaticCallee() != nil &&
						r.Common().StaticCallee().Signature.Recv() != nil {
						use = r
					}
				default:
					return nil // may be compared elsewhere
				}
			}
		}
	}
	return use
}

// isCompletionQP reports whether a value is the field QP of a completion.
func isCompletionQP(v ssa.Value) bool {
	switch v := v.(type) {
	case *ssa.UnOp:
		a, ok := v.X.(*ssa.FieldAddr)
		return ok && v.Op == token.MUL && isWC(deref(a.X.Type())) &&
			deref(a.X.Type()).Underlying().(*types.Struct).Field(a.Field).Name() == "QP"
	case *ssa.Field:
		return isWC(v.X.Type()) && v.X.Type().Underlying().(*types.Struct).Field(v.Field).Name() == "QP"
	}
	return false
}
