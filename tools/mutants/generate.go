package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// guardedPackages lists the packages that isolate users from each other. generateMutants places a mutant at every check
// of these packages.
var guardedPackages = []string{
	"internal/quota", "internal/privilege", "internal/principal", "internal/rights", "internal/kept", "internal/cgroup",
	"internal/ctl",
	"internal/shm", "umem", "remote", "nldev", "rdmacm/ucma", "service", "uverbs", "supervisor",
}

// The following constants are the kinds of generated mutants.
const (
	identityKind = "identity" // makes an identity check always pass
	userKind     = "user"     // makes a comparison of users report equality
	boundKind    = "bound"    // removes a limit
	refusalKind  = "refusal"  // removes a refusal
)

// checkPassValues maps the names of checks to the result that means success. Checks whose result is an error report
// success by nil. A name with a package stands only for a method or a field of that package.
var checkPassValues = map[string]bool{
	// the identity of a process or a thread
	"alive": true, "isAlive": true, "has": true, "hasAll": true,
	"hasThread": true, "contains": true, "hasQueuePairs": true,
	"processExists": true, "Alive": true, "exited": false, "hasExited": false, "ended": false, "hasEnded": false,
	"isGoneOrZombie": false,
	"gone":           false, "isGone": false, "isMissing": false, "SpaceGone": false,
	"inOwnUserNamespace": true, "isInOwnUserNamespace": true, "hasOtherRoot": false, "sharesFiles": true,
	"shareDescriptorTable": true,
	// the identity of a file
	"isFile": true, "refersToInode": true, "sameFileAt": true, "isSameFileAt": true, "isOpenFile": true,
	"isProcPath": true, "isDirectory": true, "isVirtual": true,
	"mayBeVirtual": true, "isVerbs": true,
	// Rights.
	"manages": true, "isManager": true, "sees": true, "maySee": true, "allows": true, "maySearch": true,
	"IsOwn": true, "MayConnect": true,
	"MayBindLowPorts": true, "NetRaw": true,
	"maySetControlledQKey": true, "Contains": true, "covers": true, "Understood": true, "isListening": true,
	"IsAnonymous": false, "isOverflow": false, "isIdentityMap": true,
	"fileCapability": true, "bindCapability": true, "rawCapability": true,
	"principal.OwnsAccount": true, "principal.SeesAccount": true, "principal.HasCapability": true,
	"principal.inOwnNamespace":   true,
	"principal.sharesNamespaces": true, "principal.Manager": true, "principal.Anonymous": false,
	// Bounds.
	"limitsAllow": true, "increment": true, "inUseLocked": false, "InUse": false, "exceedsCommands": false,
	"validPort": true, "isValidPort": true,
	"rights.beginReceiving": true,
}

// errorChecks lists the checks that return only an error. Checks that charge a quota are bounds.
var errorChecks = map[string]string{
	"checkTrapped": identityKind, "checkStillTrapped": identityKind, "descends": identityKind,
	"IsProcMem": identityKind, "CheckProcMem": identityKind, "IsProcMaps": identityKind,
	"CheckProcMaps": identityKind, "isProc": identityKind, "checkProcFile": identityKind,
	"checkOrdinaryFile": identityKind,
	"checkOwnsQP":       identityKind,
	"authorize":         identityKind, "checkTrusted": identityKind, "checkOwnDirectory": identityKind,
	"Check": boundKind,
	"check": boundKind, "checkMapped": boundKind, "checkObjects": boundKind, "checkAttr": boundKind,
	"checkAccess": identityKind, "checkAccessFlags": identityKind,
	"checkOffset": identityKind, "checkPageOffset": identityKind, "checkQPParameters": identityKind,
	"checkModify": identityKind,
	"Charge":      boundKind, "charge": boundKind, "objectCharge": boundKind, "quotaCharge": boundKind,
	"take": boundKind, "takeToken": boundKind, "awaitToken": boundKind, "chargeQuota": boundKind,
}

// refusalPattern matches errors that refuse an operation without an errno, in package supervisor and others.
var refusalPattern = regexp.MustCompile(`^(err|Err)[A-Z]`)

