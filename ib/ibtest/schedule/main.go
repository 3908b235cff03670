// Command schedule runs the tests of packages with seeds. It inserts random pauses before and after each Lock and
// Unlock of their sources, to expose races whose windows last only a few instructions, or it runs them on the least
// convenient device. The sources do not change: the go command compiles them through an overlay.
//
//	go run verbena/ib/ibtest/schedule -seeds 20 -run 'TestContract/^(Callback|Reentrant)$' ./mydriver
//
// A seed determines the pauses: it causes the same pauses at the same places in each run. The order in which threads
// run still depends on the system, so a failure may need several runs of its seed (-count). The tests of each package
// are compiled once, and run once for each seed until one fails. -pause names other packages to pause in, such as the
// midlayer; -race is the flag of the go command.
//
// -within runs the conformance suite of a driver for a time, in all these ways, on all processors: once as go test
// does, then with pauses and the race detector, beside more seeds of the suite's group Model. This is the command that
// finds the most faults of a driver:
//
//	go run verbena/ib/ibtest/schedule -within 1m -run TestContract ./mydriver
//
// -weak names packages of drivers. Each of their devices is then the least convenient one (package ib/weak), with the
// seed of the run. This tests the consumers in any package:
//
//	go run verbena/ib/ibtest/schedule -weak verbena/driver/rxe,verbena/driver/loopback -seeds 100 ./myconsumer
//
// -check turns on checked mode (package ib/check) for all devices of the tests. With -weak or -check there are no
// pauses without -pause. The choice slow-methods is off.
//
// With -weak, -within finds the most faults of a consumer: it analyses the package with verbenavet, which must be
// in PATH unless -no-verbenavet leaves it out. It runs the tests in checked mode, and then on weak devices in checked
// mode, with one seed after another. In turn it runs them with failures of the device, early time limits and late
// threads. A test may then fail; only mistakes of the consumer count:
//
//	go run verbena/ib/ibtest/schedule -within 1m -weak verbena/driver/loopback ./myconsumer
//
// In runs with pauses, methods sleep. Package ibtest then omits the checks that measure sleep, the group Sleep.
//
// The exit status is 0 if no test fails, 1 for a fault, and also if the tests cannot run, 2 for wrong flags, and 3
// without a verdict: the time of -within was over before the tests had ended once. (go run prints the status, and
// itself exits with 1.)
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"verbena/ib/ibtest/strict"
)

// commandOptions holds the options of the command.
type commandOptions struct {
	seeds, count int
	first        uint64
	race         bool
	run, skip    string
	timeout      string
	pause        string // packages, separated by commas; "": the tested ones, or none with -weak or -check
	weak         string // packages of drivers, separated by commas
	overlay      string
	tests        []string
	args         string
	within       time.Duration // 0: -seeds limits the runs
	check        time.Duration // Timeout of checked mode; 0: off
	noSource     bool          // without verbenavet
}

func main() {
	var o commandOptions
	flag.IntVar(&o.seeds, "seeds", 10, "number of seeds")
	flag.Uint64Var(&o.first, "seed", 1, "the first of them; 0 would not pause")
	flag.IntVar(&o.count, "count", 1, "runs of each seed")
	flag.BoolVar(&o.race, "race", false, "with the race detector")
	flag.StringVar(&o.run, "run", "", "pattern of the tests to run, as of go test")
	flag.StringVar(&o.skip, "skip", "", "pattern of the tests to leave out, as of go test")
	flag.StringVar(&o.timeout, "timeout", "10m", "time limit for each seed")
	flag.StringVar(&o.pause, "pause", "",
		"packages to pause in, separated by commas (default: the tested packages, with -weak or -check none)")
	flag.StringVar(&o.weak, "weak", "",
		"driver packages, separated by commas, with devices that make the least convenient choices")
	flag.DurationVar(&o.check, "check", 0,
		"turn on checked mode, with this Timeout (default with -within and -weak: 500ms)")
	flag.StringVar(&o.overlay, "overlay", "", "an overlay, as of go build, on which the pauses are based")
	flag.StringVar(&o.args, "args", "", "more flags of the test binaries, separated by spaces")
	flag.DurationVar(&o.within, "within", 0,
		"run the conformance suite of a driver, or with -weak the tests of a consumer, in several ways until this time, "+
			"with the builds, is over (see the package comment)")
	flag.BoolVar(&o.noSource, "no-verbenavet", false, "with -within and -weak: leave verbenavet out")
	flag.Parse()
	if o.tests = flag.Args(); len(o.tests) == 0 {
		o.tests = []string{"."}
	}
	if err := o.runTests(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(exitStatus(err))
	}
}

