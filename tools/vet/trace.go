package vet

import (
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// valueOrigin is a possible source of a traced value. It is a constant, an allocation, a function, the address of a
// variable or field, or the result of a call of another package. An origin with a nil value stands for an unknown
// source.
type valueOrigin struct {
	v  ssa.Value
	at *callFrame // the frame of the function that contains the value
}

// callFrame is a call through which the tracer has entered a function. From parameters the tracer returns to the
// arguments of the call.
type callFrame struct {
	call *call
	in   *ssa.Function
	up   *callFrame
}

const (
	maxFrames   = 4    // maximum depth of nested calls that the tracer distinguishes
	maxPointers = 3    // maximum depth of pointers to pointers that the tracer follows
	maxOrigins  = 4000 // maximum number of values that one trace visits
)

// valueTracer follows values backwards through variables, fields, parameters, results, channels and containers. A field
// stands for that field of all values of its type. An element stands for the elements of all containers of its
// type.
type valueTracer struct {
	graph    *callGraph
	fields   map[*types.Var][]ssa.Value
	variable map[ssa.Value][]ssa.Value     // stored values, keyed by *ssa.Global or *ssa.Alloc
	elements map[string][]containerElement // elements of slices, maps and channels, keyed by the type of the container
	closures map[*ssa.Function][]*ssa.MakeClosure
	calls    map[ssa.Instruction]*call
	callers  map[*ssa.Function][]caller
	frames   map[callFrame]*callFrame
	made     map[ssa.Value][]valueOrigin // see makers
	outputs  []*ssa.Call                 // see redirects
	depth    int                         // nesting depth of traces of pointers
}

// containerElement is a value that an instruction adds to a container.
type containerElement struct{ container, v ssa.Value }

// newTracer indexes the stores and calls of a linked program.
func newTracer(cg *callGraph) *valueTracer {
	t := &valueTracer{
		graph: cg, fields: map[*types.Var][]ssa.Value{}, variable: map[ssa.Value][]ssa.Value{},
		elements: map[string][]containerElement{}, made: map[ssa.Value][]valueOrigin{},
		closures: map[*ssa.Function][]*ssa.MakeClosure{}, calls: map[ssa.Instruction]*call{},
		callers: map[*ssa.Function][]caller{}, frames: map[callFrame]*callFrame{},
	}
	for _, f := range cg.order {
		for _, c := range f.calls {
			t.calls[c.at] = c
			for _, g := range c.ownCallees() {
				t.callers[g.Function] = append(t.callers[g.Function], caller{f, c})
			}
		}
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				t.indexInstruction(at)
			}
		}
	}
	return t
}

func (t *valueTracer) indexInstruction(at ssa.Instruction) {
	switch at := at.(type) {
	case *ssa.Store:
		switch addr := at.Addr.(type) {
		case *ssa.FieldAddr:
			v := fieldVar(addr.X.Type(), addr.Field)
			t.fields[v] = append(t.fields[v], at.Val)
		case *ssa.IndexAddr:
			t.addElement(addr.X, at.Val)
		case *ssa.Global, *ssa.Alloc:
			t.variable[addr] = append(t.variable[addr], at.Val)
		case *ssa.FreeVar:
			if a := capturedVariable(addr); a != nil {
				t.variable[a] = append(t.variable[a], at.Val)
			}
		}
	case *ssa.Send:
		t.addElement(at.Chan, at.X)
	case *ssa.Select:
		for _, s := range at.States {
			if s.Dir == types.SendOnly {
				t.addElement(s.Chan, s.Send)
			}
		}
	case *ssa.MapUpdate:
		t.addElement(at.Map, at.Value)
	case *ssa.MakeClosure:
		fn := at.Fn.(*ssa.Function)
		t.closures[fn] = append(t.closures[fn], at)
	}
}

func (t *valueTracer) addElement(container, v ssa.Value) {
	key := elementKey(container.Type())
	t.elements[key] = append(t.elements[key], containerElement{container, v})
}

