//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/netip"
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

// cmPair is a server and a client that connect by the connection manager. In the arguments, ADDR is the address of
// the server's device, GROUP the address of a multicast group, DIR a directory, PORT a port, and LIBRARY the
// library that replaces TCP sockets by those of librdmacm. nc transfers a file.
type cmPair struct {
	name           string
	server, client string
	ends           bool // whether the server ends with its client; otherwise the test ends it
}

var cmPairs = []cmPair{
	{"rping", "rping -s -C 20", "rping -c -a ADDR -C 20 -V", true},
	{"rping persistent", "rping -s -P -S 4000", "rping -c -a ADDR -C 20 -S 4000 -v", false},
	{"rping by queue pairs of its own", "rping -s -q -C 20", "rping -c -q -a ADDR -C 20 -v", true},
	{"rping bound", "rping -s -a ADDR -p PORT -C 3", "rping -c -a ADDR -p PORT -C 3", true},
	{"ucmatose", "ucmatose", "ucmatose -s ADDR", true},
	{"ucmatose many", "ucmatose -c 50", "ucmatose -s ADDR -c 50", true},
	{"ucmatose migrates", "ucmatose -m", "ucmatose -s ADDR -m", true},
	{"ucmatose with options", "ucmatose -t 8 -a 14 -C 100 -S 70000", "ucmatose -s ADDR -t 8 -a 14 -C 100 -S 70000", true},
	{"ucmatose of InfiniBand's port space", "ucmatose -P ib", "ucmatose -s ADDR -P ib", true},
	{"udaddy", "udaddy", "udaddy -s ADDR", true},
	{"udaddy many", "udaddy -c 50 -S 2000", "udaddy -s ADDR -c 50 -S 2000", true},
	{"mckey", "mckey -m GROUP -b ADDR -C 5", "mckey -m GROUP -b ADDR -C 5 -s", true},
	{"rdma_client", "rdma_server", "rdma_client -s ADDR", true},
	{"rdma_xclient", "rdma_xserver -c r", "rdma_xclient -s ADDR -c r", true},
	{"rstream", "rstream -S 4096 -I 100 -C 4", "rstream -s ADDR -S 4096 -I 100 -C 4", true},
	{"rstream does not block", "rstream -T n -S 4096 -I 100 -C 4", "rstream -s ADDR -T n -S 4096 -I 100 -C 4", true},
	{"rstream by rdma_getaddrinfo", "rstream -T r -S 4096 -I 100 -C 4", "rstream -s ADDR -T r -S 4096 -I 100 -C 4", true},
	{"riostream", "riostream -S 4096 -I 100 -C 4", "riostream -s ADDR -S 4096 -I 100 -C 4", true},
	{"riostream blocks", "riostream -T b -S 4096 -I 100 -C 4", "riostream -s ADDR -T b -S 4096 -I 100 -C 4", true},
	{"rcopy", "rcopy", "rcopy DIR/from ADDR:DIR/to", false},
	{"cmtime", "cmtime", "cmtime -s ADDR -c 100", false},
	{"ib_send_bw", "ib_send_bw -R -p PORT -n 200", "ib_send_bw -R -p PORT -n 200 ADDR", true},
	{"ib_write_bw", "ib_write_bw -R -p PORT -n 200", "ib_write_bw -R -p PORT -n 200 ADDR", true},
	{"ib_read_bw", "ib_read_bw -R -p PORT -n 200", "ib_read_bw -R -p PORT -n 200 ADDR", true},
	{"ib_atomic_bw", "ib_atomic_bw -R -p PORT -n 200", "ib_atomic_bw -R -p PORT -n 200 ADDR", true},
	{"ib_send_lat", "ib_send_lat -R -p PORT -n 200", "ib_send_lat -R -p PORT -n 200 ADDR", true},
	{"ib_write_lat", "ib_write_lat -R -p PORT -n 200", "ib_write_lat -R -p PORT -n 200 ADDR", true},
	{"ib_read_lat", "ib_read_lat -R -p PORT -n 200", "ib_read_lat -R -p PORT -n 200 ADDR", true},
	{"ib_atomic_lat", "ib_atomic_lat -R -p PORT -n 200", "ib_atomic_lat -R -p PORT -n 200 ADDR", true},
	{"nc by librspreload", "env LD_PRELOAD=LIBRARY nc.traditional -l -p PORT -s ADDR",
		"env LD_PRELOAD=LIBRARY nc.traditional -q 1 ADDR PORT", true},
	{"iperf3 by librspreload", "env LD_PRELOAD=LIBRARY iperf3 -s -1 -B ADDR -p PORT",
		"env LD_PRELOAD=LIBRARY iperf3 -c ADDR -p PORT -n 4M", true},
	{"ib_send_lat of datagrams", "ib_send_lat -R -c UD -p PORT -n 200", "ib_send_lat -R -c UD -p PORT -n 200 ADDR", true},
	{"ib_send_bw of datagrams, 4 at once", "ib_send_bw -R -c UD -q 4 -p PORT -n 200",
		"ib_send_bw -R -c UD -q 4 -p PORT -n 200 ADDR", true},
	{"ib_send_bw by events, 4 at once", "ib_send_bw -R -e -q 4 -p PORT -n 200",
		"ib_send_bw -R -e -q 4 -p PORT -n 200 ADDR", true},
	{"ib_write_bw, 4 at once", "ib_write_bw -R -q 4 -p PORT -n 200", "ib_write_bw -R -q 4 -p PORT -n 200 ADDR", true},
	{"ib_read_bw by events, 4 at once", "ib_read_bw -R -e -q 4 -p PORT -n 200",
		"ib_read_bw -R -e -q 4 -p PORT -n 200 ADDR", true},
	{"ib_atomic_bw by events, 4 at once", "ib_atomic_bw -R -e -q 4 -p PORT -n 200",
		"ib_atomic_bw -R -e -q 4 -p PORT -n 200 ADDR", true},
}

