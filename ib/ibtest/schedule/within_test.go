package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestSearchOrder checks the order of the runs of a search, and that none starts after a failure.
func TestSearchOrder(t *testing.T) {
	s := &search{o: &options{run: "TestContract", first: 7}, plain: "plain", raced: "raced"}
	for i, want := range []string{
		"plain TestContract: the suite",
		"raced TestContract" + concurrent + ": pauses of seed 7",
		"plain TestContract/^Model$: 300 seeds of Model from 1001",
		"raced TestContract" + concurrent + ": pauses of seed 8",
		"plain TestContract/^Model$: 300 seeds of Model from 1301",
	} {
		r, ok := s.next()
		if got := r.binary + " " + r.pattern + ": " + r.what; !ok || got != want {
			t.Errorf("run %d: got %q, want %q", i, got, want)
		}
		s.ended(r, nil, false, nil, io.Discard)
	}
	if !s.suite || s.paused != 2 || s.seeds != 2*blockSeeds {
		t.Errorf("got suite %v, %d runs with pauses, %d seeds, want true, 2, %d", s.suite, s.paused, s.seeds, 2*blockSeeds)
	}
	r, _ := s.next()
	s.ended(r, errors.New("killed"), true, nil, io.Discard)
	if len(s.failed) > 0 {
		t.Errorf("a killed run: got %v, want no failure", s.failed)
	}
	s.ended(r, errors.New("exit status 1"), false, []byte("why"), io.Discard)
	if _, ok := s.next(); ok || len(s.failed) != 1 {
		t.Errorf("after a failure: got another run %v, %d failures, want false, 1", ok, len(s.failed))
	}
}

// TestSearchErrors checks the searches that cannot succeed.
func TestSearchErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		o    options
		want string
	}{
		{"without a pattern", options{first: 1, within: time.Second}, "-within needs -run"},
		{"of consumers", options{first: 1, within: time.Second, run: "x", weak: "verbena/driver/loopback"}, "use one of them"},
		{"that matches nothing", options{first: 1, within: time.Minute, run: "^TestNone$", timeout: "1m",
			tests: []string{"verbena/examples/minimal"}}, "no test matches"},
		{"that is too short", options{first: 1, within: time.Millisecond, run: "^TestContract$", timeout: "1m",
			tests: []string{"verbena/examples/minimal"}}, "did not end within 1ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.o.tests) > 0 && testing.Short() {
				t.Skip("it compiles tests with the race detector")
			}
			if err := c.o.do(io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
