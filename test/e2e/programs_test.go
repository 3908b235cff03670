//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
)

// packetPaths lists the packet paths between two programs of one service.
var packetPaths = []struct {
	name string
	args []string
}{{"shortcut", nil}, {"wire", []string{"--wire"}}}

// matrixCell is a combination of a user and a path.
type matrixCell struct {
	user testUser
	name string
	addr string
	args []string // arguments of verbena serve
}

// matrixCells returns all combinations of a user and a path with full counts. Otherwise it returns fewer combinations,
// in which every user and every path occurs, because no program depends on the combination.
func matrixCells() (all []matrixCell) {
	for i, u := range testUsers() {
		for k, path := range packetPaths {
			if fullMatrix || (i+k)%2 == 1 || len(testUsers()) == 1 {
				addr := unusedAddr()
				all = append(all, matrixCell{u, u.name + "/" + path.name, addr, append([]string{"--link", "rxe0=" + addr},
					path.args...)})
			}
		}
	}
	return all
}

func TestDeviceListing(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_devices", "ibv_devinfo")
	for _, u := range testUsers() {
		t.Run(u.name, func(t *testing.T) {
			addr := unusedAddr()
			w := startService(t, u, "", "--link", "rxe0="+addr)
			if out := w.mustRun("run", "--",
				"ibv_devices"); !regexp.MustCompile(`(?m)^\s*rxe0\s+[0-9a-f]{16}$`).MatchString(out) {
				t.Errorf("ibv_devices: got no rxe0 with its GUID:\n%s", out)
			}
			out := w.mustRun("run", "--", "ibv_devinfo", "-v")
			for _, want := range []string{`hca_id:\s+rxe0`, `state:\s+PORT_ACTIVE`, `active_mtu:\s+4096`,
				`link_layer:\s+Ethernet`,
				`GID\[\s*0\]:\s+fe80:`, `GID\[\s*1\]:\s+::ffff:` + regexp.QuoteMeta(addr) + `, RoCE v2`} {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("ibv_devinfo -v: got no %s:\n%s", want, out)
				}
			}
			if n := strings.Count(out, "GID["); n != 2 {
				t.Errorf("ibv_devinfo: got %d GIDs, want 2:\n%s", n, out)
			}
			w.awaitNoProgramObjects()
		})
	}
}

// iterationCount returns the full count, or a count that limits one cell of the matrix to 16 MB.
func iterationCount(size int) int {
	if fullMatrix {
		return 10000
	}
	return min(1000, max(20, 16<<20/size))
}

func TestPingpongRC(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	for _, c := range matrixCells() {
		t.Run(c.name, func(t *testing.T) {
			w := startService(t, c.user, "", c.args...)
			for _, size := range []int{1, 4096, 65536, 1048576} {
				for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
					for _, mode := range []string{"poll", "events"} {
						if !fullMatrix && mtu != 1024 && (mode == "events" || mtu != 4096 && (c.user.uid != 0 || mtu != 256)) {
							continue
						}
						args := []string{"-d", "rxe0", "-g", "1", "-n", fmt.Sprint(iterationCount(size)), "-c",
							"-s", fmt.Sprint(size), "-m", fmt.Sprint(mtu)}
						if mode == "events" {
							args = append(args, "-e")
						}
						p := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args, timeout: 300}
						if err := p.run(); err != nil {
							t.Fatal(err)
						}
						t.Logf("size %d mtu %d %s: %s", size, mtu, mode, usecPerIter(p.clientOut))
					}
				}
			}
			w.awaitNoProgramObjects()
		})
	}
}

func usecPerIter(out string) string {
	for l := range strings.Lines(out) {
		if strings.Contains(l, "usec/iter") {
			return strings.TrimSpace(l)
		}
	}
	return "no figure in: " + out
}

