package service

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"verbena/internal/procfile"
	"verbena/internal/quota"

	"golang.org/x/sys/unix"
)

// spare are descriptors for managers, when there are no others.
type spare struct {
	mu     sync.Mutex
	wanted bool // a listener is served
	files  []*os.File
	logged time.Time // that there are no others
}

const spareDescriptors = 16

// begin takes the descriptors, until end.
func (p *spare) begin() (end func()) {
	want := func(yes bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wanted = yes
	}
	want(true)
	p.fill()
	return func() {
		want(false)
		p.release()
	}
}

// fill takes the descriptors again, as far as there are any.
func (p *spare) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.wanted && len(p.files) < spareDescriptors {
		f, err := procfile.Open(os.DevNull)
		if err != nil {
			return
		}
		p.files = append(p.files, f)
	}
}

// release makes the descriptors free.
func (p *spare) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.files {
		f.Close()
	}
	p.files = nil
}

// warn logs a lack of descriptors, once a minute.
func (p *spare) warn(log *slog.Logger, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.logged) >= time.Minute {
		p.logged = now
		log.Warn("only managers are served", "err", err)
	}
}

// noDescriptor reports whether an error is a lack of descriptors.
func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// acceptWithSpare waits a short time for a client, and accepts and answers it, after accept(2) found no descriptor.
func (s *Service) acceptWithSpare(l *Listener, lack error) {
	const pause = 50 * time.Millisecond
	s.spare.warn(s.log, lack)
	if !l.waiting(pause) {
		return
	}
	s.spare.release()
	l.SetDeadline(time.Now().Add(pause)) // the client may have gone
	defer l.SetDeadline(time.Time{})
	c, err := l.AcceptUnix()
	if err != nil {
		time.Sleep(pause) // or no descriptor has come free
		return
	}
	who, err := s.peerOf(c)
	s.admitShort(c, who, err)
}

// admitShort answers a client while there are no descriptors except the spare ones: a manager as ever. Others get the
// advice to come again.
func (s *Service) admitShort(c *net.UnixConn, who peer, err error) {
	if err == nil && who.Manager {
		s.admitPeer(c, who)
		return
	}
	if err != nil { // whose account is unknown
		who.Account = quota.ID{UID: who.uid}
	}
	s.refuse(c, who, fmt.Errorf("the service has no file descriptor left (RLIMIT_NOFILE): %w", syscall.EMFILE))
}

// waiting reports whether a client waits, or comes within the time. It takes no descriptor. It blocks a thread.
func (l *Listener) waiting(within time.Duration) (yes bool) {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(within.Milliseconds()))
		yes = n > 0
	})
	return yes
}
