package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/qpinfo"
)

func snapshotAt(at time.Duration, sent, retries uint64) *serviceSnapshot {
	return &serviceSnapshot{
		at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(at),
		devs: []ctl.DevInfo{{Name: "rxe0", State: "running", Device: "active", Hardware: "running", Contexts: 2, Resets: 1},
			{Name: "rxe1", State: "unplugged"}},
		links: map[string]ctl.LinkInfo{"rxe0": {Name: "rxe0", State: "ACTIVE", Link: ctl.LinkUp}, "rxe1": {Name: "rxe1"}},
		stats: map[string]map[string]uint64{"rxe0": {"sent_pkts": sent, "rcvd_pkts": 7, "completer_retry_err": retries,
			"rcvd_seq_err": retries,
			"drop_icrc":    sent / 10, "drop_after_gap": sent / 10}},
		contexts: []ctl.ContextInfo{{Device: "rxe0", PID: 12, Process: "idle", PinnedBytes: 1536},
			{Device: "rxe0", PID: 11, Process: "a\x1b[31m", Zombie: true,
				QPs: []ctl.QPInfo{{Num: 17}}}},
		qps: []ctl.QPStatusInfo{{Device: "rxe0", Status: qpinfo.Status{Num: 17, Type: "RC", State: "RTS", InFlight: 3,
			Unacknowledged: 5}},
			{Device: "rxe0", Status: qpinfo.Status{Num: 18, Type: "RC", State: "ERR"}}, {Device: "rxe0",
				Status: qpinfo.Status{Num: 19, Type: "UD", State: "RTS"}}},
	}
}

// TestTopLinesShowRates tests the rates since the previous snapshot, the resources of processes, and the list of queue
// pairs with problems.
func TestTopLinesShowRates(t *testing.T) {
	first := snapshotAt(0, 1000, 5)
	text := strings.Join(first.formatLines(nil), "\n")
	for _, want := range []string{
		`^verbena top  03:04:05  2 devices, 2 processes, 3 queue pairs, 0 fault rules\n`,
		`\nrxe0 +active +up +- +- +- +- +3 +2 +1 *\n`, `\nrxe1 +unplugged +down +-`, `\na\?\[31m +11 .*zombie`,
		`\nidle +12 .* 1\.5K`,
		`\n18 +rxe0 +RC +ERR .*failed`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("first snapshot: got no %s:\n%s", want, text)
		}
	}
	if regexp.MustCompile(`(?m)^1[79] `).MatchString(text) {
		t.Errorf("first snapshot: got a queue pair without a problem:\n%s", text)
	}
	text = strings.Join(snapshotAt(2*time.Second, 25_001_000, 25).formatLines(first), "\n")
	for _, want := range []string{`\nrxe0 +active +up +12\.5M +0 +20 +2\.5M `, `\n17 .*nothing is acknowledged`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("second snapshot: got no %s:\n%s", want, text)
		}
	}
	text = strings.Join(snapshotAt(2*time.Second, 0, 0).formatLines(first), "\n") // a different device with the same name
	if !regexp.MustCompile(`\nrxe0 +active +up +- `).MatchString(text) {
		t.Errorf("new device: got rates from the old device's counters:\n%s", text)
	}
}

// TestFrameFitsTerminal tests that no line of a frame is wider than the terminal.
func TestFrameFitsTerminal(t *testing.T) {
	lines := []string{"title", "", "A  B", strings.Repeat("é", 100), "x", "y", "z"}
	for _, c := range []struct{ width, height, shown int }{{200, 50, 8}, {20, 8, 8}, {20, 7, 7}, {20, 3, 3}, {20, 1, 2}} {
		text := regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`).ReplaceAllString(renderFrame(lines, c.width, c.height), "")
		rows := strings.Split(text, "\r\n")
		if len(rows) != c.shown {
			t.Errorf("%d×%d: %d rows, want %d: %q", c.width, c.height, len(rows), c.shown, rows)
		}
		for _, r := range rows {
			if n := len([]rune(r)); n > c.width {
				t.Errorf("%d×%d: a row of %d: %q", c.width, c.height, n, r)
			}
		}
	}
}

func TestFormatDecimalAndBinary(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1.0k", 12345: "12.3k", 1.5e6: "1.5M", 2e9: "2.0G"} {
		if got := formatDecimal(v); got != want {
			t.Errorf("decimal(%v): got %s, want %s", v, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1K", 1536: "1.5K", 64 << 20: "64M", 3 << 30: "3G",
		1 << 40: "1T"} {
		if got := formatBinary(n); got != want {
			t.Errorf("binary(%d): got %s, want %s", n, got, want)
		}
	}
}
