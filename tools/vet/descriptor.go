package vet

import (
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// The check follows the values of descriptors received over a socket, and of the sockets themselves. The values
// pass through variables, fields, parameters, results, channels and conversions. A field stands for that field of
// all values of its type.

// descriptorFlow is the set of values that descriptors of one kind can reach.
type descriptorFlow struct {
	graph  *callGraph
	values map[ssa.Value]bool
	fields map[*types.Var]bool
	result map[*ssa.Function]map[int]bool
	stops  func(f *ssa.Function) bool // functions that the search does not enter
	grown  bool
}

func (gd *guardChecker) newDescriptorFlow(stops func(f *ssa.Function) bool) *descriptorFlow {
	return &descriptorFlow{graph: gd.graph, values: map[ssa.Value]bool{}, fields: map[*types.Var]bool{},
		result: map[*ssa.Function]map[int]bool{}, stops: stops}
}

func (w *descriptorFlow) addValue(v ssa.Value) {
	if v != nil && !w.values[v] && mayHoldDescriptor(v.Type()) {
		w.values[v], w.grown = true, true
	}
}

// mayHoldDescriptor reports whether a type is a descriptor or contains one.
func mayHoldDescriptor(t types.Type) bool {
	if isErrorType(t) {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return !ok || b.Info()&types.IsInteger != 0
}

func isErrorType(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// propagate propagates the values through the functions until the set does not grow.
func (w *descriptorFlow) propagate(funcs []*function) {
	for w.grown = true; w.grown; {
		w.grown = false
		for _, f := range funcs {
			if !w.stops(f.Function) {
				w.propagateFunction(f.Function)
			}
		}
	}
}

// descriptorCarriers lists functions of other packages that return a value that is or contains the descriptor in an
// argument.
var descriptorCarriers = []string{
	"os.NewFile", "(*os.File).Fd", "(*os.File).SyscallConn", "(*net.UnixConn).SyscallConn", "net.FileConn",
	"(*net.UnixConn).File", "slices.Clone",
	"golang.org/x/sys/unix.Dup", "golang.org/x/sys/unix.FcntlInt",
}

func (w *descriptorFlow) propagateFunction(f *ssa.Function) {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			switch at := at.(type) {
			case *ssa.Store:
				if w.values[at.Val] {
					w.markLocation(at.Addr)
				}
			case *ssa.Send:
				if w.values[at.X] {
					w.addValue(at.Chan)
				}
			case *ssa.MapUpdate:
				if w.values[at.Value] {
					w.addValue(at.Map)
				}
			case *ssa.FieldAddr:
				if w.fields[fieldVar(at.X.Type(), at.Field)] {
					w.addValue(at)
				}
			case *ssa.Field:
				if w.fields[fieldVar(at.X.Type(), at.Field)] {
					w.addValue(at)
				}
			case *ssa.MakeClosure:
				fn := at.Fn.(*ssa.Function)
				for i, x := range at.Bindings {
					if w.values[x] {
						w.addValue(fn.FreeVars[i])
					}
					if w.values[fn.FreeVars[i]] {
						w.addValue(x)
					}
				}
			case *ssa.Return:
				for i, x := range at.Results {
					if w.values[x] && mayHoldDescriptor(x.Type()) && !w.result[f][i] {
						if w.result[f] == nil {
							w.result[f] = map[int]bool{}
						}
						w.result[f][i], w.grown = true, true
					}
				}
			case ssa.CallInstruction:
				w.propagateCall(at)
			case ssa.Value:
				w.markDerivedValue(at)
			}
		}
	}
}

// markLocation marks the location in which an instruction stores a descriptor.
func (w *descriptorFlow) markLocation(addr ssa.Value) {
	w.addValue(addr)
	switch addr := addr.(type) {
	case *ssa.FieldAddr:
		if v := fieldVar(addr.X.Type(), addr.Field); v != nil && !w.fields[v] {
			w.fields[v], w.grown = true, true
		}
	case *ssa.IndexAddr:
		w.markLocation(addr.X)
	case *ssa.Slice:
		w.markLocation(addr.X)
	case *ssa.UnOp:
		if addr.Op == token.MUL {
			w.markLocation(addr.X)
		}
	}
}

// markDerivedValue marks a value that is computed from a marked value.
func (w *descriptorFlow) markDerivedValue(v ssa.Value) {
	from := func(xs ...ssa.Value) {
		for _, x := range xs {
			if w.values[x] {
				w.addValue(v)
			}
		}
	}
	switch v := v.(type) {
	case *ssa.Phi:
		from(v.Edges...)
	case *ssa.Convert:
		from(v.X)
	case *ssa.ChangeType:
		from(v.X)
	case *ssa.ChangeInterface:
		from(v.X)
	case *ssa.MakeInterface:
		from(v.X)
	case *ssa.TypeAssert:
		from(v.X)
	case *ssa.Slice:
		from(v.X)
	case *ssa.IndexAddr:
		from(v.X)
	case *ssa.Index:
		from(v.X)
	case *ssa.Lookup:
		from(v.X)
	case *ssa.Range:
		from(v.X)
	case *ssa.Next:
		from(v.Iter)
	case *ssa.UnOp:
		if v.Op == token.MUL || v.Op == token.ARROW {
			from(v.X)
		}
	case *ssa.Extract:
		if c, ok := v.Tuple.(*ssa.Call); ok && c.Call.StaticCallee() != nil && !w.values[v.Tuple] {
			if w.result[c.Call.StaticCallee()][v.Index] {
				w.addValue(v)
			}
			return
		}
		if _, isIndex := v.Tuple.(*ssa.Next); isIndex && v.Index < 2 { // the key and the result ok are no descriptors
			return
		}
		from(v.Tuple)
	}
}

// propagateCall propagates descriptors from a caller to the parameters of a function, and from the results to the
// caller.
func (w *descriptorFlow) propagateCall(at ssa.CallInstruction) {
	common := at.Common()
	v, _ := at.(ssa.Value)
	if b, ok := common.Value.(*ssa.Builtin); ok {
		if v != nil && b.Name() == "append" {
			for _, a := range common.Args {
				if w.values[a] {
					w.addValue(v)
				}
			}
		}
		return
	}
	fn := common.StaticCallee()
	if fn == nil {
		return
	}
	if o, ok := objectOf(fn).(*types.Func); ok && slices.Contains(descriptorCarriers, o.FullName()) {
		for _, a := range common.Args {
			if v != nil && w.values[a] {
				w.addValue(v)
			}
		}
		return
	}
	if w.graph.funcs[fn] == nil || w.stops(fn) {
		return
	}
	for i, a := range common.Args {
		if w.values[a] && i < len(fn.Params) {
			w.addValue(fn.Params[i])
		}
	}
	if v != nil && w.result[fn][0] && fn.Signature.Results().Len() == 1 {
		w.addValue(v)
	}
}

// checkReceives finds reads from sockets outside the functions that receive the descriptors of messages.
func (gd *guardChecker) checkReceives(funcs []*function, report reporter) {
	sockets := gd.newDescriptorFlow(func(*ssa.Function) bool { return false })
	for _, f := range funcs {
		forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
			switch callee {
			case unixPrefix + "Socket", unixPrefix + "Socketpair", unixPrefix + "Accept", unixPrefix +
				"Accept4", "syscall.Socket",
				"syscall.Socketpair", "syscall.Accept", "syscall.Accept4":
				if v, ok := at.(ssa.Value); ok {
					sockets.addValue(v)
				}
			}
		})
	}
	sockets.propagate(funcs)
	for _, f := range funcs {
		if gd.directives.hasDirective(f.Function, "receives") {
			continue
		}
		forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
			how := strings.TrimPrefix(callee, "golang.org/x/sys/")
			switch callee {
			case unixPrefix + "Recvmsg", unixPrefix + "RecvmsgBuffers", unixPrefix +
				"Recvfrom", "syscall.Recvmsg", "syscall.Recvfrom",
				"(*net.UnixConn).ReadMsgUnix", "(*net.UnixConn).ReadFromUnix", "(*net.UnixConn).ReadFrom":
				report(f, Receive, posOf(at),
					"receives from a socket by "+how+": descriptors that come along are closed by this thread")
			case "(*net.conn).Read":
				if a, ok := args[0].(*ssa.FieldAddr); ok && hasUnixConn(a.X.Type()) {
					report(f, Receive, posOf(at), "reads from a socket: descriptors that come along are closed by this thread")
				}
			case unixPrefix + "Read", unixPrefix + "Readv", "syscall.Read", "(*os.File).Read":
				if sockets.values[args[0]] {
					report(f, Receive, posOf(at),
						"reads from a socket by "+how+": descriptors that come along are closed by this thread")
				}
			}
		})
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				if m, ok := at.(*ssa.MakeInterface); ok && hasUnixConn(m.X.Type()) && hasMethod(m.Type(), "Read") {
					report(f, Receive, conversionPos(m),
						fmt.Sprintf("passes a socket as %s to a reader: descriptors that come along are closed by its thread",
							types.TypeString(m.Type(), (*types.Package).Name)))
				}
			}
		}
	}
}

