package vet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// TestTablesNameExistingObjects tests that the functions and fields of package ib in the tables exist. A rename would
// otherwise empty a table without an error.
func TestTablesNameExistingObjects(t *testing.T) {
	have := map[string]bool{}
	files, err := filepath.Glob("../../ib/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob: got no Go files (error %v), want some", err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					if p, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok {
						if n, ok := p.X.(*ast.Ident); ok {
							have["(*"+ibPath+"."+n.Name+")."+d.Name.Name] = true
						}
					}
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					n, ok := s.(*ast.TypeSpec)
					if !ok {
						continue
					}
					if st, ok := n.Type.(*ast.StructType); ok {
						for _, field := range st.Fields.List {
							for _, name := range field.Names {
								have[n.Name.Name+"."+name.Name] = true
							}
						}
					}
				}
			}
		}
	}
	var want []string
	for _, list := range []map[string]bool{sleepMarkFuncs, hotplugFuncs} {
		for name := range maps.Keys(list) {
			want = append(want, name)
		}
	}
	for name := range handlerArgs {
		want = append(want, name)
	}
	for _, list := range []map[string][]string{handlerFields, clientFields} {
		for typ, fields := range list {
			for _, field := range fields {
				want = append(want, typ+"."+field)
			}
		}
	}
	for _, name := range want {
		if !have[name] {
			t.Errorf("%s: got no such function or field, want one", strings.TrimPrefix(name, module+"/"))
		}
	}
}
