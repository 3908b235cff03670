package main

import (
	"regexp"
	"strings"
)

var (
	fence     = regexp.MustCompile("^ *(```+|~~~+)")
	bullet    = regexp.MustCompile(`^ *([-*+]|[0-9]+[.)]) +`)
	heading   = regexp.MustCompile(`^#+ +`)
	separator = regexp.MustCompile(`^ *\|?[-:| ]+$`)
	htmlNote  = regexp.MustCompile(`<!--.*?-->|</?[a-z][^>]*>`)
	linkTo    = regexp.MustCompile(`\]\([^)]*\)|\]\[[^]]*\]`)
)

// markdown splits a page into paragraphs.
type markdown struct {
	texts   []text
	current text
	fence   string // marker that ends the current code block
	note    bool   // whether the line is in an HTML comment of several lines
	list    bool   // whether the line is in a list, where paragraphs are indented
}

// parseMarkdown returns the paragraphs of a page, without its code blocks.
func parseMarkdown(content []byte) []text {
	var m markdown
	for i, line := range strings.Split(string(content), "\n") {
		if !m.skip(line) {
			m.line(i+1, line)
		}
	}
	m.end()
	return m.texts
}

// skip reports whether a line belongs to a code block or to an HTML comment.
func (m *markdown) skip(line string) bool {
	if marker := strings.TrimSpace(fence.FindString(line)); marker != "" || m.fence != "" {
		m.end()
		switch {
		case m.fence == "":
			m.fence = marker
		case strings.HasPrefix(marker, m.fence):
			m.fence = ""
		}
		return true
	}
	if m.note || strings.HasPrefix(line, "<!--") && !strings.Contains(line, "-->") {
		m.note = !strings.Contains(line, "-->")
		return true
	}
	return false
}

// line adds a line of text.
func (m *markdown) line(number int, line string) {
	line = linkTo.ReplaceAllString(htmlNote.ReplaceAllString(line, " "), "")
	indented := strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")
	switch marker := bullet.FindString(line); {
	case strings.TrimSpace(line) == "":
		m.end()
	case indented && !m.list && len(m.current.rows) == 0, separator.MatchString(line):
		m.end()
	case strings.HasPrefix(line, "|"):
		m.row(number, line)
	case heading.MatchString(line):
		m.list = false
		m.one(number, heading.ReplaceAllString(line, ""))
	case marker != "":
		m.end()
		m.list = true
		m.add(number, line[len(marker):])
	default:
		m.list = m.list && (strings.HasPrefix(line, " ") || len(m.current.rows) > 0)
		m.add(number, strings.TrimPrefix(line, "> "))
	}
}

// row adds the cells of a row of a table.
func (m *markdown) row(number int, line string) {
	for _, cell := range strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "/"), "|") {
		m.one(number, cell)
	}
}

// one adds a paragraph that consists of one line.
func (m *markdown) one(number int, line string) {
	m.end()
	m.add(number, line)
	m.end()
}

// add adds a line to the current paragraph.
func (m *markdown) add(number int, line string) {
	if len(m.current.rows) == 0 {
		m.current = text{kind: page, line: number}
	}
	m.current.rows = append(m.current.rows, line)
}

// end ends the current paragraph.
func (m *markdown) end() {
	if len(m.current.rows) > 0 {
		m.texts = append(m.texts, m.current)
	}
	m.current = text{}
}