// conversionPos returns the position of a conversion that is implicit in the source. The position is that of the call
// or of another instruction that uses the result.
func conversionPos(v *ssa.MakeInterface) token.Pos {
	if v.Pos().IsValid() {
		return v.Pos()
	}
	for _, r := range *v.Referrers() {
		if c, ok := r.(ssa.CallInstruction); ok {
			return posOf(c)
		}
		if r.Pos().IsValid() {
			return r.Pos()
		}
	}
	return v.Parent().Pos()
}

// hasUnixConn reports whether a type is *net.UnixConn, or a struct that embeds *net.UnixConn.
func hasUnixConn(t types.Type) bool {
	if isNamed(t, "net.UnixConn") {
		return true
	}
	s, ok := deref(t).Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		if f.Embedded() && hasUnixConn(f.Type()) {
			return true
		}
	}
	return false
}

func hasMethod(t types.Type, name string) bool {
	i, ok := t.Underlying().(*types.Interface)
	if !ok {
		return false
	}
	for m := range i.Methods() {
		if m.Name() == name {
			return true
		}
	}
	return false
}

// checkCloses finds closes of received descriptors outside the functions that limit the number of concurrent
// closes.
func (gd *guardChecker) checkCloses(funcs []*function, report reporter) {
	received := gd.newDescriptorFlow(func(f *ssa.Function) bool { return gd.directives.hasDirective(f, "closes") })
	for _, f := range funcs {
		forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
			v, ok := at.(ssa.Value)
			if !ok {
				return
			}
			switch callee {
			case unixPrefix + "ParseUnixRights", "syscall.ParseUnixRights":
				received.addValue(v)
			default:
				// for a function of another package, only the marks are available
				fn := at.Common().StaticCallee()
				if fn != nil && gd.graph.funcs[fn] == nil && gd.directives.hasDirective(fn, "receives") {
					received.addValue(v)
				}
			}
		})
	}
	received.propagate(funcs)
	closers := []string{unixPrefix + "Close", "syscall.Close", "(*os.File).Close", "(io.Closer).Close"}
	for _, f := range funcs {
		if received.stops(f.Function) {
			continue
		}
		forEachCall(f.Function, func(at ssa.CallInstruction, callee string, args []ssa.Value) {
			if at.Common().IsInvoke() {
				args = []ssa.Value{at.Common().Value}
			}
			if slices.Contains(closers, callee) && received.values[args[0]] {
				report(f, Close, posOf(at), "closes a descriptor that came by a socket: that can take as long as its sender likes")
			}
		})
	}
}

