package remote_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/ctl/devfile"
	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/internal/testutil"
	"verbena/service"
	"verbena/service/servicetest"
	"verbena/verbs"
	verbsservice "verbena/verbs/service"
)

// The clients of these tests are hostile. They implement the protocol themselves.

func TestMain(m *testing.M) { leaktest.Main(m) }

// connPair returns a connection and its other end.
func connPair(t testing.TB) (devfile.Conn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		must(t, err)
		ends[i] = c.(*net.UnixConn)
	}
	return devfile.Conn{UnixConn: ends[0]}, ends[1]
}

// attacker is a client with an open device file.
type attacker struct {
	t   testing.TB
	c   devfile.Conn
	fds []int // the descriptors that package devfile defines
}

func newAttacker(t testing.TB, loc ctl.Location, name string) *attacker {
	t.Helper()
	client, err := ctl.Dial(loc)
	if err != nil {
		t.Fatal(err)
	}
	_, nc, err := client.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, c: devfile.Conn{UnixConn: nc}}
	greeting, fds, err := a.c.ReceiveAnswer()
	if err != nil || greeting.Err() != nil {
		t.Fatal(err, greeting.Err())
	}
	a.fds = fds
	t.Cleanup(a.close)
	return a
}

func (a *attacker) close() {
	a.c.Close()
	devfile.CloseAll(a.fds)
	a.fds = nil
}

// sendRequest sends a request and returns the reply.
func (a *attacker) sendRequest(r devfile.Request, fds ...int) devfile.Answer {
	a.t.Helper()
	if err := a.c.SendRequest(r, fds...); err != nil {
		a.t.Fatal(err)
	}
	a.c.SetReadDeadline(time.Now().Add(10 * time.Second))
	answer, got, err := a.c.ReceiveAnswer()
	if err != nil {
		a.t.Fatalf("answer to %+v: got %v, want success", r, err)
	}
	devfile.CloseAll(got)
	return answer
}

// countThreads returns the number of threads of this process.
func countThreads(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// newLingeringSockets returns sockets with a last close that blocks until the listener is closed, because SO_LINGER
// waits for unread data.
func newLingeringSockets(t testing.TB, n int) (fds []int, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.91.13.30:0")
	if err != nil {
		t.Fatal(err)
	}
	var peers []net.Conn
	for range n {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p.(*net.TCPConn).SetReadBuffer(1 << 10)
		peers = append(peers, p)
		f, err := c.(*net.TCPConn).File()
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		unix.SetNonblock(fd, true)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<10)
		for buf := make([]byte, 64<<10); ; {
			if _, err := unix.Write(fd, buf); err != nil {
				break
			}
		}
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 20}); err != nil {
			t.Fatal(err)
		}
		unix.SetNonblock(fd, false)
		fds = append(fds, fd)
	}
	l.Close()
	return fds, func() {
		for _, p := range peers {
			p.(*net.TCPConn).SetLinger(0)
			p.Close()
		}
	}
}

// TestLingeringDescriptorsDelayNoClient sends descriptors with a slow close at each point where a client can send some.
// These descriptors may cost the service only a few threads, and must not block other clients or the end of the
// service.
func TestLingeringDescriptorsDelayNoClient(t *testing.T) {
	_, loc := servicetest.Device(t, "127.91.13.1")
	fds, release := newLingeringSockets(t, 60)
	var kept []int
	defer func() {
		release()
		devfile.CloseAll(kept)
	}()
	before := countThreads(t)
	for len(fds) > 0 {
		a := newAttacker(t, loc, "rxe0")
		sent := []error{
			unix.Sendmsg(a.fds[devfile.Signal], []byte{1}, unix.UnixRights(fds[0]), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL),
			unix.Sendmsg(a.fds[devfile.Doorbell], []byte{1}, unix.UnixRights(fds[1]), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL),
			a.c.SendRequest(devfile.Request{Op: devfile.OpWrite}, fds[2]),
			a.c.SendRequest(devfile.Request{Op: devfile.OpWrite}, fds[3]),
		}
		for i, err := range sent {
			if err != nil {
				kept = append(kept, fds[i])
			} else {
				unix.Close(fds[i]) // now only the service has the descriptor
			}
		}
		if sent[devfile.Signal] == nil {
			t.Error("send over the signal socket: got success, want an error")
		}
		fds = fds[len(sent):]
		a.c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, _, err := a.c.ReceiveAnswer(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection of a client that sends unexpected descriptors: got %v, want the end of the connection", err)
		}
	}
	testutil.Eventually(t, "all but a few threads to go on", func() bool { return countThreads(t) <= before+10 })
	b := newAttacker(t, loc, "rxe0")
	if a := b.sendRequest(devfile.Request{Op: devfile.OpForget}); a.Err() != nil {
		t.Error(a.Err())
	}
}

