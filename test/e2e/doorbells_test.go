//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// deviceFD returns the descriptor number of a program's device file.
func (w *testService) deviceFD(args ...string) int {
	w.t.Helper()
	dir := newScratchDir(w.t)
	if err := os.Chmod(dir, 0o777); err != nil { // the program may run as another user
		w.t.Fatal(err)
	}
	trace := filepath.Join(dir, "trace")
	if len(args) == 0 {
		args = []string{"ibv_devinfo"}
	}
	w.mustRun(append([]string{"run", "--trace=" + trace, "--"}, args...)...)
	b, err := os.ReadFile(trace)
	if err != nil {
		w.t.Fatal(err)
	}
	m := regexp.MustCompile(`/uverbs0", [^)]*\) = (\d+)`).FindSubmatch(b)
	if m == nil {
		w.t.Fatalf("program: opened no device:\n%s", b)
	}
	return atoi(string(m[1]))
}

// TestNativeDoorbellsWherePossible tests that programs use native doorbells if they are requested and possible. The
// test compares native with trapped doorbells in a transfer of each kind, a reset, an unplug, and the end of the
// service.
func TestNativeDoorbellsWherePossible(t *testing.T) {
	t.Parallel()
	if doorbellMode != "" {
		t.Skip("all tests use doorbells " + doorbellMode)
	}
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_devinfo")
	needProgram(t, "perftest", "ib_send_bw", "ib_write_bw")
	needProgram(t, "rdmacm-utils", "rping", "udaddy")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			number := func(t *testing.T, how string, args ...string) int {
				return startService(t, u, "", "--link", "rxe0="+unusedAddr(), "--doorbells", how).deviceFD(args...)
			}
			trapped, native := number(t, "trapped"), number(t, "native")
			if native <= trapped {
				t.Errorf("descriptor of a device file: got %d with native doorbells and %d with trapped ones, want different numbers", native, trapped)
			}
			if n := number(t, "native", "sh", "-c", "ulimit -f 100000; exec ibv_devinfo"); n != trapped {
				t.Errorf("descriptor with a limit of the file size: got %d, want %d", n, trapped)
			}
			if n := number(t, "auto"); (n == native) != (runtime.NumCPU() >= 3) {
				t.Errorf("descriptor: got %d on %d processors", n, runtime.NumCPU())
			}
			addr := unusedAddr()
			w := startService(t, u, "", "--link", "rxe0="+addr, "--doorbells", "native")
			args := []string{"-d", "rxe0", "-g", "1", "-n", "500", "-c"}
			for _, mode := range [][]string{nil, {"-e"}} {
				p := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: append(args, mode...),
					clArgs: append(args, mode...)}
				if err := p.run(); err != nil {
					t.Error(err)
				}
			}
			for i := range cmPairs {
				switch cmPairs[i].name {
				case "rping", "ucmatose many", "udaddy", "rstream", "ib_write_bw", "ib_send_lat", "ib_send_bw by events, 4 at once",
					"ib_atomic_lat":
					cmPairs[i].run(t, w, w, addr)
				}
			}
			w.awaitNoCMObjects()
			for _, end := range []string{"reset", "unplug", "stop", "kill"} {
				t.Run(end, func(t *testing.T) {
					w := startService(t, u, "", "--link", "rxe0="+unusedAddr(), "--doorbells", "native")
					server, client := startConnectedPair(t, w, "ib_write_bw", []string{"-d", "rxe0", "-x", "1", "-F", "-D", "50"})
					switch end {
					case "stop":
						w.serve.Process.Signal(syscall.SIGTERM)
					case "kill":
						w.serve.Process.Kill()
					default:
						w.mustRun("dev", end, "rxe0")
					}
					// The client posts. The server of a WRITE gets no completion, and detects only the end of the
					// client.
					if code := waitForExitWithin(t, "client", client, 20*time.Second); code == 0 || code == -1 {
						t.Errorf("client: got exit code %d\n%v%v", code, client.Stdout, client.Stderr)
					}
					if code := waitForExitWithin(t, "server", server, 30*time.Second); code == -1 {
						t.Errorf("the server: %v%v", server.Stdout, server.Stderr)
					}
				})
			}
		})
	}
}
