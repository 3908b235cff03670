package vet

import (
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// A loop waits if it contains a cycle that only reads memory and does not change memory. Only another goroutine can
// then end the loop. A cycle with a CompareAndSwap of a value that the cycle has just read does not wait. If the
// call fails, another goroutine has made progress. A cycle that is limited by a variable of the loop, such as a
// counter, does not wait either. A function that calls itself with its own arguments is a loop from the call to its
// entry. A poll that returns no completion only reads, so a cycle of empty polls waits.

// waitLoops finds the waiting loops of a function.
func waitLoops(f *ssa.Function, known map[ssa.CallInstruction][]*ssa.Function) (list []spinLoop) {
	pure := pureFuncs{}
	loops := []*waitFinder{}
	for _, body := range naturalLoops(f) {
		loops = append(loops, &waitFinder{body: body})
	}
	if w := recursionLoop(f); w != nil {
		loops = append(loops, w)
	}
	for _, w := range loops {
		w.pure, w.known = pure, known
		w.places = w.observedPlaces()
		for _, s := range w.harmlessCycles() {
			if at, ok := w.waitBranch(s); ok && !isSpinLoop(s) {
				list = append(list, spinLoop{at, w.conditionPos(s, at), "until another goroutine has done something"})
			}
		}
	}
	return list
}

// isSpinLoop reports whether spinLoops reports a loop with these blocks.
func isSpinLoop(s blockSet) bool {
	for b := range s {
		for _, at := range b.Instrs {
			if c, ok := at.(*ssa.Call); ok {
				if o, ok := calleeObject(c).(*types.Func); ok {
					if kind, _ := externalKind(o); kind == yields {
						return true
					}
				}
			}
		}
	}
	return false
}

// recursionLoop returns the loop of the calls by which a function calls itself with its own arguments, or nil.
func recursionLoop(f *ssa.Function) *waitFinder {
	w := &waitFinder{body: blockSet{}, again: map[ssa.Instruction]bool{}}
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			c, ok := at.(*ssa.Call)
			if ok && callsFunction(c, f) && passesOwnArguments(f, c) {
				w.again[c] = true
				for _, x := range f.Blocks {
					w.body[x] = true
				}
			}
		}
	}
	if len(w.again) == 0 {
		return nil
	}
	return w
}

// callsFunction reports whether a call calls a function directly, or by the variable in which only the function is
// stored.
func callsFunction(c *ssa.Call, f *ssa.Function) bool {
	if c.Call.IsInvoke() || c.Call.StaticCallee() != nil {
		return c.Call.StaticCallee() == f
	}
	u, ok := c.Call.Value.(*ssa.UnOp)
	if !ok || u.Op != token.MUL {
		return false
	}
	v, ok := u.X.(*ssa.FreeVar)
	if !ok {
		return false
	}
	a, ok := capturedVariable(v).(*ssa.Alloc)
	if !ok {
		return false
	}
	is := false
	for _, r := range *a.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Addr == ssa.Value(a) {
			if is = functionOf(s.Val) == f; !is {
				return false
			}
		}
	}
	return is
}

// passesOwnArguments reports whether a call passes the parameters of a function unchanged.
func passesOwnArguments(f *ssa.Function, c *ssa.Call) bool {
	for i, a := range c.Call.Args {
		if i >= len(f.Params) || a != ssa.Value(f.Params[i]) {
			return false
		}
	}
	return len(c.Call.Args) == len(f.Params)
}

type blockSet map[*ssa.BasicBlock]bool

// waitFinder searches a loop for cycles that wait.
type waitFinder struct {
	body   blockSet
	pure   pureFuncs
	known  map[ssa.CallInstruction][]*ssa.Function // callees of interface calls and of function values
	places map[any]bool                            // fields and variables that the conditions of the loop read
	again  map[ssa.Instruction]bool                // calls of the function itself, see recursion
	within bool                                    // whether the body is that of a called function, see purity
}

