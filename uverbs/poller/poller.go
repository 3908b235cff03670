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
	// linger is how long a thread that finds nothing goes on: about what it costs to sleep and to be woken, so that it is never much worse than
	// either.
	linger = 50 * time.Microsecond
	// allRounds is after how many rounds a thread looks at everything: see uverbs.File.RingPosted.
	allRounds = 64
	// tendTime is the least between two looks at Source.Due while a thread is awake.
	tendTime = 2 * time.Millisecond
	// unwatchedPause is how long a thread sleeps while a file cannot be watched.
	unwatchedPause = time.Millisecond
)

// Ringer is an uverbs.File.
type Ringer interface {
	RingPosted(on ib.Staller, s *uverbs.Scan, all bool) (found bool, err error)
	HasNew() bool
	Fail(why error)
}

// Source is an open device file whose program posts without a call. Its functions but Tend are called by one thread at a time.
type Source struct {
	File Ringer
	// Bell is an eventfd to which the program writes when it has posted, if Tell has last said that the thread is asleep.
	Bell int
	Tell func(awake bool)
	// Watched instead of those adds an inotify watch for a file to which the program writes whenever it has posted.
	Watched func(inotify int, mask uint32) (wd int, err error)
	// Due, if not nil, is called every few milliseconds while the thread is awake, and before it sleeps. It must not sleep. If it reports true,
	// Tend is called by another thread: one at a time for all files of the user. Tend may sleep, and may be called after Stop.
	Due  func() bool
	Tend func()
	// Who is the program, for the log.
	Who []any
}

// Pollers are those of all users.
type Pollers struct {
	log      *slog.Logger
	most     func() (user, all int) // files that may be watched
	mostEars int

	mu      sync.Mutex
	of      map[*quota.User]*poller
	ears    []*ear // some are closed
	watched int    // files of all users
}

// New makes Pollers. The log gets what has no caller to be returned to.
func New(log *slog.Logger) *Pollers {
	return &Pollers{log: log, of: map[*quota.User]*poller{}, most: sync.OnceValues(mostWatches), mostEars: mostEars()}
}

// Polled is a Source that is looked at, until Stop.
type Polled struct {
	Source
	p     *poller
	armed atomic.Bool // Watched, and a write will wake the thread
	wd    int32       // the last watch; 0: none; under ear.mu
	deaf  bool        // the last attempt to arm it has failed; under poller.mu
	scan  uverbs.Scan // of the thread that has busy
	// busy is set by the thread that looks at the file. It stays set while that is stopped in a program's memory.
	busy atomic.Bool
	by   *runner // who has set it; under busy
}

// Add has the queues of a file looked at. The thread, if it is the user's first, and its descriptors are charged to the user.
func (s *Pollers) Add(u *quota.User, from Source) (_ *Polled, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.of[u]
	if p == nil {
		if p, err = s.start(u); err != nil {
			return nil, fmt.Errorf("poll send queues: %w", err)
		}
		s.of[u] = p
	}
	x := &Polled{Source: from, p: p}
	if x.Watched != nil {
		err = s.takeWatch(p)
	}
	if err == nil {
		err = p.add(x)
	}
	if err != nil {
		s.endUnused(p)
		return nil, fmt.Errorf("poll send queues: %w", err)
	}
	return x, nil
}

// Stop ends that. A thread may be looking at the file still, which package uverbs waits for.
func (x *Polled) Stop() {
	s := x.p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	x.p.remove(x)
	if x.Watched != nil {
		x.p.watched--
		s.watched--
	}
	s.endUnused(x.p)
}

// endUnused ends a poller that has no file.
//
//verbena:held mu
func (s *Pollers) endUnused(p *poller) {
	if len(*p.files.Load()) == 0 {
		delete(s.of, p.user)
		go p.close() // which may have to wait for a thread that a program's memory stops
	}
}

// poller looks at the send queues of a user's programs.
type poller struct {
	set  *Pollers
	user *quota.User

	epoll int // the bells
	kick  int // an eventfd among them

	files atomic.Pointer[[]*Polled] // replaced, not changed; under mu

	tending atomic.Bool // a thread calls Source.Tend

	watched int                 // files; under Pollers.mu
	ear     atomic.Pointer[ear] // nil: it has had no watch yet, or has ended

	mu      sync.Mutex
	current *runner // nil: closed
	closed  bool    // so are the descriptors
}

// Descriptors is what a poller costs the service, beside what is watched.
const Descriptors = 2

func (s *Pollers) start(u *quota.User) (_ *poller, err error) {
	p := &poller{set: s, user: u}
	p.files.Store(&[]*Polled{})
	if err := u.Take(quota.Descriptors, Descriptors); err != nil {
		return nil, err
	}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		u.Give(quota.Descriptors, Descriptors)
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	if p.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = p.hear(p.kick, unix.EPOLLIN)
	}
	if err == nil {
		p.mu.Lock()
		err = p.startLocked()
		p.mu.Unlock()
	}
	if err != nil {
		p.closeFiles()
		return nil, err
	}
	return p, nil
}

