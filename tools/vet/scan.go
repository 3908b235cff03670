package vet

import (
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// scanFunction finds the calls and operations of a function.
func (lk *linker) scanFunction(f *function, known map[ssa.CallInstruction][]*ssa.Function) {
	if sleepingVerbs[fullName(f.Function)] {
		f.addOperation(f.Blocks[0].Instrs[0], opSleep, "may sleep by the table of verbs")
	}
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			switch at := at.(type) {
			case *ssa.Send:
				f.addOperation(at, opSleep, "sends to a channel")
			case *ssa.UnOp:
				if at.Op == token.ARROW {
					f.addOperation(at, opSleep, "receives from a channel")
				}
			case *ssa.Select:
				if at.Blocking {
					f.addOperation(at, opSleep, "waits in select")
				}
			case *ssa.Range:
				if _, ok := at.X.Type().Underlying().(*types.Chan); ok {
					f.addOperation(at, opSleep, "receives from a channel")
				}
			case ssa.CallInstruction:
				lk.scanCall(f, at, known[at])
			}
		}
	}
	for _, l := range append(spinLoops(f.Function), waitLoops(f.Function, known)...) {
		f.ops = append(f.ops, operation{at: l.at, pos: l.pos, kind: opSleep, what: "spins " + l.on})
	}
}

func (f *function) addOperation(at ssa.Instruction, kind opKind, what string) {
	pos := at.Pos()
	if c, ok := at.(ssa.CallInstruction); ok {
		pos = posOf(c)
	}
	f.ops = append(f.ops, operation{at: at, pos: pos, kind: kind, what: what})
}

// scanCall finds the effects of a call.
func (lk *linker) scanCall(f *function, at ssa.CallInstruction, known []*ssa.Function) {
	common := at.Common()
	if b, ok := common.Value.(*ssa.Builtin); ok {
		if _, spawns := at.(*ssa.Go); !spawns && (b.Name() == "print" || b.Name() == "println") {
			f.addOperation(at, opSleep, "writes to standard error by "+b.Name())
		}
		return
	}
	c := &call{at: at, pos: posOf(at)}
	_, c.spawns = at.(*ssa.Go)
	counts := true
	switch fn := common.StaticCallee(); {
	case common.IsInvoke():
		counts = lk.scanInterfaceCall(f, c, common, known)
	case fn == nil:
		lk.scanFuncValueCall(f, c, common, known)
	default:
		counts = lk.scanStaticCall(f, c, fn)
	}
	if counts {
		lk.recordPassedFuncs(f, c, common)
		f.calls = append(f.calls, c)
	}
}

// scanInterfaceCall examines a call of an interface method. It reports whether the callees of the call matter.
func (lk *linker) scanInterfaceCall(f *function, c *call, common *ssa.CallCommon, known []*ssa.Function) bool {
	c.iface = common.Method
	recv := common.Value.Type()
	if isNamed(recv, copyInterface) && copyMethods[c.iface.Name()] {
		f.addOperation(c.at, opCopy, "copies to or from process memory by "+shortName(c.iface))
		return false // the effect does not depend on the callee
	}
	if isOptionalNoSleepMethod(recv, c.iface) {
		c.agreed = true
	} else if lk.contract.isDriverMethod(recv, c.iface) {
		c.agreed = true
		if c.atomic = lk.contract.mayNotSleep(recv, c.iface); !c.atomic {
			f.addOperation(c.at, opSleep, "calls "+shortName(c.iface)+", which may sleep")
		}
	}
	lk.addCallees(f, c, known)
	switch {
	case len(c.callees) > 0 || len(c.library) > 0:
	case !lk.graph.isInCheckedModule(c.iface.Pkg()):
		lk.applyLibraryCall(f, c, c.iface)
	case len(known) == 0:
		lk.graph.unresolved[c.pos] = shortName(c.iface)
	}
	return true
}

// scanFuncValueCall examines a call of a function value.
func (lk *linker) scanFuncValueCall(f *function, c *call, common *ssa.CallCommon, known []*ssa.Function) {
	c.field = fieldOf(common.Value)
	c.done = isDoneField(c.field)
	c.agreed = c.done || lk.contract.isHandler(c.field)
	c.param = parameterNumber(f.Function, common.Value)
	if len(known) == 0 && c.field == nil {
		known = lk.candidateFuncs(f, common)
	}
	lk.addCallees(f, c, known)
	if len(known) > 0 {
		return
	}
	if k, ok := common.Value.(*ssa.Call); ok && k.Call.StaticCallee() != nil &&
		!lk.graph.isInCheckedModule(pkgOf(k.Call.StaticCallee())) {
		lk.addPassedCallees(c) // for example, an iterator of another package
	} else {
		lk.graph.unresolved[c.pos] = "a function value"
	}
}