// branchCondition holds the dependencies of a branch within a set of blocks.
type branchCondition struct {
	seen    []ssa.Instruction // instructions that read memory
	carried bool              // whether the condition depends on a variable that the loop changes
	ours    bool              // whether the condition depends on the result of a function that does more than read
}

// conditionOf determines the dependencies of a condition.
func (w *waitFinder) conditionOf(v ssa.Value, in blockSet) branchCondition {
	var c branchCondition
	const onPath, done = 1, 2
	state := map[ssa.Value]int{}
	var visit func(v ssa.Value)
	visit = func(v ssa.Value) {
		at, ok := v.(ssa.Instruction)
		if !ok || state[v] == done || !in[at.Block()] {
			return
		}
		if state[v] == onPath { // the value is computed from its previous value
			c.carried = true
			return
		}
		state[v] = onPath
		switch at.(type) {
		case *ssa.Next:
			c.carried = true
		case *ssa.Call:
			c.ours = c.ours || !w.isHarmless(at)
		}
		if w.readsSharedMemory(at) {
			c.seen = append(c.seen, at)
		}
		for _, o := range at.Operands(nil) {
			if *o != nil {
				visit(*o)
			}
		}
		state[v] = done
	}
	visit(v)
	return c
}

// observedPlaces returns the places that the conditions of the loop read.
func (w *waitFinder) observedPlaces() map[any]bool {
	places := map[any]bool{}
	for b := range w.body {
		if cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If); ok {
			for _, at := range w.conditionOf(cond.Cond, w.body).seen {
				places[observedPlace(at)] = true
			}
		}
	}
	return places
}

// observedPlace returns the field or variable that an instruction reads.
func observedPlace(at ssa.Instruction) any {
	switch at := at.(type) {
	case *ssa.UnOp:
		return variableAt(at.X)
	case *ssa.Call:
		if len(at.Call.Args) > 0 {
			return variableAt(at.Call.Args[0])
		}
	}
	return nil
}

// variableAt returns the field or variable at an address, or nil if it is unknown.
func variableAt(addr ssa.Value) any {
	switch addr := addr.(type) {
	case *ssa.FieldAddr:
		return fieldVar(addr.X.Type(), addr.Field)
	case *ssa.Global, *ssa.Alloc:
		return addr
	case *ssa.FreeVar:
		if v := capturedVariable(addr); v != nil {
			return v
		}
	}
	return nil
}

// atomicCallName returns the name of the called function of sync/atomic, without the type: Load, Store, CompareAndSwap.
func atomicCallName(at ssa.Instruction) string {
	c, ok := at.(*ssa.Call)
	if !ok {
		return ""
	}
	o := calleeObject(c)
	if o == nil || o.Pkg() == nil || o.Pkg().Path() != "sync/atomic" {
		return ""
	}
	for _, name := range []string{"Load", "Store", "CompareAndSwap", "Swap", "Add", "And", "Or"} {
		if strings.HasPrefix(o.Name(), name) {
			return name
		}
	}
	return ""
}

// observerFuncs lists functions of package ib that only read a state.
var observerFuncs = []string{
	"(*" + ibPath + ".QP).State", "(" + ibPath + ".DriverQP).State", "(*" + ibPath + ".Device).State",
}

// isCQPoll reports whether a call polls a completion queue.
func isCQPoll(at *ssa.Call) bool {
	o, _ := calleeObject(at).(*types.Func)
	return o != nil && (o.FullName() == "(*"+ibPath+".CQ).Poll" || o.FullName() == "("+ibPath+".DriverCQ).Poll")
}

