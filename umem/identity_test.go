package umem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFakeProcMemIsRejected checks that a file with the path of /proc/PID/mem in another file system is rejected.
// Such a file could belong to a FUSE server, which need not respond.
func TestFakeProcMemIsRejected(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends together with the goroutine and its mounts
		if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Errorf("make a mount namespace: %v", err)
			return
		}
		for name, is := range map[string]func(fd int) error{"mem": CheckProcMem, "maps": CheckProcMaps} {
			path := fmt.Sprintf("/proc/%d/%s", os.Getpid(), name)
			open := func() int {
				fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Errorf("open %s: %v", path, err)
				}
				return fd
			}
			real := open()
			defer unix.Close(real)
			if err := is(real); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if err := unix.Mount(plain, path, "", unix.MS_BIND, ""); err != nil {
				t.Errorf("mount over %s: %v", path, err)
				continue
			}
			fake := open()
			defer unix.Close(fake)
			if err := is(fake); !errors.Is(err, unix.EINVAL) {
				t.Errorf("check of another file at %s: got %v, want EINVAL", path, err)
			}
		}
	}()
	<-done
}

// TestOnlyProcMapsIsAccepted checks that /proc/PID/maps is the only file accepted as the mappings of a process.
func TestOnlyProcMapsIsAccepted(t *testing.T) {
	for path, want := range map[string]error{"/proc/self/maps": nil, "/proc/self/mem": unix.EINVAL,
		"/proc/version": unix.EINVAL, os.DevNull: unix.EINVAL} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckProcMaps(int(f.Fd())); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
		f.Close()
	}
}

// TestReadOfReusedPIDFails checks reads by number after another process has received the number, or after the process
// has executed another program. Only the pidfd, or only the address space, shows the change.
func TestReadOfReusedPIDFails(t *testing.T) {
	defer func(n uint64) { maxFileAccess = n }(maxFileAccess)
	maxFileAccess = 0
	for name, change := range map[string]func(p *Process, gone *childProcess){
		"the process has ended":      func(p *Process, gone *childProcess) { p.pidfdFD = gone.pidfdFD },
		"the address space has gone": func(p *Process, gone *childProcess) { p.files = gone.files },
	} {
		t.Run(name, func(t *testing.T) {
			gone, other := startChild(t, "plain"), startChild(t, "plain")
			gone.kill()
			cfg := processConfig(t, other.PID(), fmt.Sprintf("/proc/%d/mem", other.PID()))
			cfg.Bound = false
			p, err := NewProcess(cfg)
			if err != nil {
				t.Fatal(err)
			}
			files, fd := p.files, p.pidfdFD
			p.once.Do(func() {})
			change(p, gone)
			got := make([]byte, 8)
			if err := p.ReadV([][]byte{got}, other.base); !errors.Is(err, ErrFault) {
				t.Errorf("read %x: got %v, want ErrFault", got, err)
			}
			p.files, p.pidfdFD, p.once = files, fd, sync.Once{}
			p.Close()
		})
	}
}

// TestNoAccessAfterExit checks that no access is made by either method after the process has been treated as exited.
func TestNoAccessAfterExit(t *testing.T) {
	c := startChild(t, "plain")
	c.MarkDead()
	b := make([]byte, 8)
	for name, s := range map[string]Space{"process": c.Process, "exact": c.Exact()} {
		for what, err := range map[string]error{
			"read": s.ReadV([][]byte{b}, c.base), "write": s.WriteV([][]byte{b}, c.base), "check": s.Check(c.base, 8, false),
		} {
			if !errors.Is(err, ErrFault) {
				t.Errorf("%s of %s: got %v, want ErrFault", what, name, err)
			}
		}
	}
	c.files.Close()
	if err := c.files.Check(c.base, 8, false); !errors.Is(err, ErrFault) {
		t.Errorf("check of closed files: got %v, want ErrFault", err)
	}
}

// TestWrappingRangeFails checks that an access fails if its end wraps around or exceeds the addresses of a process.
func TestWrappingRangeFails(t *testing.T) {
	c := startChild(t, "plain")
	b := make([]byte, 2*PageSize)
	for _, addr := range []uint64{^uint64(0) - PageSize, 1<<63 - PageSize, 1 << 63} {
		if err := c.files.ReadV([][]byte{b}, addr); !errors.Is(err, ErrFault) {
			t.Errorf("read at %#x: got %v, want ErrFault", addr, err)
		}
	}
	if err := NewLocal().AddAt(^uint64(0)-PageSize+1, make([]byte, 2*PageSize)); err == nil {
		t.Error("AddAt across the end of the addresses: got nil, want an error")
	}
}

// TestRegistrationNeedsLockLimit checks that a process that may not lock memory cannot register memory.
func TestRegistrationNeedsLockLimit(t *testing.T) {
	a := NewAccount(func() uint64 { return 0 })
	if err := a.charge(0); !errors.Is(err, ErrNoLock) {
		t.Errorf("charge: got %v, want ErrNoLock", err)
	}
}

// TestDirectStaysInRegion checks that Direct does not return memory outside the region.
func TestDirectStaysInRegion(t *testing.T) {
	l := NewLocal()
	mem := make([]byte, 4*PageSize)
	const base = 1 << 40
	if err := l.AddAt(base, mem); err != nil {
		t.Fatal(err)
	}
	r, err := Get(l, nil, base+PageSize, PageSize, base+PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	if b := r.Direct(base+PageSize, PageSize); len(b) == 0 {
		t.Error("Direct of the region: got nothing, want memory")
	}
	for _, at := range []uint64{base, base + 2*PageSize, base + PageSize + 1} {
		if b := r.Direct(at, PageSize); len(b) != 0 {
			t.Errorf("Direct(%#x): got %d bytes, want none", at, len(b))
		}
	}
}
