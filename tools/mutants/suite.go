package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	splitTime  = 500 * time.Millisecond // a test that takes longer becomes a unit per subtest
	splitDepth = 4                      // the maximum depth of such subtests
	firstBatch = 250 * time.Millisecond // the time of the first units that run with a mutant
)

// unit is a test or a subtest that runs by itself.
type unit struct {
	suite   *suite
	name    string
	took    time.Duration
	reached []byte // byte n is 1 if the unit executes the place of mutant n
}

// suite is a selection of tests, with a binary that contains several mutants.
type suite struct {
	testSelection
	build *build
	bin   string
	lock  *sync.Mutex // held while tests of the package run

	once  sync.Once
	units []*unit
	err   error
}

// builtSuites are the suites of a build. dir contains their binaries.
type builtSuites struct {
	*build
	dir    string
	suites map[testSelection]*suite
	limit  time.Duration
	short  bool // run only the tests with -short
}

// buildSuites compiles the tests of the mutants. The caller removes the directory of the binaries.
func buildSuites(b *build, limit time.Duration, short bool) (*builtSuites, error) {
	dir, err := os.MkdirTemp("", "verbena-mutants-")
	if err != nil {
		return nil, err
	}
	s := &builtSuites{build: b, dir: dir, suites: map[testSelection]*suite{}, limit: limit, short: short}
	locks := map[string]*sync.Mutex{}
	err = withOverlay(b.files, func(_, overlay string) error {
		for _, m := range b.mutants {
			for _, t := range m.testSuites() {
				if s.suites[t] != nil {
					continue
				}
				bin := filepath.Join(dir, strings.ReplaceAll(t.pkg, "/", "_")+".test")
				if locks[t.pkg] == nil {
					locks[t.pkg] = &sync.Mutex{}
					if err := t.compile(overlay, bin); err != nil {
						return err
					}
				}
				s.suites[t] = &suite{testSelection: t, build: b, bin: bin, lock: locks[t.pkg]}
			}
		}
		return os.Chmod(dir, 0o755) // for tests that run their binary as another user
	})
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// compile builds the test binary of the package with replaced files.
func (t testSelection) compile(overlay, bin string) error {
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay", overlay, "-o", bin, ".")
	build.Dir = t.pkg // the package may belong to another module
	// Some tests need a test binary without cgo. With CGO_ENABLED=0 these tests use this binary, which contains the
	// mutant. Otherwise they would build another binary, without the mutant.
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", errBuild, out)
	}
	return nil
}

var resultPattern = regexp.MustCompile(`(?m)^ *--- PASS: (\S+) \((\d+\.\d+)s\)$`)

// measure finds the units of the suite, their durations and the mutants whose places they execute. Units that fail
// without a mutant are omitted.
func (s *suite) measure(limit time.Duration) ([]*unit, error) {
	s.once.Do(func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		out, err := s.execute(s.bin, 5*limit, nil, "-test.v")
		if err != nil && errors.Is(err, errHangs) {
			s.err = fmt.Errorf("the tests of %s without a mutant: %w", s.pkg, err)
			return
		}
		for _, name := range splitTests(out) {
			u := &unit{suite: s, name: name}
			if err = u.measure(limit); err != nil {
				err = u.measure(limit) // on a busy machine a test fails occasionally
			}
			if err != nil {
				fmt.Printf("%s %s fails without a mutant and is omitted: %v\n", s.pkg, name, err)
				continue
			}
			s.units = append(s.units, u)
		}
		fmt.Printf("%s: %d tests take %.1fs without a mutant\n", s.pkg, len(s.units), sumTook(s.units).Seconds())
	})
	return s.units, s.err
}

