package vet

import (
	"go/constant"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// A buffered channel may count tokens. For a semaphore, a send takes a token and a receive returns it. For a pool, a
// receive takes a token and a send returns it. The return of a token does not wait, provided that every return in the
// program returns a token that its thread has taken before. The creator of a pool fills it, in the function that makes
// the channel. releaseTokens finds such channels and removes the returns from the operations that sleep. It does the
// same with the sends to reply channels and single-use channels.

// tokenCounter examines one channel in one direction.
type tokenCounter struct {
	p      *Program
	sites  map[ssa.Instruction]int // 1 for an instruction that takes a token, -1 for a return
	cases  map[*ssa.Select][]int   // the same for the cases of select statements
	of     map[*function]*tokenUse
	posts  *postIndex
	failed bool
}

// tokenUse is the effect of a function on the tokens of its thread.
type tokenUse struct {
	needs  bool // whether the caller must hold a token, which the function returns
	always int  // number of taken tokens minus number of returned tokens
	onTrue int  // the same if the result is true, or a nil error
}

// channelUse is a send to a channel, or a receive.
type channelUse struct {
	in   *function
	at   ssa.Instruction
	send bool
	arm  int // the case of a select, or -1
}

// releaseTokens removes the returns of tokens from the operations that sleep.
func (p *Program) releaseTokens() {
	groups := map[*ssa.MakeChan]*channelGroup{}
	var order []*channelGroup
	vague := map[string]bool{} // packages and channel types with uses of unknown channels
	key := func(f *ssa.Function, t types.Type) string { return pkgOf(f).Path() + " " + elementKey(t) }
	add := func(ch ssa.Value, u channelUse) {
		from := p.traces.containerAllocs(ch)
		if from == nil {
			if pkgOf(u.in.Function) != nil && !p.isForeignChannel(ch) {
				vague[key(u.in.Function, ch.Type())] = true
			}
			return
		}
		if len(from) == 0 {
			return
		}
		g := &channelGroup{}
		for _, o := range from {
			m := o.v.(*ssa.MakeChan)
			if groups[m] == nil {
				groups[m] = &channelGroup{channels: []*ssa.MakeChan{m}}
				order = append(order, groups[m])
			}
			if groups[m] != g {
				g.merge(groups[m])
			}
			for _, m := range g.channels {
				groups[m] = g
			}
		}
		g.uses = append(g.uses, u)
		order = append(order, g)
	}
	for _, f := range p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				switch at := at.(type) {
				case *ssa.Send:
					add(at.Chan, channelUse{f, at, true, -1})
				case *ssa.UnOp:
					if at.Op == token.ARROW {
						add(at.X, channelUse{f, at, false, -1})
					}
				case *ssa.Select:
					for i, s := range at.States {
						add(s.Chan, channelUse{f, at, s.Dir == types.SendOnly, i})
					}
				}
			}
		}
	}
	posts := p.indexPosts()
	for _, g := range order {
		if groups[g.channels[0]] != g || slices.ContainsFunc(g.channels, func(m *ssa.MakeChan) bool {
			n, constant := m.Size.(*ssa.Const)
			return constant && n.Int64() == 0 || vague[key(m.Parent(), m.Type())]
		}) {
			continue
		}
		one := len(g.channels) == 1
		if p.traces.areReplyChannels(g.channels, g.uses) || one && isSingleUseChannel(g.channels[0], g.uses) {
			p.dropTokenReturns(g.uses, false)
			continue
		}
		if !one {
			continue
		}
		for _, take := range []bool{true, false} { // a semaphore takes by a send, a pool by a receive
			// Without posts, the calls of package ib/completion stand for the posters.
			if p.countsTokens(&postIndex{}, g.channels[0], g.uses, take) ||
				p.countsTokens(posts, g.channels[0], g.uses, take) {
				p.dropTokenReturns(g.uses, take)
			}
		}
	}
}

// channelGroup holds channels with common uses: a use may be one of any of these channels.
type channelGroup struct {
	channels []*ssa.MakeChan
	uses     []channelUse
}

// merge adds the channels and uses of another group.
func (g *channelGroup) merge(o *channelGroup) {
	g.channels, g.uses = append(g.channels, o.channels...), append(g.uses, o.uses...)
}

// isForeignChannel reports whether only other packages have made a channel, such as that of a context.
func (p *Program) isForeignChannel(ch ssa.Value) bool {
	return !slices.ContainsFunc(p.traces.origins(ch, nil, nil), func(o valueOrigin) bool {
		switch o.v.(type) {
		case *ssa.Call, *ssa.Extract, *ssa.Const:
			return false
		}
		return true
	})
}

// dropTokenReturns removes the returns of tokens from the operations that sleep.
func (p *Program) dropTokenReturns(uses []channelUse, take bool) {
	for _, u := range uses {
		if u.send != take {
			u.in.ops = slices.DeleteFunc(u.in.ops, func(o operation) bool { return o.at == u.at && o.kind == opSleep })
		}
	}
}

