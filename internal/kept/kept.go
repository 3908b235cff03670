package kept

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/internal/reopen"
)

const (
	// fewNotes is the largest number of notes that Keep itself checks. More notes are checked by a timer.
	fewNotes = 64
	// firstPause and lastPause are the pauses between two checks.
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
	// After a check that took more than longCheck of processor time, the next check begins at the earliest after
	// checkPauseFactor times that time. A user at a limit causes a check with each refusal.
	longCheck        = 10 * time.Millisecond
	checkPauseFactor = 4
)

// Keeper tracks the objects of all users. Keeper is safe for concurrent use. The nil Keeper tracks nothing.
type Keeper struct {
	log *slog.Logger

	mu     sync.Mutex
	of     map[*quota.User]*UserObjects
	closed bool
}

// New returns a Keeper. log, which may be nil, receives errors that cannot be returned to a caller.
func New(log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{log: log, of: map[*quota.User]*UserObjects{}}
}

// ObjectsOf returns the UserObjects of a user, which is always the same value. The nil Keeper returns nil.
func (k *Keeper) ObjectsOf(u *quota.User) *UserObjects {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.of[u]
	if s == nil {
		s = &UserObjects{user: u, log: k.log, epoll: -1, closed: k.closed}
		k.of[u] = s
	}
	return s
}

// Release ends the charges for the user's objects that no program has any more. (quota.Ledger.OnShortage)
func (k *Keeper) Release(u *quota.User) { k.ObjectsOf(u).release() }

// Object is an object that a program may have. Object's methods may not sleep.
type Object interface {
	// InUse reports whether a program has the object.
	InUse() bool
	// Close ends the service's own use of the object.
	Close() error
}

// UserObjects tracks the objects of one user. UserObjects is safe for concurrent use. The nil UserObjects tracks
// nothing.
type UserObjects struct {
	user *quota.User
	log  *slog.Logger

	mu     sync.Mutex
	epoll  int    // -1 before the first note
	last   uint64 // number of the latest note
	noted  int    // number of open notes at the last check, plus later notes
	left   []objectCharge
	timer  *time.Timer   // starts the next check; nil without a pending check
	pause  time.Duration // pause before the check after the next
	rested time.Time     // earliest time of the next check
	sweeps []*ReleaseSweep
	closed bool
}

// ReleaseSweep is a function that closes objects that programs have closed and the service has not.
type ReleaseSweep struct{ f func() }

type objectCharge struct {
	Object
	end func()
}

// FileNote identifies a noted description. The zero FileNote identifies no description, and is not in use.
type FileNote struct {
	of *UserObjects
	id uint64
}

// NoteFile notes the description of a pipe, a socket or an eventfd, before a program receives it.
func (s *UserObjects) NoteFile(fd int) (FileNote, error) {
	if s == nil {
		return FileNote{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return FileNote{}, nil
	}
	fail := func(what string, err error) (FileNote, error) {
		return FileNote{}, fmt.Errorf("note a descriptor of a program: %s: %w", what, err)
	}
	if s.epoll < 0 {
		epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return fail("epoll_create1", err)
		}
		s.epoll = epoll
	}
	s.last++
	event := unix.EpollEvent{Fd: int32(s.last), Pad: int32(s.last >> 32)} // the event carries 64 bits of data
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fail("epoll_ctl", err)
	}
	s.noted++
	return FileNote{s, s.last}, nil
}

// MakePipe makes a pipe and notes its reading end, which is for a program. Writes to the writing end do not block. If
// the process can open a file of mode 0, MakePipe prevents a program from opening the pipe again, since that would make
// another description.
func (s *UserObjects) MakePipe() (read, write int, note FileNote, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, FileNote{}, os.NewSyscallError("pipe2", err)
	}
	if err = unix.SetNonblock(p[1], true); err == nil {
		err = reopen.DenyReopen(p[0])
	}
	if err == nil { // one page of memory instead of 16
		_, err = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, os.Getpagesize())
	}
	if err == nil {
		note, err = s.NoteFile(p[0])
	}
	if err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return -1, -1, FileNote{}, err
	}
	return p[0], p[1], note, nil
}

// InUse reports whether any process has the description.
func (n FileNote) InUse() bool {
	if n.of == nil {
		return false
	}
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	ids, err := n.of.openNoteIDs()
	_, open := slices.BinarySearch(ids, n.id)
	return open || err != nil
}

// Close does nothing, because the note ends with the description.
func (FileNote) Close() error { return nil }

// Keep closes the object and calls end, which ends a charge, as soon as no program has the object. The service must
// not use the object any more, and must have closed its descriptors of a noted description. Neither Keep nor end
// sleeps. end may be called before Keep returns.
func (s *UserObjects) Keep(o Object, end func()) {
	if s == nil {
		o.Close()
		end()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, objectCharge{o, end})
	if s.closed {
		s.endAllCharges()
		return
	}
	s.pause = firstPause
	if s.timer == nil && s.noted <= fewNotes {
		s.checkObjects()
	}
	s.scheduleCheck()
}

