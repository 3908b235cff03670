package vet

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// Program is a set of packages with the calls between their functions. Only the types of other packages are
// loaded.
type Program struct {
	callGraph
	directives
	Name string // the name of its command, or of its first package

	contract contract
	objects  objectTable
	locks    lockTable
	guards   guardChecker

	sleep       *effect // set by Check
	copies      *effect
	completions []completionFunc
	main        map[string]bool // the files of the module itself

	trustSpace bool                    // see Options
	outside    map[*types.Package]bool // results of isOutsideConsumer
}

// callGraph holds the functions of the checked packages and the calls between them.
type callGraph struct {
	Fset *token.FileSet

	prog       *ssa.Program
	unit       *analysis.Pass  // the package under check, or nil if the program is a whole program
	own        map[string]bool // the paths of the checked packages
	funcs      map[*ssa.Function]*function
	order      []*function // the functions, sorted by position
	traces     *valueTracer
	unresolved map[token.Pos]string // the calls with unknown callees
}

// function is a function that has a body.
type function struct {
	*ssa.Function
	calls   []*call
	ops     []operation
	held    []*lock // the locks in the held directive
	heldBy  map[*lock]heldPath
	nosleep bool // whether the function has a nosleep directive
	allowed map[string]*Escape

	locks    lockFlow
	pointers map[ssa.Value]*lock // see lockAt

	needs map[int]bool     // the parameters on which locks depend (special.go)
	binds map[int]location // the targets of these parameters in a copy
	outer *function        // for a copy of a closure: the copy of the enclosing function
	base  *function        // for a copy: the original function

	// The parameters, counted from 1, that the function calls directly or through the functions to which it passes
	// them.
	runs map[int]bool
	wild map[int]bool // the parameters, counted from 1, that receive unknown functions
}

// call is a call, or the start of a goroutine.
type call struct {
	at      ssa.Instruction
	pos     token.Pos
	callees []*function
	spawns  bool // whether the callee runs on another goroutine
	field   *types.Var
	iface   *types.Func  // the called method of an interface, or nil
	agreed  bool         // whether the contract applies to the callee
	done    bool         // whether the callee is the function of a work request (completion.go)
	atomic  bool         // whether the call is agreed and the contract does not permit the callee to sleep
	param   int          // the parameter of the function that is called, counted from 1, or 0
	passes  []passedFunc // the functions among the arguments
	// callees[:own] are called by this call; the remaining callees are called by the functions to which they are
	// passed.
	own     int
	through []*function // the callees of a parameter; they are also callees of the functions that pass them
	static  *types.Func
	library []*types.Func // functions of other packages that are called through an interface or a function value
	stream  *types.Func   // the function of another package that reads or writes a stream (stream.go)
}

// ownCallees returns the functions that the call itself calls.
func (c *call) ownCallees() []*function {
	if c.through != nil {
		return c.through
	}
	return c.callees[:c.own]
}

// passedFunc is a function that is an argument of a call.
type passedFunc struct {
	param int       // the parameter of the callee
	f     *function // nil means an unknown function
	from  int       // the index of the caller's parameter that is passed on, from 1; 0: the argument is no parameter
}

// operation is an operation that copies, or that may sleep by itself.
type operation struct {
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

// Options are options of Load.
type Options struct {
	// Tests includes the test files of the packages. Each test binary is one more command.
	Tests bool
	// TrustSpace assumes that the channels of consumers have space for each send if they have a capacity.
	TrustSpace bool
}

// Load reads the packages that match patterns, relative to a folder as with go list, and all packages of the module
// that they import. Load returns a Program for each command, because implementations of an interface in one command
// are irrelevant for other commands. The packages that no command imports form another Program.
func Load(dir string, o Options, patterns ...string) ([]*Program, error) {
	fset := token.NewFileSet()
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo |
			packages.NeedModule,
		Dir: dir, Fset: fset, Tests: o.Tests,
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
		case isOwnPackage(k):
			prog.CreatePackage(k.Types, k.Syntax, k.TypesInfo, true)
		default:
			prog.CreatePackage(k.Types, nil, nil, true)
		}
	})
	prog.Build()
	all := allFunctions(prog)

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
		groups = append(groups, rest)
	}
	var programs []*Program
	for _, g := range groups {
		p := newProgram(fset)
		p.prog, p.Name, p.trustSpace = prog, g[0].PkgPath, o.TrustSpace
		packages.Visit(g, nil, func(k *packages.Package) {
			if isOwnPackage(k) {
				p.own[k.PkgPath] = true
				for _, name := range k.CompiledGoFiles {
					p.main[name] = k.Module.Main
				}
				p.readDirectives(k.Syntax, k.TypesInfo)
			}
		})
		p.linkCalls(all)
		programs = append(programs, p)
	}
	return programs, nil
}