// readsSharedMemory reports whether an instruction reads memory that other goroutines can change.
func (w *waitFinder) readsSharedMemory(at ssa.Instruction) bool {
	switch at := at.(type) {
	case *ssa.UnOp:
		return at.Op == token.MUL && mayBeShared(at.X)
	case *ssa.Select:
		return !at.Blocking
	case *ssa.Call:
		if b, ok := at.Call.Value.(*ssa.Builtin); ok {
			return b.Name() == "len" && isChan(at.Call.Args[0].Type())
		}
		switch atomicCallName(at) {
		case "Load":
			return true
		case "CompareAndSwap", "Swap": // the loop computes neither the value nor the place
			return w.isInvariant(at.Call.Args[1]) && w.isInvariantAddress(at.Call.Args[0])
		case "":
			o, _ := calleeObject(at).(*types.Func)
			fn := at.Call.StaticCallee()
			if o != nil && slices.Contains(observerFuncs, o.FullName()) || w.again[at] {
				return true
			}
			if isCQPoll(at) { // the caller of a function with a poll does not show which of its results is progress
				return !w.within
			}
			return fn == nil && w.onlyReads(at) || fn != nil && (lockCallKindOf(fn) == tryCalled || w.pure.isPure(fn))
		}
	}
	return false
}

// onlyReads reports whether all callees of an interface or function value only read memory.
func (w *waitFinder) onlyReads(at *ssa.Call) bool {
	list := w.known[at]
	return len(list) > 0 && !slices.ContainsFunc(list, func(fn *ssa.Function) bool { return !w.pure.isPure(fn) })
}

func isChan(t types.Type) bool {
	_, ok := t.Underlying().(*types.Chan)
	return ok
}

// mayBeShared reports whether other goroutines may have an address.
func mayBeShared(addr ssa.Value) bool {
	a, ok := addr.(*ssa.Alloc)
	return !ok || a.Heap
}

// isInvariant reports whether a value is the same in each iteration.
func (w *waitFinder) isInvariant(v ssa.Value) bool {
	at, ok := v.(ssa.Instruction)
	if !ok || !w.body[at.Block()] {
		return true
	}
	switch at.(type) {
	case *ssa.Phi, *ssa.Call, *ssa.UnOp, *ssa.Extract:
		return false
	}
	for _, o := range at.Operands(nil) {
		if *o != nil && !w.isInvariant(*o) {
			return false
		}
	}
	return true
}

// isInvariantAddress reports whether an address is the same in each iteration, provided that the pointers to it do not
// change.
func (w *waitFinder) isInvariantAddress(addr ssa.Value) bool {
	switch v := addr.(type) {
	case *ssa.FieldAddr:
		return w.isInvariantAddress(v.X)
	case *ssa.UnOp:
		return v.Op == token.MUL && w.isInvariantAddress(v.X)
	}
	return w.isInvariant(addr)
}

// isHarmless reports whether an instruction makes no progress and cannot change the condition of the loop.
func (w *waitFinder) isHarmless(at ssa.Instruction) bool {
	if w.readsSharedMemory(at) {
		return true
	}
	switch at := at.(type) {
	case *ssa.Store:
		return !mayBeShared(at.Addr) || w.isUnrelatedAddress(at.Addr)
	case *ssa.Defer: // RunDefers runs only these calls
		fn := at.Call.StaticCallee()
		return fn != nil && (lockCallKindOf(fn) != noLockCall || w.pure.isPure(fn))
	case *ssa.Send, *ssa.MapUpdate, *ssa.Go, *ssa.Panic, *ssa.Select:
		return false
	case *ssa.UnOp:
		return at.Op != token.ARROW
	case *ssa.Call:
		return w.isHarmlessCall(at)
	}
	return true
}

// isUnrelatedAddress reports whether an address is that of a field or variable that the conditions of the loop do not
// read.
func (w *waitFinder) isUnrelatedAddress(addr ssa.Value) bool {
	place := variableAt(addr)
	return place != nil && !w.places[place] && w.places != nil
}

