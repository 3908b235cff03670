package vet

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// A library function that reads or writes a stream sleeps if the stream sleeps. For example, a log.Logger for a
// file may sleep, and a log.Logger for a bytes.Buffer does not sleep. A log.Logger for a type of the program
// behaves like the Write method of the type.

// streamPackages lists the packages with functions that wrap, read or write streams.
var streamPackages = []string{
	"bufio", "compress/flate", "compress/gzip", "compress/zlib", "encoding/binary", "encoding/csv", "encoding/gob",
	"encoding/hex", "encoding/json", "encoding/xml", "fmt", "hash", "io", "log", "log/slog",
	"text/tabwriter", "text/template",
}

// streamMethods lists the methods with which functions use a stream.
var streamMethods = []string{"Write", "Read", "Handle"}

// nonSleepingStreams lists the variables of other packages that hold streams that do not sleep.
var nonSleepingStreams = []string{"crypto/rand.Reader", "io.Discard", "log/slog.DiscardHandler"}

// usesStream reports whether a library function sleeps if its stream sleeps. The stream is an argument of the
// function, or the stream of the receiver.
func usesStream(f *types.Func) bool {
	if f.Pkg() == nil || !slices.Contains(streamPackages, f.Pkg().Path()) || makesStream(f) {
		return false
	}
	if kind, ok := externalFuncs[f.FullName()]; ok && kind != sleeps {
		return false
	}
	sig := f.Signature()
	if r := sig.Recv(); r != nil && holdsStream(r.Type()) {
		return !slices.Contains(streamFreeMethods, f.Name())
	}
	for v := range sig.Params().Variables() {
		if isStream(v.Type()) {
			return true
		}
	}
	return false
}

// streamFreeMethods lists methods that do not use the stream of their receiver.
var streamFreeMethods = []string{
	"Available", "AvailableBuffer", "Buffer", "Buffered", "Bytes", "Enabled", "Err", "Error", "Flags", "Handler",
	"Indent", "InputOffset", "Prefix", "Reset", "SetEscapeHTML", "SetFlags", "SetIndent", "SetOutput", "SetPrefix", "Size",
	"Split", "String", "Text", "UseNumber", "With", "WithAttrs", "WithGroup", "Writer",
}

// makesStream reports whether a function creates a stream or a wrapper of a stream.
func makesStream(f *types.Func) bool {
	sig := f.Signature()
	return sig.Recv() == nil && sig.Results().Len() == 1 &&
		(holdsStream(sig.Results().At(0).Type()) || isStream(sig.Results().At(0).Type()))
}

// isStream reports whether a type is an interface of a stream.
func isStream(t types.Type) bool {
	return slices.ContainsFunc(streamMethods, func(m string) bool { return hasMethod(t, m) })
}

// holdsStream reports whether a type of the standard library forwards its reads or writes to a stream.
func holdsStream(t types.Type) bool {
	return len(heldStreamUses(t)) > 0
}

// heldStreamUses returns the methods with which a type of the standard library uses its stream.
func heldStreamUses(t types.Type) []string {
	n, ok := types.Unalias(deref(t)).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || !slices.Contains(streamPackages, n.Obj().Pkg().Path()) {
		return nil
	}
	for suffix, uses := range map[string][]string{
		"Logger": {"Write", "Handle"}, "Handler": {"Write", "Handle"}, "Encoder": {"Write"}, "Writer": {"Write"},
		"Decoder": {"Read"}, "Reader": {"Read"}, "Scanner": {"Read"},
	} {
		if strings.HasSuffix(n.Obj().Name(), suffix) {
			return uses
		}
	}
	return nil
}

// streamUses returns the methods with which functions may use a stream of a type.
func streamUses(t types.Type) (uses []string) {
	if !types.IsInterface(t) {
		return heldStreamUses(t)
	}
	for _, m := range streamMethods {
		if hasMethod(t, m) {
			uses = append(uses, m)
		}
	}
	return uses
}

