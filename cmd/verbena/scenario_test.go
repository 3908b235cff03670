package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestReadLines tests that lines are read unchanged, and that lines without an end are truncated instead of collected.
func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"a\n\nb\r\n\r\nc", []string{"a", "", "b", "", "c"}},
		{"a\n" + long + "\nb\n", []string{"a", long[:maxText], "b"}},
		{long[:maxText] + "\nb", []string{long[:maxText], "b"}},
		{long, []string{long[:maxText]}},
	} {
		var got []string
		readLines(io.MultiReader(strings.NewReader(test.text)), func(s string) { got = append(got, s) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%.20q: got %.30q, want %.30q", test.text, got, test.want)
		}
	}
	r, w := io.Pipe()
	defer w.Close()
	lines := make(chan string, 1)
	go readLines(r, func(s string) { lines <- s })
	if _, err := io.WriteString(w, long); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-lines:
		if len(s) != maxText {
			t.Errorf("a line without an end: got %d bytes, want %d", len(s), maxText)
		}
	default:
		t.Error("a line without an end is kept in memory")
	}
}
