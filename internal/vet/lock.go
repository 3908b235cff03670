package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// lock is a class of locks: a field of a type, of all its values, or a variable.
type lock struct {
	name string

	sleepy  *heldSleep // what it is held across; nil: nothing that sleeps
	program *Escape    // by its directive: whoever waits for it waits for the memory of its own program; nil: not so
	sites   []lockSite
}

// heldSleep is a place where a lock is held across what sleeps.
type heldSleep struct {
	in   *function
	pos  token.Pos
	what string
	plug bool // by registering, or the opposite
}

type lockSite struct {
	in *function
	at ssa.CallInstruction
}

// lockSet is a set of locks.
type lockSet map[*lock]bool

func (s lockSet) clone() lockSet {
	c := make(lockSet, len(s))
	for l := range s {
		c[l] = true
	}
	return c
}

func (s lockSet) sorted() []*lock {
	var list []*lock
	for l := range s {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *lock) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return list
}

// lockFlow is what of locks is known about a function.
type lockFlow struct {
	may, must   map[ssa.Instruction]lockSet // held before calls and operations
	which       map[ssa.Instruction]map[*lock]string
	takes, lets lockSet    // at its end, more and fewer than at its beginning
	direct      []lockSite // of lock calls
	entered     lockSet    // that it lets go of before it takes them: its callers hold them
}

type lockCallKind uint8

const (
	noLockCall lockCallKind = iota
	lockCalled
	unlockCalled
	tryCalled
)

// lockCall says what a function is to a lock.
func lockCall(fn *ssa.Function) lockCallKind {
	recv := fn.Signature.Recv()
	if recv == nil || !isMutex(deref(recv.Type())) {
		return noLockCall
	}
	switch fn.Name() {
	case "Lock", "RLock":
		return lockCalled
	case "Unlock", "RUnlock":
		return unlockCalled
	case "TryLock", "TryRLock":
		return tryCalled
	}
	return noLockCall
}

// fieldLock is the class of a field of a type.
func (p *Program) fieldLock(owner types.Type, v *types.Var) *lock {
	name := "struct." + v.Name()
	if n, ok := types.Unalias(deref(owner)).(*types.Named); ok {
		name = typeName(n.Origin().Obj()) + "." + v.Name()
		if n.Obj().Pkg() != nil {
			return p.ofProgram(p.lockNamed(n.Obj().Pkg().Path()+"."+n.Obj().Name()+"."+v.Name(), name), v)
		}
	}
	return p.ofProgram(p.lockNamed(p.Fset.Position(v.Pos()).String(), name), v)
}

func (p *Program) ofProgram(l *lock, v *types.Var) *lock {
	l.program = p.programLocks[v]
	return l
}

// markPrograms notes the locks that are of one program each. To wait for one is to wait for that program's memory, as a copy does.
func (p *Program) markPrograms() {
	for _, f := range p.order {
		for _, s := range f.locks.direct {
			if l := p.lockOf(s.at.Common().Args[0]); l != nil && l.program != nil {
				f.ops = append(f.ops, op{at: s.at, pos: s.at.Pos(), kind: opCopy, what: "locks " + l.name + ", which is held while memory of its program is copied"})
			}
		}
	}
}

func (p *Program) lockNamed(key, name string) *lock {
	if p.locks[key] == nil {
		p.locks[key] = &lock{name: name}
	}
	return p.locks[key]
}

// lockOf is the class of a lock that a value points to; nil: it is not known.
func (p *Program) lockOf(v ssa.Value) *lock {
	switch v := v.(type) {
	case *ssa.FieldAddr:
		f := fieldVar(v.X.Type(), v.Field)
		if _, named := types.Unalias(deref(v.X.Type())).(*types.Named); !named {
			// A field of a struct without a name, which is one of the field's owner.
			return p.lockNamed(p.Fset.Position(f.Pos()).String(), outerName(v.X)+"."+f.Name())
		}
		return p.fieldLock(v.X.Type(), f)
	case *ssa.IndexAddr:
		return p.lockOf(v.X)
	case *ssa.Global:
		return p.lockNamed(v.String(), typeName(v.Object()))
	case *ssa.Alloc:
		return p.lockNamed(p.Fset.Position(v.Pos()).String(), v.Comment)
	case *ssa.FreeVar:
		return p.lockOf(boundTo(v))
	case *ssa.UnOp:
		if v.Op == token.MUL {
			return p.lockOf(v.X) // a pointer to a lock
		}
	case *ssa.ChangeType:
		return p.lockOf(v.X)
	case *ssa.Convert:
		return p.lockOf(v.X)
	}
	return nil
}

