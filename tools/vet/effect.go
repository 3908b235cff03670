package vet

import (
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// effectCause is the reason for an effect of a function: an operation of the function, or a call.
type effectCause struct {
	at   ssa.Instruction
	pos  token.Pos
	what string
	next *function
}

// effect maps functions to their effects, which they have by themselves or through their callees.
type effect struct {
	check string
	of    map[*function]*effectCause
	queue []*function
}

func (p *Program) newEffect(check string) *effect {
	return &effect{check: check, of: map[*function]*effectCause{}}
}

func (e *effect) addCause(f *function, c *effectCause) {
	if x := f.allowed[e.check]; x != nil {
		x.Used = true
	} else if e.of[f] == nil {
		e.of[f] = c
		e.queue = append(e.queue, f)
	}
}

// caller is a call of a function, indexed by the callee.
type caller struct {
	in *function
	c  *call
}

func (p *Program) callers(check string) map[*function][]caller {
	m := map[*function][]caller{}
	for _, f := range p.order {
		for _, c := range f.calls {
			if c.spawns || c.agreed && check == NoSleep ||
				check == Copy && (c.atomic || p.contract.copiesOwnMemory(f, c.static) || p.isOutsideConsumer(f)) {
				continue
			}
			for _, g := range c.callees {
				if check != Copy || !p.contract.copiesOwnMemory(f, methodOfValue(g)) {
					m[g] = append(m[g], caller{f, c})
				}
			}
		}
	}
	return m
}

// propagateEffect propagates the effect of a function to its direct and indirect callers. An escape at a call stops the
// propagation.
func (p *Program) propagateEffect(e *effect, callers map[*function][]caller) {
	for len(e.queue) > 0 {
		g := e.queue[0]
		e.queue = e.queue[1:]
		for _, k := range callers[g] {
			if e.of[k.in] == nil && p.escapes.escapeAt(p.Fset, k.c.pos, e.check) == nil {
				e.addCause(k.in, &effectCause{at: k.c.at, pos: k.c.pos, what: "calls " + functionName(g), next: g})
			}
		}
	}
}

// callPath returns the call path from a function to an effect.
func (e *effect) callPath(f *function) (steps []PathStep) {
	for f != nil {
		c := e.of[f]
		if c == nil || len(steps) > 60 {
			break
		}
		steps = append(steps, PathStep{c.pos, functionName(f), c.what})
		f = c.next
	}
	return steps
}

func functionName(f *function) string {
	s := f.Function.RelString(nil)
	return strings.ReplaceAll(strings.ReplaceAll(s, module+"/", ""), "command-line-arguments.", "")
}

// findSleepyLocks finds the locks that are held across sleeping operations. A wait for such a lock is then also a
// sleeping operation.
func (p *Program) findSleepyLocks(sleep *effect, callers map[*function][]caller) {
	conds := p.locks.locksOfConds()
	mark := func(f *function, held lockSet, c *effectCause, cond, plug bool) {
		for l := range held {
			if (l.sleepy == nil || l.sleepy.plug && !plug) && !(cond && (conds.findOverlap(l) != nil || len(held) == 1)) {
				l.sleepy = &heldSleep{in: f, pos: c.pos, what: c.what, plug: plug}
			}
		}
	}
	for {
		before := 0
		for _, l := range p.locks.locks {
			if l.sleepy != nil {
				before++
			}
		}
		for _, f := range p.order {
			for i := range f.ops {
				o := &f.ops[i]
				if o.kind == opSleep && f.allowed[NoSleep] == nil && p.escapes.escapeAt(p.Fset, o.pos, NoSleep) == nil {
					why := &effectCause{pos: o.pos, what: o.what}
					mark(f, f.locks.may[o.at], why, p.locks.isUnknownCondWait(o.at, o.what), false)
				}
			}
			for _, c := range f.calls {
				held := f.locks.may[c.at]
				if c.spawns {
					held = lockSet{}
				}
				if at, ok := c.at.(ssa.CallInstruction); ok {
					if l := p.locks.onceLock(f, at); l != nil { // Do holds the lock while it calls the function
						held = held.clone()
						held[l] = true
					}
				}
				if c.spawns && len(held) == 0 || c.agreed || f.allowed[NoSleep] != nil {
					continue
				}
				for _, u := range c.funcsPassedWithLocks(&p.locks, mayHeld) {
					if sleep.of[u.f] != nil && p.escapes.escapeAt(p.Fset, c.pos, NoSleep) == nil {
						why := &effectCause{pos: c.pos, what: "calls " + functionName(u.f), next: u.f}
						mark(u.by, u.f.locksHeldThroughout(u.held), why, p.locks.endsInUnknownWait(sleep, u.f), false)
					}
				}
				if len(held) == 0 {
					continue
				}
				for _, g := range c.callees {
					if sleep.of[g] != nil && p.escapes.escapeAt(p.Fset, c.pos, NoSleep) == nil {
						mark(f, c.locksHeldIn(&p.locks, g, held), &effectCause{pos: c.pos, what: "calls " + functionName(g), next: g},
							p.locks.endsInUnknownWait(sleep, g), c.static != nil && hotplugFuncs[c.static.FullName()])
					}
				}
			}
		}
		after := 0
		for _, l := range p.locks.locks {
			if l.sleepy != nil {
				after++
			}
			across := l.findHeldSleep()
			if across == nil {
				continue
			}
			for _, s := range l.sites {
				if p.escapes.escapeAt(p.Fset, s.at.Pos(), NoSleep) == nil {
					sleep.addCause(s.in, &effectCause{at: s.at, pos: s.at.Pos(),
						what: fmt.Sprintf("locks %s, which is held at %s across a call that sleeps (%s)",
							l.name, p.FormatPos(across.pos), across.what)})
				}
			}
		}
		p.propagateEffect(sleep, callers)
		if after == before {
			return
		}
	}
}

// passedFuncWithLocks is a function that a call passes to another function, together with the locks with which the
// other function calls it.
type passedFuncWithLocks struct {
	f    *function
	by   *function
	held lockSet
}

// heldLocks selects the locks that may be held, or that must be held, at the instructions of a function.
type heldLocks func(*function) map[ssa.Instruction]lockSet

func mayHeld(f *function) map[ssa.Instruction]lockSet  { return f.locks.may }
func mustHeld(f *function) map[ssa.Instruction]lockSet { return f.locks.must }

// funcsPassedWithLocks returns the functions that a call passes to its callees, with the locks that the callees hold
// when they call these functions.
func (c *call) funcsPassedWithLocks(lt *lockTable, of heldLocks) (list []passedFuncWithLocks) {
	for _, a := range c.passes {
		for _, g := range c.callees[:min(c.own, len(c.callees))] {
			if a.f == nil || !g.runs[a.param] {
				continue
			}
			if held := lt.locksHeldCallingParam(g, a.param, 0, of); len(held) > 0 {
				list = append(list, passedFuncWithLocks{a.f, g, held})
			}
		}
	}
	return list
}

// locksHeldCallingParam returns the locks that may be held when a function calls one of its parameters. The call may be
// direct, or through a function to which the parameter is passed.
func (lt *lockTable) locksHeldCallingParam(f *function, param, depth int, of heldLocks) lockSet {
	held := lockSet{}
	for _, c := range f.calls {
		if c.spawns {
			continue
		}
		if c.param == param {
			maps.Copy(held, of(f)[c.at])
		}
		for _, a := range c.passes {
			if a.from != param || depth > maxFrames {
				continue
			}
			for _, g := range c.ownCallees() {
				if g.runs[a.param] {
					maps.Copy(held, lt.locksHeldAtParamCall(g, a.param, of(f)[c.at], depth+1))
					maps.Copy(held, lt.locksHeldCallingParam(g, a.param, depth+1, of))
				}
			}
		}
	}
	return held
}

// locksHeldThroughout returns the locks that remain held during the whole execution of a function that is called with
// some locks held. The function may release the locks that its directive requires from its callers. The function itself
// is checked for operations with these locks.
func (f *function) locksHeldThroughout(held lockSet) lockSet {
	left := held
	for l := range held {
		if f.locks.entered.findOverlap(l) != nil || slices.ContainsFunc(f.held, l.overlaps) {
			if len(left) == len(held) {
				left = held.clone()
			}
			delete(left, l)
		}
	}
	return left
}

// locksHeldIn returns the locks that remain held during the whole execution of a callee of a call with some locks held.
// The callee may be a function that the call passes to another callee, which may release locks before it calls the
// function.
func (c *call) locksHeldIn(lt *lockTable, f *function, held lockSet) lockSet {
	if i := slices.Index(c.callees, f); len(held) > 0 && i >= c.own {
		during := lockSet{}
		found := false
		for _, a := range c.passes {
			for _, g := range c.callees[:min(c.own, len(c.callees))] {
				if a.f != nil && a.f.Function == f.Function && g.runs[a.param] {
					found = true
					maps.Copy(during, lt.locksHeldAtParamCall(g, a.param, held, 0))
				}
			}
		}
		if found {
			held = during
		}
	}
	return f.locksHeldThroughout(held)
}

// locksHeldAtParamCall returns those of the locks held by the caller of a function that may still be held when the
// function calls one of its parameters.
func (lt *lockTable) locksHeldAtParamCall(f *function, param int, held lockSet, depth int) lockSet {
	if depth > maxFrames {
		return held
	}
	for _, closure := range f.AnonFuncs { // the locks in closures that call the parameter are unknown
		g := lt.graph.funcs[closure]
		if g != nil && slices.ContainsFunc(g.calls, func(c *call) bool { return c.param == -param }) {
			return held
		}
	}
	during := lockSet{}
	for _, c := range f.calls {
		if c.spawns {
			continue
		}
		left := held.clone()
		for l := range held {
			touched := f.locks.entered.findOverlap(l) != nil || slices.ContainsFunc(f.held, l.overlaps)
			if touched && f.locks.may[c.at].findOverlap(l) == nil {
				delete(left, l)
			}
		}
		if c.param == param {
			maps.Copy(during, left)
		}
		for _, a := range c.passes {
			for _, g := range c.ownCallees() {
				if a.from == param && g.runs[a.param] {
					maps.Copy(during, lt.locksHeldAtParamCall(g, a.param, left, depth+1))
				}
			}
		}
	}
	return during
}

// locksOfConds returns the locks that sync.Cond.Wait releases.
func (lt *lockTable) locksOfConds() lockSet {
	conds := lockSet{}
	for _, f := range lt.graph.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				var v ssa.Value
				switch at := at.(type) {
				case *ssa.Call:
					if fn := at.Call.StaticCallee(); fn != nil && fn.String() == "sync.NewCond" {
						v = at.Call.Args[0]
					}
				case *ssa.Store:
					if a, ok := at.Addr.(*ssa.FieldAddr); ok && isNamed(a.X.Type(), "sync.Cond") {
						v = at.Val
					}
				}
				if m, ok := v.(*ssa.MakeInterface); ok {
					if l := lt.lockAt(f, m.X); l != nil {
						conds[l] = true
					}
				}
			}
		}
	}
	return conds
}
