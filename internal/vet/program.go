package vet

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/callgraph/vta"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// Program is a set of packages with all that they call of one another. Of other packages only the types are known.
type Program struct {
	Fset *token.FileSet
	Name string // of its command, or of its first package

	prog    *ssa.Program
	unit    *analysis.Pass // one package alone is looked at; nil: a whole program
	sleep   *effect        // after Check
	copies  *effect
	own     map[string]bool // paths of the packages that are looked at
	main    map[string]bool // files of the module itself
	escapes escapes
	all     []*Escape
	funcs   map[*ssa.Function]*function
	order   []*function // by place

	nosleepFields map[*types.Var]bool
	nosleepLines  map[line]bool
	programLocks  map[*types.Var]*Escape
	values        map[*types.Package][]*ssa.Function // see taken
	decls         map[types.Object][]directive
	locks         map[string]*lock
	unresolved    map[token.Pos]string // calls whose callees are not known
	problems      []Report             // of directives
}

// function is one with a body.
type function struct {
	*ssa.Function
	calls   []*call
	ops     []op
	held    []*lock // by its directive
	heldBy  map[*lock]heldPath
	nosleep bool // by its directive
	allowed map[string]*Escape

	locks lockFlow

	runs map[int]bool // parameters, counted from 1, that it calls, by itself or by what it passes them to
	wild map[int]bool // those that it is given functions for of which nothing is known
}

// call is a call, or the begin of a goroutine.
type call struct {
	at      ssa.Instruction
	pos     token.Pos
	callees []*function
	spawns  bool // by another goroutine
	field   *types.Var
	iface   *types.Func // of an interface
	agreed  bool        // what the contract says about it counts: who is called has to keep it
	atomic  bool        // agreed, and the contract says that it may not sleep
	param   int         // calls this parameter of the function, counted from 1; 0: something else
	passes  []passed    // functions that it passes
	own     int         // callees[:own] are called here; the others by those that they are passed to
	through []*function // callees of a parameter: who passes them has them among his callees
	static  *types.Func
}

// here are the functions that are called at this place.
func (c *call) here() []*function {
	if c.through != nil {
		return c.through
	}
	return c.callees[:c.own]
}

// passed is a function as an argument.
type passed struct {
	param int       // of the callee
	f     *function // nil: it is not known which
	from  int       // it is this parameter of the caller's, counted from 1; 0: it is none
}

// op is what may sleep by itself, or copies.
type op struct {
	at   ssa.Instruction
	pos  token.Pos
	kind opKind
	what string
}

type opKind uint8

const (
	opSleep opKind = iota
	opCopy
)

// Load reads the packages that patterns name, as go list does in a folder, and all of them that those import. It returns a Program for
// each command, since what implements an interface in one has nothing to do with another, and one for the packages that none of
// them imports, if there are any.
func Load(dir string, patterns ...string) ([]*Program, error) { return load(dir, false, patterns...) }

// load does. With each, it makes a Program for each of the packages that no command imports.
func load(dir string, each bool, patterns ...string) ([]*Program, error) {
	fset := token.NewFileSet()
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedExportFile | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedModule,
		Dir: dir, Fset: fset,
	}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	var bad []error
	packages.Visit(pkgs, nil, func(p *packages.Package) {
		for _, e := range p.Errors {
			bad = append(bad, e)
		}
	})
	if len(bad) > 0 {
		return nil, fmt.Errorf("load packages: %w", errors.Join(bad...))
	}
	prog := ssa.NewProgram(fset, ssa.InstantiateGenerics)
	packages.Visit(pkgs, nil, func(k *packages.Package) {
		switch {
		case k.Types == nil:
		case ours(k):
			prog.CreatePackage(k.Types, k.Syntax, k.TypesInfo, true)
		default:
			prog.CreatePackage(k.Types, nil, nil, true)
		}
	})
	prog.Build()
	all := functions(prog)

	var groups [][]*packages.Package
	imported := map[*packages.Package]bool{}
	for _, k := range pkgs {
		if k.Name == "main" {
			groups = append(groups, []*packages.Package{k})
			packages.Visit([]*packages.Package{k}, nil, func(i *packages.Package) { imported[i] = true })
		}
	}
	var rest []*packages.Package
	for _, k := range pkgs {
		if !imported[k] {
			rest = append(rest, k)
		}
	}
	if len(rest) > 0 {
		if each {
			for _, k := range rest {
				groups = append(groups, []*packages.Package{k})
			}
		} else {
			groups = append(groups, rest)
		}
	}
	var programs []*Program
	for _, g := range groups {
		p := newProgram(fset)
		p.prog, p.Name = prog, g[0].PkgPath
		packages.Visit(g, nil, func(k *packages.Package) {
			if ours(k) {
				p.own[k.PkgPath] = true
				for _, name := range k.CompiledGoFiles {
					p.main[name] = k.Module.Main
				}
				p.readDirectives(k.Syntax, k.TypesInfo)
			}
		})
		p.link(all)
		programs = append(programs, p)
	}
	return programs, nil
}