// rpingCountOption is the option of rping to exchange a number of messages with -v.
const rpingCountOption = 20

// cmPairs6 lists the pairs that have an option to listen on an IPv6 address.
var cmPairs6 = []cmPair{
	{"rping", "rping -s -a ADDR -C 20", "rping -c -a ADDR -C 20 -V", true},
	{"rping persistent", "rping -s -P -a ADDR", "rping -c -a ADDR -C 20 -v", false},
	{"ucmatose", "ucmatose -b ADDR", "ucmatose -s ADDR", true},
	{"ucmatose of InfiniBand's port space", "ucmatose -b ADDR -P ib", "ucmatose -s ADDR -P ib", true},
	{"udaddy", "udaddy -b ADDR", "udaddy -s ADDR", true},
	{"rstream", "rstream -b ADDR -S 4096 -I 100 -C 4", "rstream -s ADDR -S 4096 -I 100 -C 4", true},
	{"riostream", "riostream -b ADDR -S 4096 -I 100 -C 4", "riostream -s ADDR -S 4096 -I 100 -C 4", true},
	{"cmtime", "cmtime -b ADDR", "cmtime -s ADDR -c 20", false},
}

// run runs the pair and returns the client's output.
func (p *cmPair) run(t *testing.T, server, client *testService, addr string) string {
	t.Helper()
	return p.runWithRepeats(t, server, client, addr, 1)
}

