package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/internal/contain"
	"verbena/internal/kept"
	"verbena/internal/procfile"
	"verbena/internal/quota"
	"verbena/internal/reopen"
	"verbena/rdmacm/ucma"
	"verbena/umem"
	"verbena/uverbs"
)

// A program's descriptor of /dev/infiniband/rdma_cm is the reading end of a pipe, so poll(2), epoll(7) and
// select(2) on it work natively. The pipe holds a byte while there are events. As on the other device files,
// write(2) of a command is trapped by the number of the descriptor.
//
// If there is no pending event, a goroutine (awaitEvent) answers a GET_EVENT later, so the call does not occupy a
// worker. In the kernel a signal would end the wait of a GET_EVENT. Since Linux 5.19 a signal cannot end a call
// that the supervisor has received, so the goroutine checks for signals.

// cmDevice is the name of the device file.
const cmDevice = "rdma_cm"

// cmPipe is the service's end of the pipe of an open file. A program can read from the pipe into memory that blocks
// access. The read holds the kernel's lock of the pipe, and blocks every other reader and writer. Therefore
// cmPipe.update holds no shared lock during a write or read, and its thread is charged to the user.
type cmPipe struct {
	end    *os.File // the writing end of the pipe
	user   *quota.User
	kept   *kept.UserObjects
	note   kept.FileNote                // charge for the program's end
	setter func(fd int, full bool) bool // replacement of setPipe in tests, or nil

	mu   sync.Mutex
	fd   int           // descriptor of end, or -1 once closed
	want bool          // there are events
	full bool          // there is a byte in the pipe
	edge bool          // events have arrived since the last write; an edge-triggered poller needs another write
	busy chan struct{} // closed when the thread that updates the pipe ends; nil without such a thread
	over bool          // close was called
}

// descriptorsPerPipe is the number of descriptors charged for a pipe while a program has its other end.
const descriptorsPerPipe = 2

// pipeTimeout limits the time that a call waits for another thread to update the pipe.
const pipeTimeout = 100 * time.Millisecond

// setReady records whether there are events. cmPipe.update updates the pipe soon afterwards. setReady does not sleep.
// (ucma.Config)
func (p *cmPipe) setReady(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.edge = on && (p.edge || !p.want)
	p.want = on
	if !p.isUpToDate() && p.busy == nil && p.fd >= 0 {
		go p.updatePipe()
	}
}

// isUpToDate reports whether the pipe agrees with the last call of ready. A byte written before a new event does not
// suffice, since the program may already have seen that byte and found no events.
//
//verbena:held mu
func (p *cmPipe) isUpToDate() bool { return p.want == p.full && !p.edge }

// updatePipe writes a byte to the pipe or removes the byte, until poll(2) on the pipe agrees with the last call of
// ready. updatePipe can block as long as the program blocks the pipe.
func (p *cmPipe) updatePipe() {
	for {
		p.mu.Lock()
		if busy := p.busy; busy != nil { // another thread updates the pipe; full may be out of date until it ends
			p.mu.Unlock()
			timer := time.NewTimer(pipeTimeout)
			select {
			case <-busy:
				timer.Stop()
				continue
			case <-timer.C:
				return
			}
		}
		if p.over || p.fd < 0 || p.isUpToDate() || p.user.Charge(quota.Workers, 1) != nil {
			p.mu.Unlock()
			return
		}
		p.busy = make(chan struct{})
		on, fd := p.want, p.fd
		p.edge = false
		p.mu.Unlock()
		ok := false
		contain.RecoverPanic(func() { ok = p.setPipeState(fd, on) }, nil)
		p.user.Release(quota.Workers, 1)
		p.mu.Lock()
		close(p.busy)
		p.busy = nil
		if ok {
			p.full = on
		}
		over := p.over
		p.mu.Unlock()
		if over {
			p.close()
		}
		if over || !ok { // without a free descriptor, the program polls once without finding an event
			return
		}
	}
}

// setPipeState calls setPipe or its replacement in tests.
func (p *cmPipe) setPipeState(fd int, full bool) bool {
	if p.setter != nil {
		return p.setter(fd, full)
	}
	return setPipe(fd, full)
}