// functions returns all functions, also methods that nobody calls of types that are not exported: whoever has a value may do so.
func functions(prog *ssa.Program) map[*ssa.Function]bool {
	all := ssautil.AllFunctions(prog)
	var add func(f *ssa.Function)
	add = func(f *ssa.Function) {
		if f == nil || all[f] || f.TypeParams().Len() > 0 && len(f.TypeArgs()) == 0 {
			return
		}
		all[f] = true
		for _, g := range f.AnonFuncs {
			add(g)
		}
	}
	for _, k := range prog.AllPackages() {
		for _, m := range k.Members {
			t, ok := m.(*ssa.Type)
			if !ok {
				continue
			}
			n, ok := t.Type().(*types.Named)
			if !ok || n.TypeParams().Len() > 0 {
				continue
			}
			for i := range n.NumMethods() {
				add(prog.FuncValue(n.Method(i)))
			}
		}
	}
	return all
}

// ours reports whether a package is one of the module's, or of this one.
func ours(k *packages.Package) bool {
	return k.Module != nil && (k.Module.Main || k.Module.Path == module) && len(k.Syntax) > 0
}

func newProgram(fset *token.FileSet) *Program {
	return &Program{
		Fset: fset, own: map[string]bool{}, main: map[string]bool{}, escapes: escapes{}, funcs: map[*ssa.Function]*function{}, locks: map[string]*lock{},
		nosleepFields: map[*types.Var]bool{}, programLocks: map[*types.Var]*Escape{}, values: map[*types.Package][]*ssa.Function{}, nosleepLines: map[line]bool{}, decls: map[types.Object][]directive{},
		unresolved: map[token.Pos]string{},
	}
}

// readDirectives takes the directives of a package's files.
func (p *Program) readDirectives(files []*ast.File, info *types.Info) {
	for _, f := range files {
		ofDecl := map[token.Pos]bool{}
		take := func(g *ast.CommentGroup, obj types.Object) {
			for _, d := range directives(g) {
				ofDecl[d.pos] = true
				if obj != nil {
					p.decls[obj] = append(p.decls[obj], d)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				take(n.Doc, info.Defs[n.Name])
			case *ast.Field:
				names := n.Names
				if len(names) == 0 { // embedded
					if id := embeddedName(n.Type); id != nil {
						names = []*ast.Ident{id}
					}
				}
				for _, name := range names {
					take(n.Doc, info.Defs[name])
					take(n.Comment, info.Defs[name])
				}
			}
			return true
		})
		for _, g := range f.Comments {
			for _, d := range directives(g) {
				switch d.verb {
				case "allow":
					if !ofDecl[d.pos] {
						p.all = append(p.all, p.escapes.add(p.Fset, d, g.End()))
					}
				case "nosleep":
					if !ofDecl[d.pos] { // of a function literal
						at := p.Fset.Position(d.pos)
						p.nosleepLines[line{at.Filename, at.Line}] = true
						p.nosleepLines[line{at.Filename, at.Line + 1}] = true
					}
				case "held":
					if !ofDecl[d.pos] {
						p.problem(d.pos, "held belongs into the comment of a function")
					}
				case "program":
					if !ofDecl[d.pos] {
						p.problem(d.pos, "program belongs to the field that is a lock")
					}
				case "receives", "closes", "parses":
					if !ofDecl[d.pos] {
						p.problem(d.pos, d.verb+" belongs into the comment of a function")
					}
				default:
					p.problem(d.pos, "no such directive: "+prefix+d.verb)
				}
			}
		}
	}
	for obj, list := range p.decls {
		for _, d := range list {
			v, ok := obj.(*types.Var)
			switch {
			case !ok && d.verb == "program":
				p.problem(d.pos, "program belongs to the field that is a lock")
			case ok && d.verb == "nosleep":
				p.nosleepFields[v] = true
			case ok && d.verb == "program":
				x := p.programLocks[v]
				if x == nil {
					x = &Escape{Check: program, Reason: d.rest, Pos: d.pos}
					p.all = append(p.all, x)
				}
				p.programLocks[v] = x
			}
		}
	}
}

