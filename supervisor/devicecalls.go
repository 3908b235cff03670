package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/umem"
	"verbena/uverbs"
)

// A program's descriptor of a device file refers to another kind of file: a memfd, or a pipe. The supervisor
// answers the calls in this file in the same way as the kernel's device file. The supervisor does not trap read(2)
// and similar calls, because a check of each read of each descriptor would cost too much.

// deviceCalls answers the calls on open device files, one at a time. It implements uverbs.Caller for the commands that
// it executes.
type deviceCalls struct {
	caller *caller
	token  *tokenHolder

	// The current call.
	desc    *cachedFile      // the device file of argument 0, or nil
	known   callerCache      // cached facts about the caller
	event   *ucma.TakenEvent // event taken from the queue for the answer, or nil
	stalled bool             // Stalled has answered the call
	later   []ib.LateWork    // work that runs after the answer
	few     [4]ib.LateWork   // array of later
}

var (
	_ uverbs.Caller = (*deviceCalls)(nil)
	_ uverbs.NetRaw = (*deviceCalls)(nil)
	_ uverbs.Peeker = (*deviceCalls)(nil)
	_ uverbs.Tracer = (*deviceCalls)(nil)
	_ ib.Staller    = (*deviceCalls)(nil)

	_ uverbs.LateWorker = (*deviceCalls)(nil)
)

// maxLateWorkers limits the workers of a session that run work after an answer, because this work may block for ever.
const maxLateWorkers = sharedTokens

// beginAnswer removes the state of the previous call.
func (dc *deviceCalls) beginAnswer() { dc.known, dc.desc = callerCache{}, nil }

// deviceName returns the device of the file in argument 0, or an empty string for other files.
func (dc *deviceCalls) deviceName() string {
	if dc.desc == nil {
		return ""
	}
	return dc.desc.file.node.device
}

// lookUpFile returns the device file of argument 0, or nil for other files.
func (dc *deviceCalls) lookUpFile() *openFile {
	if dc.desc = dc.caller.lookUpFile(int32(dc.caller.n.args[0])); dc.desc == nil {
		return nil
	}
	return dc.desc.file
}

// answerCall answers write(2) or ioctl(2).
func (dc *deviceCalls) answerCall(c call) callResult {
	f := dc.lookUpFile()
	switch {
	case f == nil:
		return callResult{fate: fateContinued}
	case c == callIoctl && uint32(dc.caller.n.args[1]) != uapi.VerbsIoctl:
		return dc.answerOtherIoctl()
	case f.beginCall():
		return dc.answerCommand(c, f)
	case f.isAbandoned():
		return failWith(syscall.EBADF)
	}
	return failWith(syscall.EIO)
}

// answerFstat answers fstat(2).
func (dc *deviceCalls) answerFstat() callResult {
	f := dc.lookUpFile()
	if f == nil {
		return callResult{fate: fateContinued}
	}
	return dc.caller.statDevice(f)
}

// unsupportedCalls maps calls that no device file supports to their errors. (The kernel uses no_llseek, and
// file_operations without the functions.)
var unsupportedCalls = map[call]syscall.Errno{
	callLseek:     syscall.ESPIPE,
	callPread64:   syscall.ESPIPE,
	callPwrite64:  syscall.ESPIPE,
	callFtruncate: syscall.EINVAL,
	callFallocate: syscall.ENODEV,
	callFsync:     syscall.EINVAL,
}

// answerUnsupportedCall answers a call that device files do not support.
func (dc *deviceCalls) answerUnsupportedCall(c call) callResult {
	if dc.lookUpFile() == nil {
		return callResult{fate: fateContinued}
	}
	return failWith(unsupportedCalls[c])
}

// These requests of ioctl(2) have the effect of fcntl(2). (asm-generic/ioctls.h)
const (
	fioNonBlock      = 0x5421 // FIONBIO
	fioNoCloseOnExec = 0x5450 // FIONCLEX
	fioCloseOnExec   = 0x5451 // FIOCLEX
)