// hear has a descriptor end sleep.
func (p *poller) hear(fd int, events uint32) error {
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (p *poller) closeFiles() {
	if e := p.ear.Load(); e != nil {
		e.leave(p)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	unix.Close(p.epoll)
	if p.kick > 0 {
		unix.Close(p.kick)
	}
	p.user.Give(quota.Descriptors, Descriptors)
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

func (p *poller) add(x *Polled) error {
	if x.Watched == nil {
		if err := p.hear(x.Bell, unix.EPOLLIN|unix.EPOLLET); err != nil {
			return err // with EPOLLET each ring is seen once, and none has to be taken
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append(slices.Clone(*p.files.Load()), x)
	p.files.Store(&list)
	p.wakeLocked()
	return nil
}

func (p *poller) remove(x *Polled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.files.Load()), func(y *Polled) bool { return y == x })
	p.files.Store(&list)
	if x.Watched == nil {
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, x.Bell, nil)
		return
	}
	p.ear.Load().disarm(x)
}

// runner is the thread of a poller.
type runner struct {
	p     *poller
	ended chan struct{}
	known *[]*Polled // those that have been told that it is awake

	tended time.Time // when it has last looked at Source.Due
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
	sched.Prompt(sched.PollerSlice)
	// A program can take pages of its queues away (ftruncate): an error for it, not our end.
	debug.SetPanicOnFault(true)
	last := time.Now() // when something was found
	r.tended = last
	for round := 1; ; round++ {
		if r.known != r.p.files.Load() {
			r.say(true)
		}
		found := r.round(round%allRounds == 0)
		if round%16 == 0 && !r.isCurrent() {
			return
		}
		now := time.Now()
		r.tendIfDue(now)
		if found {
			last = now
			continue
		}
		if now.Sub(last) < linger {
			sched.Yield()
			continue
		}
		r.p.tend()
		patience := r.say(false)
		if found := r.round(true); !r.isCurrent() {
			return
		} else if !found {
			r.p.sleep(patience)
		}
		r.say(true)
		last = time.Now()
		r.tended = last
	}
}

func (r *runner) tendIfDue(now time.Time) {
	if now.Sub(r.tended) >= tendTime {
		r.p.tend()
		r.tended = now
	}
}

// say tells all programs whether they have to ring, as long as the thread is the poller's. It returns how long the thread may sleep; negative:
// until a program rings.
func (r *runner) say(awake bool) (patience time.Duration) {
	patience = -1
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != r {
		return patience
	}
	r.known = p.files.Load()
	for _, x := range *r.known {
		if x.Watched == nil {
			x.Tell(awake)
		} else if !awake && !x.armed.Load() && !p.armLocked(x) {
			patience = unwatchedPause
		}
	}
	return patience
}

// armLocked lets the next write to a watched file end sleep: that alone, since a watch makes each write slower. It reports false if the file
// cannot be watched now.
//
//verbena:held mu
func (p *poller) armLocked(x *Polled) bool {
	e := p.ear.Load()
	lost := e.lost.Load()
	x.armed.Store(true) // before a write can end the watch
	wd, err := x.Watched(int(e.fd.Load()), unix.IN_MODIFY|unix.IN_ONESHOT)
	if errors.Is(err, os.ErrClosed) {
		x.armed.Store(false)
		return true // Stop is about to be called
	}
	if err != nil {
		x.armed.Store(false)
		if !x.deaf {
			p.set.log.Warn("watch for doorbells: looking for them instead; see /proc/sys/fs/inotify/max_user_watches",
				append([]any{"err", err}, x.Who...)...)
		}
		x.deaf = true
		return false
	}
	x.deaf = false
	e.armed(int32(wd), x, lost)
	return true
}

// tend begins to tend to the files for which that is due, unless that is being done. It is no work for the thread that looks at the queues: a
// program can make it take as long as it likes.
func (p *poller) tend() {
	var due []*Polled
	for _, x := range *p.files.Load() {
		if x.Due != nil && x.Due() {
			due = append(due, x)
		}
	}
	if len(due) == 0 || !p.tending.CompareAndSwap(false, true) {
		return
	}
	if p.user.Take(quota.Workers, 1) != nil {
		p.tending.Store(false)
		return
	}
	go func() {
		defer p.tending.Store(false)
		defer p.user.Give(quota.Workers, 1)
		for _, x := range due {
			x.Tend()
		}
	}()
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
func (x *Polled) look(all bool) (found bool) {
	defer func() {
		if v := recover(); v != nil {
			err := fmt.Errorf("a doorbell made the service panic: %v", v)
			x.p.set.log.Error(err.Error(), append([]any{"stack", string(debug.Stack())}, x.Who...)...)
			x.File.Fail(err)
		}
	}()
	found, _ = x.File.RingPosted(x, &x.scan, all) // of a device that has gone the program knows
	return found
}

// Stalled is called when ringing takes long, since the memory of a program does not answer: another thread goes on with the user's other files.
// (ib.Staller)
func (x *Polled) Stalled() { go x.p.replace(x.by) }

// Idle reports whether nothing but this file needs the thread that looks at it. (uverbs.Patient)
func (x *Polled) Idle() bool {
	r := x.by
	if r.known != x.p.files.Load() || !r.isCurrent() {
		return false
	}
	r.tendIfDue(time.Now())
	for _, y := range *r.known {
		if y != x && !y.busy.Load() && y.File.HasNew() {
			return false
		}
	}
	return true
}

// replace starts another thread in place of one.
func (p *poller) replace(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == r {
		_ = p.startLocked() // without another thread the user's other programs wait, too
	}
}

// sleep waits for a bell, or for wakeLocked, or until its patience is over, if that is not negative. Doorbells of other users, which it passes on, do
// not end it.
func (p *poller) sleep(patience time.Duration) {
	var events [64]unix.EpollEvent
	limit := -1
	if patience >= 0 {
		limit = int(patience.Milliseconds())
	}
	for {
		n, err := unix.EpollWait(p.epoll, events[:], limit)
		own := err != nil || n == 0 || limit >= 0
		e := p.ear.Load()
		if e != nil && e.read(p) {
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
			return
		}
	}
}
