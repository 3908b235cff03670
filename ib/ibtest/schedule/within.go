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

// test is one run of a test binary.
type test struct {
	what   string
	binary string
	args   []string
	seed   uint64 // of the pauses; 0: none
}

// search holds the state of a search.
type search struct {
	o            *options
	p            listed
	plain, raced string // test binaries

	mu     sync.Mutex
	n      int // started runs
	seeds  int // seeds of Model in finished runs
	paused int // finished runs with pauses
	failed []error
}

// within searches for faults of a package until the time limit. file is the overlay with pauses.
func (o *options) searchPackage(out io.Writer, p listed, dir, file string) error {
	s := &search{o: o, p: p, plain: filepath.Join(dir, "plain.test"), raced: filepath.Join(dir, "raced.test")}
	for _, b := range []struct {
		name string
		args []string
	}{{s.plain, nil}, {s.raced, []string{"-race", "-overlay=" + file}}} {
		args := append([]string{"test", "-c", "-o", b.name}, b.args...)
		c := exec.Command("go", append(args, p.ImportPath)...)
		if len(b.args) > 0 {
			c.Env = append(os.Environ(), "CGO_ENABLED=1") // the race detector needs cgo
		}
		if text, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the tests of %s: %w\n%s", p.ImportPath, err, text)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.within)
	defer cancel()
	var wg sync.WaitGroup
	for range runtime.NumCPU() + 1 { // runs with pauses mostly wait
		wg.Go(func() {
			for ctx.Err() == nil {
				t, ok := s.next()
				if !ok {
					return
				}
				s.run(ctx, out, t)
			}
		})
	}
	wg.Wait()
	if len(s.failed) > 0 {
		return errors.Join(s.failed...)
	}
	fmt.Fprintf(out, "ok %s: the suite, %d more seeds of Model, and %d runs with pauses and the race detector in %v\n",
		p.ImportPath, s.seeds, s.paused, o.within)
	return nil
}

// next returns the next test, unless one has failed.
func (s *search) next() (test, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failed) > 0 {
		return test{}, false
	}
	i := s.n
	s.n++
	switch {
	case i == 0:
		return test{what: "suite", binary: s.plain, args: []string{"-test.run=" + s.o.run}}, true
	case i%2 == 1:
		seed := s.o.first + uint64(i/2)
		return test{fmt.Sprintf("pauses of seed %d", seed), s.raced,
			[]string{"-test.run=" + s.o.run + concurrent, "-ibtest.load=1"}, seed}, true
	}
	first := firstBlock + (i/2-1)*blockSeeds
	return test{what: fmt.Sprintf("seeds of Model from %d", first), binary: s.plain,
		args: []string{"-test.run=" + s.o.run + "/^Model$", fmt.Sprintf("-ibtest.seed=%d", first),
			fmt.Sprintf("-ibtest.seeds=%d", blockSeeds)}}, true
}

// run runs a test until it ends or the search does.
func (s *search) run(ctx context.Context, out io.Writer, t test) {
	args := append(t.args, "-test.timeout="+s.o.timeout)
	c := exec.CommandContext(ctx, t.binary, append(args, strings.Fields(s.o.args)...)...)
	c.Dir = s.p.Dir
	if c.Env = os.Environ(); t.seed != 0 {
		c.Env = append(c.Env, fmt.Sprintf("%s=%d", seedVariable, t.seed))
	}
	text, err := c.CombinedOutput()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil: // killed
	case err != nil:
		out.Write(text)
		s.failed = append(s.failed, fmt.Errorf("%s: %s: %w", s.p.ImportPath, t.what, err))
	case t.seed != 0:
		s.paused++
	case strings.Contains(t.what, "Model"):
		s.seeds += blockSeeds
	}
}
