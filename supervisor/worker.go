package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/sched"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/umem"
	"verbena/uverbs"
)

// worker is a thread that answers the calls of a session, one at a time, from the receipt to the answer. Passing a
// call to another thread would cost several times as much as most answers. A worker implements uverbs.Caller for
// the commands that it executes.
type worker struct {
	session  *Session
	source   *notificationSource
	hasToken bool

	// The current call.
	n     notification
	desc  *cachedFile // the device file of argument 0, for calls on a device file
	known callerCache // cached facts about the caller
	path  [unix.PathMax]byte
	trace *callTrace       // nil if the session is not traced
	taken *ucma.TakenEvent // event taken from the queue for the answer, or nil

	// The watchdog uses the following fields; see tokens.
	busy    atomic.Uint32 // busyState
	calls   atomic.Uint64 // number of calls begun
	seen    uint64        // value of calls that the watchdog saw last; guarded by tokens.mu
	timed   bool
	used    int64 // processor time of the thread before a timed call
	stalled bool  // Stalled has answered the call
}

var (
	_ uverbs.Caller = (*worker)(nil)
	_ ib.Staller    = (*worker)(nil)
)

func newWorker(t *Session) *worker {
	return &worker{session: t, source: newNotificationSource(t.listener, t.sup.stop, &t.intake)}
}

// run answers calls until no process of the session is left, or the Supervisor closes. The thread of run ends with
// it, because no other goroutine could run on that thread.
func (w *worker) run() {
	runtime.LockOSThread()
	if err := blockSignals(); err != nil {
		w.session.log.Warn("worker", "err", err)
	}
	sched.SetTimeSlice(sched.SleeperSlice)
	// A program can remove pages of shared memory (ftruncate). The resulting fault must be an error of the
	// program's call, not a crash of the service.
	debug.SetPanicOnFault(true)
	t := &w.session.tokens
	t.joinWatchdog(w)
	defer t.leaveWatchdog(w)
	for t.awaitToken() {
		w.hasToken = true
		for w.hasToken {
			if !w.receiveCall() {
				t.releaseToken() // the next worker then ends too
				return
			}
			w.answerCall()
			w.hasToken = w.hasToken && !t.removeSurplusToken()
		}
	}
}

// receiveCall waits for the next call. It returns false at the end.
func (w *worker) receiveCall() bool {
	t := w.session
	t.tokens.receiving.Add(1)
	ok := w.source.next(&w.n)
	t.tokens.receiving.Add(-1)
	if !ok {
		return false
	}
	t.tokens.recordCaller(w.n.tid)
	t.tokens.addTokenIfShared()
	// SYNC_WAKE_UP makes the kernel run the woken thread on the processor of the waking thread. The answer to a
	// caller that alternates with a worker is then several times as fast. With several callers, SYNC_WAKE_UP would
	// move all of them to one processor, where threads that poll a completion queue delay the others.
	t.switchSyncWakeUp(!t.tokens.isShared())
	return true
}

// callResult is the result of a call.
type callResult struct {
	val  int64
	err  error // wraps an errno
	fate resultKind
}

type resultKind uint8

const (
	fateAnswered  resultKind = iota // val and err are the answer
	fateContinued                   // the call continues in the kernel
	fateSent                        // the answer was already sent
)

func failWith(err error) callResult { return callResult{err: err} }

// errnoOf returns the error number for the program.
func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return syscall.EIO
}

func (w *worker) answerCall() {
	var v callResult
	if w.session.info.Trace == nil {
		v = w.handleCall()
	} else {
		v = w.handleAndTrace()
	}
	r := notificationResponse{id: w.n.id}
	switch {
	case v.fate == fateSent:
		return
	case v.fate == fateContinued:
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	case v.err != nil:
		r.errno = -int32(errnoOf(v.err))
	default:
		r.val = v.val
	}
	// ENOENT means that the thread was killed. The kernel has closed the descriptors installed in the thread's
	// process, and the supervisor detects their last close.
	err := sendResponse(w.session.fd, &r)
	if t := w.taken; t != nil {
		if w.taken = nil; err != nil {
			t.Requeue()
		}
	}
	if err != nil && err != unix.ENOENT {
		w.session.log.Warn("answer a call", "call", callOf(&w.n).String(), "tid", w.n.tid, "err", err)
	}
}

