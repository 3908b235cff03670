package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
)

// goTransport is a transport by which package verbs accesses a device.
type goTransport struct {
	name string
	// run runs both ends of `verbena pingpong` or `verbena perf`, and returns the client's output.
	run func(ctx context.Context, e *Env, command string, args []string) (string, error)
}

// goTransports lists the transports to measure side by side.
var goTransports = []goTransport{
	{"embedded", func(ctx context.Context, e *Env, command string, args []string) (string, error) {
		return e.commandOutput(ctx, concat([]string{e.Verbena, command, "--embedded"}, args)...)
	}},
	{"verbena run", func(ctx context.Context, e *Env, command string, args []string) (string, error) {
		server := []string{e.Verbena, command}
		if slices.Contains(args, "--events") { // each end selects its wait mode
			server = append(server, "--events")
		}
		out, _, err := e.runPair(ctx, shortcut, "-p", server, concat([]string{e.Verbena, command}, args))
		return out, err
	}},
	{"socket", func(ctx context.Context, e *Env, command string, args []string) (string, error) {
		server := []string{e.Verbena, command, "--service"}
		if slices.Contains(args, "--events") {
			server = append(server, "--events")
		}
		out, _, err := e.runPairWith(ctx, shortcut, e.socketPrefix, "-p", server, concat([]string{e.Verbena, command,
			"--service"}, args))
		return out, err
	}},
}

// goPhase contains the used fields of a phase in the commands' JSON.
type goPhase struct {
	Times struct {
		Mean float64
		P50  float64
		P99  float64
	} `json:"times_ns"`
	Bytes    float64 `json:"bytes_per_second"`
	Messages float64 `json:"messages_per_second"`
}

type goResult struct {
	RoundTrip goPhase `json:"round_trip"`
	Bandwidth goPhase
}

// measure runs a command, and returns the sample that the function of extracts from its result.
func (t goTransport) measure(of func(*goResult) Sample, command string, args ...string) func(context.Context,
	*Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		out, err := t.run(ctx, e, command, append(args, "--json"))
		if err != nil {
			return Sample{}, err
		}
		return parseGoResult(out, of)
	}
}

func parseGoResult(out string, of func(*goResult) Sample) (Sample, error) {
	var r goResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return Sample{}, fmt.Errorf("parse %q: %w", lastLines(out), err)
	}
	s := of(&r)
	if s.Value <= 0 {
		return Sample{}, fmt.Errorf("no figure in the output: %s", lastLines(out))
	}
	return s, nil
}

func halfRoundTrip(r *goResult) Sample {
	t := &r.RoundTrip.Times
	return Sample{t.P50 / 2e3, map[string]float64{exMean: t.Mean / 2e3, exP99: t.P99 / 2e3}}
}

func goMessageRate(r *goResult) Sample { return Sample{Value: r.Bandwidth.Messages / 1e3} }

func goBandwidth(r *goResult) Sample { return Sample{Value: r.Bandwidth.Bytes / 1e6} }

// toMessageRate converts a sample of bandwidth to its message rate, in thousand messages a second.
func toMessageRate(take func(context.Context, *Env) (Sample, error)) func(context.Context, *Env) (Sample, error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		s, err := take(ctx, e)
		return Sample{Value: s.Extras[exRate]}, err
	}
}

var ucxLinePattern = regexp.MustCompile(`(?m)^Final:\s+\d+((?:\s+[\d.]+){7})\s*$`)

// measureUCX runs ucx_perftest over shared memory. The function of extracts the sample from the columns of the last
// line.
func measureUCX(test string, size int, each float64, of func(columns []float64) Sample) func(context.Context,
	*Env) (Sample,
	error) {
	return func(ctx context.Context, e *Env) (Sample, error) {
		args := []string{"env", "UCX_TLS=sm,self", "ucx_perftest", "-t", test, "-s", strconv.Itoa(size), "-n",
			strconv.Itoa(e.operationsToMeasure(each)), "-w", "100"}
		out, _, err := e.runPair(ctx, "", "-p", args, args)
		if err != nil {
			return Sample{}, err
		}
		v, err := parseColumns(out, ucxLinePattern)
		if err != nil {
			return Sample{}, err
		}
		return of(v), nil
	}
}

// The columns of ucx_perftest are the median, mean and overall time, the bandwidth in MB/s of 2^20 bytes twice, and
// the messages per second twice.
func ucxLatency(v []float64) Sample     { return Sample{v[0], map[string]float64{exMean: v[1]}} }
func ucxBandwidth(v []float64) Sample   { return Sample{Value: v[4] * (1 << 20) / 1e6} }
func ucxMessageRate(v []float64) Sample { return Sample{Value: v[6] / 1e3} }

