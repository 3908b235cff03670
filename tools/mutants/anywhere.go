package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// driverPackages lists the packages in which generate places defects of all kinds. The contract suite with its
// reference model, or else the driver's own tests, must detect the defects.
var driverPackages = []driverPackage{
	{"driver/loopback", []testSelection{{pkg: "driver/loopback", run: "^TestContract$"}}},
	{"engine", rxeTests},
	{"engine/transport", append([]testSelection{{pkg: "engine/transport", run: "."}}, rxeTests...)},
	{"engine/queue", queueTests},
	{"driver/rxe/layout", queueTests},
}

// rxeTests begins with the tests that take the least time.
var rxeTests = []testSelection{
	{pkg: "engine", run: "^(TestContract|TestModel)$/^(shortcut|wire)$/^Model$", short: true},
	{pkg: "engine", run: ".", skip: "^TestContract$", short: true},
	{pkg: "engine", run: "^TestContract$", short: true},
	{pkg: "engine/internal/simtest", run: ".", short: true},
	{pkg: "engine", run: "^(TestContract|TestModel)$/^(shortcut|wire|Model)$"},
}

var queueTests = append([]testSelection{
	{pkg: "driver/rxe/layout", run: "."}, {pkg: "driver/rxe", run: "."},
}, rxeTests...)

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
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			g.addOperatorMutant(n)
		case *ast.IfStmt:
			if _, binary := n.Cond.(*ast.BinaryExpr); !binary {
				g.addMutant(negatedKind, n.Cond, "!(%s)")
			}
		case *ast.BasicLit:
			if v, err := strconv.ParseInt(n.Value, 0, 62); err == nil && n.Kind == token.INT {
				g.addReplacement(constantKind, g.offset(n.Pos()), g.offset(n.End()), strconv.FormatInt(v+1, 10))
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
	from, to := g.offset(b.X.End()), g.offset(b.Y.Pos())
	between := string(g.source[from:to])
	text := strings.Replace(between, b.Op.String(), other, 1)
	if b.Op == token.LAND || b.Op == token.LOR { // the new operator has another precedence
		x, y := string(g.source[g.offset(b.X.Pos()):from]), string(g.source[to:g.offset(b.Y.End())])
		g.addReplacement(kind, g.offset(b.Pos()), g.offset(b.End()), "(("+x+")"+text+"("+y+"))")
		return
	}
	g.addReplacement(kind, from, to, text)
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
	g.addReplacement(removedKind, g.offset(s.Pos()), g.offset(s.End()), "")
}

func (g *generator) offset(p token.Pos) int { return g.fset.Position(p).Offset }
