//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// cmSide is one side of a connection that the program keeps in a state (cm_states.c).
type cmSide struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	dead bool // set when the program was killed
}

func startCMSide(t *testing.T, w *testService, argv ...string) *cmSide {
	t.Helper()
	s := &cmSide{Cmd: w.verbenaCommand(w.contextWithTimeout(60), append([]string{"run", "--", buildWithLibibverbs(t,
		"cm_states")},
		argv...)...)}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in, s.out, s.Stderr = in, bufio.NewReader(out), s.Stdout
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitLine reads lines until it finds the given line.
func (s *cmSide) awaitLine(t *testing.T, want string) {
	t.Helper()
	for {
		line, err := s.out.ReadString('\n')
		if strings.TrimSpace(line) == want {
			return
		}
		if err != nil || line != "listening\n" {
			t.Fatalf("server: got line %q, %v, want %q", line, err, want)
		}
	}
}

// kill kills the program, but not its `verbena run`.
func (s *cmSide) kill(t *testing.T) {
	t.Helper()
	s.dead = true
	pid := fmt.Sprint(s.Process.Pid)
	tasks, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
	killed := 0
	for _, file := range tasks {
		b, _ := os.ReadFile(file)
		for child := range strings.FieldsSeq(string(b)) {
			if syscall.Kill(atoi(child), syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed != 1 {
		t.Fatalf("children of verbena run: got %d, want 1, the program", killed)
	}
	_ = s.Wait()
}

// remainingEvents returns the remaining events of the side as a list.
func (s *cmSide) remainingEvents(t *testing.T) string {
	t.Helper()
	if s.dead {
		return "killed"
	}
	s.in.Close()
	b, _ := io.ReadAll(s.out)
	if err := s.Wait(); err != nil || !strings.HasSuffix(string(b), "ok\n") {
		t.Errorf("the side failed: %v\n%s", err, b)
	}
	said := strings.ReplaceAll(strings.TrimSuffix(string(b), "ok\n"), "RDMA_CM_EVENT_", "")
	return strings.ToLower(strings.Join(strings.Split(strings.TrimSpace(said), "\n"), ", "))
}

// TestCMEventsInEachState tests events that end a connection of two programs in each of its states. The programs must
// get the events, end when they choose to, and leave no objects. A removed device sends no messages to its peers.
// (TestEnds of package rdmacm also tests the loss of the peer, in virtual time.)
func TestCMEventsInEachState(t *testing.T) {
	t.Parallel()
	misfortunes := []struct {
		name   string
		happen func(t *testing.T, here, there *testService, client, server *cmSide)
	}{
		{"the active side is killed", func(t *testing.T, _, _ *testService, c, _ *cmSide) { c.kill(t) }},
		{"the passive side is killed", func(t *testing.T, _, _ *testService, _, s *cmSide) { s.kill(t) }},
		{"the active side's device is reset", func(_ *testing.T, here, _ *testService, _, _ *cmSide) {
			here.mustRun("dev", "reset", "rxe0")
		}},
		{"the passive side's device is reset", func(_ *testing.T, _, there *testService, _, _ *cmSide) {
			there.mustRun("dev", "reset", "rxe0")
		}},
		{"the active side's device is unplugged", func(_ *testing.T, here, _ *testService, _, _ *cmSide) {
			here.mustRun("dev", "unplug", "rxe0")
		}},
	}
	// ends maps a connection state to the expected events after each failure, as "active side | passive side".
	ends := map[string][5]string{
		"resolved": {
			"killed | ", " | killed", "device_removal 0 | ", " | listener: device_removal 0", "device_removal 0 | ",
		},
		"asked": { // an ID that was not accepted gets no events
			"killed | ", "rejected 28 | killed", "device_removal 0 | ", " | listener: device_removal 0", "device_removal 0 | ",
		},
		"accepted": { // the event of the reply is queued; reading it completes the connection, which then fails
			"killed | rejected 28", "connect_error -1 | killed", "connect_error -1, device_removal 0 | ",
			"established 0 | listener: device_removal 0, device_removal 0", "connect_error -1, device_removal 0 | ",
		},
		"connected": {
			"killed | disconnected 0", "disconnected 0 | killed", "device_removal 0 | ",
			" | listener: device_removal 0, device_removal 0", "device_removal 0 | ",
		},
		"disconnecting": {
			"killed | ", "disconnected 0 | killed", "device_removal 0 | ",
			" | listener: device_removal 0, device_removal 0", "device_removal 0 | ",
		},
	}
	for state, want := range ends {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			u := testUsers()[0]
			addr := unusedAddr()
			there := startService(t, u, "", "--link", "rxe0="+addr)
			here := startService(t, u, "", "--link", "rxe0="+unusedAddr())
			for i, m := range misfortunes {
				t.Run(m.name, func(t *testing.T) {
					port := unusedTCPPort()
					server := startCMSide(t, there, "-s", addr, port, state)
					server.awaitLine(t, "listening")
					client := startCMSide(t, here, "-c", addr, port, state)
					server.awaitLine(t, "held")
					client.awaitLine(t, "held")
					m.happen(t, here, there, client, server)
					if got := client.remainingEvents(t) + " | " + server.remainingEvents(t); got != want[i] {
						t.Errorf("events: got %q, want %q", got, want[i])
					}
					if strings.HasSuffix(m.name, "unplugged") {
						here.mustRun("dev", "plug", "rxe0")
					}
					here.awaitNoCMObjects()
					there.awaitNoCMObjects()
				})
			}
		})
	}
}