// runWithRepeats is like run, but limits the repeats of mckey. The server of mckey waits for ever for a lost
// datagram, and datagrams may be lost.
func (p *cmPair) runWithRepeats(t *testing.T, server, client *testService, addr string, repeats int) string {
	t.Helper()
	dir := newScratchDir(t)
	if err := os.Chmod(dir, 0o777); err != nil { // the programs may run as another user
		t.Fatal(err)
	}
	payload := make([]byte, 3<<20)
	nc := strings.Contains(p.client, " nc.")
	if strings.Contains(p.client, "DIR") || nc {
		_, _ = rand.Read(payload)
		if err := os.WriteFile(filepath.Join(dir, "from"), payload, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a := netip.MustParseAddr(addr)
	group := "ff15::" + fmt.Sprintf("%x", portCounter.Add(1))
	if a.Is4() {
		v := a.As4()
		group = fmt.Sprintf("239.%d.%d.%d", v[1], v[2], v[3])
	}
	fill := strings.NewReplacer("ADDR", addr, "PORT", unusedTCPPort(), "GROUP", group, "DIR", dir, "LIBRARY",
		librspreloadPath())
	ctx := server.contextWithTimeout(60)
	trace := filepath.Join(dir, "trace")
	start := func(w *testService, line string, flags ...string) (*exec.Cmd, *bytes.Buffer) {
		var out bytes.Buffer
		c := w.verbenaCommand(ctx, append(append([]string{"run"}, append(flags, "--")...),
			strings.Fields(fill.Replace(line))...)...)
		c.Stdout, c.Stderr = &out, &out
		if nc && line == p.client { // no pipe, because nc loops in select(2) at its end
			f, err := os.Open(filepath.Join(dir, "from"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			c.Stdin = f
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c, &out
	}
	s, sout := start(server, p.server, "--trace="+trace)
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	// Wait until the server listens, or has attached its queue pair to the multicast group.
	testutil.PollUntil(func() bool {
		b, err := os.ReadFile(trace)
		return err == nil && (bytes.Contains(b, []byte("LISTEN{")) || bytes.Contains(b, []byte("ATTACH_MCAST{")))
	})
	c, cout := start(client, p.client)
	cerr := ignoreRpingRace(p.client, c.Wait(), cout)
	if !p.ends || cerr != nil {
		s.Process.Signal(syscall.SIGTERM)
	}
	serr := ignoreRpingRace(p.server, <-ended, sout)
	said := sout.String()
	if nc {
		said = fmt.Sprintf("%d bytes", len(said))
	}
	if cerr == nil && serr != nil && ctx.Err() != nil && p.name == "mckey" && repeats > 0 {
		t.Logf("repeat: the server of mckey has not received all datagrams")
		return p.runWithRepeats(t, server, client, addr, repeats-1)
	}
	if cerr != nil || p.ends && serr != nil {
		t.Errorf("%s: server: %v, client: %v (%v)\n--- server\n%s--- client\n%s", p.name, serr, cerr, ctx.Err(), said, cout)
		return ""
	}
	if strings.HasPrefix(p.client, "cmtime") && strings.Contains(cout.String(), "RDMA_CM_EVENT") {
		t.Errorf("%s: got a failed connection with exit status 0:\n%s", p.name, cout)
	}
	if n := strings.Count(cout.String(), "ping data: "); strings.HasSuffix(p.client, " -v") && n != rpingCountOption {
		t.Errorf("%s: client got %d of its %d messages back, with exit status 0:\n%s", p.name, n,
			rpingCountOption, cout)
	}
	if nc && !bytes.Equal(sout.Bytes(), payload) {
		t.Errorf("%s: got %d bytes, want %d", p.name, sout.Len(), len(payload))
	}
	if strings.Contains(p.client, "DIR") {
		got, err := os.ReadFile(filepath.Join(dir, "to"))
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%s: copy: got %d bytes, or wrong data: %v", p.name, len(got), err)
		}
	}
	return cout.String()
}

// ignoreRpingRace returns nil if rping has ended after all its pings. Up to rdma-core 58 the main thread of rping
// destroys the event channel while another thread is about to read from it. The other thread then ends the program
// with 255 (fixed by rdma-core's f3ae6534).
func ignoreRpingRace(line string, err error, out *bytes.Buffer) error {
	s := out.String()
	if strings.HasPrefix(line, "rping ") && err != nil && exitCode(err) == 255 && !strings.Contains(s, "failed") &&
		strings.Contains(s, "DISCONNECT EVENT") && strings.Contains(s, "rdma_get_cm_event: Bad file descriptor") {
		return nil
	}
	return err
}

// librspreloadPath returns the path of the library that replaces TCP sockets by the sockets of librdmacm.
func librspreloadPath() string {
	found, _ := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
	return strings.Join(found, " ")
}

// countHeldObjects returns the number of objects of a kind that all users of a service have.
func (w *testService) countHeldObjects(kind string) int {
	w.t.Helper()
	for _, u := range w.sendRequest(&ctl.Request{Op: ctl.OpResShow}).Users {
		for _, h := range u.Holds {
			if u.UID < 0 && h.Kind == kind {
				return int(h.Held)
			}
		}
	}
	return 0
}

// awaitNoCMObjects waits until no program has an object or an ID of the service.
func (w *testService) awaitNoCMObjects() {
	w.t.Helper()
	w.awaitNoProgramObjects()
	if !testutil.PollUntil(func() bool { return w.countHeldObjects("cm-ids") == 0 }) {
		w.t.Errorf("connection manager IDs: got %d, want 0:\n%s", w.countHeldObjects("cm-ids"), w.mustRun("res", "show"))
	}
}

// TestCMPrograms runs the programs of librdmacm and perftest with one service.
func TestCMPrograms(t *testing.T) {
	t.Parallel()
	needProgram(t, "rdmacm-utils", "rping", "ucmatose", "udaddy", "mckey", "rdma_server", "rstream", "riostream", "rcopy",
		"cmtime")
	needProgram(t, "perftest", "ib_send_bw")
	needProgram(t, "iperf3", "iperf3")
	needProgram(t, "netcat-traditional", "nc.traditional")
	all := matrixCells()
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) {
			w := startService(t, c.user, "", c.args...)
			for j := range cmPairs {
				if !fullMatrix && j%len(all) != i { // each pair runs in one of the cells
					continue
				}
				cmPairs[j].run(t, w, w, c.addr)
			}
			w.awaitNoCMObjects()
		})
	}
}

// TestCMProgramsOfTwoServices runs the same pairs between two services in two network namespaces, over IPv4 and IPv6.
// One service runs as root and one as user nobody. tshark must decode the captured packets.
func TestCMProgramsOfTwoServices(t *testing.T) {
	t.Parallel()
	needProgram(t, "rdmacm-utils", "rping")
	needProgram(t, "tshark", "tshark", "dumpcap")
	needProgram(t, "iperf3", "iperf3")
	needProgram(t, "netcat-traditional", "nc.traditional")
	nsA, nsB := newNetNSPair(t)
	a := startService(t, testUsers()[0], nsA, "--link", "rxe0=veth0")
	b := startService(t, testUsers()[1], nsB, "--link", "rxe0=veth0")
	file := filepath.Join(t.TempDir(), "cm.pcapng")
	capture := a.verbenaCommand(a.contextWithTimeout(120), "capture", "record", "-w", file)
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	a.awaitCaptureFile(file)
	for j := range cmPairs {
		if cmPairs[j].name != "mckey" && (fullMatrix || j%4 == 0) { // each side binds to its own address
			cmPairs[j].run(t, a, b, "10.77.0.1")
		}
	}
	mckey := cmPair{"mckey", "mckey -m GROUP -b 10.77.0.1 -C 5", "mckey -m GROUP -b 10.77.0.2 -C 5 -s", true}
	mckey.run(t, a, b, "10.77.0.1")
	mckey6 := cmPair{"mckey", "mckey -m GROUP -b fd77::1 -C 5", "mckey -m GROUP -b fd77::2 -C 5 -s", true}
	mckey6.run(t, a, b, "fd77::1")
	for j := range cmPairs6 {
		cmPairs6[j].run(t, a, b, "fd77::1")
	}
	a.awaitNoCMObjects()
	b.awaitNoCMObjects()
	capture.Process.Signal(syscall.SIGINT)
	_ = capture.Wait()
	out, err := exec.Command("tshark", "-r", file, "-Y", "infiniband.mad.mgmtclass == 7", "-T", "fields", "-e",
		"infiniband.mad.attributeid",
		"-e", "_ws.malformed").CombinedOutput()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, out)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(out)) {
		seen[strings.TrimSpace(line)]++
	}
	t.Logf("messages: %v", seen)
	for _, attribute := range []string{"0x0010", "0x0013", "0x0014", "0x0015", "0x0016", "0x0017", "0x0018"} {
		if seen[attribute] == 0 {
			t.Errorf("capture: got no valid message %s: %v", attribute, seen)
		}
	}
}

