//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"verbena/internal/qpinfo"
)

// explained returns the causes that a user sees.
func (w *testService) explained() []qpinfo.Cause {
	w.t.Helper()
	var list []qpinfo.Cause
	if err := json.Unmarshal([]byte(w.mustRun("explain", "--json", "--last", "0")), &list); err != nil {
		w.t.Fatal(err)
	}
	return list
}

// explainScript returns a command that fails in a way that the script knows.
func (w *testService) explainScript(how string) *exec.Cmd {
	w.t.Helper()
	script, err := os.ReadFile("testdata/explain.py") // another user may have no access to the directory
	if err != nil {
		w.t.Fatal(err)
	}
	return w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "/usr/bin/python3", "-c", string(script), how)
}

func needPyverbs(t *testing.T) {
	t.Helper()
	needCondition(t, exec.Command("/usr/bin/python3", "-c", "import pyverbs.device").Run() == nil,
		"python3-pyverbs: scripts/deps installs it")
}

// TestExplain makes a program fail in each way of testdata/explain.py, and tests the cause: its row, the end
// at fault and a part of its text. No other cause may name an end at fault that differs from the expected ones.
func TestExplain(t *testing.T) {
	t.Parallel()
	needPyverbs(t)
	for _, c := range []struct {
		how, row, fault, text string
		prepare               []string // command before the program begins
		waiting               []string // command while the program waits
	}{
		{how: "wrong_rkey", row: "key", fault: "this end", text: "remote access error"},
		{how: "remote_right", row: "right", fault: "the peer", text: "does not grant REMOTE_WRITE"},
		{how: "no_remote_access", row: "right", fault: "the peer", text: "does not grant REMOTE_WRITE"},
		{how: "remote_range", row: "range", fault: "this end", text: "64 bytes at"},
		{how: "qp_right", row: "qp-right", fault: "the peer", text: "QP does not grant REMOTE_WRITE"},
		{how: "stale_rkey", row: "key-ended", fault: "the peer", text: "its region was deregistered"},
		{how: "psn_ahead", row: "psn-mismatch", fault: "both ends", text: "the peer answered for PSN 0"},
		{how: "psn_behind", row: "psn-mismatch", fault: "both ends", text: "the peer answered for PSN"},
		{how: "long_message", row: "message-length", fault: "this end", text: "3221225472 bytes exceed"},
		{how: "datagram_to_no_qp", row: "datagram-no-qp", fault: "this end", text: "rxe0 has no QP 16962"},
		{how: "short_receive", row: "receive-too-short", fault: "the peer", text: "16 of 64 bytes"},
		{how: "no_receive", row: "no-receive", fault: "the peer", text: "RNR retry counter exceeded"},
		{how: "endless_rnr", row: "no-receive-yet", fault: "the peer", text: "no receive was posted"},
		{how: "uc_short_receive", row: "receive-too-short", fault: "this end", text: "16 of 64 bytes"},
		{how: "peer_executes", row: "memory-executed", fault: "the peer", text: "has executed another program"},
		{how: "request_rejected", row: "rejected-program", fault: "the peer", text: "rejected it"},
		{how: "request_destroyed", row: "rejected-destroyed", fault: "the peer", text: "destroyed the ID"},
		{how: "server_ends", row: "rejected-ended", fault: "the peer", text: "was closed, as at the end"},
		{how: "full_backlog", row: "rejected-backlog", fault: "the peer", text: "backlog of 1 is full"},
		{how: "local_key", row: "key", fault: "this end", text: "local protection error"},
		{how: "local_range", row: "range", fault: "this end", text: "local protection error"},
		{how: "receive_key", row: "key", fault: "the peer", text: "remote operation error"},
		{how: "reads_not_set", row: "read-depth", fault: "this end", text: "max_rd_atomic"},
		{how: "peer_reads_not_set", row: "responder-depth", fault: "both ends", text: "max_dest_rd_atomic 0"},
		{how: "mtu_mismatch", row: "mtu-mismatch", fault: "both ends",
			text: "2048 bytes does not fit the responder's path MTU 1024"},
		{how: "peer_in_reset", row: "peer-not-ready", fault: "the peer", text: "is in RESET"},
		{how: "peer_reset", row: "peer-reset", fault: "the peer", text: "to RESET"},
		{how: "peer_in_error", row: "peer-in-error", fault: "the peer", text: "its program has modified it"},
		{how: "peer_failed", row: "peer-in-error", fault: "the peer", text: "no memory region or window has the key"},
		{how: "peer_closed", row: "peer-closed", fault: "the peer", text: "was destroyed"},
		{how: "peer_elsewhere", row: "peer-other", fault: "both ends", text: "connected to another QP"},
		{how: "peer_process_ends", row: "peer-ended", fault: "the peer", text: "ended"},
		{how: "wrong_qp_number", row: "no-qp", fault: "this end", text: "has no QP 16962"},
		{how: "dead_host", row: "no-answer", fault: "unknown", text: "no answer from 127.0.0.99"},
		{how: "full_cq", row: "cq-overrun", fault: "this end", text: "all were in use"},
		{how: "flushed", row: "modified", fault: "this end", text: "its program modified the QP to ERR"},
		{how: "bad_mtu", row: "call-invalid", fault: "this end", text: "path MTU is out of range"},
		{how: "bad_access", row: "call-invalid", fault: "this end", text: "needs local write access"},
		{how: "wrong_qkey", row: "dropped-qkey", fault: "the peer", text: "Q_Key"},
		{how: "datagram_without_receive", row: "datagram-no-receive", fault: "this end", text: "no receive was posted"},
		{how: "short_datagram_receive", row: "datagram-short", fault: "this end", text: "64 of 104 bytes"},
		{how: "waits", row: "port-down", fault: "the network", text: "the port of rxe0", waiting: []string{"link",
			"set", "rxe0", "down"}},
		{how: "waits", row: "packets-lost", fault: "injected", text: "fault rules of rxe0",
			waiting: []string{"fault", "add", "--dev", "rxe0", "--drop", "100%"}},
		{how: "waits", row: "packets-damaged", fault: "injected", text: "fault rules of rxe0",
			waiting: []string{"fault", "add", "--dev", "rxe0", "--corrupt", "100%"}},
		{how: "waits", row: "packets-delayed", fault: "injected", text: "were delayed by 2.0 s",
			waiting: []string{"fault", "add", "--dev", "rxe0", "--delay", "2s"}},
		{how: "waits", row: "packets-lost-by-link", fault: "injected", text: "of link rxe0",
			waiting: []string{"link", "set", "rxe0", "--loss", "100%"}},
		{how: "opens_device", row: "device-lost", fault: "the device", text: "device rxe0 lost",
			waiting: []string{"dev", "reset", "rxe0"}},
		{how: "opens_device", row: "device-lost", fault: "the device", text: "it has been hung",
			waiting: []string{"dev", "hang", "rxe0"}},
		{how: "waits", row: "rnr-injected", fault: "injected", text: "fault rule",
			waiting: []string{"fault", "add", "--dev", "rxe0", "--rnr", "100%"}},
		{how: "waits_in_receive", row: "device-error", fault: "the device", text: "being reset",
			waiting: []string{"dev", "reset", "rxe0"}},
		{how: "bad_access", row: "call-injected", fault: "injected", text: "fault rule",
			prepare: []string{"fault", "add", "--verb", "reg_mr", "--errno", "EINVAL"}},
	} {
		name := c.how
		if len(c.waiting) > 0 {
			name += " " + strings.Join(c.waiting, " ")
		}
		t.Run(name, func(t *testing.T) {
			w := startService(t, testUser{"root", 0}, "", "--link", "rxe0="+unusedAddr())
			if len(c.prepare) > 0 {
				w.mustRun(c.prepare...)
			}
			cmd := w.explainScript(c.how)
			if len(c.waiting) == 0 {
				if out, err := cmd.CombinedOutput(); err != nil && len(c.prepare) == 0 {
					t.Fatalf("%s: %v\n%s", c.how, err, out)
				}
			} else {
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
					t.Fatalf("%s: got %q, error %v, want ready", c.how, line, err)
				}
				w.mustRun(c.waiting...)
				in.Write([]byte("\n"))
				if err := cmd.Wait(); err != nil {
					t.Fatalf("%s: %v", c.how, err)
				}
			}
			list := w.explained()
			for _, x := range list {
				if x.Row == c.row && x.Fault == c.fault && strings.Contains(x.String(), c.text) {
					if x.Clause == "" || x.Remedy == "" || x.PID == 0 {
						t.Errorf("cause: got %+v, want a clause, a remedy and a process", x)
					}
					return
				}
			}
			t.Errorf("causes: got %+v, want %s at %s: %s", list, c.row, c.fault, c.text)
		})
	}
}