// checkRecovers finds goroutines that parse bytes of a user without a deferred recover. A panic in such a goroutine
// ends the service.
func (gd *guardChecker) checkRecovers(funcs []*function, report reporter) {
	parses := map[*ssa.Function]string{} // keyed by the function, with the callee that parses
	for f := range gd.graph.funcs {
		if f.Parent() == nil && gd.directives.hasDirective(f, "parses") && !defersRecover(f) {
			parses[f] = ""
		}
	}
	if len(parses) == 0 {
		return
	}
	for grown := true; grown; {
		grown = false
		for _, f := range gd.graph.order {
			if _, ok := parses[f.Function]; ok || defersRecover(f.Function) {
				continue
			}
			for _, g := range sameGoroutineFuncs(f.Function) {
				if _, ok := parses[g]; ok {
					parses[f.Function], grown = gd.graph.funcName(g), true
					break
				}
			}
		}
	}
	for _, f := range funcs {
		for _, b := range f.Blocks {
			for _, at := range b.Instrs {
				c, ok := at.(ssa.CallInstruction)
				if !ok {
					continue
				}
				for _, g := range startedFuncs(c) {
					if by, ok := parses[g]; ok {
						text := "starts a goroutine that parses bytes of a user without a recover"
						if by != "" {
							text += ": it calls " + by
						}
						report(f, Recover, posOf(c), text)
					}
				}
			}
		}
	}
}