func outerName(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.FieldAddr:
		if n, ok := types.Unalias(deref(v.X.Type())).(*types.Named); ok {
			return typeName(n.Obj()) + "." + fieldVar(v.X.Type(), v.Field).Name()
		}
		return outerName(v.X) + "." + fieldVar(v.X.Type(), v.Field).Name()
	case *ssa.Global:
		return typeName(v.Object())
	}
	return "struct"
}

// boundTo returns what a variable of the function around is, there.
func boundTo(v *ssa.FreeVar) ssa.Value {
	fn := v.Parent()
	i := slices.Index(fn.FreeVars, v)
	if fn.Parent() == nil {
		return nil
	}
	for _, b := range fn.Parent().Blocks {
		for _, at := range b.Instrs {
			if m, ok := at.(*ssa.MakeClosure); ok && m.Fn == fn {
				return m.Bindings[i]
			}
		}
	}
	return nil
}

// flowLocks finds what is held where. What a function leaves held, or has let go of, is known after a few rounds.
func (p *Program) flowLocks() {
	order := p.calleesFirst()
	for range 8 {
		changed := false
		for _, f := range order {
			changed = p.flow(f) || changed
		}
		if !changed {
			break
		}
	}
	for _, f := range p.order {
		for _, s := range f.locks.direct {
			if l := p.lockOf(s.at.Common().Args[0]); l != nil {
				l.sites = append(l.sites, s)
			} else {
				p.unresolved[s.at.Pos()] = "a lock that is a parameter"
			}
		}
	}
}

// calleesFirst returns all functions, those that others call before them as far as that is possible.
func (p *Program) calleesFirst() (list []*function) {
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
	for _, f := range p.order {
		visit(f)
	}
	return list
}

// state is what is held at a place: perhaps, and for certain.
type state struct {
	may, must lockSet
	which     map[*lock]string    // the value whose lock it is, as pathOf says it; "": not known
	deferred  map[*ssa.Defer]bool // calls that the end of the function makes, perhaps
}

func (s state) clone() state {
	return state{s.may.clone(), s.must.clone(), maps.Clone(s.which), maps.Clone(s.deferred)}
}

func (s state) lock(l *lock)   { s.lockOf(l, "") }
func (s state) unlock(l *lock) { delete(s.may, l); delete(s.must, l) }

func (s state) lockOf(l *lock, path string) {
	if s.may[l] && s.which[l] != path {
		path = "" // two of a class
	}
	s.may[l], s.must[l], s.which[l] = true, true, path
}

