package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"verbena/internal/testutil"
	"verbena/umem"
)

// TestNoAllocationPerCall tests that neither a doorbell nor an ordinary path allocates memory.
func TestNoAllocationPerCall(t *testing.T) {
	file := &fakeFile{}
	file.region.Mem = make([]byte, 16)
	tr := &tree{}
	tr.places.Store(&baseDirectories{})
	s := &Session{sup: &Supervisor{}, tree: &userTree{tree: tr}}
	w := newWorker(s)
	w.token.held = true
	tid := uint32(os.Getpid())
	s.cache[cacheSlot(tid, 1000)].Store(&cachedFile{tid: tid, fd: 1000,
		file: &openFile{session: s, file: file, access: unix.O_RDWR}, until: time.Since(clockBase) + time.Hour})
	numbers := architectures[runtime.GOARCH].numbers
	path := []byte("/etc/hostname\x00")
	for _, tt := range []struct {
		name string
		n    notification
		want resultKind
	}{
		{"doorbell", notification{nr: int32(numbers[callWrite].nr), args: [6]uint64{1000, 0, 32}}, fateAnswered},
		{"path", notification{nr: int32(numbers[callOpenat].nr),
			args: [6]uint64{0, uint64(uintptr(unsafe.Pointer(&path[0])))}}, fateContinued},
	} {
		w.caller.n = tt.n
		w.caller.n.arch = nativeArchitecture.audit
		w.caller.n.tid = tid
		if n := testing.AllocsPerRun(100, func() {
			s.tokens.recordCaller(tid)
			if v := w.handleCall(); v.fate != tt.want || v.err != nil {
				t.Fatalf("handle %s: got %+v, want fate %v", tt.name, v, tt.want)
			}
		}); n != 0 {
			t.Errorf("allocations of %s: got %v, want 0", tt.name, n)
		}
	}
	runtime.KeepAlive(path)
	if file.rung.Load() == 0 {
		t.Error("doorbells: got none, want some")
	}
}

func TestErrnoOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{syscall.EBUSY, syscall.EBUSY},
		{errors.Join(errors.New("x"), syscall.EINVAL), syscall.EINVAL},
		{umem.ErrFault, syscall.EFAULT},
		{os.ErrNotExist, syscall.EIO},
		{&os.PathError{Op: "open", Path: "x", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{errors.New("x"), syscall.EIO},
	} {
		if got := errnoOf(tt.err); got != tt.want {
			t.Errorf("errno of %v: got %v, want %v", tt.err, got, tt.want)
		}
	}
}

// filteredThread returns a thread with a filter that traps no call, and the filter's listener.
func filteredThread(t *testing.T) (*thread, *os.File) {
	t.Helper()
	th := newThread()
	var fd int
	var err error
	th.do(func() {
		fd, err = installFilter([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
	})
	if err != nil {
		th.end()
		t.Fatal(err)
	}
	return th, os.NewFile(uintptr(fd), "listener")
}

func TestAttachRefuses(t *testing.T) {
	w := newFixture(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := w.sup.Attach(null, SessionInfo{LauncherPID: os.Getpid()}); err == nil ||
		!strings.Contains(err.Error(), "not a seccomp listener") {
		t.Errorf("Attach of a file other than a listener: got %v, want an error", err)
	}
	if os.Geteuid() != 0 {
		if _, err := w.sup.Attach(null, SessionInfo{LauncherPID: 1}); !errors.Is(err, umem.ErrAccess) {
			t.Errorf("Attach of a process of another user: got %v, want %v", err, umem.ErrAccess)
		}
	}
	if _, err := null.Stat(); err != nil {
		t.Errorf("caller's file after a failed Attach: got %v, want an open file", err)
	}
}

func TestQueueFilesBelongToTheUser(t *testing.T) {
	testutil.SkipUnlessRoot(t, "to run a service for another user")
	w := newFixture(t)
	c := exec.Command("/bin/sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	th, listener := filteredThread(t)
	s, err := w.sup.Attach(listener, SessionInfo{LauncherPID: c.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	id, err := readIdentity(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	f, description, err := newOpenFile(s, &deviceNode{device: "uverbs0"}, &opener{process: &process{}, id: id},
		unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(description.Fd()), &st); err != nil || st.Uid != 65534 || st.Mode&0o777 != 0o600 {
		t.Errorf("owner and mode of the file: got %d, %#o and error %v, want 65534 and 0600", st.Uid, st.Mode&0o777, err)
	}
	description.Close() // closes the last descriptor
	w.waitForClose("the last close", f.ended)
	th.end()
	w.waitForClose("the end of the session", s.Done())
}
