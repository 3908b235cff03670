package wrong

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var runWrong = flag.Bool("wrong", false, "run the wrong drivers and consumers (takes minutes)")

const (
	parallel = 4                // maximum number of concurrent processes
	timeout  = 2 * time.Minute  // maximum duration of TestContract with one defect
	grace    = 20 * time.Second // additional time before the process is killed
)

// buildBinaries compiles the tests of the reference driver and of this package. The binaries contain all defects.
func buildBinaries(t *testing.T) (driver, demos string) {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("../../driver/loopback")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, err := writeOverlay(source, dir)
	if err != nil {
		t.Fatal(err)
	}
	compile := func(module, pkg string) string {
		binary := filepath.Join(dir, filepath.Base(pkg)+".test")
		cmd := exec.Command(goTool, "test", "-c", "-overlay="+file, "-o", binary, pkg)
		cmd.Dir = module
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go test -c: %v\n%s", err, out)
		}
		return binary
	}
	return compile("../..", "./driver/loopback"), compile("..", "./wrong")
}

// defectVerdict is the result of TestContract with a defect.
type defectVerdict struct {
	passed, hung bool
	check        string // the first failed check
	said         string // the message of the check
}

func (v defectVerdict) String() string {
	switch {
	case v.passed:
		return "ESCAPED"
	case v.hung:
		return "HANGS in " + v.check
	}
	return fmt.Sprintf("caught by %s: %s", v.check, v.said)
}

var (
	failLine    = regexp.MustCompile(`^\s*--- FAIL: (\S+)`)
	runningLine = regexp.MustCompile(`^\s+(Test\S+) \(`)
)

// parseVerdict parses the output of a test binary.
func parseVerdict(out string, passed bool) (v defectVerdict) {
	v.passed = passed
	lines := strings.Split(out, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "panic: test timed out") {
			v.hung = true
			for _, r := range lines[i:min(len(lines), i+12)] {
				if m := runningLine.FindStringSubmatch(r); m != nil {
					v.check = m[1]
				}
			}
			return v
		}
	}
	for i, l := range lines {
		if m := failLine.FindStringSubmatch(l); m != nil {
			v.check = m[1]
			continue
		}
		if v.check != "" || strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			v.said = strings.TrimSpace(strings.Join(lines[i:min(len(lines), i+2)], " "))
			return v
		}
	}
	v.said = strings.TrimSpace(out)
	return v
}

// runTest runs a test with a defect, or without one if the name is "".
func runTest(t *testing.T, binary, test, defect string) defectVerdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+test+"$", "-test.failfast", "-test.timeout",
		timeout.String())
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), defectEnv+"="+defect)
	out, err := cmd.CombinedOutput()
	v := parseVerdict(string(out), err == nil)
	v.hung = v.hung || ctx.Err() != nil
	if os.Getenv("VERBENA_WRONG_OUTPUT") != "" {
		t.Logf("%s", out)
	}
	return v
}

// runConcurrently yields f of each element in order, with up to parallel concurrent calls of f.
func runConcurrently[T, R any](all []T, f func(T) R) iter.Seq2[int, R] {
	results := make([]chan R, len(all))
	tickets := make(chan bool, parallel)
	for i := range all {
		results[i] = make(chan R, 1)
		go func() {
			tickets <- true
			defer func() { <-tickets }()
			results[i] <- f(all[i])
		}()
	}
	return func(yield func(int, R) bool) {
		for i, c := range results {
			if !yield(i, <-c) {
				return
			}
		}
	}
}

// TestDrivers counts the wrong drivers that the suite detects. TestDrivers fails if the result for a driver differs
// from the entry of the driver, so that the table stays correct.
func TestDrivers(t *testing.T) {
	if !*runWrong {
		return
	}
	driver, demo := buildBinaries(t)
	if v := runTest(t, driver, "TestContract", ""); !v.passed {
		t.Fatalf("TestContract without a defect: got %v, want success", v)
	}
	caught := 0
	for i, v := range runConcurrently(DriverDefects, func(d DriverDefect) (v [2]defectVerdict) {
		v[0] = runTest(t, driver, "TestContract", d.Name)
		if demos[d.Name] != nil {
			v[1] = runTest(t, demo, "TestDemos", d.Name)
		}
		return v
	}) {
		d := DriverDefects[i]
		t.Run(d.Name, func(t *testing.T) {
			t.Log(v[0])
			if v[0].passed != d.Escapes && !d.Chance {
				t.Errorf("defect escapes: got %v, want %v", v[0].passed, d.Escapes)
			}
			if v[1].passed {
				t.Error("demo with the defect: got success, want a failure")
			}
			if !v[0].passed {
				caught++
			}
		})
	}
	t.Logf("%d of %d wrong drivers are detected", caught, len(DriverDefects))
}

// TestEditsApply checks that the edits of all wrong drivers apply to driver/loopback, and that the result compiles.
func TestEditsApply(t *testing.T) {
	source, err := filepath.Abs("../../driver/loopback")
	if err != nil {
		t.Fatal(err)
	}
	file, err := writeOverlay(source, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay="+file, "./driver/loopback")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go build: %v\n%s", err, out)
	}
}
