package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Analyzer applies the checks to one package, for go vet -vettool. Analyzer receives only facts about the functions
// of other packages: which functions may sleep or copy. Only Load and Check analyse the whole program. They find
// the functions behind interfaces and fields of other packages, locks held by other packages, and unused escapes.
var Analyzer = &analysis.Analyzer{
	Name:      "verbena",
	Doc:       "check the locking contract of verbena/ib: see docs/verbenavet.md",
	URL:       "https://pkg.go.dev/verbena/tools/verbenavet",
	Run:       runUnit,
	FactTypes: []analysis.Fact{(*maySleep)(nil), (*mayCopy)(nil)},
}

// maySleep is the fact that a function may sleep, with the reason.
type maySleep struct{ Why string }

// mayCopy is the fact that a function copies from or to the memory of another process.
type mayCopy struct{ Why string }

func (*maySleep) AFact() {}
func (*mayCopy) AFact()  {}

func (f *maySleep) String() string { return "may sleep: " + f.Why }
func (f *mayCopy) String() string  { return "copies: " + f.Why }

func runUnit(pass *analysis.Pass) (any, error) {
	if pass.Module == nil || pass.Module.Path == "" || pass.Module.Path == "std" {
		return nil, nil // the tables of contract.go cover this package
	}
	prog := ssa.NewProgram(pass.Fset, ssa.InstantiateGenerics)
	created := map[*types.Package]bool{}
	var create func(k *types.Package)
	create = func(k *types.Package) {
		if created[k] {
			return
		}
		created[k] = true
		if k != pass.Pkg {
			prog.CreatePackage(k, nil, nil, true)
		}
		for _, i := range k.Imports() {
			create(i)
		}
	}
	create(pass.Pkg)
	prog.CreatePackage(pass.Pkg, pass.Files, pass.TypesInfo, true).Build()
	isTest := func(pos token.Pos) bool { return strings.HasSuffix(pass.Fset.Position(pos).Filename, "_test.go") }

	p := newProgram(pass.Fset)
	p.prog, p.Name, p.unit = prog, pass.Pkg.Path(), pass
	p.own[pass.Pkg.Path()] = true
	p.readDirectives(slices.DeleteFunc(slices.Clone(pass.Files), func(f *ast.File) bool {
		return isTest(f.Package)
	}), pass.TypesInfo)
	all := allFunctions(prog)
	// Functions of tests may sleep anywhere.
	maps.DeleteFunc(all, func(f *ssa.Function, _ bool) bool { return isTest(f.Pos()) })
	p.linkCalls(all)
	for _, r := range p.Check() {
		d := analysis.Diagnostic{Pos: r.Pos, Category: r.Check, Message: r.Check + ": " + r.Text}
		for _, s := range r.Path {
			if s.Pos.IsValid() {
				d.Related = append(d.Related, analysis.RelatedInformation{Pos: s.Pos, Message: s.In + " " + s.What})
			}
		}
		pass.Report(d)
	}
	p.exportFacts()
	return nil, nil
}

// exportFacts exports facts to the packages that import the checked package.
func (p *Program) exportFacts() {
	for _, f := range p.order {
		o, ok := f.Object().(*types.Func)
		if !ok || f.Parent() != nil || f.Synthetic != "" {
			continue
		}
		if c := p.sleep.of[f]; c != nil {
			p.unit.ExportObjectFact(o, &maySleep{p.sleep.describeCallPath(f)})
		}
		if c := p.copies.of[f]; c != nil {
			p.unit.ExportObjectFact(o, &mayCopy{p.copies.describeCallPath(f)})
		}
	}
}

// describeCallPath returns a short description of the call path from a function to an effect.
func (e *effect) describeCallPath(f *function) string {
	steps := e.callPath(f)
	if len(steps) == 0 {
		return ""
	}
	last := steps[len(steps)-1]
	if len(steps) == 1 {
		return "it " + last.What
	}
	return last.In + " " + last.What
}

// externalFact returns the kind of a function of another package. ok is false if the package has no fact about the
// function.
func (lk *linker) externalFact(f *types.Func) (kind sleepiness, why string, ok bool) {
	if lk.graph.unit == nil || f.Pkg() == nil {
		return 0, "", false
	}
	var s maySleep
	if lk.graph.unit.ImportObjectFact(f.Origin(), &s) {
		return sleeps, s.Why, true
	}
	for _, m := range []string{module, lk.graph.unit.Module.Path} { // only the packages of these modules have facts
		if path := f.Pkg().Path(); path == m || strings.HasPrefix(path, m+"/") {
			return never, "", true
		}
	}
	return 0, "", false
}

// copyFact reports whether a function of another package copies to or from the memory of a process.
func (lk *linker) copyFact(f *types.Func) (why string, ok bool) {
	var c mayCopy
	if lk.graph.unit == nil || !lk.graph.unit.ImportObjectFact(f.Origin(), &c) {
		return "", false
	}
	return c.Why, true
}
