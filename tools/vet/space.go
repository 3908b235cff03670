package vet

import (
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// smallSends returns the sends to channels with less space than the receives of the queue pairs of the package, in
// functions that only receives call. A goroutine receives from such a channel in a loop, so the peer determines the
// number of values. A channel with a capacity of 1 is for a reply.
func (p *Program) smallSends() map[ssa.Instruction]bool {
	room := p.receiveCounts()
	if len(room) == 0 {
		return nil
	}
	receives := p.calledBy(func(name string) bool { return name == postRecv })
	others := p.calledBy(func(name string) bool { _, ok := postFuncs[name]; return ok && name != postRecv })
	looped := p.loopedChannels()
	small := map[ssa.Instruction]bool{}
	for f := range receives {
		n := room[pkgOf(f.Function)]
		if n == 0 || others[f] {
			continue
		}
		for _, o := range f.ops {
			send, ok := o.at.(*ssa.Send)
			if !ok {
				continue
			}
			from := p.traces.containerAllocs(send.Chan)
			small[send] = len(from) > 0 && !slices.ContainsFunc(from, func(o valueOrigin) bool {
				m, _ := o.v.(*ssa.MakeChan)
				if m == nil || !looped[m] {
					return true
				}
				c, ok := m.Size.(*ssa.Const)
				return !ok || c.Int64() < 2 || c.Int64() >= n
			})
		}
	}
	return small
}

// receiveCounts returns the least number of receives of a queue pair, by package, where all are constant.
func (p *Program) receiveCounts() map[*types.Package]int64 {
	room := map[*types.Package]int64{}
	for _, f := range p.order {
		k := pkgOf(f.Function)
		if isMidlayer(f) || k == nil {
			continue
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				a, ok := s.Addr.(*ssa.FieldAddr)
				if !ok || !isNamed(deref(a.X.Type()), ibPath+".QPCap") || fieldVar(a.X.Type(), a.Field).Name() != "MaxRecvWR" {
					continue
				}
				n := int64(0)
				if c, ok := s.Val.(*ssa.Const); ok {
					n = c.Int64()
				}
				if old, seen := room[k]; !seen || n < old {
					room[k] = n
				}
			}
		}
	}
	return room
}

// calledBy returns the functions that the functions of certain posts call.
func (p *Program) calledBy(post func(name string) bool) map[*function]bool {
	seen := map[*function]bool{}
	var work []*function
	add := func(f *function) {
		if f != nil && !seen[f] && !isMidlayer(f) {
			seen[f] = true
			work = append(work, f)
		}
	}
	for _, f := range p.order {
		for _, c := range f.calls {
			name := c.findReachableFunc(post)
			if name == "" || isMidlayer(f) {
				continue
			}
			for _, g := range p.postedFuncs(c, name) {
				add(g)
			}
		}
	}
	for len(work) > 0 {
		f := work[0]
		work = work[1:]
		for _, c := range f.calls {
			if !c.spawns {
				for _, g := range c.callees {
					add(g)
				}
			}
		}
	}
	return seen
}

// loopedChannels returns the channels from which a loop receives.
func (p *Program) loopedChannels() map[*ssa.MakeChan]bool {
	looped := map[*ssa.MakeChan]bool{}
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				for _, ch := range receivedChannels(at) {
					if !slices.ContainsFunc(b.Succs, func(to *ssa.BasicBlock) bool { return to == b || reachesBlock(to, b, nil) }) {
						continue
					}
					for _, o := range p.traces.containerAllocs(ch) {
						if m, ok := o.v.(*ssa.MakeChan); ok {
							looped[m] = true
						}
					}
				}
			}
		}
	}
	return looped
}
