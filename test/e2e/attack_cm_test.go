//go:build e2e

package e2e

import (
	wire "encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
	"verbena/rdmacm/msg"
	"verbena/roce"
)

// These tests attack through rdma_cm and netlink. The attacking program is test/rawverbs. The neighbour's program
// also connects and disconnects.

// attackedCM is a siege with a neighbour that also uses the connection manager.
type attackedCM struct {
	*attackedService
	raw     string
	connect *interactiveProgram
}

func startAttackedCM(t *testing.T, args ...string) *attackedCM {
	t.Helper()
	s := &attackedCM{attackedService: startAttackedService(t, args...), raw: buildRawverbs(t)}
	s.connect = s.startRawverbs(neighbor, "cm-neighbour", unusedTCPPort())
	s.connect.expectLine("ready")
	return s
}

// startRawverbs starts test/rawverbs as a user.
func (s *attackedCM) startRawverbs(uid uint32, args ...string) *interactiveProgram {
	s.t.Helper()
	return startInteractiveProgram(s.t, s.asUser(uid).verbenaCommand(s.contextWithTimeout(shortOrFullCount(120, 1800)),
		append([]string{"run", "--", s.raw}, args...)...))
}

// checkNeighbourConnects fails the test unless the neighbour can establish connections.
func (s *attackedCM) checkNeighbourConnects() {
	s.t.Helper()
	for range 3 {
		s.connect.sendLine("again")
		if line, ok := s.connect.nextLine(5 * time.Second); !ok || !strings.HasPrefix(line, "took ") {
			s.t.Errorf("neighbour: got no connection in 5 s: %q", s.connect.said)
			return
		}
	}
}

// TestAttackCMStalledMemory tests that memory that does not answer blocks only its own program. The memory contains a
// command on rdma_cm, or the data that the command points to, or is the buffer of a read from the descriptor.
func TestAttackCMStalledMemory(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"command", "response", "event", "option", "pipe"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := startAttackedCM(t)
			fs := newStallFS(t, attacker, fuseRead)
			a := s.startRawverbs(attacker, "cm-stall", what, fs.pagePath())
			a.expectLine("posted")
			fs.awaitRequest("read")
			time.Sleep(500 * time.Millisecond)
			for _, step := range []func(){
				s.checkNeighbourConnects,
				s.checkNeighbourProgress,
				func() { s.mustRunAsRoot(5*time.Second, "res", "show") },
				a.kill,
				s.checkNeighbourConnects,
				s.checkServesNewUser,
				func() { s.mustRunAsRoot(15*time.Second, "stop") },
			} {
				if step(); t.Failed() {
					return
				}
			}
		})
	}
}

// TestAttackCMClaimedQueuePair tests that a user cannot end another user's connection by claiming its queue pair.
func TestAttackCMClaimedQueuePair(t *testing.T) {
	t.Parallel()
	s := startAttackedCM(t)
	port := unusedTCPPort()
	k := s.startRawverbs(neighbor, "cm-keep", port)
	f := strings.Fields(k.expectLine("connected"))
	for _, qpn := range f[1:3] {
		out := s.startRawverbs(attacker, "cm-claim", s.deviceAddress()+":"+port, qpn).lastLines(10 * time.Second)
		if len(out) != 1 || out[0] != "connect: CONNECT: invalid argument" {
			t.Errorf("queue pair %s: %q", qpn, out)
		}
	}
	k.sendLine("and now?")
	if line := k.expectLine(""); line != "still connected" {
		t.Error(line)
	}
	s.checkNeighbourConnects()
}

// deviceAddress returns the address of the service's device.
func (s *attackedCM) deviceAddress() string {
	for _, a := range s.serve.Args {
		if addr, ok := strings.CutPrefix(a, "rxe0="); ok {
			return addr
		}
	}
	s.t.Fatalf("no address in %q", s.serve.Args)
	return ""
}

