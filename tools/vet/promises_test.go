package vet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// noSleepPattern matches the statement that a subject may not sleep.
var noSleepPattern = regexp.MustCompile(`(?:(\w+) and )?(\w+),? (?:may|must) not sleep`)

// promisesCoveredElsewhere lists arguments that need no entry in the tables, because a function in the tables calls
// them.
var promisesCoveredElsewhere = map[string]bool{
	"(*" + module + "/ib/slot.Slot).ResetAt with": true, // called by the function of DeviceHandle.AtHandler
}

// TestTablesContainPromises tests that the tables contain the methods, the function arguments and the function fields
// of package ib whose comments state that they may not sleep, and no others.
func TestTablesContainPromises(t *testing.T) {
	got := map[string]bool{}
	for i, methods := range noSleepMethods {
		for _, m := range methods {
			got["interface "+i+"."+m] = true
		}
	}
	for _, args := range []map[string]int{handlerArgs, driverArgs} {
		for name, i := range args {
			got["argument "+string(rune('0'+i))+" of "+name] = true
		}
	}
	for _, table := range []map[string][]string{handlerFields, driverFields} {
		for typ, fields := range table {
			for _, f := range fields {
				if ast.IsExported(f) {
					got["field "+ibPath+"."+typ+"."+f] = true
				}
			}
		}
	}
	for typ, fields := range completionFields {
		for _, f := range fields {
			got["field "+completionPath+"."+typ+"."+f] = true
		}
	}
	want := map[string]bool{}
	for _, pkg := range []string{"ib", "ib/completion", "ib/slot", "ib/attach"} {
		for name := range findPromises(t, pkg) {
			want[name] = true
			if !got[name] {
				t.Errorf("%s: got a comment that states that it may not sleep, and no entry in contract.go", name)
			}
		}
	}
	for name := range got {
		if !want[name] {
			t.Errorf("%s: got an entry in contract.go, and no comment that states that it may not sleep", name)
		}
	}
}

// findPromises returns the methods of interfaces, the function arguments and the function fields of a package that may
// not sleep by their comments.
func findPromises(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../../" + pkg + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob: got no Go files (error %v), want some", err)
	}
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				for _, name := range argumentPromises(d, module+"/"+pkg) {
					found[name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() {
						text := commentText(d.Doc) + " " + commentText(s.Doc)
						for _, name := range typePromises(s, text, module+"/"+pkg) {
							found[name] = true
						}
					}
				}
			}
		}
	}
	return found
}

// commentText returns the text of a comment in one line.
func commentText(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

// statesNoSleep reports whether a comment states of a subject that it may not sleep.
func statesNoSleep(text, subject string) bool {
	return slices.ContainsFunc(noSleepPattern.FindAllStringSubmatch(text, -1), func(m []string) bool {
		return subject == m[1] || subject == m[2]
	})
}

// argumentPromises returns the arguments of an exported function that may not sleep.
func argumentPromises(d *ast.FuncDecl, path string) (names []string) {
	if !d.Name.IsExported() {
		return nil
	}
	full := path + "." + d.Name.Name
	if d.Recv != nil {
		typ := d.Recv.List[0].Type
		star := ""
		if p, ok := typ.(*ast.StarExpr); ok {
			typ, star = p.X, "*"
		}
		n, ok := typ.(*ast.Ident)
		if !ok || !n.IsExported() {
			return nil
		}
		full = "(" + star + path + "." + n.Name + ")." + d.Name.Name
	}
	i := 0
	for _, p := range d.Type.Params.List {
		for _, name := range p.Names {
			if _, ok := p.Type.(*ast.FuncType); ok && statesNoSleep(commentText(d.Doc), name.Name) &&
				!promisesCoveredElsewhere[full+" "+name.Name] {
				names = append(names, "argument "+string(rune('0'+i))+" of "+full)
			}
			i++
		}
	}
	return names
}

// typePromises returns the methods of an interface, or the fields of a struct, that may not sleep. text is the comment
// of the type.
func typePromises(s *ast.TypeSpec, text, path string) (names []string) {
	switch typ := s.Type.(type) {
	case *ast.InterfaceType:
		all := strings.Contains(text, "No method may sleep") || statesNoSleep(text, "methods")
		for _, m := range typ.Methods.List {
			for _, name := range m.Names {
				if all || statesNoSleep(text, name.Name) || statesNoSleep(commentText(m.Doc), name.Name) {
					names = append(names, "interface "+strings.TrimPrefix(path+"."+s.Name.Name, ibPath)[1:]+"."+name.Name)
				}
			}
		}
	case *ast.StructType:
		for _, f := range typ.Fields.List {
			for _, name := range f.Names {
				_, isFunc := f.Type.(*ast.FuncType)
				if isFunc && (statesNoSleep(text, "functions") || statesNoSleep(commentText(f.Doc)+" "+commentText(f.Comment),
					name.Name)) {
					names = append(names, "field "+path+"."+s.Name.Name+"."+name.Name)
				}
			}
		}
	}
	return names
}
