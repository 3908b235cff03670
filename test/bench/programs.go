package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The following constants are the names of further columns.
const (
	exMean     = "mean"
	exP99      = "p99"
	exRate     = "k msg/s"
	exService  = "service, µs/msg"
	exClient   = "client, µs/msg"
	exServer   = "server, µs/msg"
	exStop     = "stop, ms"
	exStartCPU = "start, ms of processor time"
	exRSS      = "RSS, MB"
	exThreads  = "threads"
	exNinetyth = "p90"
	exOnPath   = "on its path, %" // part of the packets

	// The next columns are the operations of scale.c, with the names in its output.
	exSend       = "send"
	exCreate     = "create"
	exConnect    = "connect"
	exDestroy    = "destroy"
	exRegister   = "register"
	exDeregister = "deregister"
	exIdle       = "ms in 2 s"

	// The next columns are the steps of cmtime, besides exConnect.
	exResolve    = "resolve"
	exCreateQP   = "create QP"
	exDisconnect = "disconnect"
)

// exchange is a run of a program of perftest, or of test/bench/floor/verbs.c.
type exchange struct {
	path    string // one of the paths of a service, or "" for the kernel's device
	tool    string // name of the tool, such as ib_send_lat
	size    int
	each    float64 // approximate time of a message or a round trip, in microseconds
	qps     int     // number of queue pairs; 0 means 1
	two     bool    // client and server use two devices
	events  bool    // wait for events instead of polling
	verbs   bool    // the tool is test/bench/floor/verbs.c, for inline data
	inlined bool
	mode    string // further flags of verbena run, or ""
}

func (x exchange) isLatencyTest() bool { return strings.HasSuffix(x.tool, "_lat") || x.verbs }

// minMessages is perftest's minimum number of messages.
const minMessages = 5

// measure runs the exchange once. It reports the processor time beyond that of the shortest possible exchange.
func (x exchange) measure(ctx context.Context, e *Env) (Sample, error) {
	n := x.messageCount(e)
	var baseCost cpuCost
	if x.path != "" {
		var err error
		if baseCost, err = x.measureFixedCost(ctx, e); err != nil {
			return Sample{}, err
		}
	}
	out, c, err := x.run(ctx, e, n)
	if err != nil {
		return Sample{}, err
	}
	s, err := x.parseOutput(out)
	if err != nil {
		return Sample{}, err
	}
	messages := float64((n - minMessages) * max(1, x.qps))
	if x.isLatencyTest() && x.tool != "ib_read_lat" {
		messages *= 2 // both directions
	}
	if x.path != "" {
		if s.Extras[exOnPath], err = x.percentOnPath(c); err != nil {
			return Sample{}, err
		}
		s.Extras[exService] = float64((c.service - baseCost.service).Nanoseconds()) / 1e3 / messages
		s.Extras[exClient] = float64((c.client - baseCost.client).Nanoseconds()) / 1e3 / messages
		s.Extras[exServer] = float64((c.server - baseCost.server).Nanoseconds()) / 1e3 / messages
	}
	return s, nil
}

// percentOnPath returns the part of the packets that took the measured path, in percent. A part of less than 99 percent
// is an error.
func (x exchange) percentOnPath(c cpuCost) (float64, error) {
	part := 100 * c.short / c.sent
	if x.path != shortcut {
		part = 100 - part
	}
	if !(part >= 99) {
		return part, fmt.Errorf("got %.0f packets and %.0f of them on the shortcut, want a measurement of the %s", c.sent,
			c.short,
			x.path)
	}
	return part, nil
}

// measureOnce runs the exchange once, without its processor time.
func (x exchange) measureOnce(ctx context.Context, e *Env) (Sample, error) {
	out, _, err := x.run(ctx, e, x.messageCount(e))
	if err != nil {
		return Sample{}, err
	}
	return x.parseOutput(out)
}

// measureTime runs the exchange once, and returns the time of a message, of a stream as well.
func (x exchange) measureTime(ctx context.Context, e *Env) (Sample, error) {
	s, err := x.measureOnce(ctx, e)
	if err == nil && !x.isLatencyTest() {
		s = Sample{Value: float64(x.size) / s.Value} // bytes by 10^6 bytes per second
	}
	return s, err
}

// messageCount returns the number of messages that each queue pair sends.
func (x exchange) messageCount(e *Env) int {
	n := max(e.operationsToMeasure(x.each)/max(1, x.qps), 2*minMessages)
	if x.qps > 1 {
		// perftest also counts the last completion of each queue pair as cqMod messages. If that count exceeds the
		// number of messages, and the queue pairs are not equally fast, perftest stops polling too early.
		const cqMod = 100
		n += cqMod - 1
		n -= n % cqMod
	}
	return n
}

