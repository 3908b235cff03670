package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strings"
	"unicode"
)

// members lists names that belong to one type: its fields, its methods or its constants. The rule does not compare
// a field with a method, because a field closed beside a method Close is customary.
type members struct {
	typ   string
	names []member
}

// member is the name of a field, a method or a constant.
type member struct {
	name string
	file string
	line int
}

// namer collects the members of the types of packages.
type namer map[string]*members // keyed by folder, package, type and sort of member

// add adds a member of a type.
func (n namer) add(s *source, file, sort, typ string, id *ast.Ident) {
	if id.Name == "_" || typ == "" || types.Universe.Lookup(typ) != nil {
		return
	}
	key := strings.Join([]string{path.Dir(file), s.file.Name.Name, sort, typ}, " ")
	if n[key] == nil {
		n[key] = &members{typ: typ}
	}
	n[key].names = append(n[key].names, member{id.Name, file, s.set.Position(id.Pos()).Line})
}

// file adds the members that a file declares.
func (n namer) file(name string, s *source) {
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil && len(d.Recv.List) == 1 {
				n.add(s, name, "method", receiver(d.Recv.List[0].Type), d.Name)
			}
		case *ast.GenDecl:
			n.group(name, s, d)
		}
	}
}

// receiver returns the name of the type of a receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// group adds the fields, methods and constants of a group of declarations.
func (n namer) group(name string, s *source, d *ast.GenDecl) {
	typ := ""
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			for _, id := range fieldsOf(spec.Type) {
				n.add(s, name, "field", spec.Name.Name, id)
			}
		case *ast.ValueSpec:
			if d.Tok != token.CONST {
				continue
			}
			// A constant without a value has the type of the previous constant.
			if spec.Type != nil || len(spec.Values) > 0 {
				typ = receiver(spec.Type)
			}
			for _, id := range spec.Names {
				n.add(s, name, "constant", typ, id)
			}
		}
	}
}

// fieldsOf returns the names of the fields of a struct, or of the methods of an interface.
func fieldsOf(e ast.Expr) []*ast.Ident {
	var list *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		list = e.Fields
	case *ast.InterfaceType:
		list = e.Methods
	default:
		return nil
	}
	var names []*ast.Ident
	for _, f := range list.List {
		names = append(names, f.Names...)
	}
	return names
}

// findings returns the pairs of members of one type that are hard to distinguish.
func (n namer) findings() []finding {
	var found []finding
	seen := map[string]bool{} // files for different systems may declare the same type
	for _, m := range n {
		for i, b := range m.names {
			for _, a := range m.names[:i] {
				text := fmt.Sprintf("%s and %s of %s", min(a.name, b.name), max(a.name, b.name), m.typ)
				if areAlike(a.name, b.name) && !seen[path.Dir(b.file)+text] {
					seen[path.Dir(b.file)+text] = true
					found = append(found, finding{b.file, b.line, "names", text, "give one of them another word"})
				}
			}
		}
	}
	return found
}

// areAlike reports whether two names differ only by a letter, a tense or a plural. areAlike compares the words of
// the names, so that terms of the field may differ by a letter: AllocMR and AllocMW. Names of C structs are exempt.
func areAlike(a, b string) bool {
	if strings.Contains(a, "_") || strings.Contains(b, "_") || strings.EqualFold(a, b) {
		return false
	}
	x, y := camelWords(a), camelWords(b)
	if len(x) != len(y) {
		return false
	}
	for len(x) > 0 && strings.EqualFold(x[0], y[0]) {
		x, y = x[1:], y[1:]
	}
	for i := len(x); i > 1 && strings.EqualFold(x[i-1], y[i-1]); i-- {
		x, y = x[:i-1], y[:i-1]
	}
	return len(x) == 1 && areAlikeWords(strings.ToLower(x[0]), strings.ToLower(y[0]))
}

// camelWords splits a name before each capital letter that follows or precedes a small letter.
func camelWords(name string) []string {
	var words []string
	begin := 0
	for i := 1; i < len(name); i++ {
		if !isCapital(name[i]) {
			continue
		}
		if !isCapital(name[i-1]) || i+1 < len(name) && name[i+1] >= 'a' && name[i+1] <= 'z' {
			words = append(words, name[begin:i])
			begin = i
		}
	}
	return append(words, name[begin:])
}

// isCapital reports whether a character is a capital letter.
func isCapital(c byte) bool { return c >= 'A' && c <= 'Z' }

// areAlikeWords reports whether two words differ only by a letter, a tense or a plural.
func areAlikeWords(a, b string) bool {
	if a == b+"f" || b == a+"f" || terms[a] && terms[b] {
		return false // as print and printf, or as verbs of the specification
	}
	if stem(a) == stem(b) {
		return true
	}
	return len(a) >= minAlike && len(b) >= minAlike && differByLetter(a, b)
}

// minAlike is the minimum length of words that areAlikeWords compares letter by letter.
const minAlike = 5

// terms lists words of the field that differ by a letter.
var terms = set("dereg rereg")

// stem removes the ending of a tense or of the plural.
func stem(name string) string {
	for _, ending := range []string{"ing", "ed", "s", "d"} {
		if s, ok := strings.CutSuffix(name, ending); ok && len(s) >= 3 {
			return s
		}
	}
	return name
}

// differByLetter reports whether two names differ by one replaced, added or removed letter.
func differByLetter(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	changed := []rune{rune(b[i])}
	rest := a[i:]
	if len(a) == len(b) {
		changed = append(changed, rune(a[i]))
		rest = a[i+1:]
	}
	return rest == b[i+1:] && !slices.ContainsFunc(changed, unicode.IsDigit)
}

// alikePair reports whether the rule refuses the two names of an example.
func alikePair(example string) bool {
	a, b, _ := strings.Cut(example, " ")
	return areAlike(a, b)
}
