//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/perfetto/perfettotest"
	"verbena/internal/testutil"
)

// readTrace reads a trace of work requests. If protoc is installed, it also decodes the file.
func readTrace(t *testing.T, file string) *perfettotest.Trace {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := perfettotest.Read(b)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if protoc, err := exec.LookPath("protoc"); err == nil {
		c := exec.Command(protoc, "--decode_raw")
		c.Stdin = bytes.NewReader(b)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("protoc: %v: %.200s", err, out)
		}
	}
	return tr
}

// share reports whether two lists of arrows have a common one.
func share(a, b []uint64) bool {
	return slices.ContainsFunc(a, func(f uint64) bool { return slices.Contains(b, f) })
}

// requests returns the slices of requests, without their phases.
func requests(tr *perfettotest.Trace, track, name string) []perfettotest.Slice {
	return slices.DeleteFunc(tr.Named(track, name), func(s perfettotest.Slice) bool { return s.Depth > 0 })
}

// runTraced runs a server and a client, the client with --trace-file, and returns the trace.
func (w *testService) runTraced(server, client []string) *perfettotest.Trace {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "x.pftrace")
	port := unusedTCPPort()
	s := w.verbenaCommand(w.contextWithTimeout(100), append(append([]string{"run", "--"}, server...), "-p", port)...)
	if err := s.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.mustRun("wait", "--listen", port)
	run := []string{"run", "--trace-file", file, "--"}
	out := w.mustRun(slices.Concat(run, client, []string{"-p", port, "127.0.0.1"})...)
	if err := s.Wait(); err != nil {
		w.t.Error(err)
	}
	if !strings.Contains(out, "verbena: trace: ") {
		w.t.Errorf("output: got\n%s, want a line about the trace", out)
	}
	return readTrace(w.t, file)
}

// TestRequestTrace traces ibv_rc_pingpong: the messages of both ends, with arrows, and their polls.
func TestRequestTrace(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	pingPong := []string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "50"}
	tr := w.runTraced(pingPong, append(pingPong, "-e"))
	sends, receives := requests(tr, "send work requests", "SEND"), requests(tr, "receives", "receive")
	receives = slices.DeleteFunc(receives, func(s perfettotest.Slice) bool { return s.Attrs["result"] != "" })
	if len(sends) != 100 || len(receives) != 100 {
		t.Fatalf("got %d sends and %d receives, want 100 of each", len(sends), len(receives))
	}
	taken := 0
	for _, s := range sends {
		if slices.ContainsFunc(receives, func(r perfettotest.Slice) bool { return share(s.Flows, r.Flows) }) {
			taken++
		}
	}
	if taken != 100 {
		t.Errorf("sends with an arrow to a receive of the peer: got %d, want 100", taken)
	}
	if a, n := len(tr.InstantsNamed("CQ", "armed")), len(tr.InstantsNamed("CQ", "notified")); a == 0 || n == 0 {
		t.Errorf("got %d arms and %d notifications, want some", a, n)
	}
	if n := len(tr.Named("", "completed, not polled")); n < 100 {
		t.Errorf("completions that were polled: got %d, want 100 or more", n)
	}
	if n := len(tr.Named("/state", "RTS")); n != 2 {
		t.Errorf("states RTS: got %d, want 2", n)
	}
}

// TestRequestTraceOfLoss traces ib_write_bw with 1 % loss, and rping.
func TestRequestTraceOfLoss(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_write_bw")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	w.mustRun("fault", "add", "--dev", "rxe0", "--drop", "1%")
	bw := []string{"ib_write_bw", "-d", "rxe0", "-x", "1", "-n", "200", "-s", "16384"}
	tr := w.runTraced(bw, bw)
	writes := requests(tr, "send work requests", "RDMA WRITE")
	if len(writes) < 200 {
		t.Errorf("WRITEs: got %d, want 200 or more", len(writes))
	}
	lost, again := tr.InstantsNamed("", "packets dropped by a fault rule"), tr.InstantsNamed("", "retransmission: ")
	if len(lost) == 0 || len(again) == 0 {
		t.Errorf("got %d losses and %d retransmissions, want some", len(lost), len(again))
	}
	completions := tr.InstantsNamed("CQ", "completion: RDMA WRITE")
	if !slices.ContainsFunc(writes, func(s perfettotest.Slice) bool {
		return len(completions) > 0 && share(s.Flows, completions[0].Flows)
	}) {
		t.Error("arrows from a WRITE to its completion: got none, want some")
	}
}