// TestAttackCMForeignIDs tests that a user cannot use the IDs and multicast memberships of other users.
func TestAttackCMForeignIDs(t *testing.T) {
	s := startAttackedCM(t)
	k := s.startRawverbs(neighbor, "cm-keep", unusedTCPPort())
	k.expectLine("connected")
	g := s.startRawverbs(neighbor, "cm-fill", "groups", "20")
	g.expectLine("has groups=20")
	if out := s.startRawverbs(attacker, "cm-intrude", "60").lastLines(20 * time.Second); len(out) != 1 ||
		out[0] != "done" {
		t.Errorf("cm-intrude: got %q, want only done", out)
	}
	k.sendLine("and now?")
	if line := k.expectLine(""); line != "still connected" {
		t.Error(line)
	}
	s.checkNeighbourConnects()
}

// TestAttackCMObjectLimits tests that a user at the limit for a kind of object leaves objects of this kind for other
// users.
func TestAttackCMObjectLimits(t *testing.T) {
	t.Parallel()
	s := startAttackedCM(t, fewObjectsArgs()...)
	before := s.readLoad()
	for _, c := range []struct {
		kind      string
		all, some int
	}{
		{"ids", shortOrFullCount(4000, 70000), 100}, {"ports", shortOrFullCount(4000, 70000), 100},
		{"listeners", shortOrFullCount(4000, 70000), 100},
		{"groups", shortOrFullCount(4000, 70000), 100}, {"files", shortOrFullCount(300, 200000), 20},
		{"netlink", shortOrFullCount(1200, 200000), 20},
		{"failures", 100000, 5},
	} {
		s.testService.t, s.t = t, t
		began := time.Now()
		list := []*interactiveProgram{s.startRawverbs(attacker, "cm-fill", c.kind, fmt.Sprint(c.all)),
			s.startRawverbs(stranger, "cm-fill", c.kind, fmt.Sprint(c.all))}
		for _, a := range list {
			t.Log(a.nextLineWith("has", 60*time.Second), a.said[0])
		}
		b := s.startRawverbs(1001, "cm-fill", c.kind, fmt.Sprint(c.some))
		if line := b.nextLineWith("has", 20*time.Second); len(b.said) != 1 {
			t.Errorf("another user: got %s: %q", line, b.said)
		}
		s.checkNeighbourConnects()
		s.checkLoadBounded(before, 1500)
		t.Logf("%s: %v, %+v", c.kind, time.Since(began).Round(time.Millisecond), s.readLoad())
		for _, a := range append(list, b) {
			a.kill()
			<-a.over
		}
		s.awaitNoObjects(attacker)
	}
	s.checkNeighbourProgress()
}

// awaitNoObjects fails the test unless all objects of a user's programs are freed soon.
func (s *attackedCM) awaitNoObjects(uid int) {
	s.t.Helper()
	testutil.Eventually(s.t, fmt.Sprintf("user %d to have no objects", uid), func() bool {
		return !regexp.MustCompile(fmt.Sprintf(`(?m)^%d `, uid)).MatchString(s.mustRun("res", "show"))
	})
}

// TestAttackCMExecLeavesNoObjects tests that no objects remain after an exec of a program with threads that wait for
// events.
func TestAttackCMExecLeavesNoObjects(t *testing.T) {
	s := startAttackedCM(t)
	for range shortOrFullCount(5, 200) {
		if out := s.startRawverbs(attacker, "cm-exec").lastLines(10 * time.Second); len(out) > 0 {
			t.Errorf("cm-exec: got %q, want no output", out)
		}
	}
	s.awaitNoObjects(attacker)
	s.checkNeighbourConnects()
}