// setPipe writes a byte to a pipe, or removes the byte, by the writing end of the pipe.
func setPipe(fd int, full bool) bool {
	if full {
		_, _ = unix.Write(fd, []byte{0})
		return true
	}
	// Only the program keeps a descriptor of the reading end, so the service can detect its close.
	other, err := reopen.FileOnCallingThread(fd, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	var b [64]byte
	for n := len(b); n == len(b); {
		if n, err = unix.Read(other, b[:]); err != nil {
			break
		}
	}
	unix.Close(other)
	return true
}

// close closes the writing end, either at once or after the thread that uses it.
func (p *cmPipe) close() {
	p.mu.Lock()
	p.over = true
	now := p.busy == nil && p.fd >= 0
	if now {
		p.fd = -1
	}
	p.mu.Unlock()
	if now {
		p.end.Close()
		p.kept.Keep(p.note, func() { p.user.Release(quota.Descriptors, descriptorsPerPipe) })
	}
}

// watchReaders calls gone after the program has closed all descriptors of its end, or after close was called.
func (p *cmPipe) watchReaders(gone func()) {
	defer gone()
	raw, err := p.end.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		pfd := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(pfd, 0)
		return err == nil && n == 1 && pfd[0].Revents&unix.POLLERR != 0
	})
}

// cmWaits describes the calls on a file that wait for events.
type cmWaits struct {
	left chan struct{} // closed after the program has closed its last descriptor
	user *atomic.Int64 // number of waiting calls of the user on all files
}

// noteLastClose records that the program has closed its last descriptor. The waiting calls then check whether their
// threads exist.
func (f *openFile) noteLastClose() {
	close(f.waits.left)
	f.abandon()
}

// getOrAddWaitCount returns the number of a user's calls that wait for events.
func (s *Supervisor) getOrAddWaitCount(u *quota.User) *atomic.Int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.waits[u]
	if n == nil {
		n = &atomic.Int64{}
		s.waits[u] = n
	}
	return n
}

// cmFile adapts a ucma.File to a device file of this package.
type cmFile struct{ *ucma.File }

// Write serves callers that accept no later answer, and always fails.
func (f cmFile) Write(uverbs.Caller, uint64, int) (int, error) { return 0, syscall.EINVAL }

func (f cmFile) Ioctl(uverbs.Caller, uint32, uint64) error {
	return fmt.Errorf("%s has no ioctl: %w", cmDevice, syscall.ENOTTY)
}

// FailDevice does nothing, because a file of the connection manager has no device.
func (f cmFile) FailDevice(error) {}

