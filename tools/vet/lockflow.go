package vet

import (
	"maps"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// lockFlow holds the effects of a function on locks.
type lockFlow struct {
	may, must   map[ssa.Instruction]lockSet // locks that may be, and that must be, held before calls and operations
	which       map[ssa.Instruction]map[*lock]string
	takes, lets lockSet    // locks that the function acquires, and locks that it releases, from its beginning to its end
	direct      []lockSite // calls of lock operations
	// Locks that the function releases before it acquires them, so that its callers must hold them.
	entered lockSet
}

// propagateLocks finds the locks that are held at each instruction. Several rounds determine the locks that each
// function leaves held or has released.
func (lt *lockTable) propagateLocks() {
	order := lt.calleesFirst()
	for range 8 {
		changed := false
		for _, f := range order {
			changed = lt.propagateFunctionLocks(f) || changed
		}
		if !changed {
			break
		}
	}
	for _, f := range lt.graph.order {
		for _, s := range f.locks.direct {
			if s.l != nil {
				s.l.sites = append(s.l.sites, s)
			} else {
				lt.graph.unresolved[s.at.Pos()] = "a lock that is a parameter"
			}
		}
	}
}

// calleesFirst returns all functions. Callees precede their callers as far as recursion permits.
func (lt *lockTable) calleesFirst() (list []*function) {
	seen := map[*function]bool{}
	var visit func(f *function)
	visit = func(f *function) {
		if seen[f] {
			return
		}
		seen[f] = true
		for _, c := range f.calls {
			if c.static != nil || len(c.callees) == 1 {
				for _, g := range c.callees {
					visit(g)
				}
			}
		}
		list = append(list, f)
	}
	for _, f := range lt.graph.order {
		visit(f)
	}
	return list
}

// lockState holds the locks at a position: the locks that may be held, and the locks that must be held.
type lockState struct {
	may, must lockSet
	which     map[*lock]string    // description by pointerPath of the value that contains the lock, or "" if unknown
	deferred  map[*ssa.Defer]bool // deferred calls that may run at the end of the function
}

func (s lockState) clone() lockState {
	return lockState{s.may.clone(), s.must.clone(), maps.Clone(s.which), maps.Clone(s.deferred)}
}

func (s lockState) lock(l *lock) { s.addHeldLock(l, "") }

// unlock releases a lock. If the set does not contain the lock itself, unlock releases a lock that may be the same.
func (s lockState) unlock(l *lock) {
	if k := s.may.findOverlap(l); k != nil {
		delete(s.may, k)
		delete(s.must, k)
	}
}

func (s lockState) addHeldLock(l *lock, path string) {
	if s.may[l] && s.which[l] != path {
		path = "" // the set contains two locks of one class
	}
	s.may[l], s.must[l], s.which[l] = true, true, path
}

// merge merges the state of another path into the state, and reports whether the state has changed.
func (s lockState) merge(o lockState) (changed bool) {
	for l := range o.may {
		if !s.may[l] {
			s.may[l], changed = true, true
		}
	}
	for l := range s.must {
		if !o.must[l] {
			delete(s.must, l)
			changed = true
		}
	}
	for l := range s.which {
		if s.which[l] != "" && o.which[l] != s.which[l] {
			s.which[l], changed = "", true
		}
	}
	for d := range o.deferred {
		if !s.deferred[d] {
			s.deferred[d], changed = true, true
		}
	}
	return changed
}

// propagateFunctionLocks propagates the locks through a function. It reports whether the effect of the function on the
// locks has changed.
func (lt *lockTable) propagateFunctionLocks(f *function) bool {
	fl := lt.followFunction(f, nil)
	for range 3 {
		if len(fl.entered) == 0 {
			break
		}
		again := lt.followFunction(f, fl.entered)
		more := len(again.entered) > len(fl.entered)
		if fl = again; !more {
			break
		}
	}
	changed := !maps.Equal(fl.takes, f.locks.takes) || !maps.Equal(fl.lets, f.locks.lets) ||
		!maps.Equal(fl.entered, f.locks.entered)
	f.locks = fl
	return changed
}

// followFunction propagates the locks through a function that its callers call with some locks held.
func (lt *lockTable) followFunction(f *function, entered lockSet) lockFlow {
	fl := lockFlow{may: map[ssa.Instruction]lockSet{}, must: map[ssa.Instruction]lockSet{},
		which: map[ssa.Instruction]map[*lock]string{}, takes: lockSet{}, lets: lockSet{}, entered: lockSet{}}
	entry := lockState{lockSet{}, lockSet{}, map[*lock]string{}, map[*ssa.Defer]bool{}}
	for _, l := range f.held {
		entry.lock(l)
	}
	for l := range entered {
		entry.lock(l)
		fl.entered[l] = true
	}
	in := map[*ssa.BasicBlock]lockState{f.Blocks[0]: entry}
	calls := map[ssa.Instruction]*call{}
	for _, c := range f.calls {
		calls[c.at] = c
	}
	var defers []*ssa.Defer
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			if d, ok := at.(*ssa.Defer); ok {
				defers = append(defers, d)
			}
		}
	}
	ends := lockSet{}
	let := lockSet{}
	var returned bool
	// transfer propagates the locks through a block, and returns the state at the end.
	transfer := func(b *ssa.BasicBlock) (s lockState, try *ssa.Call, tried *lock) {
		s = in[b].clone()
		for _, at := range b.Instrs {
			switch at := at.(type) {
			case *ssa.RunDefers:
				fl.may[at], fl.must[at] = s.may.clone(), s.must.clone()
				for _, d := range slices.Backward(defers) {
					if !s.deferred[d] {
						continue
					}
					fl.may[d], fl.must[d], fl.which[d] = s.may.clone(), s.must.clone(), maps.Clone(s.which) // state at the call
					lt.applyCall(f, &fl, s, d, calls[d], let)
				}
			case *ssa.Defer:
				s.deferred[at] = true
			case ssa.CallInstruction:
				if l := lt.waitLock(f, at); l != nil {
					during := s.clone()
					during.release(l, let)
					fl.may[at], fl.must[at], fl.which[at] = during.may, during.must, during.which
					continue
				}
				fl.may[at], fl.must[at], fl.which[at] = s.may.clone(), s.must.clone(), maps.Clone(s.which)
				if isGoStatement(at) {
					continue
				}
				if fn := at.Common().StaticCallee(); fn != nil && lockCallKindOf(fn) == tryCalled {
					if c, ok := at.(*ssa.Call); ok {
						try, tried = c, lt.lockAt(f, at.Common().Args[0])
					}
				}
				lt.applyCall(f, &fl, s, at, calls[at], let)
			case *ssa.Send, *ssa.UnOp, *ssa.Select, *ssa.Range, *ssa.If, *ssa.Jump:
				fl.may[at], fl.must[at] = s.may.clone(), s.must.clone()
			case *ssa.Return:
				returned = true
				for l := range s.must {
					ends[l] = true
				}
			}
		}
		return s, try, tried
	}
	work := []*ssa.BasicBlock{f.Blocks[0]}
	for n := 0; len(work) > 0 && n < 100*len(f.Blocks)+100; n++ {
		b := work[0]
		work = work[1:]
		s, try, tried := transfer(b)
		for i, to := range b.Succs {
			out := s
			if cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If); ok && try != nil && tried != nil {
				if yes, is := isCallResult(cond.Cond, try); is && yes == (i == 0) {
					out = s.clone()
					out.addHeldLock(tried, pointerPath(try.Call.Args[0]))
				}
			}
			if old, ok := in[to]; !ok {
				in[to] = out.clone()
				work = append(work, to)
			} else if old.merge(out) {
				work = append(work, to)
			}
		}
	}
	if len(let) > 0 { // from the final states only
		clear(let)
		for b := range in {
			transfer(b)
		}
	}
	for l := range let {
		if !l.local {
			fl.entered[l] = true
		}
	}
	if returned {
		for l := range ends {
			if entry.must.findOverlap(l) == nil && !l.local {
				fl.takes[l] = true
			}
		}
		for l := range entry.must {
			if ends.findOverlap(l) == nil {
				fl.lets[l] = true
			}
		}
	}
	fl.direct = slices.CompactFunc(fl.direct, func(a, b lockSite) bool { return a.at == b.at })
	return fl
}

