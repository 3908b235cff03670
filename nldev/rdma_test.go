package nldev

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// A netlinkServer answers the netlink sockets of rdma(8), which testdata/shim.c connects to it.
type netlinkServer struct {
	mu    sync.Mutex
	src   Source
	admin Admin
}

// setSource changes the source and the admin of the server.
func (s *netlinkServer) setSource(src Source, admin Admin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.src, s.admin = src, admin
}

// answer returns the answers to a request.
func (s *netlinkServer) answer(request []byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return defaultSocket.Answer(s.src, s.admin, request)
}

// serveProgram answers one program until it closes its socket.
func (s *netlinkServer) serveProgram(c *net.UnixConn) {
	defer c.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil || n == 0 {
			return
		}
		for _, b := range s.answer(buf[:n]) {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

// startToolServer builds the shim. It returns a server and a function that runs rdma(8) with that server.
// startToolServer skips the test if the machine does not have rdma(8) or a C compiler.
func startToolServer(t *testing.T) (*netlinkServer, func(args ...string) string) {
	t.Helper()
	rdma, err := exec.LookPath("rdma")
	if err != nil {
		t.Skip(err)
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler")
	}
	dir := t.TempDir()
	shim, path := filepath.Join(dir, "shim.so"), filepath.Join(dir, "socket")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-Wall", "-o", shim, "testdata/shim.c", "-ldl").
		CombinedOutput(); err != nil {
		t.Fatalf("build testdata/shim.c: got %v, want success:\n%s", err, out)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	server := &netlinkServer{}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			running.Go(func() { server.serveProgram(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return server, func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), rdma, args...)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+shim, "NLDEV_TEST_SOCKET="+path)
		out, err := cmd.CombinedOutput()
		text := strings.Join(strings.Fields(string(out)), " ")
		if err != nil {
			text += " (" + err.Error() + ")"
		}
		return text
	}
}

// TestRDMATool checks the output of rdma(8) for the answers of this package.
func TestRDMATool(t *testing.T) {
	server, run := startToolServer(t)
	admin := &fakeAdmin{}
	server.setSource(newTestSource(), admin)
	for _, test := range []struct {
		args string
		want []string // required parts of the output
	}{
		{"dev show", []string{"1: ib1: node_type ca fw 1.2", "3: rxe0: node_type ca", "node_guid 0102:0304:0506:0708"}},
		{"dev show rxe0", []string{"3: rxe0:"}},
		{"-d dev show rxe0", []string{"adaptive-moderation on"}},
		{"link show", []string{"link ib1/1 subnet_prefix", "link ib1/2 ",
			"link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0"}},
		{"link show rxe0/1", []string{"link rxe0/1 state ACTIVE"}},
		{"-j link show rxe0/1", []string{`"ifname":"rxe0"`, `"netdev":"eth0"`}},
		{"system show", []string{"netns shared", "copy-on-fork on"}},
		{"resource show", []string{"1: ib1: pd 0 cq 0 qp 0 cm_id 0 mr 0", "3: rxe0: pd 2 cq 2 qp 3 cm_id 1 mr 1"}},
		{"resource show rxe0", []string{"3: rxe0: pd 2"}},
		{"resource show qp", []string{"link rxe0/1 lqpn 17 rqpn 99 type RC state RTS rq-psn 1 sq-psn 2",
			"link rxe0/1 lqpn 18", "lqpn 19"}},
		{"resource show qp link rxe0/1 lqpn 17", []string{"link rxe0/1 lqpn 17 rqpn 99"}},
		{"resource show cm_id", []string{"link rxe0/1 cm-idn 7 lqpn 17 qp-type RC state CONNECT ps TCP",
			"src-addr 10.0.0.1:7471 dst-addr"}},
		{"resource show cq", []string{"dev rxe0 cqn 0 cqe 64 users 2", "poll-ctx SOFTIRQ", "comm [ib_core]"}},
		{"resource show mr", []string{"dev rxe0 mrn 4 rkey 0x12 lkey 0x11 mrlen 8589934592 pdn 2"}},
		{"resource show pd", []string{"dev rxe0 pdn 2 local_dma_lkey 0x6 users 3"}},
		{"resource show ctx", []string{"dev rxe0 ctxn 5"}},
		{"resource show srq", []string{"dev rxe0 srqn 0 type BASIC lqpn 19-21,25 pdn 2", "srqn 1 type XRC"}},
		{"statistic show link rxe0/1", []string{"link rxe0/1 rcvd_pkts 1 sent_pkts 10"}},
		{"statistic mode supported link rxe0/1", []string{""}}, // has only optional counters
		{"statistic qp mode link rxe0/1", []string{"link rxe0/1 mode qp auto off"}},
		{"statistic qp set link rxe0/1 auto type on", []string{"Operation not supported"}},
		{"statistic qp show", []string{""}},
		{"statistic mr", []string{"dev rxe0 mrn 4"}},
		{"link add rxe1 type rxe netdev eth1", []string{""}},
		{"link delete rxe0", []string{""}},
		{"dev set rxe0 name x", []string{"Operation not supported"}},
	} {
		got := run(strings.Fields(test.args)...)
		for _, part := range test.want {
			if !strings.Contains(got, part) || part == "" && got != "" {
				t.Errorf("rdma %s: got %q, want %q in the output", test.args, got, part)
			}
		}
	}
	if want := "add rxe1 rxe eth1, delete rxe0"; strings.Join(admin.calls, ", ") != want {
		t.Errorf("calls: got %q, want %q", admin.calls, want)
	}

	server.setSource(newTestSource(), &fakeAdmin{err: syscall.EEXIST})
	if got := run("link", "add", "rxe1", "type", "rxe", "netdev", "eth1"); !strings.Contains(got, "File exists") {
		t.Errorf("rdma link add of a link that exists: got %q, want %q in the output", got, "File exists")
	}
	server.setSource(newTestSource(), nil)
	if got := run("link", "delete", "rxe0"); !strings.Contains(got, "not permitted") {
		t.Errorf("rdma link delete without CAP_NET_ADMIN: got %q, want %q in the output", got, "not permitted")
	}

	server.setSource(newManyMRSource(500), nil)
	if got := strings.Count(run("resource", "show", "mr", "dev", "rxe0"), "mrn "); got != 500 {
		t.Errorf("lines of rdma resource show mr: got %d, want 500", got)
	}
	if got := strings.Count(run("dev", "show"), "node_type"); got != 500 {
		t.Errorf("lines of rdma dev show: got %d, want 500", got)
	}
}
