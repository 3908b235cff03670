package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/ib/weak"
)

// TestReduceFindsSmallestSets reduces lists that fail if they contain some items. The result must be these items.
func TestReduceFindsSmallestSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; n <= 200; n += 1 + n/4 {
		items := make([]int, n)
		for i := range items {
			items[i] = i
		}
		for culprits := 1; culprits <= min(n, 4); culprits++ {
			want := slices.Sorted(slices.Values(r.Perm(n)[:culprits]))
			tests := 0
			got, err := reduce(items, func(set []int) (bool, error) {
				tests++
				return !slices.ContainsFunc(want, func(c int) bool { return !slices.Contains(set, c) }), nil
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("reduce %d items: got %v and error %v, want %v", n, got, err, want)
			}
			if most := 12 * culprits * culprits * 10; tests > most {
				t.Errorf("reduce %d items to %d: got %d tests, want at most %d", n, culprits, tests, most)
			}
		}
	}
	cause := errors.New("no more runs")
	got, err := reduce([]int{1, 2, 3, 4}, func(set []int) (bool, error) {
		if len(set) == 2 {
			return slices.Contains(set, 4), nil
		}
		return false, cause
	})
	if !errors.Is(err, cause) || !slices.Equal(got, []int{3, 4}) {
		t.Errorf("reduce with an error: got %v and error %v, want [3 4] and %v", got, err, cause)
	}
}

// simulatedProgram is a program that fails if the device takes all the decisions of culprits.
type simulatedProgram struct {
	culprits  []string // the first words of their lines
	seed      uint64   // the first seed with these decisions
	alwaysBad bool
	unsteady  bool // fails only with a seed
	runs      int
	most      int // 0, or the number of runs until the search is interrupted
}

// decisions returns the decisions of a run with a seed.
func (p *simulatedProgram) decisions(seed uint64) (list []weak.Decision) {
	text := "verbena decisions 1\nexact-room a/1 = 1\n"
	for i := range 20 {
		text += fmt.Sprintf("late-completion a/1 qp 1 send %d = 1 # QP 17\n", i+1)
		if seed >= p.seed {
			text += fmt.Sprintf("late-source a/1 qp 2 send %d = 2 # QP 18\n", i+1)
		}
	}
	l, err := weak.ReadLog(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return l.Decisions
}

func (p *simulatedProgram) run(seed *uint64, decisions []weak.Decision) (*searchRun, error) {
	if p.runs++; p.most > 0 && p.runs > p.most {
		return nil, context.Canceled
	}
	if seed != nil {
		decisions = p.decisions(*seed)
	}
	fails := seed != nil || decisions != nil && !p.unsteady
	for _, c := range p.culprits {
		fails = fails && slices.ContainsFunc(decisions, func(d weak.Decision) bool {
			return strings.HasPrefix(string(d.AppendText(nil)), c)
		})
	}
	r := &searchRun{took: time.Millisecond, output: "the last words\n", log: &weak.Log{Decisions: decisions}}
	if fails || p.alwaysBad {
		r.failure.code = 3
	}
	return r, nil
}

// TestSearchFindsSmallestFailingSet searches simulated programs.
func TestSearchFindsSmallestFailingSet(t *testing.T) {
	source := []string{"late-source a/1 qp 2 send 7 "}
	for _, c := range []struct {
		name    string
		program simulatedProgram
		seeds   int
		code    exitCodeError
		log     string   // lines of the smallest set
		says    []string // parts of the output
	}{
		{"one decision", simulatedProgram{culprits: source, seed: 4}, 10, 3, "late-source a/1 qp 2 send 7 = 2048 # QP 18\n",
			[]string{"seed 4: the program fails: exit code 3", "| the last words", "with 1 decision of the device, in 5 of 5",
				"20 of 41 decisions remain, of late-source", "permitted by  ibv_post_send(3)"}},
		{"two choices", simulatedProgram{culprits: append(slices.Clone(source), "exact-room"), seed: 1}, 10, 3,
			"exact-room a/1 = 1\nlate-source a/1 qp 2 send 7 = 2048 # QP 18\n", []string{"with 2 decisions"}},
		{"no failure", simulatedProgram{culprits: source, seed: 11}, 10, 0, "", []string{"succeeds with 10 seeds"}},
		{"unsteady", simulatedProgram{culprits: source, seed: 9, unsteady: true}, 10, 3, "",
			[]string{"seed 9: the failure is not repeatable", "seed 10: the failure is not repeatable", "Try --weak=9"}},
		{"without decisions", simulatedProgram{seed: 1}, 10, 3, "", []string{"also fails with a replay without decisions"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, log strings.Builder
			s := &weakSearch{ctx: t.Context(), out: &out, seeds: c.seeds, confirm: 2, run: c.program.run, to: &log}
			if _, err := s.runKind(); err != nil {
				t.Fatal(err)
			}
			var code exitCodeError
			if err := s.search(); !errors.As(err, &code) || code != c.code {
				t.Errorf("search: got %v, want exit code %d", err, c.code)
			}
			_, lines, _ := strings.Cut(log.String(), "seed 0\n")
			if lines != c.log {
				t.Errorf("smallest set: got %q, want %q", lines, c.log)
			}
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output: got\n%s\nwant %q in it", &out, want)
				}
			}
		})
	}
}

