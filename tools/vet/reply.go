package vet

import (
	"slices"

	"golang.org/x/tools/go/ssa"
)

// A function may wait for its work requests by a reply channel: it makes the channel with a capacity, and the done
// functions of the requests that it posts send to the channel. A done function runs once. So the sends do not wait if
// the channel has space for one element of each request.

// A function may also put a channel with space for one element into a field or a map. Each sender then takes the
// channel out again, so that it sends only once: it overwrites the field, or deletes the key, in the same basic block,
// or calls a function that does. The channel is a single-use channel.

// isSingleUseChannel reports whether a channel is a single-use channel.
func isSingleUseChannel(m *ssa.MakeChan, uses []channelUse) bool {
	n, constant := m.Size.(*ssa.Const)
	if !constant || n.Int64() < 1 || !isStoredOnce(m) {
		return false
	}
	sends := map[*ssa.Function][]ssa.Instruction{}
	for _, u := range uses {
		switch {
		case !u.send:
		case u.arm >= 0 || !isTaken(u.at.(*ssa.Send).Chan, u.at.Block(), 0):
			return false
		default:
			sends[u.in.Function] = append(sends[u.in.Function], u.at)
		}
	}
	for _, at := range sends {
		if sendsTwice(slices.DeleteFunc(at, func(at ssa.Instruction) bool { return forgetsChannel(at.(*ssa.Send)) })) {
			return false
		}
	}
	return true
}

// isStoredOnce reports whether a channel is stored in one place. Its other uses are receives and returns to a receiver.
func isStoredOnce(m *ssa.MakeChan) bool {
	stores := 0
	for _, user := range usersOf(m) {
		switch user := user.(type) {
		case *ssa.Store:
			if _, ok := resultVariable(user.Addr); !ok {
				stores++
			}
		case *ssa.MapUpdate:
			stores++
		case *ssa.UnOp, *ssa.Select, *ssa.Return:
		default:
			return false
		}
	}
	return stores == 1
}

// forgetsChannel reports whether the sender itself takes the channel out of its field or map, in the same block.
func forgetsChannel(send *ssa.Send) bool { return isTakenInBlock(send.Chan, send.Block()) }

// isTaken reports whether a channel was taken out of its field or map: in a block, in that of the lookup, or by a
// called function.
func isTaken(ch ssa.Value, b *ssa.BasicBlock, depth int) bool {
	if isTakenInBlock(ch, b) {
		return true
	}
	i, v := 0, ch
	if x, ok := ch.(*ssa.Extract); ok {
		i, v = x.Index, x.Tuple
	}
	switch v := v.(type) {
	case *ssa.Lookup:
		return isTakenInBlock(ch, v.Block())
	case *ssa.Call:
		return depth < maxFrames && v.Common().StaticCallee() != nil && returnsTaken(v.Common().StaticCallee(), i, depth)
	}
	return false
}

// returnsTaken reports whether a result of a function is nil, or a channel that the function has taken.
func returnsTaken(f *ssa.Function, result, depth int) bool {
	found := false
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			r, ok := at.(*ssa.Return)
			if !ok || len(r.Results) <= result {
				continue
			}
			for ch, in := range returnedValues(r.Results[result], b) {
				if isNil(ch) {
					continue
				}
				if !isTaken(ch, in, depth+1) {
					return false
				}
				found = true
			}
		}
	}
	return found
}

// returnedValues returns the values of a result, each with the block that sets it. A function with a deferred call has
// variables for its results.
func returnedValues(v ssa.Value, b *ssa.BasicBlock) map[ssa.Value]*ssa.BasicBlock {
	load, ok := v.(*ssa.UnOp)
	if !ok {
		return map[ssa.Value]*ssa.BasicBlock{v: b}
	}
	result, ok := resultVariable(load.X)
	if !ok {
		return map[ssa.Value]*ssa.BasicBlock{v: b}
	}
	values := map[ssa.Value]*ssa.BasicBlock{}
	for _, user := range *result.Referrers() {
		if s, ok := user.(*ssa.Store); ok {
			values[s.Val] = s.Block()
		}
	}
	return values
}