// scheduleCheck schedules another check if objects remain.
//
//verbena:held mu
func (s *UserObjects) scheduleCheck() {
	if len(s.left) == 0 || s.timer != nil {
		return
	}
	s.timer = time.AfterFunc(max(s.pause, time.Until(s.rested)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return
		}
		s.timer = nil
		s.checkObjects()
		s.scheduleCheck()
	})
	s.pause = min(2*s.pause, lastPause)
}

// OnRelease makes Release call f before its check. f closes objects that programs have closed, so that Release ends
// their charges. f may not sleep, charge the user's account, or call OnRelease or RemoveSweep.
func (s *UserObjects) OnRelease(f func()) *ReleaseSweep {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sweep := &ReleaseSweep{f}
	s.sweeps = append(s.sweeps, sweep)
	return sweep
}

// RemoveSweep ends OnRelease. f may still be running when RemoveSweep returns.
func (s *UserObjects) RemoveSweep(sweep *ReleaseSweep) {
	if s == nil || sweep == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeps = slices.DeleteFunc(s.sweeps, func(x *ReleaseSweep) bool { return x == sweep })
}

// release ends the charges for objects that no program has any more. release does not sleep.
func (s *UserObjects) release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	sweeps := slices.Clone(s.sweeps)
	resting := time.Now().Before(s.rested)
	s.mu.Unlock()
	if resting {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadCPUTime()
	for _, sweep := range sweeps {
		sweep.f()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkObjectsSince(began)
}

//verbena:held mu
func (s *UserObjects) checkObjects() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s.checkObjectsSince(threadCPUTime())
}

// checkObjectsSince checks the objects. It sets the earliest time of the next check if the thread has used much
// processor time since began.
//
//verbena:held mu
func (s *UserObjects) checkObjectsSince(began time.Duration) {
	defer func() {
		if took := threadCPUTime() - began; took > longCheck {
			s.rested = time.Now().Add(checkPauseFactor * took)
		}
	}()
	if len(s.left) == 0 || time.Now().Before(s.rested) {
		return
	}
	open, err := s.openNoteIDs()
	if err != nil {
		return // the next check may succeed
	}
	s.left = slices.DeleteFunc(s.left, func(c objectCharge) bool {
		if n, ok := c.Object.(FileNote); ok {
			if _, is := slices.BinarySearch(open, n.id); is {
				return false
			}
		} else if c.InUse() {
			return false
		}
		c.Close()
		c.end()
		return true
	})
	if s.noted == 0 {
		s.closeEpoll()
	}
}

// threadCPUTime returns the processor time of the calling thread.
func threadCPUTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

//verbena:held mu
func (s *UserObjects) closeEpoll() {
	if s.epoll >= 0 {
		unix.Close(s.epoll)
		s.epoll = -1
	}
}

// openNoteIDs returns the notes with open descriptions, in order. It returns an error for a shortage that a user may
// have caused, and the charges stay. After any other error, openNoteIDs returns no notes, so that no user is charged
// forever.
//
//verbena:held mu
func (s *UserObjects) openNoteIDs() ([]uint64, error) {
	if s.epoll < 0 {
		return nil, nil
	}
	info, err := procfile.ReadNoFollow(fmt.Sprintf("/proc/self/fdinfo/%d", s.epoll))
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM),
		errors.Is(err, unix.ENOENT): // /proc has no memory for an inode
		return nil, err
	case err != nil:
		s.log.Warn("the service cannot read which descriptors programs keep, and does not charge them", "uid",
			s.user.ID().UID, "err", err)
		return nil, nil
	}
	ids := parseEpollInfo(info)
	s.noted = len(ids)
	return ids, nil
}

// parseEpollInfo returns the data of an epoll instance's entries in fdinfo (proc_pid_fdinfo(5)), in order.
func parseEpollInfo(info []byte) (ids []uint64) {
	for line := range bytes.Lines(info) {
		if !bytes.HasPrefix(line, []byte("tfd:")) {
			continue
		}
		_, rest, found := bytes.Cut(line, []byte("data:"))
		if fields := bytes.Fields(rest); found && len(fields) > 0 {
			if id, err := strconv.ParseUint(string(fields[0]), 16, 64); err == nil {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// Close ends all charges, and closes the service's own objects.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for _, s := range k.of {
		s.close()
	}
}

func (s *UserObjects) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.endAllCharges()
	s.closeEpoll()
}

//verbena:held mu
func (s *UserObjects) endAllCharges() {
	for _, c := range s.left {
		c.Close()
		c.end()
	}
	s.left = nil
}

// UnreadSocket is the service's descriptor of a socket that has a program at its other end. UnreadSocket is in use
// until the program has received all sent data, or has closed its end. Unread data takes memory even after the service
// has closed its end.
type UnreadSocket int

// InUse implements Object. (SIOCOUTQ of unix(7))
func (fd UnreadSocket) InUse() bool {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	return err == nil && n > 0
}

// Close implements Object.
func (fd UnreadSocket) Close() error { return unix.Close(int(fd)) }