// elementKey returns the same key for an array, a pointer to the array and a slice. The key does not depend on the
// direction of a channel.
func elementKey(container types.Type) string {
	switch u := deref(container).Underlying().(type) {
	case *types.Slice:
		return "[]" + u.Elem().String()
	case *types.Array:
		return "[]" + u.Elem().String()
	case *types.Chan:
		return "chan " + u.Elem().String()
	default:
		return u.String()
	}
}

// capturedVariable returns the variable to which a closure refers, in the function that declares the variable.
func capturedVariable(v *ssa.FreeVar) ssa.Value {
	for {
		b := boundValueOf(v)
		outer, ok := b.(*ssa.FreeVar)
		if !ok {
			return b
		}
		v = outer
	}
}

// traceSearch is one search of a tracer.
type traceSearch struct {
	*valueTracer
	stop func(ssa.Value) bool
	seen map[valueOrigin]bool
	list []valueOrigin
}

// origins returns the possible sources of a value. The search does not continue beyond values for which stop
// returns true. stop may be nil.
func (t *valueTracer) origins(v ssa.Value, at *callFrame, stop func(ssa.Value) bool) []valueOrigin {
	s := &traceSearch{valueTracer: t, stop: stop, seen: map[valueOrigin]bool{}}
	s.visitValue(v, at)
	return s.list
}

func (s *traceSearch) addLeaf(v ssa.Value, at *callFrame) {
	if o := (valueOrigin{v, at}); !slices.Contains(s.list, o) {
		s.list = append(s.list, o)
	}
}

func (s *traceSearch) visitAll(list []ssa.Value, at *callFrame) {
	for _, v := range list {
		s.visitValue(v, at)
	}
}

func (s *traceSearch) visitValue(v ssa.Value, at *callFrame) {
	if v == nil || len(s.seen) > maxOrigins {
		s.addLeaf(nil, nil)
		return
	}
	if s.seen[valueOrigin{v, at}] {
		return
	}
	s.seen[valueOrigin{v, at}] = true
	if s.stop != nil && s.stop(v) {
		s.addLeaf(v, at)
		return
	}
	switch v := v.(type) {
	case *ssa.Parameter:
		s.visitParameter(v, at)
	case *ssa.FreeVar:
		s.visitFreeVar(v, s.visitValue)
	case *ssa.Phi:
		s.visitAll(v.Edges, at)
	case *ssa.ChangeType:
		s.visitValue(v.X, at)
	case *ssa.ChangeInterface:
		s.visitValue(v.X, at)
	case *ssa.Convert:
		s.visitValue(v.X, at)
	case *ssa.MakeInterface:
		s.visitValue(v.X, at)
	case *ssa.TypeAssert:
		s.visitValue(v.X, at)
	case *ssa.Slice:
		s.visitValue(v.X, at)
	case *ssa.Field:
		s.visitField(fieldVar(v.X.Type(), v.Field))
	case *ssa.UnOp:
		s.visitUnary(v, at)
	case *ssa.Lookup:
		s.visitContainer(v.X)
	case *ssa.Index:
		s.visitContainer(v.X)
	case *ssa.Extract:
		s.visitExtract(v, at)
	case *ssa.Call:
		s.visitResult(v, 0, v, at)
	default:
		s.addLeaf(v, at)
	}
}

func (s *traceSearch) visitUnary(v *ssa.UnOp, at *callFrame) {
	switch v.Op {
	case token.MUL:
		s.visitLoad(v.X, at)
	case token.ARROW:
		s.visitContainer(v.X)
	default:
		s.addLeaf(v, at)
	}
}

