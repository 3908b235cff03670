package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCollectAnywhere tests that generate finds the places of a function for mutants of any code, and that each mutant
// differs from the source.
func TestCollectAnywhere(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example\n\ngo 1.26\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o755); err != nil {
		t.Fatal(err)
	}
	source := `package p

import "sync"

type queue struct {
	mu    sync.Mutex
	n     int
	ready bool
}

func (q *queue) wake() {}

func (q *queue) take(most int, text string, err error) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		return "", err
	}
	if q.ready {
		q.wake()
	}
	if q.n < most && q.n != 7 {
		q.n--
		q.n = most - q.n
	}
	return text + "x", nil
}

func (q *queue) String() string { return "q"[:1] }
`
	if err := os.WriteFile(filepath.Join(dir, "p", "p.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := generateMutants(dir, []string{"p"}, (*generator).collectAnywhere)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"p/p.go:queue.take:negated:1 !(q.ready)",
		"p/p.go:queue.take:removed:1 ",
		"p/p.go:queue.take:logic:1 ((q.n < most) || (q.n != 7))",
		"p/p.go:queue.take:compare:1  <= ",
		"p/p.go:queue.take:compare:2  == ",
		"p/p.go:queue.take:constant:1 8",
		"p/p.go:queue.take:removed:2 ",
		"p/p.go:queue.take:removed:3 ",
		"p/p.go:queue.take:sum:1  + ",
	}
	var list []string
	for i := range got {
		list = append(list, fmt.Sprint(&got[i], " ", got[i].edit.text))
		if s, err := got[i].apply(source); err != nil || s == source {
			t.Errorf("%s: apply: got error %v and a difference: %t, want no error and a difference", &got[i], err, s != source)
		}
	}
	slices.Sort(list)
	slices.Sort(want)
	if !slices.Equal(list, want) {
		t.Errorf("generate: got\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(want, "\n"))
	}
}
