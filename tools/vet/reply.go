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

// replyFlow finds the work requests with done functions that send to a reply channel.
type replyFlow struct {
	traces   *valueTracer
	m        *ssa.MakeChan
	owner    *ssa.Alloc                        // the new struct with the channel in a field, or nil
	creators map[*ssa.Function]*ssa.BasicBlock // blocks that make the channel, or call the constructor of the owner
	seen     map[*ssa.Function]bool
}

// isReplyChannel reports whether a channel is a reply channel. The channel is a variable of its creator, or a field of
// a struct that the creator makes with the channel. The space is unknown if the capacity is not constant. It then
// counts as sufficient.
func (t *valueTracer) isReplyChannel(m *ssa.MakeChan, uses []channelUse) bool {
	n, constant := m.Size.(*ssa.Const)
	r := &replyFlow{traces: t, m: m, seen: map[*ssa.Function]bool{},
		creators: map[*ssa.Function]*ssa.BasicBlock{m.Parent(): m.Block()}}
	r.owner = r.ownerOf()
	r.addConstructorCalls()
	sends := map[*ssa.Function][]ssa.Instruction{}
	for _, u := range uses {
		if u.send && u.arm >= 0 {
			return false
		}
		if u.send {
			sends[u.in.Function] = append(sends[u.in.Function], u.at)
		}
	}
	elements := map[*ssa.Function]int64{}
	for f, at := range sends {
		posts, ok := r.postsBehind(f, at)
		if !ok {
			return false
		}
		for _, at := range posts {
			made := r.creators[at.Parent()]
			elements[at.Parent()]++
			if constant && at.Block() != made && reachesBlock(at.Block(), at.Block(), made) {
				return false
			}
		}
	}
	for _, k := range elements {
		if constant && k > n.Int64() {
			return false
		}
	}
	return true
}

// addConstructorCalls adds the callers of the creator, if it returns the new owner.
func (r *replyFlow) addConstructorCalls() {
	if r.owner == nil || !slices.ContainsFunc(usersOf(r.owner), func(at ssa.Instruction) bool {
		_, ok := at.(*ssa.Return)
		return ok
	}) {
		return
	}
	for _, k := range r.traces.callers[r.m.Parent()] {
		in := k.c.at.Parent()
		if r.creators[in] != nil && r.creators[in] != k.c.at.Block() {
			delete(r.creators, in)
			return
		}
		r.creators[in] = k.c.at.Block()
	}
}

// ownerOf returns the struct in which the creator of the channel stores it, if this is the only use of the channel and
// the struct is new.
func (r *replyFlow) ownerOf() *ssa.Alloc {
	var owner *ssa.Alloc
	for _, user := range usersOf(r.m) {
		s, ok := user.(*ssa.Store)
		if !ok {
			continue // a receive, a send, or a capture
		}
		a, ok := s.Addr.(*ssa.FieldAddr)
		if !ok || owner != nil {
			return nil
		}
		if owner, ok = a.X.(*ssa.Alloc); !ok || len(r.traces.fields[fieldVar(a.X.Type(), a.Field)]) != 1 {
			return nil
		}
	}
	return owner
}

// postsBehind returns the instructions of creators that lead to instructions of f, each to one execution: posts of done
// functions, and calls of functions that post. ok is false if other threads may execute f, or if f may execute the
// instructions twice.
func (r *replyFlow) postsBehind(f *ssa.Function, at []ssa.Instruction) (posts []ssa.Instruction, ok bool) {
	if r.creators[f] != nil {
		return at, true
	}
	if sendsTwice(at) || r.seen[f] {
		return nil, false
	}
	if done := r.postsOf(f); len(done) > 0 {
		return done, true
	}
	if r.owner == nil || r.isUsedAsValue(f) || len(r.traces.callers[f]) == 0 {
		return nil, false
	}
	r.seen[f] = true
	defer delete(r.seen, f)
	by := map[*ssa.Function][]ssa.Instruction{}
	for _, k := range r.traces.callers[f] {
		if in := k.c.at.Parent(); !slices.Contains(by[in], k.c.at) {
			by[in] = append(by[in], k.c.at)
		}
	}
	for in, calls := range by {
		list, ok := r.postsBehind(in, calls)
		if !ok {
			return nil, false
		}
		posts = append(posts, list...)
	}
	return posts, true
}

// postsOf returns the calls that post a work request with a function literal, or a method of the owner, as its done
// function. It returns nil if the function has other uses.
func (r *replyFlow) postsOf(fn *ssa.Function) (posts []ssa.Instruction) {
	for _, c := range r.traces.closures[fn] {
		if c.Parent() != r.m.Parent() && !r.holdsOwner(c) {
			return nil
		}
		for _, user := range usersOf(c) {
			call, ok := user.(*ssa.Call)
			if !ok || call.Common().StaticCallee() == nil {
				return nil
			}
			args, ok := postFuncs[fullName(call.Common().StaticCallee())]
			if !ok || literalOf(call.Common().Args[args.done]) != fn {
				return nil
			}
			list, ok := r.postsBehind(call.Parent(), []ssa.Instruction{call})
			if !ok {
				return nil
			}
			posts = append(posts, list...)
		}
	}
	return posts
}

// holdsOwner reports whether a function value holds the owner of the channel, and no other struct of its type.
func (r *replyFlow) holdsOwner(c *ssa.MakeClosure) bool {
	holds := false
	for _, b := range c.Bindings {
		if r.owner == nil || namedOf(b.Type()) == nil || namedOf(b.Type()) != namedOf(r.owner.Type()) {
			continue
		}
		for _, o := range r.traces.origins(b, nil, nil) {
			if o.v != ssa.Value(r.owner) {
				return false
			}
		}
		holds = true
	}
	return holds
}

// isUsedAsValue reports whether the program stores or passes a function, except as the method value of a post.
func (r *replyFlow) isUsedAsValue(f *ssa.Function) bool {
	return len(r.traces.closures[f]) > 0 || f.Referrers() != nil && slices.ContainsFunc(*f.Referrers(),
		func(at ssa.Instruction) bool {
			c, ok := at.(ssa.CallInstruction)
			return !ok || c.Common().StaticCallee() != f
		})
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
