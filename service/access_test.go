package service

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
)

// withIDs has user ids mean something else.
func withIDs(t *testing.T, m idMap) {
	old := ids
	ids = func() idMap { return m }
	t.Cleanup(func() { ids = old })
}

// A program is given to a service of root's, one's own, or that of a user who is named; the location alone is no name.
func TestTrusts(t *testing.T) {
	self, other := os.Geteuid(), 4242
	for _, c := range []struct {
		name string
		uid  int
		loc  Location
		want error
	}{
		{"root", 0, Location{}, nil},
		{"own", self, Location{}, nil},
		{"another", other, Location{}, syscall.EPERM},
		{"named", other, Location{ServiceUser: &other}, nil},
		{"another than the one named", other + 1, Location{ServiceUser: &other}, syscall.EPERM},
	} {
		if err := c.loc.trusts(c.uid); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

// notOnMain calls f on a thread that ends with it, and is not the first of the process.
func notOnMain(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		notOnMain(f)
	}()
	<-done
}

// Dial asks the kernel whose the service is, before it sends anything.
func TestDialForeignService(t *testing.T) {
	testutil.NeedRoot(t, "to become another user")
	dir, err := os.MkdirTemp("", "verbena-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sock")
	t.Setenv("VERBENA_SOCKET", path)
	const uid = 65533
	got := make(chan int, 1)
	listening := make(chan *net.UnixListener)
	go notOnMain(func() { // whose user is the one that /proc shows
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0)); e != 0 {
			t.Error(e)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Error(err)
		}
		listening <- l
	})
	l := <-listening
	if l == nil {
		t.FailNow()
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := c.Read(make([]byte, 1))
			got <- n
			c.Close()
		}
	}()
	loc, err := DefaultLocation()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(loc)
	if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "--service-user") {
		t.Errorf("got %v, want EPERM", err)
	}
	if err == nil {
		c.Close()
	}
	if n := <-got; n != 0 {
		t.Error("something was sent")
	}
	named := uid
	loc.ServiceUser = &named
	if c, err = Dial(loc); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-got
}

// Where not all ids are mapped, the one that stands for the others is nobody's own.
func TestOverflowUserIsNeverOwn(t *testing.T) {
	self := os.Geteuid()
	withIDs(t, idMap{overflow: self})
	if own(self) {
		t.Error("the overflow id is this process's own")
	}
	if self != 0 {
		if p := (peer{uid: self}); p.manages() || p.sees(self) {
			t.Error("a peer with the overflow id manages the service, or sees what others have")
		}
		if err := (Location{}).trusts(self); !errors.Is(err, syscall.EPERM) {
			t.Errorf("its service: got %v, want EPERM", err)
		}
	}
	if p := (peer{uid: 65534}); p.sees(65533) {
		t.Error("a peer sees what another has")
	}
	withIDs(t, idMap{overflow: 65534})
	if p := (peer{uid: 65534}); p.sees(65534) || p.manages() {
		t.Error("a peer with the overflow id sees what others with that id have")
	}
	withIDs(t, idMap{overflow: self, all: true})
	if !own(self) {
		t.Error("where all ids are mapped, none stands for others")
	}
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true, "0 1000 1\n": false, "0 100000 65536\n": false, "": false,
		"0 1000 1\n1 100000 65536\n": false, "0 0 65536\n": false,
	} {
		if got := mapsAll(text); got != want {
			t.Errorf("uid_map %q: got %v, want %v", text, got, want)
		}
	}
}

// connected are the two ends of a connection, which is closed if the test waits for something in vain.
func connected(t *testing.T) [2]*net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "control")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		timer := time.AfterFunc(2*patience, func() { c.Close() })
		t.Cleanup(func() { timer.Stop(); c.Close() })
	}
	return ends
}

// The process of a peer is the one that the kernel names; one that it does not name, or that has ended, is none.
func TestPeerProcess(t *testing.T) {
	ends := connected(t)
	who, err := peerOf(ends[0])
	if err != nil || who != (peer{pid: os.Getpid(), uid: os.Geteuid()}) {
		t.Fatalf("got %+v, %v", who, err)
	}
	f, err := who.process(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor would be inherited")
	}
	f.Close()
	if f, err := (peer{uid: who.uid}).process(ends[0]); !errors.Is(err, syscall.EPERM) ||
		!strings.Contains(err.Error(), "pid namespace") {
		t.Errorf("a process that is not seen: got %v, %v, want EPERM", f, err)
	}
	// As before Linux 6.5.
	fd, err := who.openProcess()
	if err != nil {
		t.Fatal(err)
	}
	if exited(fd) {
		t.Error("this process has ended")
	}
	unix.Close(fd)
	child, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	fd, err = unix.PidfdOpen(child.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	child.Wait()
	if !exited(fd) {
		t.Error("a process that has ended is taken for alive")
	}
	fd, err = (peer{pid: os.Getpid(), uid: 65533}).openProcess()
	if os.Geteuid() != 0 && !errors.Is(err, syscall.EPERM) {
		t.Errorf("another user's: got %v, want EPERM", err)
	}
	if err == nil {
		unix.Close(fd)
	}
}

// A client that has ended is not taken for the process that has its number now.
func TestPeerProcessEnded(t *testing.T) {
	const env = "SERVICE_TEST_CONNECT"
	if path := os.Getenv(env); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		return
	}
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	child := exec.Command(os.Args[0], "-test.run=^TestPeerProcessEnded$")
	child.Env = append(os.Environ(), env+"="+path)
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	who, err := peerOf(c)
	if err != nil || who.pid != child.Process.Pid {
		t.Fatalf("got %+v, %v", who, err)
	}
	if f, err := who.process(c); err == nil {
		t.Errorf("got %v, want an error", f)
	}
}