// answerOtherIoctl answers a request other than RDMA_VERBS_IOCTL. The kernel itself answers requests that all files
// support. (do_vfs_ioctl)
func (dc *deviceCalls) answerOtherIoctl() callResult {
	switch uint32(dc.caller.n.args[1]) {
	case fioNonBlock, fioNoCloseOnExec, fioCloseOnExec:
		return callResult{fate: fateContinued}
	}
	return failWith(syscall.ENOTTY)
}

// answerFcntl answers fcntl(2), except duplications.
func (dc *deviceCalls) answerFcntl() callResult {
	var f *openFile
	command := uint32(dc.caller.n.args[1])
	switch command {
	case unix.F_GETFL, unix.F_GETPIPE_SZ, unix.F_SETPIPE_SZ, unix.F_GET_SEALS, unix.F_ADD_SEALS:
		f = dc.lookUpFile()
	}
	switch {
	case f == nil:
	case command == unix.F_GETFL:
		return dc.answerStatusFlags(f)
	case command == unix.F_GETPIPE_SZ, command == unix.F_SETPIPE_SZ:
		return failWith(syscall.EBADF)
	default:
		return failWith(syscall.EINVAL)
	}
	return callResult{fate: fateContinued}
}

// oLargeFile is O_LARGEFILE, which the kernel sets when a 64-bit program opens a file.
const oLargeFile = 0o100000

// answerStatusFlags answers F_GETFL. The pipe behind rdma_cm is open for reading only, unlike the file that the program
// opened.
func (dc *deviceCalls) answerStatusFlags(f *openFile) callResult {
	if f.cm == nil {
		return callResult{fate: fateContinued}
	}
	th, err := dc.caller.lookUpThread()
	if err != nil {
		return failWith(err)
	}
	defer th.close()
	copied, err := dc.caller.duplicateDescriptor(th, int32(dc.caller.n.args[0]))
	if err != nil {
		return callResult{fate: fateContinued} // access is denied (Yama, Docker)
	}
	defer unix.Close(copied)
	flags, err := unix.FcntlInt(uintptr(copied), unix.F_GETFL, 0)
	if err != nil || !refersToInode(copied, f.inode) {
		return callResult{fate: fateContinued}
	}
	return callResult{val: int64(flags&^unix.O_ACCMODE | f.access | oLargeFile)}
}

// executeCommand executes a command of a call on a device file.
func (dc *deviceCalls) executeCommand(c call, f *openFile) (v callResult) {
	if c == callIoctl {
		v.err = f.file.Ioctl(dc, uint32(dc.caller.n.args[1]), dc.caller.n.args[2])
		return v
	}
	n, err := f.file.Write(dc, dc.caller.n.args[1], int(min(dc.caller.n.args[2], math.MaxInt32)))
	v.val, v.err = int64(n), err
	return v
}

// answerCommand answers a call on an open device file that the caller has entered.
//
//verbena:parses
func (dc *deviceCalls) answerCommand(c call, f *openFile) callResult {
	dc.stalled = false
	waits := false
	defer func() {
		if !dc.stalled && !waits {
			f.endCall()
		}
	}()
	if c == callWrite && f.access == unix.O_RDONLY {
		return failWith(syscall.EBADF)
	}
	dc.token.beginCommand(c, dc.caller.n.args[2] == doorbellSize)
	var v callResult
	if err := dc.checkCommandAllowed(c, f); err != nil {
		return failWith(err)
	}
	if f.cm != nil && c == callWrite {
		v, waits = dc.answerCMCommand(f)
	} else if v = dc.executeCommand(c, f); dc.caller.session.sup.awaitCloses(f.user, v.err) {
		v = dc.executeCommand(c, f) // a refused command has no effect
	}
	if dc.stalled || waits {
		return callResult{fate: fateSent}
	}
	if f.stores != nil {
		f.stores.Wake()
	}
	f.showLibraryFaults()
	f.showHints()
	if dc.known.stale { // no data was read and nothing was executed
		return callResult{fate: fateContinued}
	}
	if v.err != nil {
		dc.caller.session.warnIfLimitReached(v.err)
		dc.reportRefusal(f, v.err)
	}
	return v
}

