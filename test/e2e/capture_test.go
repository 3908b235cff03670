//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"verbena/internal/testutil"
)

// checkCapture checks a capture file with tshark and with `capture verify`. checkCapture returns the fields that
// tshark prints for each packet: interface, direction (1 in, 2 out), source, opcode.
func checkCapture(t *testing.T, file string) (packets [][]string) {
	t.Helper()
	// tshark guesses the payload protocol of a SEND; see TestTwoServices.
	tshark := func(args ...string) string {
		var errors bytes.Buffer
		c := exec.Command("tshark", append([]string{"-r", file, "--disable-protocol", "rpcordma"}, args...)...)
		c.Stderr = &errors
		out, err := c.Output()
		if err != nil {
			t.Fatalf("tshark: %v\n%s", err, errors.String())
		}
		return string(out)
	}
	if bad := tshark("-Y", "_ws.malformed || !infiniband", "-c", "5"); bad != "" {
		t.Errorf("tshark cannot decode:\n%s", bad)
	}
	out := tshark("-T", "fields", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction", "-e", "ip.src", "-e",
		"infiniband.bth.opcode")
	for l := range strings.Lines(out) {
		packets = append(packets, strings.Fields(l))
	}
	check, err := exec.Command(verbenaBinary(t), "capture", "verify", file).CombinedOutput()
	if want := fmt.Sprintf("icrc good %d bad 0", len(packets)); err != nil || !strings.Contains(string(check), want) {
		t.Errorf("capture verify: %v: %s; want %s", err, check, want)
	}
	return packets
}

// countByInterface counts packets by interface and direction.
func countByInterface(packets [][]string) map[string]int {
	n := map[string]int{}
	for _, p := range packets {
		n[p[0]+" "+strings.TrimLeft(strings.TrimPrefix(p[1], "0x"), "0")]++
	}
	return n
}

// TestCaptureContainsBothPaths tests that the file contains the packets of a pair of programs over both paths, even for
// users who may not capture on the host's interfaces.
func TestCaptureContainsBothPaths(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_ud_pingpong")
	needProgram(t, "tshark", "tshark")
	for _, u := range testUsers() {
		for _, path := range packetPaths {
			t.Run(u.name+"/"+path.name, func(t *testing.T) {
				t.Parallel()
				a, b := unusedAddr(), unusedAddr()
				w := startService(t, u, "", append([]string{"--link", "rxe0=" + a, "--link", "rxe1=" + b}, path.args...)...)
				file := filepath.Join(filepath.Dir(w.socket), "all.pcapng")
				capture := w.verbenaCommand(w.contextWithTimeout(120), "capture", "-w", file)
				var said bytes.Buffer
				capture.Stderr = &said
				if err := capture.Start(); err != nil {
					t.Fatal(err)
				}
				w.awaitCaptureFile(file)
				for _, program := range []string{"ibv_rc_pingpong", "ibv_ud_pingpong"} {
					args := []string{"-g", "1", "-s", "2000", "-n", "50"}
					p := &programPair{program: program, server: w, client: w, serverArgs: append(args, "-d", "rxe0"),
						clArgs: append(args, "-d", "rxe1")}
					if err := p.run(); err != nil {
						t.Fatal(err)
					}
				}
				capture.Process.Signal(syscall.SIGINT)
				if err := capture.Wait(); err != nil {
					t.Errorf("capture: %v: %s", err, said.String())
				}
				packets := checkCapture(t, file)
				n := countByInterface(packets)
				if len(n) != 4 || n["rxe0 2"] != n["rxe1 1"] || n["rxe1 2"] != n["rxe0 1"] || n["rxe0 2"] < 200 ||
					n["rxe1 2"] < 200 {
					t.Errorf("packets by interface and direction: got %v", n)
				}
				for _, p := range packets {
					if own := map[string]string{"rxe0": a, "rxe1": b}[p[0]]; (own == p[2]) != strings.HasSuffix(p[1], "2") {
						t.Fatalf("packet from %s on %s: got the wrong direction %s", p[2], p[0], p[1])
					}
				}
				if !strings.Contains(said.String(), fmt.Sprintf("%d packets\n", len(packets))) {
					t.Errorf("packets: got %d; output of capture: %s", len(packets), said.String())
				}
			})
		}
	}
}

// awaitCaptureFile waits until a capture has begun and its file has a header.
func (w *testService) awaitCaptureFile(file string) {
	w.t.Helper()
	testutil.Eventually(w.t, "the capture to begin", func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() > 0
	})
}

