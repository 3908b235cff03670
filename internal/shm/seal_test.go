package shm

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

// TestCreatedFileIsSealed tests that a program cannot truncate a file that it shares with the service, and cannot
// change the seals. A truncated file would make an access of the service fault.
func TestCreatedFileIsSealed(t *testing.T) {
	f, err := Create("test", quota.BufferBytes, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := f.Alloc(3 * os.Getpagesize())
	if err != nil {
		t.Fatal(err)
	}
	p := openForProgram(t, f)
	for _, size := range []int64{0, int64(os.Getpagesize())} {
		if err := p.Truncate(size); !errors.Is(err, syscall.EPERM) {
			t.Fatalf("truncate to %d: got %v, want EPERM", size, err)
		}
	}
	if _, err := unix.FcntlInt(p.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); !errors.Is(err, syscall.EPERM) {
		t.Errorf("add a seal: got %v, want EPERM", err)
	}
	r.Mem[len(r.Mem)-1] = 1
}

// TestClosedFileRefusesUse tests that a closed file refuses every use, and that Alloc refuses an impossible size.
func TestClosedFileRefusesUse(t *testing.T) {
	f := newTestFile(t)
	for _, size := range []int{0, -1, 1 << 60, 1<<62 - 1} {
		if s, err := f.Alloc(size); err == nil || !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("Alloc(%d): got %d bytes and error %v, want a refusal", size, len(s.Mem), err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Alloc(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Alloc: got %v, want ErrClosed", err)
	}
	if err := f.Chown(os.Getuid()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Chown: got %v, want ErrClosed", err)
	}
	if err := f.WithFD(func(int) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("WithFD: got %v, want ErrClosed", err)
	}
	if _, err := f.OpenForProgram(unix.O_RDWR); !errors.Is(err, os.ErrClosed) {
		t.Errorf("OpenForProgram: got %v, want ErrClosed", err)
	}
}