// TestExplainUsers tests that a user sees no causes of another user, and that managers see all causes.
func TestExplainUsers(t *testing.T) {
	t.Parallel()
	needPyverbs(t)
	w := startSharedService(t, "--mode", "0666")
	a, b := w.asUser(4001), w.asUser(4002)
	if out, err := a.explainScript("wrong_rkey").CombinedOutput(); err != nil {
		t.Fatalf("wrong_rkey: %v\n%s", err, out)
	}
	if list := b.explained(); len(list) != 0 {
		t.Errorf("causes that another user sees: got %+v, want none", list)
	}
	for _, who := range []*testService{a, w} {
		if list := who.explained(); len(list) == 0 || list[0].UID != 4001 {
			t.Errorf("causes that user %d sees: got %+v, want those of user 4001", who.user.uid, list)
		}
	}
}

// TestExplainQP tests that the queue pair of a refused call selects its cause.
func TestExplainQP(t *testing.T) {
	t.Parallel()
	needPyverbs(t)
	w := startService(t, testUser{"root", 0}, "", "--link", "rxe0="+unusedAddr())
	if out, err := w.explainScript("bad_mtu").CombinedOutput(); err != nil {
		t.Fatalf("bad_mtu: %v\n%s", err, out)
	}
	list := w.explained()
	if len(list) != 1 || list[0].QP == 0 || list[0].Device != "rxe0" {
		t.Fatalf("causes: got %+v, want one of a queue pair of rxe0", list)
	}
	if out := w.mustRun("explain", "--qp", fmt.Sprint(list[0].QP)); !strings.Contains(out, "path MTU is out of range") {
		t.Errorf("explain --qp: got %q, want the refused call", out)
	}
	if out := w.mustRun("explain", "--json", "--qp", fmt.Sprint(list[0].QP+1)); strings.TrimSpace(out) != "[]" {
		t.Errorf("explain --qp of another queue pair: got %q, want none", out)
	}
}