// embeddedName is the identifier that names an embedded field, nil if there is none.
func embeddedName(t ast.Expr) *ast.Ident {
	switch t := t.(type) {
	case *ast.Ident:
		return t
	case *ast.StarExpr:
		return embeddedName(t.X)
	case *ast.SelectorExpr:
		return t.Sel
	case *ast.IndexExpr:
		return embeddedName(t.X)
	}
	return nil
}

func (p *Program) problem(pos token.Pos, text string) {
	p.problems = append(p.problems, Report{Check: "directive", Pos: pos, Text: text})
}

// link finds what calls what.
func (p *Program) link(every map[*ssa.Function]bool) {
	all := map[*ssa.Function]bool{}
	for f := range every {
		if pkg := pkgOf(f); pkg == nil || p.own[pkg.Path()] {
			all[f] = true
		}
	}
	g := vta.CallGraph(all, nil)
	for f := range all {
		if f.Blocks == nil || !p.ours(pkgOf(f)) {
			continue
		}
		p.funcs[f] = &function{Function: f, allowed: map[string]*Escape{}, runs: map[int]bool{}, wild: map[int]bool{}}
	}
	for _, f := range p.funcs {
		p.order = append(p.order, f)
	}
	slices.SortFunc(p.order, func(a, b *function) int {
		if a.Pos() != b.Pos() {
			return int(a.Pos() - b.Pos())
		}
		return strings.Compare(a.String(), b.String())
	})
	for _, f := range p.order {
		p.annotate(f)
	}
	for _, f := range p.order {
		known := map[ssa.CallInstruction][]*ssa.Function{}
		if n := g.Nodes[f.Function]; n != nil {
			for _, e := range n.Out {
				known[e.Site] = append(known[e.Site], e.Callee.Func)
			}
		}
		p.scan(f, known)
	}
	p.passFunctions()
	p.flowLocks()
	p.markPrograms()
}

// passFunctions finds who calls the functions that are passed as arguments: as if the caller called them. So that a function
// which takes functions does not lead from each of its callers to what the others have passed.
func (p *Program) passFunctions() {
	for changed := true; changed; {
		changed = false
		for _, f := range p.order {
			for _, c := range f.calls {
				if c.spawns {
					continue
				}
				if c.param > 0 && !f.runs[c.param] {
					f.runs[c.param], changed = true, true
				}
				for _, a := range c.passes {
					for _, g := range c.callees {
						switch {
						case !g.runs[a.param]:
						case a.from > 0 && !f.runs[a.from]:
							f.runs[a.from], changed = true, true
						case a.from == 0 && a.f == nil && !g.wild[a.param]:
							g.wild[a.param], changed = true, true
						}
						if a.from > 0 && f.wild[a.from] && !g.wild[a.param] {
							g.wild[a.param], changed = true, true
						}
					}
				}
			}
			// A closure calls a parameter of the function around it.
			if f.Parent() != nil {
				if outer := p.funcs[f.Parent()]; outer != nil && !outer.onlySpawns(f) {
					for _, c := range f.calls {
						if c.param < 0 && !c.spawns && !outer.runs[-c.param] {
							outer.runs[-c.param], changed = true, true
						}
					}
				}
			}
		}
	}
	for _, f := range p.order {
		for _, c := range f.calls {
			n := len(c.callees)
			c.own = n
			for _, a := range c.passes {
				for _, g := range c.callees[:n] {
					if g.runs[a.param] && a.f != nil && !slices.Contains(c.callees, a.f) {
						c.callees = append(c.callees, a.f)
					}
				}
			}
			switch outer := p.funcs[f.Parent()]; {
			case c.spawns, c.param < 0 && (outer == nil || outer.onlySpawns(f)): // nobody calls it here who has passed it
			case c.param > 0 && !f.wild[c.param], c.param < 0 && !outer.wild[-c.param]:
				c.through, c.callees, c.own = c.callees, nil, 0
			}
		}
	}
}