// handleCall answers the current call. A panic becomes an error of the call, and the service continues. After a panic
// the device may have locked mutexes, so it gets a fatal event.
func (w *worker) handleCall() (v callResult) {
	w.known, w.desc = callerCache{}, nil
	defer func() {
		if r := recover(); r != nil {
			w.session.log.Error(fmt.Sprintf("panic in %v of thread %d", callOf(&w.n), w.n.tid), "panic", r, "stack",
				string(debug.Stack()))
			v = failWith(syscall.EIO)
			if d := w.desc; d != nil {
				d.file.file.FailDevice(fmt.Errorf("panic in a command of process %d: %v", w.n.tid, r))
			}
		}
		w.endBusy()
	}()
	c := callOf(&w.n)
	switch c {
	case callExecve, callExecveat:
		return w.answerExec()
	case callDup:
		return w.answerDup(c)
	case callFcntl:
		return w.answerFcntl()
	case callGetdents64:
		return w.answerGetdents()
	case callFchdir:
		return w.answerFchdir()
	case callGetcwd:
		return w.answerGetcwd()
	case callDup2, callDup3:
		return w.answerDupTo(c)
	case callClose, callCloseRange:
		return w.answerClose(c)
	case callSocket:
		return w.openNetlink()
	case callBind, callGetsockname, callSetsockopt:
		return w.answerNetlinkCall(c)
	case callLseek, callPread64, callPwrite64, callFtruncate, callFallocate, callFsync:
		return w.answerUnsupportedCall(c)
	case callWrite, callIoctl, callFstat:
		fd := int32(w.n.args[0])
		w.desc = w.lookUpFile(fd)
		if w.desc == nil {
			return callResult{fate: fateContinued}
		}
		f := w.desc.file
		switch {
		case c == callFstat:
			return w.statDevice(f)
		case c == callIoctl && uint32(w.n.args[1]) != uapi.VerbsIoctl:
			return w.answerOtherIoctl()
		}
		if !f.beginCall() {
			if f.isAbandoned() {
				return failWith(syscall.EBADF)
			}
			return failWith(syscall.EIO)
		}
		return w.answerCommand(c, f)
	}
	return w.answerPathCall(c)
}

// executeCommand executes a command of a call on a device file.
func (w *worker) executeCommand(c call, f *openFile) (v callResult) {
	if c == callIoctl {
		v.err = f.file.Ioctl(w, uint32(w.n.args[1]), w.n.args[2])
		return v
	}
	n, err := f.file.Write(w, w.n.args[1], int(min(w.n.args[2], math.MaxInt32)))
	v.val, v.err = int64(n), err
	return v
}

// answerCommand answers a call on an open device file that the caller has entered.
//
//verbena:parses
func (w *worker) answerCommand(c call, f *openFile) callResult {
	w.stalled = false
	waits := false
	defer func() {
		if !w.stalled && !waits {
			f.endCall()
		}
	}()
	if c == callWrite && f.access == unix.O_RDONLY {
		return failWith(syscall.EBADF)
	}
	w.beginBusy(c)
	var v callResult
	if err := w.checkCommandAllowed(c, f); err != nil {
		return failWith(err)
	}
	if f.cm != nil && c == callWrite {
		v, waits = w.answerCMCommand(f)
	} else if v = w.executeCommand(c, f); w.session.sup.awaitCloses(f.user, v.err) {
		v = w.executeCommand(c, f) // a refused command has no effect
	}
	if w.stalled || waits {
		return callResult{fate: fateSent}
	}
	f.showLibraryFaults()
	if w.known.stale { // no data was read and nothing was executed
		return callResult{fate: fateContinued}
	}
	if v.err != nil {
		w.session.warnIfLimitReached(v.err)
		w.logRefusal(f, v.err)
	}
	return v
}

// checkCommandAllowed returns EACCES for a command on a file that another user has opened. A program may have been
// tricked into writing to an inherited descriptor, or the number may refer to another file than before. Doorbells are
// allowed, because they read nothing and only report that there may be work. (ib_safe_file_access)
func (w *worker) checkCommandAllowed(c call, f *openFile) error {
	if c == callWrite && w.n.args[2] == doorbellSize && f.cm == nil {
		return nil
	}
	if _, _, err := w.cachedCaller(); errors.Is(err, errOtherUser) {
		return err
	}
	return nil // a command fails if it cannot access the caller's memory
}

// Stalled answers a doorbell whose thread is blocked in the memory of another program. The caller's posts were
// consumed, and its file can be closed. Stalled is called on another thread while the worker's thread waits.
// (ib.Staller)
func (w *worker) Stalled() {
	if w.stalled {
		return
	}
	w.stalled = true
	r := notificationResponse{id: w.n.id, val: int64(w.n.args[2])}
	err := sendResponse(w.session.fd, &r)
	log, tid, file := w.session.log, w.n.tid, w.desc.file
	go func() {
		if err != nil && err != unix.ENOENT {
			log.Warn("answer a doorbell", "tid", tid, "err", err)
		}
		file.endCall() // may end the file
	}()
}

// logRefusal logs a command that fails. The error begins with the name of the command.
func (w *worker) logRefusal(f *openFile, err error) {
	t := w.session
	if !t.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	t.log.Debug("command refused", "tid", w.n.tid, "dev", f.node.device, "errno", unix.ErrnoName(errnoOf(err)), "err", err)
}

// Space returns the address space of the current call. (uverbs.Caller)
func (w *worker) Space() umem.Space {
	_, s, err := w.cachedCaller()
	if err != nil {
		return inaccessibleMemory{err}
	}
	return s.Exact()
}

// Peek reads the memory of the cached process of the caller's thread, without checking that the cache entry is
// still valid. Such a check would take longer than the rest of a doorbell. (uverbs.Peeker)
func (w *worker) Peek(dst [][]byte, addr uint64) bool {
	if w.desc == nil {
		return false
	}
	p := w.desc.process.Load()
	if p == nil {
		return false
	}
	s := w.session.addressSpaceOf(p)
	return s != nil && s.Exact().ReadV(dst, addr) == nil
}