// join adds another way to the place, and reports whether that has changed anything.
func (s state) join(o state) (changed bool) {
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

// flow follows the locks through a function, and reports whether its effect on them has changed.
func (p *Program) flow(f *function) bool {
	fl := p.follow(f, nil)
	for range 3 {
		if len(fl.entered) == 0 {
			break
		}
		again := p.follow(f, fl.entered)
		more := len(again.entered) > len(fl.entered)
		if fl = again; !more {
			break
		}
	}
	changed := !maps.Equal(fl.takes, f.locks.takes) || !maps.Equal(fl.lets, f.locks.lets) || !maps.Equal(fl.entered, f.locks.entered)
	f.locks = fl
	return changed
}

// follow does, for a function that its callers call with some locks held.
func (p *Program) follow(f *function, entered lockSet) lockFlow {
	fl := lockFlow{may: map[ssa.Instruction]lockSet{}, must: map[ssa.Instruction]lockSet{}, which: map[ssa.Instruction]map[*lock]string{}, takes: lockSet{}, lets: lockSet{}, entered: lockSet{}}
	entry := state{lockSet{}, lockSet{}, map[*lock]string{}, map[*ssa.Defer]bool{}}
	for _, l := range f.held {
		entry.lock(l)
	}
	for l := range entered {
		entry.lock(l)
		fl.entered[l] = true
	}
	in := map[*ssa.BasicBlock]state{f.Blocks[0]: entry}
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
	work := []*ssa.BasicBlock{f.Blocks[0]}
	for n := 0; len(work) > 0 && n < 100*len(f.Blocks)+100; n++ {
		b := work[0]
		work = work[1:]
		s := in[b].clone()
		var try *ssa.Call
		var tried *lock
		for _, at := range b.Instrs {
			switch at := at.(type) {
			case *ssa.RunDefers:
				fl.may[at], fl.must[at] = s.may.clone(), s.must.clone()
				for _, d := range slices.Backward(defers) {
					if !s.deferred[d] {
						continue
					}
					fl.may[d], fl.must[d], fl.which[d] = s.may.clone(), s.must.clone(), maps.Clone(s.which) // when it is called
					p.step(f, &fl, s, d, calls[d], let)
				}
			case *ssa.Defer:
				s.deferred[at] = true
			case ssa.CallInstruction:
				fl.may[at], fl.must[at], fl.which[at] = s.may.clone(), s.must.clone(), maps.Clone(s.which)
				if _, ok := at.(*ssa.Go); ok {
					continue
				}
				if fn := at.Common().StaticCallee(); fn != nil && lockCall(fn) == tryCalled {
					if c, ok := at.(*ssa.Call); ok {
						try, tried = c, p.lockOf(at.Common().Args[0])
					}
				}
				p.step(f, &fl, s, at, calls[at], let)
			case *ssa.Send, *ssa.UnOp, *ssa.Select, *ssa.Range, *ssa.If, *ssa.Jump:
				fl.may[at], fl.must[at] = s.may.clone(), s.must.clone()
			case *ssa.Return:
				returned = true
				for l := range s.must {
					ends[l] = true
				}
			}
		}
		for i, to := range b.Succs {
			out := s
			if cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If); ok && try != nil && tried != nil {
				if yes, is := isResult(cond.Cond, try); is && yes == (i == 0) {
					out = s.clone()
					out.lockOf(tried, pathOf(try.Call.Args[0]))
				}
			}
			if old, ok := in[to]; !ok {
				in[to] = out.clone()
				work = append(work, to)
			} else if old.join(out) {
				work = append(work, to)
			}
		}
	}
	for l := range let {
		fl.entered[l] = true
	}
	if returned {
		for l := range ends {
			if !entry.must[l] {
				fl.takes[l] = true
			}
		}
		for l := range entry.must {
			if !ends[l] {
				fl.lets[l] = true
			}
		}
	}
	fl.direct = slices.CompactFunc(fl.direct, func(a, b lockSite) bool { return a.at == b.at })
	return fl
}

// pathOf says which value a pointer leads to, "" if that is not known: two that are said alike are the same, unless somebody has
// changed a field meanwhile; of two that differ in the parameter that they begin with, both are likely not.
func pathOf(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.Parameter:
		return v.Name()
	case *ssa.Global:
		return v.String()
	case *ssa.FieldAddr:
		if x := pathOf(v.X); x != "" {
			return fmt.Sprintf("%s.%d", x, v.Field)
		}
	case *ssa.UnOp:
		if v.Op == token.MUL {
			switch v.X.(type) {
			case *ssa.FieldAddr, *ssa.Global:
				return pathOf(v.X)
			}
		}
	}
	return ""
}

// isResult reports whether a condition is the result of a call, or its negation.
func isResult(cond ssa.Value, c *ssa.Call) (yes, is bool) {
	if u, ok := cond.(*ssa.UnOp); ok && u.Op == token.NOT {
		yes, is = isResult(u.X, c)
		return !yes, is
	}
	return true, cond == ssa.Value(c)
}