// checkStreams determines the streams that library functions read and write for the program.
func (p *Program) checkStreams() {
	for _, f := range p.order {
		for _, c := range f.calls {
			if c.stream == nil {
				continue
			}
			q := &streamQuery{p: p, seen: map[ssa.Value]bool{}}
			for _, v := range p.streamsOf(c) {
				q.examineStream(v, nil)
			}
			if q.sleeps {
				f.addOperation(c.at, opSleep, "calls "+shortName(c.stream))
			}
			for _, g := range q.callees {
				if !slices.Contains(c.callees, g) {
					c.callees = append(c.callees, g)
				}
			}
		}
	}
}

// streamsOf returns the streams that a call passes to another package, including the receiver.
func (p *Program) streamsOf(c *call) (list []ssa.Value) {
	common := c.at.(ssa.CallInstruction).Common()
	if common.IsInvoke() {
		list = append(list, common.Value)
	} else if common.StaticCallee() == nil { // a method value
		for _, o := range p.traces.origins(common.Value, nil, nil) {
			if m, ok := o.v.(*ssa.MakeClosure); ok && objectOf(m.Fn.(*ssa.Function)) == types.Object(c.stream) {
				list = append(list, m.Bindings...)
			}
		}
	}
	return append(list, streamArgs(common.Args)...)
}

// streamArgs returns the arguments that are streams or contain streams.
func streamArgs(args []ssa.Value) (list []ssa.Value) {
	for _, a := range args {
		if t := streamType(a); isStream(t) || holdsStream(t) {
			list = append(list, a)
		}
	}
	return list
}

// streamType returns the type of a stream, or the type of the streams in a slice, as for the argument of
// io.MultiWriter.
func streamType(v ssa.Value) types.Type {
	if s, ok := v.Type().Underlying().(*types.Slice); ok {
		return s.Elem()
	}
	return v.Type()
}

// streamQuery determines whether streams sleep, and which functions of the program the streams call.
type streamQuery struct {
	p       *Program
	seen    map[ssa.Value]bool
	uses    []string // the methods with which the current stream is used
	sleeps  bool
	callees []*function
}

func (q *streamQuery) examineStream(v ssa.Value, at *callFrame) {
	if q.seen[v] {
		return
	}
	q.seen[v] = true
	defer func(u []string) { q.uses = u }(q.uses)
	q.uses = streamUses(streamType(v))
	origins := q.p.traces.origins(v, at, isWriterOfType)
	if _, ok := v.Type().Underlying().(*types.Slice); ok {
		origins = q.sliceElements(v, at)
	}
	if len(origins) == 0 {
		q.sleeps = true
	}
	for _, o := range origins {
		q.examineOrigin(o)
	}
}

// isWriterOfType reports whether a value is an interface made of a type that determines the called method. In this case
// the origin of the value is irrelevant.
func isWriterOfType(v ssa.Value) bool {
	m, ok := v.(*ssa.MakeInterface)
	return ok && namedOf(m.X.Type()) != nil && isStream(m.Type()) && !holdsStream(m.X.Type())
}

// sliceElements returns the sliceElements of a slice. For a slice of a literal, sliceElements returns only the
// sliceElements of that literal.
func (q *streamQuery) sliceElements(v ssa.Value, at *callFrame) (list []valueOrigin) {
	s, ok := v.(*ssa.Slice)
	if !ok {
		return []valueOrigin{{}}
	}
	a, ok := s.X.(*ssa.Alloc)
	if !ok {
		return []valueOrigin{{}}
	}
	for _, r := range *a.Referrers() {
		i, ok := r.(*ssa.IndexAddr)
		if !ok {
			continue
		}
		for _, r := range *i.Referrers() {
			if st, ok := r.(*ssa.Store); ok {
				list = append(list, q.p.traces.origins(st.Val, at, isWriterOfType)...)
			}
		}
	}
	return list
}