// TestExplainStop tests the cause for a program that runs while the service is stopped.
func TestExplainStop(t *testing.T) {
	t.Parallel()
	needPyverbs(t)
	w := startService(t, testUser{"root", 0}, "", "--link", "rxe0="+unusedAddr())
	cmd := w.verbenaCommand(w.contextWithTimeout(60), "run", "--explain", "--", "/usr/bin/python3", "-c",
		"import sys; sys.argv = ['', 'waits_in_receive']; exec(open('testdata/explain.py').read()); sys.exit(3)")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ready := make(chan struct{})
	cmd.Stdout, cmd.Stderr = &readyWriter{ready: ready}, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-ready
	w.mustRun("stop")
	in.Write([]byte("\n"))
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "service-stopped") {
		t.Errorf("run --explain while the service stops: got error %v, output %s, want service-stopped", err, out.String())
	}
}

// readyWriter closes ready at its first write.
type readyWriter struct {
	once  sync.Once
	ready chan struct{}
}

func (w *readyWriter) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.ready) })
	return len(b), nil
}

// TestRunExplain tests the output of run --explain and run --trace after a program that fails, and the hints.
func TestRunExplain(t *testing.T) {
	t.Parallel()
	needPyverbs(t)
	w := startService(t, testUser{"root", 0}, "", "--link", "rxe0="+unusedAddr())
	run := func(flag, code string) string {
		out, _ := w.verbenaCommand(w.contextWithTimeout(60), "run", flag, "--", "/usr/bin/python3", "-c",
			"import sys; sys.argv = ['', 'wrong_rkey']; exec(open('testdata/explain.py').read()); "+code).CombinedOutput()
		return string(out)
	}
	const cause = "no memory region or window has the key"
	if out := run("--explain", "sys.exit(3)"); !strings.Contains(out, "verbena: explain: rxe0 QP") ||
		!strings.Contains(out, cause) {
		t.Errorf("run --explain of a program that fails: got %s, want %q", out, cause)
	}
	if out := run("--explain", "sys.exit(0)"); strings.Contains(out, cause) {
		t.Errorf("run --explain of a program that succeeds: got %s, want no explanation", out)
	}
	if out := run("--trace", "sys.exit(0)"); !strings.Contains(out, "--- rxe0 QP") || !strings.Contains(out, cause) {
		t.Errorf("run --trace: got %.2000s, want %q", out, cause)
	}
	const timeout = "pair(timeout=0)"
	if out := run("--explain", timeout); strings.Count(out, "timeout code 0") != 1 {
		t.Errorf("run with timeout code 0: got %s, want one hint", out)
	}
}
