package main

import (
	"strings"
	"sync"

	"github.com/golangci/misspell"
)

// spelled adds words to the lists. It removes terms of the field and words with two meanings, which have an empty
// correction.
var spelled = map[string]string{
	"acknowledgment": "acknowledgement", "acknowledgments": "acknowledgements",
	"canceled": "cancelled", "canceling": "cancelling",

	"signaled": "", "license": "", "program": "", "disk": "", "dialog": "", "queuing": "", "meter": "", "curb": "",
}

// corrections returns the corrected form of each misspelt or American word.
var corrections = sync.OnceValue(func() map[string]string {
	m := map[string]string{}
	for _, list := range [][]string{misspell.DictMain, misspell.DictBritish} {
		for i := 0; i+1 < len(list); i += 2 {
			m[list[i]] = list[i+1]
		}
	}
	for w, right := range spelled {
		if m[w] = right; right == "" {
			delete(m, w)
		}
	}
	return m
})

// misspelt finds misspelt and American words.
func misspelt(s *sentence) []span {
	var found []span
	for i, w := range s.words {
		if w.class == plain && w.text != strings.ToUpper(w.text) && corrections()[w.low] != "" {
			found = append(found, span{i, i + 1})
		}
	}
	return found
}