// errNoVerdict is the error of a search whose time was over before its first runs had ended.
var errNoVerdict = errors.New("no verdict")

// exitStatus returns the exit status of the command for the error of runTests.
func exitStatus(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNoVerdict):
		return 3
	}
	return 1
}

// runTests runs the tests. It returns an error if some fail.
func (o *commandOptions) runTests(out io.Writer) error {
	switch {
	case o.first == 0:
		return errors.New("seed 0 does not pause")
	case o.within > 0 && o.weak == "" && o.run == "":
		return errors.New("-within needs -run, the test that runs the suite (ibtest.Run), or -weak for a consumer")
	case o.within > 0 && o.weak != "" && (o.pause != "" || o.race):
		return errors.New("-within with -weak has neither pauses nor the race detector")
	}
	if o.within > 0 && o.weak != "" && o.check == 0 {
		o.check = consumerTimeout
	}
	ctx := context.Background()
	if o.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.within)
		defer cancel()
	}
	dir, err := os.MkdirTemp("", "schedule")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(out, "schedule: list the packages of %s\n", strings.Join(o.tests, ", "))
	all := listedPackage{ImportPath: strings.Join(o.tests, ", ")}
	file, places, err := o.writeOverlay(ctx, dir)
	if err != nil {
		return o.orTooShort(ctx, all, err)
	}
	tested, err := listPackages(ctx, o.tests)
	if err != nil {
		return o.orTooShort(ctx, all, err)
	}
	if o.within > 0 {
		search := o.searchDriver
		if o.weak != "" {
			search = o.searchConsumer
		}
		for i, p := range tested {
			if i > 0 { // each package has the time
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(context.Background(), o.within)
				defer cancel()
			}
			if err := search(ctx, out, p, dir, file); err != nil {
				return err
			}
		}
		return nil
	}
	devices := ""
	if o.weak != "" {
		devices = ", weak devices"
	}
	fmt.Fprintf(out, "schedule: pauses at %d places%s; %d packages, %d seeds from %d on\n", places, devices, len(tested),
		o.seeds, o.first)
	for i, p := range tested {
		if err := o.checkUsesDrivers(ctx, p); err != nil {
			return err
		}
		binary := filepath.Join(dir, fmt.Sprintf("%d.test", i))
		switch found, err := compileTests(ctx, p, binary, file, o.race); {
		case err != nil:
			return err
		case !found:
			continue // no tests
		}
		if err := o.runSeeds(out, p, binary); err != nil {
			return err
		}
	}
	return nil
}

// withPaths is a flag of go test: the search recognises the files of reports by their whole paths.
const withPaths = "-trimpath=false"