// goSections returns the sections about package verbs.
func goSections() []Section {
	const (
		tcp     = "TCP, package net"
		relay   = "relay"
		relayed = "relay, 64 in flight"
		memory  = "memcpy from memory"
		client  = "perftest, verbena run"
	)
	latency := Section{Name: "go-latency", Title: "Package verbs: ping-pong of 64 bytes", Unit: "µs", Floor: relay,
		Peer: "TCP",
		Note: "Half a round trip, typical. Embedded: both ends in one process; `verbena run`: two programs on one device of a service; socket: the same, over the socket of the service. The floor " +
			"is a relay by shared memory through a third process, where all three yield when there is nothing to do.",
		Extras: []string{exMean, exP99}}
	rate := Section{Name: "go-rate", Title: "Package verbs: messages of 64 bytes", Unit: "thousand messages a second",
		Floor: relayed, Peer: "TCP",
		Note: "64 messages in flight on one queue pair; more is better. The floor is the relay with 64 messages in flight."}
	bandwidth := Section{Name: "go-bandwidth", Title: "Package verbs: WRITEs of 1 MB", Unit: "MB/s (10^6 bytes)",
		Floor: memory, Peer: "TCP",
		Note: "One queue pair; more is better. The floor is memcpy between buffers of 256 MB, a part of 1 MB at a time."}

	l := Group{Name: "64 B", Short: true, Measurements: []Measurement{
		{Name: relay, Kind: Floor, Take: measureFloor(1, 8, "relay", "pingpong", "64")},
		{Name: tcp, Kind: Peer, Take: measureFloor(1, tcpCosts[64], "gotcp", "pingpong", "64")},
		{Name: client, Kind: Ours, Floor: relay, Peer: tcp,
			Take: exchange{path: shortcut, tool: "ib_send_lat", size: 64, each: shortcutCosts[64]}.measureOnce},
	}}
	r := Group{Name: "64 B", Measurements: []Measurement{
		{Name: relayed, Kind: Floor, Take: toMessageRate(measureStream(64, 1, "relay", "stream", "64"))},
		{Name: tcp, Kind: Peer, Take: toMessageRate(measureStream(64, tcpStreamCosts[64], "gotcp", "stream", "64"))},
		{Name: "WRITE, " + client, Kind: Ours, Floor: relayed, Peer: tcp,
			Take: toMessageRate(exchange{path: shortcut, tool: "ib_write_bw", size: 64,
				each: streamCosts[shortcut][64]}.measureOnce)},
	}}
	b := Group{Name: "1 MB", Measurements: []Measurement{
		{Name: memory, Kind: Floor, Take: measureStream(1<<20, 120, "copy", "far", strconv.Itoa(1<<20))},
		{Name: tcp, Kind: Peer, Take: measureStream(1<<20, tcpStreamCosts[1<<20], "gotcp", "stream", strconv.Itoa(1<<20))},
		{Name: client, Kind: Ours, Floor: memory, Peer: tcp,
			Take: exchange{path: shortcut, tool: "ib_write_bw", size: 1 << 20, each: streamCosts[shortcut][1<<20]}.measureOnce},
	}}
	if _, err := exec.LookPath("ucx_perftest"); err == nil {
		const name = "UCX, shared memory"
		l.Measurements = append(l.Measurements, Measurement{Name: name, Kind: Peer, Take: measureUCX("tag_lat", 64, 5,
			ucxLatency)})
		r.Measurements = append(r.Measurements, Measurement{Name: name, Kind: Peer, Take: measureUCX("tag_bw", 64, 1,
			ucxMessageRate)})
		b.Measurements = append(b.Measurements, Measurement{Name: name, Kind: Peer,
			Take: measureUCX("ucp_put_bw", 1<<20, 100, ucxBandwidth)})
	} else {
		const missing = " UCX is not among the rows: ucx_perftest (Debian's package ucx-utils) is not installed."
		latency.Note, rate.Note, bandwidth.Note = latency.Note+missing, rate.Note+missing, bandwidth.Note+missing
	}
	for _, t := range goTransports {
		ours := func(name, floor string, take func(context.Context, *Env) (Sample, error)) Measurement {
			return Measurement{Name: name + ", " + t.name, Kind: Ours, Floor: floor, Peer: tcp, Take: take}
		}
		l.Measurements = append(l.Measurements,
			ours("SEND", relay, t.measure(halfRoundTrip, "pingpong", "-s", "64", "-n", "4000")),
			ours("SEND, events", relay, t.measure(halfRoundTrip, "pingpong", "-s", "64", "-n", "2000", "--events")))
		for _, op := range []string{"send", "write"} {
			r.Measurements = append(r.Measurements, ours(map[string]string{"send": "SEND", "write": "WRITE"}[op], relayed,
				t.measure(goMessageRate, "perf", "--test", "bandwidth", "--op", op, "-s", "64", "-D", "200ms")))
		}
		b.Measurements = append(b.Measurements, ours("WRITE", memory,
			t.measure(goBandwidth, "perf", "--test", "bandwidth", "-s", "1M", "--depth", "16", "-D", "200ms")))
	}
	latency.Groups, rate.Groups, bandwidth.Groups = []Group{l}, []Group{r}, []Group{b}
	return []Section{latency, rate, bandwidth}
}