// newCMFile opens the file for a process. Like newOpenFile, newCMFile also returns the description for the program.
func newCMFile(t *Session, n *deviceNode, p *opener, how int) (_ *openFile, description *os.File, err error) {
	f := &openFile{sup: t.sup, session: t, node: *n, user: p.user, pid: p.id.pid, access: how & unix.O_ACCMODE,
		ended: make(chan struct{})}
	if err := f.user.Charge(quota.Contexts, 1); err != nil {
		return nil, nil, err
	}
	if err := f.user.Charge(quota.Descriptors, descriptorsPerPipe); err != nil {
		f.user.Release(quota.Contexts, 1)
		return nil, nil, err
	}
	fail := func(err error) (*openFile, *os.File, error) {
		if f.pipe == nil {
			f.user.Release(quota.Descriptors, descriptorsPerPipe)
		}
		f.user.Release(quota.Contexts, 1)
		return nil, nil, fmt.Errorf("open %s: %w", cmDevice, err)
	}
	keep := t.sup.cfg.Kept.ObjectsOf(p.user)
	reader, writer, note, err := keep.MakePipe()
	if err != nil {
		return fail(err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(reader, &st); err == nil && how&unix.O_NONBLOCK != 0 {
		err = unix.SetNonblock(reader, true)
	}
	if err != nil {
		unix.Close(reader)
		unix.Close(writer)
		return fail(err)
	}
	f.inode = inode{st.Dev, st.Ino}
	f.waits.left, f.waits.user = make(chan struct{}), t.sup.getOrAddWaitCount(p.user)
	f.pipe = &cmPipe{end: os.NewFile(uintptr(writer), cmDevice), fd: writer, user: p.user, kept: keep, note: note}
	f.cm = t.sup.cfg.CM.Open(ucma.Config{User: p.user, PID: p.id.pid, UID: p.id.uids.effective, Session: t.name,
		Alive: p.isAlive,
		Ready: f.pipe.setReady})
	f.file = cmFile{f.cm}
	s := t.sup
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.files[f.inode] = f
	}
	s.mu.Unlock()
	if closed {
		unix.Close(reader)
		f.cm.Close()
		f.pipe.close()
		return fail(fmt.Errorf("the service is ending: %w", unix.ENODEV))
	}
	return f, os.NewFile(uintptr(reader), cmDevice), nil
}

// closeCMFile ends a file of the connection manager.
func (f *openFile) closeCMFile() {
	f.cm.Close()
	f.pipe.close()
	f.user.Release(quota.Contexts, 1)
}

// cmCaller is the caller of a command, which may outlive the worker's call. (ucma.Caller)
type cmCaller struct {
	space umem.Space
	by    *caller // nil while its worker answers other calls
	trace *callTrace
	other *openFile   // the file that CMFile found
	user  *quota.User // user that opened the file
}

var (
	_ ucma.Caller = (*cmCaller)(nil)
	_ ucma.Tracer = (*cmCaller)(nil)
)

func (c *cmCaller) Space() umem.Space { return c.space }

// TraceCM adds the command to the trace of the session. (ucma.Tracer)
func (c *cmCaller) TraceCM(request, response string) {
	if c.trace != nil {
		c.trace.command.Name, c.trace.command.Response = request, response
	}
}

// CMFile returns the file that a descriptor of the caller refers to.
func (c *cmCaller) CMFile(fd int) (*ucma.File, error) {
	if c.by == nil {
		return nil, syscall.EINVAL
	}
	i, err := inodeOf(c.by.n.tid, int32(fd))
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, syscall.ENOENT)
	}
	if err := c.by.checkTrapped(); err != nil {
		return nil, err
	}
	f := c.by.session.sup.openFileOf(i)
	if f == nil || f.cm == nil {
		return nil, fmt.Errorf("descriptor %d does not refer to %s: %w", fd, cmDevice, syscall.EINVAL)
	}
	c.other = f
	return f.cm, nil
}

// MayConnect reports whether a queue pair belongs to the caller or to the user that opened the file. A manager may
// connect any queue pair.
func (c *cmCaller) MayConnect(dev *ib.Device, num uint32) bool {
	if c.by == nil {
		return false
	}
	s := c.by.session.sup
	owner, ok := s.server.queuePairUser(dev, num)
	if ok && owner == c.user {
		return true
	}
	th, err := c.by.lookUpThread()
	if err != nil {
		return false
	}
	defer th.close()
	who, err := s.principalOf(th)
	if err != nil || c.by.checkTrapped() != nil {
		return false
	}
	return who.Manager || ok && owner == s.cfg.Quota.Account(who.Account)
}

// MayBindLowPorts reports whether the caller has CAP_NET_BIND_SERVICE in this process's user namespace.
func (c *cmCaller) MayBindLowPorts() bool {
	if c.by == nil {
		return false
	}
	th, err := c.by.lookUpThread()
	if err != nil {
		return false
	}
	defer th.close()
	return th.id.bindCapability
}

// answerCMCommand answers a command on a file that the caller has entered. If waits is true, the command is a GET_EVENT
// that awaitEvent answers later.
func (dc *deviceCalls) answerCMCommand(f *openFile) (v callResult, waits bool) {
	c := &cmCaller{space: dc.Space(), by: dc.caller, trace: dc.caller.trace, user: f.user}
	n, taken, err := f.cm.Write(c, dc.caller.n.args[1], int(min(dc.caller.n.args[2], 1<<20)))
	f.pipe.updatePipe()
	if c.other != nil {
		c.other.pipe.updatePipe()
	}
	switch {
	case errors.Is(err, ucma.ErrNoEvent):
		if dc.known.stale {
			return callResult{fate: fateContinued}, false
		}
		switch nonBlocking, err := dc.isNonBlocking(f); {
		case err != nil:
			return failWith(err), false
		case nonBlocking:
			return failWith(syscall.EAGAIN), false
		}
		if err := dc.caller.checkTrapped(); err != nil {
			return failWith(err), false
		}
		d := &deferredGetEvent{
			session: dc.caller.session, n: dc.caller.n, f: f, caller: &cmCaller{space: c.space}, began: time.Now(),
		}
		if dc.caller.trace != nil {
			d.caller.trace, dc.caller.trace.later = &callTrace{}, true
		}
		go contain.RecoverPanic(d.awaitEvent, d.handlePanic)
		return callResult{fate: fateSent}, true
	case err != nil:
		return failWith(err), false
	}
	if taken != nil {
		dc.event = taken
	}
	return callResult{val: int64(n)}, false
}

