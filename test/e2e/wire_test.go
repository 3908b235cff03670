//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"verbena/internal/testutil"
)

// TestLossAndReordering tests that programs complete with correct data under packet loss and reordering.
func TestLossAndReordering(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	needProgram(t, "perftest", "ib_send_bw", "ib_write_bw", "ib_read_bw")
	for _, rule := range [][]string{
		{"--drop", "1%"}, {"--drop", "5%"}, {"--reorder", "5%"}, {"--duplicate", "5%"}, {"--corrupt", "2%"},
		{"--drop", "1%", "--reorder", "2%", "--delay", "50us"},
	} {
		t.Run(strings.Join(rule, ""), func(t *testing.T) {
			t.Parallel()
			w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr(), "--seed", "1")
			w.mustRun(append([]string{"fault", "add", "--dev", "rxe0"}, rule...)...)
			for _, size := range []string{"64", "65536", "1048576"} {
				args := []string{"-d", "rxe0", "-g", "1", "-c", "-s", size, "-n", "20", "-l", "7", "-e"}
				p := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args, timeout: 120}
				if err := p.runUnderLoss(); err != nil {
					t.Fatal(err)
				}
				t.Logf("size %s: %s", size, usecPerIter(p.clientOut))
			}
			for _, tool := range []string{"ib_send_bw", "ib_write_bw", "ib_read_bw"} {
				args := []string{"-d", "rxe0", "-x", "1", "-F", "-s", "65536", "-n", "50", "-u", "14"}
				p := &programPair{program: tool, server: w, client: w, serverArgs: args, clArgs: args, timeout: 120}
				if err := p.run(); err != nil {
					t.Fatal(err)
				}
				t.Logf("%s: %s", tool, lastFigureLine(p.clientOut))
			}
			out := w.mustRun("fault", "show")
			if regexp.MustCompile(`(\s0){5}\s*$`).MatchString(out) {
				t.Errorf("rule: matched no packet: %s", out)
			}
			w.awaitNoProgramObjects()
		})
	}
}

// maxLossyRepeats is the maximum number of repeats of one exchange. At a loss of 5 %, one in twenty exchanges is
// repeated, so three repeats in a row occur once in several thousand exchanges.
const maxLossyRepeats = 2

// runUnderLoss runs the pair under packet loss. runUnderLoss repeats the run if one end exited too early, and logs the
// repeat, which tools/verdict counts.
func (p *programPair) runUnderLoss() error {
	p.server.t.Helper()
	for repeats := 0; ; repeats++ {
		err := p.run()
		if err == nil || repeats == maxLossyRepeats || !p.exitedTooEarly() {
			return err
		}
		p.server.t.Logf("repeat: %s left before its last acknowledgement had arrived", p.program)
	}
}

// exitedTooEarly reports whether an end exited before its peer had received its last acknowledgement. ibv_rc_pingpong
// destroys its queue pair as soon as its own work is complete. If the acknowledgement of the peer's last message
// was lost, no queue pair remains to repeat the acknowledgement, on any device. The peer then has received its
// data, but not its last completion.
func (p *programPair) exitedTooEarly() bool {
	const lost = "transport retry counter exceeded (12) for wr_id 2"
	return strings.Contains(p.serverOut, lost) && strings.Contains(p.clientOut, "usec/iter") ||
		strings.Contains(p.clientOut, lost) && strings.Contains(p.serverOut, "usec/iter")
}