// TestRequestTraceOfRping traces rping, whose queue pairs belong to librdmacm.
func TestRequestTraceOfRping(t *testing.T) {
	t.Parallel()
	needProgram(t, "rdmacm-utils", "rping")
	addr := unusedAddr()
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+addr)
	file := filepath.Join(t.TempDir(), "x.pftrace")
	port := unusedTCPPort()
	s := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "rping", "-s", "-a", addr, "-p", port, "-C", "5")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.PollUntil(func() bool {
		return w.verbenaCommand(w.contextWithTimeout(60), "run", "--trace-file", file, "--", "rping", "-c", "-a", addr,
			"-p", port, "-C", "5").Run() == nil
	})
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	tr := readTrace(t, file)
	for _, event := range []string{"connect request", "route resolved", "connect response", "disconnected"} {
		if !slices.ContainsFunc(tr.InstantsNamed("connection manager", "ID "), func(i perfettotest.Instant) bool {
			return strings.HasSuffix(i.Name, ": "+event)
		}) {
			t.Errorf("event of the connection manager: got no %q, want one", event)
		}
	}
	for _, name := range []string{"SEND", "RDMA READ", "RDMA WRITE"} {
		if n := len(tr.Named("send work requests", name)); n < 5 {
			t.Errorf("%s: got %d, want 5 or more", name, n)
		}
	}
}

// TestRequestTraceOfScenario traces a scenario. The trace has the requests of its programs. A separate track has its
// actions and the ends of its programs.
func TestRequestTraceOfScenario(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_write_bw")
	dir := newScratchDir(t)
	file, trace := filepath.Join(dir, "scenario.yaml"), filepath.Join(dir, "x.pftrace")
	port := unusedTCPPort()
	text := "name: trace\ntimeout: 60s\ndevices: [{name: rxe0, addr: [" + unusedAddr() + "]}]\nprograms:\n" +
		"  - {name: server, run: [ib_write_bw, -d, rxe0, -p, \"" + port + "\", -n, \"500\"]}\n" +
		"  - {name: client, run: [ib_write_bw, -d, rxe0, -p, \"" + port + "\", -n, \"500\", 127.0.0.1], start: {listens: " +
		port + "}}\n" +
		"actions: [{when: {wr: 100}, link: {dev: rxe0, state: flap, for: 200ms}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), verbenaBinary(t), "scenario", "run", "--quiet", "--trace", trace,
		file).CombinedOutput()
	if err != nil {
		t.Fatalf("scenario run: %v\n%s", err, out)
	}
	tr := readTrace(t, trace)
	if n := len(requests(tr, "send work requests", "RDMA WRITE")); n < 500 {
		t.Errorf("WRITEs: got %d, want 500 or more", n)
	}
	acted, again := tr.InstantsNamed("scenario", "action: "), tr.InstantsNamed("", "retransmission: timeout")
	if len(acted) != 1 || len(again) == 0 || again[0].At < acted[0].At {
		t.Errorf("got actions %v and retransmissions %v, want one action, and retransmissions after it", acted, again)
	}
	for _, p := range []string{"server", "client"} {
		if n := len(tr.InstantsNamed("scenario", p+": ")); n != 1 {
			t.Errorf("ends of %s: got %d, want 1", p, n)
		}
	}
}

// TestRequestTraceFiles tests files that cannot be written, an existing file, a full file system, a killed program,
// and a killed service.
func TestRequestTraceFiles(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	dir := t.TempDir()
	for _, c := range []struct{ file, text string }{
		{filepath.Join(dir, "no", "x"), "no such file or directory"}, {dir, "is a directory"},
		{"/dev/full", "no space left on device"},
	} {
		b, err := w.verbenaCommand(w.contextWithTimeout(60), "run", "--trace-file", c.file, "--", "true").CombinedOutput()
		if out := string(b); exitCode(err) != 125 || !strings.Contains(out, c.text) || strings.Count(out, "\n") != 1 {
			t.Errorf("--trace-file %s: got %v, %q, want exit code 125 and one line with %q", c.file, err, out, c.text)
		}
	}
	file := filepath.Join(dir, "x")
	if err := os.WriteFile(file, bytes.Repeat([]byte("old"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := w.verbenaCommand(w.contextWithTimeout(60), "run", "--trace-file", file, "--", "/no/such/program")
	if err := missing.Run(); exitCode(err) != 127 {
		t.Errorf("no such program: got %v, want exit code 127", err)
	} else if b, _ := os.ReadFile(file); len(b) != 3<<20 {
		t.Errorf("existing file after a program that does not exist: got %d bytes, want the old ones", len(b))
	}
	// A program that is killed has open requests.
	pair := func(end func(server *exec.Cmd)) *perfettotest.Trace {
		t.Helper()
		port := unusedTCPPort()
		pingPong := []string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "1000000000", "-p", port}
		s := w.verbenaCommand(w.contextWithTimeout(60), append([]string{"run", "--trace-file", file, "--"}, pingPong...)...)
		c := w.verbenaCommand(w.contextWithTimeout(60), append(append([]string{"run", "--"}, pingPong...), "127.0.0.1")...)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		w.mustRun("wait", "--listen", port)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) // messages
		end(s)
		if err := s.Wait(); err == nil {
			t.Error("server: got success, want an error")
		}
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
		return readTrace(t, file)
	}
	tr := pair(func(s *exec.Cmd) {
		if err := syscall.Kill(programPID(t, s), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	if len(tr.Named("", "SEND")) == 0 {
		t.Error("trace of a killed program: got no requests")
	}
	tr = pair(func(*exec.Cmd) { _ = w.serve.Process.Signal(syscall.SIGKILL) })
	if len(tr.Named("", "SEND")) == 0 {
		t.Error("trace after the death of the service: got no requests")
	}
}
