package gendoc

import "testing"

func TestReplaceSectionKeepsRest(t *testing.T) {
	const text = "one\n<!-- generated: a -->\nold\n<!-- end: a -->\ntwo\n"
	const want = "one\n<!-- generated: a -->\n\nnew\n\n<!-- end: a -->\ntwo\n"
	for range 2 {
		got, err := replaceSection(text, "a", "new\n")
		if err != nil || got != want {
			t.Errorf("replace: got %q and error %v, want the new part", got, err)
		}
	}
	for _, bad := range []string{"", "<!-- generated: a -->\n", "<!-- end: a -->\n<!-- generated: a -->\n"} {
		if got, err := replaceSection(bad, "a", "new"); err == nil {
			t.Errorf("replace in %q: got %q, want an error", bad, got)
		}
	}
}