// allFunctions returns all functions. The functions include uncalled methods of unexported types, because any holder
// of a value may call such a method.
func allFunctions(prog *ssa.Program) map[*ssa.Function]bool {
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
	for f := range maps.Clone(all) {
		if o := f.Origin(); o != nil && o != f {
			delete(all, o) // its instances are analysed
		}
		for v := range f.Signature.Results().Variables() {
			for _, m := range instanceMethods(prog, v.Type()) {
				add(m)
			}
		}
	}
	return all
}

// instanceMethods returns the methods of an instance of a generic type. The holder of a function's result may call
// them.
func instanceMethods(prog *ssa.Program, t types.Type) (list []*ssa.Function) {
	n, ok := types.Unalias(deref(t)).(*types.Named)
	if !ok || n.TypeArgs().Len() == 0 || types.IsInterface(n) {
		return nil
	}
	for a := range n.TypeArgs().Types() {
		if _, ok := types.Unalias(a).(*types.TypeParam); ok {
			return nil
		}
	}
	set := prog.MethodSets.MethodSet(types.NewPointer(n))
	for i := range set.Len() {
		list = append(list, prog.MethodValue(set.At(i)))
	}
	return list
}

// isOwnPackage reports whether a package belongs to the module, or is the checked package.
func isOwnPackage(k *packages.Package) bool {
	return k.Module != nil && (k.Module.Main || k.Module.Path == module) && len(k.Syntax) > 0
}

func newProgram(fset *token.FileSet) *Program {
	p := &Program{
		callGraph: callGraph{
			Fset: fset, own: map[string]bool{}, funcs: map[*ssa.Function]*function{}, unresolved: map[token.Pos]string{},
		},
		main: map[string]bool{}, outside: map[*types.Package]bool{},
	}
	g, d := &p.callGraph, &p.directives
	p.directives = newDirectives(g)
	p.contract = contract{graph: g, directives: d}
	p.objects.graph = g
	p.locks = newLockTable(g, d, &p.objects)
	p.guards = guardChecker{graph: g, directives: d}
	return p
}

// Escapes returns the escapes of the program.
func (ds *directives) Escapes() []*Escape { return ds.all }

// Unresolved returns the calls with unknown callees.
func (p *Program) Unresolved() map[token.Pos]string { return p.unresolved }

// Format formats a report with its call path.
func (p *Program) Format(r *Report, long bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", p.FormatPos(r.Pos), r.Check, r.Text)
	if long {
		for _, s := range r.Path {
			if s.Pos.IsValid() { // a position is invalid in a wrapper that the compiler generates
				fmt.Fprintf(&b, "\n\t%s: %s %s", p.FormatPos(s.Pos), s.In, s.What)
			}
		}
	}
	return b.String()
}

func (cg *callGraph) relativePath(file string) string {
	if wd, err := filepath.Abs("."); err == nil {
		if rel, err := filepath.Rel(wd, file); err == nil && !strings.HasPrefix(rel, "../..") {
			return rel
		}
	}
	return file
}

// FormatPos formats a position for reports: the file, relative to the working folder, and the line.
func (cg *callGraph) FormatPos(pos token.Pos) string {
	at := cg.Fset.Position(pos)
	return fmt.Sprintf("%s:%d", cg.relativePath(at.Filename), at.Line)
}
