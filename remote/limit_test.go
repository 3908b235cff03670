package remote

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
	"verbena/umem"
)

// TestMemlockLimitIgnoresSetUID checks that a client that executes a set-uid program does not extend that program's
// capabilities to the users of a shared connection.
func TestMemlockLimitIgnoresSetUID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a set-uid program")
	}
	const client = 65534
	dir, err := os.MkdirTemp("/var/tmp", "verbena-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "sleep")
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, setUID := range []bool{false, true} {
		if setUID {
			if err := os.Chmod(program, os.ModeSetuid|0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-c", "ulimit -l 8; exec "+program+" 60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: client, Gid: client}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, "the program to be executed", func() bool {
			exe, _ := os.Readlink("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/exe")
			return exe == program
		})
		pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := Client{PID: cmd.Process.Pid, UID: client, Process: os.NewFile(uintptr(pidfd), "pidfd")}
		if setUID {
			if l, err := umem.LockLimit(cmd.Process.Pid); err != nil || l != umem.Unlimited {
				t.Log("this machine does not run the program set-uid")
			}
		}
		if l, err := c.memlockLimit(); err != nil || l != 8<<10 {
			t.Errorf("set-uid %v: memlockLimit: got %d and error %v, want %d", setUID, l, err, 8<<10)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if _, err := c.memlockLimit(); err == nil {
			t.Error("memlockLimit of an ended process: got a limit, want an error")
		}
		c.Process.Close()
	}
}

// TestFilesOfProcessShareAccount checks that all files of a process share one limit, and that a later process with the
// same ID has a separate limit.
func TestFilesOfProcessShareAccount(t *testing.T) {
	s := New(Config{})
	open := func(pid int) Client {
		t.Helper()
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(pidfd), "pidfd")
		t.Cleanup(func() { f.Close() })
		return Client{PID: pid, UID: os.Getuid(), Process: f}
	}
	take := func(c Client) *processAccount {
		t.Helper()
		a, err := s.acquireAccount(c)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := open(cmd.Process.Pid)
	a, b := take(c), take(c)
	if a.Account != b.Account {
		t.Error("accounts of two files of a process: got two, want one")
	}
	if own := take(open(os.Getpid())); own.Account == a.Account {
		t.Error("accounts of two processes: got one, want two")
	} else {
		own.release()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	next := take(c)
	if next.Account == a.Account {
		t.Error("account of a process with a reused ID: got that of the ended process, want a new one")
	}
	for _, x := range []*processAccount{a, next, b} {
		x.release()
	}
	if len(s.accounts) != 0 {
		t.Errorf("remaining accounts: got %d, want 0", len(s.accounts))
	}
}
