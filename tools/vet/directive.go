package vet

import (
	"go/ast"
	"go/token"
	"strings"
)

// A directive is a comment on a separate line, or after code:
//
//	//verbena:nosleep             the function, or a function in the field, must not sleep
//	//verbena:held x.mu           the function is called with the lock held
//	//verbena:program REASON      only threads of one program wait for the lock in this field
//	//verbena:receives            the function accepts the descriptors received with data from a socket
//	//verbena:closes              the function limits concurrent closes of received descriptors
//	//verbena:parses              the function parses bytes of a user
//	//verbena:allow CHECK REASON  the check is suppressed here
//
// A directive in the doc comment of a function applies to the function. Any other directive applies to its own
// line, or to the line below the comment.
const directivePrefix = "//verbena:"

// directive is one directive.
type directive struct {
	verb string
	rest string
	pos  token.Pos
}

func parseDirectives(g *ast.CommentGroup) (list []directive) {
	if g == nil {
		return nil
	}
	for _, c := range g.List {
		text, ok := strings.CutPrefix(c.Text, directivePrefix)
		if !ok {
			continue
		}
		text, _, _ = strings.Cut(text, " // ") // a second comment
		verb, rest, _ := strings.Cut(text, " ")
		list = append(list, directive{verb, strings.TrimSpace(rest), c.Pos()})
	}
	return list
}

// Escape is a position at which a directive disables a check, with the reason.
type Escape struct {
	Check  string
	Reason string
	Pos    token.Pos
	Used   bool
}

// escapes holds the escapes of a program, keyed by the lines to which they apply.
type escapes map[sourceLine][]*Escape

type sourceLine struct {
	file string
	n    int
}

// addEscape adds an escape for its own line, and for the code up to the line below the comment. end is the end of the
// comment.
func (e escapes) addEscape(fset *token.FileSet, d directive, end token.Pos) *Escape {
	check, reason, _ := strings.Cut(d.rest, " ")
	x := &Escape{Check: check, Reason: strings.TrimSpace(reason), Pos: d.pos}
	at := fset.Position(d.pos)
	for n := at.Line; n <= fset.Position(end).Line+1; n++ {
		l := sourceLine{at.Filename, n}
		e[l] = append(e[l], x)
	}
	return x
}

// escapeAt returns the escape of a check at a position, or nil.
func (e escapes) escapeAt(fset *token.FileSet, pos token.Pos, check string) *Escape {
	if !pos.IsValid() {
		return nil
	}
	p := fset.Position(pos)
	for _, x := range e[sourceLine{p.Filename, p.Line}] {
		if x.Check == check {
			x.Used = true
			return x
		}
	}
	return nil
}