// checkCommandAllowed returns EACCES for a command on a file that another user has opened. A program may have been
// tricked into writing to an inherited descriptor, or the number may refer to another file than before. Doorbells are
// allowed, because they read nothing and only report that there may be work. (ib_safe_file_access)
func (dc *deviceCalls) checkCommandAllowed(c call, f *openFile) error {
	if c == callWrite && dc.caller.n.args[2] == doorbellSize && f.cm == nil {
		return nil
	}
	if _, _, err := dc.cachedCaller(); errors.Is(err, errOtherUser) {
		return err
	}
	return nil // a command fails if it cannot access the caller's memory
}

// Stalled answers a doorbell whose thread is blocked in the memory of another program. The caller's posts were
// consumed, and its file can be closed. Stalled is called on another thread while the worker's thread waits.
// (ib.Staller)
func (dc *deviceCalls) Stalled() {
	if dc.stalled {
		return
	}
	dc.stalled = true
	r := notificationResponse{id: dc.caller.n.id, val: int64(dc.caller.n.args[2])}
	err := sendResponse(dc.caller.session.fd, &r)
	log, tid, file := dc.caller.session.log, dc.caller.n.tid, dc.desc.file
	go func() {
		if err != nil && err != unix.ENOENT {
			log.Warn("answer a doorbell", "tid", tid, "err", err)
		}
		file.endCall() // may end the file
	}()
}

// RunLater keeps w for runLater. w may block a worker of this session, and the end of the session. RunLater therefore
// returns false for a process of another session or user, if other workers of the session run such work, and if there
// is much of it. (uverbs.LateWorker)
func (dc *deviceCalls) RunLater(w ib.LateWork, of uverbs.Process) bool {
	t := dc.caller.session
	if o, ok := of.(*opener); !ok || o.session != t || o.user != t.user {
		return false
	}
	if dc.later == nil {
		dc.later = dc.few[:0]
	}
	late := &t.lateWorkers
	switch len(dc.later) {
	case 0:
		if late.Add(1) > maxLateWorkers {
			late.Add(-1)
			return false
		}
	case len(dc.few):
		return false
	}
	dc.later = append(dc.later, w)
	return true
}

// runLater runs the work that RunLater has kept. The call has been answered. If the work blocks, the watchdog passes
// the token, and another worker answers the next calls.
func (dc *deviceCalls) runLater() {
	if len(dc.later) == 0 {
		return
	}
	dc.token.beginLateWork()
	defer dc.token.endBusy()
	for _, w := range dc.later {
		w.RunLate()
	}
	clear(dc.later)
	dc.later = dc.later[:0]
	dc.caller.session.lateWorkers.Add(-1)
}

// reportRefusal reports and logs a command that fails. The error begins with the name of the command.
func (dc *deviceCalls) reportRefusal(f *openFile, err error) {
	t := dc.caller.session
	if refused := t.sup.cfg.Refused; refused != nil {
		refused(uverbs.Refusal{User: f.user.ID(), PID: f.pid, Program: f.program, Session: t.name,
			Device: f.node.device, Err: err})
	}
	if !t.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	t.log.Debug("command refused", "tid", dc.caller.n.tid, "dev", f.node.device, "errno", unix.ErrnoName(errnoOf(err)),
		"err", err)
}

// Space returns the address space of the current call. (uverbs.Caller)
func (dc *deviceCalls) Space() umem.Space {
	_, s, err := dc.cachedCaller()
	if err != nil {
		return inaccessibleMemory{err}
	}
	return s.Exact()
}

// Peek reads the memory of the cached process of the caller's thread, without checking that the cache entry is
// still valid. Such a check would take longer than the rest of a doorbell. (uverbs.Peeker)
func (dc *deviceCalls) Peek(dst [][]byte, addr uint64) bool {
	if dc.desc == nil {
		return false
	}
	p := dc.desc.process.Load()
	if p == nil {
		return false
	}
	s := dc.caller.session.processes.addressSpaceOf(p)
	return s != nil && s.Exact().ReadV(dst, addr) == nil
}

// Account returns the account that the caller's registered pages are charged to. (uverbs.Caller)
func (dc *deviceCalls) Account() *umem.Account {
	p, _, err := dc.cachedCaller()
	if err != nil {
		return umem.NewLimitedAccount(func() (uint64, error) { return 0, err })
	}
	return p.acct
}