// limitPattern matches the names of limits.
var limitPattern = regexp.MustCompile(
	`^(max|Max|most|limit|Limit|least)|(Limit|Max|Most|Bound)$|^(PerUser|Total|total|totalLen|size|Size)$`)

// userPattern matches the names of variables and fields that hold a user.
var userPattern = regexp.MustCompile(
	`^(uid|UID|Uid|user|User|owner|opener|Owner|ServiceUser|effective|real|Geteuid|Getuid|Container)$|(UID|Uid|User)$`)

// rightPattern matches the names of fields that hold rights.
var rightPattern = regexp.MustCompile(`Capability$|^(manages|Manager|Anonymous)$`)

// fileIdentityPattern matches the names of fields that identify a file.
var fileIdentityPattern = regexp.MustCompile(`^(inode|Ino|Dev|ino|dev|Rdev|nlink|Nlink)$`)

// sourceEdit replaces source[from:to].
type sourceEdit struct {
	from, to int
	text     string
	guard    *guard // nil if a build of several mutants cannot contain the mutant
}

// generateMutants derives the mutants of packages from their source, in the order of the source. root is the directory
// of the module. collect collects the mutants of one function.
func generateMutants(root string, dirs []string, collect func(*generator, *ast.FuncDecl)) ([]mutant, error) {
	patterns := make([]string, len(dirs))
	for i, d := range dirs {
		patterns[i] = "./" + d
	}
	pkgs, err := packages.Load(&packages.Config{
		Dir: root,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo |
			packages.NeedImports,
	}, patterns...)
	if err != nil {
		return nil, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	byDir := map[string]*packages.Package{}
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if len(p.GoFiles) == 0 {
			return nil, fmt.Errorf("generate mutants: package %s has no files", p.PkgPath)
		}
		rel, err := filepath.Rel(root, filepath.Dir(p.GoFiles[0]))
		if err != nil {
			return nil, err
		}
		byDir[filepath.ToSlash(rel)] = p
	}
	var all []mutant
	for _, d := range dirs {
		p := byDir[d]
		if p == nil {
			return nil, fmt.Errorf("generate mutants: %s contains no package", d)
		}
		for _, f := range p.Syntax {
			g := &generator{pkg: p.Types, info: p.TypesInfo, fset: p.Fset, path: p.Fset.Position(f.Pos()).Filename}
			g.file = d + "/" + filepath.Base(g.path)
			if g.source, err = os.ReadFile(g.path); err != nil {
				return nil, err
			}
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil && fn.Name.Name != "String" {
					g.beginFunction(fn)
					collect(g, fn)
				}
			}
			all = append(all, g.mutants...)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("generate mutants: got no mutants")
	}
	return all, nil
}

// generator collects the mutants of one file.
type generator struct {
	pkg    *types.Package
	info   *types.Info
	fset   *token.FileSet
	path   string
	file   string // the path in the names of mutants
	source []byte

	name    string         // the name of the function
	counts  map[string]int // the number of mutants of the function, by kind
	forced  map[ast.Expr]bool
	called  map[ast.Expr]bool // the function expressions of calls
	mutants []mutant
}

// beginFunction starts the collection for a function.
func (g *generator) beginFunction(fn *ast.FuncDecl) {
	g.name, g.counts, g.forced, g.called = fn.Name.Name, map[string]int{}, map[ast.Expr]bool{}, map[ast.Expr]bool{}
	if fn.Recv != nil && len(fn.Recv.List) == 1 {
		t := fn.Recv.List[0].Type
		if s, ok := t.(*ast.StarExpr); ok {
			t = s.X
		}
		if x, ok := t.(*ast.IndexExpr); ok {
			t = x.X
		}
		if id, ok := t.(*ast.Ident); ok {
			g.name = id.Name + "." + g.name
		}
	}
}

