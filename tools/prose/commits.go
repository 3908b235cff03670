package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxSubject is the maximum number of columns of the subject of a commit.
const maxSubject = 72

var (
	subject  = regexp.MustCompile(`^([a-zA-Z0-9_./{},* -]+): ([a-z]\S*)`)
	trailer  = regexp.MustCompile(`^[A-Z][A-Za-z-]+: `)
	reverted = regexp.MustCompile(`^(Revert|Reapply) "`)
)

// notImperative lists words that cannot begin an imperative sentence although their endings do not show this.
var notImperative = set(`
	made kept gave took found ran wrote did was were is are has had left lost told sent held built bought brought chose
	broke drew fell forgot got grew hid knew meant met paid rose said saw sold spoke stood taught thought threw won
	a an the this that these those it its no not some more fewer less better new now also does goes when if`)

// imperatives lists verbs in the imperative that have the ending of another form.
var imperatives = set(`
	need feed seed speed exceed proceed succeed embed shed bleed breed heed weed
	pass focus process address discuss access bypass suppress compress guess miss press dismiss express toss cross bias
	assess stress harness possess canvas trespass progress regress transgress
	bring ring string ping spring swing sling cling sting wring`)

// isImperative reports whether the first word of a subject can be a verb in the imperative.
func isImperative(w string) bool {
	if notImperative[w] {
		return false
	}
	if imperatives[w] {
		return true
	}
	return !strings.HasSuffix(w, "ed") && !strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ing")
}

// commits checks the messages of the commits in a range of revisions.
func commits(root, revisions string) ([]finding, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("git", "-C", root, "log", "--no-merges", "--format=%h%n%B%x00", revisions, "--")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git log %s: %w: %s", revisions, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var found []finding
	for _, entry := range strings.Split(string(out), "\x00") {
		hash, body, ok := strings.Cut(strings.TrimPrefix(entry, "\n"), "\n")
		if ok {
			found = append(found, checkCommit("commit "+hash, body)...)
		}
	}
	return found, nil
}

// checkCommit checks the message of a commit.
func checkCommit(name, body string) []finding {
	first, rest, _ := strings.Cut(body, "\n")
	found := checkSubject(name, first)
	for _, t := range bodyTexts(rest) {
		found = append(found, sentences(name, &t)...)
	}
	return found
}

// checkSubject checks the subject of a commit.
func checkSubject(name, line string) []finding {
	var found []finding
	report := func(text, instead string) {
		found = append(found, finding{name, 1, "subject", text, instead})
	}
	if n := utf8.RuneCountInString(line); n > maxSubject {
		report(fmt.Sprintf("%d columns", n), "shorten the subject to 72 columns")
	}
	if reverted.MatchString(line) {
		return found
	}
	m := subject.FindStringSubmatch(line)
	switch {
	case m == nil:
		report(line, "begin with the package, a colon and a verb in lower case: ib: report ...")
		return found
	case !isImperative(m[2]):
		report(m[2], "use the imperative: add, fix, report, move")
	}
	_, text0, _ := strings.Cut(line, ": ")
	return append(found, sentences(name, &text{kind: message, line: 1, rows: []string{text0}})...)
}

// bodyTexts returns the paragraphs of the body of a message. It omits trailers and indented lines.
func bodyTexts(body string) []text {
	var m markdown
	for i, line := range strings.Split(body, "\n") {
		if !trailer.MatchString(line) {
			m.line(i+2, line)
		}
	}
	m.end()
	for i := range m.texts {
		m.texts[i].kind = message
	}
	return m.texts
}