// step does to the state what a call does. let takes the locks that are released without having been taken.
func (p *Program) step(f *function, fl *lockFlow, s state, at ssa.CallInstruction, c *call, let lockSet) {
	fn := at.Common().StaticCallee()
	if fn == nil {
		return
	}
	switch lockCall(fn) {
	case lockCalled:
		if !slices.ContainsFunc(fl.direct, func(x lockSite) bool { return x.at == at }) {
			fl.direct = append(fl.direct, lockSite{f, at})
		}
		if l := p.lockOf(at.Common().Args[0]); l != nil {
			s.lockOf(l, pathOf(at.Common().Args[0]))
		}
	case unlockCalled:
		if l := p.lockOf(at.Common().Args[0]); l != nil {
			if !s.may[l] {
				let[l] = true
			}
			s.unlock(l)
		}
	case noLockCall:
		if g := p.funcs[fn]; g != nil {
			for l := range g.locks.entered { // which the callee gives up for a while
				if !s.may[l] {
					let[l] = true
				}
			}
			for l := range g.locks.lets {
				if !s.may[l] {
					let[l] = true
				}
				s.unlock(l)
			}
			for l := range g.locks.takes {
				s.lock(l)
			}
		}
	}
}

// loop is one that spins.
type loop struct {
	at  ssa.Instruction
	pos token.Pos
	on  string
}

// spins finds loops of a function that do nothing but look at the time, or give the processor to others: what they wait
// for comes from elsewhere.
func spins(f *ssa.Function) (list []loop) {
	for _, scc := range components(f) {
		in := map[*ssa.BasicBlock]bool{}
		for _, b := range scc {
			in[b] = true
		}
		var first ssa.Instruction
		var pos token.Pos
		on := ""
		for _, b := range scc {
			for _, at := range b.Instrs {
				c, ok := at.(*ssa.Call)
				if !ok {
					continue
				}
				o, _ := calleeObject(c).(*types.Func)
				if o == nil {
					continue
				}
				switch kind, _ := outsideKind(o); kind {
				case yields:
					first, pos, on = at, c.Pos(), "until another goroutine has done something"
				case reads:
					if on == "" && leaves(scc, in, c) {
						first, pos, on = at, c.Pos(), "on the time"
					}
				}
			}
		}
		if on != "" {
			list = append(list, loop{first, pos, on})
		}
	}
	return list
}

func calleeObject(c *ssa.Call) types.Object {
	if fn := c.Call.StaticCallee(); fn != nil {
		return objectOf(fn)
	}
	if c.Call.IsInvoke() {
		return c.Call.Method
	}
	return nil
}

// leaves reports whether a condition that ends the loop depends on a value.
func leaves(scc []*ssa.BasicBlock, in map[*ssa.BasicBlock]bool, v ssa.Value) bool {
	depends := map[ssa.Value]bool{}
	work := []ssa.Value{v}
	for len(work) > 0 {
		x := work[0]
		work = work[1:]
		if depends[x] {
			continue
		}
		depends[x] = true
		if x.Referrers() == nil {
			continue
		}
		for _, r := range *x.Referrers() {
			if y, ok := r.(ssa.Value); ok {
				work = append(work, y)
			}
		}
	}
	for _, b := range scc {
		if cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If); ok && depends[cond.Cond] && (!in[b.Succs[0]] || !in[b.Succs[1]]) {
			return true
		}
	}
	return false
}

// components returns the loops of a function: strongly connected sets of blocks.
func components(f *ssa.Function) (list [][]*ssa.BasicBlock) {
	index, low := map[*ssa.BasicBlock]int{}, map[*ssa.BasicBlock]int{}
	on := map[*ssa.BasicBlock]bool{}
	var stack []*ssa.BasicBlock
	var visit func(b *ssa.BasicBlock)
	visit = func(b *ssa.BasicBlock) {
		index[b] = len(index) + 1
		low[b] = index[b]
		stack = append(stack, b)
		on[b] = true
		for _, s := range b.Succs {
			if index[s] == 0 {
				visit(s)
				low[b] = min(low[b], low[s])
			} else if on[s] {
				low[b] = min(low[b], index[s])
			}
		}
		if low[b] != index[b] {
			return
		}
		at := slices.Index(stack, b)
		scc := slices.Clone(stack[at:])
		stack = stack[:at]
		for _, x := range scc {
			on[x] = false
		}
		if len(scc) > 1 || slices.Contains(b.Succs, b) {
			list = append(list, scc)
		}
	}
	if len(f.Blocks) > 0 {
		visit(f.Blocks[0])
	}
	return list
}

// Place is a position as reports have it: file, relative to the working folder, and line.
func (p *Program) Place(pos token.Pos) string {
	at := p.Fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.relative(at.Filename), at.Line)
}
