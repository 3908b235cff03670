package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestInsertPausesAroundLocks checks that pauses are inserted around locking and unlocking statements only, on the same
// lines.
func TestInsertPausesAroundLocks(t *testing.T) {
	const src = `package p

func f(m *sync.Mutex, r rw, x other) {
	m.Lock() // first
	defer m.Unlock()
again:
	r.m.RLock()
	if x.Lock(1) || m.TryLock() {
		goto again
	}
	select {
	case <-c:
		r.of(1).RUnlock()
	}
	switch {
	default:
		func() { m.Unlock() }()
	}
}
`
	const want = `package p

func f(m *sync.Mutex, r rw, x other) {
	schedulePause(5); scheduleLock(5, scheduleAddress(&m), m.Lock); schedulePause(6) // first
	defer schedulePause(7); defer scheduleUnlock(scheduleAddress(&m)); defer m.Unlock(); defer schedulePause(8)
again:
	schedulePause(9); scheduleLock(9, scheduleAddress(&r.m), r.m.RLock); schedulePause(10)
	if x.Lock(1) || m.TryLock() {
		goto again
	}
	select {
	case <-c:
		schedulePause(11); r.of(1).RUnlock(); schedulePause(12)
	}
	switch {
	default:
		func() { schedulePause(13); scheduleUnlock(scheduleAddress(&m)); m.Unlock(); schedulePause(14) }()
	}
}
`
	got, places, err := insertPauses("p.go", []byte(src), 5, false)
	if err != nil || got != want {
		t.Fatalf("%v\n%s", err, got)
	}
	if len(places) != 10 || places[0] != "p.go:4:2" {
		t.Errorf("places: got %v, want 10 from p.go:4:2 on", places)
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "p.go", got, 0); err != nil {
		t.Error(err)
	}
}

// TestInsertPausesAtSynchronisation checks the places of the pauses in the source of a consumer.
func TestInsertPausesAtSynchronisation(t *testing.T) {
	const src = `package p

func f(c chan int, x *atomic.Int64, m *sync.Map) {
	wg.Go(func() { x.Store(1) })
	go func() { defer x.Add(-1) }()
	if x.Load() > x.Add(x.Load()) {
		x.Add(1)
	}
	v, ok := m.Load(1)
	n := <-c
	w, ok := <-c
	select {
	case <-c:
		m.l().Load().Lock()
	default:
	}
	close(c)
	v, ok = x.Swap(1)
}
`
	const want = `package p

func f(c chan int, x *atomic.Int64, m *sync.Map) {
	wg.Go(func() { P; P; x.Store(1); P })
	go func() { P; defer x.Add(-1) }()
	if Q x.Load()) > Q x.Add(Q x.Load()))) {
		P; x.Add(1); P
	}
	v, ok := m.Load(1)
	P; n := <-c; P
	P; w, ok := <-c; P
	select {
	case <-c: P;
		P; m.l().Load().Lock(); P
	default: P;
	}
	P; close(c); P
	v, ok = x.Swap(1)
}
`
	got, places, err := insertPauses("p.go", []byte(src), 5, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "p.go", got, 0); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	calls := regexp.MustCompile(`schedulePause\((\d+)\)|schedulePass\((\d+),`)
	got = calls.ReplaceAllStringFunc(got, func(s string) string {
		if seen[s] {
			t.Errorf("place %s: got a second pause, want one", s)
		}
		seen[s] = true
		return map[bool]string{true: "P", false: "Q"}[strings.HasSuffix(s, ")")]
	})
	if got != want || len(places) < len(seen) {
		t.Errorf("got %d places, want at least %d, and\n%s\nwant\n%s", len(places), len(seen), got, want)
	}
}

