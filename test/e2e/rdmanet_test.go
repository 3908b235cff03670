//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"testing"
)

// buildRdmanetTests returns the test program of package rdmanet.
func buildRdmanetTests(t *testing.T) string {
	return buildProgram(t, "rdmanet-tests", func(path string) []string {
		return []string{"go", "test", "-c", "-o", path, "verbena/rdmanet"}
	})
}

// openModes lists the ways in which a Go program opens a device of a service.
var openModes = []struct {
	name string
	cmd  func(w *testService, program string, args ...string) *exec.Cmd
}{
	{"verbena run", func(w *testService, program string, args ...string) *exec.Cmd {
		c := w.verbenaCommand(w.contextWithTimeout(100), append([]string{"run", "--", program}, args...)...)
		c.Env = append(c.Env, "VERBS_DEVICE=rxe0")
		return c
	}},
	{"socket", func(w *testService, program string, args ...string) *exec.Cmd {
		c := w.verbenaCommand(w.contextWithTimeout(100))
		c.Path, c.Args = program, append([]string{program}, args...)
		c.Env = append(c.Env, "VERBS_DEVICE=rxe0", "VERBS_SERVICE="+w.socket)
		return c
	}},
}

// TestRdmanet runs the tests of package rdmanet that do not create their own device, on a device of a service.
func TestRdmanet(t *testing.T) {
	t.Parallel()
	tests := buildRdmanetTests(t)
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, way := range openModes {
		c := way.cmd(w, tests, "-test.v", "-test.run", "^(TestConnPassesNettest|TestFlowControlOfManySizes|"+
			"TestHTTPOverConn|TestListenerIgnoresForeignPeers|TestCMConnBehavesLikeTCPSetup|TestKilledPeerUnblocksCalls)$")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", way.name, err, out)
		}
	}
	w.awaitNoProgramObjects() // the service detects the end of a program a moment later
}

// TestRdmanetAcrossServices runs nettest's tests, and transfers of both kinds, between the services of two network
// namespaces.
func TestRdmanetAcrossServices(t *testing.T) {
	t.Parallel()
	tests := buildRdmanetTests(t)
	nsA, nsB := newNetNSPair(t)
	a := startService(t, testUsers()[0], nsA, "--link", "rxe0=veth0")
	b := startService(t, testUsers()[0], nsB, "--link", "rxe0=veth0")
	socket := &openModes[1]
	c := socket.cmd(a, tests, "-test.v", "-test.run", "^TestConnPassesNettest$")
	c.Env = append(c.Env, "VERBS_PEER_SERVICE="+b.socket)
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestConnPassesNettest/tiny/RacyRead")) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, how := range []string{"tcp 10.77.0.1:18790", "cm 10.77.0.1:18790", "tcp [fd77::1]:18791",
		"cm [fd77::1]:18791"} {
		for _, way := range openModes {
			if way.name == socket.name && how[:3] == "tcp" {
				continue // the program runs outside of both namespaces
			}
			server, client := way.cmd(a, tests), way.cmd(b, tests)
			server.Env = append(server.Env, "RDMANET_CHILD=serve "+how)
			client.Env = append(client.Env, "RDMANET_CHILD=dial "+how)
			var said bytes.Buffer
			server.Stdout, server.Stderr = &said, &said
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			out, cerr := client.CombinedOutput()
			if serr := server.Wait(); cerr != nil || serr != nil {
				t.Errorf("%s, %s: server: %v: %s, client: %v: %s", way.name, how, serr, &said, cerr, out)
			}
		}
	}
	for _, w := range []*testService{a, b} {
		w.awaitNoProgramObjects() // the service detects the end of a program a moment later
	}
}

// TestRdmanetReconnectsAfterReset tests a program with a connection while its device is reset, or is unplugged and
// plugged in. The program must get an error that names the cause, and must be able to connect again.
func TestRdmanetReconnectsAfterReset(t *testing.T) {
	t.Parallel()
	tests := buildRdmanetTests(t)
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	for _, way := range openModes {
		for _, how := range []string{"tcp 127.0.0.1:0", "cm :0"} {
			for _, do := range [][]string{{"reset"}, {"unplug", "plug"}} {
				name := fmt.Sprint(way.name, ", ", how, ", ", do)
				c := way.cmd(w, tests)
				c.Env = append(c.Env, "RDMANET_CHILD=survive "+how)
				c.Stderr = w.log
				out, err := c.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				lines := bufio.NewScanner(out)
				for _, want := range []string{"connected", "connected again"} {
					if !lines.Scan() || lines.Text() != want {
						t.Errorf("%s: got %q, want %q", name, lines.Text(), want)
					}
					for _, x := range do {
						w.mustRun("dev", x, "rxe0")
					}
					do = nil
				}
				if err := c.Wait(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	w.awaitNoProgramObjects() // the service detects the end of a program a moment later
}