// collectChecks collects the mutants of the checks in a function, including its function literals.
func (g *generator) collectChecks(fn *ast.FuncDecl) {
	var loops []ast.Expr // conditions of loops get no mutant of a bound, because the test would then hang
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			if n.Cond != nil {
				loops = append(loops, n.Cond)
			}
		case *ast.BinaryExpr:
			if !isWithin(n, loops) {
				g.addComparison(n)
			}
		case *ast.CallExpr:
			g.called[n.Fun] = true
			g.addCheckCall(n)
		case *ast.SelectorExpr:
			g.addFieldMutant(n)
		}
		return true
	})
	// Refusals are collected last, so that a refusal with a single reason that has a mutant gets no second mutant.
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			g.addRefusal(n.Cond, n.Body.List)
		case *ast.SwitchStmt:
			for _, c := range n.Body.List {
				if c := c.(*ast.CaseClause); n.Tag == nil && len(c.List) > 0 {
					for _, x := range c.List {
						g.addRefusal(x, c.Body)
					}
				}
			}
		}
		return true
	})
}

func isWithin(n ast.Node, list []ast.Expr) bool {
	return slices.ContainsFunc(list, func(x ast.Expr) bool { return x.Pos() <= n.Pos() && n.End() <= x.End() })
}

// addMutant adds a mutant in which the text of an expression is replaced.
func (g *generator) addMutant(kind string, x ast.Node, format string) {
	from, to := g.offset(x.Pos()), g.offset(x.End())
	g.addReplacement(kind, from, to, fmt.Sprintf(format, g.source[from:to]))
}

// addReplacement adds a mutant in which a part of the source is replaced.
func (g *generator) addReplacement(kind string, from, to int, text string) {
	g.counts[kind]++
	g.mutants = append(g.mutants, mutant{
		listedMutant: listedMutant{
			name: fmt.Sprintf("%s:%s:%s:%d", g.file, g.name, kind, g.counts[kind]),
			file: g.file,
			from: string(g.source[from:to]),
		},
		edit: &sourceEdit{from: from, to: to, text: text},
	})
}

// addForcedResult adds a mutant in which the result of a condition is constant. The mutant still evaluates the
// condition.
func (g *generator) addForcedResult(kind string, x ast.Expr, value bool) {
	if _, done := g.forced[x]; done {
		return
	}
	g.forced[x] = value
	format := "(%s && false)"
	if value {
		format = "(%s || true)"
	}
	if b, ok := x.(*ast.BinaryExpr); ok && b.Op == token.LOR {
		format = strings.Replace(format, "%s", "(%s)", 1)
	}
	g.addMutant(kind, x, format)
}

// addCheckCall adds the mutant for a call of a check.
func (g *generator) addCheckCall(c *ast.CallExpr) {
	name := lastIdentName(c.Fun)
	switch t := g.info.TypeOf(c); {
	case isBool(t):
		if value, ok := g.passValueOf(c.Fun); ok && (!g.isPackageCall(c.Fun) || len(c.Args) > 0 &&
			lastIdentName(c.Args[0]) == "groups") {
			g.addForcedResult(identityKind, c, value)
		}
	case isError(t) && errorChecks[name] != "":
		g.addMutant(errorChecks[name], c, "func() error { _ = %s; return nil }()")
	}
}

// isPackageCall reports whether a call names a function together with its package, as in slices.Contains.
func (g *generator) isPackageCall(f ast.Expr) bool {
	s, ok := f.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	if !ok {
		return false
	}
	_, ok = g.info.Uses[id].(*types.PkgName)
	return ok
}

// passValueOf returns the result that means success, and reports whether a function or a field is a check.
func (g *generator) passValueOf(f ast.Expr) (value, ok bool) {
	if value, ok = checkPassValues[lastIdentName(f)]; ok {
		return value, true
	}
	s, ok := f.(*ast.SelectorExpr)
	if !ok {
		return false, false
	}
	if obj := g.info.Uses[s.Sel]; obj != nil && obj.Pkg() != nil {
		value, ok = checkPassValues[obj.Pkg().Name()+"."+s.Sel.Name]
		return value, ok
	}
	return false, false
}

// addFieldMutant adds the mutant for a read of a field that holds a right of its owner, and for a check that is an
// argument of a function.
func (g *generator) addFieldMutant(s *ast.SelectorExpr) {
	value, ok := g.passValueOf(s)
	if !ok {
		return
	}
	switch t := g.info.Uses[s.Sel].(type) {
	case *types.Var:
		if t.IsField() && rightPattern.MatchString(t.Name()) && isBool(t.Type()) && !g.isAssigned(s) {
			g.addForcedResult(identityKind, s, value)
		}
	case *types.Func:
		sig := t.Signature()
		if r := sig.Results(); !g.called[s] && sig.Recv() != nil && r.Len() == 1 && isBool(r.At(0).Type()) {
			plain := types.NewSignatureType(nil, nil, nil, sig.Params(), r, false)
			text := types.TypeString(plain, (*types.Package).Name)
			g.addMutant(identityKind, s, fmt.Sprintf("%s { _ = %%s; return %v }", text, value))
		}
	}
}