func (w *waitFinder) isHarmlessCall(at *ssa.Call) bool {
	if b, ok := at.Call.Value.(*ssa.Builtin); ok {
		return slices.Contains([]string{"len", "cap", "min", "max", "append", "ssa:wrapnilchk"}, b.Name())
	}
	switch atomicCallName(at) {
	case "Store", "Add", "And", "Or", "Swap":
		return w.isUnrelatedAddress(at.Call.Args[0])
	case "CompareAndSwap":
		return false
	}
	fn := at.Call.StaticCallee()
	if fn == nil {
		return false
	}
	if lockCallKindOf(fn) != noLockCall {
		return true
	}
	o, ok := objectOf(fn).(*types.Func)
	if fn.Blocks != nil || !ok {
		return w.pure.isPure(fn)
	}
	kind, known := externalKind(o)
	return known && (kind == yields || kind == reads || kind == never && o.Signature().Recv() == nil)
}

// pureFuncs records which functions only read memory.
type pureFuncs map[*ssa.Function]bool

func (p pureFuncs) isPure(fn *ssa.Function) bool {
	if is, ok := p[fn]; ok || fn.Blocks == nil {
		return is
	}
	p[fn] = false // assumed during the search, for a recursive function
	w := &waitFinder{body: blockSet{}, pure: p, within: true}
	for _, b := range fn.Blocks {
		w.body[b] = true
	}
	for _, b := range fn.Blocks {
		for _, at := range b.Instrs {
			if !w.isHarmless(at) {
				return false
			}
		}
	}
	p[fn] = true
	return true
}

// harmlessCycles returns the strongly connected sets of harmless blocks in the loop.
func (w *waitFinder) harmlessCycles() (list []blockSet) {
	calm := blockSet{}
	for b := range w.body {
		if !slices.ContainsFunc(b.Instrs, func(at ssa.Instruction) bool { return !w.isHarmless(at) }) {
			calm[b] = true
		}
	}
	for _, scc := range stronglyConnectedComponents(calm, w.successors) {
		set := blockSet{}
		for _, b := range scc {
			set[b] = true
		}
		list = append(list, set)
	}
	return list
}

// successors returns the successors of a block that are reached without progress. A ready case of a select, an acquired
// lock, a swapped value and a polled completion are progress.
func (w *waitFinder) successors(b *ssa.BasicBlock) []*ssa.BasicBlock {
	for _, at := range b.Instrs {
		if w.again[at] {
			return append(slices.Clone(b.Succs), at.Parent().Blocks[0])
		}
	}
	cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If)
	if !ok {
		return b.Succs
	}
	if e, ok := cond.Cond.(*ssa.BinOp); ok && e.Op == token.EQL {
		if x, ok := e.X.(*ssa.Extract); ok && x.Index == 0 {
			if _, ok := x.Tuple.(*ssa.Select); ok {
				return b.Succs[1:]
			}
		}
	}
	switch successBranch(cond.Cond) {
	case 1:
		return b.Succs[1:]
	case -1:
		return b.Succs[:1]
	}
	return b.Succs
}

// successBranch returns 1 if a CompareAndSwap, Swap or TryLock has changed memory when the condition is true. It
// returns -1 if the call has changed memory when the condition is false, and otherwise 0.
func successBranch(cond ssa.Value) int {
	switch v := cond.(type) {
	case *ssa.UnOp:
		if v.Op == token.NOT {
			return -successBranch(v.X)
		}
	case *ssa.BinOp:
		if n := polledBranch(v); n != 0 {
			return n
		}
		return swapBranch(v)
	case *ssa.Call:
		if fn := v.Call.StaticCallee(); fn != nil && lockCallKindOf(fn) == tryCalled {
			return 1
		}
		switch atomicCallName(v) {
		case "CompareAndSwap":
			return 1
		case "Swap": // the Swap of an atomic.Bool
			if c, ok := v.Call.Args[1].(*ssa.Const); ok && c.Value != nil && c.Value.Kind() == constant.Bool {
				if constant.BoolVal(c.Value) {
					return -1
				}
				return 1
			}
		}
	}
	return 0
}

// isPolledCount reports whether a value is the number of completions that a poll has returned.
func isPolledCount(v ssa.Value) bool {
	switch v := v.(type) {
	case *ssa.Extract:
		c, ok := v.Tuple.(*ssa.Call)
		return ok && v.Index == 0 && isCQPoll(c)
	case *ssa.Phi:
		return !slices.ContainsFunc(v.Edges, func(e ssa.Value) bool {
			x, ok := e.(*ssa.Extract)
			return !ok || !isPolledCount(x)
		})
	}
	return false
}

