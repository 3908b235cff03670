package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	roundTrip    = regexp.MustCompile(`([\d.]+) usec per round trip`)
	perOperation = regexp.MustCompile(`\s([\d.]+) ns/op`)
)

// measureEmbeddedDevice runs ibpingpong, with both ends in one process. The value of embedded is half a round trip.
func measureEmbeddedDevice(size int, overWire bool, each float64) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		addr := "127.9.200.1"
		argv := []string{e.programPath("pingpong"), "-addr", addr, "-size", strconv.Itoa(size), "-n",
			strconv.Itoa(e.operationsToMeasure(each))}
		if overWire {
			argv = append(argv, "-wire")
		}
		out, err := e.commandOutput(ctx, argv...)
		if err != nil {
			return Sample{}, err
		}
		return parseSingleFigure(out, roundTrip, 0.5)
	}
}

// measureLoopback runs the benchmark of driver/loopback, which sends one message of 64 bytes and polls its completions.
func measureLoopback(ctx context.Context, e *Env) (Sample, error) {
	out, err := e.commandOutput(ctx, e.programPath("loopback"), "-test.run", "^$", "-test.bench",
		"^BenchmarkMessage$/^plain$",
		"-test.benchtime", strconv.Itoa(e.operationsToMeasure(0.2))+"x")
	if err != nil {
		return Sample{}, err
	}
	return parseSingleFigure(out, perOperation, 1e-3)
}

// parseSingleFigure returns the only figure of the matching output, times factor.
func parseSingleFigure(out string, pattern *regexp.Regexp, factor float64) (Sample, error) {
	v, err := parseColumns(out, pattern)
	if err != nil {
		return Sample{}, err
	}
	return Sample{Value: v[0] * factor}, nil
}

// measureStartUp measures the time of a program from start to end in milliseconds. If path is "", the program runs
// without Verbena.
func measureStartUp(path string, program ...string) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		argv := program
		if path != "" {
			s, err := e.GetOrStartService(ctx, path)
			if err != nil {
				return Sample{}, err
			}
			argv = concat([]string{e.Verbena, "run", "--socket", s.socket, "--"}, program)
		}
		var times []float64
		for range max(2, int(10*e.Scale)) {
			began := time.Now()
			// ibv_devices fails without a device, which is the case without Verbena.
			if _, err := e.commandOutput(ctx, argv...); err != nil && (path != "" || program[0] != "ibv_devices") {
				return Sample{}, err
			}
			times = append(times, float64(time.Since(began).Microseconds())/1e3)
		}
		slices.Sort(times)
		return Sample{quantile(times, 0.5), map[string]float64{exNinetyth: quantile(times, 0.9)}}, nil
	}
}

// measureIdleService measures the cost of an idle service: the processor time of two seconds in milliseconds, the
// memory and the threads. During the measurement a program runs. A line of output that begins with `ready` shows that
// the program waits. A nil program means no program.
func measureIdleService(ready string, program ...string) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (sample Sample, err error) {
		s, err := e.startService(ctx, e.Inside, filepath.Join(e.Dir, "idle"),
			[]string{"--link", fmt.Sprintf("rxe0=127.9.%d.200", e.Subnet)})
		if err != nil {
			return Sample{}, err
		}
		defer s.stop()
		if len(program) == 0 {
			return s.measureIdleCost(ctx)
		}
		_, err = e.runBesideProgram(ctx, s, ready, program, func() error {
			sample, err = s.measureIdleCost(ctx)
			return err
		})
		return sample, err
	}
}

// measureDevices measures the start and the end of a service with n devices.
func measureDevices(n int) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (sample Sample, err error) {
		var flags []string
		last := ""
		for i := range n {
			last = fmt.Sprintf("rxe%d", i)
			flags = append(flags, "--link", fmt.Sprintf("%s=127.%d.%d.%d", last, 10+e.Subnet, i/200, 1+i%200))
		}
		began := time.Now()
		s, err := e.startService(ctx, e.Inside, filepath.Join(e.Dir, "devices"), flags)
		if err != nil {
			return Sample{}, err
		}
		wait := []string{e.Verbena, "wait", "--socket", s.socket, "--active", last}
		_, err = e.commandOutput(ctx, concat(e.Inside, wait)...)
		started := time.Since(began)
		cpu, err2 := processCPUTime(s.pid())
		rss, threads, err3 := memoryUsage(s.pid())
		began = time.Now()
		s.stop()
		return Sample{started.Seconds() * 1e3, map[string]float64{
			exStop: time.Since(began).Seconds() * 1e3, exStartCPU: cpu.Seconds() * 1e3, exRSS: rss, exThreads: threads,
		}}, errors.Join(err, err2, err3)
	}
}

