package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"strconv"
	"strings"
)

// driverPackages lists the packages in which generate places defects of all kinds. The contract suite with its
// reference model, or else the driver's own tests, must detect the defects.
var driverPackages = []driverPackage{
	{"driver/loopback", []testSelection{
		{pkg: "driver/loopback", run: "^TestContract$", short: true}, {pkg: "driver/loopback", run: "^TestContract$"},
	}},
	{"engine", engineTests},
	{"engine/transport", engineTests},
	{"engine/queue", engineTests},
	{"driver/rxe/layout", engineTests},
	{"driver/efa/layout", []testSelection{
		{pkg: "driver/efa/layout", run: ".", short: true}, {pkg: "driver/efa", run: ".", short: true},
	}},
}

// engineTests lists the tests with -short first. The others run only with mutants that the tests with -short do not
// detect.
var engineTests = []testSelection{
	{pkg: "engine/transport", run: ".", short: true},
	{pkg: "driver/rxe/layout", run: ".", short: true},
	{pkg: "driver/rxe", run: ".", short: true},
	{pkg: "driver/efa", run: ".", short: true},
	{pkg: "engine", run: ".", short: true},
	{pkg: "engine/internal/simtest", run: ".", short: true},
	{pkg: "engine", run: "^(TestContract|TestModel)$/^(shortcut|wire|Model)$"},
}

type driverPackage struct {
	dir   string
	tests []testSelection // tests in the order in which they run, until one detects the defect
}

// The following constants are the kinds of mutants of any code.
const (
	compareKind  = "compare"  // replaces a comparison operator by the adjacent or the opposite one
	logicKind    = "logic"    // replaces || by &&, and vice versa
	negatedKind  = "negated"  // negates a condition
	constantKind = "constant" // increases a number by one
	sumKind      = "sum"      // replaces - by +, and vice versa
	removedKind  = "removed"  // removes a statement
)

var operatorNeighbours = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+",
}

// unmutatedCallPattern matches calls that get no mutant: without the call everything blocks, or only a message changes.
var unmutatedCallPattern = regexp.MustCompile(`^(R?Lock|R?Unlock|Logf|logf|panic|print|println)$`)

// collectAnywhere collects the mutants of any code in a function.
func (g *generator) collectAnywhere(fn *ast.FuncDecl) {
	var outer ast.Expr // the last constant expression that is no part of another one
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if x, ok := n.(ast.Expr); ok && g.info.Types[x].Value != nil && (outer == nil || x.Pos() >= outer.End()) {
			outer = x
		}
		switch n := n.(type) {
		case *ast.BinaryExpr:
			g.addOperatorMutant(n)
		case *ast.IfStmt:
			if _, binary := n.Cond.(*ast.BinaryExpr); !binary {
				g.addMutant(negatedKind, n.Cond, "!(%s)")
				from, to := g.offset(n.Cond.Pos()), g.offset(n.Cond.End())
				g.guardLast(from, to, func(n string, part partFunc) string {
					return "(mutantswitch.On(" + n + ") != (" + part(from, to) + "))"
				})
			}
		case *ast.BasicLit:
			if v, err := strconv.ParseInt(n.Value, 0, 62); err == nil && n.Kind == token.INT {
				from, to, text := g.offset(n.Pos()), g.offset(n.End()), strconv.FormatInt(v+1, 10)
				g.addReplacement(constantKind, from, to, text)
				start, end, typ := g.offset(outer.Pos()), g.offset(outer.End()), g.typeText(outer)
				mutated := g.text(start, from) + text + g.text(to, end)
				g.guardLast(start, end, func(number string, part partFunc) string {
					return "mutantswitch.Pick[" + typ + "](" + number + ", " + part(start, end) + ", " + mutated + ")"
				})
			}
		case *ast.BlockStmt:
			g.addStatementMutants(n.List)
		case *ast.CaseClause:
			g.addStatementMutants(n.Body)
		}
		return true
	})
}

// addOperatorMutant adds the mutant of a binary operator.
func (g *generator) addOperatorMutant(b *ast.BinaryExpr) {
	other := operatorNeighbours[b.Op]
	if other == "" {
		return
	}
	kind := compareKind
	switch b.Op {
	case token.LAND, token.LOR:
		kind = logicKind
	case token.ADD, token.SUB:
		if !isInteger(g.info.TypeOf(b)) || g.info.Types[b].Value != nil {
			return
		}
		kind = sumKind
	case token.EQL, token.NEQ:
		if isError(g.info.TypeOf(b.X)) {
			return // an invented or dropped error usually leads to the use of a nil pointer, which any test detects
		}
	}
	start, from, to, end := g.offset(b.Pos()), g.offset(b.X.End()), g.offset(b.Y.Pos()), g.offset(b.End())
	text := strings.Replace(string(g.source[from:to]), b.Op.String(), other, 1)
	mutated := func(part partFunc) string { return part(start, from) + text + part(to, end) }
	switch kind {
	case logicKind: // the new operator has another precedence
		mutated = func(part partFunc) string { return "((" + part(start, from) + ")" + text + "(" + part(to, end) + "))" }
		g.addReplacement(kind, start, end, mutated(g.text))
	default:
		g.addReplacement(kind, from, to, text)
	}
	typ, function := g.typeText(b), "Sum"
	if b.Op == token.SUB {
		function = "Difference"
	}
	g.guardLast(start, end, func(n string, part partFunc) string {
		if kind == sumKind {
			return "mutantswitch." + function + "[" + typ + "](" + n + ", " + part(start, from) + ", " + part(to, end) + ")"
		}
		on := "mutantswitch.On(" + n + ")"
		return "(" + on + " && (" + mutated(part) + ") || !" + on + " && (" + part(start, end) + "))"
	})
}

// addStatementMutants adds a mutant for each statement of a list, which removes the statement.
func (g *generator) addStatementMutants(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if c, ok := s.X.(*ast.CallExpr); ok && !unmutatedCallPattern.MatchString(lastIdentName(c.Fun)) {
				g.addStatementRemoval(s)
			}
		case *ast.IncDecStmt:
			g.addStatementRemoval(s)
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				g.addStatementRemoval(s)
			}
		}
	}
}

// addStatementRemoval adds the mutant that removes a statement.
func (g *generator) addStatementRemoval(s ast.Stmt) {
	from, to := g.offset(s.Pos()), g.offset(s.End())
	g.addReplacement(removedKind, from, to, "")
	g.guardLast(from, to, func(n string, part partFunc) string {
		return "if !mutantswitch.On(" + n + ") { " + part(from, to) + " }"
	})
}

// guardLast sets the guard of the last mutant.
func (g *generator) guardLast(from, to int, form func(n string, part partFunc) string) {
	g.mutants[len(g.mutants)-1].edit.guard = &guard{from, to, form}
}

// text returns a part of the source.
func (g *generator) text(from, to int) string { return string(g.source[from:to]) }

// typeText returns the type of an expression as the source of its file names it.
func (g *generator) typeText(x ast.Expr) string {
	return types.TypeString(types.Default(g.info.TypeOf(x)), func(p *types.Package) string {
		if p == g.pkg {
			return ""
		}
		return p.Name()
	})
}

func (g *generator) offset(p token.Pos) int { return g.fset.Position(p).Offset }
