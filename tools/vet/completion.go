package vet

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// The context of a completion queue (package ib/completion) determines whether the functions of its work requests may
// sleep. The context is a constant in the completion.Init of the queue. The tracer finds the queue of each post, and
// the constant of each queue.

const completionPath = module + "/ib/completion"

// contextSet is a set of contexts in which a function may run.
type contextSet uint8

const (
	ctxDirect   contextSet = 1 << iota // in CQ.Process, which sleeps if the function sleeps
	ctxCallback                        // in the completion handler
	ctxWorker                          // on a goroutine that may sleep
	ctxUnknown                         // in an unknown context
	ctxUnset                           // in the context of the zero Init, unless a later assignment changes it
)

// postArgs holds the positions of the arguments of a function that posts a work request. The receiver counts.
type postArgs struct{ queue, done int }

var postFuncs = map[string]postArgs{
	"(*" + completionPath + ".QP).PostSend": {0, 2},
	"(*" + completionPath + ".QP).PostRecv": {0, 2},
	"(*" + completionPath + ".CQ).PostSRQ":  {0, 3},
}

const (
	newCQ    = completionPath + ".New"
	newQP    = completionPath + ".NewQP"
	createQP = "(*" + completionPath + ".CQ).CreateQP"
	process  = "(*" + completionPath + ".CQ).Process"
	postRecv = "(*" + completionPath + ".QP).PostRecv"
)

// completionFunc is the function of a work request, with the contexts of its queue and the calls of New that may have
// created the queue.
type completionFunc struct {
	f    *function
	in   contextSet
	made map[*ssa.Call]bool
}

// isDoneField reports whether a field holds the function of a work request.
func isDoneField(v *types.Var) bool {
	return v != nil && v.Pkg() != nil && v.Pkg().Path() == completionPath &&
		v.Name() == "done" && isNamed(v.Type(), completionPath+".Done")
}

// findCompletions finds the functions of work requests, and adds the functions of Direct queues to the callees of
// CQ.Process.
func (p *Program) findCompletions() {
	q := &queueQuery{p: p, of: map[*function]*completionFunc{}, made: map[*ssa.Call]bool{}}
	for _, f := range p.order {
		if k := pkgOf(f.Function); k != nil && k.Path() == completionPath && f.Synthetic == "" {
			continue
		}
		for _, c := range f.calls {
			if name := c.findReachableFunc(isPostFunc); name != "" {
				q.recordPost(c, name)
			}
		}
	}
	for _, f := range p.order {
		if k := q.of[f]; k != nil {
			p.completions = append(p.completions, *k)
		}
	}
	q.processDirect()
}

// findReachableFunc returns the full name of the wanted function that a call may reach, or "".
func (c *call) findReachableFunc(want func(string) bool) string {
	if c.static != nil && want(c.static.FullName()) {
		return c.static.FullName()
	}
	for _, g := range c.ownCallees() {
		if o, ok := g.Object().(*types.Func); ok && strings.HasPrefix(g.Synthetic, "bound method") && want(o.FullName()) {
			return o.FullName() // a method value
		}
	}
	for _, g := range c.callees {
		if name := fullName(g.Function); g.Synthetic == "" && want(name) {
			return name
		}
	}
	for _, o := range c.library {
		if want(o.FullName()) {
			return o.FullName()
		}
	}
	return ""
}

// processDirect adds the functions of Direct queues to the callees of the calls that process these queues.
func (q *queueQuery) processDirect() {
	for _, f := range q.p.order {
		for _, c := range f.calls {
			if c.findReachableFunc(func(name string) bool { return name == process }) == "" {
				continue
			}
			made := q.processedQueues(f, c)
			for _, k := range q.p.completions {
				if k.in&ctxDirect != 0 && intersects(k.made, made) && !slices.Contains(c.callees, k.f) {
					c.callees = append(c.callees, k.f)
				}
			}
		}
	}
}

// processedQueues returns the calls of New that may have created the queue of a call of Process.
func (q *queueQuery) processedQueues(f *function, c *call) map[*ssa.Call]bool {
	common := c.at.(ssa.CallInstruction).Common()
	v := common.Value
	if !common.IsInvoke() {
		if len(common.Args) == 0 {
			return nil
		}
		v = common.Args[0]
	}
	q.made = map[*ssa.Call]bool{}
	if in := q.contextsOfCQ(v, nil); in == 0 || in&ctxUnknown != 0 {
		q.contextsOfPackage(pkgOf(f.Function))
	}
	return q.made
}

func intersects(a, b map[*ssa.Call]bool) bool {
	for k := range a {
		if b[k] {
			return true
		}
	}
	return false
}