// isAssigned reports whether a field is on the left side of an assignment. It examines only the text after the field.
func (g *generator) isAssigned(s *ast.SelectorExpr) bool {
	rest := strings.TrimLeft(string(g.source[g.fset.Position(s.End()).Offset:]), " ")
	if strings.HasPrefix(rest, ",") { // the field is one of several operands
		line, _, _ := strings.Cut(rest, "\n")
		return strings.Contains(line, " = ")
	}
	return strings.HasPrefix(rest, "=") && !strings.HasPrefix(rest, "==")
}

// addComparison adds the mutant for a comparison of users, of files, or with a limit.
func (g *generator) addComparison(b *ast.BinaryExpr) {
	switch b.Op {
	case token.EQL, token.NEQ:
		if isNil(b.X) || isNil(b.Y) {
			return
		}
		equal := b.Op == token.EQL
		switch {
		case g.isEitherUser(b.X, b.Y):
			g.addForcedResult(userKind, b, equal)
		case g.isEitherFile(b.X, b.Y), equal && isSetDifference(b.X):
			g.addForcedResult(identityKind, b, equal)
		}
	case token.GTR, token.GEQ, token.LSS, token.LEQ:
		if !isInteger(g.info.TypeOf(b.X)) || !isInteger(g.info.TypeOf(b.Y)) {
			return
		}
		exceeds := b.Op == token.GTR || b.Op == token.GEQ // for a limit on the right side
		switch {
		case g.isLimit(b.Y):
			g.addForcedResult(boundKind, b, !exceeds)
		case g.isLimit(b.X):
			g.addForcedResult(boundKind, b, exceeds)
		}
	}
}

func (g *generator) isEitherUser(x, y ast.Expr) bool {
	return g.isUser(x) || g.isUser(y)
}

func (g *generator) isUser(x ast.Expr) bool {
	if p, ok := g.info.TypeOf(x).(*types.Pointer); ok && typeName(p.Elem()) == "quota.User" {
		return true
	}
	if typeName(g.info.TypeOf(x)) == "quota.ID" {
		return true
	}
	name := g.identName(x)
	return userPattern.MatchString(name) && name != "PerUser" &&
		(isInteger(g.info.TypeOf(x)) || typeName(g.info.TypeOf(x)) == "supervisor.idSet")
}

func (g *generator) isEitherFile(x, y ast.Expr) bool {
	for _, e := range []ast.Expr{x, y} {
		if slices.Contains([]string{"supervisor.inode", "principal.fileID"}, typeName(g.info.TypeOf(e))) {
			return true
		}
		if fileIdentityPattern.MatchString(g.identName(e)) && g.info.Types[e].Value == nil && isInteger(g.info.TypeOf(e)) {
			return true
		}
	}
	return false
}

// isSetDifference reports whether an expression is a difference of sets. An example is the set of capabilities that a
// process lacks. A difference of 0 means that no element is missing.
func isSetDifference(x ast.Expr) bool {
	b, ok := x.(*ast.BinaryExpr)
	return ok && b.Op == token.AND_NOT
}

// isLimit reports whether an expression is a limit. A limit is a constant other than 0 and 1, or an expression with
// the name of a limit.
func (g *generator) isLimit(x ast.Expr) bool {
	if l, ok := x.(*ast.BasicLit); ok && l.Kind == token.CHAR {
		return false
	}
	if v := g.info.Types[x].Value; v != nil {
		n, exact := constant.Int64Val(constant.ToInt(v))
		return !exact || n > 1
	}
	switch x := x.(type) {
	case *ast.ParenExpr:
		return g.isLimit(x.X)
	case *ast.BinaryExpr:
		return g.isLimit(x.X) || g.isLimit(x.Y)
	}
	return limitPattern.MatchString(g.identName(x))
}

