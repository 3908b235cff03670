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

// userPeer returns a peer of a user without the right to manage the service. managerPeer returns a peer with that
// right.
func userPeer(uid int) peer {
	return peer{uid: uid, Principal: principal.Principal{Account: quota.ID{UID: uid}}}
}

func managerPeer() peer { return peer{Principal: principal.Principal{Manager: true}} }

// newAuthority returns an authority without configured managers.
func newAuthority(t *testing.T) *principal.Authority {
	t.Helper()
	a, err := principal.New(nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPeerProcessIsFromKernel tests that the process of a peer is the one reported by the kernel, and that an invisible
// or ended process is refused.
func TestPeerProcessIsFromKernel(t *testing.T) {
	authority := newAuthority(t)
	ends := testutil.NewUnixPair(t)
	who, err := peerOf(ends[0], authority)
	if err != nil || who.pid != os.Getpid() || who.uid != os.Geteuid() || !who.Manager ||
		who.Account != (quota.ID{UID: os.Getuid()}) {
		t.Fatalf("peerOf: got %+v, %v", who, err)
	}
	f, err := who.openPidfd(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("pidfd of the peer: got a descriptor without FD_CLOEXEC")
	}
	f.Close()
	if f, err := userPeer(who.uid).openPidfd(ends[0]); !errors.Is(err, syscall.EPERM) ||
		!strings.Contains(err.Error(), "pid namespace") {
		t.Errorf("pidfd of an invisible process: got %v, %v, want EPERM", f, err)
	}
	// Linux before 6.5 has no SO_PEERPIDFD.
	fd, err := who.openPidfdByPID()
	if err != nil {
		t.Fatal(err)
	}
	if hasExited(fd) {
		t.Error("exited of this process: got true, want false")
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
	if !hasExited(fd) {
		t.Error("exited of an ended process: got false, want true")
	}
	fd, err = (peer{pid: os.Getpid(), uid: 65533}).openPidfdByPID()
	if os.Geteuid() != 0 && !errors.Is(err, syscall.EPERM) {
		t.Errorf("pidfd of another user's process: got %v, want EPERM", err)
	}
	if err == nil {
		unix.Close(fd)
	}
}

// TestPeerProcessEnded tests that an ended client is not confused with the process that now has its process ID.
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
	who, err := peerOf(c, newAuthority(t))
	if !errors.Is(err, syscall.EPERM) || who.pid != child.Process.Pid {
		t.Fatalf("peerOf of an ended client: got %+v, %v, want EPERM", who, err)
	}
	if f, err := who.openPidfd(c); err == nil {
		t.Errorf("pidfd of an ended client: got %v, want an error", f)
	}
}

// TestProcDirOfEndedPeerIsRefused tests that directory does not open /proc/PID of a peer that has ended.
func TestProcDirOfEndedPeerIsRefused(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	p := peer{pid: os.Getpid()} // stands for a number that was reused by another process
	fd, err := unix.PidfdOpen(child.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	process := os.NewFile(uintptr(fd), "pidfd")
	defer process.Close()
	dir, err := p.openProcDir(process)
	if err != nil {
		t.Errorf("directory while the peer runs: got %v, want success", err)
	} else {
		unix.Close(dir)
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if dir, err := p.openProcDir(process); !errors.Is(err, syscall.EPERM) || dir != -1 {
		t.Errorf("directory after the end of the peer: got %d, %v, want EPERM", dir, err)
	}
}