// completionRoots returns the functions of work requests that may not sleep.
func (p *Program) completionRoots() (roots []root) {
	for _, k := range p.completions {
		if k.in&ctxWorker == 0 && k.in&(ctxCallback|ctxUnknown) != 0 {
			roots = append(roots, root{k.f, fmt.Sprintf("%s, which a completion calls in its handler,", functionName(k.f))})
		}
	}
	return roots
}

// drainFuncs wait until the functions of a queue pair's work requests have returned.
var drainFuncs = map[string]bool{
	"(*" + completionPath + ".QP).Drain":   true,
	"(*" + completionPath + ".QP).Close":   true,
	"(*" + completionPath + ".QP).Destroy": true,
}

// checkOwnDrains reports functions of work requests that drain a queue pair of their own completion queue. Such a drain
// waits for the function that calls it.
func (p *Program) checkOwnDrains() (reports []Report) {
	said := map[token.Pos]bool{}
	for _, k := range p.completions {
		if k.in&ctxWorker == 0 { // it may not sleep at all
			continue
		}
		roots := []root{{k.f, functionName(k.f) + ", which a completion calls,"}}
		p.visitReachable(Callback, roots, nil, func(v *rootVisit) {
			if g := pkgOf(v.f.Function); g != nil && g.Path() == completionPath {
				return
			}
			for _, c := range v.f.calls {
				name := c.findReachableFunc(func(name string) bool { return drainFuncs[name] })
				if name == "" || c.spawns || said[c.pos] || p.escapes.escapeAt(p.Fset, c.pos, Callback) != nil {
					continue
				}
				q := &queueQuery{p: p, made: map[*ssa.Call]bool{}}
				for _, qp := range p.receiversOf(c.at.(ssa.CallInstruction).Common()) {
					q.contextsOfQP(qp, false)
					q.contextsOfQP(qp, true)
				}
				if !intersects(k.made, q.made) {
					continue
				}
				said[c.pos] = true
				what := "calls " + strings.ReplaceAll(name, completionPath, "completion")
				reports = append(reports, Report{Callback, c.pos, v.root.why + " " + what +
					", which waits for the functions of the same completion queue",
					v.pathTo(PathStep{c.pos, functionName(v.f), what})})
			}
		})
	}
	return reports
}

// receiversOf returns the possible receivers of a method call, also of a stored method value.
func (p *Program) receiversOf(c *ssa.CallCommon) (list []ssa.Value) {
	switch {
	case c.IsInvoke():
		return []ssa.Value{c.Value}
	case c.StaticCallee() != nil && c.Signature().Recv() != nil:
		return c.Args[:1]
	}
	for _, o := range p.traces.origins(c.Value, nil, nil) {
		if m, ok := o.v.(*ssa.MakeClosure); ok && len(m.Bindings) == 1 {
			list = append(list, m.Bindings[0])
		}
	}
	return list
}

// queueQuery searches for the contexts of queues.
type queueQuery struct {
	p      *Program
	of     map[*function]*completionFunc
	made   map[*ssa.Call]bool // calls of New that the current query has found
	inits  []initStore        // all assignments to Init.Context; nil until the first search
	nested int
}

// initStore is an assignment to the Context of an Init.
type initStore struct {
	at   *ssa.Store
	base ssa.Value // the pointer to the Init
}

// recordPost records the functions that a call posts, together with the contexts of its queue.
func (q *queueQuery) recordPost(c *call, name string) {
	at := c.at.(ssa.CallInstruction)
	args, k := q.p.postArguments(at), postFuncs[name]
	if len(args) <= k.done {
		return
	}
	q.recordPair(pkgOf(at.Parent()), name, args[k.queue], args[k.done], 0)
}

// postArguments returns the arguments of a post. The receiver counts.
func (p *Program) postArguments(at ssa.CallInstruction) []ssa.Value {
	c := at.Common()
	if c.StaticCallee() != nil {
		return c.Args
	}
	recv := c.Value
	if list := p.receiversOf(c); len(list) == 1 {
		recv = list[0]
	}
	return append([]ssa.Value{recv}, c.Args...)
}

// postedFuncs returns the functions of the work request that a call posts. name is the name of the post function.
func (p *Program) postedFuncs(c *call, name string) (list []*function) {
	args, k := p.postArguments(c.at.(ssa.CallInstruction)), postFuncs[name]
	if len(args) <= k.done { // the call passes the post function on
		return nil
	}
	for _, o := range p.traces.origins(args[k.done], nil, nil) {
		if f := p.funcs[functionOf(o.v)]; f != nil {
			list = append(list, f)
		}
	}
	return list
}

