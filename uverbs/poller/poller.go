package poller

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/internal/sched"
	"verbena/uverbs"
)

const (
	// linger is the longest time for which a thread continues to poll without finding new requests. It approximates the
	// cost of sleeping and waking.
	linger = 50 * time.Microsecond
	// fewLinger is linger for watched files if the thread needs a processor of the programs. A longer time delays the
	// answers of a program that the thread keeps from running.
	fewLinger = 5 * time.Microsecond
	// fewProcessors is the largest number of processors for which fewLinger applies: a program, its peer, and the thread
	// have no processor each.
	fewProcessors = 2
	// allRounds is the number of rounds after which a thread checks all queue pairs: see uverbs.File.RingPosted.
	allRounds = 64
	// tendTime is the minimum time between calls of Source.Due while a thread is awake.
	tendTime = 2 * time.Millisecond
	// minPause and maxPause limit the sleeps of a thread beside programs that post by stores. pauseShare is their share
	// of the time since the last request: a request after a pause of t waits for at most t/pauseShare.
	minPause, maxPause = 50 * time.Microsecond, 16 * time.Millisecond
	pauseShare         = 4
	// unwatchedPause is the sleep of a thread while a file cannot be watched.
	unwatchedPause = time.Millisecond
)

// Ringer is the interface of an uverbs.File for the poller.
type Ringer interface {
	RingPosted(on ib.Staller, s *uverbs.RingScan, all bool) (found bool, err error)
	HasNewRequests() bool
	FailDevice(why error)
}

// Source is an open device file of a program that posts without a call. One thread at a time calls its functions,
// except Tend.
type Source struct {
	File Ringer
	// Doorbell is an eventfd. The program writes to it after a post, if the last call of Tell reported that the thread
	// sleeps.
	Doorbell int
	Tell     func(awake bool)
	// Watched is the alternative to the eventfd. Watched adds an inotify watch for a file to which the program writes
	// with each post.
	Watched func(inotify int, mask uint32) (wd int, err error)
	// Posts is the alternative for a program that posts by stores to memory, which wake no thread. Posts reports whether
	// the program can post now. If so, the thread looks for requests, less and less often; see minPause. Posts may not
	// sleep.
	Posts func() bool
	// Due, if not nil, is called every few milliseconds while the thread is awake, and before the thread sleeps. Due
	// must not sleep. If Due returns true, another thread calls Tend. Calls of Tend for the files of one user do not
	// overlap. Tend may sleep, and may be called after Stop.
	Due  func() bool
	Tend func()
	// Who identifies the program in the log.
	Who []any
}

// Pollers holds the pollers of all users.
type Pollers struct {
	log             *slog.Logger
	most            func() (user, all int) // returns the maximum numbers of watched files
	maxWatcherCount int

	mu       sync.Mutex
	of       map[*quota.User]*poller
	watchers []*watcher // some of the instances may be closed
	watched  int        // number of watched files of all users
}

// New creates Pollers. log receives errors that cannot be returned to a caller.
func New(log *slog.Logger) *Pollers {
	return &Pollers{log: log, of: map[*quota.User]*poller{}, most: sync.OnceValues(maxWatches),
		maxWatcherCount: maxWatchers()}
}

// PolledSource is a Source that is polled until Stop.
type PolledSource struct {
	Source
	p         *poller
	armed     atomic.Bool     // Watched: a write will wake the thread
	wd        int32           // the last watch, or 0; under inotify.mu
	armFailed bool            // the last attempt to arm the watch has failed; under poller.mu
	scan      uverbs.RingScan // used by the thread that has set busy
	// busy is set by the thread that polls the file. busy remains set while that thread is blocked on a program's
	// memory.
	busy atomic.Bool
	by   *runner // the thread that has set busy; under busy
}

// Add starts to poll the queues of a file. The first file of a user starts a thread. The thread and its descriptors are
// charged to the user.
func (s *Pollers) Add(u *quota.User, from Source) (_ *PolledSource, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of[u]
	if p == nil {
		if p, err = s.startPoller(u); err != nil {
			return nil, fmt.Errorf("poll send queues: %w", err)
		}
		s.of[u] = p
	}
	x := &PolledSource{Source: from, p: p}
	if x.Watched != nil {
		err = s.countWatch(p)
	}
	if err == nil {
		err = p.addSource(x)
	}
	if err != nil {
		s.endUnusedPoller(p)
		return nil, fmt.Errorf("poll send queues: %w", err)
	}
	return x, nil
}

