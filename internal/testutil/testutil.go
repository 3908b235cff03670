// Package testutil has what the tests of several packages share.
package testutil

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Patience bounds a wait in a test. It is no measurement: it tells a wait from a hang, on a busy machine too.
const Patience = 20 * time.Second

// Eventually waits until f returns true, which another goroutine or process brings about. After Patience it fails the test,
// and names what it has waited for.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still waiting for: %s", Patience, what)
		}
	}
}

// UnixPair returns two connected Unix sockets, which are closed after twice Patience, so that a test that waits for one of them ends.
func UnixPair(t testing.TB) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		timer := time.AfterFunc(2*Patience, func() { c.Close() })
		t.Cleanup(func() { timer.Stop(); c.Close() })
	}
	return ends
}

// NeedRoot skips the test unless root runs it. why completes the sentence "needs root".
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root " + why)
	}
}

// OnThread calls f on an OS thread of its own, which ends with f. It is not the main thread, whose user and namespaces
// /proc shows for the process.
func OnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the main thread does not end
			defer runtime.UnlockOSThread()
			OnThread(f)
			return
		}
		f()
	}()
	<-done
}

// AsUser calls f on an OS thread of its own with a user id, as OnThread does. It needs root. A thread that f starts is
// of the process's user.
func AsUser(t testing.TB, uid int, f func()) {
	t.Helper()
	OnThread(func() {
		u := uintptr(uid)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, u, u, u); e != 0 {
			t.Errorf("setresuid %d: %v", uid, e)
			return
		}
		f()
	})
}

// Searchable makes a directory and those above it searchable for all users, as those of t.TempDir are not.
func Searchable(t testing.TB, dir string) {
	t.Helper()
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if fi, err := os.Stat(d); err == nil && fi.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(d, fi.Mode().Perm()|0o111); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Buffer collects what a program or a logger writes; it may be read meanwhile. The zero Buffer is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
