package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Pauses are put around what locks and unlocks, on the same lines, and nowhere else.
func TestWithPauses(t *testing.T) {
	const src = `package p

func f(m *sync.Mutex, r rw, x other) {
	m.Lock() // first
	defer m.Unlock()
again:
	r.RLock()
	if x.Lock(1) || m.TryLock() {
		goto again
	}
	select {
	case <-c:
		r.RUnlock()
	}
	switch {
	default:
		func() { m.Unlock() }()
	}
}
`
	const want = `package p

func f(m *sync.Mutex, r rw, x other) {
	schedulePause(5); m.Lock(); schedulePause(6) // first
	defer schedulePause(7); defer m.Unlock(); defer schedulePause(8)
again:
	schedulePause(9); r.RLock(); schedulePause(10)
	if x.Lock(1) || m.TryLock() {
		goto again
	}
	select {
	case <-c:
		schedulePause(11); r.RUnlock(); schedulePause(12)
	}
	switch {
	default:
		func() { schedulePause(13); m.Unlock(); schedulePause(14) }()
	}
}
`
	got, places, err := withPauses("p.go", []byte(src), 5)
	if err != nil || got != want {
		t.Fatalf("%v\n%s", err, got)
	}
	if len(places) != 10 || places[0] != "p.go:4:2" {
		t.Errorf("places %v", places)
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "p.go", got, 0); err != nil {
		t.Error(err)
	}
}

var defects = flag.Bool("defects", false, "compile drivers with races, which the pauses must find")

// lostWakeup is a race between two locks: what is missed is looked at before the queue is armed.
var lostWakeup = [2]string{
	`	defer c.mu.Unlock()
	if flags&ib.NotifyNextComp != 0 {`,
	`	missed = flags&ib.NotifyReportMissed != 0 && c.wcs.n > 0
	c.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if flags&ib.NotifyNextComp != 0 {`,
}

// The pauses find a notification that is lost in a window of two instructions, and nothing where there is none.
func TestFindsLostWakeup(t *testing.T) {
	if !*defects {
		return // make soak-schedules
	}
	source, err := filepath.Abs("../../../driver/loopback/cq.go")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	const answer = "return flags&ib.NotifyReportMissed != 0 && c.wcs.n > 0, nil"
	if strings.Count(text, lostWakeup[0]) != 1 || strings.Count(text, answer) != 1 {
		t.Fatal("the driver has changed: adapt the defect")
	}
	text = strings.Replace(strings.Replace(text, lostWakeup[0], lostWakeup[1], 1), answer, "return missed, nil", 1)
	dir := t.TempDir()
	file := filepath.Join(dir, "cq.go")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{source: file}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	for name, b := range map[string][]byte{file: []byte(text), overlay: list} {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(overlay string, seeds int) (string, error) {
		var out bytes.Buffer
		o := options{seeds: seeds, first: 1, count: 1, run: "TestContract/^Callback$/^ArmedElsewhere$", timeout: "1m", overlay: overlay,
			tests: []string{"verbena/driver/loopback"}}
		err := o.do(&out)
		return out.String(), err
	}
	if out, err := run("", 2); err != nil {
		t.Errorf("the driver without the defect: %v\n%s", err, out)
	}
	if out, err := run(overlay, 10); err == nil || !strings.Contains(out, "was not reported as missed") {
		t.Errorf("the driver with the defect: %v\n%s", err, out)
	} else {
		t.Log(err)
	}
}