// TestPingpongGIDs tests GID index 0, the link-local GID, and index 1. The test also tests the other service types.
func TestPingpongGIDs(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong")
	for _, path := range packetPaths {
		w := startService(t, testUsers()[0], "", append([]string{"--link", "rxe0=" + unusedAddr()}, path.args...)...)
		for _, program := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"} {
			for _, gid := range []string{"0", "1"} {
				t.Run(path.name+"/"+program+"/gid"+gid, func(t *testing.T) {
					args := []string{"-d", "rxe0", "-g", gid, "-n", "500"}
					if program != "ibv_ud_pingpong" {
						args = append(args, "-c", "-s", "9000")
					}
					p := &programPair{program: program, server: w, client: w, serverArgs: args, clArgs: args}
					if err := p.run(); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// TestSRQPrograms tests programs with shared receive queues, including datagrams.
func TestSRQPrograms(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_srq_pingpong")
	needProgram(t, "perftest", "ib_send_bw", "ib_send_lat")
	for _, place := range matrixCells() {
		w := startService(t, place.user, "", place.args...)
		for _, c := range []string{
			"ibv_srq_pingpong -d rxe0 -g 1 -n 500 -c",
			"ibv_srq_pingpong -d rxe0 -g 1 -n 500 -c -e",
			"ib_send_bw -d rxe0 -x 1 -F -n 500 --use-srq -q 4",
			"ib_send_lat -d rxe0 -x 1 -F -n 500 --use-srq",
			"ib_send_lat -d rxe0 -x 1 -F -n 500 -c UD", // no stream, because perftest would wait for lost datagrams
			"ib_send_lat -d rxe0 -x 1 -F -n 500 -c UD --use-srq",
		} {
			t.Run(place.name+"/"+c, func(t *testing.T) {
				args := strings.Fields(c)
				p := &programPair{program: args[0], server: w, client: w, serverArgs: args[1:], clArgs: args[1:]}
				if err := p.run(); err != nil {
					t.Fatal(err)
				}
			})
		}
		w.awaitNoProgramObjects()
	}
}

// TestMulticast runs a ping-pong of datagrams between two members of a group.
func TestMulticast(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_send_lat")
	for _, c := range matrixCells() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := startService(t, c.user, "", c.args...)
			host := netip.MustParseAddr(c.addr).As4()
			group := fmt.Sprintf("0:0:0:0:0:0:0:0:0:0:255:255:239:%d:%d:%d", host[1], host[2], host[3])
			args := []string{"-d", "rxe0", "-x", "1", "-F", "-n", "500", "-c", "UD", "-g", "-M", group}
			p := &programPair{program: "ib_send_lat", server: w, client: w, serverArgs: args, clArgs: args}
			if err := p.run(); err != nil {
				t.Fatal(err)
			}
			w.awaitNoProgramObjects()
		})
	}
}

// TestPerftest tests the operations over every transport that perftest supports for them. The test omits streams of
// SENDs over UC and UD. A message without a posted receive is lost, and perftest waits for ever for lost messages.
func TestPerftest(t *testing.T) {
	t.Parallel()
	needProgram(t, "perftest", "ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat", "ib_send_bw", "ib_write_bw",
		"ib_read_bw", "ib_atomic_bw")
	sizes := []string{"-s 2", "-s 4096", "-s 65536"}
	table := []struct {
		tools    []string
		variants []string
	}{
		{[]string{"ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw"}, sizes},
		{[]string{"ib_atomic_lat", "ib_atomic_bw"}, []string{"-A CMP_AND_SWAP", "-A FETCH_AND_ADD"}},
		{[]string{"ib_send_lat", "ib_write_lat", "ib_write_bw"}, []string{"-c UC -s 2", "-c UC -s 4096", "-c UC -s 65536"}},
		{[]string{"ib_send_lat"}, []string{"-c UD -s 2", "-c UD -s 1024"}},
	}
	for k, c := range matrixCells() {
		t.Run(c.name, func(t *testing.T) {
			w := startService(t, c.user, "", c.args...)
			for _, row := range table {
				for i, tool := range row.tools {
					variants := row.variants
					if !fullMatrix { // each variant runs some of the programs
						variants = variants[(i+k)%len(variants):][:1]
					}
					for _, variant := range variants {
						args := append([]string{"-d", "rxe0", "-x", "1", "-F", "-n", "500"}, strings.Fields(variant)...)
						p := &programPair{program: tool, server: w, client: w, serverArgs: args, clArgs: args}
						if err := p.run(); err != nil {
							t.Fatalf("%s %s: %v", tool, variant, err)
						}
						t.Logf("%s %s: %s", tool, variant, lastFigureLine(p.clientOut))
					}
				}
			}
			w.awaitNoProgramObjects()
		})
	}
}

var figuresPattern = regexp.MustCompile(`(?m)^\s*\d+\s+\d+(\s+[\d.]+)+\s*$`)

func lastFigureLine(out string) string {
	m := figuresPattern.FindAllString(out, -1)
	if len(m) == 0 {
		return "no figure in: " + out
	}
	return strings.Join(strings.Fields(m[len(m)-1]), " ")
}

// TestRepeatedEventRunsEnd repeats runs with events. A run that blocks indicates a lost notification, or a wrong event
// count at destruction.
func TestRepeatedEventRunsEnd(t *testing.T) {
	t.Parallel()
	needProgram(t, "ibverbs-utils", "ibv_rc_pingpong")
	w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
	start := time.Now()
	runs := 12
	if fullMatrix {
		runs = 300
	}
	for i := range runs {
		args := []string{"-d", "rxe0", "-g", "1", "-n", "200", "-e", "-c"}
		p := &programPair{program: "ibv_rc_pingpong", server: w, client: w, serverArgs: args, clArgs: args, timeout: 30}
		if err := p.run(); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
	t.Logf("%d runs in %v", runs, time.Since(start).Round(time.Millisecond))
	w.awaitNoProgramObjects()
}

// libfabricCrash is the report of a crash of libfabric. When a peer disconnects, rxm_close_conn of libfabric v1.17
// closes the endpoint first, and then handles the completions that are still in its CQ. For a receive, it posts the
// buffer to the closed endpoint again (libfabric issue 11828, fixed by pull request 12674 in 2026). A program crashes
// if it reads the event of the connection manager before the completion of the last message, on any device.
const libfabricCrash = "terminated with signal 11"

// runLibfabric runs one exchange of fi_pingpong with a provider and an endpoint type, which are in how. runLibfabric
// returns a description of the failure, and "" if there is none.
func runLibfabric(a, b *testService, how []string, addr string, env ...string) string {
	a.t.Helper()
	port := unusedTCPPort()
	args := append([]string{"run", "--", "env"}, env...)
	args = append(append(args, "fi_pingpong", "-I", "10"), how...)
	server := a.verbenaCommand(a.contextWithTimeout(60), append(args, "-B", port)...)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.mustRun("wait", "--listen", port)
	out, err := b.verbenaCommand(b.contextWithTimeout(60), append(args, "-P", port, addr)...).CombinedOutput()
	if serr := server.Wait(); err != nil || serr != nil {
		return fmt.Sprintf("%v: server: %v, client: %v\n--- server\n%s--- client\n%s", how, serr, err, &said, out)
	}
	return ""
}

// TestLibfabric tests a server of fi_pingpong without an address. A client on another host must find the server by
// connections and by reliable datagrams. Reliable datagrams use one completion queue for all endpoints, which is
// longer than the kernel's rxe permits.
func TestLibfabric(t *testing.T) {
	t.Parallel()
	needProgram(t, "libfabric-bin", "fi_pingpong")
	exchange := func(t *testing.T, a, b *testService, addr string) {
		for _, how := range [][]string{{"-p", "verbs", "-e", "msg"}, {"-p", "verbs;ofi_rxm", "-e", "rdm"}} {
			failure := runLibfabric(a, b, how, addr)
			if strings.Contains(failure, libfabricCrash) {
				t.Logf("repeat: fi_pingpong of %s has crashed at its end", how[1])
				failure = runLibfabric(a, b, how, addr)
			}
			if failure != "" {
				t.Error(failure)
			}
		}
	}
	t.Run("one host", func(t *testing.T) {
		w := startService(t, testUsers()[0], "", "--link", "rxe0="+unusedAddr())
		exchange(t, w, w, "127.0.0.1")
	})
	for _, args := range [][]string{nil, {"--no-loopback"}} {
		t.Run(fmt.Sprint("two hosts", args), func(t *testing.T) {
			nsA, nsB := newNetNSPair(t)
			a := startService(t, testUsers()[0], nsA, append(args, "--link", "rxe0=veth0")...)
			b := startService(t, testUsers()[0], nsB, append(args, "--link", "rxe0=veth0")...)
			exchange(t, a, b, "10.77.0.1")
		})
	}
}
