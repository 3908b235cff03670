package vet

import (
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// onTime describes a loop that waits until time has passed. (spinLoop.on)
const onTime = "on the time"

// spinLoop is a loop that spins.
type spinLoop struct {
	at  ssa.Instruction
	pos token.Pos
	on  string
}

// spinLoops finds loops that only read the time or yield the processor. Such a loop ends only when another goroutine
// changes memory, or when time has passed.
func spinLoops(f *ssa.Function) (list []spinLoop) {
	for _, scc := range loopsOf(f) {
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
				switch kind, _ := externalKind(o); kind {
				case yields:
					first, pos, on = at, c.Pos(), "until another goroutine has done something"
				case reads:
					if on == "" && exitDependsOn(scc, in, c) {
						first, pos, on = at, c.Pos(), onTime
					}
				}
			}
		}
		if on != "" {
			list = append(list, spinLoop{first, pos, on})
		}
	}
	return list
}

// exitDependsOn reports whether a condition that ends the loop depends on a value.
func exitDependsOn(scc []*ssa.BasicBlock, in map[*ssa.BasicBlock]bool, v ssa.Value) bool {
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

// loopsOf returns the loops of a function. A loop is a strongly connected set of blocks.
func loopsOf(f *ssa.Function) [][]*ssa.BasicBlock {
	all := blockSet{}
	for _, b := range f.Blocks {
		all[b] = true
	}
	return stronglyConnectedComponents(all, func(b *ssa.BasicBlock) []*ssa.BasicBlock { return b.Succs })
}

// stronglyConnectedComponents returns the strongly connected sets of the given blocks. next returns the successors of a
// block.
func stronglyConnectedComponents(among blockSet,
	next func(*ssa.BasicBlock) []*ssa.BasicBlock) (list [][]*ssa.BasicBlock) {
	index, low := map[*ssa.BasicBlock]int{}, map[*ssa.BasicBlock]int{}
	on := blockSet{}
	var stack []*ssa.BasicBlock
	var visit func(b *ssa.BasicBlock)
	visit = func(b *ssa.BasicBlock) {
		index[b] = len(index) + 1
		low[b] = index[b]
		stack = append(stack, b)
		on[b] = true
		self := false
		for _, s := range next(b) {
			self = self || s == b
			switch {
			case !among[s]:
			case index[s] == 0:
				visit(s)
				low[b] = min(low[b], low[s])
			case on[s]:
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
		if len(scc) > 1 || self {
			list = append(list, scc)
		}
	}
	for _, b := range sortedBlocks(among) {
		if index[b] == 0 {
			visit(b)
		}
	}
	return list
}

// naturalLoops returns the blocks of each loop. A loop has an edge back to a block that dominates the source of the
// edge.
func naturalLoops(f *ssa.Function) (list []blockSet) {
	heads := map[*ssa.BasicBlock]blockSet{}
	for _, b := range f.Blocks {
		for _, h := range b.Succs {
			if !h.Dominates(b) {
				continue
			}
			if heads[h] == nil {
				heads[h] = blockSet{h: true}
				list = append(list, heads[h])
			}
			work := []*ssa.BasicBlock{b}
			for len(work) > 0 {
				x := work[0]
				work = work[1:]
				if !heads[h][x] {
					heads[h][x] = true
					work = append(work, x.Preds...)
				}
			}
		}
	}
	return list
}