// Account returns the account that the caller's registered pages are charged to. (uverbs.Caller)
func (w *worker) Account() *umem.Account {
	p, _, err := w.cachedCaller()
	if err != nil {
		return umem.NewLimitedAccount(func() (uint64, error) { return 0, err })
	}
	return p.acct
}

// InstallFD duplicates a descriptor of the service into the caller. (uverbs.Caller)
func (w *worker) InstallFD(fd int, cloexec bool) (int, error) {
	a := addFD{id: w.n.id, srcFD: uint32(fd)}
	if cloexec {
		a.newFlags = unix.O_CLOEXEC
	}
	n, err := sendAddFD(w.session.fd, &a)
	if err != nil {
		return -1, fmt.Errorf("install a descriptor in thread %d: %w", w.n.tid, err)
	}
	return n, nil
}

// FileInode identifies the file of a descriptor of the caller. (uverbs.Caller)
func (w *worker) FileInode(fd int) (dev, ino uint64, err error) {
	i, err := inodeOf(w.n.tid, int32(fd))
	if err == nil {
		err = w.checkTrapped()
	}
	return i.dev, i.ino, err
}

// inaccessibleMemory represents the memory of a process that cannot be accessed.
type inaccessibleMemory struct{ err error }

func (n inaccessibleMemory) accessError() error                  { return fmt.Errorf("%w: %w", umem.ErrFault, n.err) }
func (n inaccessibleMemory) Check(uint64, uint64, bool) error    { return n.accessError() }
func (n inaccessibleMemory) ReadV(dst [][]byte, _ uint64) error  { return n.accessError() }
func (n inaccessibleMemory) WriteV(src [][]byte, _ uint64) error { return n.accessError() }

// cachedFile is a device file as accessed by one thread. The lookup of a device file takes longer than most calls,
// so the result is cached for a while, for doorbells only. Other calls look the file up again (findCaller).
type cachedFile struct {
	tid     uint32
	fd      int32
	file    *openFile
	until   time.Duration           // time since base
	process atomic.Pointer[process] // process of the thread, once known
}

const (
	cacheSize = 64
	// descriptorCacheTime is less than the time in which thread IDs can wrap around. Within that time, a thread ID
	// identifies a thread.
	descriptorCacheTime = 500 * time.Millisecond
)

// clockBase is the origin of until. Reading only the monotonic clock takes half as long as time.Now.
var clockBase = time.Now()

func cacheSlot(tid uint32, fd int32) uint32 { return (tid*31 + uint32(fd)) % cacheSize }

// lookUpFile returns the device file at a number of the caller, or nil for other files.
func (w *worker) lookUpFile(fd int32) *cachedFile {
	t, tid := w.session, w.n.tid
	at := &t.cache[cacheSlot(tid, fd)]
	old := at.Load()
	if old != nil && old.tid == tid && old.fd == fd && !old.file.isClosed() && time.Since(clockBase) < old.until {
		return old
	}
	i, err := inodeOf(tid, fd)
	if err != nil {
		return nil
	}
	f := t.sup.openFileOf(i)
	if f == nil || w.checkTrapped() != nil {
		return nil
	}
	d := &cachedFile{tid: tid, fd: fd, file: f, until: time.Since(clockBase) + descriptorCacheTime}
	if old != nil && old.tid == tid {
		if p := old.process.Load(); p != nil && p.user == f.user && p.hasThread(tid) {
			d.process.Store(p)
		}
	}
	at.Store(d)
	return d
}

// dropCachedFiles removes the cached entries for the numbers from first to last.
func (t *Session) dropCachedFiles(first, last uint32) {
	for i := range t.cache {
		if d := t.cache[i].Load(); d != nil && first <= uint32(d.fd) && uint32(d.fd) <= last {
			t.cache[i].CompareAndSwap(d, nil)
		}
	}
}

// answerClose answers close(2) and close_range(2). Each closed number may later refer to another file, on which writes
// are not doorbells.
func (w *worker) answerClose(c call) callResult {
	first := uint32(w.n.args[0])
	last := first
	if c == callCloseRange {
		last = uint32(w.n.args[1])
	}
	w.session.dropCachedFiles(first, last)
	return callResult{fate: fateContinued}
}

// fdLink returns the path of the link for a number in a thread's directory in /proc.
func fdLink(fd int32) string { return "fd/" + strconv.Itoa(int(fd)) }

// inodeOf returns the inode of the file at a number of a thread.
func inodeOf(tid uint32, fd int32) (inode, error) { return inodeAt(tid, fdLink(fd)) }

// inodeAt returns the inode of the file that a link in a thread's directory in /proc refers to. It does not query
// the file system, which may be a program of the user (FUSE).
func inodeAt(tid uint32, link string) (inode, error) {
	var st unix.Statx_t
	path := "/proc/" + strconv.Itoa(int(tid)) + "/" + link
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO,
		&st); err != nil {
		return inode{}, fmt.Errorf("look up %s: %w", path, err)
	}
	return inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, nil
}