// TestAttackCMManyWaiters tests that threads that wait for events use little of the service's processor time and do not
// affect other users, even when they are killed or stopped.
func TestAttackCMManyWaiters(t *testing.T) {
	t.Parallel()
	s := startAttackedCM(t)
	const while = time.Second
	usedNow := func() time.Duration {
		before := s.readLoad()
		time.Sleep(while)
		return s.readLoad().cpu - before.cpu
	}
	alone := usedNow() // with only the neighbour
	a := s.startRawverbs(attacker, "cm-wait", fmt.Sprint(shortOrFullCount(500, 4000)))
	a.nextLineWith("waiting", 60*time.Second)
	with := usedNow()
	t.Logf("%d waiting threads: the service used %v in %v, and %v without them", shortOrFullCount(500, 4000), with,
		while, alone)
	if with > alone+while/3 {
		t.Errorf("processor time for waiting threads: got %v in %v", with-alone, while)
	}
	syscall.Kill(programPID(t, a.cmd), syscall.SIGSTOP)
	s.checkNeighbourConnects()
	s.mustRunAsRoot(5*time.Second, "res", "show")
	syscall.Kill(programPID(t, a.cmd), syscall.SIGCONT)
	a.kill()
	s.checkNeighbourConnects()
	s.checkNeighbourProgress()
	s.awaitNoObjects(attacker)
}

// TestAttackNetlinkUnreadAnswers tests that unread netlink answers occupy a bounded amount of memory.
func TestAttackNetlinkUnreadAnswers(t *testing.T) {
	t.Parallel()
	needProgram(t, "iproute2", "rdma")
	s := startAttackedCM(t)
	a := s.startRawverbs(attacker, "fill", "qps", fmt.Sprint(shortOrFullCount(4000, 16000)))
	a.nextLineWith("has", 60*time.Second)
	before := s.readLoad()
	u := s.startRawverbs(attacker, "nl-unread", fmt.Sprint(shortOrFullCount(300, 2000)))
	t.Log(u.nextLineWith("asked", 60*time.Second), u.said)
	time.Sleep(time.Duration(shortOrFullCount(1, 20)) * time.Second)
	after := s.readLoad()
	t.Logf("memory of the service: got %d MiB before, %d MiB after", before.rss, after.rss)
	s.checkLoadBounded(before, 100)
	s.checkNeighbourConnects()
	if out := s.asUser(neighbor).mustRun("run", "--", "rdma", "resource", "show", "cm_id"); !strings.Contains(out,
		"LISTEN") {
		t.Errorf("rdma resource of another user: got %q, want LISTEN", out)
	}
	s.checkNeighbourProgress()
}

// TestAttackNetlinkDeviceChange tests that only managers can create and remove devices. Another user cannot, and root
// cannot through a socket that another user has opened.
func TestAttackNetlinkDeviceChange(t *testing.T) {
	s := startAttackedCM(t)
	if out := s.startRawverbs(attacker, "nl-change").lastLines(10 * time.Second); len(out) != 2 ||
		strings.Contains(strings.Join(out, " "), "errno 0") ||
		strings.Count(fmt.Sprint(out), "operation not permitted") != 2 {
		t.Errorf("netlink requests: got %q, want refusals", out)
	}
	dir := newScratchDir(t)
	os.Chmod(dir, 0o777)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	os.Chmod(dir+"/s", 0o777)
	s.startRawverbs(attacker, "nl-give", dir+"/s").expectLine("given")
	fd := receiveDescriptor(t, l)
	defer unix.Close(fd)
	for _, c := range []struct {
		what string
		b    []byte
		want string // position of the error in the answer
	}{
		{"delete the device", nlMessage(4, unix.NLM_F_ACK, 1, 0), "ffffffff"}, // -EPERM
		{"list IDs", nlMessage(11, unix.NLM_F_DUMP, 1, 0), "03000200"},        // the end of the dump, without data before it
	} {
		if err := unix.Sendto(fd, c.b, 0, nil); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1<<16)
		n, err := unix.Read(fd, b)
		if err != nil || n < 20 {
			t.Fatalf("%s: %d bytes, %v", c.what, n, err)
		}
		if got := fmt.Sprintf("%x", b[:n]); c.what == "delete the device" && got[32:40] != c.want ||
			c.what == "list IDs" && got[8:16] != c.want {
			t.Errorf("%s by root on the attacker's socket: got success: %s", c.what, got)
		}
	}
	s.checkNeighbourProgress()
	s.checkNeighbourConnects()
}

