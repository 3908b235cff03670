package service

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl"
	"verbena/internal/kept"
	"verbena/internal/quota"
)

// callTrace sends the trace of a program to its launcher, line by line, without waiting. If the socket is full,
// callTrace counts the lines, and sends the count when there is room again.
//
// The trace uses a Unix socket, not a pipe. The reader of a pipe holds the pipe's lock while it copies into its
// memory, which may be a mapped file of a FUSE server. A writer of the pipe would wait for that lock even with
// O_NONBLOCK. The reader of a Unix socket holds no lock that the writer acquires. This process sets the size of the
// queue, and the reader cannot change it.
type callTrace struct {
	mu     sync.Mutex
	fd     int
	missed uint64 // lines dropped and not yet reported
	// reports are lines that must not be dropped, at most maxKeptReports. lost is the number of further ones.
	reports []string
	lost    uint64
	gone    bool // the reader has closed its end
}

// traceQueue is the size of the queue while the program runs. traceQueueAtEnd is the size for the last line, which
// then fits even if the launcher has read nothing. Both sizes are in bytes, before the kernel doubles them.
const (
	traceQueue      = 160 << 10
	traceQueueAtEnd = 200 << 10
)

// traceDescriptors and traceBytes are the extra charges of a traced session. The charges last while a program holds
// the other end of the socket, since up to traceBytes may be unread there.
const (
	traceDescriptors = 1
	traceBytes       = 2 * traceQueueAtEnd
)

// newCallTrace returns a trace and the launcher's end of its socket. The caller closes the launcher's end.
func newCallTrace() (_ *callTrace, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("trace: make a socket: %w", err)
	}
	// The launcher only reads.
	if err := errors.Join(unix.Shutdown(fds[0], unix.SHUT_RD),
		unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, traceQueue)); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("trace: set up the socket: %w", err)
	}
	return &callTrace{fd: fds[0]}, os.NewFile(uintptr(fds[1]), "trace"), nil
}

// maxKeptReports limits the reports that wait for room in the queue. They fit into the additional room at the end.
const maxKeptReports = 32

// sendReport sends a report of the sanitizer. It keeps the report if the socket is full. sendReport does not sleep. It
// must not be called after close.
func (t *callTrace) sendReport(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return
	}
	if len(t.reports) == maxKeptReports {
		t.lost++
	} else {
		t.reports = append(t.reports, s)
	}
	t.sendKeptLocked()
}

// sendKeptLocked sends the kept reports, and returns false if some remain.
func (t *callTrace) sendKeptLocked() bool {
	for len(t.reports) > 0 {
		if !t.sendLineLocked(t.reports[0]) {
			return false
		}
		t.reports = t.reports[1:]
	}
	if t.lost > 0 {
		if !t.sendLineLocked(ctl.LostReportsPrefix + strconv.FormatUint(t.lost, 10)) {
			return false
		}
		t.lost = 0
	}
	t.reports = nil
	return true
}

// sendLine sends a line to the launcher, or counts the line if the socket is full. sendLine does not sleep. sendLine
// must not be called after close.
func (t *callTrace) sendLine(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return
	}
	if !t.sendKeptLocked() || t.missed > 0 && !t.sendMissedCountLocked() || !t.sendLineLocked(s) {
		t.missed++
	}
}

func (t *callTrace) sendLineLocked(s string) bool {
	err := unix.Sendto(t.fd, []byte(s), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	t.gone = errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	return err == nil
}

func (t *callTrace) sendMissedCountLocked() bool {
	if !t.sendLineLocked(fmt.Sprintf("--- %d calls not shown: they came faster than they were read", t.missed)) {
		return false
	}
	t.missed = 0
	return true
}

// close ends the trace, and reports the number of calls not shown since the last line.
func (t *callTrace) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.gone && (t.missed > 0 || len(t.reports) > 0 || t.lost > 0) {
		_ = unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, traceQueueAtEnd)
		t.sendKeptLocked()
		if t.missed > 0 {
			t.sendMissedCountLocked()
		}
	}
	unix.Close(t.fd)
	t.gone = true
}

// startTrace makes the trace of a program and charges it to the user. The caller calls end when the program has ended.
func (s *Service) startTrace(who peer) (_ *callTrace, theirs *os.File, end func(), err error) {
	user, keep := s.quota.Account(who.Account), s.kept.ObjectsOf(s.quota.Account(who.Account))
	if err := user.Charge(quota.Descriptors, traceDescriptors); err != nil {
		return nil, nil, nil, err
	}
	if err := user.Charge(quota.BufferBytes, traceBytes); err != nil {
		user.Release(quota.Descriptors, traceDescriptors)
		return nil, nil, nil, err
	}
	give := func() {
		user.Release(quota.Descriptors, traceDescriptors)
		user.Release(quota.BufferBytes, traceBytes)
	}
	t, theirs, err := newCallTrace()
	var note kept.FileNote
	if err == nil {
		if note, err = keep.NoteFile(int(theirs.Fd())); err != nil {
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