// Stop ends the polling of the file. A thread may still be polling the file when Stop returns; package uverbs waits for
// the end of this poll.
func (x *PolledSource) Stop() {
	s := x.p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	x.p.removeSource(x)
	if x.Watched != nil {
		x.p.watched--
		s.watched--
	}
	s.endUnusedPoller(x.p)
}

// endUnusedPoller ends a poller that has no files.
//
//verbena:held mu
func (s *Pollers) endUnusedPoller(p *poller) {
	if len(*p.files.Load()) == 0 {
		delete(s.of, p.user)
		go p.close() // in a goroutine, because close may wait for a thread that is blocked on a program's memory
	}
}

// poller polls the send queues of a user's programs.
type poller struct {
	set  *Pollers
	user *quota.User

	epoll int // contains the doorbell descriptors
	kick  int // an eventfd in the epoll set

	files atomic.Pointer[[]*PolledSource] // replaced, not modified; under mu

	tending atomic.Bool // a thread is executing Source.Tend

	watched int                     // number of watched files; under Pollers.mu
	inotify atomic.Pointer[watcher] // nil if the poller has had no watch yet, or has ended

	mu      sync.Mutex
	current *runner // nil: closed
	closed  bool    // the descriptors are closed as well
}

// descriptorsPerPoller is the number of the service's descriptors for a poller, in addition to watches.
const descriptorsPerPoller = 2

func (s *Pollers) startPoller(u *quota.User) (_ *poller, err error) {
	p := &poller{set: s, user: u}
	p.files.Store(&[]*PolledSource{})
	if err := u.Charge(quota.Descriptors, descriptorsPerPoller); err != nil {
		return nil, err
	}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		u.Release(quota.Descriptors, descriptorsPerPoller)
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	if p.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = p.addToEpoll(p.kick, unix.EPOLLIN)
	}
	if err == nil {
		p.mu.Lock()
		err = p.startRunnerLocked()
		p.mu.Unlock()
	}
	if err != nil {
		p.closeFiles()
		return nil, err
	}
	return p, nil
}

