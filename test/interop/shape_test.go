//go:build interop

package interop

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// shape is a limit or delay on a link's packets, set by Verbena's link set, or by tc(8) for the kernel.
type shape struct {
	name string
	link []string
	tc   string
	want float64 // in Mbit/s or milliseconds
	rate bool
}

var shapes = []shape{
	{"5 Mbit/s", []string{"--rate", "5Mbit"}, "tbf rate 5mbit burst 10kb limit 4mb", 5, true},
	{"20 Mbit/s", []string{"--rate", "20Mbit"}, "tbf rate 20mbit burst 10kb limit 4mb", 20, true},
	{"10 ms", []string{"--delay", "10ms"}, "netem limit 100000 delay 10ms", 10, false},
	{"50 ms", []string{"--delay", "50ms"}, "netem limit 100000 delay 50ms", 50, false},
}

// testShapes measures requested rates and delays of Verbena, and of the kernel's rxe with tc. SHAPES=1 enables it.
// CI omits testShapes, because its results depend on time.
func testShapes(t *testing.T) {
	if os.Getenv("SHAPES") == "" {
		t.Skip("SHAPES is not set")
	}
	port := 19800
	for _, r := range roles {
		by := r.req()
		base, err := measureLatency(r, &port)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: a round trip takes %.2f ms", by.name, base)
		for _, s := range shapes {
			undo, err := s.apply(by)
			if err != nil {
				t.Fatalf("%s: set %s: got %v, want success", by.name, s.name, err)
			}
			var got []float64
			for range 3 {
				v := 0.0
				if s.rate {
					v, err = measureRate(r, &port)
				} else if v, err = measureLatency(r, &port); err == nil {
					v -= base
				}
				if err != nil {
					t.Errorf("%s: measure %s: got %v, want success", by.name, s.name, err)
					continue
				}
				got = append(got, v)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if len(got) > 0 {
				slices.Sort(got)
				m := got[len(got)/2]
				t.Logf("%s: asked for %s: measured %.3f (%.3f to %.3f), %+.1f %%", by.name, s.name, m, got[0], got[len(got)-1],
					100*(m/s.want-1))
			}
		}
	}
}

func (s shape) apply(by *peer) (undo func() error, err error) {
	if by.name != "Verbena" {
		return packetDisturbance{netem: s.tc}.applyTC(by)
	}
	l := by.lab
	_, err = l.runCommand(append([]string{l.verbena, "link", "set", "rxe0"}, s.link...)...)
	return func() error {
		_, err := l.runCommand(l.verbena, "link", "set", "rxe0", "--rate", "none")
		return err
	}, err
}

// perftestRowPattern matches the row of figures below the row of titles.
var perftestRowPattern = regexp.MustCompile(`(?m)^ *[0-9]+ +[0-9]+ +([0-9.]+) +([0-9.]+) +([0-9.]+)`)

// measureRate returns the rate of arrival in Mbit/s on the wire, which is the payload with the headers of each
// packet of 4096 bytes.
func measureRate(r role, port *int) (float64, error) {
	*port++
	out, err := interopTool{program: "ib_write_bw", service: "RC",
		args: "-d rxe0 -x GID -F -s 65536 -n 60 -t 8 -m 4096 -u 22 --report_gbits"}.runForOutput(r, "IPv4", *port)
	if err != nil {
		return 0, err
	}
	m := perftestRowPattern.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no figures in %s", lastLines(out))
	}
	average, err := strconv.ParseFloat(m[2], 64)
	const payload, headers = 4096, 20 + 8 + 12 + 4 // one packet of 16 has 16 more bytes for the RETH
	return average * 1000 * (payload + headers + 1) / payload, err
}

// measureLatency returns the median of a round trip in milliseconds. The programs wait for events, because polling
// would take processor time from the process that delays the packets.
func measureLatency(r role, port *int) (float64, error) {
	*port++
	out, err := interopTool{program: "ib_send_lat", service: "RC",
		args: "-d rxe0 -x GID -F -s 64 -n 60 -u 20 -e"}.runForOutput(r,
		"IPv4", *port)
	if err != nil {
		return 0, err
	}
	m := perftestRowPattern.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no figures in %s", lastLines(out))
	}
	half, err := strconv.ParseFloat(m[3], 64) // columns: bytes, iterations, t_min, t_max, t_typical, in microseconds
	return 2 * half / 1000, err
}