// splitTests returns the names of the units in the output of verbose tests. The subtests of a long test are units.
func splitTests(out string) []string {
	children := map[string][]string{}
	took := map[string]float64{}
	for _, r := range resultPattern.FindAllStringSubmatch(out, -1) {
		parent, _, nested := cutLast(r[1], "/")
		if !nested {
			parent = ""
		}
		children[parent] = append(children[parent], r[1])
		took[r[1]], _ = strconv.ParseFloat(r[2], 64)
	}
	var names []string
	var add func(name string)
	add = func(name string) {
		if of := children[name]; name == "" || len(of) > 0 && took[name] > splitTime.Seconds() &&
			strings.Count(name, "/")+1 < splitDepth {
			for _, c := range of {
				add(c)
			}
			return
		}
		names = append(names, name)
	}
	add("")
	return names
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// measure runs the unit without a mutant.
func (u *unit) measure(limit time.Duration) error {
	f, err := os.CreateTemp("", "verbena-reached-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Truncate(int64(u.suite.build.size())); err != nil {
		return err
	}
	began := time.Now()
	t := u.suite.testSelection
	t.run = u.pattern()
	out, err := t.execute(u.suite.bin, limit, []string{reachedVariable + "=" + f.Name()}, "-test.v")
	if err == nil && !strings.Contains(out, "--- PASS: "+u.name+" ") {
		err = errors.New("the test does not run by itself")
	}
	u.took = time.Since(began)
	if err == nil {
		u.reached, err = os.ReadFile(f.Name())
	}
	return err
}

// pattern returns the pattern of -test.run that selects the unit.
func (u *unit) pattern() string {
	parts := strings.Split(u.name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// size returns the number of mutants that the build had before combine removed some, and one more.
func (b *build) size() (n int) {
	for _, m := range b.mutants {
		n = max(n, m.number)
	}
	return n + 1
}

// errUnreached means that no test can detect a mutant.
var errUnreached = errors.New("no test executes this code")

// run runs the tests that execute the place of the mutant, the fastest first, and returns the test that detected it.
// The tests without -short run last.
func (s *builtSuites) run(m numberedMutant) (how string, err error) {
	err = errUnreached
	for _, short := range []bool{true, false} {
		if s.short && !short {
			break
		}
		var units []*unit
		for _, t := range m.testSuites() {
			if t.short != short {
				continue
			}
			all, err := s.suites[t].measure(s.limit)
			if err != nil {
				return "", err
			}
			for _, u := range all {
				if u.reached[m.number] != 0 {
					units = append(units, u)
				}
			}
		}
		for _, batch := range batches(units) {
			if how, err = s.runBatch(m, batch); !errors.Is(err, errPass) {
				return how, err
			}
		}
	}
	return "", err
}

// batches sorts units by their durations and divides them into lists of one suite each, for one process. The first
// lists take less time.
func batches(units []*unit) (list [][]*unit) {
	slices.SortStableFunc(units, func(a, b *unit) int { return cmp.Compare(a.took, b.took) })
	for limit := firstBatch; len(units) > 0; limit *= 3 {
		var took time.Duration
		n := 0
		for n < len(units) && (n == 0 || took+units[n].took <= limit) {
			took += units[n].took
			n++
		}
		bySuite := map[*suite]int{}
		begin := len(list)
		for _, u := range units[:n] {
			i, known := bySuite[u.suite]
			if !known {
				i = len(list)
				bySuite[u.suite] = i
				list = append(list, nil)
			}
			list[i] = append(list[i], u)
		}
		slices.SortStableFunc(list[begin:], func(a, b []*unit) int { return cmp.Compare(sumTook(a), sumTook(b)) })
		units = units[n:]
	}
	return list
}

func sumTook(units []*unit) (sum time.Duration) {
	for _, u := range units {
		sum += u.took
	}
	return sum
}

// runBatch runs units of one suite in one process.
func (s *builtSuites) runBatch(m numberedMutant, units []*unit) (how string, err error) {
	of := units[0].suite
	patterns := make([]string, len(units))
	for i, u := range units {
		patterns[i] = u.pattern()
	}
	t := of.testSelection
	t.run = strings.Join(patterns, "|")
	of.lock.Lock()
	defer of.lock.Unlock()
	out, err := t.execute(of.bin, min(s.limit, 5*sumTook(units)+15*time.Second),
		[]string{activeVariable + "=" + strconv.Itoa(m.number)})
	switch {
	case err == nil:
		return "", errPass
	case errors.Is(err, errHangs):
		return "does not end: " + units[len(units)-1].name, nil
	}
	return findFailedTest(out), nil
}