func isGoStatement(at ssa.Instruction) bool {
	_, is := at.(*ssa.Go)
	return is
}

// applyCall applies a call to the state. let collects the locks that are released and were not acquired before.
func (lt *lockTable) applyCall(f *function, fl *lockFlow, s lockState, at ssa.CallInstruction, c *call, let lockSet) {
	if c == nil {
		return
	}
	kind, v := c.lockOperation()
	switch kind {
	case lockCalled:
		l := lt.lockAt(f, v)
		if !slices.ContainsFunc(fl.direct, func(x lockSite) bool { return x.at == at }) {
			fl.direct = append(fl.direct, lockSite{f, at, l})
		}
		if l != nil {
			s.addHeldLock(l, pointerPath(v))
		}
	case unlockCalled:
		if l := lt.lockAt(f, v); l != nil {
			s.release(l, let)
		}
	case noLockCall:
		if l, starts := lt.holdOperation(c); l != nil {
			if starts {
				s.lock(l)
			} else {
				s.release(l, let)
			}
			return
		}
		if l := lt.onceLock(f, at); l != nil {
			if !slices.ContainsFunc(fl.direct, func(x lockSite) bool { return x.at == at }) {
				fl.direct = append(fl.direct, lockSite{f, at, l})
			}
			return
		}
		if l := lt.returnedUnlock(at); l != nil {
			s.release(l, let)
			return
		}
		if list := c.ownCallees(); len(list) == 1 && !c.spawns && (at.Common().StaticCallee() != nil || c.isLockerCall()) {
			lt.applyCallee(list[0], s, let)
		}
	}
}

