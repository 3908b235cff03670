// Command api checks the public packages of the module, which docs/api.md lists.
//
//	api [-C folder] [-old folder]
//
// With -old it prints the differences between the public packages and the public packages of another checkout. The
// exit code is 1 if a program that compiles with the other checkout may not compile with this one
// (go.dev/blog/module-compatibility).
//
// Without -old the command checks signatures. No exported function, method, field, variable or constant of a public
// package may have a type of a non-public package. Thus a user of the module can name every type. The exit code is 1
// if a signature breaks this rule.
//
// The exit code is 2 if the packages cannot be loaded.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/tools/go/packages"
)

const modulePrefix = "verbena/"

func main() {
	root := flag.String("C", ".", "check the module in this `folder`")
	old := flag.String("old", "", "compare the module with the module in this `folder`")
	flag.Parse()
	find := findNonPublicUses
	if *old != "" {
		find = func(root string) ([]string, error) { return findIncompatibleChanges(*old, root, os.Stdout) }
	}
	faults, err := find(*root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(2)
	}
	for _, f := range faults {
		fmt.Println(f)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

// allowedInternal lists the declarations that connect packages of this module. A user of the module cannot call these
// declarations, or need not name their types.
var allowedInternal = map[string]string{
	"ib.ForUser":                          "only user contexts need it, and other modules cannot create its key",
	"verbs.Entry.Open":                    "for packages with devices outside of /dev/infiniband",
	"verbs/cm.New":                        "for packages with a connection manager",
	"verbs/cm.NewFile":                    "for packages with the file of a connection manager",
	"verbs/embed.Stack.ConnectionManager": "nil, or the connection manager of a service",
	"verbs/service.AtLocation":            "for the command verbena",
	"service/servicetest.New":             "for tests of this module",
	"service/servicetest.Device":          "for tests of this module",
	"service/servicetest.Serve":           "for tests of this module",
}

// tableRowPattern matches a row of the table in docs/api.md.
var tableRowPattern = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\|")

// publicPackages returns the list of public packages.
func publicPackages(root string) ([]string, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs/api.md"))
	if err != nil {
		return nil, err
	}
	var list []string
	for _, m := range tableRowPattern.FindAllStringSubmatch(string(page), -1) {
		list = append(list, m[1])
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("read the public packages: docs/api.md lists no package")
	}
	return list, nil
}

// loadPublic returns the public packages of the module in a folder.
func loadPublic(root string) ([]*packages.Package, error) {
	list, err := publicPackages(root)
	if err != nil {
		return nil, err
	}
	for i, p := range list {
		list[i] = modulePrefix + p
	}
	pkgs, err := packages.Load(
		&packages.Config{Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps,
			Dir: root}, list...)
	if err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
	}
	return pkgs, nil
}

// findIncompatibleChanges returns the incompatible changes of the public packages relative to another checkout, and
// prints the compatible ones.
func findIncompatibleChanges(old, root string, compatible io.Writer) ([]string, error) {
	before, err := loadPublic(old)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", old, err)
	}
	now, err := loadPublic(root)
	if err != nil {
		return nil, err
	}
	current := map[string]*packages.Package{}
	for _, p := range now {
		current[p.PkgPath] = p
	}
	var breaking []string
	for _, p := range before {
		name := strings.TrimPrefix(p.PkgPath, modulePrefix)
		n, ok := current[p.PkgPath]
		if !ok {
			breaking = append(breaking, name+": the package is not public any more")
			continue
		}
		for _, c := range apidiff.Changes(p.Types, n.Types).Changes {
			if !c.Compatible {
				breaking = append(breaking, name+": "+c.Message)
				continue
			}
			fmt.Fprintf(compatible, "%s: %s (compatible)\n", name, c.Message)
		}
	}
	return breaking, nil
}

// findNonPublicUses returns the uses of non-public types in the public packages.
func findNonPublicUses(root string) ([]string, error) {
	pkgs, err := loadPublic(root)
	if err != nil {
		return nil, err
	}
	w := &typeWalker{named: map[*types.TypeName]bool{}}
	for _, p := range pkgs {
		w.public = append(w.public, p.PkgPath)
	}
	for _, p := range pkgs {
		for _, name := range p.Types.Scope().Names() {
			if t, ok := p.Types.Scope().Lookup(name).(*types.TypeName); ok && t.Exported() && t.IsAlias() {
				if n, ok := types.Unalias(t.Type()).(*types.Named); ok {
					w.named[n.Obj()] = true
				}
			}
		}
	}
	for _, p := range pkgs {
		for _, name := range p.Types.Scope().Names() {
			if ast.IsExported(name) {
				w.visitObject(strings.TrimPrefix(p.PkgPath, modulePrefix)+"."+name, p.Types.Scope().Lookup(name))
			}
		}
	}
	slices.Sort(w.faults)
	return slices.Compact(w.faults), nil
}

// typeWalker searches for types of non-public packages.
type typeWalker struct {
	public []string
	named  map[*types.TypeName]bool // types named by an alias in a public package
	faults []string
}

// visitObject visits the type of an exported object, and the methods and fields of an exported type.
func (w *typeWalker) visitObject(name string, o types.Object) {
	t, ok := o.(*types.TypeName)
	if !ok {
		w.visitType(name, o.Type())
		return
	}
	named, ok := t.Type().(*types.Named)
	if !ok || t.IsAlias() {
		w.visitType(name, t.Type())
		return
	}
	for m := range named.Methods() {
		if m.Exported() {
			w.visitType(name+"."+m.Name(), m.Type())
		}
	}
	w.visitParts(name, named.Underlying())
}

// visitType records a named type if its package is not public, and visits the parts of other types.
func (w *typeWalker) visitType(name string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		w.visitType(name, types.Unalias(t))
	case *types.Named:
		if pkg := t.Obj().Pkg(); pkg != nil && strings.HasPrefix(pkg.Path(), modulePrefix) &&
			!slices.Contains(w.public, pkg.Path()) &&
			!w.named[t.Obj()] && allowedInternal[name] == "" {
			w.faults = append(w.faults, fmt.Sprintf("%s has the type %s.%s of a package that is not public (docs/api.md)",
				name, strings.TrimPrefix(pkg.Path(), modulePrefix), t.Obj().Name()))
		}
		for a := range t.TypeArgs().Types() {
			w.visitType(name, a)
		}
	default:
		w.visitParts(name, t)
	}
}

// visitParts visits the parts of an unnamed type.
func (w *typeWalker) visitParts(name string, t types.Type) {
	switch t := t.(type) {
	case *types.Pointer:
		w.visitType(name, t.Elem())
	case *types.Slice:
		w.visitType(name, t.Elem())
	case *types.Array:
		w.visitType(name, t.Elem())
	case *types.Chan:
		w.visitType(name, t.Elem())
	case *types.Map:
		w.visitType(name, t.Key())
		w.visitType(name, t.Elem())
	case *types.Signature:
		for v := range t.Params().Variables() {
			w.visitType(name, v.Type())
		}
		for v := range t.Results().Variables() {
			w.visitType(name, v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.visitType(name+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				w.visitType(name+"."+m.Name(), m.Type())
			}
		}
	}
}