// scanStaticCall examines a call of a known function. It reports whether the callees of the call matter.
func (lk *linker) scanStaticCall(f *function, c *call, fn *ssa.Function) bool {
	c.static, _ = objectOf(fn).(*types.Func)
	if lk.contract.isForeignMemoryMethod(fn) && copyMethods[fn.Name()] && pkgOf(f.Function) != pkgOf(fn) {
		f.addOperation(c.at, opCopy, "copies to or from process memory by "+shortName(c.static))
		return false
	}
	if lockCallKindOf(fn) != noLockCall {
		return true // lockflow.go treats these calls
	}
	if sleepMarkFuncs[fn.String()] {
		f.addOperation(c.at, opSleep, "may sleep, as its comment states")
		return false
	}
	if lk.graph.funcs[fn] != nil {
		lk.graph.addCallee(c, fn)
	} else if c.static != nil && !lk.graph.isInCheckedModule(c.static.Pkg()) {
		lk.applyLibraryCall(f, c, c.static)
	}
	return true
}

// addCallees adds the functions that a call may call. addCallees applies the tables of contract.go to functions of
// other packages.
func (lk *linker) addCallees(f *function, c *call, known []*ssa.Function) {
	for _, fn := range known {
		if lk.graph.funcs[fn] != nil {
			lk.graph.addCallee(c, fn)
		} else if o, ok := objectOf(fn).(*types.Func); ok && !lk.graph.isInCheckedModule(o.Pkg()) &&
			!slices.Contains(c.library, o) {
			c.library = append(c.library, o)
		}
	}
	slices.SortFunc(c.library, func(a, b *types.Func) int { return strings.Compare(a.FullName(), b.FullName()) })
	spawns := c.spawns
	for _, o := range c.library {
		lk.applyLibraryCall(f, c, o)
	}
	c.spawns = spawns || c.spawns && len(c.library) == 1 && len(known) == 1
}

// addPassedCallees adds the functions that a call passes to another package, which calls the functions.
func (lk *linker) addPassedCallees(c *call) {
	for _, a := range c.at.(ssa.CallInstruction).Common().Args {
		if fn := functionOf(a); fn != nil {
			lk.graph.addCallee(c, fn)
		}
	}
}

// applyLibraryCall applies the effects of a call of a function of another package.
func (lk *linker) applyLibraryCall(f *function, c *call, obj *types.Func) {
	common := c.at.(ssa.CallInstruction).Common()
	full := obj.FullName()
	if full == "(*sync.Pool).Get" && !common.IsInvoke() && len(common.Args) > 0 {
		for _, fn := range lk.poolNewFuncs(f, common.Args[0]) {
			lk.graph.addCallee(c, fn)
		}
	}
	kind, known := externalKind(obj)
	why := ""
	if !known {
		if k, w, ok := lk.externalFact(obj); ok {
			kind, why = k, ", which may sleep: "+w
		}
		if w, ok := lk.copyFact(obj); ok && !lk.contract.copiesOwnMemory(f, obj) {
			f.addOperation(c.at, opCopy, "calls "+shortName(obj)+", which copies: "+w)
		}
	}
	if _, ok := postFuncs[full]; ok {
		return // completion.go treats these calls
	}
	lk.addPassedCallees(c)
	if c.spawns {
		return
	}
	switch {
	case copyCalls[full]:
		f.addOperation(c.at, opCopy, "calls "+shortName(obj))
	case usesStream(obj): // stream.go treats these calls
		c.stream = obj
	case kind == sleeps:
		f.addOperation(c.at, opSleep, "calls "+shortName(obj)+why)
	case kind == spawns:
		c.spawns = true
	}
}

// isForeignMemoryMethod reports whether a function is a method of memory that may belong to another process.
func (ct *contract) isForeignMemoryMethod(fn *ssa.Function) bool {
	i := strings.LastIndex(copyInterface, ".")
	k := ct.graph.prog.ImportedPackage(copyInterface[:i])
	if k == nil || fn.Signature.Recv() == nil || pkgOf(fn) != k.Pkg {
		return false
	}
	o := k.Pkg.Scope().Lookup(copyInterface[i+1:])
	if o == nil {
		return false
	}
	it, ok := o.Type().Underlying().(*types.Interface)
	return ok && types.Implements(fn.Signature.Recv().Type(), it) && !isNamed(fn.Signature.Recv().Type(), ownMemory)
}

// isHandler reports whether a field holds functions that may not sleep.
func (ct *contract) isHandler(v *types.Var) bool {
	if v == nil {
		return false
	}
	if ct.directives.nosleepFields[v] {
		return true
	}
	if ct.handlers == nil {
		ct.handlers = ct.fieldsOf(ibPath, handlerFields)
		maps.Copy(ct.handlers, ct.fieldsOf(ibPath, driverFields))
		maps.Copy(ct.handlers, ct.fieldsOf(completionPath, completionFields))
	}
	return ct.handlers[v] != ""
}