// onlySpawns reports whether a closure of the function is run by goroutines of their own, and by nobody else.
func (f *function) onlySpawns(g *function) bool {
	is := false
	for _, c := range f.calls {
		if slices.Contains(c.callees, g) {
			if !c.spawns {
				return false
			}
			is = true
		}
	}
	return is
}

// parameterOf returns which parameter a value is, counted from 1, or with a minus sign which one of the function around; 0: none.
func parameterOf(f *ssa.Function, v ssa.Value) int {
	switch v := v.(type) {
	case *ssa.Parameter:
		return slices.Index(f.Params, v) + 1
	case *ssa.FreeVar:
		b := boundTo(v)
		if k, ok := b.(*ssa.Parameter); ok && f.Parent() != nil {
			return -(slices.Index(f.Parent().Params, k) + 1)
		}
		if a, ok := b.(*ssa.Alloc); ok { // a parameter that a closure has captured
			return -spilled(f.Parent(), a)
		}
	case *ssa.UnOp:
		if v.Op == token.MUL {
			switch x := v.X.(type) {
			case *ssa.FreeVar:
				return parameterOf(f, x)
			case *ssa.Alloc:
				return spilled(f, x)
			}
		}
	case *ssa.ChangeType:
		return parameterOf(f, v.X)
	}
	return 0
}

// spilled returns the parameter that is kept in a variable, and nothing else is; 0: none.
func spilled(f *ssa.Function, a *ssa.Alloc) int {
	n := 0
	for _, r := range *a.Referrers() {
		if s, ok := r.(*ssa.Store); ok && s.Addr == a {
			k, ok := s.Val.(*ssa.Parameter)
			if !ok || n != 0 {
				return 0
			}
			n = slices.Index(f.Params, k) + 1
		}
	}
	return n
}

// pass notes the functions among the arguments of a call.
func (p *Program) pass(f *function, c *call, common *ssa.CallCommon) {
	first := 1
	if common.IsInvoke() {
		first = 2 // after the receiver
	}
	for i, a := range common.Args {
		if _, ok := a.Type().Underlying().(*types.Signature); !ok {
			continue
		}
		k := passed{param: i + first}
		if fn := functionOf(a); fn != nil {
			if k.f = p.funcs[fn]; k.f == nil {
				continue
			}
		} else if n := parameterOf(f.Function, a); n > 0 {
			k.from = n
		} else if cst, ok := a.(*ssa.Const); ok && cst.IsNil() {
			continue
		}
		c.passes = append(c.passes, k)
	}
}

// pkgOf returns the package of a function, of what it was made from if it is synthetic; nil: it has none.
func pkgOf(f *ssa.Function) *types.Package {
	for f.Parent() != nil {
		f = f.Parent()
	}
	if o := f.Origin(); o != nil {
		f = o
	}
	if f.Pkg != nil {
		return f.Pkg.Pkg
	}
	if o := f.Object(); o != nil {
		return o.Pkg()
	}
	return nil
}

// annotate takes the directives of a function.
func (p *Program) annotate(f *function) {
	o := f.Object()
	if o == nil {
		if f.Origin() != nil {
			o = f.Origin().Object()
		}
	}
	if fn, ok := o.(*types.Func); ok && f.Parent() == nil {
		for _, d := range p.decls[fn.Origin()] {
			switch d.verb {
			case "nosleep":
				f.nosleep = true
			case "held":
				p.parseHeld(f, d)
			case "allow":
				check, reason, _ := strings.Cut(d.rest, " ")
				x := p.escapeOf(d, check, reason)
				f.allowed[check] = x
			}
		}
	}
	at := p.Fset.Position(f.Pos())
	if f.Parent() != nil && p.nosleepLines[line{at.Filename, at.Line}] {
		f.nosleep = true
	}
}

// escapeOf is the escape of a function, once for all its instances.
func (p *Program) escapeOf(d directive, check, reason string) *Escape {
	for _, x := range p.all {
		if x.Pos == d.pos {
			return x
		}
	}
	x := &Escape{Check: check, Reason: strings.TrimSpace(reason), Pos: d.pos}
	p.all = append(p.all, x)
	return x
}

// heldPath says of which value a lock is that a function is called with: a parameter, and the way from there.
type heldPath struct {
	param  int
	fields string
}