func (q *streamQuery) examineOrigin(o valueOrigin) {
	switch v := o.v.(type) {
	case nil:
		q.sleeps = true
	case *ssa.Const: // nil, or a value without fields
		if !v.IsNil() {
			q.examineMethodSet(v.Type())
		}
	case *ssa.Global:
		if !q.isNonSleepingVariable(v) {
			q.examineValue(v)
		}
	case *ssa.MakeInterface:
		q.examineMethodSet(v.X.Type())
	case *ssa.Call:
		q.examineMadeStream(v, o.at)
	case *ssa.Extract:
		if c, ok := v.Tuple.(*ssa.Call); ok {
			q.examineMadeStream(c, o.at)
			return
		}
		q.examineValue(v)
	default:
		q.examineValue(o.v)
	}
}

// isNonSleepingVariable reports whether a variable of another package holds a stream that does not sleep.
func (q *streamQuery) isNonSleepingVariable(v *ssa.Global) bool {
	return v.Object() != nil && slices.Contains(nonSleepingStreams, v.Object().Pkg().Path()+"."+v.Name())
}

// examineMadeStream examines a stream that another package has created from the arguments of a call.
func (q *streamQuery) examineMadeStream(c *ssa.Call, at *callFrame) {
	o, _ := calleeObject(c).(*types.Func)
	args := streamArgs(c.Call.Args)
	if c.Call.IsInvoke() {
		args = append(args, c.Call.Value)
	}
	switch {
	case o == nil || o.Pkg() == nil:
		q.sleeps = true
	case len(args) == 0 || !slices.Contains(streamPackages, o.Pkg().Path()):
		kind, known := externalKind(o)
		// For example log.Default or slog.Default.
		q.sleeps = q.sleeps || kind == sleeps || !known || o.Pkg().Path() == "log/slog"
	default:
		for _, a := range args {
			q.examineStream(a, at)
		}
		q.examineRedirectedStreams(c)
	}
}

// examineRedirectedStreams examines the streams that are later assigned to a logger.
func (q *streamQuery) examineRedirectedStreams(made *ssa.Call) {
	for _, k := range q.p.traces.loggerRedirects() {
		for _, o := range q.p.traces.origins(k.Call.Args[0], nil, nil) {
			if o.v == ssa.Value(made) || o.v == nil {
				q.examineStream(k.Call.Args[1], nil)
			}
		}
	}
}

// loggerRedirects returns the calls of the program that set the output of a logger.
func (t *valueTracer) loggerRedirects() (list []*ssa.Call) {
	if t.outputs == nil {
		t.outputs = []*ssa.Call{}
		for at := range t.calls {
			if c, ok := at.(*ssa.Call); ok && fullName(c.Call.StaticCallee()) == "(*log.Logger).SetOutput" {
				t.outputs = append(t.outputs, c)
			}
		}
	}
	return t.outputs
}

// examineValue examines a stream by its type.
func (q *streamQuery) examineValue(v ssa.Value) {
	if types.IsInterface(v.Type()) {
		q.sleeps = true
		return
	}
	q.examineMethodSet(v.Type())
}

func (q *streamQuery) examineMethodSet(t types.Type) {
	n, ok := types.Unalias(deref(t)).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		q.sleeps = true
		return
	}
	found := false
	set := q.p.prog.MethodSets.MethodSet(types.NewPointer(n))
	for _, name := range q.uses {
		if sel := set.Lookup(n.Obj().Pkg(), name); sel != nil {
			q.examineMethod(sel)
			found = true
		}
	}
	q.sleeps = q.sleeps || !found
}

// examineMethod examines a method of a stream.
func (q *streamQuery) examineMethod(sel *types.Selection) {
	m := sel.Obj().(*types.Func)
	if f := q.p.funcs[q.p.prog.MethodValue(sel)]; f != nil {
		q.callees = append(q.callees, f)
	} else if f := q.p.funcs[q.p.prog.FuncValue(m)]; f != nil {
		q.callees = append(q.callees, f)
	} else if kind, _ := externalKind(m); kind == sleeps {
		q.sleeps = true
	}
}
