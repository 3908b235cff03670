package vet

import (
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// blockOrder is a reverse postorder of the blocks of a function.
type blockOrder struct {
	blocks []*ssa.BasicBlock
	loops  bool
}

func (l *lifeCheck) orderOf(f *function) *blockOrder {
	if o := l.orders[f]; o != nil {
		return o
	}
	o := &blockOrder{}
	state := map[*ssa.BasicBlock]int{} // 1: being visited, 2: visited
	var visit func(b *ssa.BasicBlock)
	visit = func(b *ssa.BasicBlock) {
		state[b] = 1
		for _, to := range b.Succs {
			switch state[to] {
			case 0:
				visit(to)
			case 1:
				o.loops = true
			}
		}
		state[b] = 2
		o.blocks = append(o.blocks, b)
	}
	visit(f.Blocks[0])
	slices.Reverse(o.blocks)
	l.orders[f] = o
	return o
}

// lifeWalk is a walk through blocks of a function, in reverse postorder.
type lifeWalk struct {
	fr     *lifeFrame
	blocks []*ssa.BasicBlock
	in     lifeState // the facts before the first block
	edges  map[[2]*ssa.BasicBlock]lifeState
	out    lifeState // the facts at the returns
}

// walk returns the facts after a function. Its argument in holds the facts before the function.
func (l *lifeCheck) walk(fr *lifeFrame, in lifeState) lifeState {
	order := l.orderOf(fr.f)
	if len(order.blocks) > 200 {
		return lifeState{}
	}
	w := &lifeWalk{fr: fr, blocks: order.blocks, in: in, edges: map[[2]*ssa.BasicBlock]lifeState{}}
	final := fr.final || fr.up == nil
	w.run(order.loops, final)
	if order.loops && final {
		w.repeatLoops()
	}
	if w.out == nil {
		return lifeState{}
	}
	return w.out
}

// run passes over the blocks until the facts do not change. If final is set, the last pass reports.
func (w *lifeWalk) run(loops, final bool) {
	w.fr.final = false
	for i := 0; loops && i < 8; i++ {
		if !w.pass() {
			break
		}
	}
	if w.fr.final = final; final || !loops {
		w.pass()
	}
}

// repeatLoops walks through each loop once more, with the facts at the end of one iteration. In contrast, run only
// finds the facts that hold in each iteration.
func (w *lifeWalk) repeatLoops() {
	for _, head := range w.blocks {
		for _, from := range head.Preds {
			st := w.edges[[2]*ssa.BasicBlock{from, head}]
			if len(st) == 0 || !head.Dominates(from) {
				continue
			}
			body := slices.DeleteFunc(slices.Clone(w.blocks), func(b *ssa.BasicBlock) bool { return !head.Dominates(b) })
			again := &lifeWalk{fr: w.fr, blocks: body, in: st, edges: map[[2]*ssa.BasicBlock]lifeState{}}
			again.run(true, true)
		}
	}
}

// pass passes over the blocks once, and reports whether facts have changed.
func (w *lifeWalk) pass() (changed bool) {
	w.out = nil
	for i, b := range w.blocks {
		var st lifeState
		if i == 0 {
			st = maps.Clone(w.in)
		} else {
			for _, from := range b.Preds {
				if e, ok := w.edges[[2]*ssa.BasicBlock{from, b}]; ok {
					st = joinLives(st, e)
				}
			}
		}
		if st == nil {
			continue
		}
		for _, at := range b.Instrs {
			w.fr.now = at
			w.fr.step(st, at)
		}
		switch last := b.Instrs[len(b.Instrs)-1].(type) {
		case *ssa.Return:
			w.out = joinLives(w.out, st)
		case *ssa.If:
			for i, to := range b.Succs {
				changed = setEdge(w.edges, b, to, w.fr.branch(st, last, i)) || changed
			}
		default:
			for _, to := range b.Succs {
				changed = setEdge(w.edges, b, to, st) || changed
			}
		}
	}
	return changed
}

func setEdge(edges map[[2]*ssa.BasicBlock]lifeState, from, to *ssa.BasicBlock, st lifeState) bool {
	k := [2]*ssa.BasicBlock{from, to}
	old, ok := edges[k]
	if ok && len(old) == len(st) && maps.Equal(old, st) {
		return false
	}
	edges[k] = maps.Clone(st)
	return true
}

// joinLives returns the facts that hold in both states. A nil state stands for an unreachable one.
func joinLives(a, b lifeState) lifeState {
	if a == nil {
		return maps.Clone(b)
	}
	for k, x := range a {
		y, ok := b[k]
		switch {
		case !ok:
			delete(a, k)
		case x.isNil && !y.isNil:
			y.mayFail = true
			a[k] = y
		case !x.isNil && y.isNil:
			x.mayFail = true
			a[k] = x
		}
	}
	return a
}

// branch returns the facts at successor i of a branch.
func (fr *lifeFrame) branch(st lifeState, at *ssa.If, i int) lifeState {
	st = maps.Clone(st)
	for k, x := range st {
		if x.call == nil || x.call.Parent() != fr.f.Function {
			continue
		}
		err := ssa.Value(x.call)
		if !returnsError(x.call) { // another result may depend on the success
			if dependsOn(at.Cond, err, 0) {
				delete(st, k)
			}
			continue
		}
		if t, ok := x.call.Type().(*types.Tuple); ok {
			if err = resultOf(x.call, t.Len()-1); err == nil {
				continue
			}
		}
		switch failed, on := failureEdge(at, err); {
		case on && failed == i:
			st[k] = lifeFact{isNil: true}
		case !on && dependsOn(at.Cond, err, 0):
			delete(st, k)
		}
	}
	if o, ok := at.Cond.(*ssa.BinOp); ok && (o.Op == token.EQL || o.Op == token.NEQ) && isNil(o.Y) {
		if (o.Op == token.NEQ) == (i == 0) && isErrorType(o.X.Type()) {
			for k, x := range st { // after an error the requests may have been flushed
				if !x.isNil && k.kind.isPending() {
					delete(st, k)
				}
			}
		}
		if path := fr.pathOf(o.X); path != "" && (o.Op == token.EQL) == (i == 0) {
			for _, k := range append(fr.dependants(path, o.X), lifeKey{lifeEnded, path}) {
				if _, ok := st[k]; !ok {
					st[k] = lifeFact{isNil: true}
				}
			}
		}
	}
	return st
}

// forget removes the facts about a variable and about objects in it.
func (st lifeState) forget(path string) {
	for k := range st {
		if strings.HasPrefix(k.path, path) {
			delete(st, k)
		}
	}
}

// awaits removes the facts about posted requests.
func (st lifeState) awaits() {
	for k := range st {
		if k.kind.isPending() {
			delete(st, k)
		}
	}
}

// step applies an instruction.
func (fr *lifeFrame) step(st lifeState, at ssa.Instruction) {
	if v, ok := at.(ssa.Value); ok {
		if root := fr.l.roots[v]; root != "" {
			st.forget(root)
		}
	}
	if len(receivedChannels(at)) > 0 {
		st.awaits()
	}
	if u, ok := poolUseOf(at); ok && u.pool != nil && u.gives && u.value != nil {
		fr.give(st, u.value, u.pool.Name(), at)
	}
	switch x := at.(type) {
	case *ssa.Store:
		fr.write(st, x.Addr, at)
		if path := fr.pathOf(x.Addr); path != "" {
			st.forget(path + "*")
			st.forget(path + ".")
			if isNil(x.Val) {
				st[lifeKey{lifeEnded, path + "*"}] = lifeFact{isNil: true}
			}
		}
	case *ssa.RunDefers:
		for _, d := range slices.Backward(fr.defers(at.Block())) {
			fr.call(st, d, d)
		}
	case *ssa.Call:
		if b, ok := x.Common().Value.(*ssa.Builtin); ok {
			if b.Name() == "copy" || b.Name() == "clear" {
				fr.writeSlice(st, x.Common().Args[0], at)
			}
			return
		}
		fr.call(st, x, x)
	}
}

// defers returns the deferred calls that run at the end of a block, in the order of their statements.
func (fr *lifeFrame) defers(b *ssa.BasicBlock) (list []*ssa.Defer) {
	for _, d := range fr.f.DomPreorder() {
		if !d.Dominates(b) {
			continue
		}
		for _, at := range d.Instrs {
			if x, ok := at.(*ssa.Defer); ok {
				list = append(list, x)
			}
		}
	}
	return list
}
