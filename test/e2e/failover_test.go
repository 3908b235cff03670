//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"verbena/scenario"
)

// failoverScenario is a scenario of examples/failover.
type failoverScenario struct {
	name string
	bugs map[string][]string // maps faulty builds to their failing expectations: "subject: what"
	// without is the name of an action to omit. fails lists the expectations that must then fail, besides those of
	// the action's rule.
	without string
	fails   []string
}

var failoverScenarios = []failoverScenario{
	{"portflap", map[string][]string{"portflap-bug": {"sender: never prints /gave up/", "sender: prints /^reconnected/"}},
		"flap", []string{"sender: prints /port error/", "sender: prints /^reconnected/",
			"rxe0: retry_exceeded_err is at least 1"}},
	{"setup",
		map[string][]string{"setup-bug": {"no-pd: exit code 0", "no-mr: prints /^rxe0: given up, 0 left/",
			"CQs destroyed: seen is 5"}},
		"pd", []string{"no-pd: prints /^rxe0: alloc_pd: Cannot allocate memory/", "PDs destroyed: seen is 3"}},
	{"rails",
		map[string][]string{"rails-bug": {"sender: never prints /^rail 0 .rxe0. is taken down/",
			"receiver: prints /^received 3000 of 3000/"}},
		"rail down", []string{"sender: prints /^rail 1 .rxe1. is taken down/", "rxe1: sent_pkts is at most 800"}},
	{"agree", map[string][]string{"agree-bug": {"receiver: never prints /has arrived twice/"}},
		"acknowledges lost", []string{"receiver: prints /^rail 0 is stopped/",
			"sender: prints /^agreed by rail 1: of what has failed [1-9]/"}},
	{"target",
		map[string][]string{"target-bug": {"target: never prints /Input/output error/",
			"target: prints /^everything is destroyed, 0 left/"}},
		"first removal", []string{"target: prints /^everything is destroyed, 0 left/"}}, // second run with the same seed
	{"lossy", map[string][]string{
		"lossy-bug":     {"sender: never prints /transport retry counter exceeded/"},
		"lossy-bug-rnr": {"sender: never prints /RNR retry counter exceeded/"}},
		"way there", []string{"rxe0: drop_link_loss is at least 1"}},
}

// TestFailover tests each scenario of docs/failover.md. The scenario must pass with the correct program, with the
// same result for the same seed. A scenario must fail with each faulty program, by an expectation about the bug. A
// scenario must also fail without its action. FAILOVER=N runs each scenario N times.
func TestFailover(t *testing.T) {
	t.Parallel()
	needProgram(t, "gcc libc6-dev libibverbs-dev make", "gcc", "make")
	dir, err := filepath.Abs("../../examples/failover")
	if err != nil {
		t.Fatal(err)
	}
	build := newScratchDir(t)
	if out, err := exec.Command("make", "-C", dir, "BUILD="+build, "CC=gcc",
		"CFLAGS=-O1 -Werror").CombinedOutput(); err != nil {
		t.Fatalf("make: %v\n%s", err, out)
	}
	times := 1
	if s := os.Getenv("FAILOVER"); s != "" {
		if times, err = strconv.Atoi(s); err != nil || times < 1 {
			t.Fatalf("FAILOVER=%s is not a number of at least 1", s)
		}
	}
	for _, f := range failoverScenarios {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for range times {
				if f.run(t, dir, build); t.Failed() {
					return
				}
			}
		})
	}
}

func (f *failoverScenario) run(t *testing.T, dir, build string) {
	reports := newScratchDir(t)
	n := 0
	// once runs the scenario with a build of the program, and returns its result.
	once := func(program string, args ...string) (*scenario.Result, string) {
		t.Helper()
		n++
		report := filepath.Join(reports, fmt.Sprintf("%d.json", n))
		argv := append([]string{verbenaBinary(t), "scenario", "run", "-q", filepath.Join(dir, f.name+".yaml"),
			"--set", "PROGRAM=" + filepath.Join(build, program), "--report", report}, args...)
		if os.Getuid() == 0 { // other tests also use the addresses and ports in the file
			argv = append([]string{"unshare", "--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, argv...)
		}
		var out bytes.Buffer
		c := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		c.Stdout, c.Stderr = &out, &out
		err := c.Run()
		if code := exitCode(err); code != 0 && code != 1 {
			t.Fatalf("%q: %v\n%s", argv, err, &out)
		}
		b, readErr := os.ReadFile(report)
		if readErr != nil {
			t.Fatalf("%v\n%s", readErr, &out)
		}
		r := &scenario.Result{}
		if err := json.Unmarshal(b, r); err != nil {
			t.Fatal(err)
		}
		if r.Passed != (err == nil) && len(args) == 0 {
			t.Errorf("%s: passed %t, exit code %d", program, r.Passed, exitCode(err))
		}
		return r, out.String()
	}
	failed := func(r *scenario.Result) (list []string) {
		for _, c := range r.Checks {
			if !c.Passed {
				list = append(list, c.Subject+": "+c.What)
			}
		}
		return list
	}
	mustFail := func(what string, r *scenario.Result, out string, want []string) {
		t.Helper()
		got := failed(r)
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("%s: %q did not fail:\n%s", what, w, out)
			}
		}
		if r.Passed || r.TimedOut || r.Error != "" {
			t.Errorf("%s: got passed %t, timed out %t, error %q\n%s", what, r.Passed, r.TimedOut, r.Error, out)
		}
	}
	r, out := once(f.name)
	if !r.Passed {
		t.Fatalf("failed:\n%s\n%s", out, r.FormatEvents())
	}
	again, out := once(f.name, "--compare", filepath.Join(reports, "1.json"))
	if !again.Passed || !strings.Contains(out, "\nthe same actions at the same moments") ||
		strings.Contains(out, "\nDIFFERS") {
		t.Fatalf("the same seed:\n%s\n%s", out, again.FormatEvents())
	}
	for program, want := range f.bugs {
		r, out := once(program)
		mustFail(program, r, out, want)
	}
	r, out = once(f.name, "--without", f.without)
	mustFail("without "+f.without, r, out, f.fails)
	for _, a := range r.Actions {
		if a.Name == f.without && (a.Began || a.Done || !a.Out) {
			t.Errorf("without %s: got the action %+v, want it omitted", f.without, a)
		}
	}
}