// TestMemoryRequestAcceptsOnlyProcFiles checks that OpMemory accepts only a client's /proc/self/mem and maps, and that
// a repeated OpMemory is not charged again.
func TestMemoryRequestAcceptsOnlyProcFiles(t *testing.T) {
	srv, loc := servicetest.Device(t, "127.91.13.1")
	files := map[string]int{}
	for _, name := range []string{"/proc/self/mem", "/proc/self/maps", "/proc/self/smaps", "/proc/self/environ",
		"/dev/zero"} {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		files[filepath.Base(name)] = fd
	}
	for _, test := range []struct {
		names string
		ok    bool
	}{
		{"mem maps", true}, {"", false}, {"mem", false}, {"maps mem", false}, {"mem mem", false}, {"mem smaps", false},
		{"environ maps", false},
		{"zero maps", false}, {"mem zero", false}, {"mem maps maps", false},
	} {
		a := newAttacker(t, loc, "rxe0")
		var fds []int
		for _, name := range strings.Fields(test.names) {
			fds = append(fds, files[name])
		}
		must(t, a.c.SendRequest(devfile.Request{Op: devfile.OpMemory}, fds...))
		a.c.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, _, err := a.c.ReceiveAnswer()
		if ok := err == nil && answer.Err() == nil; ok != test.ok {
			t.Errorf("OpMemory with %q: got %v and error %v, want the opposite", test.names, answer, err)
		}
		if test.ok {
			before := listHeldCharges(srv)
			for range 50 {
				if x := a.sendRequest(devfile.Request{Op: devfile.OpMemory}, fds...); x.Err() != nil {
					t.Error(x.Err())
				}
			}
			if now := listHeldCharges(srv); now != before {
				t.Errorf("charges after another OpMemory: got %s, want %s", now, before)
			}
		}
		a.close()
	}
}

// listHeldCharges lists the charges of users, without the connections that the tests themselves open. listHeldCharges
// waits until charges for descriptors in flight are gone.
func listHeldCharges(s *service.Service) (list string) {
	testutil.PollUntil(func() bool {
		var b strings.Builder
		flying := false
		for _, u := range s.Users(func(id quota.ID) bool { return id != quota.AllUsers }) {
			for _, h := range u.Holds {
				if h.Held > 0 && h.Kind != quota.Connections.String() {
					fmt.Fprintf(&b, "%s %d, ", h.Kind, h.Held)
					flying = flying || h.Kind == quota.InFlight.String()
				}
			}
		}
		list = b.String()
		return !flying
	})
	return list
}