func (s *traceSearch) visitExtract(v *ssa.Extract, at *callFrame) {
	switch x := v.Tuple.(type) {
	case *ssa.Call:
		s.visitResult(x, v.Index, v, at)
	case *ssa.TypeAssert:
		s.visitValue(x.X, at)
	case *ssa.Lookup:
		s.visitContainer(x.X)
	case *ssa.UnOp:
		s.visitContainer(x.X)
	case *ssa.Next:
		if r, ok := x.Iter.(*ssa.Range); ok && v.Index == 2 {
			s.visitContainer(r.X)
			return
		}
		s.addLeaf(v, at)
	default:
		s.addLeaf(v, at)
	}
}

// visitContainer visits the elements of a container. The trace distinguishes maps and channels by their allocations if
// these are known. It distinguishes other containers by their type.
func (s *traceSearch) visitContainer(x ssa.Value) {
	found := false
	from := s.containerAllocs(x)
	for _, e := range s.elements[elementKey(x.Type())] {
		if from != nil {
			if to := s.containerAllocs(e.container); to != nil && !haveCommonOrigin(from, to) {
				continue
			}
		}
		found = true
		s.visitValue(e.v, nil)
	}
	if !found {
		s.addLeaf(nil, nil)
	}
}

// haveCommonOrigin reports whether two lists have a common element.
func haveCommonOrigin(a, b []valueOrigin) bool {
	return slices.ContainsFunc(a, func(o valueOrigin) bool { return slices.Contains(b, o) })
}

// containerAllocs returns the allocations of a map or channel, or nil if they are unknown.
func (t *valueTracer) containerAllocs(x ssa.Value) []valueOrigin {
	if list, ok := t.made[x]; ok {
		return list
	}
	t.made[x] = nil // prevents an endless recursion during the search
	switch x.Type().Underlying().(type) {
	case *types.Map, *types.Chan:
	default:
		return nil
	}
	var list []valueOrigin
	for _, o := range t.origins(x, nil, nil) {
		switch o.v.(type) {
		case *ssa.MakeMap, *ssa.MakeChan:
			list = append(list, valueOrigin{o.v, nil})
		case *ssa.Const:
		default:
			return nil
		}
	}
	t.made[x] = list
	return list
}

// visitField visits the values that are stored in a field.
func (s *traceSearch) visitField(v *types.Var) {
	if len(s.fields[v]) == 0 && !s.graph.isInCheckedModule(v.Pkg()) {
		s.addLeaf(nil, nil)
	}
	s.visitAll(s.fields[v], nil)
}

// visitParameter visits the argument of the call through which the trace has entered the function. Without such a call,
// visitParameter visits the arguments of all callers.
func (s *traceSearch) visitParameter(v *ssa.Parameter, at *callFrame) {
	fn := v.Parent()
	i := slices.Index(fn.Params, v)
	if at != nil && at.in == fn {
		s.visitValue(argumentFor(at.call, fn, i), at.up)
		return
	}
	if len(s.callers[fn]) == 0 {
		s.addLeaf(nil, nil)
	}
	for _, k := range s.callers[fn] {
		s.visitValue(argumentFor(k.c, fn, i), nil)
	}
}

// argumentFor returns the value that a call passes for a parameter of a callee. The result is nil if another function
// calls the callee.
func argumentFor(c *call, fn *ssa.Function, i int) ssa.Value {
	at, ok := c.at.(ssa.CallInstruction)
	if !ok {
		return nil
	}
	common := at.Common()
	args := common.Args
	switch {
	case common.IsInvoke():
		args = append([]ssa.Value{common.Value}, args...)
	case common.StaticCallee() != nil && common.StaticCallee() != fn:
		return nil
	}
	if len(args) != len(fn.Params) {
		return nil
	}
	return args[i]
}

// visitFreeVar applies visit to the values to which a closure's variable is bound.
func (s *traceSearch) visitFreeVar(v *ssa.FreeVar, visit func(ssa.Value, *callFrame)) {
	fn := v.Parent()
	i := slices.Index(fn.FreeVars, v)
	for _, m := range s.closures[fn] {
		visit(m.Bindings[i], nil)
	}
	if len(s.closures[fn]) == 0 {
		s.addLeaf(nil, nil)
	}
}