// TestCaptureContainsDamagedPackets tests that fault rules disable the shortcut, and that the file contains damaged
// packets as they are sent.
func TestCaptureContainsDamagedPackets(t *testing.T) {
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	w.addFault("--corrupt", "100%", "--skip", "20", "--limit", "3")
	file := filepath.Join(filepath.Dir(w.socket), "bad.pcapng")
	capture := w.verbenaCommand(w.contextWithTimeout(60), "capture", "-w", file, "--filter", "dir=out")
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	w.awaitCaptureFile(file)
	if _, err := w.runPingpong("-n", "50"); err != nil {
		t.Fatal(err)
	}
	capture.Process.Signal(syscall.SIGINT)
	capture.Wait()
	out, _ := exec.Command(verbenaBinary(t), "capture", "verify", file).CombinedOutput()
	if !regexp.MustCompile(`icrc good [1-9]\d* bad 3`).Match(out) {
		t.Errorf("capture verify: %s", out)
	}
}

// TestRunCapture tests that run --capture records packets while the program runs, in the user's service or in a
// private one.
func TestRunCapture(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	needProgram(t, "tshark", "tshark")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			addr := unusedAddr()
			shell := fmt.Sprintf("ibv_rc_pingpong -d rxe0 -g 1 -n 20 -p %[1]s >/dev/null & for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; "+
				"ibv_rc_pingpong -d rxe0 -g 1 -n 20 -p %[1]s 127.0.0.1 && break; done; wait; exit 7", unusedTCPPort())
			w := startService(t, u, "", "--link", "rxe0="+addr)
			for _, service := range []string{"shared", "private"} {
				file := filepath.Join(filepath.Dir(w.socket), service+".pcapng")
				args := []string{"run", "--capture", file}
				if service == "private" {
					args = append(args, "--private", "--link", "rxe0="+unusedAddr())
				}
				out, err := w.verbenaCommand(w.contextWithTimeout(60), append(args, "--", "sh", "-c", shell)...).CombinedOutput()
				if exitCode(err) != 7 {
					t.Errorf("%s: %v\n%s", service, err, out)
				}
				packets := checkCapture(t, file)
				if n := countByInterface(packets); len(n) != 2 || n["rxe0 1"] != n["rxe0 2"] || n["rxe0 1"] < 40 {
					t.Errorf("%s: packets by interface and direction: got %v", service, n)
				}
				if !strings.Contains(string(out), fmt.Sprintf("verbena: capture: %d packets\n", len(packets))) {
					t.Errorf("%s: packets: got %d; output of run: %s", service, len(packets), out)
				}
			}
		})
	}
}

// TestCaptureFiltersAndLimits tests capture filters, --count, --duration, and a capture to a pipe.
func TestCaptureFiltersAndLimits(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	needProgram(t, "tshark", "tshark")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	file := filepath.Join(filepath.Dir(w.socket), "some.pcapng")
	capture := w.verbenaCommand(w.contextWithTimeout(60), "capture", "-w", file, "--dev", "rxe0", "--filter",
		"opcode=ack,dir=in", "--count",
		"10")
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	w.awaitCaptureFile(file)
	live := w.verbenaCommand(w.contextWithTimeout(60), "capture", "-w", "-", "--count", "3")
	pipe, err := live.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	tshark := exec.Command("tshark", "-l", "-r", "-")
	tshark.Stdin = pipe
	var seen bytes.Buffer
	tshark.Stdout = &seen
	if err := live.Start(); err != nil {
		t.Fatal(err)
	}
	if err := tshark.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // for the start of the second capture; the program sends more packets in any case
	if _, err := w.runPingpong("-n", "200"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.runPingpong("-n", "200"); err != nil {
		t.Fatal(err)
	}
	if err := capture.Wait(); err != nil {
		t.Errorf("capture --count: %v", err)
	}
	if err := tshark.Wait(); err != nil {
		t.Errorf("tshark: %v", err)
	}
	if err := live.Wait(); err != nil {
		t.Errorf("capture -w -: %v", err)
	}
	if n := strings.Count(seen.String(), "RRoCE"); n != 3 {
		t.Errorf("pipe: got %d packets:\n%s", n, seen.String())
	}
	packets := checkCapture(t, file)
	for _, p := range packets {
		if op := p[3]; op != "17" && op != "0x11" {
			t.Errorf("the filter passed %v", p)
		}
	}
	if n := countByInterface(packets); len(packets) != 10 || n["rxe0 1"] != 10 {
		t.Errorf("capture with a filter: got %d packets: %v", len(packets), n)
	}
	if out := w.mustRun("capture", "-w", file, "--duration", "300ms"); !strings.Contains(out, "0 packets") {
		t.Errorf("--duration: %s", out)
	}
	for _, bad := range [][]string{{"--filter", "qp=x"}, {"--dev", "rxe9"}} {
		out, err := w.verbenaCommand(w.contextWithTimeout(20), append([]string{"capture", "-w",
			filepath.Join(filepath.Dir(w.socket), "x")},
			bad...)...).CombinedOutput()
		if exitCode(err) != 125 || !strings.HasPrefix(string(out), "verbena: ") {
			t.Errorf("%v: %v, %s", bad, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(w.socket), "x")); !os.IsNotExist(err) {
		t.Errorf("refused capture: its file has changed: %v", err)
	}
}