// receiveDescriptor returns the descriptor that a program has sent.
func receiveDescriptor(t *testing.T, l *net.UnixListener) int {
	t.Helper()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		t.Fatal(err)
	}
	list, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil {
		t.Fatal(err)
	}
	return fds[0]
}

// nlMessage returns a netlink request of family NLDEV with a 32-bit attribute.
func nlMessage(cmd, flags, attr uint16, v uint32) []byte {
	b := make([]byte, 24)
	wire.NativeEndian.PutUint32(b, 24)
	wire.NativeEndian.PutUint16(b[4:], 5<<10|cmd)
	wire.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	wire.NativeEndian.PutUint16(b[16:], 8)
	wire.NativeEndian.PutUint16(b[18:], attr)
	wire.NativeEndian.PutUint32(b[20:], v)
	return b
}

// TestAttackCMPassedDescriptor tests that a file opened by one user accepts no commands from another user. An
// attacker could trick the other user into writing them. The kernel makes the same check (ib_safe_file_access).
func TestAttackCMPassedDescriptor(t *testing.T) {
	s := startAttackedCM(t)
	for user, want := range map[uint32]string{neighbor: "create: CREATE_ID: permission denied",
		attacker: "create: <nil>"} {
		dir := newScratchDir(t)
		os.Chmod(dir, 0o777)
		u := s.startRawverbs(user, "cm-use", dir+"/s")
		u.expectLine("listening")
		s.startRawverbs(attacker, "cm-give", dir+"/s").expectLine("given")
		if line := u.expectLine("create"); line != want {
			t.Errorf("user %d: got %q, want %q", user, line, want)
		}
	}
}

// packetForger sends connection manager messages from a given address.
type packetForger struct {
	t        *testing.T
	fd       int
	from, to netip.AddrPort
	flow     roce.Flow
	rand     *rand.Rand
}

func newPacketForger(t *testing.T, from, to string) *packetForger {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	// With this option the identification of the IPv4 header is 0, as the ICRC requires.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
		t.Fatal(err)
	}
	f := &packetForger{t: t, fd: fd, from: netip.AddrPortFrom(netip.MustParseAddr(from), 0),
		to:   netip.AddrPortFrom(netip.MustParseAddr(to), roce.UDPPort),
		rand: rand.New(rand.NewPCG(1, 2))}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: f.from.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	f.from = netip.AddrPortFrom(f.from.Addr(), uint16(name.(*unix.SockaddrInet4).Port))
	f.flow = roce.NewFlow(f.from, f.to)
	return f
}

// sendMAD sends a datagram to the general services queue pair (QP1).
func (f *packetForger) sendMAD(mad []byte) {
	b := make([]byte, roce.BTHLen+roce.DETHLen+len(mad)+roce.ICRCLen)
	roce.BTH(b).Encode(&roce.BTHFields{Opcode: roce.UDSendOnly, PKey: 0xffff, DestQPN: roce.QPNGSI})
	roce.DETH(b[roce.BTHLen:]).Encode(roce.GSIQKey, roce.QPNGSI)
	copy(b[roce.BTHLen+roce.DETHLen:], mad)
	f.flow.Seal(0, b)
	if err := unix.Sendto(f.fd, b, 0, &unix.SockaddrInet4{Port: int(f.to.Port()), Addr: f.to.Addr().As4()}); err != nil &&
		err != unix.ECONNREFUSED {
		f.t.Fatal(err)
	}
}

