package main

import (
	"go/token"
	"slices"
	"strings"
)

// form finds a doc comment that does not begin with the name of the declaration and a verb.
func form(s *sentence) []span {
	if !s.head || s.decl != function && s.decl != typeName || s.kind != comment {
		return nil
	}
	i := s.afterName()
	if i < 0 {
		if token.IsExported(s.name) && !s.testFile && s.words[0].low != "deprecated" {
			return []span{{0, min(3, len(s.words))}}
		}
		return nil
	}
	for i < len(s.words) && s.words[i].class == plain && isAdverb(s.words[i].low) {
		i++
	}
	if i == len(s.words) || isPredicate(&s.words[i]) || s.words[i].class == plain && strings.HasSuffix(s.name, "s") {
		return nil
	}
	return []span{{0, i + 1}}
}

var (
	nouns = compileAll("is|are|was the|those|that|all|one|two", "has a|an|the")
	// parts lists nouns that stand for functions.
	parts = compileAll("is|are the <x>? <x>? " +
		"implementation|handler|callback|entrypoint|entry|body|part|inverse|function|main|loop|same|variant|version|step|state|opposite|counterpart|equivalent|method|" +
		"handlers|callbacks|functions|methods")
)

// noun finds the doc comment of a function that has a noun in the place of the verb.
func noun(s *sentence) []span {
	if !s.head || s.decl != function || s.kind != comment {
		return nil
	}
	i := s.afterName()
	if i < 0 || i >= len(s.words) {
		return nil
	}
	if s.longest(nouns, i) < 0 || s.longest(parts, i) >= 0 {
		return nil
	}
	return []span{{0, i + 2}}
}

// afterName returns the index of the word after the name at the beginning of a doc comment, or -1 if the comment does
// not begin with the name.
func (s *sentence) afterName() int {
	i := 0
	if articles[s.words[0].low] {
		i++
	}
	for i < len(s.words) && i < 2 && s.words[0].class == plain && !isNamed(s.words[i].text, s.name) {
		i++ // as in "The reader R is" or "Method M returns"
	}
	if i == len(s.words) || !isNamed(s.words[i].text, s.name) {
		return -1
	}
	i++
	// Arguments and parentheses may follow the name: "F(x) returns" and "F (and G) return".
	for i < len(s.words) && strings.Contains("([", s.words[i].text) {
		end := s.index(i, ")", "]")
		if end < 0 {
			return len(s.words)
		}
		i = end + 1
	}
	return i
}

var (
	articles = set("a an the")
	adverbs  = set("also never always only then still just first both")
)

// isAdverb reports whether a word can stand between a subject and its verb.
func isAdverb(w string) bool { return adverbs[w] || strings.HasSuffix(w, "ly") }

// isNamed reports whether a word is a given name, a call of it, its plural, or one of its methods.
func isNamed(w, name string) bool {
	if _, method, ok := strings.Cut(w, "."); ok && method == name {
		return true
	}
	rest, ok := strings.CutPrefix(w, name)
	return ok && (rest == "" || rest == "s" || rest == "'s" || strings.IndexByte("([./", rest[0]) >= 0)
}

// isPredicate reports whether a word can follow the name in a doc comment. The word is then a verb, or the
// beginning of a parenthesis or of a list of names.
func isPredicate(w *word) bool {
	switch w.class {
	case mark:
		return w.text == "," || w.text == "("
	case code:
		return true
	}
	return isVerb(w.low) || isConnective(w.low)
}

// isConnective reports whether a word can join names.
func isConnective(w string) bool { return w == "and" || w == "or" || w == "with" || w == "for" }

// index returns the index of the first word at or after i that belongs to a set of words, or -1.
func (s *sentence) index(i int, words ...string) int {
	for ; i < len(s.words); i++ {
		if slices.Contains(words, s.words[i].low) {
			return i
		}
	}
	return -1
}
