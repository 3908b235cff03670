package main

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the source of a text.
type kind uint8

const (
	comment kind = 1 << iota
	page         // text of a Markdown page
	literal      // text of an error, of a test failure or of the help of a flag
	message      // text of a commit message
)

// declared is the kind of declaration that a comment documents.
type declared uint8

const (
	notDeclared declared = iota
	function
	typeName
	value // a variable, a constant or a field
	testFunction
)

// text is a paragraph: one or more sentences on consecutive rows.
type text struct {
	kind kind
	line int // the number of the first row in the file
	rows []string
	decl declared
	name string // the name of the declaration
	head bool   // whether the paragraph begins a doc comment

	testFile bool // whether the text is in a test file
}

// class is the lexical class of a word.
type class uint8

const (
	plain class = iota
	code        // an identifier, a code span, a quotation, a number or a format verb
	mark        // punctuation
)

// word is a word or a punctuation mark of a sentence.
type word struct {
	text  string
	low   string // text in lower case, without the ending of a genitive
	line  int
	class class
}

// sentence is a sentence of a text.
type sentence struct {
	*text
	words []word
	head  bool // whether the sentence begins a doc comment
}

// abbreviations lists words with a full stop that does not end a sentence.
var abbreviations = set("e.g i.e cf vs etc fig sec ch no approx resp")

// set returns the set of the words in a space-separated list.
func set(list string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(list) {
		m[w] = true
	}
	return m
}

// split returns the sentences of a text.
func split(t *text) []sentence {
	l := lexer{text: t}
	for i, line := range t.rows {
		l.line = t.line + i
		l.scan(line)
		if strings.HasSuffix(line, ":") {
			l.end() // a list or an example follows
		}
	}
	l.end()
	return l.out
}

// lexer splits a text into words and sentences.
type lexer struct {
	*text
	line  int
	words []word
	out   []sentence
	open  string // delimiter of a quotation or a code span that began on an earlier line
}

// end ends the current sentence.
func (l *lexer) end() {
	if len(l.words) > 0 {
		l.out = append(l.out, sentence{text: l.text, words: l.words, head: l.head && len(l.out) == 0})
	}
	l.words, l.open = nil, ""
}

// scan splits a line at blanks, quotations and code spans.
func (l *lexer) scan(line string) {
	if l.open != "" {
		line = l.close(line)
	}
	for len(line) > 0 {
		r, size := utf8.DecodeRuneInString(line)
		switch {
		case unicode.IsSpace(r):
			line = line[size:]
		case r == '`' || r == '"':
			line = l.span(line)
		default:
			line = l.chunk(line)
		}
	}
}

// span adds a code span or a quotation as one word. It returns the rest of the line.
func (l *lexer) span(line string) string {
	delimiter := line[:1]
	if strings.HasPrefix(line, "``") {
		delimiter = "``"
	}
	l.open = delimiter
	return l.close(line[len(delimiter):])
}

// close adds the text up to the delimiter of a code span or a quotation. It returns the rest of the line.
func (l *lexer) close(line string) string {
	body, rest, found := strings.Cut(line, l.open)
	l.add(body, code)
	if !found {
		return ""
	}
	l.open = ""
	return l.tail(rest)
}

// tail adds the punctuation at the beginning of rest, and ends the sentence at a full stop.
func (l *lexer) tail(rest string) string {
	for len(rest) > 0 && strings.IndexByte(".,;:!?)'", rest[0]) >= 0 {
		l.add(rest[:1], mark)
		next := rest[1:]
		if isStop(rest[0]) && (next == "" || next[0] == ' ') {
			l.end()
		}
		rest = next
	}
	return rest
}

// isStop reports whether a character ends a sentence.
func isStop(c byte) bool { return c == '.' || c == '!' || c == '?' }

// chunk adds the characters up to the next blank or quotation. It returns the rest of the line.
func (l *lexer) chunk(line string) string {
	n := strings.IndexAny(line, " \t`\"")
	if n < 0 {
		n = len(line)
	}
	chunk, rest := line[:n], line[n:]
	for chunk != "" && strings.IndexByte("([{'*", chunk[0]) >= 0 {
		l.add(chunk[:1], mark)
		chunk = chunk[1:]
	}
	body := strings.TrimRight(chunk, ".,;:!?)]}'*")
	marks := chunk[len(body):]
	if body == "" {
		l.marks(marks, rest)
		return rest
	}
	// A call of a function keeps its parentheses: F().
	if n := strings.IndexByte(body, '('); n > 0 {
		l.add(body, code)
	} else if strings.HasPrefix(marks, ")") && strings.HasSuffix(body, "(") {
		l.add(body, code)
	} else {
		l.body(body)
	}
	l.marks(marks, rest)
	return rest
}

// body adds a word, or the words of a compound with dashes.
func (l *lexer) body(body string) {
	if isCode(body) {
		l.add(body, code)
		return
	}
	l.add(body, plain)
}

// marks adds punctuation. It ends the sentence at a full stop, unless the full stop belongs to an abbreviation.
func (l *lexer) marks(marks, rest string) {
	last := ""
	if len(l.words) > 0 {
		last = strings.ToLower(l.words[len(l.words)-1].text)
	}
	for i := range len(marks) {
		l.add(marks[i:i+1], mark)
	}
	if rest != "" && rest[0] != ' ' && rest[0] != '\t' {
		return
	}
	if strings.Contains(marks, "..") || abbreviations[last] {
		return
	}
	if strings.ContainsAny(marks, ".!?") {
		l.end()
	}
}

// add adds a word or a punctuation mark.
func (l *lexer) add(s string, c class) {
	w := word{text: s, line: l.line, class: c}
	switch c {
	case plain:
		w.low = strings.TrimSuffix(strings.ToLower(s), "'s")
	case mark:
		w.low = s
	}
	if c == plain && len(l.words) == 0 && len(l.out) == 0 && l.head && s == l.name {
		w.class, w.low = code, ""
	}
	l.words = append(l.words, w)
}

// isCode reports whether a word is an identifier, a path, a number or a format verb.
func isCode(s string) bool {
	lower := false
	for i, r := range s {
		switch {
		case unicode.IsDigit(r), strings.ContainsRune("_./=<>&*+#@%$\\{}[]()|~^:;,", r):
			return true
		case unicode.IsUpper(r) && i > 0 && lower:
			return true
		case unicode.IsLower(r):
			lower = true
		}
	}
	return false
}

// length returns the number of words of a sentence. It does not count numbers, operators and words in parentheses.
func (s *sentence) length() int {
	n, depth := 0, 0
	for _, w := range s.words {
		switch {
		case w.text == "(":
			depth++
		case w.text == ")" && depth > 0:
			depth--
		case w.class != mark && depth == 0 && strings.ContainsFunc(w.text, unicode.IsLetter):
			n++
		}
	}
	return n
}

// quote returns the words from i to the word before j as in the source.
func (s *sentence) quote(i, j int) string {
	var b strings.Builder
	for k, w := range s.words[i:j] {
		if k > 0 && (w.class != mark || strings.Contains("([{", w.text)) {
			b.WriteByte(' ')
		}
		b.WriteString(w.text)
	}
	return b.String()
}

// excerpt returns the words of a span. It omits the middle of a long span.
func (s *sentence) excerpt(at span) string {
	const most, first, last = 9, 4, 2
	if at.end-at.begin <= most {
		return s.quote(at.begin, at.end)
	}
	return s.quote(at.begin, at.begin+first) + " ... " + s.quote(at.end-last, at.end)
}