// polledBranch returns the same result as successBranch for a comparison of the number of polled completions with a
// value that is at least 0.
func polledBranch(v *ssa.BinOp) int {
	if !isPolledCount(v.X) {
		return 0
	}
	zero := false
	if c, ok := v.Y.(*ssa.Const); ok && c.Value != nil {
		n, _ := constant.Int64Val(constant.ToInt(c.Value))
		zero = n == 0
	}
	switch v.Op {
	case token.GTR:
		return 1
	case token.LEQ:
		return -1
	case token.NEQ:
		if zero {
			return 1
		}
		return -1
	case token.EQL:
		if zero {
			return -1
		}
		return 1
	case token.GEQ:
		return 1
	case token.LSS:
		return -1
	}
	return 0
}

// swapBranch returns the same result as successBranch for a comparison of the result of Swap with a constant.
func swapBranch(v *ssa.BinOp) int {
	c, ok := v.X.(*ssa.Call)
	with, is := v.Y.(*ssa.Const)
	if !ok || !is || atomicCallName(c) != "Swap" {
		return 0
	}
	stored, ok := c.Call.Args[1].(*ssa.Const)
	if !ok || stored.Value == nil || with.Value == nil || !constant.Compare(stored.Value, token.EQL, with.Value) {
		return 0
	}
	switch v.Op {
	case token.EQL:
		return -1
	case token.NEQ:
		return 1
	}
	return 0
}

// waitBranch returns the branch on which a cycle waits for other goroutines. A cycle that a variable of the loop ends
// does not wait.
func (w *waitFinder) waitBranch(s blockSet) (ssa.Instruction, bool) {
	var at ssa.Instruction
	exits := false
	for _, b := range sortedBlocks(s) {
		cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If)
		if !ok || s[b.Succs[0]] && s[b.Succs[1]] && len(w.successors(b)) == 2 {
			continue
		}
		exits = true
		c := w.conditionOf(cond.Cond, s)
		if c.carried {
			return nil, false
		}
		if len(c.seen) > 0 && !c.ours && !comparesWithCurrentValue(c.seen) && at == nil {
			at = cond
		}
	}
	if !exits { // the cycle has no exit
		b := sortedBlocks(s)[0]
		return b.Instrs[len(b.Instrs)-1], true
	}
	return at, at != nil
}

// comparesWithCurrentValue reports whether a condition compares an earlier value of a place with its present value.
func comparesWithCurrentValue(seen []ssa.Instruction) bool {
	shapes := map[string]bool{}
	for _, at := range seen {
		s := ""
		switch at := at.(type) {
		case *ssa.UnOp:
			s = describeValue(at.X, 0)
		case *ssa.Call:
			for _, a := range at.Call.Args {
				s += describeValue(a, 0) + ","
			}
		default:
			continue
		}
		if shapes[s] {
			return true
		}
		shapes[s] = true
	}
	return false
}

func sortedBlocks(s blockSet) (list []*ssa.BasicBlock) {
	for b := range s {
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b *ssa.BasicBlock) int { return a.Index - b.Index })
	return list
}

// conditionPos returns the position at which a cycle reads its condition. Without such a position, conditionPos returns
// the position of the first instruction that has one.
func (w *waitFinder) conditionPos(s blockSet, at ssa.Instruction) token.Pos {
	if cond, ok := at.(*ssa.If); ok {
		for _, x := range w.conditionOf(cond.Cond, s).seen {
			if x.Pos().IsValid() {
				return x.Pos()
			}
		}
	}
	for _, b := range sortedBlocks(s) {
		for _, x := range b.Instrs {
			if x.Pos().IsValid() {
				return x.Pos()
			}
		}
	}
	return at.Parent().Pos()
}
