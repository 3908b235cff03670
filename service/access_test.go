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

	"golang.org/x/sys/unix"

	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/internal/testutil"
)

// userPeer is a peer of a user who may not manage the service, and manager one who may.
func userPeer(uid int) peer {
	return peer{uid: uid, Principal: principal.Principal{Account: quota.ID{UID: uid}}}
}

func manager() peer { return peer{Principal: principal.Principal{Manager: true}} }

// lookingService is a service that knows who connects.
func lookingService(t *testing.T) *Service {
	t.Helper()
	a, err := principal.New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	return &Service{authority: a}
}

// The process of a peer is the one that the kernel names; one that it does not name, or that has ended, is none.
func TestPeerProcess(t *testing.T) {
	s := lookingService(t)
	ends := testutil.UnixPair(t)
	who, err := s.peerOf(ends[0])
	if err != nil || who.pid != os.Getpid() || who.uid != os.Geteuid() || !who.Manager ||
		who.Account != (quota.ID{UID: os.Getuid()}) {
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
	if f, err := userPeer(who.uid).process(ends[0]); !errors.Is(err, syscall.EPERM) ||
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
	who, err := lookingService(t).peerOf(c)
	if !errors.Is(err, syscall.EPERM) || who.pid != child.Process.Pid {
		t.Fatalf("got %+v, %v, want EPERM", who, err)
	}
	if f, err := who.process(c); err == nil {
		t.Errorf("got %v, want an error", f)
	}
}

// TestPeerDirectory tests that the directory of a process is not opened by the number of a peer that has ended.
func TestPeerDirectory(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	p := peer{pid: os.Getpid()} // the number is another process's by now
	fd, err := unix.PidfdOpen(child.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	process := os.NewFile(uintptr(fd), "pidfd")
	defer process.Close()
	dir, err := p.directory(process)
	if err != nil {
		t.Errorf("while the peer runs: %v", err)
	} else {
		unix.Close(dir)
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if dir, err := p.directory(process); !errors.Is(err, syscall.EPERM) || dir != -1 {
		t.Errorf("after its end: got %d, %v, want EPERM", dir, err)
	}
}