// measureFixedCost returns the cost of the program with the minimum number of messages, which hardly depends on the
// size of the messages. It is the median of three runs, and is measured once for each kind of exchange.
func (x exchange) measureFixedCost(ctx context.Context, e *Env) (cpuCost, error) {
	x.size, x.each = 64, 0
	if c, ok := e.base[x]; ok {
		return c, nil
	}
	var runs [3]cpuCost
	for i := range runs {
		var err error
		if _, runs[i], err = x.run(ctx, e, minMessages); err != nil {
			return cpuCost{}, err
		}
	}
	middle := func(of func(cpuCost) time.Duration) time.Duration {
		v := []time.Duration{of(runs[0]), of(runs[1]), of(runs[2])}
		slices.Sort(v)
		return v[1]
	}
	c := cpuCost{
		service: middle(func(c cpuCost) time.Duration { return c.service }),
		client:  middle(func(c cpuCost) time.Duration { return c.client }),
		server:  middle(func(c cpuCost) time.Duration { return c.server }),
	}
	if e.base == nil {
		e.base = map[exchange]cpuCost{}
	}
	e.base[x] = c
	return c, nil
}

func (x exchange) run(ctx context.Context, e *Env, n int) (string, cpuCost, error) {
	args := []string{x.tool, "-x", "1", "-F", "-m", "4096"}
	if x.verbs {
		args = []string{e.programPath("verbs"), "-g", "1"}
	} else if !x.isLatencyTest() {
		args = append(args, "--report_gbits")
	}
	args = append(args, "-s", strconv.Itoa(x.size), "-n", strconv.Itoa(n))
	if x.qps > 1 {
		args = append(args, "-q", strconv.Itoa(x.qps))
	}
	if x.events {
		args = append(args, "-e")
	}
	if x.inlined {
		args = append(args, "-i")
	}
	client := "rxe0"
	if x.two {
		client = "rxe1"
	}
	by := func(s sideEnv) []string { return e.runPrefix(s, strings.Fields(x.mode)...) }
	return e.runPairWith(ctx, x.path, by, "-p", concat(args, []string{"-d", "rxe0"}), concat(args, []string{"-d", client}))
}

func (x exchange) parseOutput(out string) (Sample, error) {
	if x.verbs {
		return parseTimes(out)
	}
	if x.isLatencyTest() {
		return parseLatency(out)
	}
	return parseBandwidth(out)
}

var (
	latencyLine   = regexp.MustCompile(`(?m)^\s*\d+\s+\d+((?:\s+[-+\d.naif]+){7})\s*$`) // the deviation may be -nan
	bandwidthLine = regexp.MustCompile(`(?m)^\s*\d+\s+\d+((?:\s+[\d.]+){3})\s*$`)
	fabricLine    = regexp.MustCompile(`(?m)^\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$`)
)

// parseColumns returns the numbers of the first matching line of a table, with NaN for other words.
func parseColumns(out string, line *regexp.Regexp) ([]float64, error) {
	m := line.FindStringSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("no figures in the output: %s", lastLines(out))
	}
	var v []float64
	for f := range strings.FieldsSeq(m[1]) {
		x, err := strconv.ParseFloat(f, 64)
		if err != nil {
			x = math.NaN()
		}
		v = append(v, x)
	}
	return v, nil
}

// parseLatency parses perftest's table, which contains the least, most, typical and mean time, the deviation, and
// the 99th and 99.9th percentile.
func parseLatency(out string) (Sample, error) {
	v, err := parseColumns(out, latencyLine)
	if err != nil {
		return Sample{}, err
	}
	// This occurred on a busy machine, because perftest itself measures the rate of the cycle counter.
	if math.IsNaN(v[2]) || math.IsInf(v[2], 0) {
		return Sample{}, fmt.Errorf("perftest could not measure its clock's rate (is the machine busy?): %s", lastLines(out))
	}
	return Sample{v[2], map[string]float64{exMean: v[3], exP99: v[5]}}, nil
}

// parseBandwidth parses perftest's table, which contains the peak and mean in Gb/s, and million messages per
// second.
func parseBandwidth(out string) (Sample, error) {
	v, err := parseColumns(out, bandwidthLine)
	if err != nil {
		return Sample{}, err
	}
	return Sample{v[1] * 1000 / 8, map[string]float64{exRate: v[2] * 1000}}, nil
}

// measureFabric runs fi_pingpong, libfabric's ping-pong, with processes that wait for events.
func measureFabric(provider, endpoint string, size int, each float64) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		args := []string{"fi_pingpong", "-p", provider, "-e", endpoint, "-I", strconv.Itoa(e.operationsToMeasure(each)), "-S",
			strconv.Itoa(size)}
		port, err := e.freePort()
		if err != nil {
			return Sample{}, err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		server := e.newCommand(ctx, append(args, "-B", strconv.Itoa(port))...)
		if err := server.Start(); err != nil {
			return Sample{}, err
		}
		ended := make(chan error, 1)
		go func() { ended <- server.Wait() }()
		defer func() {
			cancel()
			<-ended
		}()
		for !isListening(server.Process.Pid, port) && len(ended) == 0 && ctx.Err() == nil {
			sleepBetweenPolls(ctx)
		}
		out, err := e.commandOutput(ctx, append(args, "-P", strconv.Itoa(port), "127.0.0.1")...)
		if err != nil {
			return Sample{}, err
		}
		v, err := parseColumns(out, fabricLine)
		if err != nil {
			return Sample{}, err
		}
		return Sample{Value: v[0]}, nil
	}
}
