package supervisor

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
)

const (
	// leastCloseWait is the time in which the end of a file begins after a program has closed the file.
	leastCloseWait = 5 * time.Millisecond
	mostCloseWait  = 500 * time.Millisecond
)

// awaitCloses reports whether to repeat a call that failed with err because the user lacked a resource. For a program,
// a file has ended when close(2) returns, but the service ends it slightly later. Supervisor.awaitCloses therefore
// waits until the user's closed files have ended. It may sleep.
func (s *Supervisor) awaitCloses(u *quota.User, err error) bool {
	if err == nil { // only the failure path allocates memory
		return false
	}
	var lack *quota.LimitError
	if !errors.As(err, &lack) {
		return false
	}
	// One thread of a user checks all files. The user's other threads wait for the checking thread.
	s.mu.Lock()
	over, waits := s.closeWaits[u]
	if !waits {
		if s.closeWaits == nil {
			s.closeWaits = map[*quota.User]chan struct{}{}
		}
		over = make(chan struct{})
		s.closeWaits[u] = over
	}
	s.mu.Unlock()
	if waits {
		<-over
		return true
	}
	defer func() {
		s.mu.Lock()
		delete(s.closeWaits, u)
		s.mu.Unlock()
		close(over)
	}()
	for began := time.Now(); time.Since(began) < mostCloseWait; {
		time.Sleep(leastCloseWait)
		if !s.hasPendingCloses(u) {
			break
		}
	}
	return true
}

// hasPendingCloses reports whether there are closes that the kernel has reported and the service has not processed, or
// files of the user that are about to end.
func (s *Supervisor) hasPendingCloses(u *quota.User) bool {
	if n, err := unix.IoctlGetInt(s.notifyFD, unix.TIOCINQ); err == nil && n > 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		if f.user == u && (f.isClosed() || f.isCloseCheckPending()) {
			return true
		}
	}
	return false
}

// isCloseCheckPending reports whether a close of the file was not checked yet, or was not checked for long enough.
func (f *openFile) isCloseCheckPending() bool {
	f.look.Lock()
	defer f.look.Unlock()
	return f.look.timer != nil && f.look.next < mostCloseWait
}
