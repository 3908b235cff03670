package vet

import (
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// A signal ends the waits of other goroutines. It is a channel, which a send or close signals, or a variable with a
// sync.WaitGroup or sync.Cond.

// signal is the *ssa.MakeChan of a channel, or the field or variable of another signal.
type signal any

// raisedSignals returns the signals that an instruction itself raises.
func (p *Program) raisedSignals(at ssa.Instruction) (list []signal) {
	for _, ch := range sentChannels(at) {
		list = append(list, p.channelSignals(ch)...)
	}
	c, ok := at.(ssa.CallInstruction)
	if !ok {
		return list
	}
	args := c.Common().Args
	if fn, ok := c.Common().Value.(*ssa.Builtin); ok && fn.Name() == "close" {
		return append(list, p.channelSignals(args[0])...)
	}
	switch fullName(c.Common().StaticCallee()) {
	case "(*sync.WaitGroup).Done", "(*sync.Cond).Signal", "(*sync.Cond).Broadcast":
		list = append(list, p.syncSignals(args[0])...)
	}
	return list
}

// awaitedSignals returns the signals that can end the wait of an instruction.
func (p *Program) awaitedSignals(at ssa.Instruction) (list []signal) {
	for _, ch := range receivedChannels(at) {
		list = append(list, p.channelSignals(ch)...)
	}
	if c, ok := at.(*ssa.Call); ok {
		switch fullName(c.Common().StaticCallee()) {
		case "(*sync.WaitGroup).Wait", "(*sync.Cond).Wait":
			list = append(list, p.syncSignals(c.Common().Args[0])...)
		}
	}
	return list
}

// channelSignals returns the calls of make that may have created a channel, or nil if they are unknown.
func (p *Program) channelSignals(ch ssa.Value) (list []signal) {
	if _, ok := ch.Type().Underlying().(*types.Chan); ok {
		for _, o := range p.traces.containerAllocs(ch) {
			list = append(list, o.v)
		}
	}
	return list
}

// syncSignals returns the fields and variables to which a pointer may point, or nil if they are unknown.
func (p *Program) syncSignals(v ssa.Value) (list []signal) {
	for _, o := range p.traces.origins(v, nil, nil) {
		at := variableAt(o.v)
		if c, ok := o.v.(*ssa.Call); ok && fullName(c.Common().StaticCallee()) == "sync.NewCond" {
			at = c
		}
		if at == nil {
			return nil
		}
		list = append(list, at)
	}
	return list
}

// intersectSignals reports whether two lists have a common signal.
func intersectSignals(a, b []signal) bool {
	return slices.ContainsFunc(a, func(s signal) bool { return slices.Contains(b, s) })
}

// waitsOnlyFor reports whether only signals with a property end the wait of an instruction.
func (p *Program) waitsOnlyFor(at ssa.Instruction, has func(signal) bool) bool {
	all := func(list []signal) bool {
		return len(list) > 0 && !slices.ContainsFunc(list, func(s signal) bool { return !has(s) })
	}
	switch at := at.(type) {
	case *ssa.UnOp:
		return at.Op == token.ARROW && all(p.channelSignals(at.X))
	case *ssa.Select:
		return at.Blocking && !slices.ContainsFunc(at.States, func(s *ssa.SelectState) bool {
			return s.Dir == types.SendOnly || !all(p.channelSignals(s.Chan))
		})
	case *ssa.Call:
		return all(p.awaitedSignals(at))
	}
	return false
}

// sentChannels returns the channels to which an instruction sends.
func sentChannels(at ssa.Instruction) (list []ssa.Value) {
	switch at := at.(type) {
	case *ssa.Send:
		list = append(list, at.Chan)
	case *ssa.Select:
		for _, s := range at.States {
			if s.Dir == types.SendOnly {
				list = append(list, s.Chan)
			}
		}
	}
	return list
}

// receivedChannels returns the channels from which an instruction receives.
func receivedChannels(at ssa.Instruction) (list []ssa.Value) {
	switch at := at.(type) {
	case *ssa.UnOp:
		if at.Op == token.ARROW {
			list = append(list, at.X)
		}
	case *ssa.Select:
		for _, s := range at.States {
			if s.Dir == types.RecvOnly {
				list = append(list, s.Chan)
			}
		}
	}
	return list
}