// isNonBlocking reports whether O_NONBLOCK is set on the descriptor of the call. isNonBlocking returns false if that is
// unknown. An error of isNonBlocking is errCallerGone.
func (dc *deviceCalls) isNonBlocking(f *openFile) (bool, error) {
	th, err := dc.caller.lookUpThread()
	if err != nil {
		return false, keepErrCallerGone(err)
	}
	defer th.close()
	fd := int32(dc.caller.n.args[0])
	copied, err := dc.caller.duplicateDescriptor(th, fd)
	if err != nil {
		return err == unix.EPERM && dc.isNonBlockingByProc(fd), keepErrCallerGone(err)
	}
	defer unix.Close(copied)
	flags, err := unix.FcntlInt(uintptr(copied), unix.F_GETFL, 0)
	return err == nil && refersToInode(copied, f.inode) && flags&unix.O_NONBLOCK != 0, nil
}

// keepErrCallerGone returns errCallerGone errors, and nil for others.
func keepErrCallerGone(err error) error {
	if errors.Is(err, errCallerGone) {
		return err
	}
	return nil
}

// isNonBlockingByProc returns the flag for a service that may not call pidfd_getfd(2). Such a service serves only its
// own user. Other users could replace the file by an epoll instance. The kernel would then list the entries of the
// epoll instance in memory charged to the service. (proc_pid_fdinfo(5))
func (dc *deviceCalls) isNonBlockingByProc(fd int32) bool {
	b, err := procfile.ReadNoFollow(fmt.Sprintf("/proc/%d/fdinfo/%d", dc.caller.n.tid, fd))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("flags:")); ok {
			flags, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 8, 32)
			return err == nil && flags&unix.O_NONBLOCK != 0
		}
	}
	return false
}

// deferredGetEvent is a GET_EVENT that waits for an event.
type deferredGetEvent struct {
	session *Session
	n       notification
	f       *openFile
	caller  *cmCaller
	began   time.Time
}

// The following constants are the intervals at which awaitEvent checks a waiting call for a signal, and whether its
// thread exists.
const (
	firstSignalLook = 10 * time.Millisecond
	lastSignalLook  = 100 * time.Millisecond
	threadLook      = time.Second
	// lookEach is the minimum interval between two checks of all waiting calls of a user, which can be thousands.
	lookEach = time.Millisecond
)

// errRestart makes the kernel restart the call after the signal handler, or fail the call with EINTR, depending on
// SA_RESTART. (ERESTARTSYS)
const errRestart = syscall.Errno(512)

// awaitEvent answers the call when there is an event, the file is closed, or a signal arrives. The caller has
// begun a call on the file.
func (d *deferredGetEvent) awaitEvent() {
	defer d.f.endCall()
	d.f.waits.user.Add(1)
	defer d.f.waits.user.Add(-1)
	pause := firstSignalLook
	shared := false
	left := d.f.waits.left
	for {
		ready := make(chan struct{})
		w := d.f.cm.AddWaiter(func() { close(ready) })
		if w == nil {
			if d.tryGetEvent() {
				return
			}
			continue
		}
		timer := time.NewTimer(max(pause, time.Duration(d.f.waits.user.Load())*lookEach))
		select {
		case <-ready:
			timer.Stop()
			if d.tryGetEvent() {
				return
			}
			continue
		case <-left: // the thread may have ended
			timer.Stop()
			left, pause = nil, firstSignalLook
		case <-timer.C:
		}
		if !d.f.cm.CancelWait(w) { // the event is just being delivered
			if d.tryGetEvent() {
				return
			}
			continue
		}
		if checkStillTrapped(d.session.fd, d.n.id) != nil {
			return
		}
		s := readPendingSignals(int(d.n.tid))
		switch {
		case s.own, s.shared && shared:
			why := errRestart
			if !s.own && !s.alone {
				why = syscall.EINTR // another thread may handle the signal, which this thread does not see
			}
			d.sendAnswer(callResult{err: why}) // if the thread has ended, no other thread receives the answer
			return
		}
		shared = s.shared
		if pause = min(2*pause, lastSignalLook); !s.handles {
			pause = threadLook
		} else if shared {
			pause = firstSignalLook
		}
	}
}

