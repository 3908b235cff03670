package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns = 120
	maxLiteral = 60 // maximum length of a string literal that need not be broken
)

// tooLong returns a finding if a line is too long. A line with a URL may be too long.
func tooLong(file string, number int, line string) []finding {
	columns := utf8.RuneCountInString(line) // a tab counts as one column
	if columns <= maxColumns || strings.Contains(line, "://") {
		return nil
	}
	text := fmt.Sprintf("%d columns", columns)
	return []finding{{file, number, "columns", text, "break the line at 120 columns"}}
}

// goLines returns findings for the lines of a Go file that are too long. It omits lines with long string literals.
func goLines(file string, content []byte, s *source) []finding {
	literals := s.literalLines()
	var found []finding
	for i, line := range strings.Split(string(content), "\n") {
		if !literals[i+1] {
			found = append(found, tooLong(file, i+1, line)...)
		}
	}
	return found
}

// literalLines returns the lines that contain long string literals or raw strings of several lines.
func (s *source) literalLines() map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		l, ok := n.(*ast.BasicLit)
		if ok && l.Kind == token.STRING && (len(l.Value) > maxLiteral || strings.Contains(l.Value, "\n")) {
			first := s.set.Position(l.Pos()).Line
			for i := range strings.Count(l.Value, "\n") + 1 {
				lines[first+i] = true
			}
		}
		return true
	})
	return lines
}

// pageLines returns findings for the lines of paragraphs of a page that are too long. It omits rows of tables.
func pageLines(file string, content []byte, texts []text) []finding {
	lines := strings.Split(string(content), "\n")
	var found []finding
	last := 0
	for _, t := range texts {
		for i := range t.rows {
			number := t.line + i
			if line := lines[number-1]; number > last && !strings.HasPrefix(line, "|") {
				found = append(found, tooLong(file, number, line)...)
			}
			last = max(last, number)
		}
	}
	return found
}

// numbered returns an example sentence with n words.
func numbered(n int) string {
	return strings.TrimSuffix(strings.Repeat("word ", n), " ")
}
