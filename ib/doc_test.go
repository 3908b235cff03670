package ib

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every exported function says whether it may sleep, unless it only computes or returns a field; and checked mode
// knows of those that may.
func TestEveryFunctionSaysWhetherItSleeps(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	must(t, err)
	may, mayNot := 0, 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		must(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || f.Recv != nil && !ast.IsExported(receiver(f)) {
				continue
			}
			where := name + ": " + receiver(f) + "." + f.Name.Name
			doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
			sleeps := strings.Contains(doc, " may sleep")
			never := strings.Contains(doc, "may not sleep") && !sleeps
			watched := calls(f.Body, "sleeps", "changes", "destroys", "registers", "destroyIn", "unregisterIn", "unregisterClientIn")
			switch {
			case f.Name.Name == "String": // the name says it
			case simple(f.Body):
				if doc == "" {
					t.Errorf("%s has no comment", where)
				}
			case sleeps == never:
				t.Errorf("%s does not say whether it may sleep", where)
			case sleeps && !watched:
				t.Errorf("%s may sleep, and checked mode does not know it", where)
			case never && watched:
				t.Errorf("%s may not sleep, and checked mode takes it for one that may", where)
			}
			if sleeps {
				may++
			} else if never {
				mayNot++
			}
		}
	}
	if may < 15 || mayNot < 15 {
		t.Errorf("only %d functions may sleep, and %d may not", may, mayNot)
	}
}

func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	if p, ok := x.(*ast.StarExpr); ok {
		x = p.X
	}
	if id, ok := x.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// simple tells whether a function calls nothing but loads, conversions and its like.
func simple(body *ast.BlockStmt) bool {
	ok := true
	ast.Inspect(body, func(n ast.Node) bool {
		if c, call := n.(*ast.CallExpr); call {
			switch fun := c.Fun.(type) {
			case *ast.SelectorExpr:
				switch fun.Sel.Name {
				case "Load", "Store", "CompareAndSwap", "Errorf", "Sprintf", "As16", "AddrFrom16", "Unmap", "init":
				default:
					ok = false
				}
			}
		}
		return ok
	})
	return ok
}

// calls tells whether there is a call of a function or method of one of the names.
func calls(body *ast.BlockStmt, names ...string) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			switch f := c.Fun.(type) {
			case *ast.SelectorExpr:
				found = found || slices.Contains(names, f.Sel.Name)
			case *ast.Ident:
				found = found || slices.Contains(names, f.Name)
			}
		}
		return true
	})
	return found
}