// addRefusal adds the mutant for a condition under which a function refuses.
func (g *generator) addRefusal(cond ast.Expr, body []ast.Stmt) {
	if len(body) == 0 || !g.returnsRefusal(body[len(body)-1]) {
		return
	}
	x, want := cond, false // the value of x for which the condition is false
	for {
		if p, ok := x.(*ast.ParenExpr); ok {
			x = p.X
		} else if u, ok := x.(*ast.UnaryExpr); ok && u.Op == token.NOT {
			x, want = u.X, !want
		} else {
			break
		}
	}
	if value, done := g.forced[x]; done && value == want {
		return
	}
	if b, ok := x.(*ast.BinaryExpr); ok && b.Op == token.NEQ && isNil(b.Y) && isError(g.info.TypeOf(b.X)) &&
		g.returnsCheckedError(body[len(body)-1], b.X) {
		return // the returned error comes from another function, so the condition is no refusal
	}
	if translatesError(x) {
		return
	}
	g.addForcedResult(refusalKind, cond, false)
}

// translatesError reports whether a condition compares an error with a certain error, and the statement then returns
// another error.
func translatesError(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.ParenExpr:
		return translatesError(x.X)
	case *ast.CallExpr:
		return lastIdentName(x.Fun) == "Is"
	case *ast.BinaryExpr:
		if x.Op == token.LOR {
			return translatesError(x.X) && translatesError(x.Y)
		}
		if x.Op == token.LAND {
			return translatesError(x.X) || translatesError(x.Y)
		}
		name := lastIdentName(x.X)
		return x.Op == token.EQL && (name == "err" || name == "cerr")
	}
	return false
}

// returnsCheckedError reports whether a statement returns the error that its condition checks.
func (g *generator) returnsCheckedError(s ast.Stmt, err ast.Expr) bool {
	id, ok := err.(*ast.Ident)
	if !ok {
		return false
	}
	found := false
	ast.Inspect(s, func(n ast.Node) bool {
		if use, ok := n.(*ast.Ident); ok && g.info.Uses[use] != nil && g.info.Uses[use] == g.info.ObjectOf(id) {
			found = true
		}
		return !found
	})
	return found
}

// returnsRefusal reports whether a statement returns an errno or an error of this module.
func (g *generator) returnsRefusal(s ast.Stmt) bool {
	r, ok := s.(*ast.ReturnStmt)
	if !ok {
		return false
	}
	found := false
	for _, x := range r.Results {
		if u, ok := x.(*ast.UnaryExpr); ok && u.Op == token.AND && types.Implements(g.info.TypeOf(x), errorInterface) {
			return true
		}
		ast.Inspect(x, func(n ast.Node) bool {
			if _, ok := n.(*ast.FuncLit); ok {
				return false
			}
			id, ok := n.(*ast.Ident)
			if !ok {
				return !found
			}
			switch obj := g.info.Uses[id].(type) {
			case *types.Const:
				found = found || typeName(obj.Type()) == "syscall.Errno"
			case *types.Var:
				found = found || !obj.IsField() && obj.Parent() == obj.Pkg().Scope() && isError(obj.Type()) &&
					refusalPattern.MatchString(obj.Name())
			}
			return !found
		})
	}
	return found
}

// identName returns the last identifier of an expression. For a conversion identName returns the last identifier of the
// operand.
func (g *generator) identName(x ast.Expr) string {
	if c, ok := x.(*ast.CallExpr); ok && len(c.Args) == 1 && g.info.Types[c.Fun].IsType() {
		return g.identName(c.Args[0])
	}
	return lastIdentName(x)
}

func lastIdentName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.ParenExpr:
		return lastIdentName(x.X)
	case *ast.StarExpr:
		return lastIdentName(x.X)
	case *ast.IndexExpr:
		return lastIdentName(x.X)
	case *ast.CallExpr:
		return lastIdentName(x.Fun)
	}
	return ""
}

func typeName(t types.Type) string {
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return ""
	}
	return n.Obj().Pkg().Name() + "." + n.Obj().Name()
}

func isNil(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == "nil"
}

func isBool(t types.Type) bool {
	b, ok := t.(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

func isInteger(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0
}

var errorInterface = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

func isError(t types.Type) bool {
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}