// newNetNSPair creates two network namespaces connected by a veth pair, with addresses 10.77.0.1 and .2, fd77::1 and
// ::2.
func newNetNSPair(t *testing.T) (a, b string) {
	t.Helper()
	needRoot(t)
	needProgram(t, "iproute2", "ip")
	a, b = newNetNSName(), newNetNSName()
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	for _, ns := range []string{a, b} {
		run("netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	}
	run("-n", a, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", b)
	for i, ns := range []string{a, b} {
		run("-n", ns, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", "veth0")
		run("-n", ns, "addr", "add", fmt.Sprintf("fd77::%d/64", i+1), "dev", "veth0", "nodad")
		run("-n", ns, "link", "set", "lo", "up")
		run("-n", ns, "link", "set", "veth0", "mtu", "4200", "up")
	}
	// The link-local addresses are usable only after duplicate address detection.
	testutil.Eventually(t, "link-local addresses", func() bool {
		out, _ := exec.Command("ip", "-n", b, "-6", "addr", "show", "dev", "veth0", "scope", "link").Output()
		out2, _ := exec.Command("ip", "-n", a, "-6", "addr", "show", "dev", "veth0", "scope", "link").Output()
		return bytes.Contains(out, []byte("fe80")) && !bytes.Contains(out, []byte("tentative")) &&
			bytes.Contains(out2, []byte("fe80")) && !bytes.Contains(out2, []byte("tentative"))
	})
	return a, b
}

// TestTwoServices tests two services in two network namespaces over a veth pair. tshark must decode the captured
// packets, and every ICRC must be correct.
func TestTwoServices(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	needProgram(t, "perftest", "ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_write_lat", "ib_read_lat")
	needProgram(t, "tshark", "tshark", "dumpcap")
	nsA, nsB := newNetNSPair(t)
	a := startService(t, testUsers()[0], nsA, "--link", "rxe0=veth0")
	b := startService(t, testUsers()[0], nsB, "--link", "rxe0=veth0")
	t.Log(a.mustRun("link", "show"))

	file := filepath.Join(t.TempDir(), "wire.pcapng")
	capture := exec.Command("ip", "netns", "exec", nsA, "dumpcap", "-q", "-i", "veth0", "-f", "udp port 4791", "-B", "64",
		"-w", file, "-c", "200000")
	var capLog bytes.Buffer
	capture.Stderr = &capLog
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	a.awaitCaptureFile(file)

	// GID 0 is the link-local address, GID 1 the IPv4 address, GID 2 the IPv6 address.
	for _, gid := range []string{"0", "1", "2"} {
		for _, mtu := range []string{"256", "1024", "4096"} {
			if gid != "1" && mtu != "1024" && !fullMatrix {
				continue
			}
			for _, size := range []int{1, 4096, 65536, 1048576} {
				args := []string{"-d", "rxe0", "-g", gid, "-c", "-m", mtu, "-s", fmt.Sprint(size), "-n",
					fmt.Sprint(max(10, iterationCount(size)/10))}
				p := &programPair{program: "ibv_rc_pingpong", server: a, client: b, serverArgs: args, clArgs: append(args, "-e"),
					peer: "10.77.0.1"}
				if err := p.run(); err != nil {
					t.Fatalf("gid %s mtu %s: %v", gid, mtu, err)
				}
			}
		}
		for i, tool := range []string{"ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_write_lat",
			"ib_read_lat"} {
			if !fullMatrix && fmt.Sprint(i%3) != gid {
				continue
			}
			args := []string{"-d", "rxe0", "-x", gid, "-F", "-s", "65536", "-n", "200"}
			p := &programPair{program: tool, server: a, client: b, serverArgs: args, clArgs: args, peer: "10.77.0.1"}
			if err := p.run(); err != nil {
				t.Fatalf("gid %s: %v", gid, err)
			}
			t.Logf("gid %s %s: %s", gid, tool, lastFigureLine(p.clientOut))
		}
	}
	a.awaitNoProgramObjects()
	b.awaitNoProgramObjects()

	capture.Process.Signal(syscall.SIGINT)
	capture.Wait()
	out, err := exec.Command("tshark", "-r", file, "-q", "-z", "io,phs").CombinedOutput()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, out)
	}
	for _, proto := range []string{"ip ", "ipv6 ", "infiniband "} {
		if !strings.Contains(string(out), proto) {
			t.Errorf("statistics of tshark: got no %s:\n%s", proto, out)
		}
	}
	// tshark guesses the protocol in the payload of a SEND. A single byte is not an RPC message, although tshark
	// assumes so.
	bad, err := exec.Command("tshark", "-r", file, "--disable-protocol", "rpcordma", "-Y",
		"_ws.malformed || (udp && !infiniband)", "-c", "5").Output()
	if err != nil || len(bad) > 0 {
		t.Errorf("tshark cannot decode: %v\n%s", err, bad)
	}
	check, err := exec.Command(verbenaBinary(t), "capture", "verify", file).CombinedOutput()
	if err != nil {
		t.Errorf("capture verify: %v\n%s", err, check)
	}
	t.Logf("%s", check)
}
