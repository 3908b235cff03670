package service

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/internal/kept"
	"verbena/internal/quota"
)

// callTrace sends the trace of a program to its launcher, line by line, and never waits for that: what does not fit
// into the socket is counted, and the count is sent as soon as there is room.
//
// It is a socket and not a pipe, since the reader of a pipe holds the pipe's lock while it copies to its memory, which
// may be a file of a FUSE server's: a writer, though it asks not to be blocked, would wait for that lock. The reader of
// a Unix socket holds no lock that its writer takes. The queue is the kernel's: its size is fixed here, not by the
// reader.
type callTrace struct {
	mu     sync.Mutex
	fd     int
	missed uint64 // lines that were not sent, and not reported yet
	gone   bool   // the reader has closed its end
}

// traceQueue and traceQueueAtEnd are the size of the queue, in bytes of the kernel's memory before it doubles them,
// while the program runs and for the last line: that fits even if the launcher has not read anything.
const (
	traceQueue      = 160 << 10
	traceQueueAtEnd = 200 << 10
)

// A traced session is charged for traceDescriptors and traceBytes beyond others, also as long as a program has the
// other end of the socket, in which so many bytes may be unread.
const (
	traceDescriptors = 1
	traceBytes       = 2 * traceQueueAtEnd
)

// newCallTrace makes a trace, and the end of it that is for the launcher, which the caller closes.
func newCallTrace() (_ *callTrace, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("trace: make a socket: %w", err)
	}
	// Nothing is received here.
	if err := errors.Join(unix.Shutdown(fds[0], unix.SHUT_RD),
		unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, traceQueue)); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("trace: set up the socket: %w", err)
	}
	return &callTrace{fd: fds[0]}, os.NewFile(uintptr(fds[1]), "trace"), nil
}

// line sends a line, or counts it. It does not sleep. It must not be called after close.
func (t *callTrace) line(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return
	}
	if t.missed > 0 && !t.sendMissedLocked() || !t.sendLocked(s) {
		t.missed++
	}
}

func (t *callTrace) sendLocked(s string) bool {
	err := unix.Sendto(t.fd, []byte(s), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	t.gone = errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	return err == nil
}

func (t *callTrace) sendMissedLocked() bool {
	if !t.sendLocked(fmt.Sprintf("--- %d calls not shown: they came faster than they were read", t.missed)) {
		return false
	}
	t.missed = 0
	return true
}

// close ends the trace, with the number of calls that were not shown since the last line.
func (t *callTrace) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.missed > 0 && !t.gone {
		_ = unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, traceQueueAtEnd)
		t.sendMissedLocked()
	}
	unix.Close(t.fd)
	t.gone = true
}

// startTrace makes the trace of a program, charged to its user, and what is to be called when the program has ended.
func (s *Service) startTrace(who peer) (_ *callTrace, theirs *os.File, end func(), err error) {
	user, keep := s.quota.Account(who.Account), s.kept.Of(s.quota.Account(who.Account))
	if err := user.Take(quota.Descriptors, traceDescriptors); err != nil {
		return nil, nil, nil, err
	}
	if err := user.Take(quota.BufferBytes, traceBytes); err != nil {
		user.Give(quota.Descriptors, traceDescriptors)
		return nil, nil, nil, err
	}
	give := func() {
		user.Give(quota.Descriptors, traceDescriptors)
		user.Give(quota.BufferBytes, traceBytes)
	}
	t, theirs, err := newCallTrace()
	var note kept.Note
	if err == nil {
		if note, err = keep.Note(int(theirs.Fd())); err != nil {
			t.close()
			theirs.Close()
		}
	}
	if err != nil {
		give()
		return nil, nil, nil, err
	}
	return t, theirs, func() {
		t.close()
		keep.Keep(note, give)
	}, nil
}