// resultVariable returns the variable at an address if it is local to its function.
func resultVariable(addr ssa.Value) (*ssa.Alloc, bool) {
	a, ok := addr.(*ssa.Alloc)
	return a, ok && !a.Heap
}

// isTakenInBlock reports whether a block takes a channel out of its field or map.
func isTakenInBlock(ch ssa.Value, b *ssa.BasicBlock) bool {
	if x, ok := ch.(*ssa.Extract); ok && x.Index == 0 {
		ch = x.Tuple
	}
	for _, at := range b.Instrs {
		switch at := at.(type) {
		case *ssa.Store:
			load, ok := ch.(*ssa.UnOp)
			c, null := at.Val.(*ssa.Const)
			if ok && null && c.IsNil() && sameField(load.X, at.Addr) {
				return true
			}
		case *ssa.Call:
			found, ok := ch.(*ssa.Lookup)
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

// replyFlow finds the work requests with done functions that send to reply channels.
type replyFlow struct {
	traces *valueTracer
	// m is the only channel, or nil if several functions use the same helpers with a channel each.
	m        *ssa.MakeChan
	owner    *ssa.Alloc                        // the new struct with the channel in a field, or nil
	creators map[*ssa.Function]*ssa.BasicBlock // blocks that make a channel, or call the constructor of the owner
	seen     map[*ssa.Function]bool
}

// areReplyChannels reports whether channels with the given uses are reply channels. A channel is a variable of its
// creator, or a field of a struct that the creator makes with the channel. The space is unknown if the capacity is not
// constant. It then counts as sufficient.
func (t *valueTracer) areReplyChannels(channels []*ssa.MakeChan, uses []channelUse) bool {
	r := &replyFlow{traces: t, seen: map[*ssa.Function]bool{}, creators: map[*ssa.Function]*ssa.BasicBlock{}}
	space := map[*ssa.Function]int64{} // the capacities of channels, by creator, if they are constant
	for _, m := range channels {
		n, constant := m.Size.(*ssa.Const)
		if r.creators[m.Parent()] != nil || constant && n.Int64() == 0 {
			return false
		}
		if r.creators[m.Parent()] = m.Block(); constant {
			space[m.Parent()] = n.Int64()
		}
	}
	if len(channels) == 1 {
		r.m = channels[0]
		r.owner = r.ownerOf()
		r.addConstructorCalls(space)
	}
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
			in, made := at.Parent(), r.creators[at.Parent()]
			elements[in]++
			if space[in] > 0 && (elements[in] > space[in] ||
				at.Block() != made && reachesBlock(at.Block(), at.Block(), made)) {
				return false
			}
		}
	}
	return true
}

// addConstructorCalls adds the callers of the creator, if it returns the new owner.
func (r *replyFlow) addConstructorCalls(space map[*ssa.Function]int64) {
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
		if n := space[r.m.Parent()]; n > 0 {
			space[in] = n
		}
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
	r.seen[f] = true
	defer delete(r.seen, f)
	if call := r.callOfClosure(f); call != nil {
		return r.postsBehind(call.Parent(), []ssa.Instruction{call})
	}
	if r.owner == nil || r.isUsedAsValue(f) || len(r.traces.callers[f]) == 0 {
		return nil, false
	}
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

// callOfClosure returns the call to which a function literal is passed, if the called function only calls it, and once.
// It returns nil without one.
func (r *replyFlow) callOfClosure(f *ssa.Function) *ssa.Call {
	if len(r.traces.closures[f]) != 1 {
		return nil
	}
	c := r.traces.closures[f][0]
	users := usersOf(c)
	if len(users) != 1 {
		return nil
	}
	call, ok := users[0].(*ssa.Call)
	if !ok || call.Common().StaticCallee() == nil {
		return nil
	}
	g := call.Common().StaticCallee()
	i := slices.IndexFunc(call.Common().Args, func(a ssa.Value) bool { return withoutConversions(a) == c })
	if i < 0 || i >= len(g.Params) {
		return nil
	}
	calls := usersOf(g.Params[i])
	for _, at := range calls {
		if k, ok := at.(*ssa.Call); !ok || k.Call.Value != ssa.Value(g.Params[i]) {
			return nil
		}
	}
	if len(calls) == 0 || sendsTwice(calls) {
		return nil
	}
	return call
}

// postsOf returns the calls that post a work request with a function literal, or a method of the owner, as its done
// function. It returns nil if the function has other uses.
func (r *replyFlow) postsOf(fn *ssa.Function) (posts []ssa.Instruction) {
	for _, c := range r.traces.closures[fn] {
		if r.creators[c.Parent()] == nil && !r.holdsOwner(c) && !isReturned(c) {
			return nil
		}
		list, ok := r.postsOfValue(c, 0)
		if !ok {
			return nil
		}
		posts = append(posts, list...)
	}
	return posts
}

// postsOfValue returns the calls that post a done function, directly or by a function that posts its argument. A
// function that makes the done function may return it. ok is false if the done function has other uses.
func (r *replyFlow) postsOfValue(v ssa.Value, depth int) (posts []ssa.Instruction, ok bool) {
	for _, user := range usersOf(v) {
		var list []ssa.Instruction
		switch user := user.(type) {
		case *ssa.Call:
			if !postsOnce(user, v, 0) {
				return nil, false
			}
			list, ok = r.postsBehind(user.Parent(), []ssa.Instruction{user})
		case *ssa.Return:
			list, ok = r.postsOfResults(user.Parent(), depth)
		default:
			ok = false
		}
		if !ok {
			return nil, false
		}
		posts = append(posts, list...)
	}
	return posts, true
}

// postsOfResults is postsOfValue for the results of a function.
func (r *replyFlow) postsOfResults(f *ssa.Function, depth int) (posts []ssa.Instruction, ok bool) {
	if depth > maxFrames || f.Signature.Results().Len() != 1 || len(r.traces.callers[f]) == 0 {
		return nil, false
	}
	for _, k := range r.traces.callers[f] {
		call, ok := k.c.at.(*ssa.Call)
		if !ok {
			return nil, false
		}
		list, ok := r.postsOfValue(call, depth+1)
		if !ok {
			return nil, false
		}
		posts = append(posts, list...)
	}
	return posts, true
}

// isReturned reports whether a function returns a value.
func isReturned(v ssa.Value) bool {
	return slices.ContainsFunc(usersOf(v), func(at ssa.Instruction) bool {
		_, ok := at.(*ssa.Return)
		return ok
	})
}

// postsOnce reports whether a call posts one of its arguments as a done function, at most once.
func postsOnce(call *ssa.Call, v ssa.Value, depth int) bool {
	g := call.Common().StaticCallee()
	if g == nil || depth > maxFrames {
		return false
	}
	i := slices.IndexFunc(call.Common().Args, func(a ssa.Value) bool { return withoutConversions(a) == v })
	if args, ok := postFuncs[fullName(g)]; ok {
		return i == args.done
	}
	if i < 0 || i >= len(g.Params) {
		return false
	}
	var posts []ssa.Instruction
	for _, user := range usersOf(g.Params[i]) {
		c, ok := user.(*ssa.Call)
		if !ok || !postsOnce(c, g.Params[i], depth+1) {
			return false
		}
		posts = append(posts, c)
	}
	return !sendsTwice(posts)
}

// withoutConversions returns the value behind conversions to a named type.
func withoutConversions(v ssa.Value) ssa.Value {
	for {
		x, ok := v.(*ssa.ChangeType)
		if !ok {
			return v
		}
		v = x.X
	}
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
