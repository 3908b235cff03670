package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestReadLinesTruncatesLongLines tests that readLines returns lines unchanged, and truncates lines that are too long
// instead of buffering them.
func TestReadLinesTruncatesLongLines(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"a\n\nb\r\n\r\nc", []string{"a", "", "b", "", "c"}},
		{"a\n" + long + "\nb\n", []string{"a", long[:maxLineLength], "b"}},
		{long[:maxLineLength] + "\nb", []string{long[:maxLineLength], "b"}},
		{long, []string{long[:maxLineLength]}},
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
		if len(s) != maxLineLength {
			t.Errorf("line without a newline: got %d bytes, want %d", len(s), maxLineLength)
		}
	default:
		t.Error("line without a newline: got a full copy in memory, want a truncated one")
	}
}