// addToEpoll adds a descriptor to the epoll set, whose events wake the thread.
func (p *poller) addToEpoll(fd int, events uint32) error {
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (p *poller) closeFiles() {
	if e := p.inotify.Load(); e != nil {
		e.removePoller(p)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	unix.Close(p.epoll)
	if p.kick > 0 {
		unix.Close(p.kick)
	}
	p.user.Release(quota.Descriptors, descriptorsPerPoller)
}

// startRunnerLocked starts a thread. mu must be held.
//
//verbena:held mu
func (p *poller) startRunnerLocked() error {
	if err := p.user.Charge(quota.Workers, 1); err != nil {
		return err
	}
	r := &runner{p: p, ended: make(chan struct{})}
	p.current = r
	go func() {
		defer p.user.Release(quota.Workers, 1)
		r.run()
	}()
	return nil
}

// close ends the thread. close waits for the thread unless the thread has been replaced.
func (p *poller) close() {
	p.mu.Lock()
	r := p.current
	p.current = nil
	p.wakeLocked()
	p.mu.Unlock()
	<-r.ended
	p.closeFiles()
}

// wakeLocked wakes the thread. mu must be held.
//
//verbena:held mu
func (p *poller) wakeLocked() {
	if !p.closed {
		_, _ = unix.Write(p.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (p *poller) addSource(x *PolledSource) error {
	if x.hasDoorbell() {
		if err := p.addToEpoll(x.Doorbell, unix.EPOLLIN|unix.EPOLLET); err != nil {
			return err // with EPOLLET each write is reported once and need not be read
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append(slices.Clone(*p.files.Load()), x)
	p.files.Store(&list)
	p.wakeLocked()
	return nil
}

func (p *poller) removeSource(x *PolledSource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.files.Load()), func(y *PolledSource) bool { return y == x })
	p.files.Store(&list)
	if x.hasDoorbell() {
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, x.Doorbell, nil)
	} else if x.Watched != nil {
		p.inotify.Load().removeWatch(x)
	}
}

// hasDoorbell reports whether the program rings by an eventfd.
func (x *PolledSource) hasDoorbell() bool { return x.Watched == nil && x.Posts == nil }

// Wake wakes the thread, after a command by which the program may become able to post. Wake may not sleep.
func (x *PolledSource) Wake() {
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	x.p.wakeLocked()
}

// runner is a thread of a poller.
type runner struct {
	p     *poller
	ended chan struct{}
	known *[]*PolledSource // files of the programs that were notified that the thread is awake
	// watches is true if a program of known does not ring an eventfd. It may spin without yielding the processor.
	watches bool

	lastTend time.Time // time of the last call of Source.Due
}

// isCurrent reports whether the thread still belongs to the poller. If not, it wakes the current thread, which then
// polls the files on which the replaced thread was busy.
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
	runtime.LockOSThread() // not unlocked: the thread must end, because its scheduling was changed
	sched.SetTimeSlice(sched.PollerSlice)
	// A program can truncate the file of its queues (ftruncate). The resulting fault must be an error only for that
	// file.
	debug.SetPanicOnFault(true)
	last := time.Now() // time at which the last new request was found
	r.lastTend = last
	most := linger
	if sched.Processors() <= fewProcessors {
		most = fewLinger
	}
	spin, polling := sched.NewSpin(most), false // polling: found nothing since last, and has not slept
	for round := 1; ; round++ {
		if r.known != r.p.files.Load() {
			r.announceState(true)
		}
		found := r.pollAll(round%allRounds == 0)
		if round%16 == 0 && !r.isCurrent() {
			return
		}
		now := time.Now()
		r.callTendIfDue(now)
		if found {
			if polling {
				spin.Waited(now.Sub(last), true)
			}
			last, polling = now, false
			continue
		}
		if r.watches && now.Sub(last) < spin.Next() {
			polling = true
			continue
		}
		if !r.watches && now.Sub(last) < linger {
			sched.Yield()
			continue
		}
		r.p.startTendThread()
		timeout := r.announceState(false)
		for found := r.pollAll(true); ; found = r.pollAll(true) {
			if !r.isCurrent() {
				return
			}
			if found || r.p.waitForDoorbell(r.pauseAfter(time.Since(last), timeout)) || timeout >= 0 {
				break // with a timeout, announceState must try again to watch a file
			}
		}
		r.announceState(true)
		now = time.Now()
		spin.Waited(now.Sub(last), polling)
		last, polling = now, false
		r.lastTend = last
	}
}

// pauseAfter returns the next sleep of a thread that has found no request for some time. most is the maximum; it is
// negative for no maximum, and so is the result.
func (r *runner) pauseAfter(idle, most time.Duration) time.Duration {
	if !slices.ContainsFunc(*r.known, func(x *PolledSource) bool { return x.Posts != nil && x.Posts() }) {
		return most
	}
	pause := min(max(idle/pauseShare, minPause), maxPause)
	if most >= 0 {
		pause = min(pause, most)
	}
	return pause
}

func (r *runner) callTendIfDue(now time.Time) {
	if now.Sub(r.lastTend) >= tendTime {
		r.p.startTendThread()
		r.lastTend = now
	}
}

// announceState notifies all programs whether they must write to the doorbell descriptor. announceState does nothing if
// the thread no longer belongs to the poller. announceState returns the maximum sleep. A negative value means to sleep
// until a write.
func (r *runner) announceState(awake bool) (timeout time.Duration) {
	timeout = -1
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != r {
		return timeout
	}
	r.known = p.files.Load()
	r.watches = slices.ContainsFunc(*r.known, func(x *PolledSource) bool { return !x.hasDoorbell() })
	for _, x := range *r.known {
		if x.hasDoorbell() {
			x.Tell(awake)
		} else if x.Watched == nil {
			continue
		} else if !awake && !x.armed.Load() && !p.armWatchLocked(x) {
			timeout = unwatchedPause
		}
	}
	return timeout
}

// armWatchLocked makes the next write to a watched file wake the thread. Only one write wakes the thread, because a
// watch makes each write slower. armWatchLocked returns false if the file cannot be watched now.
//
//verbena:held mu
func (p *poller) armWatchLocked(x *PolledSource) bool {
	e := p.inotify.Load()
	lost := e.lost.Load()
	x.armed.Store(true) // precedes the watch, because a write can end the watch
	wd, err := x.Watched(int(e.fd.Load()), unix.IN_MODIFY|unix.IN_ONESHOT)
	if errors.Is(err, os.ErrClosed) {
		x.armed.Store(false)
		return true // Stop is about to be called
	}
	if err != nil {
		x.armed.Store(false)
		if !x.armFailed {
			p.set.log.Warn("watch for doorbells: looking for them instead; see /proc/sys/fs/inotify/max_user_watches",
				append([]any{"err", err}, x.Who...)...)
		}
		x.armFailed = true
		return false
	}
	x.armFailed = false
	e.recordWatch(int32(wd), x, lost)
	return true
}

// startTendThread starts a thread that calls Tend for the due files, unless such a thread is running. The polling
// thread must not call Tend, because a program can delay it without limit.
func (p *poller) startTendThread() {
	var due []*PolledSource
	for _, x := range *p.files.Load() {
		if x.Due != nil && x.Due() {
			due = append(due, x)
		}
	}
	if len(due) == 0 || !p.tending.CompareAndSwap(false, true) {
		return
	}
	if p.user.Charge(quota.Workers, 1) != nil {
		p.tending.Store(false)
		return
	}
	go func() {
		defer p.tending.Store(false)
		defer p.user.Release(quota.Workers, 1)
		for _, x := range due {
			x.Tend()
		}
	}()
}

// pollAll polls all files once, and reports whether new requests were found.
func (r *runner) pollAll(all bool) (found bool) {
	for _, x := range *r.p.files.Load() {
		if !x.busy.CompareAndSwap(false, true) {
			continue // another thread is blocked on this file
		}
		x.by = r
		found = x.pollFile(all) || found
		x.busy.Store(false)
	}
	return found
}

// pollFile polls one file.
func (x *PolledSource) pollFile(all bool) (found bool) {
	defer func() {
		if v := recover(); v != nil {
			err := fmt.Errorf("panic in a doorbell: %v", v)
			x.p.set.log.Error(err.Error(), append([]any{"stack", string(debug.Stack())}, x.Who...)...)
			x.File.FailDevice(err)
		}
	}()
	found, _ = x.File.RingPosted(x, &x.scan, all) // the program itself detects the removal of the device
	return found
}

// Stalled is called when a doorbell blocks on the memory of a program. Another thread takes over the user's other
// files. (ib.Staller)
func (x *PolledSource) Stalled() { go x.p.replaceRunner(x.by) }

// Idle reports whether no other file needs the thread that polls x. (uverbs.Patient)
func (x *PolledSource) Idle() bool {
	r := x.by
	if r.known != x.p.files.Load() || !r.isCurrent() {
		return false
	}
	r.callTendIfDue(time.Now())
	for _, y := range *r.known {
		if y != x && !y.busy.Load() && y.File.HasNewRequests() {
			return false
		}
	}
	return true
}

// replaceRunner starts another thread in place of r.
func (p *poller) replaceRunner(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == r {
		_ = p.startRunnerLocked() // without another thread the user's other programs must wait
	}
}

// waitForDoorbell waits for a doorbell, for wakeLocked, or until the timeout. A negative timeout means no limit.
// waitForDoorbell forwards doorbells of other users, which do not end the sleep. waitForDoorbell returns false if the
// thread must look for requests and sleep again.
func (p *poller) waitForDoorbell(timeout time.Duration) (woken bool) {
	var events [64]unix.EpollEvent
	limit := -1
	if timeout >= 0 {
		limit = 0
		wait := unix.NsecToTimespec(timeout.Nanoseconds())
		if n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(p.epoll), Events: unix.POLLIN}}, &wait, nil); n == 0 && err == nil {
			return false
		}
	}
	for {
		n, err := unix.EpollWait(p.epoll, events[:], limit)
		own := err != nil || n == 0 || limit >= 0
		e := p.inotify.Load()
		if e != nil && e.readEvents(p) {
			own = true
		}
		for _, ev := range events[:max(n, 0)] {
			if int(ev.Fd) == p.kick {
				var b [8]byte
				_, _ = unix.Read(p.kick, b[:])
			}
			own = own || e == nil || int64(ev.Fd) != e.fd.Load()
		}
		if own {
			return true
		}
	}
}
