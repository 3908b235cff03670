package reopen

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func statusFlagsOf(t *testing.T, fd int) int {
	t.Helper()
	f, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f & (unix.O_ACCMODE | unix.O_NONBLOCK | unix.O_APPEND)
}

// TestReopenedFileHasRequestedFlags tests that the new description has exactly the requested access mode and flags.
func TestReopenedFileHasRequestedFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, how := range []int{unix.O_RDONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_APPEND, unix.O_RDONLY | unix.O_NONBLOCK} {
		got, err := File(fd, how)
		if err != nil {
			t.Fatalf("File with flags %#x: got %v, want success", how, err)
		}
		if f := statusFlagsOf(t, got); f != how {
			t.Errorf("flags of the description: got %#x, want %#x", f, how)
		}
		if f, err := unix.FcntlInt(uintptr(got), unix.F_GETFD, 0); err != nil || f&unix.FD_CLOEXEC == 0 {
			t.Errorf("flags of the descriptor: got %#x and error %v, want FD_CLOEXEC", f, err)
		}
		unix.Close(got)
	}
	for _, how := range []int{unix.O_TRUNC | unix.O_RDWR, unix.O_CREAT, unix.O_TMPFILE | unix.O_RDWR, unix.O_PATH} {
		if got, err := File(fd, how); !errors.Is(err, unix.EINVAL) {
			t.Errorf("File with flags %#x: got %d and error %v, want %v", how, got, err, unix.EINVAL)
		}
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "content" {
		t.Errorf("content: got %q and error %v, want no change", b, err)
	}
}

// TestOpenLinkTargetFollowsKernelLink tests that OpenLinkTarget follows a link of the kernel.
func TestOpenLinkTargetFollowsKernelLink(t *testing.T) {
	fd, err := OpenLinkTarget(unix.AT_FDCWD, "/proc/self/ns/user", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &a), unix.Stat("/proc/self/ns/user", &b)); err != nil || a.Ino != b.Ino {
		t.Errorf("inode: got %d and error %v, want %d", a.Ino, err, b.Ino)
	}
	if _, err := OpenLinkTarget(unix.AT_FDCWD, filepath.Join(t.TempDir(), "none"), unix.O_RDWR); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("Link of a missing file: got %v, want %v", err, os.ErrNotExist)
	}
}

// TestFileDoesNotBlock tests that File does not wait for the other end of a FIFO.
func TestFileDoesNotBlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got, err := File(fd, unix.O_WRONLY); !errors.Is(err, unix.ENXIO) {
		t.Errorf("File of a FIFO: got %d and error %v, want %v", got, err, unix.ENXIO)
	}
}

// TestOpenerReplacesOpen tests that SetOpener replaces the open itself, but not the checks.
func TestOpenerReplacesOpen(t *testing.T) {
	defer openFunc.Store(nil)
	var asked []int
	SetOpener(func(fd, how int) (int, error) {
		asked = append(asked, fd, how)
		return -1, unix.EACCES
	})
	if _, err := File(5, unix.O_RDWR); err != unix.EACCES {
		t.Errorf("File: got %v, want %v", err, unix.EACCES)
	}
	if _, err := File(5, unix.O_CREAT); !errors.Is(err, unix.EINVAL) {
		t.Errorf("File with O_CREAT: got %v, want %v", err, unix.EINVAL)
	}
	if len(asked) != 2 || asked[0] != 5 || asked[1] != unix.O_RDWR|unix.O_NONBLOCK {
		t.Errorf("calls of the replacement: got %v, want one", asked)
	}
}
