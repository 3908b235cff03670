package main

import (
	"slices"
	"strings"
)

// rule refuses a construction in sentences, or a form of names, lines or subjects of commits.
type rule struct {
	name      string
	refuses   string
	instead   string   // advice that a finding prints
	patterns  []string // patterns that the rule refuses
	except    []string // patterns that permit a match of the patterns above within them
	check     func(*sentence) []span
	overlaps  bool              // a finding of this rule stays even if an earlier rule has a finding in the same words
	elsewhere func(string) bool // for a rule that does not check sentences: reports whether the rule refuses an example

	// Examples. Each example is a sentence of the comment of a variable, or a declaration with its comment.
	wrong, right []string

	compiled, compiledExcept []pattern
}

// apply returns the parts of a sentence that the rule refuses.
func (r *rule) apply(s *sentence) []span {
	found := s.find(r.compiled, r.compiledExcept)
	if r.check != nil {
		found = append(found, r.check(s)...)
	}
	return found
}

// review returns the parts of a sentence that rules refuse, each with the first rule that refuses the part.
func review(s *sentence, report func(*rule, span)) {
	var seen []span
	for _, r := range rules {
		for _, f := range r.apply(s) {
			if !r.overlaps && slices.ContainsFunc(seen, func(o span) bool { return f.begin < o.end && o.begin < f.end }) {
				continue
			}
			seen = append(seen, f)
			report(r, f)
		}
	}
}

var (
	theOne   = compileAll("the one !hand")
	theOther = compileAll("the other|others")
)

// oneAndOther finds sentences with "the one" and "the other".
func oneAndOther(s *sentence) []span {
	ones := s.find(theOne, nil)
	others := s.find(theOther, nil)
	if len(ones) == 0 || len(others) == 0 || others[len(others)-1].begin < ones[0].begin {
		return nil
	}
	return []span{{ones[0].begin, others[len(others)-1].end}}
}

// maxWords is the maximum number of words in a sentence.
const maxWords = 45

// long finds a sentence with too many words.
func long(s *sentence) []span {
	if s.length() <= maxWords {
		return nil
	}
	return []span{{0, min(6, len(s.words))}}
}

var reasons = compileAll(
	"so that", "because", ", since", ", as !well|if|long|soon|in|with|opposed|far|of", ", for !example|instance",
)

// chains finds a second reason in a sentence.
func chains(s *sentence) []span {
	found := s.find(reasons, nil)
	if len(found) < 2 {
		return nil
	}
	return []span{{found[0].begin, found[1].end}}
}

// figures lists words for everyday things that stand for mechanisms.
var figures = set(`
	lane lanes lap laps bell bells door doors knot knots patience patient theft thief mixture stranded owe owes owed
	owing settle settles settled settling bark barks story stories mended mends mend mending believe believes believed
	believing stranger strangers quarrel quarrels courtesy courteous polite rude guilty innocent
	forgive forgives hungry greedy grant grants granted granting`)

// phrases lists patterns of metaphors for mechanisms.
var phrases = compileAll(
	"a|an|the|its|each|every|their|whose|no|this|that|another|own|one|next|<owner> turn|turns !into|off|on|out|up|it",
	"turn|turns of !the", "in|by|of|for turns", "in the hands of", "in vain", "makes|make|gives|give|making way",
	"for good !reason|reasons|measure|or|cause", "house of", "rooms of",
)

// compileAll returns the patterns for a list of sources.
func compileAll(sources ...string) []pattern {
	var list []pattern
	for _, source := range sources {
		list = append(list, compile(source))
	}
	return list
}

// pictures finds words for everyday things.
func pictures(s *sentence) []span {
	found := s.find(phrases, nil)
	for i, w := range s.words {
		if w.class == plain && figures[w.low] && w.text != strings.ToUpper(w.text) {
			found = append(found, span{i, i + 1})
		}
	}
	return found
}
