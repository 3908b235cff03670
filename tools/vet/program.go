package vet

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// Program is a set of packages with their calls among each other. Only the types of other packages are known.
type Program struct {
	Fset *token.FileSet
	Name string // name of its command, or of its first package

	prog        *ssa.Program
	unit        *analysis.Pass // a single package under check; nil: a whole program
	sleep       *effect        // set by Check
	copies      *effect
	traces      *tracer
	handlers    map[*types.Var]string // see isHandler
	completions []completion
	own         map[string]bool // paths of the checked packages
	main        map[string]bool // files of the module itself
	escapes     escapes
	all         []*Escape
	funcs       map[*ssa.Function]*function
	order       []*function // by position

	nosleepFields map[*types.Var]bool
	nosleepLines  map[line]bool
	programLocks  map[*types.Var]*Escape
	values        map[*types.Package][]*ssa.Function // see taken
	decls         map[types.Object][]directive
	locks         map[string]*lock
	split         split
	unresolved    map[token.Pos]string // calls with unknown callees
	problems      []Report             // problems of directives
}

// function is a function with a body.
type function struct {
	*ssa.Function
	calls   []*call
	ops     []op
	held    []*lock // locks in its held directive
	heldBy  map[*lock]heldPath
	nosleep bool // the function has a nosleep directive
	allowed map[string]*Escape

	locks    lockFlow
	pointers map[ssa.Value]*lock // see lockAt

	needs map[int]bool  // parameters on which locks depend: see special.go
	binds map[int]place // targets of these parameters in this copy
	outer *function     // for a copy of a closure: the copy that contains it
	base  *function     // origin of the copy

	runs map[int]bool // parameters, counted from 1, that it calls, directly or through functions that it passes them to
	wild map[int]bool // parameters that receive unknown functions
}

// call is a call, or the start of a goroutine.
type call struct {
	at      ssa.Instruction
	pos     token.Pos
	callees []*function
	spawns  bool // the callee runs on another goroutine
	field   *types.Var
	iface   *types.Func // method of an interface
	agreed  bool        // the contract for the callee applies, and the callee must keep it
	done    bool        // the function of a work request: see completion.go
	atomic  bool        // agreed, and the contract forbids the callee to sleep
	param   int         // calls this parameter of the function, counted from 1; 0: none
	passes  []passed    // functions that it passes
	own     int         // callees[:own] are called here; the functions that receive the others call them
	through []*function // callees of a parameter; the functions that pass them also have them as callees
	static  *types.Func
	library []*types.Func // functions of other packages, by an interface or a function value
	stream  *types.Func   // function of another package that reads or writes a stream: see stream.go
}

// here returns the functions that are called at this position.
func (c *call) here() []*function {
	if c.through != nil {
		return c.through
	}
	return c.callees[:c.own]
}

// passed is a function passed as an argument.
type passed struct {
	param int       // parameter of the callee
	f     *function // nil: unknown
	from  int       // number of the caller's parameter that is passed on, counted from 1; 0: none
}

// op is an operation that may sleep by itself, or that copies.
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

// Load reads the packages named by patterns, relative to a folder as with go list, and all of their imports from the
// module. It returns a Program for each command, because the implementations of an interface in one command are
// irrelevant for another. If no command imports some packages, they form one more Program.
func Load(dir string, patterns ...string) ([]*Program, error) { return load(dir, false, patterns...) }

// load implements Load. If each is set, it makes a separate Program for each package that no command imports.
func load(dir string, each bool, patterns ...string) ([]*Program, error) {
	fset := token.NewFileSet()
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo |
			packages.NeedModule,
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

// functions returns all functions. They include uncalled methods of unexported types, because any holder of a value may
// call these.
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

// ours reports whether a package belongs to the module, or is the checked package.
func ours(k *packages.Package) bool {
	return k.Module != nil && (k.Module.Main || k.Module.Path == module) && len(k.Syntax) > 0
}

func newProgram(fset *token.FileSet) *Program {
	return &Program{
		Fset: fset, own: map[string]bool{}, main: map[string]bool{}, escapes: escapes{},
		funcs: map[*ssa.Function]*function{}, locks: map[string]*lock{},
		nosleepFields: map[*types.Var]bool{}, programLocks: map[*types.Var]*Escape{},
		values: map[*types.Package][]*ssa.Function{}, nosleepLines: map[line]bool{},
		decls: map[types.Object][]directive{}, unresolved: map[token.Pos]string{},
	}
}

// Escapes returns the escapes of the program.
func (p *Program) Escapes() []*Escape { return p.all }

// Unresolved returns the calls with unknown callees.
func (p *Program) Unresolved() map[token.Pos]string { return p.unresolved }

// Format prints a report with its path.
func (p *Program) Format(r *Report, long bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", p.Place(r.Pos), r.Check, r.Text)
	if long {
		for _, s := range r.Path {
			if s.Pos.IsValid() { // otherwise a wrapper made by the compiler
				fmt.Fprintf(&b, "\n\t%s: %s %s", p.Place(s.Pos), s.In, s.What)
			}
		}
	}
	return b.String()
}

func (p *Program) relative(file string) string {
	if wd, err := filepath.Abs("."); err == nil {
		if rel, err := filepath.Rel(wd, file); err == nil && !strings.HasPrefix(rel, "../..") {
			return rel
		}
	}
	return file
}

// Place is a position as shown in reports: the file, relative to the working folder, and the line.
func (p *Program) Place(pos token.Pos) string {
	at := p.Fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.relative(at.Filename), at.Line)
}
