package service

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"verbena/internal/procfile"

	"golang.org/x/sys/unix"
)

// descriptorReserve is a reserve of descriptors for answers to managers when no other descriptor is free.
type descriptorReserve struct {
	mu     sync.Mutex
	wanted bool // a listener is being served
	files  []*os.File
	logged time.Time // time of the last warning
}

const spareDescriptors = 16

// allocate allocates the descriptors until the caller calls end.
func (p *descriptorReserve) allocate() (end func()) {
	want := func(yes bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wanted = yes
	}
	want(true)
	p.refill()
	return func() {
		want(false)
		p.release()
	}
}

// refill allocates the missing descriptors of the reserve, as far as possible.
func (p *descriptorReserve) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.wanted && len(p.files) < spareDescriptors {
		f, err := procfile.OpenNoFollow(os.DevNull)
		if err != nil {
			return
		}
		p.files = append(p.files, f)
	}
}

// release closes the descriptors of the reserve.
func (p *descriptorReserve) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.files {
		f.Close()
	}
	p.files = nil
}

// warnShortage logs that no descriptor is free, at most once a minute.
func (p *descriptorReserve) warnShortage(log *slog.Logger, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.logged) >= time.Minute {
		p.logged = now
		log.Warn("no free descriptor; serving managers only", "err", err)
	}
}

// isDescriptorShortage reports whether an error is a lack of descriptors.
func isDescriptorShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// hasWaitingClient reports whether a client is waiting or arrives within the time. hasWaitingClient takes no
// descriptor, and blocks a thread.
func (l *Listener) hasWaitingClient(within time.Duration) (yes bool) {
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