// TestCMAcrossNamespaces tests programs of two services on one host, and programs in a different network namespace
// than their service.
func TestCMAcrossNamespaces(t *testing.T) {
	t.Parallel()
	needProgram(t, "rdmacm-utils", "rping")
	rping := cmPair{"rping", "rping -s -a ADDR -C 3", "rping -c -a ADDR -C 3 -V", true}
	fails := func(t *testing.T, w *testService, says string, args ...string) {
		t.Helper()
		out, err := w.verbenaCommand(w.contextWithTimeout(30), args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("%v: got %v, want an error with %q:\n%s", args, err, says, out)
		}
	}
	t.Run("two services", func(t *testing.T) {
		addr, other := unusedAddr(), unusedAddr()
		a := startService(t, testUsers()[0], "", "--link", "rxe0="+addr)
		b := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+other, "--no-loopback")
		rping.run(t, a, b, addr)
		rping.run(t, b, a, other)
		rping.run(t, a, a, "127.0.0.1")
		rping.run(t, a, a, "::1")
		fails(t, b, "RDMA_CM_EVENT_ADDR_ERROR", "run", "--", "rping", "-c", "-a", "127.0.0.1")
		fails(t, newTestService(t, testUsers()[0], ""), "4791", "serve", "--link", "rxe0="+addr)
		a.awaitNoCMObjects()
		b.awaitNoCMObjects()
	})
	t.Run("another network namespace", func(t *testing.T) {
		nsA, nsB := newNetNSPair(t)
		a := startService(t, testUsers()[0], nsA, "--link", "rxe0=veth0")
		b := *a
		b.netns = nsB
		rping.run(t, a, &b, "10.77.0.1")
		rping.run(t, &b, a, "10.77.0.1")
		fails(t, &b, "rdma_bind_addr", "run", "--", "rping", "-s", "-a", "10.77.0.2")
		a.awaitNoCMObjects()
	})
}