// InstallFD duplicates a descriptor of the service into the caller. (uverbs.Caller)
func (dc *deviceCalls) InstallFD(fd int, cloexec bool) (int, error) {
	a := addFD{id: dc.caller.n.id, srcFD: uint32(fd)}
	if cloexec {
		a.newFlags = unix.O_CLOEXEC
	}
	n, err := sendAddFD(dc.caller.session.fd, &a)
	if err != nil {
		return -1, fmt.Errorf("install a descriptor in thread %d: %w", dc.caller.n.tid, err)
	}
	return n, nil
}

// FileInode identifies the file of a descriptor of the caller. (uverbs.Caller)
func (dc *deviceCalls) FileInode(fd int) (dev, ino uint64, err error) {
	i, err := inodeOf(dc.caller.n.tid, int32(fd))
	if err == nil {
		err = dc.caller.checkTrapped()
	}
	return i.dev, i.ino, err
}

// inaccessibleMemory represents the memory of a process that cannot be accessed.
type inaccessibleMemory struct{ err error }

func (n inaccessibleMemory) accessError() error                  { return fmt.Errorf("%w: %w", umem.ErrFault, n.err) }
func (n inaccessibleMemory) Check(uint64, uint64, bool) error    { return n.accessError() }
func (n inaccessibleMemory) ReadV(dst [][]byte, _ uint64) error  { return n.accessError() }
func (n inaccessibleMemory) WriteV(src [][]byte, _ uint64) error { return n.accessError() }

// errOtherUser is the error for a caller of a user other than the one that opened the device file.
// (ib_safe_file_access)
var errOtherUser = fmt.Errorf("the device file was opened by another user: %w", syscall.EACCES)

// callerCache holds cached facts about the caller of the current call.
type callerCache struct {
	done  bool
	stale bool // the cached descriptor no longer refers to the device
	proc  *process
	space *umem.Process
	err   error
}

// cachedCaller returns the process of the current call and its address space. cachedCaller looks them up once per call.
func (dc *deviceCalls) cachedCaller() (*process, *umem.Process, error) {
	if k := &dc.known; !k.done {
		k.done = true
		k.proc, k.space, k.err = dc.findCaller()
		if k.err == nil && dc.desc != nil && k.proc.user != dc.desc.file.user {
			k.err = fmt.Errorf("user %v's process %d: %w", k.proc.user.ID(), k.proc.pid, errOtherUser)
			k.proc, k.space = nil, nil
		}
		if k.err != nil && !errors.Is(k.err, errCallerGone) && !errors.Is(k.err, errOtherUser) {
			dc.caller.session.warnOnce(func() error { return k.err })
		}
	}
	return dc.known.proc, dc.known.space, dc.known.err
}

func (dc *deviceCalls) findCaller() (*process, *umem.Process, error) {
	if d := dc.desc; d != nil {
		// A cached descriptor suffices only for a doorbell.
		if i, err := inodeOf(dc.caller.n.tid, d.fd); err != nil || i != d.file.inode {
			dc.known.stale = true
			return nil, nil, errCallerGone
		}
		if p := d.process.Load(); p != nil && p.hasThread(dc.caller.n.tid) {
			if s := dc.caller.session.processes.addressSpaceOf(p); s != nil {
				return p, s, dc.caller.checkTrapped()
			}
		}
	}
	t, err := dc.caller.lookUpThread()
	if err != nil {
		return nil, nil, err
	}
	defer t.close()
	p, s, err := dc.caller.findOrOpenProcess(t)
	if err == nil && dc.desc != nil && p.user == dc.desc.file.user {
		dc.desc.process.Store(p)
	}
	return p, s, err
}

// NetRaw reports whether the caller has CAP_NET_RAW in this process's user namespace. (uverbs.NetRaw)
func (dc *deviceCalls) NetRaw() bool {
	th, err := dc.caller.lookUpThread()
	if err != nil {
		return false
	}
	defer th.close()
	return th.id.rawCapability
}

// CommandTrace returns the trace record of the current command, or nil if the session is not traced. (uverbs.Tracer)
func (dc *deviceCalls) CommandTrace() *uverbs.CommandTrace {
	if dc.caller.trace == nil {
		return nil
	}
	return &dc.caller.trace.command
}
