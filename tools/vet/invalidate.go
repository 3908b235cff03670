package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

const (
	wrLocalInv  = "WRLocalInv"
	postOneSend = "(*" + completionPath + ".QP).PostSend"
)

// checkInvalidations reports regions that a function gives back to a pool after it has posted their invalidation, if
// it does not wait for a completion in between. The next user then changes the region before the invalidation has been
// executed.
func (r *releaseCheck) checkInvalidations() (reports []Report) {
	p := r.p
	localInv := p.ibConst(wrLocalInv)
	if localInv == nil {
		return nil
	}
	for _, f := range p.order {
		if isMidlayer(f) || f.base != nil {
			continue
		}
		for _, c := range f.calls {
			at, ok := c.at.(*ssa.Call)
			if !ok || c.static == nil || c.static.FullName() != postOneSend ||
				p.escapes.escapeAt(p.Fset, c.pos, Release) != nil {
				continue
			}
			mr := invalidatedRegion(at.Common().Args[1], localInv)
			if mr == nil || waitsAfter(f, at) {
				continue
			}
			thing := mr.Type()
			switch mr.(type) {
			case *ssa.Alloc, *ssa.IndexAddr:
				thing = deref(thing)
			}
			if pool := r.givenPool(f, at, thing); pool != nil {
				name := functionName(f)
				reports = append(reports, Report{Release, c.pos, fmt.Sprintf("%s gives a region back to %s when its "+
					"invalidation has been posted, not when it has completed", name, pool.Name()),
					[]PathStep{{c.pos, name, "posts " + wrLocalInv}}})
			}
		}
	}
	return reports
}

// invalidatedRegion returns the variable or element, or the received value, that holds the region of a WRLocalInv, or
// nil.
func invalidatedRegion(wr ssa.Value, localInv *types.Const) ssa.Value {
	load, ok := wr.(*ssa.UnOp)
	if !ok {
		return nil
	}
	invalidates, key := false, ssa.Value(nil)
	for _, r := range *load.X.Referrers() {
		a, ok := r.(*ssa.FieldAddr)
		if !ok {
			continue
		}
		for _, s := range *a.Referrers() {
			s, ok := s.(*ssa.Store)
			if !ok || s.Addr != a {
				continue
			}
			switch fieldVar(a.X.Type(), a.Field).Name() {
			case "Opcode":
				invalidates = isConst(s.Val, localInv)
			case "InvalidateRKey":
				key = s.Val
			}
		}
	}
	call, ok := key.(*ssa.Call)
	if !invalidates || !ok || fullName(call.Common().StaticCallee()) != "(*"+ibPath+".MR).RKey" {
		return nil
	}
	return rootOf(call.Common().Args[0])
}

// rootOf returns the variable, or the received value, at the beginning of a path of fields.
func rootOf(v ssa.Value) ssa.Value {
	for {
		switch x := v.(type) {
		case *ssa.FieldAddr:
			v = x.X
		case *ssa.UnOp:
			if x.Op != token.MUL {
				return v
			}
			v = x.X
		default:
			return v
		}
	}
}

// waitsAfter reports whether a function may receive from a channel after an instruction.
func waitsAfter(f *function, at ssa.Instruction) bool {
	for _, b := range f.Blocks {
		for i, x := range b.Instrs {
			later := b == at.Block() && slices.Index(b.Instrs, at) < i || b != at.Block() && reachesBlock(at.Block(), b, nil)
			if later && len(receivedChannels(x)) > 0 {
				return true
			}
		}
	}
	return false
}

// givenPool returns the pool to which a function gives a region, or a thing of a type, after a post or when it returns,
// or nil. The function, or another one that uses the region, takes it from the pool.
func (r *releaseCheck) givenPool(f *function, at ssa.Instruction, thing types.Type) *types.Var {
	taken := map[*types.Var]bool{}
	var given []*types.Var
	var failed *ssa.BasicBlock
	if post, ok := at.(*ssa.Call); ok {
		failed = failureBlock(post, post)
	}
	for _, b := range f.Blocks {
		if failed != nil && failed.Dominates(b) {
			continue
		}
		for i, x := range b.Instrs {
			for _, u := range r.poolUses(b.Instrs[i:i+1], 0) {
				later := b == at.Block() && slices.Index(b.Instrs, at) < i || b != at.Block() && reachesBlock(at.Block(), b, nil)
				switch {
				case !u.gives:
					taken[u.pool] = true
				case !later && !isDefer(x) || u.value == nil:
				case types.Identical(u.value.Type(), thing) || isNamed(u.value.Type(), ibPath+".MR"):
					given = append(given, u.pool)
				}
			}
		}
	}
	for _, p := range given {
		if taken[p] || r.isTakenForUse(p) {
			return p
		}
	}
	return nil
}
