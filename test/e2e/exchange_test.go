//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"verbena/internal/testutil"
)

// TestExchangeCommands tests the commands devinfo, pingpong and perf on the device of a service, under verbena run and
// over the service's socket. The test also runs pingpong with rdma-core's programs in both roles.
func TestExchangeCommands(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong")
	v := verbenaBinary(t)
	// start prepares a program under verbena run, or with direct a verbena command over the socket.
	start := func(w *testService, direct bool, program []string, more ...string) *exec.Cmd {
		args := append([]string{"run", "--"}, program...)
		if direct && program[0] == v {
			args = append([]string{program[1], "--service"}, program[2:]...)
		}
		return w.verbenaCommand(w.contextWithTimeout(60), append(args, more...)...)
	}
	direct := false
	// both runs a server and then a client, and returns the output of both.
	both := func(t *testing.T, w *testService, server, client []string) (string, string) {
		t.Helper()
		port := unusedTCPPort()
		var sout bytes.Buffer
		s := start(w, direct, server, "-p", port)
		s.Stdout, s.Stderr = &sout, &sout
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Wait() }()
		w.mustRun("wait", "--listen", port)
		out, err := start(w, direct, client, "-p", port, "127.0.0.1").CombinedOutput()
		if serr := <-done; err != nil || serr != nil {
			t.Fatalf("%v: server: %v, client: %v\n--- server\n%s--- client\n%s", client, serr, err, sout.String(), out)
		}
		return sout.String(), string(out)
	}
	all := testUsers()
	for n, u := range all {
		t.Run(u.name, func(t *testing.T) {
			mine := func(i int) bool { return fullMatrix || i%len(all) == n } // each pair of programs runs in one of the cells
			address := unusedAddr()
			w := startService(t, u, "", "--link", "rxe0="+address)
			if out := w.mustRun("run", "--", v, "devinfo", "rxe0"); !strings.Contains(out, address+", RoCE v2, the default") ||
				!strings.Contains(out, "/dev/infiniband/uverbs0") {
				t.Errorf("devinfo: %s", out)
			}
			if out := w.mustRun("devinfo", "--service", "rxe0"); !strings.Contains(out, address+", RoCE v2, the default") ||
				!strings.Contains(out, w.socket) {
				t.Errorf("devinfo --service: %s", out)
			}
			direct = false
			for i, args := range []string{
				"pingpong -n 50", "pingpong -n 50 --type uc --op write -e", "pingpong -n 50 --type ud --size 1K",
				"pingpong -n 50 --op atomic",
				"perf -n 500 --op read --qps 2", "perf -n 500 --op send --size 64",
			} {
				if !mine(i) {
					continue
				}
				server := strings.Fields(args)[0]
				_, out := both(t, w, []string{v, server}, append(append([]string{v}, strings.Fields(args)...), "--json"))
				var r map[string]any
				if err := json.Unmarshal([]byte(out), &r); err != nil {
					t.Errorf("%s: %v\n%s", args, err, out)
					continue
				}
				for _, name := range []string{"round_trip", "latency", "bandwidth"} {
					phase, _ := r[name].(map[string]any)
					want := map[string]any{"pingpong": 50.0, "perf": 500.0}[server]
					if (server == "perf") == (name == "round_trip") {
						want = nil
					}
					if got := phase["messages"]; got != want {
						t.Errorf("%s: %s: %v messages, want %v", args, name, got, want)
					}
				}
			}
			direct = true
			for _, args := range []string{"pingpong -n 50", "perf -n 500 --op send --size 64"} {
				both(t, w, []string{v, strings.Fields(args)[0]}, append([]string{v}, strings.Fields(args)...))
			}
			for i, service := range []string{"rc", "uc", "ud", "rc", "uc", "ud"} {
				if !mine(i) {
					continue
				}
				direct = i >= 3
				c := []string{"ibv_" + service + "_pingpong", "-d", "rxe0", "-g", "1", "-n", "50", "-s", "1000"}
				own := []string{v, "pingpong", "--compat", "--type", service, "-n", "50", "-s", "1000"}
				for _, pair := range [][2][]string{{c, own}, {own, c}} {
					server, client := both(t, w, pair[0], pair[1])
					for _, out := range []string{server, client} {
						if !strings.Contains(out, ": 50 round trips") && !strings.Contains(out, "50 iters in") {
							t.Errorf("%v to %v: %s", pair[1], pair[0], out)
						}
					}
				}
			}
			// A reset during the exchange must end both programs with a message.
			port := unusedTCPPort()
			out := make(chan string, 2)
			run := func(args ...string) {
				c := w.verbenaCommand(w.contextWithTimeout(60), append([]string{"run", "--", v, "perf", "-p", port}, args...)...)
				go func() {
					b, err := c.CombinedOutput()
					if err == nil {
						b = append(b, "exit status 0"...)
					}
					out <- string(b)
				}()
			}
			run()
			w.mustRun("wait", "--listen", port)
			run("-D", "1h", "--type", "uc", "--op", "write", "127.0.0.1")
			testutil.Eventually(t, "two queue pairs in RTS", func() bool {
				return strings.Count(w.mustRun("qp", "show"), "RTS") == 2
			})
			w.mustRun("dev", "reset", "rxe0")
			for range 2 {
				if o := <-out; !strings.Contains(o, "rxe0 was reset or removed") || strings.Contains(o, "exit status 0") {
					t.Errorf("perf during a reset: %s", o)
				}
			}
			w.awaitNoProgramObjects()
		})
	}
}
