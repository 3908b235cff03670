package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
)

// TestMakePatternsMatchTests tests that each alternative of a pattern for `go test -run` in the Makefiles matches a
// test of its packages. Without this test, a renamed test would no longer run, unnoticed.
func TestMakePatternsMatchTests(t *testing.T) {
	command := regexp.MustCompile(`\$\(GO\) (test [^;|]*?)?-run '([^']+)'(.*)`)
	checked := 0
	for _, file := range []string{"Makefile", "more.mk"} {
		text := strings.ReplaceAll(readPage(t, file), "\\\n", " ")
		for line := range strings.Lines(text) {
			m := command.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			dir := ""
			if c := regexp.MustCompile(`-C (\S+)`).FindStringSubmatch(m[1]); c != nil {
				dir = c[1]
			}
			tests := findTests(t, dir, strings.Fields(m[3]))
			pattern := strings.ReplaceAll(m[2], "$$", "$")
			for _, p := range alternatives(t, pattern) {
				checked++
				if !p.MatchString(tests) {
					t.Errorf("%s: -run '%s': %s matches no test of its packages", file, pattern, p)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("patterns: checked %d, want at least 30", checked)
	}
}

// findTests returns the names of the tests of the packages among some arguments, a line each.
func findTests(t *testing.T, dir string, args []string) string {
	var names strings.Builder
	for _, a := range args {
		if !strings.HasPrefix(a, "./") {
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", dir, a, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Errorf("%s: got a package without tests", a)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(b, -1) {
				names.Write(append(m[1], '\n'))
			}
		}
	}
	return names.String()
}

// alternatives returns a pattern for each alternative of a pattern for `go test -run`, without its parts for subtests.
func alternatives(t *testing.T, pattern string) (list []*regexp.Regexp) {
	t.Helper()
	for _, part := range splitOutside(pattern, '|') {
		top := splitOutside(part, '/')[0]
		re, err := syntax.Parse(top, syntax.Perl)
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, s := range expand(re) {
			list = append(list, regexp.MustCompile("(?m)"+s))
		}
	}
	return list
}

// splitOutside splits a pattern at a character outside of parentheses.
func splitOutside(pattern string, at rune) []string {
	depth, parts := 0, []string{""}
	for _, c := range pattern {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		}
		if c == at && depth == 0 {
			parts = append(parts, "")
			continue
		}
		parts[len(parts)-1] += string(c)
	}
	return parts
}

// expand returns patterns without alternatives. Together they match the same names as the expression.
func expand(re *syntax.Regexp) (list []string) {
	switch re.Op {
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			list = append(list, expand(sub)...)
		}
	case syntax.OpCapture:
		return expand(re.Sub[0])
	case syntax.OpConcat:
		list = []string{""}
		for _, sub := range re.Sub {
			var longer []string
			for _, tail := range expand(sub) {
				for _, head := range list {
					longer = append(longer, head+tail)
				}
			}
			list = longer
		}
	case syntax.OpBeginText:
		return []string{"^"} // String would give \A, which the flag m does not change
	case syntax.OpEndText:
		return []string{"$"}
	default:
		return []string{re.String()}
	}
	return list
}
