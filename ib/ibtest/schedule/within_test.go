package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestSearchRunsInOrder checks the order of the runs of a search, and that none starts after a failure.
func TestSearchRunsInOrder(t *testing.T) {
	s := &timedSearch{o: &commandOptions{run: "TestContract", first: 7}, plain: "plain", raced: "raced"}
	for i, want := range []string{
		"plain TestContract: the suite",
		"raced TestContract" + concurrent + ": pauses of seed 7",
		"plain TestContract/^Model$: 300 seeds of Model from 1001",
		"raced TestContract" + concurrent + ": pauses of seed 8",
		"plain TestContract/^Model$: 300 seeds of Model from 1301",
	} {
		r, ok := s.nextRun()
		if got := r.binary + " " + r.pattern + ": " + r.what; !ok || got != want {
			t.Errorf("run %d: got %q, want %q", i, got, want)
		}
		s.recordTestEnd(r, nil, false, nil, io.Discard)
	}
	if !s.suite || s.paused != 2 || s.seeds != 2*blockSeeds {
		t.Errorf("got suite %v, %d runs with pauses, %d seeds, want true, 2, %d", s.suite, s.paused, s.seeds, 2*blockSeeds)
	}
	r, _ := s.nextRun()
	s.recordTestEnd(r, errors.New("killed"), true, nil, io.Discard)
	if len(s.failed) > 0 {
		t.Errorf("a killed run: got %v, want no failure", s.failed)
	}
	s.recordTestEnd(r, errors.New("exit status 1"), false, []byte("why"), io.Discard)
	if _, ok := s.nextRun(); ok || len(s.failed) != 1 {
		t.Errorf("after a failure: got another run %v, %d failures, want false, 1", ok, len(s.failed))
	}
}

// TestImpossibleSearchFails checks the searches that cannot succeed.
func TestImpossibleSearchFails(t *testing.T) {
	for _, c := range []struct {
		name string
		o    commandOptions
		want string
	}{
		{"without a pattern", commandOptions{first: 1, within: time.Second}, "-within needs -run"},
		{"of consumers", commandOptions{first: 1, within: time.Second, run: "x", weak: "verbena/driver/loopback"},
			"use one of them"},
		{"that matches nothing", commandOptions{first: 1, within: time.Minute, run: "^TestNone$", timeout: "1m",
			tests: []string{"verbena/examples/minimal"}}, "no test matches"},
		{"that is too short", commandOptions{first: 1, within: time.Millisecond, run: "^TestContract$", timeout: "1m",
			tests: []string{"verbena/examples/minimal"}}, "did not end within 1ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.o.tests) > 0 && testing.Short() {
				t.Skip("it compiles tests with the race detector")
			}
			if err := c.o.runTests(io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