// runBesideProgram calls f when a program of the service has printed a line that begins with `ready`, and then ends the
// program. It returns the earlier lines.
func (e *Env) runBesideProgram(ctx context.Context, s *service, ready string, program []string,
	f func() error) (lines []string,
	err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := e.newCommand(ctx, concat([]string{e.Verbena, "run", "--socket", s.socket, "--", "stdbuf", "-oL"}, program)...)
	stdin, err := c.StdinPipe() // some programs wait for the end of standard input
	if err == nil {
		defer stdin.Close()
	}
	out, err2 := c.StdoutPipe()
	c.Stderr = &s.log
	if err = errors.Join(err, err2); err == nil {
		err = c.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	defer func() {
		cancel()
		c.Wait()
	}()
	for text := bufio.NewScanner(out); ; lines = append(lines, text.Text()) {
		if !text.Scan() {
			return nil, fmt.Errorf("%s ended before it printed %q: %s", program[0], ready, lastLines(s.log.String()))
		}
		if strings.HasPrefix(strings.TrimSpace(text.Text()), ready) {
			return lines, f()
		}
	}
}

// measureIdleCost measures the cost of the idle service from now on.
func (s *service) measureIdleCost(ctx context.Context) (Sample, error) {
	const settle, window = 300 * time.Millisecond, 2 * time.Second
	if err := sleep(ctx, settle); err != nil {
		return Sample{}, err
	}
	before, err := processCPUTime(s.pid())
	if err != nil {
		return Sample{}, err
	}
	began := time.Now()
	if err := sleep(ctx, window); err != nil {
		return Sample{}, err
	}
	took := time.Since(began)
	after, err := processCPUTime(s.pid())
	if err != nil {
		return Sample{}, err
	}
	rss, threads, err := memoryUsage(s.pid())
	return Sample{float64((after - before).Microseconds()) / 1e3 * float64(window) / float64(took),
		map[string]float64{exRSS: rss, exThreads: threads}}, err
}

// measureMixedSizes measures the bandwidth of WRITEs of all sizes. They are in random order on qps queue pairs, or
// ordered by size on one queue pair if qps is 0.
func measureMixedSizes(path string, qps int) func(context.Context, *Env) (Sample, error) {
	const bytes = (60*64 + 30*4096 + 9*65536 + 1<<20) / 100.0 // mean size of a message
	return func(ctx context.Context, e *Env) (Sample, error) {
		s, err := e.GetOrStartService(ctx, path)
		if err != nil {
			return Sample{}, err
		}
		argv := concat(e.Inside, []string{e.Verbena, "run", "--socket", s.socket, "--", e.programPath("mix"), "-d", "rxe0",
			"-g",
			"1"})
		if qps > 0 {
			argv = append(argv, "-s", "1", "-q", strconv.Itoa(qps))
		}
		out, err := e.commandOutput(ctx, append(argv, strconv.Itoa(max(100, e.operationsToMeasure(40))))...)
		if err != nil {
			return Sample{}, err
		}
		one, err := parseTimes(out)
		return Sample{Value: bytes / one.Value}, err
	}
}

// measureManyQPs measures the cost of operations next to idle queue pairs in a given state, in a number of contexts.
// The value is the time of a WRITE.
func measureManyQPs(contexts, qps int, state string) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (sample Sample, err error) {
		s, err := e.startService(ctx, e.Inside, filepath.Join(e.Dir, "many"),
			[]string{"--link", fmt.Sprintf("rxe0=127.9.%d.201", e.Subnet),
				"--limit", "qps=0", "--limit", "contexts=0", "--limit", "descriptors=0", "--limit", "ring-bytes=0", "--limit",
				"mappings=0"})
		if err != nil {
			return Sample{}, err
		}
		defer s.stop()
		lines, err := e.runBesideProgram(ctx, s, "ready", []string{e.programPath("scale"), "-d", "rxe0", "-g", "1", "-c",
			strconv.Itoa(contexts),
			"-q", strconv.Itoa(qps), "-s", state, "-n", strconv.Itoa(e.operationsToMeasure(15))}, func() error {
			sample, err = s.measureIdleCost(ctx)
			return err
		})
		if err != nil {
			return Sample{}, err
		}
		sample.Extras[exIdle] = sample.Value
		for _, l := range lines {
			name, figures, _ := strings.Cut(l, " ")
			one, err := parseTimes(figures)
			if err != nil {
				return Sample{}, err
			}
			if name == "write" {
				sample.Value = one.Value
			} else {
				sample.Extras[name] = one.Value
			}
		}
		return sample, nil
	}
}

// memoryUsage returns the resident memory of a process, in MB of 10^6 bytes, and its number of threads.
func memoryUsage(pid int) (rss, threads float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for l := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(l, ":")
		f := strings.Fields(value)
		switch name {
		case "VmRSS":
			rss, err = strconv.ParseFloat(f[0], 64)
			rss *= 1024 / 1e6
		case "Threads":
			threads, err = strconv.ParseFloat(f[0], 64)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("parse %q: %w", l, err)
		}
	}
	return rss, threads, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
