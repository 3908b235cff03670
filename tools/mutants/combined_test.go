package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCombine tests that a build with several mutants behaves as each of them, and that only the tests that execute the
// place of a mutant run.
func TestCombine(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"go.mod": "module verbena\n\ngo 1.26\n",
		"p/p.go": `package p

import "time"

type truth bool

type number uint8

func between(a, x, b int) bool { return a <= x && x < b-1 }

func either(a, b, c bool) int {
	if a || // the comment remains
		b && c {
		return 1
	}
	return 0
}

func not(a bool) (n number) {
	if a {
		return 255
	}
	n++
	n = n + 2
	return n
}

func wait() time.Duration { return 2 * time.Second }

func fixed() (list [2]int) { return [2]int{} }

func halve(a int) (int, int) { return a, a/2 }

func named(a int) truth { return a == 0 }

func mask(n uint32) uint32 { return n & (1<<8 - 1) }

func unused() { println(1) }
`,
		"p/p_test.go": `package p

import (
	"testing"
	"time"
)

func TestBetween(t *testing.T) {
	for x, want := range []bool{false, true, true, false, false} {
		t.Run(string(rune('0'+x)), func(t *testing.T) {
			if got := between(1, x, 4); got != want {
				t.Error(got)
			}
		})
	}
}

func TestEither(t *testing.T) {
	for i, want := range []int{0, 0, 0, 1, 1, 1, 1, 1} {
		if got := either(i&4 != 0, i&2 != 0, i&1 != 0); got != want {
			t.Error(i, got)
		}
	}
}

func TestNot(t *testing.T) {
	if got := not(false); got != 3 {
		t.Error(got)
	}
}

func TestWait(t *testing.T) {
	if got := wait(); got != 2*time.Second {
		t.Error(got)
	}
}

func TestMask(t *testing.T) {
	if got := mask(0xffff); got != 0xff {
		t.Error(got)
	}
}

func TestFixed(t *testing.T) {
	if got := fixed(); len(got) != 2 {
		t.Error(got)
	}
}

func TestHalve(t *testing.T) {
	if _, got := halve(12); got != 6 {
		t.Error(got)
	}
}

func TestWeak(t *testing.T) { not(true) }

func TestNamed(t *testing.T) { named(2) }
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	all, err := generateMutants(".", []string{"p"}, (*generator).collectAnywhere)
	if err != nil {
		t.Fatal(err)
	}
	var list []*mutant
	for i := range all {
		list = append(list, &all[i])
	}
	b, rest, err := combine(list)
	if err != nil {
		t.Fatal(err)
	}
	suites, err := buildSuites(b, time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(suites.dir)
	var got []string
	for _, m := range b.mutants {
		how, err := suites.run(m)
		switch {
		case errors.Is(err, errPass), errors.Is(err, errUnreached):
			how = err.Error()
		case err != nil:
			t.Errorf("%s: %v", m.mutant, err)
		}
		how, _, _ = strings.Cut(how, " (")
		got = append(got, strings.TrimPrefix(m.name, "p/p.go:")+" "+how)
	}
	for _, m := range rest {
		got = append(got, strings.TrimPrefix(m.name, "p/p.go:")+" cannot be combined")
	}
	slices.Sort(got)
	want := []string{
		"between:compare:1 TestBetween/1",
		"between:compare:2 TestBetween/3",
		"between:constant:1 TestBetween/2",
		"between:logic:1 TestBetween/0",
		"between:sum:1 TestBetween/3",
		"either:constant:1 TestEither",
		"either:constant:2 TestEither",
		"either:logic:1 TestEither",
		"either:logic:2 TestEither",
		"fixed:constant:1 cannot be combined",
		"halve:constant:1 TestHalve",
		"mask:constant:1 TestMask",
		"mask:constant:2 TestMask",
		"mask:constant:3 TestMask",
		"named:compare:1 cannot be combined",
		"named:constant:1 no test fails",
		"not:constant:1 cannot be combined",
		"not:constant:2 TestNot",
		"not:negated:1 TestNot",
		"not:removed:1 TestNot",
		"not:removed:2 TestNot",
		"not:sum:1 TestNot",
		"unused:constant:1 no test executes this code",
		"wait:constant:1 TestWait",
	}
	if !slices.Equal(got, want) {
		t.Errorf("run: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestBatches tests that the fastest units run first, and in few processes.
func TestBatches(t *testing.T) {
	a, b := &suite{}, &suite{}
	const ms = time.Millisecond
	var units []*unit
	for _, u := range []unit{
		{a, "a1", 2000 * ms, nil}, {a, "a2", 100 * ms, nil}, {b, "b1", 10 * ms, nil}, {a, "a3", 120 * ms, nil},
		{b, "b2", 600 * ms, nil},
	} {
		units = append(units, &u)
	}
	var got []string
	for _, batch := range batches(units) {
		var names []string
		for _, u := range batch {
			names = append(names, u.name)
		}
		got = append(got, strings.Join(names, "+"))
	}
	if want := []string{"b1", "a2+a3", "b2", "a1"}; !slices.Equal(got, want) {
		t.Errorf("batches: got %q, want %q", got, want)
	}
}

// TestSplitTests tests that only the subtests of a long test are units.
func TestSplitTests(t *testing.T) {
	got := splitTests("--- PASS: TestA (0.30s)\n    --- PASS: TestA/x (0.30s)\n--- PASS: TestB (2.00s)\n" +
		"    --- PASS: TestB/x (1.50s)\n        --- PASS: TestB/x/y (1.40s)\n    --- PASS: TestB/z (0.10s)\n" +
		"--- SKIP: TestC (0.00s)\n--- PASS: TestD (3.00s)\n")
	if want := []string{"TestA", "TestB/x/y", "TestB/z", "TestD"}; !slices.Equal(got, want) {
		t.Errorf("splitTests: got %q, want %q", got, want)
	}
}
