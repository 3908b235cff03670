// Command mutants breaks the code on purpose, in one place at a time, and has the unit tests of the package notice:
//
//	go run ./test/mutants [-run REGEXP] [-limit DURATION]
//
// The broken file takes the original's place by an overlay, and the tree stays as it is. A mutant is noticed if a test
// fails; one that makes a test hang is not, and neither is one that does not compile. The place of each has to exist, once.
// It ends with 1 unless all are noticed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// mutant is a defect: in file, the text from is replaced by to.
type mutant struct {
	name string
	file string // its folder is the package whose tests must notice
	from string
	to   string
}

func (m *mutant) pkg() string { return filepath.Dir(m.file) }

func main() {
	run := flag.String("run", ".", "only mutants whose name or file matches")
	limit := flag.Duration("limit", 90*time.Second, "for the tests of one mutant")
	flag.Parse()
	re, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	missed, all := 0, 0
	healthy := map[string]error{} // packages whose tests pass as they are
	for i := range mutants {
		m := &mutants[i]
		if !re.MatchString(m.name) && !re.MatchString(m.file) {
			continue
		}
		all++
		pkg := m.pkg()
		if _, ok := healthy[pkg]; !ok {
			_, healthy[pkg] = test(pkg, nil, *limit)
		}
		began := time.Now()
		how, err := m.try(healthy[pkg], *limit)
		if err != nil {
			missed++
			how = "NOT NOTICED: " + err.Error()
		}
		fmt.Printf("%-70s %5.1fs  %s\n", m.file+": "+m.name, time.Since(began).Seconds(), how)
	}
	fmt.Printf("%d mutants, %d not noticed\n", all, missed)
	if missed > 0 || all == 0 {
		os.Exit(1)
	}
}

// try runs the tests of a mutant's package, and returns which test noticed it.
func (m *mutant) try(healthy error, limit time.Duration) (how string, err error) {
	if healthy != nil {
		return "", fmt.Errorf("the tests of %s fail as it is: %w", m.pkg(), healthy)
	}
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	broken, err := m.apply(string(source))
	if err != nil {
		return "", err
	}
	out, err := test(m.pkg(), map[string]string{m.file: broken}, limit)
	switch {
	case err == nil:
		return "", errors.New("the tests pass")
	case errors.Is(err, errHangs), errors.Is(err, errBuild):
		return "", err
	}
	return noticed(out), nil
}

// apply returns the source with the defect.
func (m *mutant) apply(source string) (string, error) {
	if n := strings.Count(source, m.from); n != 1 || m.from == m.to {
		return "", fmt.Errorf("%s has %d places of %q, not one", m.file, n, m.from)
	}
	return strings.Replace(source, m.from, m.to, 1), nil
}

var (
	errHangs = errors.New("the tests hang")
	errBuild = errors.New("it does not compile")
)

// test runs the tests of a package, with the contents of files replaced.
func test(pkg string, replace map[string]string, limit time.Duration) (out string, err error) {
	dir, err := os.MkdirTemp("", "verbena-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, content := range replace {
		path, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		overlay.Replace[path] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(overlay.Replace[path], []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "mutant.test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, "./"+pkg)
	if b, err := build.CombinedOutput(); err != nil {
		return string(b), fmt.Errorf("%w: %s", errBuild, b)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, bin, "-test.failfast")
	c.Dir = pkg
	c.Env = append(os.Environ(), "CI=", "RAPID_NOFAILFILE=true") // property tests save failing cases in the tree
	// With all that the tests have started.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	b, err := c.CombinedOutput()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: no end after %v", errHangs, limit)
	}
	return string(b), err
}

// noticed finds the test that has failed in the output.
func noticed(out string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--- FAIL: ") || strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "leaktest: ") {
			return strings.TrimPrefix(line, "--- FAIL: ")
		}
	}
	return "a failure"
}
