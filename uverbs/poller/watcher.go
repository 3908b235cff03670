package poller

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"verbena/internal/procfile"
)

// watcher is an inotify instance that pollers share. The kernel charges instances and watches to the account of the
// service, which may be root's account. The kernel does not charge the programs' users. The number of instances is
// therefore limited: the first few pollers have one instance each, and further pollers share these instances.
//
// Each poller adds the instance to its epoll set, with EPOLLEXCLUSIVE. An event then wakes one of the sleeping threads
// that share the instance. A thread that wakes for any reason reads all events and wakes their pollers. This work
// includes no call that a program could delay.
type watcher struct {
	fd   atomic.Int64  // 0: closed
	lost atomic.Uint64 // number of times that the kernel has dropped events

	mu      sync.Mutex
	pollers map[*poller]struct{}    // pollers that sleep on the instance
	watches map[int32]*PolledSource // armed watches; a nil entry is a removed watch
	early   map[int32]struct{}      // watches whose end was read before the call of armed
}

const (
	// All users together may use 1/instanceShare of the account's inotify instances, and 1/watchShare of its inotify
	// watches.
	instanceShare, watchShare = 8, 2
	// One user may use 1/userShare of these watches.
	userShare = 4
)

// maxWatches returns the maximum number of watched files of one user, and of all users together.
func maxWatches() (user, all int) {
	all = max(readInotifyLimit("max_user_watches", 8192)/watchShare, 1)
	return max(all/userShare, 1), all
}

// readInotifyLimit reads a limit of inotify. readInotifyLimit returns the kernel's default if the read fails.
func readInotifyLimit(name string, usual int) int {
	b, err := procfile.ReadNoFollow("/proc/sys/fs/inotify/" + name)
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n <= 0 {
		return usual
	}
	return n
}

// countWatch counts a watched file of the user. mu must be held.
//
//verbena:held mu
func (s *Pollers) countWatch(p *poller) error {
	user, all := s.most()
	switch {
	case p.watched >= user:
		return fmt.Errorf("user %v has %d watched files, the limit, which is a share of "+
			"/proc/sys/fs/inotify/max_user_watches: %w",
			p.user.ID(), p.watched, unix.EMFILE)
	case s.watched >= all:
		return fmt.Errorf("all users together have %d watched files, the limit, which is a share of "+
			"/proc/sys/fs/inotify/max_user_watches: %w",
			s.watched, unix.EMFILE)
	}
	if err := s.assignWatcher(p); err != nil {
		return err
	}
	p.watched++
	s.watched++
	return nil
}

// maxWatchers returns the maximum number of instances of all pollers, a small part of the account's limit.
func maxWatchers() int {
	return min(max(readInotifyLimit("max_user_instances", 128)/instanceShare, 1), 16)
}

// assignWatcher assigns an instance to the poller: a new instance, or the instance with the fewest pollers. mu must be
// held.
//
//verbena:held mu
func (s *Pollers) assignWatcher(p *poller) error {
	if p.inotify.Load() != nil {
		return nil
	}
	s.watchers = slices.DeleteFunc(s.watchers, func(e *watcher) bool { return e.fd.Load() == 0 })
	var best *watcher
	var err error
	if len(s.watchers) < s.maxWatcherCount {
		if best, err = newWatcher(); err == nil {
			s.watchers = append(s.watchers, best)
		}
	}
	if best == nil && len(s.watchers) > 0 {
		best = slices.MinFunc(s.watchers, func(a, b *watcher) int { return a.pollerCount() - b.pollerCount() })
	}
	if best == nil {
		return err
	}
	return best.addPoller(p)
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w; see /proc/sys/fs/inotify/max_user_instances", err)
	}
	e := &watcher{pollers: map[*poller]struct{}{}, watches: map[int32]*PolledSource{}, early: map[int32]struct{}{}}
	e.fd.Store(int64(fd))
	return e, nil
}

