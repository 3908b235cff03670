package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// floorPrograms lists the sources below test/bench/floor, with their libraries.
var floorPrograms = map[string][]string{"trap": {"-pthread"}, "copy": nil, "tcp": nil, "udp": nil,
	"verbs": {"-libverbs"}, "scale": {"-libverbs"}, "relay": nil, "mix": {"-libverbs"}}

// programPath returns the path of a program made by build.
func (e *Env) programPath(name string) string { return filepath.Join(e.Dir, name) }

// buildFloors compiles the floors and the measured Go programs, from the module at root.
func (e *Env) buildFloors(ctx context.Context, root string) error {
	for name, libs := range floorPrograms {
		source := filepath.Join(root, "test/bench/floor", name+".c")
		argv := append([]string{"cc", "-O2", "-Wall", "-Wextra", "-o", e.programPath(name), source}, libs...)
		if out, err := e.newCommand(ctx, argv...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
	}
	if _, err := e.commandOutput(ctx, e.programPath("udp"), "check"); err != nil {
		return err
	}
	for name, argv := range map[string][]string{
		"gotcp":    {"go", "build", "-o", e.programPath("gotcp"), "./test/bench/floor/gotcp"},
		"goudp":    {"go", "build", "-o", e.programPath("goudp"), "./test/bench/floor/goudp"},
		"pingpong": {"go", "build", "-o", e.programPath("pingpong"), "./test/bench/ibpingpong"},
		"loopback": {"go", "test", "-c", "-o", e.programPath("loopback"), "./driver/loopback"},
	} {
		c := e.newCommand(ctx, argv...)
		c.Dir = root
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return nil
}

// measureFloor runs a floor program. The last argument of the program is the number of operations, each of which takes
// about `each` microseconds. The value is the typical time if the program timed operations individually, and
// otherwise the mean. It is in microseconds, times factor.
func measureFloor(factor, each float64, argv ...string) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		out, err := e.commandOutput(ctx, concat([]string{e.programPath(argv[0])}, argv[1:],
			[]string{strconv.Itoa(e.operationsToMeasure(each))})...)
		if err != nil {
			return Sample{}, err
		}
		s, err := parseTimes(out)
		s.Value *= factor
		for k := range s.Extras {
			s.Extras[k] *= factor
		}
		return s, err
	}
}

// measureStream runs a floor program like floor, and returns the bandwidth in MB/s.
func measureStream(size int, each float64, argv ...string) func(context.Context, *Env) (Sample, error) {
	take := measureFloor(1, each, argv...)
	return func(ctx context.Context, e *Env) (Sample, error) {
		s, err := take(ctx, e)
		if err != nil {
			return s, err
		}
		us := s.Value
		if mean, ok := s.Extras[exMean]; ok {
			us = mean
		}
		return Sample{float64(size) / us, map[string]float64{exRate: 1e3 / us}}, nil
	}
}

// parseTimes parses "mean=US [typical=US p99=US]".
func parseTimes(out string) (Sample, error) {
	v := map[string]float64{}
	for f := range strings.FieldsSeq(out) {
		name, number, _ := strings.Cut(f, "=")
		x, err := strconv.ParseFloat(number, 64)
		if err != nil || x <= 0 {
			return Sample{}, fmt.Errorf("parse %q: want name=number, above 0", f)
		}
		v[name] = x
	}
	if v["mean"] == 0 {
		return Sample{}, fmt.Errorf("no mean in the output: %q", out)
	}
	if v["typical"] == 0 {
		return Sample{Value: v["mean"]}, nil
	}
	return Sample{v["typical"], map[string]float64{exMean: v["mean"], exP99: v["p99"]}}, nil
}

// sleepBetweenPolls sleeps briefly in a loop that polls for another process.
func sleepBetweenPolls(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(2 * time.Millisecond):
	}
}
