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

// TestEveryFunctionSaysWhetherItSleeps checks that the comment of each exported function states whether it may sleep,
// except for functions that only compute or return a field. The test also checks that checked mode observes each
// function that may sleep.
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
			if !ok || !f.Name.IsExported() || f.Recv != nil && !ast.IsExported(receiverType(f)) {
				continue
			}
			where := name + ": " + receiverType(f) + "." + f.Name.Name
			doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
			sleeps := strings.Contains(doc, " may sleep")
			never := strings.Contains(doc, "may not sleep") && !sleeps
			watched := containsCall(f.Body, "enterSleeping", "enterMemoryChange", "enterDestroyCall", "enterRegisterCall",
				"destroyInContext", "unregisterInContext", "unregisterClientInContext")
			switch {
			case f.Name.Name == "String": // the name is sufficient
			case isSimpleBody(f.Body):
				if doc == "" {
					t.Errorf("comment of %s: got none, want one", where)
				}
			case sleeps == never:
				t.Errorf("comment of %s: got no statement about sleeping, want one", where)
			case sleeps && !watched:
				t.Errorf("%s, which may sleep: got no observation in checked mode, want one", where)
			case never && watched:
				t.Errorf("%s, which may not sleep: got a call such as enterSleeping, want none", where)
			}
			if sleeps {
				may++
			} else if never {
				mayNot++
			}
		}
	}
	if may < 15 || mayNot < 15 {
		t.Errorf("functions: got %d that may sleep and %d that may not, want at least 15 of each", may, mayNot)
	}
}

func receiverType(f *ast.FuncDecl) string {
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

// isSimpleBody reports whether a function calls only loads, conversions and the like.
func isSimpleBody(body *ast.BlockStmt) bool {
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

// containsCall reports whether body contains a call of a function or method with one of the names.
func containsCall(body *ast.BlockStmt, names ...string) (found bool) {
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