// floodMessages sends n messages of each kind with random communication IDs. floodMessages sends requests to the given
// ports, and all other kinds without a port.
func (f *packetForger) floodMessages(n int, ports ...uint16) {
	var gid msg.GID
	gid[10], gid[11] = 0xff, 0xff
	a := f.from.Addr().As4()
	copy(gid[12:], a[:])
	num := f.rand.Uint32
	for i := range n {
		ip := msg.AppendIPHeader(nil, msg.IPHeader{SrcPort: 1, Src: f.from.Addr(), Dst: f.to.Addr()})
		port := ports[i%len(ports)]
		for _, m := range []msg.Message{
			&msg.REQ{LocalCommID: num(), ServiceID: msg.MakeServiceID(msg.PortSpaceTCP, port), LocalCAGUID: f.rand.Uint64(),
				LocalQPN: num() >> 8,
				PathMTU:  3, Primary: msg.Path{LocalGID: gid}, Data: ip},
			&msg.REP{LocalCommID: num(), RemoteCommID: num(), LocalQPN: num() >> 8}, &msg.RTU{LocalCommID: num(),
				RemoteCommID: num()},
			&msg.DREQ{LocalCommID: num(), RemoteCommID: num(), RemoteQPN: num() >> 8}, &msg.DREP{LocalCommID: num(),
				RemoteCommID: num()},
			&msg.REJ{LocalCommID: num(), RemoteCommID: num(), Of: msg.AnsweredMessage(num() & 3),
				Reason: msg.RejectReason(num() & 31)},
			&msg.REJ{RemoteCommID: num(), Reason: msg.ReasonConsumer}, &msg.MRA{LocalCommID: num(), RemoteCommID: num(),
				ServiceTimeout: 31},
			&msg.LAP{LocalCommID: num(), RemoteCommID: num()},
			&msg.SIDRREQ{RequestID: num(), ServiceID: msg.MakeServiceID(msg.PortSpaceUDP, port), Data: ip},
			&msg.SIDRREP{RequestID: num(), QPN: num() >> 8},
		} {
			f.sendMAD(msg.Append(nil, f.rand.Uint64(), m))
		}
		mad := make([]byte, msg.Len)
		for j := range mad {
			mad[j] = byte(num())
		}
		copy(mad, msg.Append(nil, 1, &msg.APR{})[:f.rand.IntN(24)])
		f.sendMAD(mad)
		if i%8 == 0 { // the rate at which a service can handle messages
			time.Sleep(time.Millisecond)
		}
	}
}

// TestAttackCMFlood tests that forged messages from the network neither end a connection nor exhaust the service's
// memory. The service must accept new connections afterwards. The messages come from an unused address and from the
// peers' addresses.
func TestAttackCMFlood(t *testing.T) {
	t.Parallel()
	s := startAttackedCM(t)
	kept, served := unusedTCPPort(), unusedTCPPort()
	k := s.startRawverbs(neighbor, "cm-keep", kept) // accepts no requests
	k.expectLine("connected")
	server := s.startRawverbs(neighbor, "cm-serve", served)
	server.expectLine("ready")
	before := s.readLoad()
	for _, from := range []string{unusedAddr(), s.deviceAddress()} {
		f := newPacketForger(t, from, s.deviceAddress())
		for range 2 {
			f.floodMessages(shortOrFullCount(600, 100000), uint16(atoi(kept)), uint16(atoi(served)))
			k.sendLine("and now?")
			if line := k.expectLine(""); line != "still connected" {
				t.Error(line)
			}
		}
	}
	after := s.readLoad()
	t.Logf("load: got %d MiB before, %d MiB after; %v of processor time", before.rss, after.rss,
		after.cpu-before.cpu)
	s.checkLoadBounded(before, 100)
	if out := s.startRawverbs(stranger, "cm-call",
		s.deviceAddress()+":"+served).lastLines(30 * time.Second); len(out) != 1 ||
		!strings.HasPrefix(out[0], "connected") {
		t.Errorf("afterwards: %q", out)
	}
	line := server.expectLine("accepted")
	if n := atoi(strings.Fields(line)[3]); n < shortOrFullCount(600, 100000)/4 {
		t.Errorf("server: got too few of the forged requests: %s", line)
	}
	t.Log(line)
	k.sendLine("and now?")
	if line := k.expectLine(""); line != "still connected" {
		t.Error(line)
	}
	s.checkNeighbourConnects()
	s.checkNeighbourProgress()
}
