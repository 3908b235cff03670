package main

import (
	"context"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"verbena/internal/testutil"
)

const latencyOutput = ` GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:00:00:41
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      200          9.17           93.97        11.90    	       22.09       	15.97  		93.14   		93.97  
---------------------------------------------------------------------------------------
`

const bandwidthOutput = ` #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 64         4000           0.039938            0.036237            0.070776
---------------------------------------------------------------------------------------
`

const fabricOutput = `bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      100     =100     12k         0.06s      0.22     296.19       0.00
`

const goOutput = `{"device":"rxe0","round_trip":{"times_ns":{"mean":3000,"p50":2000,"p99":8000}},"bandwidth":{"bytes_per_second":2e9,"messages_per_second":5e6}}`

const ucxOutput = `[thread 0]               1000      1.000     2.000     2.000       10.00      10.00          10          10
Final:                  2000     21.585    73.184    73.184    13664.28   13664.28       13664       13664
`

func TestParse(t *testing.T) {
	ucx := func(of func([]float64) Sample) func() (Sample, error) {
		return func() (Sample, error) {
			v, err := parseColumns(ucxOutput, ucxLinePattern)
			if err != nil {
				return Sample{}, err
			}
			return of(v), nil
		}
	}
	for _, c := range []struct {
		name string
		got  func() (Sample, error)
		want Sample
	}{
		{"latency", func() (Sample, error) {
			return parseLatency(latencyOutput)
		}, Sample{11.9, map[string]float64{exMean: 22.09, exP99: 93.14}}},
		{"latency without a deviation", func() (Sample, error) {
			return parseLatency(strings.Replace(latencyOutput, "15.97", "-nan", 1))
		},
			Sample{11.9, map[string]float64{exMean: 22.09, exP99: 93.14}}},
		{"bandwidth", func() (Sample, error) {
			return parseBandwidth(bandwidthOutput)
		}, Sample{4.529625, map[string]float64{exRate: 70.776}}},
		{"floor", func() (Sample, error) {
			return parseTimes("mean=4.8 typical=4.4 p99=7.1\n")
		}, Sample{4.4, map[string]float64{exMean: 4.8, exP99: 7.1}}},
		{"floor of a stream", func() (Sample, error) { return parseTimes("mean=0.002\n") }, Sample{Value: 0.002}},
		{"embedded", func() (Sample, error) {
			return parseSingleFigure("2000 round trips of 64 bytes over UDP in 6ms: 3.20 usec per round trip\n", roundTrip, 0.5)
		}, Sample{Value: 1.6}},
		{"loopback", func() (Sample, error) {
			return parseSingleFigure("BenchmarkMessage/plain-2   \t    1000\t       180.5 ns/op\t       0 B/op\n",
				perOperation, 1e-3)
		}, Sample{Value: 0.1805}},
		{"half round trip", func() (Sample, error) {
			return parseGoResult(goOutput, halfRoundTrip)
		}, Sample{1, map[string]float64{exMean: 1.5, exP99: 4}}},
		{"rate", func() (Sample, error) { return parseGoResult(goOutput, goMessageRate) }, Sample{Value: 5000}},
		{"bandwidth of verbena perf", func() (Sample, error) { return parseGoResult(goOutput, goBandwidth) },
			Sample{Value: 2000}},
		{"UCX latency", ucx(ucxLatency), Sample{21.585, map[string]float64{exMean: 73.184}}},
		{"UCX bandwidth", ucx(ucxBandwidth), Sample{Value: 14328.03606528}},
		{"UCX rate", ucx(ucxMessageRate), Sample{Value: 13.664}},
		{"libfabric", func() (Sample, error) { return parseSingleFigure(fabricOutput, fabricLine, 1) },
			Sample{Value: 296.19}},
	} {
		got, err := c.got()
		if err != nil || !almostEqual(got.Value, c.want.Value) || !maps.EqualFunc(got.Extras, c.want.Extras, almostEqual) {
			t.Errorf("parse %s: got %+v and error %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for name, f := range map[string]func(string) (Sample, error){"latency": parseLatency, "bandwidth": parseBandwidth,
		"floor": parseTimes, "connections": parseConnections,
		"verbena perf": func(out string) (Sample, error) { return parseGoResult(out, goMessageRate) }} {
		for _, out := range []string{"", strings.Replace(latencyOutput, "11.90", "inf", 1),
			"Completion with error at client\nFailed status 12", "mean=-1", "typical=3", "mean=x", "{}"} {
			if s, err := f(out); err == nil {
				t.Errorf("%s of %q: got %+v, want an error", name, out, s)
			}
		}
	}
}

const connectionOutput = `creating id
resolving address
step              total ms     max ms     min us  us / conn
create id    :        6.34       0.59      24.00      63.38
resolve addr :       50.45      35.29   22596.00     504.51
resolve route:       31.94      17.58    6288.00     319.39
create qp    :      143.89      34.86     464.00    1438.88
connect      :    17190.70   17150.35  851092.00  171907.05
disconnect   :     1567.97     555.10   17574.00   15679.66
destroy      :        8.35       2.82      36.00      83.47
`

func TestParseConnections(t *testing.T) {
	got, err := parseConnections(connectionOutput)
	want := map[string]float64{exResolve: 823.9, exCreateQP: 1438.88, exConnect: 171907.05, exDisconnect: 15679.66}
	if err != nil || !almostEqual(got.Value, 174169.83) || !maps.EqualFunc(got.Extras, want, almostEqual) {
		t.Errorf("parseConnections: got %+v and error %v, want %v", got, err, want)
	}
	for _, out := range []string{"event: RDMA_CM_EVENT_REJECTED, error: 8\n" + connectionOutput,
		strings.Replace(connectionOutput, "504.51", "0.00", 1)} {
		if got, err := parseConnections(out); err == nil {
			t.Errorf("parseConnections of\n%s\ngot %+v, want an error", out, got)
		}
	}
}

// TestTablesAreConsistent tests that names are unique, and that the other measurement of each comparison exists.
func TestTablesAreConsistent(t *testing.T) {
	for _, s := range append(fullRunSections(), guestSections()...) {
		for _, g := range s.Groups {
			seen := map[string]bool{}
			for _, m := range g.Measurements {
				if seen[m.Name] || m.Name == "" || m.Take == nil || m.Kind == "" {
					t.Errorf("%s/%s/%s: got a duplicate name, no kind, or no measurement, want a unique name and both", s.Name,
						g.Name, m.Name)
				}
				seen[m.Name] = true
			}
			for _, m := range g.Measurements {
				for _, other := range []string{m.Floor, m.Peer} {
					if other != "" && !seen[other] {
						t.Errorf("%s/%s/%s: got no measurement %q to compare with, want one", s.Name, g.Name, m.Name, other)
					}
				}
			}
		}
	}
	floors := map[string]bool{}
	for _, m := range floorSection().Groups[0].Measurements {
		floors[m.Name] = true
	}
	for _, c := range floorChecks {
		if !floors[c.A] || !floors[c.B] || c.Want <= 0 || c.Within <= 1 {
			t.Errorf("check %q: got %q, %q and their bounds, want two floors, and bounds above 0 and 1", c.Name, c.A, c.B)
		}
	}
}

func TestServiceStartErrorIsReported(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "verbena")
	if err := os.WriteFile(bad, []byte("#!/bin/sh\necho 'address in use' >&2\nexit 1\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	e := &Env{Verbena: bad, Dir: t.TempDir(), Scale: 1, Limit: time.Minute}
	defer e.Close()
	_, err := exchange{path: shortcut, tool: "ib_send_lat", size: 64, each: 10}.measure(context.Background(), e)
	if err == nil || !strings.Contains(err.Error(), "the service does not start: address in use") {
		t.Errorf("start of the service: got %v, want the service's own error", err)
	}
}

// TestTimeLimitEndsPrograms tests that a hanging program and its children end at the limit.
func TestTimeLimitEndsPrograms(t *testing.T) {
	dir := t.TempDir()
	alive := filepath.Join(dir, "pid")
	script := "#!/bin/sh\nsleep 1000 & echo $! >" + alive + "\nwait\n"
	if err := os.WriteFile(filepath.Join(dir, "hang"), []byte(script), 0o777); err != nil {
		t.Fatal(err)
	}
	e := &Env{Dir: dir, Scale: 1, Limit: 300 * time.Millisecond}
	_, err := e.measureWithTimeout(context.Background(), measureFloor(1, 1, "hang"))
	if err == nil || !strings.Contains(err.Error(), "not complete within 300ms") {
		t.Fatalf("measurement: got %v, want a timeout", err)
	}
	pid, err := os.ReadFile(alive)
	if err != nil {
		t.Fatal(err)
	}
	stat := filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat")
	testutil.Eventually(t, "the child of the killed program to end", func() bool {
		b, err := os.ReadFile(stat)
		return err != nil || strings.Contains(string(b), ") Z ") // ended, or a zombie of the machine's init
	})
}

func TestProcessUsage(t *testing.T) {
	before, err := processCPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 0.0
	for i := range 10_000_000 {
		x += math.Sqrt(float64(i))
	}
	after, err := processCPUTime(os.Getpid())
	if err != nil || after <= before || x == 0 {
		t.Errorf("processCPUTime: got %v, then %v and error %v, want an increase", before, after, err)
	}
	rss, threads, err := memoryUsage(os.Getpid())
	if err != nil || rss < 1 || rss > 1e5 || threads < 1 || threads > 1e4 {
		t.Errorf("memory: got %v MB, %v threads and error %v, want plausible values", rss, threads, err)
	}
}

func almostEqual(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// TestPercentOnPath tests that packets on another path than the measured path invalidate the measurement.
func TestPercentOnPath(t *testing.T) {
	for _, test := range []struct {
		path        string
		sent, short float64
		want        float64
		ok          bool
	}{
		{shortcut, 1000, 1000, 100, true},
		{shortcut, 1000, 990, 99, true},
		{shortcut, 1000, 989, 98.9, false},
		{shortcut, 1000, 0, 0, false},
		{wire, 1000, 0, 100, true},
		{wire, 1000, 11, 98.9, false},
	} {
		got, err := exchange{path: test.path}.percentOnPath(cpuCost{sent: test.sent, short: test.short})
		if math.Abs(got-test.want) > 1e-9 || (err == nil) != test.ok {
			t.Errorf("onPath of %s with %v of %v packets on the shortcut: got %v and error %v", test.path, test.short,
				test.sent, got, err)
		}
	}
	if _, err := (exchange{path: wire}).percentOnPath(cpuCost{}); err == nil {
		t.Error("onPath without packets: got success, want an error")
	}
}