// parseHeld reads the locks of a held directive: a name of the receiver or a parameter, and fields.
func (p *Program) parseHeld(f *function, d directive) {
	for _, expr := range strings.Split(d.rest, ",") {
		names := strings.Split(strings.TrimSpace(expr), ".")
		var t types.Type
		param := 0
		for i, v := range f.Params {
			if v.Name() == names[0] {
				t, param = v.Type(), i
			}
		}
		if k := pkgOf(f.Function); t == nil && len(names) == 1 && k != nil {
			if v, ok := k.Scope().Lookup(names[0]).(*types.Var); ok && isMutex(deref(v.Type())) {
				f.held = append(f.held, p.lockNamed(v.Pkg().Path()+"."+v.Name(), typeName(v)))
				continue
			}
		}
		if t == nil && f.Signature.Recv() != nil { // a field of the receiver
			t, names = f.Signature.Recv().Type(), append([]string{""}, names...)
		}
		if t == nil {
			p.problem(d.pos, fmt.Sprintf("held %s: %s is no parameter of %s", expr, names[0], f.Name()))
			return
		}
		var l *lock
		path := heldPath{param: param}
		for _, name := range names[1:] {
			obj, index, _ := types.LookupFieldOrMethod(t, true, pkgOf(f.Function), name)
			v, ok := obj.(*types.Var)
			if !ok {
				p.problem(d.pos, fmt.Sprintf("held %s: there is no field %s", expr, name))
				return
			}
			l = p.fieldLock(ownerOf(t, index), v)
			t = v.Type()
			for _, i := range index {
				path.fields += fmt.Sprintf(".%d", i)
			}
		}
		if l == nil || !isMutex(deref(t)) {
			p.problem(d.pos, fmt.Sprintf("held %s: that is no lock", expr))
			return
		}
		if !slices.Contains(f.held, l) {
			f.held = append(f.held, l)
			if f.heldBy == nil {
				f.heldBy = map[*lock]heldPath{}
			}
			f.heldBy[l] = path
		}
	}
}

func deref(t types.Type) types.Type {
	if ptr, ok := t.Underlying().(*types.Pointer); ok {
		return ptr.Elem()
	}
	return t
}

// ownerOf returns the struct type that has the field which an index path leads to.
func ownerOf(t types.Type, index []int) types.Type {
	t = deref(t)
	for _, i := range index[:len(index)-1] {
		t = deref(t.Underlying().(*types.Struct).Field(i).Type())
	}
	return t
}

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

// candidates are the functions that a value may be whose way is not known, since it led through another package, such as
// sync/atomic: those of the same type whose address is taken in the same package.
func (p *Program) candidates(f *function, common *ssa.CallCommon) (list []*ssa.Function) {
	if _, ok := common.Value.(*ssa.Parameter); ok {
		return nil // it is for those who call
	}
	pkg := pkgOf(f.Function)
	for _, fn := range p.taken(pkg) {
		if types.Identical(fn.Signature, common.Signature()) {
			list = append(list, fn)
		}
	}
	return list
}

// taken are the functions that are used as values in a package: given to another package, or put where pointers lead.
func (p *Program) taken(pkg *types.Package) []*ssa.Function {
	if pkg == nil {
		return nil
	}
	if list, ok := p.values[pkg]; ok {
		return list
	}
	list := []*ssa.Function{}
	for _, g := range p.order {
		if pkgOf(g.Function) != pkg {
			continue
		}
		for _, b := range g.Blocks {
			for _, at := range b.Instrs {
				switch at := at.(type) {
				case *ssa.Store:
					if a, ok := at.Addr.(*ssa.Alloc); !ok || leaks(a) {
						list = appendFunction(list, at.Val)
					}
				case *ssa.MakeInterface:
					list = appendFunction(list, at.X)
				}
			}
		}
	}
	p.values[pkg] = list
	return list
}

// poolNew returns the functions that a pool makes things with: those of the field or variable that it is, or where that is not known,
// of all pools of the package.
func (p *Program) poolNew(f *function, pool ssa.Value) (list []*ssa.Function) {
	var all []*ssa.Function
	pkg := pkgOf(f.Function)
	if pkg == nil {
		return nil
	}
	where := placeOf(pool)
	initial := p.prog.Package(pkg).Func("init")
	look := func(g *ssa.Function) {
		for _, b := range g.Blocks {
			for _, at := range b.Instrs {
				s, ok := at.(*ssa.Store)
				if !ok {
					continue
				}
				a, ok := s.Addr.(*ssa.FieldAddr)
				if !ok || !isNamed(a.X.Type(), "sync.Pool") {
					continue
				}
				all = appendFunction(all, s.Val)
				if w := placeOf(a.X); w != nil && w == where {
					list = appendFunction(list, s.Val)
				}
			}
		}
	}
	if initial != nil {
		look(initial)
	}
	for _, g := range p.order {
		if pkgOf(g.Function) == pkg && g.Function != initial {
			look(g.Function)
		}
	}
	if list == nil {
		return all
	}
	return list
}