// recordPair records a function together with the queue to which it is posted. If the function or the queue is a
// parameter, pair examines each caller separately.
func (q *queueQuery) recordPair(pkg *types.Package, name string, queue, done ssa.Value, depth int) {
	fn := parameterIn(queue, done)
	if fn == nil || depth == maxFrames || len(q.p.traces.callers[fn]) == 0 {
		q.made = map[*ssa.Call]bool{}
		in := q.contextsOfPost(pkg, name, queue)
		for _, o := range q.p.traces.origins(done, nil, nil) {
			if f := q.p.funcs[functionOf(o.v)]; f != nil {
				q.addContexts(f, in)
			}
		}
		return
	}
	of := func(k caller, v ssa.Value) ssa.Value {
		if x, ok := v.(*ssa.Parameter); ok && x.Parent() == fn {
			return argumentFor(k.c, fn, slices.Index(fn.Params, x))
		}
		return v
	}
	for _, k := range q.p.traces.callers[fn] {
		if a, b := of(k, queue), of(k, done); a != nil && b != nil {
			q.recordPair(pkg, name, a, b, depth+1)
		}
	}
}

// addContexts records that a function runs in some contexts, for the queue of the current query.
func (q *queueQuery) addContexts(f *function, in contextSet) {
	if q.of[f] == nil {
		q.of[f] = &completionFunc{f: f, made: map[*ssa.Call]bool{}}
	}
	q.of[f].in |= in
	maps.Copy(q.of[f].made, q.made)
}

// parameterIn returns the function of the first parameter in the list, or nil if the list contains no parameter.
func parameterIn(list ...ssa.Value) *ssa.Function {
	for _, v := range list {
		if x, ok := v.(*ssa.Parameter); ok {
			return x.Parent()
		}
	}
	return nil
}

// contextsOfPost returns the contexts of the queue to which a call posts. If the origin of the queue is unknown,
// contextsOfPost assumes the contexts of all queues of the package.
func (q *queueQuery) contextsOfPost(pkg *types.Package, name string, queue ssa.Value) contextSet {
	var in contextSet
	if isNamed(queue.Type(), completionPath+".CQ") {
		in = q.contextsOfCQ(queue, nil)
	} else {
		in = q.contextsOfQP(queue, name == postRecv)
	}
	if in != 0 && in&ctxUnknown == 0 {
		return in
	}
	if of := q.contextsOfPackage(pkg); of != 0 {
		return in&^ctxUnknown | of
	}
	return in | ctxUnknown
}

// contextsOfPackage returns the contexts of all queues that a package creates.
func (q *queueQuery) contextsOfPackage(pkg *types.Package) (in contextSet) {
	for _, f := range q.p.order {
		if pkgOf(f.Function) != pkg {
			continue
		}
		forEachCall(f.Function, func(at ssa.CallInstruction, name string, args []ssa.Value) {
			if c, ok := at.(*ssa.Call); ok && name == newCQ {
				q.made[c] = true
				in |= q.contextsOfArgument(args[1], nil)
			}
		})
	}
	return in &^ ctxUnknown
}

// creatingCall returns the call of a given function that has returned a value.
func creatingCall(v ssa.Value, names ...string) *ssa.Call {
	x, ok := v.(*ssa.Extract)
	if !ok || x.Index != 0 {
		return nil
	}
	c, ok := x.Tuple.(*ssa.Call)
	if !ok || !slices.Contains(names, fullName(c.Call.StaticCallee())) {
		return nil
	}
	return c
}

// contextsOfQP returns the contexts of a queue pair's queue.
func (q *queueQuery) contextsOfQP(v ssa.Value, recv bool) (in contextSet) {
	made := func(v ssa.Value) bool { return creatingCall(v, newQP, createQP) != nil }
	for _, o := range q.p.traces.origins(v, nil, made) {
		c := creatingCall(o.v, newQP, createQP)
		switch {
		case isNil(o.v):
		case c == nil:
			in |= ctxUnknown
		case fullName(c.Call.StaticCallee()) == createQP:
			in |= q.contextsOfCQ(c.Call.Args[0], o.at)
		case recv:
			in |= q.contextsOfCQ(c.Call.Args[3], o.at)
		default:
			in |= q.contextsOfCQ(c.Call.Args[2], o.at)
		}
	}
	return in
}

func isNil(v ssa.Value) bool {
	c, ok := v.(*ssa.Const)
	return ok && c.IsNil()
}

// contextsOfCQ returns the contexts of a completion queue.
func (q *queueQuery) contextsOfCQ(v ssa.Value, at *callFrame) (in contextSet) {
	made := func(v ssa.Value) bool { return creatingCall(v, newCQ) != nil }
	for _, o := range q.p.traces.origins(v, at, made) {
		switch c := creatingCall(o.v, newCQ); {
		case isNil(o.v):
		case c == nil:
			in |= ctxUnknown
		default:
			q.made[c] = true
			in |= q.contextsOfArgument(c.Call.Args[1], o.at)
		}
	}
	return in
}