// TestSignalsDuringCMWaits tests signals during calls that wait for a connection manager event.
func TestSignalsDuringCMWaits(t *testing.T) { runCProgram(t, "cm_signals") }

// TestCMEventChannels tests event channels in loops, shared by threads, closed and duplicated. The test also tests
// endpoints and ten thousand IDs.
func TestCMEventChannels(t *testing.T) { runCProgram(t, "cm_channels") }

// TestCMDescriptorsFitSelect tests that descriptor numbers are valid for select(2), and for event loops with few slots,
// while the program has few open files. The test covers all limits of the program.
func TestCMDescriptorsFitSelect(t *testing.T) {
	t.Parallel()
	program := buildWithLibibverbs(t, "cm_loop")
	w := startService(t, testUsers()[len(testUsers())-1], "", "--link", "rxe0="+unusedAddr())
	for _, tt := range []struct{ limits, slots, own string }{
		{"ulimit -n 4096", "1024", "0"},
		{"ulimit -n 4096", "10128", "600"}, // the default values of redis
		{"ulimit -n 4096", "0", "900"},
		{"ulimit -n 1024", "1024", "700"},
		{"ulimit -n 256", "256", "100"},
		{"ulimit -Sn 256; ulimit -Hn 4096", "1024", "100"},
	} {
		c := w.verbenaCommand(w.contextWithTimeout(60), "run", "--", program, tt.slots, tt.own)
		c.Args = append([]string{"sh", "-c", tt.limits + `; exec "$@"`, "sh"}, c.Args...)
		c.Path = "/bin/sh"
		if out, err := c.CombinedOutput(); err != nil || string(out) != "ok\n" {
			t.Errorf("%s: %s own files: %v\n%s", tt.limits, tt.own, err, out)
		}
	}
	w.awaitNoCMObjects()
}

// TestCMDisconnectNotifiesPeer tests that each way to end one side of a connection notifies the other side.
func TestCMDisconnectNotifiesPeer(t *testing.T) {
	t.Parallel()
	needProgram(t, "rdmacm-utils", "rping")
	for _, c := range []struct {
		name string
		end  func(w *testService, server *exec.Cmd)
		says string // expected output of the server; "": the server was killed
	}{
		{"the server is killed", func(_ *testService, s *exec.Cmd) { syscall.Kill(-s.Process.Pid, syscall.SIGKILL) }, ""},
		{"the device is reset", func(w *testService, _ *exec.Cmd) { w.mustRun("dev", "reset", "rxe0") }, "device removal"},
		{"the device is unplugged", func(w *testService, _ *exec.Cmd) { w.mustRun("dev", "unplug", "rxe0") },
			"device removal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := unusedAddr()
			w := startService(t, testUsers()[0], "", "--link", "rxe0="+addr)
			trace := filepath.Join(t.TempDir(), "trace")
			var sout, cout bytes.Buffer
			s := w.verbenaCommand(w.contextWithTimeout(30), "run", "--trace="+trace, "--", "rping", "-s", "-a", addr)
			s.Stdout, s.Stderr = &sout, &sout
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			heard := func(what string) {
				testutil.Eventually(t, "the server to have "+what, func() bool {
					b, err := os.ReadFile(trace)
					return err == nil && bytes.Contains(b, []byte(what))
				})
			}
			heard("LISTEN{")
			client := w.verbenaCommand(w.contextWithTimeout(30), "run", "--", "rping", "-c", "-a", addr)
			client.Stdout, client.Stderr = &cout, &cout
			if err := client.Start(); err != nil {
				t.Fatal(err)
			}
			heard("established")
			c.end(w, s)
			began := time.Now()
			cerr, serr := client.Wait(), s.Wait()
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("programs: ended after %v, want earlier", d)
			}
			t.Logf("client %v, server %v", cerr, serr)
			if !strings.Contains(sout.String(), c.says) {
				t.Errorf("server: got no %q in its output:\n%s", c.says, &sout)
			}
			w.awaitNoCMObjects()
		})
	}
}