func (e *watcher) pollerCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pollers)
}

// addPoller adds the poller to the pollers that events wake. leave by the last poller closes the instance.
func (e *watcher) addPoller(p *poller) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := p.addToEpoll(int(e.fd.Load()), unix.EPOLLIN|unix.EPOLLEXCLUSIVE); err != nil {
		if len(e.pollers) == 0 {
			e.close()
		}
		return err
	}
	e.pollers[p] = struct{}{}
	p.inotify.Store(e)
	return nil
}

// removePoller undoes join. The poller must have no watches, and its thread must have ended.
func (e *watcher) removePoller(p *poller) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, int(e.fd.Load()), nil)
	delete(e.pollers, p)
	p.inotify.Store(nil)
	if len(e.pollers) == 0 {
		e.close()
		return
	}
	for other := range e.pollers { // an event may have woken only this poller, after the last read of its thread
		other.wakeThread()
		break
	}
}

//verbena:held mu
func (e *watcher) close() {
	unix.Close(int(e.fd.Swap(0)))
}

// recordWatch records a new watch of a file. The program may already have written to the file. The event may have been
// read, or dropped if lost has changed since.
func (e *watcher) recordWatch(wd int32, x *PolledSource, lost uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x.wd != wd && e.watches[x.wd] == x { // the end of the former watch was dropped
		delete(e.watches, x.wd)
	}
	if _, ended := e.early[wd]; ended || e.lost.Load() != lost {
		delete(e.early, wd)
		x.armed.Store(false)
		x.p.wakeThread()
		return
	}
	e.watches[wd] = x
	x.wd = wd
}

// removeWatch removes the watch of a file. The poller must belong to e.
func (e *watcher) removeWatch(x *PolledSource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x.wd != 0 && e.watches[x.wd] == x {
		e.watches[x.wd] = nil // until the end of the watch has been read
		_, _ = unix.InotifyRmWatch(int(e.fd.Load()), uint32(x.wd))
	}
}

// maxEventReads limits the reads of a thread that reads the events of other pollers.
const maxEventReads = 64

// readEvents reads the inotify events and wakes the pollers of the modified files. The watches of these files have
// ended. The thread of a poller of e must call read. readEvents reports whether a file of this poller may have been
// modified.
func (e *watcher) readEvents(by *poller) (own bool) {
	var buf [64 * unix.SizeofInotifyEvent]byte
	for range maxEventReads {
		n, err := unix.Read(int(e.fd.Load()), buf[:])
		if err != nil {
			return own // no more events
		}
		e.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				e.markAllFilesModified()
				own = true
			case mask&unix.IN_IGNORED != 0:
				own = e.recordWatchEnd(wd, by) || own
			}
		}
		e.mu.Unlock()
	}
	// The instance has more events than one thread should read. Another sleeping thread reads the remaining events.
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range e.pollers {
		p.wakeThread()
	}
	return true
}

// recordWatchEnd records the end of a watch, and reports whether the watch belongs to the poller by.
//
//verbena:held mu
func (e *watcher) recordWatchEnd(wd int32, by *poller) (own bool) {
	x, known := e.watches[wd]
	switch delete(e.watches, wd); {
	case !known:
		e.early[wd] = struct{}{}
	case x != nil:
		x.armed.Store(false)
		if x.p == by {
			return true
		}
		x.p.wakeThread()
	}
	return false
}

// markAllFilesModified treats all watched files as modified. It is harmless to arm a watch that is still armed.
//
//verbena:held mu
func (e *watcher) markAllFilesModified() {
	e.lost.Add(1)
	for _, x := range e.watches {
		if x != nil {
			x.armed.Store(false)
		}
	}
	clear(e.early)
	for p := range e.pollers {
		p.wakeThread()
	}
}

// wakeThread wakes the poller's thread. The lock of the poller's inotify instance must be held, so that the descriptors
// are open.
func (p *poller) wakeThread() { _, _ = unix.Write(p.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