// contextsOfArgument returns the contexts of a queue created with an Init.
func (q *queueQuery) contextsOfArgument(v ssa.Value, at *callFrame) contextSet {
	in := q.contextsOfInit(v, at)
	if in&ctxUnset != 0 {
		return in&^ctxUnset | ctxDirect
	}
	return in
}

// contextsOfInit returns the possible contexts of an Init.
func (q *queueQuery) contextsOfInit(v ssa.Value, at *callFrame) (in contextSet) {
	if q.nested > maxFrames {
		return ctxUnknown
	}
	q.nested++
	defer func() { q.nested-- }()
	for _, o := range q.p.traces.origins(v, at, isInitVariable) {
		switch v := o.v.(type) {
		case *ssa.Const:
			in |= ctxUnset
		case *ssa.UnOp:
			for _, r := range q.p.traces.origins(v.X, o.at, nil) {
				in |= q.contextsOfVariable(r)
			}
		case *ssa.Field:
			in |= q.contextsOfField(fieldVar(v.X.Type(), v.Field))
		default:
			in |= ctxUnknown
		}
	}
	return in
}

// isInitVariable reports whether a value is an Init loaded from a variable or field.
func isInitVariable(v ssa.Value) bool {
	switch v := v.(type) {
	case *ssa.UnOp:
		return v.Op == token.MUL && isInit(v.Type())
	case *ssa.Field:
		return isInit(v.Type())
	}
	return false
}

func isInit(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && isNamed(n, completionPath+".Init")
}

// contextsOfVariable returns the possible contexts of the Init at an address.
func (q *queueQuery) contextsOfVariable(r valueOrigin) contextSet {
	switch v := r.v.(type) {
	case *ssa.FieldAddr:
		return q.contextsOfField(fieldVar(v.X.Type(), v.Field))
	case *ssa.Alloc:
		if in, ok := q.contextsOfOptionField(v, contextField(v.Type()), r.at); ok {
			return in
		}
		return q.contextsOfStores(q.p.traces.variable[v], r.at, func(base valueOrigin) bool { return base.v == r.v })
	case *ssa.Global:
		return q.contextsOfStores(q.p.traces.variable[v], r.at, func(base valueOrigin) bool { return base.v == r.v })
	}
	return ctxUnknown
}

// contextField returns the index of the field Context of an Init.
func contextField(t types.Type) int {
	s := deref(t).Underlying().(*types.Struct)
	for i := range s.NumFields() {
		if s.Field(i).Name() == "Context" {
			return i
		}
	}
	return -1
}

func (q *queueQuery) contextsOfField(field *types.Var) contextSet {
	return q.contextsOfStores(q.p.traces.fields[field], nil, func(base valueOrigin) bool {
		a, ok := base.v.(*ssa.FieldAddr)
		return ok && fieldVar(a.X.Type(), a.Field) == field
	})
}

// contextsOfStores returns the contexts of an Init variable from the assignments to the variable and to its field
// Context. Without assignments, the variable is the zero Init.
func (q *queueQuery) contextsOfStores(whole []ssa.Value, at *callFrame,
	is func(base valueOrigin) bool) (in contextSet) {
	for _, v := range whole {
		in |= q.contextsOfInit(v, at)
	}
	var later contextSet
	for _, s := range q.initStores() {
		if slices.ContainsFunc(q.p.traces.origins(s.base, nil, nil), is) {
			from := at
			if at != nil && at.in != s.at.Parent() {
				from = nil
			}
			later |= q.contextsOfConstant(s.at.Val, from)
		}
	}
	switch {
	case later != 0:
		return in&^ctxUnset | later
	case in == 0:
		return ctxUnset
	}
	return in
}

// initStores returns all assignments to the Context of an Init.
func (q *queueQuery) initStores() []initStore {
	if q.inits != nil {
		return q.inits
	}
	q.inits = []initStore{}
	for _, f := range q.p.order {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				a, ok := s.Addr.(*ssa.FieldAddr)
				if ok && isNamed(a.X.Type(), completionPath+".Init") &&
					fieldVar(a.X.Type(), a.Field).Name() == "Context" {
					q.inits = append(q.inits, initStore{s, a.X})
				}
			}
		}
	}
	return q.inits
}

// contextsOfConstant returns the possible contexts of a value of type Context.
func (q *queueQuery) contextsOfConstant(v ssa.Value, at *callFrame) (in contextSet) {
	if in, ok := q.contextsOfOptions(v, at); ok {
		return in
	}
	for _, o := range q.p.traces.origins(v, at, nil) {
		n := int64(-1)
		if c, ok := o.v.(*ssa.Const); ok && c.Value != nil {
			n, _ = constant.Int64Val(constant.ToInt(c.Value))
		}
		switch {
		case n >= 0 && n < 3:
			in |= 1 << n
		default:
			in |= ctxUnknown
		}
	}
	return in
}
