// Package wrong contains drivers and consumers that violate the contract of package ib, as drivers and consumers of
// Linux did before their fixes. The tests of the package count the drivers that the suite of package ibtest
// detects, and the consumers that checked mode detects.
package wrong

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// defectEnv is the environment variable that names the defect of a process.
const defectEnv = "VERBENA_WRONG"

// generatedSource is the source of the functions that the edits call.
const generatedSource = `package loopback

import (
	"os"
	"runtime"
	"time"
)

var wrongName = os.Getenv("` + defectEnv + `")

func wrong(name string) bool { return name == wrongName }

func wrongYield() { runtime.Gosched() }

func wrongSleep(us int) { time.Sleep(time.Duration(us) * time.Microsecond) }

func wrongWait(us int) {
	done := make(chan bool)
	go func() {
		wrongSleep(us)
		close(done)
	}()
	<-done
}

func wrongInt(is bool, a, b int) int {
	if is {
		return a
	}
	return b
}

func wrongPD(is bool, a, b *pd) *pd {
	if is {
		return a
	}
	return b
}
`

// applyEdits returns the source with the edits.
func applyEdits(source string, edits []Edit) (string, error) {
	type change struct {
		at, end int
		code    string
	}
	var changes []change
	for _, e := range edits {
		if n := strings.Count(source, e.Anchor); n != 1 {
			return "", fmt.Errorf("%s: got the anchor %q %d times, want once", e.File, e.Anchor, n)
		}
		at := strings.Index(source, e.Anchor)
		switch e.Where {
		case Before:
			changes = append(changes, change{at, at, e.Code})
		case After:
			changes = append(changes, change{at + len(e.Anchor), at + len(e.Anchor), e.Code})
		case Instead:
			changes = append(changes, change{at, at + len(e.Anchor), e.Code})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Or(a.at-b.at, a.end-b.end) })
	var out strings.Builder
	pos := 0
	for _, c := range changes {
		if c.at < pos {
			return "", fmt.Errorf("the edits overlap before %q", source[pos:min(len(source), pos+60)])
		}
		out.WriteString(source[pos:c.at])
		out.WriteString(c.code)
		pos = c.end
	}
	out.WriteString(source[pos:])
	return out.String(), nil
}

// writeOverlay writes the changed files to dir, and returns the file for the go command's -overlay.
func writeOverlay(source, dir string) (string, error) {
	byFile := map[string][]Edit{}
	for _, d := range DriverDefects {
		for _, e := range d.Edits {
			byFile[e.File] = append(byFile[e.File], e)
		}
	}
	replace := map[string]string{}
	add := func(name, text string) error {
		to := filepath.Join(dir, name)
		replace[filepath.Join(source, name)] = to
		return os.WriteFile(to, []byte(text), 0o644)
	}
	for name, edits := range byFile {
		old, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		text, err := applyEdits(string(old), edits)
		if err != nil {
			return "", err
		}
		if err := add(name, text); err != nil {
			return "", err
		}
	}
	if err := add("wrong.go", generatedSource); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o644)
}