// TestStrictRunFindsWrongConsumers checks that weak devices and checked mode find the consumers of testdata. Without
// these modes their tests pass. A package is rejected if its tests use no device of the named drivers.
func TestStrictRunFindsWrongConsumers(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles tests")
	}
	for _, tt := range []struct {
		name  string
		run   string
		weak  string
		check time.Duration
		want  string // in the output or the error; "": success
	}{
		{"neither mode", ".", "", 0, ""}, // with pauses in the driver
		{"weak devices", "OneKey", "verbena/driver/loopback", 0, "got different keys"},
		{"checked mode", "Sleeping", "", consumerTimeout, "Device.QueryPort"},
		{"weak devices of another driver", ".", "verbena/driver/rxe", 0, "use none of the drivers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := commandOptions{seeds: 1, first: 1, count: 1, timeout: "1m", run: tt.run, weak: tt.weak, check: tt.check,
				tests: []string{"./testdata/consumer"}}
			if tt.weak == "" && tt.check == 0 {
				o.pause = "verbena/driver/loopback"
			}
			var out bytes.Buffer
			err := o.runTests(&out)
			if text := fmt.Sprint(&out, err); (err == nil) != (tt.want == "") || !strings.Contains(text, tt.want) {
				t.Errorf("got error %v, want %q; output:\n%s", err, tt.want, &out)
			}
		})
	}
}

var defectsFlag = flag.Bool("defects", false, "compile drivers with defects, which the pauses must find")

// TestFindsDefects checks that the pauses expose defects of the driver loopback, and report nothing without them.
func TestFindsDefects(t *testing.T) {
	if !*defectsFlag {
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
	for _, c := range []struct {
		name  string
		edits []string // pairs of old and new text
		run   string
		says  string
	}{
		// The missed completions are checked before the queue is armed. The window is two instructions.
		{"lost wake-up", []string{
			"	defer c.mu.Unlock()\n	if flags&ib.NotifyNextComp != 0 {",
			"	missed = flags&ib.NotifyReportMissed != 0 && c.wcs.n > 0\n	c.mu.Unlock()\n	c.mu.Lock()\n" +
				"	defer c.mu.Unlock()\n	if flags&ib.NotifyNextComp != 0 {",
			"return flags&ib.NotifyReportMissed != 0 && c.wcs.n > 0, nil", "return missed, nil",
		}, "TestContract/^Callback$/^ArmedElsewhere$", "was not reported as missed"},
		// A poll locks the queue and then, only for a failed request, the device. A post locks them in the other order.
		{"two locks in both orders", []string{
			"type CQ struct {", "type CQ struct {\n	dev *Device",
			"return &CQ{obj", "return &CQ{dev: d, obj",
			"		wc[n] = *c.wcs.pop()\n", "		wc[n] = *c.wcs.pop()\n		if wc[n].Status != ib.WCSuccess {\n" +
				"			c.dev.mu.Lock()\n			_ = c.dev.qps[wc[n].QPNum]\n			c.dev.mu.Unlock()\n		}\n",
		}, "TestContract/^Load$/^EveryMethodAgainstEvery$", "waited for a lock for 15 seconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := string(b)
			for i := 0; i < len(c.edits); i += 2 {
				if strings.Count(text, c.edits[i]) != 1 {
					t.Fatalf("the driver has no text %q: adapt the defect", c.edits[i])
				}
				text = strings.Replace(text, c.edits[i], c.edits[i+1], 1)
			}
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
				o := commandOptions{seeds: seeds, first: 1, count: 1, run: c.run, timeout: "1m", overlay: overlay,
					tests: []string{"verbena/driver/loopback"}}
				err := o.runTests(&out)
				return out.String(), err
			}
			if out, err := run("", 2); err != nil {
				t.Errorf("the driver without the defect: %v\n%s", err, out)
			}
			if out, err := run(overlay, 10); err == nil || !strings.Contains(out, c.says) {
				t.Errorf("the driver with the defect: %v\n%s", err, out)
			} else {
				t.Log(err)
			}
		})
	}
}