// handlePanic answers the call after a panic and closes the file, because the state of the file is unknown.
func (d *deferredGetEvent) handlePanic(p any, stack []byte) {
	d.session.log.Error(fmt.Sprintf("panic in a call of thread %d that waits for events", d.n.tid), "panic", p, "stack",
		string(stack))
	d.sendAnswer(callResult{err: syscall.EIO})
	d.f.close()
}

// tryGetEvent takes an event from the queue, and reports whether it answered the call.
//
//verbena:parses
func (d *deferredGetEvent) tryGetEvent() bool {
	if f := d.session.sup.cfg.pause; f != nil {
		f("event", d.n.tid)
	}
	n, taken, err := d.f.cm.Write(d.caller, d.n.args[1], int(min(d.n.args[2], 1<<20)))
	if errors.Is(err, ucma.ErrNoEvent) {
		return checkStillTrapped(d.session.fd, d.n.id) != nil
	}
	d.f.pipe.updatePipe()
	if !d.sendAnswer(callResult{val: int64(n), err: err}) && taken != nil {
		taken.Requeue()
	}
	return true
}

// sendAnswer answers the call, and reports whether the thread has received the answer.
func (d *deferredGetEvent) sendAnswer(v callResult) bool {
	r := notificationResponse{id: d.n.id, val: v.val}
	if v.err != nil {
		r = notificationResponse{id: d.n.id, errno: -int32(errnoOf(v.err))}
	}
	if t := d.caller.trace; t != nil {
		d.session.info.Trace(fmt.Sprintf("%d write(%d<%s>, %s, %d) = %s <%.6f>", d.n.tid, int32(d.n.args[0]), cmDevice,
			t.command.Name,
			d.n.args[2], t.formatResult(v), time.Since(d.began).Seconds()))
	}
	return sendResponse(d.session.fd, &r) == nil
}

// pendingSignals describes the pending signals that would interrupt a thread.
type pendingSignals struct {
	own     bool // a signal was sent to the thread, or to its process if it is the main thread
	shared  bool // a signal was sent to the process
	alone   bool // no other thread can handle the shared signals
	handles bool // the process has signal handlers
}

// readPendingSignals reads the pending signals of a thread. (proc_pid_status(5))
func readPendingSignals(tid int) (s pendingSignals) {
	b, err := procfile.ReadNoFollow("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return s
	}
	var mine, shared, blocked, caught uint64
	var tgid, threads int
	for line := range bytes.Lines(b) {
		key, rest, _ := strings.Cut(string(line), ":")
		rest = strings.TrimSpace(rest)
		switch key {
		case "Tgid":
			tgid, _ = strconv.Atoi(rest)
		case "Threads":
			threads, _ = strconv.Atoi(rest)
		case "SigPnd":
			mine, _ = strconv.ParseUint(rest, 16, 64)
		case "ShdPnd":
			shared, _ = strconv.ParseUint(rest, 16, 64)
		case "SigBlk":
			blocked, _ = strconv.ParseUint(rest, 16, 64)
		case "SigCgt":
			caught, _ = strconv.ParseUint(rest, 16, 64)
		}
	}
	// A stop signal without a handler also interrupts the wait.
	const stops = 1<<(unix.SIGTSTP-1) | 1<<(unix.SIGTTIN-1) | 1<<(unix.SIGTTOU-1) | 1<<(unix.SIGSTOP-1)
	wanted := (caught | stops) &^ blocked
	s.handles = caught != 0
	s.shared = shared&wanted != 0
	s.alone = threads == 1
	s.own = mine&wanted != 0 || s.shared && (tid == tgid || s.alone) // the kernel prefers the main thread
	return s
}