// countsTokens reports whether every return of a token to a channel returns a token that the thread has taken.
func (p *Program) countsTokens(posts *postIndex, m *ssa.MakeChan, uses []channelUse, take bool) bool {
	t := &tokenCounter{p: p, posts: posts, sites: map[ssa.Instruction]int{}, cases: map[*ssa.Select][]int{},
		of: map[*function]*tokenUse{}}
	returns := false
	var work []*function
	for _, u := range uses {
		n := -1
		if u.send == take {
			n = 1
		} else if u.in.Function == m.Parent() && !take {
			continue // the creator fills the pool
		}
		returns = returns || n < 0
		work = append(work, u.in)
		if u.arm < 0 {
			t.sites[u.at] = n
			continue
		}
		s := u.at.(*ssa.Select)
		if t.cases[s] == nil {
			t.cases[s] = make([]int, len(s.States))
		}
		t.cases[s][u.arm] = n
	}
	if !returns {
		return false
	}
	known := map[*function]tokenUse{}
	for visits := 0; len(work) > 0; visits++ {
		f := work[0]
		work = work[1:]
		if visits > maxVisits {
			return false
		}
		t.of[f] = nil
		use := *t.effectOf(f)
		if old, seen := known[f]; seen && use == old {
			continue
		}
		known[f] = use
		callers := t.callersOf(f)
		if use.needs && len(callers) == 0 {
			return false // an unknown caller
		}
		if use != (tokenUse{}) {
			for _, g := range callers {
				work = append(work, g)
				t.forgetEffect(g)
			}
		}
	}
	return !t.failed
}

// callersOf returns the callers of a function, and the functions that post it with a work request.
func (t *tokenCounter) callersOf(f *function) (list []*function) {
	posters := t.posts.posters[f]
	for _, k := range t.p.traces.callers[f.Function] {
		if len(posters) == 0 || !isMidlayer(k.in) {
			list = append(list, k.in)
		}
	}
	return append(list, posters...)
}

// forgetEffect discards the effect of a function, because the effect of a callee is now known.
func (t *tokenCounter) forgetEffect(f *function) { delete(t.of, f) }

// effectOf returns the effect of a function on the tokens of its thread.
func (t *tokenCounter) effectOf(f *function) *tokenUse {
	if u := t.of[f]; u != nil {
		return u
	}
	t.of[f] = &tokenUse{} // assumed during the search, for a recursive function
	u, ok := t.countPaths(f, 0)
	if !ok {
		if u, ok = t.countPaths(f, 1); !ok {
			t.failed = true
		}
		u.needs = true
	}
	t.of[f] = &u
	return &u
}

// maxVisits limits the number of functions that a search examines. A function counts again if a callee has changed.
const maxVisits = 500

// maxTokens limits the number of tokens of a thread that the search counts.
const maxTokens = 3

// countPaths counts the tokens on the paths through a function. entry is the number of tokens at the start. ok is false
// if a return may lack a token.
func (t *tokenCounter) countPaths(f *function, entry int) (u tokenUse, ok bool) {
	in := map[*ssa.BasicBlock]int{f.Blocks[0]: entry}
	work := []*ssa.BasicBlock{f.Blocks[0]}
	u, ok = tokenUse{always: maxTokens, onTrue: maxTokens}, true
	for n := 0; len(work) > 0 && n < 20*len(f.Blocks)+20; n++ {
		b := work[0]
		work = work[1:]
		held := in[b]
		add := func(n int) {
			if held += n; held < 0 {
				held, ok = 0, false
			}
			held = min(held, maxTokens)
		}
		var cond ssa.Value
		for _, at := range b.Instrs {
			if n, is := t.sites[at]; is {
				add(n)
			}
			switch at := at.(type) {
			case ssa.CallInstruction:
				add(t.callEffect(f, at))
			case *ssa.If:
				cond = at.Cond
			case *ssa.Return:
				u.always = min(u.always, held-entry)
				if len(at.Results) == 0 || !isFailure(at.Results[len(at.Results)-1]) {
					u.onTrue = min(u.onTrue, held-entry)
				}
			}
		}
		for i, to := range b.Succs {
			before, fine := held, ok
			if cond != nil {
				add(t.branchEffect(f, cond, i == 0))
			}
			if old, seen := in[to]; !seen || held < old {
				in[to] = held
				work = append(work, to)
			}
			held, ok = before, ok && fine
		}
	}
	if u.always == maxTokens { // the function does not return
		u.always, u.onTrue = 0, 0
	}
	return u, ok
}

