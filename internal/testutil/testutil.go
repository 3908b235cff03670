// Package testutil provides helpers for the tests of several packages.
package testutil

import (
	"bytes"
	"math/rand/v2"
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

// Timeout limits a wait in a test. Timeout only distinguishes a wait from a hang, also on a busy machine.
const Timeout = time.Minute

// PollUntil calls f until f returns true, as the effect of another goroutine or process. PollUntil calls f every few
// microseconds at first, and every millisecond later. PollUntil returns false after testutil.Timeout.
func PollUntil(f func() bool) bool {
	for began := time.Now(); !f(); {
		waited := time.Since(began)
		if waited > Timeout {
			return false
		}
		time.Sleep(min(max(waited/16, 10*time.Microsecond), time.Millisecond))
	}
	return true
}

// Eventually waits until f returns true, like PollUntil. After testutil.Timeout, Eventually makes the test fail with
// the description of the wait.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !PollUntil(f) {
		t.Fatalf("after %v still waiting for: %s", Timeout, what)
	}
}

// Consistently calls f every millisecond for d, and makes the test fail as soon as f returns false. Stays tests that
// another goroutine or process does not do something, since such inaction causes no event. In a test that waits for
// sockets and processes, time is real. In a bubble of testing/synctest, use AdvanceTime instead.
func Consistently(t testing.TB, d time.Duration, what string, f func() bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		passed := time.Since(began)
		if !f() {
			t.Fatalf("after %v no longer true: %s", passed, what)
		}
		if passed >= d {
			return
		}
	}
}

// PauseRandomly sleeps for a random time below most. Randomised tests call PauseRandomly between their actions.
func PauseRandomly(r *rand.Rand, most time.Duration) {
	time.Sleep(time.Duration(r.Int64N(int64(most))))
}

// WaitBlocked calls each function on a separate goroutine, and returns once each is blocked or has returned. A
// goroutine counts as blocked when it waits, or is in a system call, at the same place of the program for 10 ms.
func WaitBlocked(t testing.TB, functions ...func()) {
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
			now := goroutineStack(header)
			if now == nil {
				return true
			}
			if !bytes.Equal(now, last) || bytes.HasPrefix(now[len(header):], []byte("[run")) { // running or runnable
				last, since = now, time.Now()
			}
			return time.Since(since) >= 10*time.Millisecond
		})
	}
}

// goroutineStack returns the stack trace of the goroutine with a header, or nil if it has ended.
func goroutineStack(header []byte) []byte {
	all := make([]byte, 1<<16)
	n := runtime.Stack(all, true)
	for n == len(all) { // the trace may be longer than the buffer
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

// AdvanceTime advances the virtual time of a bubble of testing/synctest by d, and waits until all work due by then is
// done. AdvanceTime panics outside a bubble, where the wait would be real.
func AdvanceTime(d time.Duration) {
	synctest.Wait() // panics outside a bubble, before the wait
	time.Sleep(d)
	synctest.Wait()
}

// FewerIfShort returns few with -short, and all without.
func FewerIfShort[T any](all, few T) T {
	if testing.Short() {
		return few
	}
	return all
}

// NewUnixPair returns two connected Unix sockets. The sockets are closed after twice testutil.Timeout, so that a test
// that waits for one of them ends.
func NewUnixPair(t testing.TB) (ends [2]*net.UnixConn) {
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
		timer := time.AfterFunc(2*Timeout, func() { c.Close() })
		t.Cleanup(func() { timer.Stop(); c.Close() })
	}
	return ends
}

// SkipUnlessRoot skips the test unless it runs as root. why completes the sentence "needs root".
func SkipUnlessRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root " + why)
	}
}

// RunOnThread calls f on a separate OS thread, which ends with f. The thread is not the main thread, which represents
// the process in /proc with its user and namespaces.
func RunOnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the main thread cannot end
			defer runtime.UnlockOSThread()
			RunOnThread(f)
			return
		}
		f()
	}()
	<-done
}

// RunAsUser calls f on a separate OS thread with a user ID, like RunOnThread. It needs root. A thread started by f has
// the user of the process.
func RunAsUser(t testing.TB, uid int, f func()) {
	t.Helper()
	RunOnThread(func() {
		u := uintptr(uid)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, u, u, u); e != 0 {
			t.Errorf("setresuid %d: got %v, want success", uid, e)
			return
		}
		f()
	})
}

// MakeSearchable makes a directory and its parents searchable for all users. Directories of t.TempDir are not
// searchable for all users.
func MakeSearchable(t testing.TB, dir string) {
	t.Helper()
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if fi, err := os.Stat(d); err == nil && fi.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(d, fi.Mode().Perm()|0o111); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Buffer collects the output of a program or a logger. It may be read while the output is written. The zero Buffer
// is empty.
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

// String returns all output.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