// TestSearchNeedsSuccessWithoutWeakMode searches a program that always fails.
func TestSearchNeedsSuccessWithoutWeakMode(t *testing.T) {
	var out strings.Builder
	p := simulatedProgram{alwaysBad: true}
	s := &weakSearch{ctx: t.Context(), out: &out, seeds: 2, confirm: 2, run: p.run}
	if _, err := s.runKind(); err == nil || !strings.Contains(err.Error(), "fails without weak mode: exit code 3") ||
		!strings.Contains(out.String(), "the last words") {
		t.Errorf("runKind: got error %v and output %q, want the failure and its output", err, &out)
	}
}

// TestInterruptedSearchKeepsSmallestSet interrupts searches after each number of runs. A set in the file must fail.
func TestInterruptedSearchKeepsSmallestSet(t *testing.T) {
	written := 0
	for most := 2; most < 40; most++ {
		ctx, cancel := context.WithCancel(t.Context())
		var out, log strings.Builder
		p := simulatedProgram{culprits: []string{"late-source a/1 qp 2 send 7 "}, seed: 1, most: most}
		s := &weakSearch{ctx: ctx, out: &out, seeds: 10, confirm: 2, to: &log,
			run: func(seed *uint64, decisions []weak.Decision) (*searchRun, error) {
				r, err := p.run(seed, decisions)
				if err != nil {
					cancel()
				}
				return r, err
			}}
		_ = s.search()
		if log.Len() == 0 {
			continue
		}
		written++
		if !strings.Contains(log.String(), p.culprits[0]) {
			t.Errorf("interrupted after %d runs: got the set\n%s\nwant one with %s", most, &log, p.culprits[0])
		}
	}
	if written < 20 {
		t.Errorf("interrupted searches with a set: got %d, want at least 20", written)
	}
}

// TestSearchFlagsAreNotPassedOn checks the arguments of the runs of a search.
func TestSearchFlagsAreNotPassedOn(t *testing.T) {
	args := []string{"--socket", "s", "run", "--weak=search:9", "--private", "--weak-log", "f", "--weak-confirm=3",
		"--sanitize"}
	want := []string{"--socket", "s", "run", "--private", "--sanitize"}
	if got := withoutSearchFlags(args); !slices.Equal(got, want) {
		t.Errorf("withoutSearchFlags: got %q, want %q", got, want)
	}
	if got, want := joinArgs([]string{"a-b", "it's", ""}), `a-b 'it'\''s' '' `; got != want {
		t.Errorf("joinArgs: got %q, want %q", got, want)
	}
}

// TestTailWriterKeepsTheEnd writes pieces of several lengths.
func TestTailWriterKeepsTheEnd(t *testing.T) {
	for piece := 1; piece < 40; piece++ {
		w := &tailWriter{most: 16}
		text := "first line\nsecond line\nthird line\n"
		for part := range slices.Chunk([]byte(text), piece) {
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatalf("Write: got %d and %v, want %d", n, err, len(part))
			}
		}
		if got, want := w.String(), "[...]\nthird line\n"; got != want {
			t.Errorf("with pieces of %d bytes: got %q, want %q", piece, got, want)
		}
	}
}

// TestKillGroupSparesOne kills the members of a process group except its leader.
func TestKillGroupSparesOne(t *testing.T) {
	leader := exec.Command("sh", "-c", "sleep 1000 & wait; exit 7")
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	pid := leader.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- leader.Wait() }()
	for {
		killGroup(pid, pid)
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 7 {
				t.Errorf("leader: got %v, want exit code 7 after the end of its child", err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
