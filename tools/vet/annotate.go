package vet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// directives holds the directives of the checked packages.
type directives struct {
	graph         *callGraph
	decls         map[types.Object][]directive
	escapes       escapes
	all           []*Escape
	nosleepFields map[*types.Var]bool
	nosleepLines  map[sourceLine]bool
	programLocks  map[*types.Var]*Escape
	problems      []Report // errors in directives
}

func newDirectives(g *callGraph) directives {
	return directives{
		graph: g, decls: map[types.Object][]directive{}, escapes: escapes{}, nosleepFields: map[*types.Var]bool{},
		nosleepLines: map[sourceLine]bool{}, programLocks: map[*types.Var]*Escape{},
	}
}

// readDirectives reads the directives in a package's files.
func (ds *directives) readDirectives(files []*ast.File, info *types.Info) {
	for _, f := range files {
		ofDecl := map[token.Pos]bool{}
		take := func(g *ast.CommentGroup, obj types.Object) {
			for _, d := range parseDirectives(g) {
				ofDecl[d.pos] = true
				if obj != nil {
					ds.decls[obj] = append(ds.decls[obj], d)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				take(n.Doc, info.Defs[n.Name])
			case *ast.Field:
				names := n.Names
				if len(names) == 0 { // an embedded field
					if id := embeddedName(n.Type); id != nil {
						names = []*ast.Ident{id}
					}
				}
				for _, name := range names {
					take(n.Doc, info.Defs[name])
					take(n.Comment, info.Defs[name])
				}
			}
			return true
		})
		for _, g := range f.Comments {
			for _, d := range parseDirectives(g) {
				switch d.verb {
				case "allow":
					if !ofDecl[d.pos] {
						ds.all = append(ds.all, ds.escapes.addEscape(ds.graph.Fset, d, g.End()))
					}
				case "nosleep":
					if !ofDecl[d.pos] { // the directive is on a function literal
						at := ds.graph.Fset.Position(d.pos)
						ds.nosleepLines[sourceLine{at.Filename, at.Line}] = true
						ds.nosleepLines[sourceLine{at.Filename, at.Line + 1}] = true
					}
				case "held":
					if !ofDecl[d.pos] {
						ds.addProblem(d.pos, "held belongs into the comment of a function")
					}
				case "program":
					if !ofDecl[d.pos] {
						ds.addProblem(d.pos, "program belongs to the field that is a lock")
					}
				case "receives", "closes", "parses":
					if !ofDecl[d.pos] {
						ds.addProblem(d.pos, d.verb+" belongs into the comment of a function")
					}
				default:
					ds.addProblem(d.pos, "no such directive: "+directivePrefix+d.verb)
				}
			}
		}
	}
	for obj, list := range ds.decls {
		for _, d := range list {
			v, ok := obj.(*types.Var)
			switch {
			case !ok && d.verb == "program":
				ds.addProblem(d.pos, "program belongs to the field that is a lock")
			case ok && d.verb == "nosleep":
				ds.nosleepFields[v] = true
			case ok && d.verb == "program":
				x := ds.programLocks[v]
				if x == nil {
					x = &Escape{Check: program, Reason: d.rest, Pos: d.pos}
					ds.all = append(ds.all, x)
				}
				ds.programLocks[v] = x
			}
		}
	}
}

// embeddedName returns the identifier that names an embedded field, or nil.
func embeddedName(t ast.Expr) *ast.Ident {
	switch t := t.(type) {
	case *ast.Ident:
		return t
	case *ast.StarExpr:
		return embeddedName(t.X)
	case *ast.SelectorExpr:
		return t.Sel
	case *ast.IndexExpr:
		return embeddedName(t.X)
	}
	return nil
}

func (ds *directives) addProblem(pos token.Pos, text string) {
	ds.problems = append(ds.problems, Report{Check: "directive", Pos: pos, Text: text})
}

// applyDirectives applies the directives to a function.
func (p *Program) applyDirectives(f *function) {
	o := f.Object()
	if o == nil {
		if f.Origin() != nil {
			o = f.Origin().Object()
		}
	}
	if fn, ok := o.(*types.Func); ok && f.Parent() == nil {
		for _, d := range p.decls[fn.Origin()] {
			switch d.verb {
			case "nosleep":
				f.nosleep = true
			case "held":
				if !f.isWrapper() { // held.go looks through wrappers
					p.parseHeld(f, d)
				}
			case "allow":
				check, reason, _ := strings.Cut(d.rest, " ")
				x := p.findOrAddEscape(d, check, reason)
				f.allowed[check] = x
			}
		}
	}
	at := p.Fset.Position(f.Pos())
	if f.Parent() != nil && p.nosleepLines[sourceLine{at.Filename, at.Line}] {
		f.nosleep = true
	}
}

// findOrAddEscape returns the escape of a function, once for all of its instances.
func (ds *directives) findOrAddEscape(d directive, check, reason string) *Escape {
	for _, x := range ds.all {
		if x.Pos == d.pos {
			return x
		}
	}
	x := &Escape{Check: check, Reason: strings.TrimSpace(reason), Pos: d.pos}
	ds.all = append(ds.all, x)
	return x
}

// heldPath identifies a lock that is held at a call of a function. The path begins with a parameter and continues
// with fields.
type heldPath struct {
	param  int
	fields string
}

// parseHeld parses the locks of a held directive. Each lock is the name of the receiver or a parameter, followed by
// fields.
func (p *Program) parseHeld(f *function, d directive) {
	for _, expr := range strings.Split(d.rest, ",") {
		names := strings.Split(strings.TrimSpace(expr), ".")
		var t types.Type
		param := 0
		for i, v := range f.Params {
			if v.Name() == names[0] {
				t, param = v.Type(), i
			}
		}
		if k := pkgOf(f.Function); t == nil && len(names) == 1 && k != nil {
			if v, ok := k.Scope().Lookup(names[0]).(*types.Var); ok && isMutex(deref(v.Type())) {
				f.held = append(f.held, p.locks.getOrAddLock(v.Pkg().Path()+"."+v.Name(), typeName(v)))
				continue
			}
		}
		if t == nil && f.Signature.Recv() != nil { // the name may be a field of the receiver
			t, names = f.Signature.Recv().Type(), append([]string{""}, names...)
		}
		if t == nil {
			p.addProblem(d.pos, fmt.Sprintf("held %s: %s is no parameter of %s", expr, names[0], f.Name()))
			return
		}
		var l *lock
		path := heldPath{param: param}
		for _, name := range names[1:] {
			obj, index, _ := types.LookupFieldOrMethod(t, true, pkgOf(f.Function), name)
			v, ok := obj.(*types.Var)
			if !ok {
				p.addProblem(d.pos, fmt.Sprintf("held %s: there is no field %s", expr, name))
				return
			}
			l = p.locks.fieldLock(ownerOf(t, index), v)
			t = v.Type()
			for _, i := range index {
				path.fields += fmt.Sprintf(".%d", i)
			}
		}
		if l == nil || !isMutex(deref(t)) {
			p.addProblem(d.pos, fmt.Sprintf("held %s: that is no lock", expr))
			return
		}
		if !slices.Contains(f.held, l) {
			f.held = append(f.held, l)
			if f.heldBy == nil {
				f.heldBy = map[*lock]heldPath{}
			}
			f.heldBy[l] = path
		}
	}
}

// ownerOf returns the struct type that contains the field at the end of an index path.
func ownerOf(t types.Type, index []int) types.Type {
	t = deref(t)
	for _, i := range index[:len(index)-1] {
		t = deref(t.Underlying().(*types.Struct).Field(i).Type())
	}
	return t
}