// returnedUnlock returns the lock that a call releases if it calls the result of a function, which returns the Unlock
// of a lock as a method value: defer p.lock()(). It returns nil for another call.
func (lt *lockTable) returnedUnlock(at ssa.CallInstruction) (l *lock) {
	made, ok := at.Common().Value.(*ssa.Call)
	if !ok {
		return nil
	}
	f := lt.graph.funcs[made.Common().StaticCallee()]
	if f == nil {
		return nil
	}
	for _, b := range f.Blocks {
		r, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Return)
		if !ok {
			continue
		}
		m, ok := r.Results[0].(*ssa.MakeClosure)
		if !ok || len(r.Results) != 1 || lockCallKindOf(boundMethod(m.Fn.(*ssa.Function))) != unlockCalled {
			return nil
		}
		if l = lt.lockAt(f, m.Bindings[0]); l == nil {
			return nil
		}
	}
	return l
}

// isLockerCall reports whether a call is a call of a method of a lock's interface.
func (c *call) isLockerCall() bool {
	return c.iface != nil && slices.Contains([]string{"Lock", "Unlock", "RLock", "RUnlock", "lock", "unlock"},
		c.iface.Name())
}

// release unlocks a lock. It records in let that the lock was not acquired before.
func (s lockState) release(l *lock, let lockSet) {
	if s.may.findOverlap(l) == nil {
		let[l] = true
	}
	s.unlock(l)
}

// applyCallee applies the effect of a callee to the state.
func (lt *lockTable) applyCallee(g *function, s lockState, let lockSet) {
	for l := range g.locks.entered { // the callee temporarily releases these locks
		if s.may.findOverlap(l) == nil {
			let[l] = true
		}
	}
	for l := range g.locks.lets {
		s.release(l, let)
	}
	for l := range g.locks.takes {
		s.lock(l)
	}
}
