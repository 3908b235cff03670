package vet

import (
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// scan finds the calls and operations of a function.
func (p *Program) scan(f *function, known map[ssa.CallInstruction][]*ssa.Function) {
	for _, b := range f.Blocks {
		for _, at := range b.Instrs {
			switch at := at.(type) {
			case *ssa.Send:
				f.op(at, opSleep, "sends to a channel")
			case *ssa.UnOp:
				if at.Op == token.ARROW {
					f.op(at, opSleep, "receives from a channel")
				}
			case *ssa.Select:
				if at.Blocking {
					f.ops = append(f.ops, op{at: at, pos: at.Pos(), kind: opSleep, what: "waits in select"})
				}
			case *ssa.Range:
				if _, ok := at.X.Type().Underlying().(*types.Chan); ok {
					f.op(at, opSleep, "receives from a channel")
				}
			case ssa.CallInstruction:
				p.scanCall(f, at, known[at])
			}
		}
	}
	for _, l := range spins(f.Function) {
		f.ops = append(f.ops, op{at: l.at, pos: l.pos, kind: opSleep, what: "spins " + l.on})
	}
}

func (f *function) op(at ssa.Instruction, kind opKind, what string) {
	f.ops = append(f.ops, op{at: at, pos: at.Pos(), kind: kind, what: what})
}

func (p *Program) scanCall(f *function, at ssa.CallInstruction, known []*ssa.Function) {
	common := at.Common()
	c := &call{at: at, pos: at.Pos()}
	if !c.pos.IsValid() {
		c.pos = common.Pos()
	}
	_, c.spawns = at.(*ssa.Go)
	if _, ok := common.Value.(*ssa.Builtin); ok {
		return
	}
	given := func() { // another package calls what it is given
		for _, a := range common.Args {
			if fn := functionOf(a); fn != nil {
				if g := p.funcs[fn]; g != nil {
					c.callees = append(c.callees, g)
				}
			}
		}
	}
	foreign := func(obj *types.Func) {
		full := obj.FullName()
		if full == "(*sync.Pool).Get" {
			for _, fn := range p.poolNew(f, common.Args[0]) {
				p.addCallee(c, fn)
			}
		}
		kind, known := outsideKind(obj)
		why := ""
		if !known {
			if k, w, ok := p.fact(obj); ok {
				kind, why = k, ", which may sleep: "+w
			}
			if w, ok := p.copyFact(obj); ok {
				f.ops = append(f.ops, op{at: at, pos: c.pos, kind: opCopy, what: "calls " + short(obj) + ", which copies: " + w})
			}
		}
		if strings.HasPrefix(full, "fmt.Fprint") && inMemory(common.Args[0]) {
			kind = never
		}
		if c.spawns {
			given()
			return
		}
		if copyCalls[full] {
			f.ops = append(f.ops, op{at: at, pos: c.pos, kind: opCopy, what: "calls " + short(obj)})
			return
		}
		switch kind {
		case sleeps:
			f.ops = append(f.ops, op{at: at, pos: c.pos, kind: opSleep, what: "calls " + short(obj) + why})
			given()
		case spawns:
			given()
			c.spawns = true
		default:
			given()
		}
	}
	switch {
	case common.IsInvoke():
		c.iface = common.Method
		recv := common.Value.Type()
		switch {
		case isNamed(recv, copyInterface) && copyMethods[c.iface.Name()]:
			f.ops = append(f.ops, op{at: at, pos: c.pos, kind: opCopy, what: "copies to or from process memory by " + short(c.iface)})
			return // whatever it is
		case p.isDriverMethod(recv, c.iface):
			c.agreed = true
			if c.atomic = p.mayNotSleep(recv, c.iface); !c.atomic {
				f.ops = append(f.ops, op{at: at, pos: c.pos, kind: opSleep, what: "calls " + short(c.iface) + ", which may sleep"})
			}
		}
		for _, fn := range known {
			p.addCallee(c, fn)
		}
		if len(c.callees) == 0 && !p.ours(c.iface.Pkg()) {
			foreign(c.iface)
		} else if len(known) == 0 {
			p.unresolved[c.pos] = short(c.iface)
		}
	default:
		fn := common.StaticCallee()
		if fn == nil { // a function value
			c.field = fieldOf(common.Value)
			c.agreed = p.isHandler(c.field)
			c.param = parameterOf(f.Function, common.Value)
			if len(known) == 0 && c.field == nil {
				known = p.candidates(f, common)
			}
			for _, fn := range known {
				p.addCallee(c, fn)
			}
			if len(known) == 0 {
				if k, ok := common.Value.(*ssa.Call); ok && k.Call.StaticCallee() != nil && !p.ours(pkgOf(k.Call.StaticCallee())) {
					given() // an iterator of another package, say
				} else {
					p.unresolved[c.pos] = "a function value"
				}
			}
			break
		}
		c.static, _ = objectOf(fn).(*types.Func)
		if p.isSpace(fn) && copyMethods[fn.Name()] && pkgOf(f.Function) != pkgOf(fn) {
			f.ops = append(f.ops, op{at: at, pos: c.pos, kind: opCopy, what: "copies to or from process memory by " + short(c.static)})
			return
		}
		if lockCall(fn) != noLockCall {
			break // see locks.go
		}
		if g := p.funcs[fn]; g != nil {
			p.addCallee(c, fn)
		} else if c.static != nil && !p.ours(c.static.Pkg()) {
			foreign(c.static)
		}
	}
	p.pass(f, c, common)
	f.calls = append(f.calls, c)
}

// isSpace reports whether a function is a method of memory that may be another process's.
func (p *Program) isSpace(fn *ssa.Function) bool {
	i := strings.LastIndex(copyInterface, ".")
	k := p.prog.ImportedPackage(copyInterface[:i])
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

// inMemory reports whether a writer is a buffer.
func inMemory(w ssa.Value) bool {
	m, ok := w.(*ssa.MakeInterface)
	return ok && (isNamed(m.X.Type(), "strings.Builder") || isNamed(m.X.Type(), "bytes.Buffer") || isNamed(m.X.Type(), "text/tabwriter.Writer"))
}

// isHandler reports whether a field takes functions that may not sleep.
func (p *Program) isHandler(v *types.Var) bool {
	if v == nil {
		return false
	}
	if p.nosleepFields[v] {
		return true
	}
	if v.Pkg() == nil || v.Pkg().Path() != ibPath {
		return false
	}
	for t, names := range handlerFields {
		if o := v.Pkg().Scope().Lookup(t); o != nil && slices.Contains(names, v.Name()) {
			if s, ok := o.Type().Underlying().(*types.Struct); ok {
				for i := range s.NumFields() {
					if s.Field(i) == v {
						return true
					}
				}
			}
		}
	}
	return false
}
