package remote

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/ctl/devfile"
	"verbena/internal/quota"
	"verbena/internal/sched"
	"verbena/uverbs"
)

const (
	// linger is how long a poller that finds nothing goes on: about what it costs to sleep and to be woken, so that it is never much worse than
	// either.
	linger = 50 * time.Microsecond
	// allRounds is after how many rounds a poller looks at everything: see uverbs.File.RingPosted.
	allRounds = 64
)

// poller looks at the send queues of a user's clients.
type poller struct {
	srv   *Server
	user  *quota.User
	users int // under Server.mu

	epoll int // the bells
	kick  int // an eventfd among them

	files atomic.Pointer[[]*polled] // replaced, not changed; under mu

	mu      sync.Mutex
	current *runner // nil: closed
	closed  bool    // so are the descriptors
}

// polled is a file as its poller knows it.
type polled struct {
	caller // as the poller rings for it
	p      *poller
	scan   uverbs.Scan // of the thread that has busy
	// busy is set by the thread that looks at the file. It stays set while that is stopped in a program's memory.
	busy atomic.Bool
	by   *runner // who has set it; under busy
}

// pollerDescriptors is what a poller costs the service.
const pollerDescriptors = 2

func newPoller(s *Server, u *quota.User) (_ *poller, err error) {
	p := &poller{srv: s, user: u}
	p.files.Store(&[]*polled{})
	if err := u.Take(quota.Descriptors, pollerDescriptors); err != nil {
		return nil, err
	}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		u.Give(quota.Descriptors, pollerDescriptors)
		return nil, fmt.Errorf("poll send queues: epoll_create1: %w", err)
	}
	if p.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, p.kick, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.kick)})
	}
	if err != nil {
		p.closeFiles()
		return nil, fmt.Errorf("poll send queues: %w", err)
	}
	p.mu.Lock()
	err = p.startLocked()
	p.mu.Unlock()
	if err != nil {
		p.closeFiles()
		return nil, err
	}
	return p, nil
}

func (p *poller) closeFiles() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	unix.Close(p.epoll)
	if p.kick > 0 {
		unix.Close(p.kick)
	}
	p.user.Give(quota.Descriptors, pollerDescriptors)
}

// startLocked starts a thread. mu is held.
//
//verbena:held mu
func (p *poller) startLocked() error {
	if err := p.user.Take(quota.Workers, 1); err != nil {
		return err
	}
	r := &runner{p: p, ended: make(chan struct{})}
	p.current = r
	go func() {
		defer p.user.Give(quota.Workers, 1)
		r.run()
	}()
	return nil
}

// close ends the thread, and waits for it unless it has been replaced.
func (p *poller) close() {
	p.mu.Lock()
	r := p.current
	p.current = nil
	p.wakeLocked()
	p.mu.Unlock()
	<-r.ended
	p.closeFiles()
}

// wakeLocked ends sleep. mu is held.
//
//verbena:held mu
func (p *poller) wakeLocked() {
	if !p.closed {
		_, _ = unix.Write(p.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// add has the file's queues looked at.
func (p *poller) add(f *File) error {
	// With EPOLLET each ring is seen once, and none has to be taken.
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, f.bell, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(f.bell)}); err != nil {
		return fmt.Errorf("poll send queues: epoll_ctl: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append(slices.Clone(*p.files.Load()), &polled{caller: caller{f}, p: p})
	p.files.Store(&list)
	p.wakeLocked()
	return nil
}

// remove ends that. A thread may be looking at the file still, which package uverbs waits for.
func (p *poller) remove(f *File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.files.Load()), func(x *polled) bool { return x.f == f })
	p.files.Store(&list)
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, f.bell, nil)
}

// runner is the thread of a poller.
type runner struct {
	p     *poller
	ended chan struct{}
	known *[]*polled // those that have been told that it is awake
}

// isCurrent reports whether the thread is the poller's still. If not, the one that is looks at the files that this one has been busy with.
func (r *runner) isCurrent() bool {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == r {
		return true
	}
	p.wakeLocked()
	return false
}

func (r *runner) run() {
	defer close(r.ended)
	runtime.LockOSThread() // it is not unlocked: the thread, whose scheduling was changed, ends
	sched.Prompt()
	last := time.Now() // when something was found
	for round := 1; ; round++ {
		if r.known != r.p.files.Load() {
			r.say(devfile.Awake)
		}
		found := r.round(round%allRounds == 0)
		if round%16 == 0 && !r.isCurrent() {
			return
		}
		if found {
			last = time.Now()
			continue
		}
		if time.Since(last) < linger {
			sched.Yield()
			continue
		}
		r.say(devfile.Asleep)
		if found := r.round(true); !r.isCurrent() {
			return
		} else if !found {
			r.p.sleep()
		}
		r.say(devfile.Awake)
		last = time.Now()
	}
}

// say tells all clients whether they have to ring, as long as the thread is the poller's.
func (r *runner) say(state uint32) {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != r {
		return
	}
	r.known = p.files.Load()
	for _, x := range *r.known {
		x.f.memory.say(state)
	}
}

// round looks at all files once, and reports whether anything new was posted.
func (r *runner) round(all bool) (found bool) {
	for _, x := range *r.p.files.Load() {
		if !x.busy.CompareAndSwap(false, true) {
			continue // another thread is stopped there
		}
		x.by = r
		found = x.look(all) || found
		x.busy.Store(false)
	}
	return found
}

// look looks at a file.
func (x *polled) look(all bool) (found bool) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("a doorbell made the service panic: %v", p)
			x.p.srv.cfg.Log.Error(err.Error(), "uid", x.f.client.UID, "pid", x.f.client.PID, "stack", string(debug.Stack()))
			x.f.uverbs.Fail(err)
		}
	}()
	found, _ = x.f.uverbs.RingPosted(x, &x.scan, all) // of a device that has gone the client knows
	return found
}

// Stalled is called when ringing takes long, since the memory of a program does not answer: another thread goes on with the user's other files.
// (ib.Staller)
func (x *polled) Stalled() { go x.p.replace(x.by) }

// replace starts another thread in place of one.
func (p *poller) replace(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == r {
		_ = p.startLocked() // without another thread the user's other clients wait, too
	}
}

// sleep waits for a bell, or for wake.
func (p *poller) sleep() {
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(p.epoll, events[:], -1)
	if err != nil {
		return // EINTR
	}
	for _, e := range events[:n] {
		if fd := int(e.Fd); fd == p.kick {
			var b [8]byte
			_, _ = unix.Read(fd, b[:])
		}
	}
}
