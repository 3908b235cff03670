package main

import (
	"slices"
	"strings"
)

// pattern describes consecutive words of a sentence. The source of a pattern is a list of elements, separated by
// blanks:
//
//	is|are      one of these words, punctuation marks or classes
//	!that|,     any word or mark but these, or the end of the sentence
//	so?         an optional element
//	<past>      a word of a class (see classes)
//	^, $        the beginning of the sentence, the end of it
//	^doc        the beginning of the comment of a declaration
type pattern struct {
	elements []element
	first    map[string]bool // the words with which the pattern can begin; nil means any word
}

// element is an element of a pattern.
type element struct {
	words    map[string]bool
	classes  []func(*word) bool
	not      bool
	optional bool
	begin    bool // matches the beginning of the sentence
	doc      bool // matches the beginning of a doc comment
	end      bool // matches the end of the sentence
}

// classes maps the names of classes in patterns to functions that report whether a word is in the class.
var classes = map[string]func(*word) bool{
	"x":      func(w *word) bool { return w.class != mark },
	"code":   func(w *word) bool { return w.class == code },
	"past":   func(w *word) bool { return w.class == plain && isPast(w.low) },
	"verb":   func(w *word) bool { return w.class == plain && isVerb(w.low) },
	"owner":  isOwner,
	"other":  func(w *word) bool { return isOwner(w) && w.low == "another" },
	"thing":  listed(things),
	"person": listed(persons),
	"base":   listed(bases),
	"pure":   listed(pures),
	"ly":     func(w *word) bool { return w.class == plain && strings.HasSuffix(w.low, "ly") },
	"stop":   func(w *word) bool { return w.class == mark && strings.Contains(".,;:)", w.text) },
}

// isOwner reports whether a word is a genitive, and not the contraction of a verb.
func isOwner(w *word) bool {
	return strings.HasSuffix(w.text, "'s") && !contractions[w.low] && !strings.Contains(w.text, "/")
}

// contractions lists words that can precede the contraction of "is" or "has".
var contractions = set("it that what there here who he she let where how")

// listed returns the class of the words in a list.
func listed(words map[string]bool) func(*word) bool {
	return func(w *word) bool { return w.class == plain && words[w.low] }
}

// compile returns the pattern for a source.
func compile(source string) pattern {
	var p pattern
	for _, field := range strings.Fields(source) {
		p.elements = append(p.elements, compileElement(field))
	}
	if e := p.elements[0]; !e.optional && !e.not && len(e.words) > 0 && len(e.classes) == 0 {
		p.first = e.words
	}
	return p
}

// compileElement returns the element for a source.
func compileElement(field string) element {
	switch field {
	case "^":
		return element{begin: true}
	case "^doc":
		return element{doc: true}
	case "$":
		return element{end: true}
	}
	var e element
	field, e.not = strings.CutPrefix(field, "!")
	if len(field) > 1 {
		field, e.optional = strings.CutSuffix(field, "?")
	}
	e.words = map[string]bool{}
	for _, name := range strings.Split(field, "|") {
		if class, ok := classes[strings.Trim(name, "<>")]; ok && name[0] == '<' {
			e.classes = append(e.classes, class)
		} else {
			e.words[name] = true
		}
	}
	return e
}

// matches reports whether an element matches a word.
func (e *element) matches(w *word) bool {
	is := e.words[w.low]
	for _, class := range e.classes {
		is = is || class(w)
	}
	return is != e.not
}

// match returns the end of the match of elements that begins at word i, or -1 if there is no match.
func (s *sentence) match(elements []element, i int) int {
	if len(elements) == 0 {
		return i
	}
	e, rest := &elements[0], elements[1:]
	switch {
	case e.begin && i == 0, e.doc && i == 0 && s.head, e.end && s.isEnd(i):
		return s.match(rest, i)
	case e.begin, e.doc, e.end:
		return -1
	}
	if i < len(s.words) && e.matches(&s.words[i]) {
		if end := s.match(rest, i+1); end >= 0 {
			return end
		}
	}
	if e.optional || e.not && i == len(s.words) {
		return s.match(rest, i)
	}
	return -1
}

// isEnd reports whether the sentence has no words at or after index i.
func (s *sentence) isEnd(i int) bool {
	return !slices.ContainsFunc(s.words[i:], func(w word) bool { return w.class != mark })
}

// span is the part of a sentence from the word with index begin to the word before index end.
type span struct{ begin, end int }

// find returns the matches of patterns. It omits matches that begin within a match of an exception.
func (s *sentence) find(patterns, exceptions []pattern) []span {
	var found []span
	for i := range s.words {
		end := s.longest(patterns, i)
		if end < 0 || s.excepted(exceptions, i) {
			continue
		}
		if n := len(found); n > 0 && i < found[n-1].end {
			continue
		}
		found = append(found, span{i, end})
	}
	return found
}

// longest returns the end of the longest match that begins at word i, or -1.
func (s *sentence) longest(patterns []pattern, i int) int {
	longest := -1
	for k := range patterns {
		p := &patterns[k]
		if p.first != nil && !p.first[s.words[i].low] {
			continue
		}
		longest = max(longest, s.match(p.elements, i))
	}
	return longest
}

// reach is the maximum number of words between the beginning of an exception and the beginning of a finding.
const reach = 4

// excepted reports whether an exception covers word i.
func (s *sentence) excepted(exceptions []pattern, i int) bool {
	for j := max(0, i-reach); j <= i; j++ {
		if end := s.longest(exceptions, j); end > i {
			return true
		}
	}
	return false
}
