package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/internal/shm"
	"verbena/internal/testutil"
)

// startHolder starts a process that keeps a file open.
func startHolder(t *testing.T, f *os.File, script string, attr *syscall.SysProcAttr) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", script+"echo ready && read end")
	cmd.SysProcAttr, cmd.Stderr, cmd.ExtraFiles = attr, os.Stderr, []*os.File{f}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // the process's read has failed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%s: got %q, %v, want ready", script, line, err)
	}
	return cmd.Process.Pid
}

// createQueueFile creates a queue file of a session, and returns an open file description as a program would have it.
func createQueueFile(t *testing.T, name string, uid int) *os.File {
	t.Helper()
	f, err := shm.Create(name, quota.RingBytes, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if uid != os.Getuid() {
		if err := f.Chown(uid); err != nil {
			t.Fatal(err)
		}
	}
	p, err := f.OpenForProgram(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestEndHoldersEndsOnlyHolders tests that a process is ended if it holds a queue file of the session, and not because
// of another file.
func TestEndHoldersEndsOnlyHolders(t *testing.T) {
	session := fmt.Sprintf("/dev/shm/verbena-%d-%d/run/1-2", os.Getuid(), os.Getpid())
	files := queueFilePattern{session: session}
	first := createQueueFile(t, session+"/uverbs0.1.queues", os.Getuid())
	held, again := startHolder(t, first, "", nil), startHolder(t, first, "", nil)
	other := startHolder(t, createQueueFile(t, session+"0/uverbs0.1.queues", os.Getuid()), "", nil)
	want := []int{held, again}
	slices.Sort(want)
	got := files.holderPIDs()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("holders: got %v, want %v; process %d has a file of another session open", got, want, other)
	}
	opened := files.open()
	for _, f := range opened {
		f.Close()
	}
	if len(opened) != 1 {
		t.Errorf("open: got %d files, want the 1 file that both processes have open", len(opened))
	}
}

// TestEndHoldersSparesOtherUsers tests that two kinds of processes are not ended: those of another user, which a
// program may have passed its queue file to, and those with the IDs of two users.
func TestEndHoldersSparesOtherUsers(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to be several users")
	session := fmt.Sprintf("/dev/shm/verbena-0-%d/run/3-4", os.Getpid())
	files := queueFilePattern{session: session}
	const uid, stranger = 65533, 65532
	f := createQueueFile(t, session+"/uverbs0.1.queues", uid)
	as := func(uid uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	own := startHolder(t, f, "", as(uid))
	daemon := startHolder(t, f, "", nil)
	startHolder(t, f, "", as(stranger))
	if got, want := files.holderPIDs(), []int{own}; !slices.Equal(got, want) {
		t.Errorf("holders: got %v, want %v; process %d belongs to root", got, want, daemon)
	}
	for _, tt := range []struct {
		pid, uid int
		want     bool
	}{{own, uid, true}, {own, stranger, false}, {daemon, uid, false}, {daemon, 0, true}, {1 << 30, 0, false}} {
		if got := allIDsAre(tt.pid, tt.uid); got != tt.want {
			t.Errorf("allIDsAre process %d and user %d: got %v, want the opposite", tt.pid, tt.uid, got)
		}
	}
}
