package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// source is a parsed Go file.
type source struct {
	set   *token.FileSet
	file  *ast.File
	docs  map[*ast.CommentGroup]text // the declarations that have doc comments
	texts []text
	check bool // whether the file is a test file
}

// generated matches the comment that marks a generated file.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// parse parses a Go file. It returns nil for a generated file.
func parse(name string, content []byte) (*source, error) {
	if generated.Match(content) {
		return nil, nil
	}
	s := &source{set: token.NewFileSet(), docs: map[*ast.CommentGroup]text{}, check: strings.HasSuffix(name, "_test.go")}
	var err error
	s.file, err = parser.ParseFile(s.set, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(s.file, s.visit)
	for _, g := range s.file.Comments {
		s.comment(g)
	}
	return s, nil
}

// visit records doc comments and collects string literals.
func (s *source) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		s.document(n.Doc, functionKind(s, n), n.Name.Name)
	case *ast.GenDecl:
		if !n.Lparen.IsValid() && len(n.Specs) == 1 {
			kind, name := specKind(n.Specs[0])
			s.document(n.Doc, kind, name)
		}
	case *ast.TypeSpec:
		s.document(n.Doc, typeName, n.Name.Name)
		s.document(n.Comment, value, n.Name.Name)
	case *ast.ValueSpec:
		s.document(n.Doc, value, n.Names[0].Name)
		s.document(n.Comment, value, n.Names[0].Name)
	case *ast.Field:
		s.field(n)
	case *ast.CallExpr:
		s.call(n)
	}
	return true
}

// document records the declaration that a comment documents.
func (s *source) document(g *ast.CommentGroup, kind declared, name string) {
	if g != nil && kind != notDeclared {
		s.docs[g] = text{decl: kind, name: name}
	}
}

// functionKind returns the kind of a function.
func functionKind(s *source, f *ast.FuncDecl) declared {
	if f.Recv == nil && s.check {
		for _, prefix := range []string{"Test", "Benchmark", "Fuzz", "Example"} {
			if strings.HasPrefix(f.Name.Name, prefix) {
				return testFunction
			}
		}
	}
	return function
}

// specKind returns the kind and the name of a declaration.
func specKind(spec ast.Spec) (declared, string) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		return typeName, spec.Name.Name
	case *ast.ValueSpec:
		return value, spec.Names[0].Name
	}
	return notDeclared, ""
}

// field records the comments of a field and collects the help text in its tag.
func (s *source) field(f *ast.Field) {
	name := ""
	if len(f.Names) > 0 {
		name = f.Names[0].Name
	}
	s.document(f.Doc, value, name)
	s.document(f.Comment, value, name)
	if f.Tag == nil {
		return
	}
	if tag, err := strconv.Unquote(f.Tag.Value); err == nil {
		if help, ok := reflect.StructTag(tag).Lookup("help"); ok {
			s.literal(f.Tag.Pos(), help)
		}
	}
}

// speaking lists functions and methods with a text for people as their first argument.
var speaking = set("Errorf Fatalf Error Fatal Skip Skipf")

// call collects the text of an error, of a test failure or of the help of a flag.
func (s *source) call(c *ast.CallExpr) {
	f, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || len(c.Args) == 0 {
		return
	}
	pkg, _ := f.X.(*ast.Ident)
	switch {
	case speaking[f.Sel.Name], pkg != nil && pkg.Name == "errors" && f.Sel.Name == "New":
		s.argument(c.Args[0])
	case pkg != nil && pkg.Name == "flag" && len(c.Args) >= 3:
		s.argument(c.Args[len(c.Args)-1])
	}
}

// argument collects a string literal, or a concatenation of string literals.
func (s *source) argument(e ast.Expr) {
	if value, ok := constant(e); ok {
		s.literal(e.Pos(), value)
	}
}

// constant returns the value of a string literal, or of a concatenation of string literals.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			value, err := strconv.Unquote(e.Value)
			return value, err == nil
		}
	case *ast.BinaryExpr:
		x, ok := constant(e.X)
		y, ok2 := constant(e.Y)
		return x + y, e.Op == token.ADD && ok && ok2
	}
	return "", false
}

// literal adds the text of a literal, one row for each line.
func (s *source) literal(pos token.Pos, value string) {
	line := s.set.Position(pos).Line
	for _, l := range strings.Split(value, "\n") {
		if strings.TrimSpace(l) != "" {
			s.texts = append(s.texts, text{kind: literal, line: line, rows: []string{l}})
		}
	}
}

// comment adds the paragraphs of a comment.
func (s *source) comment(g *ast.CommentGroup) {
	p := paragraphs{source: s, like: s.docs[g]}
	p.like.kind, p.like.head, p.like.testFile = comment, p.like.decl != notDeclared, s.check
	for _, c := range g.List {
		line := s.set.Position(c.Pos()).Line
		if body, ok := strings.CutPrefix(c.Text, "//"); ok {
			p.line(line, body)
			continue
		}
		for i, body := range strings.Split(strings.TrimSuffix(c.Text[2:], "*/"), "\n") {
			p.line(line+i, " "+strings.TrimPrefix(strings.TrimSpace(body), "*"))
		}
	}
	p.end()
}

// paragraphs splits a comment into paragraphs. It omits directives and preformatted lines.
type paragraphs struct {
	*source
	like    text // the kind and the declaration, which are equal for all paragraphs
	current text
	list    bool // whether the current paragraph is an item of a list
}

var (
	directive = regexp.MustCompile(`^([a-z0-9]+:[a-z0-9]|line |export |extern )`)
	item      = regexp.MustCompile(`^\s+([-*+•]|[0-9]+[.)]) +`)
)

// line adds a line of a comment, without the comment marker.
func (p *paragraphs) line(number int, body string) {
	switch {
	case directive.MatchString(body) || strings.HasPrefix(body, "nolint"):
		return
	case strings.TrimSpace(body) == "":
		p.end()
		return
	}
	if marker := item.FindString(body); marker != "" && len(marker) > 3 {
		p.end()
		p.list = true
		body = body[len(marker):]
	} else if strings.HasPrefix(body, "\t") || strings.HasPrefix(body, "   ") {
		if !p.list {
			p.end()
			return
		}
	}
	if strings.HasPrefix(body, " # ") {
		p.end()
		body = body[3:]
	}
	if len(p.current.rows) == 0 {
		p.current = p.like
		p.current.line = number
	}
	for len(p.current.rows) < number-p.current.line {
		p.current.rows = append(p.current.rows, "")
	}
	p.current.rows = append(p.current.rows, body)
}

// end ends the current paragraph.
func (p *paragraphs) end() {
	if len(p.current.rows) > 0 {
		p.texts = append(p.texts, p.current)
		p.like.head = false
	}
	p.current, p.list = text{}, false
}