// isFailure reports whether a result is false, or an error that is not nil.
func isFailure(v ssa.Value) bool {
	if c, ok := v.(*ssa.Const); ok {
		return c.Value != nil && c.Value.Kind() == constant.Bool && !constant.BoolVal(c.Value)
	}
	if !isErrorType(v.Type()) {
		return false
	}
	switch x := v.(type) {
	case *ssa.MakeInterface:
		return true
	case *ssa.UnOp: // a variable of the package
		_, ok := x.X.(*ssa.Global)
		return ok
	case *ssa.Call:
		if x.Common().IsInvoke() { // the context has ended
			return x.Common().Method.FullName() == "(context.Context).Err"
		}
		name := fullName(x.Common().StaticCallee())
		return name == "errors.New" || name == "fmt.Errorf" || name == "context.Cause"
	}
	return false
}

// callEffect returns the effect of a call. The thread gives a token away if it defers a function that returns the
// token, or starts a goroutine with this function.
func (t *tokenCounter) callEffect(f *function, at ssa.CallInstruction) int {
	_, now := at.(*ssa.Call)
	if t.postsReturn(at) {
		return -1
	}
	gains, loses := maxTokens, 0
	list := t.channelCallees(at)
	for _, g := range list {
		u := t.effectOf(g)
		if u.needs {
			loses = -1
		}
		gains = min(gains, u.always)
	}
	switch {
	case loses < 0:
		return loses
	case now && len(list) > 0:
		return max(gains, 0)
	}
	return 0
}

// channelCallees returns the functions that a call calls itself, and that may use the channel.
func (t *tokenCounter) channelCallees(at ssa.Instruction) []*function {
	if c := t.p.traces.calls[at]; c != nil {
		return slices.DeleteFunc(slices.Clone(c.ownCallees()), func(g *function) bool {
			_, known := t.of[g]
			return !known && !t.usesChannel(g)
		})
	}
	return nil
}

// usesChannel reports whether a function itself uses the channel.
func (t *tokenCounter) usesChannel(f *function) bool {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			if _, ok := t.sites[at]; ok {
				return true
			}
			if s, ok := at.(*ssa.Select); ok && t.cases[s] != nil {
				return true
			}
		}
	}
	return false
}

// branchEffect returns the effect of the outcome of a condition: a case of a select was executed, or a call took a
// token.
func (t *tokenCounter) branchEffect(f *function, cond ssa.Value, outcome bool) int {
	switch v := cond.(type) {
	case *ssa.UnOp:
		if v.Op == token.NOT {
			return t.branchEffect(f, v.X, !outcome)
		}
	case *ssa.BinOp:
		if call := callOfError(v.X); call != nil && isNil(v.Y) && (v.Op == token.EQL || v.Op == token.NEQ) {
			isNil := (v.Op == token.EQL) == outcome
			switch {
			case t.postsReturn(call) && !isNil:
				return 1
			case isNil:
				return t.gainsOnTrue(call)
			}
			return 0
		}
		x, ok := v.X.(*ssa.Extract)
		if !ok || v.Op != token.EQL || !outcome || x.Index != 0 {
			return 0
		}
		s, ok := x.Tuple.(*ssa.Select)
		n, is := v.Y.(*ssa.Const)
		if ok && is && t.cases[s] != nil && int(n.Int64()) < len(t.cases[s]) {
			return t.cases[s][n.Int64()]
		}
	case *ssa.Call:
		if outcome {
			return t.gainsOnTrue(v)
		}
	}
	return 0
}

// gainsOnTrue returns the number of tokens that a call has taken in addition if it returns true or a nil error.
func (t *tokenCounter) gainsOnTrue(at *ssa.Call) int {
	list := t.channelCallees(at)
	gains := maxTokens
	for _, g := range list {
		gains = min(gains, t.effectOf(g).onTrue-max(t.effectOf(g).always, 0))
	}
	if len(list) == 0 {
		return 0
	}
	return max(gains, 0)
}

// callOfError returns the call with a given error as its last result, or nil.
func callOfError(v ssa.Value) *ssa.Call {
	if !isErrorType(v.Type()) {
		return nil
	}
	if x, ok := v.(*ssa.Extract); ok {
		v = x.Tuple
	}
	c, _ := v.(*ssa.Call)
	return c
}

// postIndex holds the calls that post work requests with functions, in both directions.
type postIndex struct {
	funcs   map[ssa.CallInstruction][]*function
	posters map[*function][]*function
}

// indexPosts finds the posts of package ib/completion outside the midlayer.
func (p *Program) indexPosts() *postIndex {
	x := &postIndex{map[ssa.CallInstruction][]*function{}, map[*function][]*function{}}
	for _, f := range p.order {
		if isMidlayer(f) {
			continue
		}
		for _, c := range f.calls {
			name, at := c.findReachableFunc(isPostFunc), c.at.(ssa.CallInstruction)
			if name == "" {
				continue
			}
			x.funcs[at] = p.postedFuncs(c, name)
			for _, g := range x.funcs[at] {
				x.posters[g] = append(x.posters[g], f)
			}
		}
	}
	return x
}

// postsReturn reports whether a call posts a function that returns a token.
func (t *tokenCounter) postsReturn(at ssa.CallInstruction) bool {
	return slices.ContainsFunc(t.posts.funcs[at], func(g *function) bool { return t.effectOf(g).needs })
}
