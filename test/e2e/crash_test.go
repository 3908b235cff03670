//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
)

// startLoadedPingpong starts a ping-pong that runs until the test ends it.
func startLoadedPingpong(t *testing.T, w *testService, extra ...string) (server, client *exec.Cmd) {
	t.Helper()
	return startConnectedPair(t, w, "ibv_rc_pingpong", append([]string{"-d", "rxe0", "-g", "1", "-n", "100000000"},
		extra...))
}

// startConnectedPair starts the server and the client of a program. startConnectedPair returns when both programs have
// a connected queue pair and exchange messages. A receive that is posted after the removal of the device would not be
// flushed.
func startConnectedPair(t *testing.T, w *testService, program string, args []string) (server, client *exec.Cmd) {
	t.Helper()
	port := unusedTCPPort()
	args = append([]string{"run", "--", program, "-p", port}, args...)
	server = w.verbenaCommand(w.contextWithTimeout(60), args...)
	server.Stdout, server.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	(&programPair{server: w, port: port}).awaitListening(make(chan error, 1))
	client = w.verbenaCommand(w.contextWithTimeout(60), append(args, "127.0.0.1")...)
	client.Stdout, client.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	before := w.countReceivedPackets()
	if !testutil.PollUntil(func() bool {
		r := w.listOpenContexts()
		return len(r) == 2 && hasConnectedQP(r[0]) && hasConnectedQP(r[1]) && w.countReceivedPackets() > before+100
	}) {
		t.Fatalf("pair: got no exchange: %s%s%s%s", server.Stdout, server.Stderr, client.Stdout, client.Stderr)
	}
	return server, client
}

// countReceivedPackets returns the number of packets that the devices have received.
func (w *testService) countReceivedPackets() (n uint64) {
	w.t.Helper()
	for _, d := range w.sendRequest(&ctl.Request{Op: ctl.OpStatShow}).Stats {
		n += d.Counters["rcvd_pkts"]
	}
	return n
}

func hasConnectedQP(c ctl.ContextInfo) bool {
	// The queue pair of the passive side remains in RTR.
	return len(c.QPs) > 0 && (c.QPs[0].State == "RTS" || c.QPs[0].State == "RTR")
}

// programPID returns the PID of the program that a launcher has started.
func programPID(t *testing.T, launcher *exec.Cmd) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", launcher.Process.Pid, launcher.Process.Pid))
	if pids := strings.Fields(string(b)); err == nil && len(pids) > 0 {
		return atoi(pids[0])
	}
	out, err := exec.Command("ps", "-o", "pid=", "--ppid", fmt.Sprint(launcher.Process.Pid)).Output()
	if err != nil {
		t.Fatalf("launcher %d: got no program: %v", launcher.Process.Pid, err)
	}
	return atoi(strings.Fields(string(out))[0])
}

func waitForExitWithin(t *testing.T, name string, c *exec.Cmd, d time.Duration) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		return exitCode(err)
	case <-time.After(d):
		c.Process.Signal(syscall.SIGKILL)
		<-done
		t.Errorf("%s hangs", name)
		return -1
	}
}

func TestKillProgram(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	for _, mode := range [][]string{nil, {"-e"}} {
		t.Run(strings.Join(append([]string{"pingpong"}, mode...), ""), func(t *testing.T) {
			w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
			for range 3 {
				server, client := startLoadedPingpong(t, w, mode...)
				pids := []int{programPID(t, client), programPID(t, server)}
				for _, pid := range pids {
					syscall.Kill(pid, syscall.SIGKILL)
				}
				if c := waitForExitWithin(t, "client", client, 5*time.Second); c != 128+9 {
					t.Errorf("launcher: got exit code %d, want 137", c)
				}
				waitForExitWithin(t, "server", server, 5*time.Second)
				w.awaitNoProgramObjects()
			}
			args := []string{"-d", "rxe0", "-g", "1", "-c"}
			p := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args}
			if err := p.run(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestRequestsFailAfterPeerKill tests that the outstanding work requests of a side fail after its peer was killed, and
// that the side does not block for ever.
func TestRequestsFailAfterPeerKill(t *testing.T) {
	needProgram(t, "perftest", "ib_write_bw")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	args := []string{"-d", "rxe0", "-x", "1", "-F", "-D", "50", "-u", "10"}
	server, client := startConnectedPair(t, w, "ib_write_bw", args)
	syscall.Kill(programPID(t, server), syscall.SIGKILL)
	waitForExitWithin(t, "server", server, 5*time.Second)
	if c := waitForExitWithin(t, "client", client, 20*time.Second); c == 0 || c > 128 {
		t.Errorf("survivor: got exit code %d, want a different failure", c)
	}
	if out := fmt.Sprint(client.Stdout) + fmt.Sprint(client.Stderr); !strings.Contains(out, "Completion with error") {
		t.Errorf("survivor: got output %q, want a completion with error", out)
	}
	w.awaitNoProgramObjects()
}

// TestKillService tests that programs end with an error when their service is killed, both if they poll and if they
// wait for events. Ordinary system calls must still work.
func TestKillService(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	for _, mode := range [][]string{nil, {"-e"}} {
		t.Run(strings.Join(append([]string{"pingpong"}, mode...), ""), func(t *testing.T) {
			w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
			marker := filepath.Join(filepath.Dir(w.socket), "go")
			bystander := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", "sh", "-c",
				`echo ready; for i in $(seq 1000); do [ -e `+marker+` ] && break; sleep 0.02; done; cat /proc/sys/kernel/ostype; ls / >/dev/null; exec ibv_devices`)
			var bout bytes.Buffer
			bystander.Stdout, bystander.Stderr = &bout, &bout
			if err := bystander.Start(); err != nil {
				t.Fatal(err)
			}
			server, client := startLoadedPingpong(t, w, mode...)
			if err := w.serve.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for name, c := range map[string]*exec.Cmd{"server": server, "client": client} {
				if code := waitForExitWithin(t, name, c, 10*time.Second); code == 0 || code > 128 {
					t.Errorf("%s: got exit code %d, want the program's own error", name, code)
				}
			}
			os.WriteFile(marker, nil, 0o644)
			if code := waitForExitWithin(t, "bystander", bystander, 10*time.Second); code < 0 {
				t.Error(bout.String())
			}
			if !strings.Contains(bout.String(), "Linux\n") {
				t.Errorf("ordinary system calls: got %s", bout.String())
			}
			t.Logf("client: %s", client.Stderr)
			// The killed service must leave no file that prevents the start of the next service.
			w2 := startService(t, w.user, "", "--link", "rxe0="+unusedAddr())
			w2.mustRun("run", "--", "ibv_devices")
		})
	}
}

// TestLinkDelEndsPrograms tests that programs end with errors when their device is removed.
func TestLinkDelEndsPrograms(t *testing.T) {
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	for _, mode := range [][]string{nil, {"-e"}} {
		w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
		server, client := startLoadedPingpong(t, w, mode...)
		w.mustRun("link", "del", "rxe0")
		for name, c := range map[string]*exec.Cmd{"server": server, "client": client} {
			if code := waitForExitWithin(t, name, c, 10*time.Second); code == 0 || code > 128 {
				t.Errorf("%s: got exit code %d, want the program's own error", name, code)
			}
		}
		w.awaitNoProgramObjects()
		w.mustRun("link", "add", "rxe0", "--addr", unusedAddr())
		w.mustRun("run", "--", "ibv_devinfo", "-d", "rxe0")
	}
}
