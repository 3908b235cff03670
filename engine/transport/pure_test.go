package transport

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPure checks the statements of doc.go: the package imports packet formats and little else, reads no clock, and has
// no lock, goroutine, channel, or callback.
func TestPure(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"fmt", "math/bits", "slices", "time", "verbena/roce"}
	files := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files++
		for _, i := range f.Imports {
			if p, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, p) {
				t.Errorf("%s imports %s", name, p)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			at := ""
			switch n := n.(type) {
			case *ast.GoStmt:
				at = "a goroutine"
			case *ast.ChanType:
				at = "a channel"
			case *ast.StructType:
				if hasFunc(n.Fields) {
					at = "a function in a field"
				}
			case *ast.FuncDecl:
				if hasFunc(n.Type.Params) {
					at = "a function as a parameter"
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains([]string{"Time", "Duration", "Millisecond"}, n.Sel.Name) {
					at = "time." + n.Sel.Name
				}
			}
			if at != "" {
				t.Errorf("%s: %s", fset.Position(n.Pos()), at)
			}
			return true
		})
	}
	if files < 4 {
		t.Errorf("%d files were looked at", files)
	}
}

// hasFunc reports whether one of the fields or parameters is a function.
func hasFunc(l *ast.FieldList) bool {
	return slices.ContainsFunc(l.List, func(f *ast.Field) bool {
		_, ok := f.Type.(*ast.FuncType)
		return ok
	})
}
