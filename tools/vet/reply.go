package vet

import (
	"slices"

	"golang.org/x/tools/go/ssa"
)

// A function may wait for its work requests by a reply channel: it makes the channel with a capacity, and the done
// functions of the requests that it posts send to the channel. A done function runs once. So the sends do not wait if
// the channel has space for one element of each request.

// A function may also put a channel with space for one element into a field or a map. Each sender then takes the
// channel out again, so that it sends only once: it overwrites the field, or deletes the key, in the same basic block.
// The channel is a single-use channel.

// isSingleUseChannel reports whether a channel is a single-use channel.
func isSingleUseChannel(m *ssa.MakeChan, uses []channelUse) bool {
	n, constant := m.Size.(*ssa.Const)
	if !constant || n.Int64() < 1 || len(storesOf(m)) != 1 {
		return false
	}
	for _, u := range uses {
		if u.send && (u.arm >= 0 || !forgetsChannel(u.at.(*ssa.Send))) {
			return false
		}
	}
	return true
}

// storesOf returns the instructions that store a channel, or nil if it has uses other than these and receives.
func storesOf(m *ssa.MakeChan) (stores []ssa.Instruction) {
	for _, user := range usersOf(m) {
		switch user := user.(type) {
		case *ssa.Store, *ssa.MapUpdate:
			stores = append(stores, user)
		case *ssa.UnOp, *ssa.Select:
		default:
			return nil
		}
	}
	return stores
}

// forgetsChannel reports whether the sender takes the channel out of its field or map in the same block.
func forgetsChannel(send *ssa.Send) bool {
	for _, at := range send.Block().Instrs {
		switch at := at.(type) {
		case *ssa.Store:
			load, ok := send.Chan.(*ssa.UnOp)
			c, null := at.Val.(*ssa.Const)
			if ok && null && c.IsNil() && sameField(load.X, at.Addr) {
				return true
			}
		case *ssa.Call:
			found, ok := send.Chan.(*ssa.Lookup)
			b, builtin := at.Common().Value.(*ssa.Builtin)
			if ok && builtin && b.Name() == "delete" && sameValue(found.X, at.Common().Args[0]) &&
				sameValue(found.Index, at.Common().Args[1]) {
				return true
			}
		}
	}
	return false
}

// sameField reports whether two addresses are those of one field of one value.
func sameField(a, b ssa.Value) bool {
	x, ok1 := a.(*ssa.FieldAddr)
	y, ok2 := b.(*ssa.FieldAddr)
	return ok1 && ok2 && x.Field == y.Field && sameValue(x.X, y.X)
}

// sameValue reports whether two values are equal: the same value, or the same field, read twice.
func sameValue(a, b ssa.Value) bool {
	if a == b {
		return true
	}
	x, ok1 := a.(*ssa.UnOp)
	y, ok2 := b.(*ssa.UnOp)
	return ok1 && ok2 && x.Op == y.Op && (sameField(x.X, y.X) || sameValue(x.X, y.X))
}

// isReplyChannel reports whether a channel is a reply channel. The space is unknown if the capacity is not constant. It
// then counts as sufficient.
func isReplyChannel(m *ssa.MakeChan, uses []channelUse) bool {
	sends := map[*ssa.Function][]ssa.Instruction{}
	var elements []ssa.Instruction // instructions of the channel's creator that lead to one element each
	for _, u := range uses {
		switch {
		case !u.send:
		case u.arm >= 0:
			return false
		case u.in.Function == m.Parent():
			elements = append(elements, u.at)
		case u.in.Parent() != m.Parent():
			return false
		default:
			sends[u.in.Function] = append(sends[u.in.Function], u.at)
		}
	}
	for f, at := range sends {
		posts := postsOf(m.Parent(), f)
		if len(posts) == 0 || sendsTwice(at) {
			return false
		}
		elements = append(elements, posts...)
	}
	n, constant := m.Size.(*ssa.Const)
	return !constant || int64(len(elements)) <= n.Int64() && !slices.ContainsFunc(elements, func(at ssa.Instruction) bool {
		return at.Block() != m.Block() && reachesBlock(at.Block(), at.Block(), m.Block())
	})
}

// postsOf returns the calls that post a work request with a function literal as its done function, or nil if the
// literal has other uses.
func postsOf(in, literal *ssa.Function) (posts []ssa.Instruction) {
	for _, b := range in.Blocks {
		for _, at := range b.Instrs {
			c, ok := at.(*ssa.MakeClosure)
			if !ok || c.Fn != literal {
				continue
			}
			for _, user := range usersOf(c) {
				call, ok := user.(*ssa.Call)
				if !ok || call.Common().StaticCallee() == nil {
					return nil
				}
				args, ok := postFuncs[fullName(call.Common().StaticCallee())]
				if !ok || literalOf(call.Common().Args[args.done]) != literal {
					return nil
				}
				posts = append(posts, call)
			}
		}
	}
	return posts
}

// usersOf returns the instructions that use a closure, also after a conversion to a named type.
func usersOf(v ssa.Value) (users []ssa.Instruction) {
	for _, user := range *v.Referrers() {
		switch user := user.(type) {
		case *ssa.ChangeType:
			users = append(users, usersOf(user)...)
		case *ssa.DebugRef:
		default:
			users = append(users, user)
		}
	}
	return users
}

func literalOf(v ssa.Value) ssa.Value {
	for {
		switch x := v.(type) {
		case *ssa.ChangeType:
			v = x.X
		case *ssa.MakeClosure:
			return x.Fn
		default:
			return nil
		}
	}
}

// sendsTwice reports whether one run of a function may execute two of its sends, or one of them twice.
func sendsTwice(sends []ssa.Instruction) bool {
	for i, a := range sends {
		for j, b := range sends {
			if i < j && a.Block() == b.Block() || reachesBlock(a.Block(), b.Block(), nil) {
				return true
			}
		}
	}
	return false
}

// reachesBlock reports whether execution can go from the end of a block to another one, without the block avoid.
func reachesBlock(from, to, avoid *ssa.BasicBlock) bool {
	seen := map[*ssa.BasicBlock]bool{}
	work := slices.Clone(from.Succs)
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[b] || b == avoid {
			continue
		}
		if b == to {
			return true
		}
		seen[b] = true
		work = append(work, b.Succs...)
	}
	return false
}
