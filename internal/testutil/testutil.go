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
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// Patience bounds a wait in a test. It is no measurement: it tells a wait from a hang, on a busy machine too.
const Patience = time.Minute

// Poll calls f until it returns true, which another goroutine or process brings about: every few microseconds at first,
// every millisecond in the end. It reports false after Patience.
func Poll(f func() bool) bool {
	for began := time.Now(); !f(); {
		waited := time.Since(began)
		if waited > Patience {
			return false
		}
		time.Sleep(min(max(waited/16, 10*time.Microsecond), time.Millisecond))
	}
	return true
}

// Eventually waits until f returns true, as Poll does. After Patience it fails the test, and names what it has waited
// for.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !Poll(f) {
		t.Fatalf("after %v still waiting for: %s", Patience, what)
	}
}

// Stays calls f every millisecond for d, and fails the test as soon as it returns false. It is for what another
// goroutine or process must not do: no event says that it has not, and where sockets and processes are waited for, time
// is real. In a bubble use Advance.
func Stays(t testing.TB, d time.Duration, what string, f func() bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		passed := time.Since(began)
		if !f() {
			t.Fatalf("after %v no longer so: %s", passed, what)
		}
		if passed >= d {
			return
		}
	}
}

// Block calls each function on a goroutine of its own, and returns once each is blocked, or has returned. A goroutine
// is taken for blocked when it waits, or is in a system call, at the same place of the program for 10 ms.
func Block(t testing.TB, functions ...func()) {
	t.Helper()
	headers := make(chan []byte, len(functions))
	for _, f := range functions {
		go func() {
			b := make([]byte, 64)
			header, _, _ := bytes.Cut(b[:runtime.Stack(b, false)], []byte("["))
			headers <- header // "goroutine 7 "
			f()
		}()
	}
	for range functions {
		header, last, since := <-headers, []byte(nil), time.Time{}
		Eventually(t, "a goroutine to be blocked", func() bool {
			now := stack(header)
			if now == nil {
				return true
			}
			if !bytes.Equal(now, last) || bytes.HasPrefix(now[len(header):], []byte("[run")) { // running, or runnable
				last, since = now, time.Now()
			}
			return time.Since(since) >= 10*time.Millisecond
		})
	}
}

// stack returns the stack trace of the goroutine that header names, nil if it has ended.
func stack(header []byte) []byte {
	all := make([]byte, 1<<16)
	n := runtime.Stack(all, true)
	for n == len(all) { // there may be more
		all = make([]byte, 2*n)
		n = runtime.Stack(all, true)
	}
	for s := range bytes.SplitSeq(all[:n], []byte("\n\n")) {
		if bytes.HasPrefix(s, header) {
			return s
		}
	}
	return nil
}

// Advance advances the virtual time of a bubble of testing/synctest by d, and waits until all that is due by then has
// been done. It panics outside a bubble: there the wait would be real.
func Advance(d time.Duration) {
	synctest.Wait() // panics before the wait
	time.Sleep(d)
	synctest.Wait()
}

// UnixPair returns two connected Unix sockets, which are closed after twice Patience, so that a test that waits for one
// of them ends.
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