// visitResult visits a result of a call. If the source of the function is not available, the result is itself an
// origin.
func (s *traceSearch) visitResult(c *ssa.Call, i int, v ssa.Value, at *callFrame) {
	if b, ok := c.Call.Value.(*ssa.Builtin); ok {
		if b.Name() == "append" {
			s.visitAll(c.Call.Args, at)
			return
		}
		s.addLeaf(v, at)
		return
	}
	k := s.calls[c]
	if k == nil || len(k.ownCallees()) == 0 || len(k.library) > 0 {
		s.addLeaf(v, at)
	}
	if k == nil {
		return
	}
	for _, g := range k.ownCallees() {
		fn := g.Function
		static := c.Call.StaticCallee()
		if static != nil && static != fn || len(fn.Params) > 0 && argumentFor(k, fn, 0) == nil ||
			fn.Signature.Results().Len() <= i {
			s.addLeaf(v, at)
			continue
		}
		for _, b := range fn.Blocks {
			if r, ok := b.Instrs[len(b.Instrs)-1].(*ssa.Return); ok && i < len(r.Results) {
				s.visitValue(r.Results[i], s.enterCall(k, fn, at))
			}
		}
	}
}

// enterCall returns the frame for a call, or nil beyond the maximum depth.
func (t *valueTracer) enterCall(c *call, fn *ssa.Function, up *callFrame) *callFrame {
	n := 0
	for x := up; x != nil; x = x.up {
		n++
	}
	if n >= maxFrames {
		return nil
	}
	key := callFrame{c, fn, up}
	if t.frames[key] == nil {
		t.frames[key] = &key
	}
	return t.frames[key]
}

// visitLoad visits the values that may be stored at an address.
func (s *traceSearch) visitLoad(addr ssa.Value, at *callFrame) {
	switch addr := addr.(type) {
	case *ssa.Alloc:
		if len(s.variable[addr]) == 0 {
			s.addLeaf(addr, at)
		}
		s.visitAll(s.variable[addr], at)
	case *ssa.Global:
		if len(s.variable[addr]) == 0 {
			s.addLeaf(addr, at)
		}
		s.visitAll(s.variable[addr], nil)
	case *ssa.FieldAddr:
		s.visitField(fieldVar(addr.X.Type(), addr.Field))
	case *ssa.IndexAddr:
		s.visitContainer(addr.X)
	case *ssa.FreeVar:
		s.visitFreeVar(addr, s.visitLoad)
	default:
		s.visitPointer(addr, at)
	}
}

// visitPointer visits the values that may be stored at the target of a pointer.
func (s *traceSearch) visitPointer(addr ssa.Value, at *callFrame) {
	if s.depth >= maxPointers {
		s.addLeaf(nil, nil)
		return
	}
	s.depth++
	defer func() { s.depth-- }()
	for _, o := range s.origins(addr, at, nil) {
		switch o.v.(type) {
		case *ssa.Alloc, *ssa.Global, *ssa.FieldAddr, *ssa.IndexAddr:
			s.visitLoad(o.v, o.at)
		default:
			s.addLeaf(nil, nil)
		}
	}
}

// passedFuncs returns the functions that callers pass, if a call calls a parameter of its function. The callees of such
// a call are those of the call that passes the function.
func (p *Program) passedFuncs(c *call) (list []*function) {
	at, ok := c.at.(ssa.CallInstruction)
	if !ok {
		return nil
	}
	to, ok := at.Common().Value.(*ssa.Parameter)
	if !ok {
		return nil
	}
	i := slices.Index(to.Parent().Params, to)
	for _, k := range p.traces.callers[to.Parent()] {
		by, ok := k.c.at.(ssa.CallInstruction)
		if !ok || by.Common().IsInvoke() || i >= len(by.Common().Args) {
			continue
		}
		if g := p.funcs[functionOf(by.Common().Args[i])]; g != nil && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	return list
}
