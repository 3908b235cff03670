//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"verbena/internal/testutil"
)

// TestQPTrace lists the queue pairs of running programs, and traces one of them.
func TestQPTrace(t *testing.T) {
	t.Parallel()
	w := startSharedService(t)
	port := unusedTCPPort()
	server := w.verbenaCommand(w.contextWithTimeout(30), "run", "--", "ib_send_lat", "-d", "rxe0", "-x", "1", "-s", "64",
		"-D", "4", "-p", port)
	client := w.verbenaCommand(w.contextWithTimeout(30), "run", "--", "ib_send_lat", "-d", "rxe0", "-x", "1", "-s", "64",
		"-D", "4", "-p", port,
		"127.0.0.1")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	w.mustRun("wait", "--listen", port)
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer client.Wait()
	defer client.Process.Kill()
	var qps []struct {
		Num     uint32
		State   string
		DestQPN uint32 `json:"dest_qpn"`
	}
	connected := func() bool {
		if err := json.Unmarshal([]byte(w.mustRun("qp", "show", "--json")), &qps); err != nil {
			t.Fatal(err)
		}
		return len(qps) == 2 && qps[0].State == "RTS" && qps[1].State == "RTS"
	}
	if !testutil.PollUntil(connected) {
		t.Fatalf("queue pairs: got %+v, want two connected ones", qps)
	}
	if qps[0].DestQPN != qps[1].Num || qps[1].DestQPN != qps[0].Num {
		t.Errorf("queue pairs: got %+v, want each connected with the other", qps)
	}
	num := fmt.Sprint(qps[0].Num)
	if out := w.mustRun("qp", "trace", num); strings.Contains(out, "psn") {
		t.Errorf("trace at the start: got %q, want nothing", out)
	}
	for _, want := range []string{"send RC SEND Only psn ", "receive RC Acknowledge psn ", "send completed: success",
		"receive completed: success"} {
		var out string
		has := func() bool {
			out = w.mustRun("qp", "trace", num)
			return strings.Contains(out, want)
		}
		if !testutil.PollUntil(has) {
			t.Fatalf("trace: got\n%.1000s\nwant %q in it", out, want)
		}
	}
	w.mustRun("qp", "trace", num, "--off")
	if out := w.mustRun("qp", "show"); strings.Contains(out, "traced") {
		t.Errorf("qp show after the end of the trace: got %q", out)
	}
}