// compileTests compiles the tests of a package. An empty overlay means none. It returns false if the package has no
// tests.
func compileTests(ctx context.Context, p listedPackage, binary, overlay string, race bool) (bool, error) {
	args := []string{"test", withPaths, "-c", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	c := exec.CommandContext(ctx, "go")
	c.WaitDelay = killDelay
	if race {
		args = append(args, "-race")
		c.Env = append(os.Environ(), "CGO_ENABLED=1") // the race detector needs cgo
	}
	c.Args = append(append(c.Args, args...), p.ImportPath)
	if text, err := c.CombinedOutput(); err != nil {
		return false, fmt.Errorf("compile the tests of %s: %w\n%s", p.ImportPath, err, text)
	}
	_, err := os.Stat(binary)
	return err == nil, nil
}

// isNoTestsWarning reports whether no test of a binary matched its pattern.
func isNoTestsWarning(output []byte) bool {
	return bytes.Contains(output, []byte("warning: no tests to run"))
}

// writeOverlay writes the overlay to a folder. It returns the overlay file and the number of places with a pause.
func (o *commandOptions) writeOverlay(ctx context.Context, dir string) (file string, places int, err error) {
	r := &rewriter{dir: dir, replace: map[string]string{}}
	if o.overlay != "" {
		b, err := os.ReadFile(o.overlay)
		if err != nil {
			return "", 0, err
		}
		if err := json.Unmarshal(b, &struct{ Replace *map[string]string }{&r.replace}); err != nil {
			return "", 0, fmt.Errorf("%s: %w", o.overlay, err)
		}
	}
	paused := o.tests
	switch {
	case o.pause != "":
		paused = strings.Split(o.pause, ",")
	case o.weak != "" || o.check != 0:
		paused = nil
	}
	var stricter []string
	if o.weak != "" || o.check != 0 {
		stricter = o.tests
	}
	for _, x := range []struct {
		names   []string
		rewrite func(name, folder string, files []string) error
	}{{stricter, r.addStrictFile}, {paused, r.rewritePackage}} {
		if err := o.rewriteEachPackage(ctx, x.names, x.rewrite); err != nil {
			return "", 0, err
		}
	}
	file, err = r.writeOverlayList()
	return file, len(r.places), err
}

// rewriteEachPackage rewrites packages.
func (o *commandOptions) rewriteEachPackage(ctx context.Context, names []string, rewrite func(name, folder string,
	files []string) error) error {
	if len(names) == 0 {
		return nil
	}
	var args []string
	if o.overlay != "" {
		args = append(args, "-overlay="+o.overlay)
	}
	packages, err := listPackages(ctx, append(args, names...))
	if err != nil {
		return err
	}
	for _, p := range packages {
		if err := rewrite(p.Name, p.Dir, p.GoFiles); err != nil {
			return err
		}
	}
	return nil
}

// runSeeds runs a package's tests with each seed.
func (o *commandOptions) runSeeds(out io.Writer, p listedPackage, binary string) error {
	args := []string{"-test.timeout=" + o.timeout, fmt.Sprintf("-test.count=%d", o.count)}
	if o.run != "" {
		args = append(args, "-test.run="+o.run)
	}
	if o.skip != "" {
		args = append(args, "-test.skip="+o.skip)
	}
	args = append(args, strings.Fields(o.args)...)
	for i := range o.seeds {
		seed := o.first + uint64(i)
		c := exec.Command(binary, args...)
		c.Dir = p.Dir
		c.Env = append(os.Environ(), o.strictEnv(seed)...)
		text, err := c.CombinedOutput()
		if err != nil {
			out.Write(text)
			return fmt.Errorf("%s: seed %d: %w; run it again: -seeds 1 -seed %d", p.ImportPath, seed, err, seed)
		}
		if isNoTestsWarning(text) {
			return fmt.Errorf("%s: no tests match", p.ImportPath)
		}
	}
	fmt.Fprintf(out, "ok %s: %d seeds\n", p.ImportPath, o.seeds)
	return nil
}

// strictEnv returns the environment of a run with a seed. Seed 0 means neither pauses nor weak devices.
func (o *commandOptions) strictEnv(seed uint64) (env []string) {
	if o.check != 0 {
		env = append(env, fmt.Sprintf("%s=%v", strict.CheckEnv, o.check))
	}
	if seed == 0 {
		return env
	}
	env = append(env, fmt.Sprintf("%s=%d", strict.SeedEnv, seed))
	if o.weak != "" {
		env = append(env, strict.WeakEnv+"="+o.weak)
	}
	return env
}

// checkUsesDrivers returns an error if the tests of a package use none of the drivers of -weak.
func (o *commandOptions) checkUsesDrivers(ctx context.Context, p listedPackage) error {
	if o.weak == "" {
		return nil
	}
	drivers := strings.Split(o.weak, ",")
	deps, err := listPackages(ctx, []string{"-deps", "-test", p.ImportPath})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(deps, func(d listedPackage) bool {
		path, _, _ := strings.Cut(d.ImportPath, " ") // "PATH [BINARY.test]" if it was compiled for the tests
		return slices.Contains(drivers, path)
	}) {
		return fmt.Errorf("%s: the tests use none of the drivers %s", p.ImportPath, o.weak)
	}
	return nil
}

// listedPackage is a package in the output of go list.
type listedPackage struct {
	ImportPath, Name, Dir              string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

func listPackages(ctx context.Context, args []string) (all []listedPackage, err error) {
	var stderr bytes.Buffer
	const fields = "-json=ImportPath,Name,Dir,GoFiles,TestGoFiles,XTestGoFiles"
	c := exec.CommandContext(ctx, "go", append([]string{"list", fields}, args...)...)
	c.WaitDelay = killDelay
	c.Stderr = &stderr
	text, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var p listedPackage
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}
