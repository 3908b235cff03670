package service

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
)

// withIDs replaces the meaning of user ids.
func withIDs(t *testing.T, m ctl.IDMap) {
	old := ids
	ids = func() ctl.IDMap { return m }
	t.Cleanup(func() { ids = old })
}

// Where not all ids are mapped, a peer with the one that stands for the others has no rights of its own.
func TestOverflowUser(t *testing.T) {
	self := os.Geteuid()
	withIDs(t, ctl.IDMap{Overflow: self})
	if self != 0 {
		if p := (peer{uid: self}); p.manages() || p.sees(self) {
			t.Error("a peer with the overflow id manages the service, or sees what others have")
		}
	}
	if p := (peer{uid: 65534}); p.sees(65533) {
		t.Error("a peer sees what another has")
	}
	withIDs(t, ctl.IDMap{Overflow: 65534})
	if p := (peer{uid: 65534}); p.sees(65534) || p.manages() {
		t.Error("a peer with the overflow id sees what others with that id have")
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