// placeOf is the variable or field that a pointer leads to, nil if that is not known.
func placeOf(v ssa.Value) any {
	switch v := v.(type) {
	case *ssa.Global:
		return v
	case *ssa.FieldAddr:
		return fieldVar(v.X.Type(), v.Field)
	case *ssa.Alloc: // of a literal, which goes to one place
		for _, r := range *v.Referrers() {
			switch r := r.(type) {
			case *ssa.UnOp:
				for _, s := range *r.Referrers() {
					if s, ok := s.(*ssa.Store); ok {
						return placeOf(s.Addr)
					}
				}
			case *ssa.Store:
				if r.Val == ssa.Value(v) {
					return placeOf(r.Addr)
				}
			}
		}
	case *ssa.UnOp:
		if v.Op == token.MUL {
			return placeOf(v.X)
		}
	}
	return nil
}

// leaks reports whether others get to know where a variable is.
func leaks(a *ssa.Alloc) bool {
	for _, r := range *a.Referrers() {
		switch r := r.(type) {
		case *ssa.Store:
			if r.Val == ssa.Value(a) {
				return true
			}
		case *ssa.UnOp, *ssa.DebugRef, *ssa.MakeClosure:
		default:
			return true
		}
	}
	return false
}

func appendFunction(list []*ssa.Function, v ssa.Value) []*ssa.Function {
	fn := functionOf(v)
	if fn == nil || slices.Contains(list, fn) {
		return list
	}
	return append(list, fn)
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

func (p *Program) addCallee(c *call, fn *ssa.Function) {
	if g := p.funcs[fn]; g != nil && !slices.Contains(c.callees, g) {
		c.callees = append(c.callees, g)
	}
}

// inMemory reports whether a writer is a buffer.
func inMemory(w ssa.Value) bool {
	m, ok := w.(*ssa.MakeInterface)
	return ok && (isNamed(m.X.Type(), "strings.Builder") || isNamed(m.X.Type(), "bytes.Buffer") || isNamed(m.X.Type(), "text/tabwriter.Writer"))
}

func objectOf(fn *ssa.Function) types.Object {
	if o := fn.Origin(); o != nil {
		fn = o
	}
	return fn.Object()
}

// functionOf returns the function that a value is, nil if that is not known here.
func functionOf(v ssa.Value) *ssa.Function {
	switch v := v.(type) {
	case *ssa.Function:
		return v
	case *ssa.MakeClosure:
		return v.Fn.(*ssa.Function)
	case *ssa.ChangeType:
		return functionOf(v.X)
	case *ssa.MakeInterface:
		return functionOf(v.X)
	}
	return nil
}

// fieldOf returns the field that a value was read from, nil if it was none.
func fieldOf(v ssa.Value) *types.Var {
	switch v := v.(type) {
	case *ssa.UnOp:
		if a, ok := v.X.(*ssa.FieldAddr); ok && v.Op == token.MUL {
			return fieldVar(a.X.Type(), a.Field)
		}
	case *ssa.Field:
		return fieldVar(v.X.Type(), v.Field)
	}
	return nil
}

func fieldVar(t types.Type, i int) *types.Var {
	if s, ok := deref(t).Underlying().(*types.Struct); ok {
		return s.Field(i).Origin()
	}
	return nil
}

// isNamed reports whether a type is the one of a name, "path.Name".
func isNamed(t types.Type, name string) bool {
	n, ok := types.Unalias(deref(t)).(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path()+"."+n.Obj().Name() == name
}

// short is the name of a function as it is read in a report.
func short(f *types.Func) string {
	name := f.FullName()
	pkg := ""
	if f.Pkg() != nil {
		pkg = f.Pkg().Path()
	}
	return strings.ReplaceAll(name, pkg+".", f.Pkg().Name()+".")
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
