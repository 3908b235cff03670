package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// The search within a time limit runs these tests of a driver on all processors:
//
//	the suite, without pauses or race detector
//	then in turn: its concurrent groups with both, with seeds from -seed on; and more seeds of the group Model without
//
// Compilation does not count. No run starts after a failure.

const (
	blockSeeds = 300  // seeds of Model of a run
	firstBlock = 1001 // the first of these; the suite runs those before
	// concurrent matches the groups with several threads.
	concurrent = "/^(Reentrant|Callback|HotPlug|CQ|SRQ|NoSleep|DeviceError|Disassociate|Load|Scale|Model)$"
)

// testBinaryRun is one run of a test binary.
type testBinaryRun struct {
	what    string
	binary  string
	pattern string
	args    []string
	pauses  uint64 // seed of the pauses; 0: none
	seeds   int    // seeds of the group Model; 0: the run is another one
}

// timedSearch holds the state of a search.
type timedSearch struct {
	o            *commandOptions
	p            listedPackage
	plain, raced string // test binaries

	mu     sync.Mutex
	n      int  // started runs
	suite  bool // the suite has passed
	seeds  int  // seeds of Model in finished runs
	paused int  // finished runs with pauses
	failed []error
}

// searchDriver searches for faults of a driver until the time limit. overlay adds the pauses.
func (o *commandOptions) searchDriver(out io.Writer, p listedPackage, dir, overlay string) error {
	s := &timedSearch{o: o, p: p, plain: filepath.Join(dir, "plain.test"), raced: filepath.Join(dir, "raced.test")}
	for _, b := range []struct {
		binary, overlay string
		race            bool
	}{{s.plain, o.overlay, false}, {s.raced, overlay, true}} {
		switch found, err := compileTests(p, b.binary, b.overlay, b.race); {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("%s: no tests", p.ImportPath)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.within)
	defer cancel()
	var wg sync.WaitGroup
	for range runtime.NumCPU() + 1 { // runs with pauses mostly wait
		wg.Go(func() {
			for ctx.Err() == nil {
				t, ok := s.nextRun()
				if !ok {
					return
				}
				s.runTest(ctx, out, t)
			}
		})
	}
	wg.Wait()
	switch {
	case len(s.failed) > 0:
		return errors.Join(s.failed...)
	case !s.suite:
		return fmt.Errorf("%s: the suite did not end within %v: use a longer -within", p.ImportPath, o.within)
	}
	fmt.Fprintf(out, "ok %s: the suite, %d more seeds of Model, and %d runs with pauses and the race detector in %v\n",
		p.ImportPath, s.seeds, s.paused, o.within)
	return nil
}

// nextRun returns the next test, unless one has failed.
func (s *timedSearch) nextRun() (testBinaryRun, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failed) > 0 {
		return testBinaryRun{}, false
	}
	i := s.n
	s.n++
	switch {
	case i == 0:
		return testBinaryRun{what: "the suite", binary: s.plain, pattern: s.o.run}, true
	case i%2 == 1:
		seed := s.o.first + uint64(i/2)
		return testBinaryRun{what: fmt.Sprintf("pauses of seed %d", seed), binary: s.raced, pattern: s.o.run + concurrent,
			args: []string{"-ibtest.load=1"}, pauses: seed}, true
	}
	first := firstBlock + (i/2-1)*blockSeeds
	return testBinaryRun{what: fmt.Sprintf("%d seeds of Model from %d", blockSeeds, first), binary: s.plain,
		pattern: s.o.run + "/^Model$", seeds: blockSeeds,
		args: []string{fmt.Sprintf("-ibtest.seed=%d", first), fmt.Sprintf("-ibtest.seeds=%d", blockSeeds)}}, true
}

// runTest runs a test until it ends or the search does.
func (s *timedSearch) runTest(ctx context.Context, out io.Writer, t testBinaryRun) {
	args := append(t.args, "-test.run="+t.pattern, "-test.timeout="+s.o.timeout)
	c := exec.CommandContext(ctx, t.binary, append(args, strings.Fields(s.o.args)...)...)
	c.Dir = s.p.Dir
	if c.Env = os.Environ(); t.pauses != 0 {
		c.Env = append(c.Env, fmt.Sprintf("%s=%d", seedEnv, t.pauses))
	}
	text, err := c.CombinedOutput()
	if err == nil && isNoTestsWarning(text) {
		err = fmt.Errorf("no test matches %q", s.o.run)
	}
	s.recordTestEnd(t, err, ctx.Err() != nil, text, out)
}

// recordTestEnd records the end of a test, which the end of the search may have killed.
func (s *timedSearch) recordTestEnd(t testBinaryRun, err error, killed bool, text []byte, out io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && killed:
	case err != nil:
		out.Write(text)
		s.failed = append(s.failed, fmt.Errorf("%s: %s: %w", s.p.ImportPath, t.what, err))
	case t.pauses != 0:
		s.paused++
	case t.seeds != 0:
		s.seeds += t.seeds
	default:
		s.suite = true
	}
}
