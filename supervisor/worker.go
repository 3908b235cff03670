package supervisor

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"verbena/internal/sched"
)

// worker is a thread that answers the calls of a session, one at a time, from the receipt to the answer. Passing a
// call to another thread would cost several times as much as most answers. The fields after token answer a kind of
// calls each.
type worker struct {
	source *notificationSource
	caller caller
	token  tokenHolder

	devices     deviceCalls
	descriptors descriptorCalls
	directories directoryCalls
	paths       pathCalls
	netlink     netlinkCalls
}

func newWorker(t *Session) *worker {
	w := &worker{caller: caller{session: t}, token: tokenHolder{tokens: &t.tokens}}
	c, h, dirs := &w.caller, &w.token, &w.directories
	w.devices = deviceCalls{caller: c, token: h}
	w.descriptors = descriptorCalls{caller: c, token: h, dirs: dirs}
	w.directories = directoryCalls{caller: c, token: h}
	w.paths.caller, w.paths.token, w.paths.dirs = c, h, dirs
	w.netlink = netlinkCalls{caller: c, token: h}
	return w
}

// run answers calls until no process of the session is left, or the Supervisor closes. The thread of run ends with
// it, because no other goroutine could run on that thread.
func (w *worker) run() {
	runtime.LockOSThread()
	t := w.caller.session
	w.source = newNotificationSource(t.listener, t.sup.stop, &t.intake)
	w.source.direct = t.direct
	if err := blockSignals(); err != nil {
		t.log.Warn("worker", "err", err)
	}
	sched.SetTimeSlice(sched.SleeperSlice)
	// A program can remove pages of shared memory (ftruncate). The resulting fault must be an error of the
	// program's call, not a crash of the service.
	debug.SetPanicOnFault(true)
	w.token.tid = unix.Gettid()
	t.tokens.joinWatchdog(&w.token)
	defer t.tokens.leaveWatchdog(&w.token)
	for t.tokens.awaitToken() {
		w.token.held = true
		for w.token.held {
			if !w.receiveCall() {
				t.tokens.releaseToken() // the next worker then ends too
				return
			}
			w.answerCall()
			w.devices.runLater()
			w.token.held = w.token.held && !t.tokens.removeSurplusToken()
		}
	}
}

// receiveCall waits for the next call. It returns false at the end.
func (w *worker) receiveCall() bool {
	t := w.caller.session
	t.tokens.receiving.Add(1)
	ok := w.source.next(&w.caller.n)
	t.tokens.receiving.Add(-1)
	if !ok {
		return false
	}
	t.tokens.recordCaller(w.caller.n.tid)
	t.tokens.addTokenIfShared()
	// SYNC_WAKE_UP makes the kernel run the woken thread on the processor of the waking thread. The answer to a
	// caller that alternates with a worker is then several times as fast. With several callers, SYNC_WAKE_UP would
	// move all of them to one processor, where threads that poll a completion queue delay the others.
	t.switchSyncWakeUp(!t.tokens.isShared())
	return true
}

func (w *worker) answerCall() {
	c := &w.caller
	var v callResult
	if c.session.info.Trace == nil {
		v = w.handleCall()
	} else {
		v = w.handleAndTrace()
	}
	r := notificationResponse{id: c.n.id}
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
	err := sendResponse(c.session.fd, &r)
	if t := w.devices.event; t != nil {
		if w.devices.event = nil; err != nil {
			t.Requeue()
		}
	}
	if err != nil && err != unix.ENOENT {
		c.session.log.Warn("answer a call", "call", callOf(&c.n).String(), "tid", c.n.tid, "err", err)
	}
}

// handleCall answers the current call. A panic becomes an error of the call, and the service continues. After a panic
// the device may have locked mutexes, so it gets a fatal event.
func (w *worker) handleCall() (v callResult) {
	n := &w.caller.n
	w.devices.beginAnswer()
	defer func() {
		if r := recover(); r != nil {
			w.caller.session.log.Error(fmt.Sprintf("panic in %v of thread %d", callOf(n), n.tid), "panic", r, "stack",
				string(debug.Stack()))
			v = failWith(syscall.EIO)
			if d := w.devices.desc; d != nil {
				d.file.file.FailDevice(fmt.Errorf("panic in a command of process %d: %v", n.tid, r))
			}
		}
		w.token.endBusy()
	}()
	c := callOf(n)
	switch c {
	case callExecve, callExecveat:
		return w.caller.answerExec(&w.token)
	case callDup:
		return w.descriptors.answerDup(c)
	case callFcntl:
		if isDuplication(n) {
			return w.descriptors.answerDup(c)
		}
		return w.devices.answerFcntl()
	case callGetdents64:
		return w.directories.answerGetdents()
	case callFchdir:
		return w.directories.answerFchdir()
	case callGetcwd:
		return w.directories.answerGetcwd()
	case callDup2, callDup3:
		return w.descriptors.answerDupTo(c)
	case callClose, callCloseRange:
		return w.descriptors.answerClose(c)
	case callSocket:
		return w.netlink.openNetlink()
	case callBind, callGetsockname, callSetsockopt:
		return w.netlink.answerNetlinkCall(c)
	case callLseek, callPread64, callPwrite64, callFtruncate, callFallocate, callFsync:
		return w.devices.answerUnsupportedCall(c)
	case callWrite, callIoctl:
		return w.devices.answerCall(c)
	case callFstat:
		return w.devices.answerFstat()
	}
	return w.paths.answerPathCall(c)
}

// handleAndTrace handles the call and traces it.
func (w *worker) handleAndTrace() callResult {
	n, t := &w.caller.n, &callTrace{}
	w.caller.trace = t
	began := time.Now()
	v := w.handleCall()
	took := time.Since(began)
	c := callOf(n)
	doorbell := c == callWrite && t.command.Name == "" && v.err == nil
	if v.fate != fateContinued && !doorbell && !t.later {
		args := t.formatArgs(n, w.devices.deviceName())
		line := fmt.Sprintf("%d %v(%s) = %s <%.6f>", n.tid, c, args, t.formatResult(v), took.Seconds())
		w.caller.session.info.Trace(line[:min(len(line), maxTraceLine)])
	}
	return v
}
