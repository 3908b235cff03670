package main

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// A sentence of a comment may begin with a lower-case word only if the word is a name. If the package does not use the
// name, it was probably renamed.

// usedNames collects, for each folder, the names in the code and the names with which sentences of comments begin.
type usedNames map[string]*folderNames

type folderNames struct {
	used   map[string]bool
	begins []finding // text is the name
}

// beginning matches the name at the beginning of a sentence, with its verb.
var beginning = regexp.MustCompile(`(?:^|[a-z0-9)]\. )([a-z][A-Za-z0-9]*) (?:[a-z]+s|may|must|cannot|can|also|then|never|does) `)

// file adds the names of a file.
func (u usedNames) file(name string, content []byte, s *source) {
	dir := path.Dir(name)
	if u[dir] == nil {
		u[dir] = &folderNames{used: map[string]bool{path.Base(dir): true}}
	}
	f := u[dir]
	ast.Inspect(s.file, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			f.used[id.Name] = true
		}
		return true
	})
	for _, g := range s.file.Comments {
		at := s.set.Position(g.Pos())
		if lines := content[at.Offset-at.Column+1 : at.Offset]; strings.TrimSpace(string(lines)) == "" {
			_, documents := s.docs[g]
			f.addBeginnings(name, at.Line, g.Text(), documents)
		}
	}
}

// addBeginnings adds the names with which the sentences of a comment begin. The first sentence of a comment that
// documents no declaration may be a note in lower case.
func (f *folderNames) addBeginnings(name string, line int, comment string, documents bool) {
	one := strings.ReplaceAll(comment, "\n", " ")
	for _, m := range beginning.FindAllStringSubmatchIndex(one, -1) {
		word := comment[m[2]:m[3]]
		if !lowerCaseTerms[word] && (m[2] > 0 || documents) {
			f.begins = append(f.begins, finding{file: name, line: line + strings.Count(comment[:m[2]], "\n"), rule: "stale",
				text:    word,
				instead: "write the current name"})
		}
	}
}

// lowerCaseTerms lists the proper names with which a sentence may begin.
var lowerCaseTerms = set("rxe librdmacm libibverbs libfabric perftest rping rdma rblk rdmanet tcpdump tshark verbenavet " +
	"systemd seccomp netem iproute2 pyverbs go gofmt gopls staticcheck cgo git npm ssh")

// findings returns the names that the package does not use.
func (u usedNames) findings() (found []finding) {
	for _, f := range u {
		for _, b := range f.begins {
			if !f.used[b.text] {
				found = append(found, b)
			}
		}
	}
	return found
}

// beginsStale reports whether the rule refuses an example: the declared names, a colon, and a comment.
func beginsStale(example string) bool {
	names, comment, _ := strings.Cut(example, ": ")
	f := folderNames{used: set(names)}
	f.addBeginnings("a.go", 1, comment+" ", true)
	return len(usedNames{"a": &f}.findings()) > 0
}