// TestDisconnectedClientLeavesNothing checks that clients that disconnect at any point leave no resources behind. The
// service must disconnect clients that never read their replies, without an effect on other clients.
func TestDisconnectedClientLeavesNothing(t *testing.T) {
	b := startAttackTarget(t)
	s, err := verbsservice.At(b.loc.Socket)
	must(t, err)
	before, files := listHeldCharges(b.srv), countOpenFiles()
	raw := func() *net.UnixConn {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.loc.Socket, Net: "unix"})
		must(t, err)
		return c
	}
	request := func(name string) []byte {
		body := fmt.Appendf(nil, `{"protocol":%d,"op":"open","name":%q}`, ctl.ProtocolVersion, name)
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	clients := 300
	if testing.Short() {
		clients = 60
	}
	for i := range clients {
		switch name := []string{"rxe0", devfile.ConnectionManager, "rxe7"}[i%3]; i % 5 {
		case 0: // in the middle of the request to open
			c, msg := raw(), request(name)
			_, _ = c.Write(msg[:i*7%len(msg)])
			c.Close()
		case 1: // before the reply
			c := raw()
			_, _ = c.Write(request(name))
			c.Close()
		case 2: // in the middle of a request, after earlier requests with unread replies
			c := raw()
			_, _ = c.Write(request(name))
			_, _ = c.Write(make([]byte, 24*(i%9)+i%24))
			c.Close()
		case 3:
			a := newAttacker(t, b.loc, "rxe0")
			a.sendRequest(devfile.Request{Op: devfile.OpAlloc, Addr: commandBufferAddr, N: windowSize})
			_, _ = a.c.Write(make([]byte, 24*(i%9)+i%24))
			a.close()
		case 4: // a complete program with all its objects
			d, err := s.Open("")
			must(t, err)
			w := connectPair(t, d, nil)
			w.sendMessage()
			must(t, d.Close())
		}
	}
	var left string
	defer func() {
		if t.Failed() {
			t.Logf("left: %s", left)
		}
	}()
	testutil.Eventually(t, "the charges to be released", func() bool {
		left = fmt.Sprintf("%s; %d files, before %d", listHeldCharges(b.srv), countOpenFiles(), files)
		return listHeldCharges(b.srv) == before && countOpenFiles() <= files
	})
	if n := b.panics.n.Load(); n > 0 {
		t.Errorf("panics of the service: got %d, want 0", n)
	}
}

// countOpenFiles counts the descriptors of this process, without the reserve descriptors of a service.
func countOpenFiles() (n int) {
	list, _ := filepath.Glob("/proc/self/fd/*")
	for _, path := range list {
		if what, err := os.Readlink(path); err == nil && what != os.DevNull {
			n++
		}
	}
	return n
}

// TestStopWhileClientsAreActive stops the service, and resets and removes the device, while clients open, use and close
// devices.
func TestStopWhileClientsAreActive(t *testing.T) {
	for round := range testutil.FewerIfShort(6, 2) {
		b := startAttackTarget(t)
		s, err := verbsservice.At(b.loc.Socket)
		must(t, err)
		var clients sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					d, err := s.Open("")
					if err != nil {
						continue
					}
					if pd, err := d.AllocPD(); err == nil {
						if mr, err := pd.Alloc(4096, verbs.LocalWrite); err == nil {
							_ = mr.Close()
						}
						cq, err := d.CreateCQ(16, nil)
						if err == nil {
							qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendWRs: 4, RecvWRs: 4})
							if err == nil {
								if p, err := qp.Local(); err == nil {
									_ = qp.Connect(p)
								}
								_ = qp.PostSend(&verbs.SendWR{Opcode: verbs.Send})
							}
						}
					}
					d.Close()
				}
			})
		}
		for i := range 8 {
			time.Sleep(time.Duration(round+1) * time.Millisecond)
			switch i % 3 {
			case 0:
				_ = b.srv.DevReset(ctl.DevReset{Name: "rxe0"})
			case 1:
				_ = b.srv.DevUnplug("rxe0")
			case 2:
				_ = b.srv.DevPlug("rxe0")
			}
		}
		b.srv.Stop()
		must(t, b.srv.Close())
		close(stop)
		clients.Wait()
		testutil.Eventually(t, "the charges to be released", func() bool { return listHeldCharges(b.srv) == "" })
		if n := b.panics.n.Load(); n > 0 {
			t.Errorf("panics of the service: got %d, want 0", n)
		}
	}
}