func (cg *callGraph) funcName(f *ssa.Function) string {
	if g := cg.funcs[f]; g != nil {
		return functionName(g)
	}
	return f.String()
}

// goroutineStarters lists functions that run a function in a new goroutine.
var goroutineStarters = []string{"time.AfterFunc", "context.AfterFunc", "(*sync.WaitGroup).Go",
	"(*golang.org/x/sync/errgroup.Group).Go"}

// containPackage names the package with functions that call a function and recover its panic.
const containPackage = module + "/internal/contain."

func startedFuncs(c ssa.CallInstruction) (list []*ssa.Function) {
	common := c.Common()
	fn := common.StaticCallee()
	if _, ok := c.(*ssa.Go); ok {
		if fn != nil {
			list = append(list, fn)
		}
		return append(list, functionArgs(common)...) // the callee may call the functions among its arguments
	}
	if o := fullName(fn); slices.Contains(goroutineStarters, o) {
		return functionArgs(common)
	}
	return nil
}

func functionArgs(common *ssa.CallCommon) (list []*ssa.Function) {
	if fn := common.StaticCallee(); fn != nil && (strings.HasPrefix(fullName(fn), containPackage) || defersRecover(fn)) {
		return nil
	}
	for _, a := range common.Args {
		if g := boundMethod(functionOf(a)); g != nil {
			list = append(list, g)
		}
	}
	return list
}

// boundMethod returns the method of a method value. For any other function boundMethod returns the function itself.
func boundMethod(f *ssa.Function) *ssa.Function {
	if f == nil || !strings.HasPrefix(f.Synthetic, "bound method wrapper") {
		return f
	}
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			if c, ok := at.(*ssa.Call); ok && c.Call.StaticCallee() != nil {
				return c.Call.StaticCallee()
			}
		}
	}
	return f
}

func fullName(f *ssa.Function) string {
	if f == nil {
		return ""
	}
	o, ok := objectOf(f).(*types.Func)
	if !ok {
		return ""
	}
	return o.FullName()
}

// sameGoroutineFuncs returns the functions that a function calls on its own goroutine. They include the functions that
// it passes to callees that call them.
func sameGoroutineFuncs(f *ssa.Function) []*ssa.Function {
	set := map[*ssa.Function]bool{}
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			c, ok := at.(ssa.CallInstruction)
			if !ok {
				continue
			}
			if _, spawns := at.(*ssa.Go); spawns || slices.Contains(goroutineStarters, fullName(c.Common().StaticCallee())) {
				continue
			}
			if fn := c.Common().StaticCallee(); fn != nil {
				set[fn] = true
			}
			for _, g := range functionArgs(c.Common()) {
				set[g] = true
			}
		}
	}
	return slices.Collect(maps.Keys(set))
}

// defersRecover reports whether a function defers a recover before any instruction that could panic.
func defersRecover(f *ssa.Function) bool {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			d, ok := at.(*ssa.Defer)
			if !ok {
				continue
			}
			if fn := d.Call.StaticCallee(); fn != nil && callsRecover(fn) {
				return true
			}
		}
	}
	return false
}

func callsRecover(f *ssa.Function) bool {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			if c, ok := at.(ssa.CallInstruction); ok {
				if k, ok := c.Common().Value.(*ssa.Builtin); ok && k.Name() == "recover" {
					return true
				}
			}
		}
	}
	return false
}
