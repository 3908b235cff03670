package supervisor

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// Guard makes this process answer trapped calls after the supervisor has died and closed lost. Without a guardian,
// each later trapped call would fail with ENOSYS, and calls that the supervisor had received would never return.
// Guard returns at once, and its goroutine ends with Wait.
//
// From the supervisor's death on, files are opened as without a supervisor, and calls on open device files fail
// with EIO. The guardian cannot read a call that the supervisor had received, so it continues such a call in the
// kernel. The kernel then executes an ioctl or a write on an ordinary file, which fails with ENOTTY or EINVAL, or
// uses the real path. Afterwards Guard calls abandon once. abandon must end waits of the program that are not
// system calls.
func (p *Program) Guard(lost <-chan struct{}, abandon func()) {
	p.guards.Add(1)
	go func() {
		defer p.guards.Done()
		select {
		case <-lost:
			p.runGuardian(abandon)
		case <-p.over:
		}
	}()
}

// lostAnswerTimeout limits the wait for the answer to a call that the dead supervisor may have received.
const lostAnswerTimeout = time.Second

// continueUntilGuarded continues the program's calls, until end is called, if its supervisor dies before there is a
// guard.
func (p *Program) continueUntilGuarded(lost <-chan struct{}) (end func()) {
	over := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		select {
		case <-over:
			return
		case <-lost:
		}
		stop, stopper, err := os.Pipe()
		if err != nil {
			return
		}
		defer stop.Close()
		var late atomic.Bool
		done.Go(func() {
			defer stopper.Close()
			select {
			case <-over:
			case <-time.After(lostAnswerTimeout):
				late.Store(true)
			}
		})
		(&guardian{source: newNotificationSource(p.listener, stop, new(receiveState))}).serve()
		if late.Load() { // the supervisor had received the call, and no process answers it
			p.listener.Close()
		}
	})
	return func() {
		close(over)
		done.Wait()
	}
}

func (p *Program) runGuardian(abandon func()) {
	stop, stopper, err := os.Pipe()
	if err != nil {
		return // no free descriptor: the program runs without a guard
	}
	defer stop.Close()
	g := &guardian{source: newNotificationSource(p.listener, stop, new(receiveState)), tid: uint32(p.thread.tid)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		g.serve()
	}()
	p.thread.do(probeNotificationID)
	g.continueCalls(0, maxRecentAge)
	abandon()
	g.continueCallsUntil(p.over)
	<-p.over
	stopper.Close()
	<-served
}

// guardian answers trapped calls in place of the supervisor.
type guardian struct {
	source *notificationSource
	tid    uint32        // thread ID of this process's filtered thread
	id     atomic.Uint64 // number of the notification for tid's trapped call
}

// probeNotificationID makes a trapped call to find the current notification number. The kernel counts the numbers up
// from a random start.
func probeNotificationID() {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, ^uintptr(0), uapi.VerbsIoctl, 0)
}

// The following constants are limits for the age of an unanswered call, as a number of later notifications. An
// attempt with all recent numbers takes about ten milliseconds, and an attempt with all numbers up to maxAge takes
// about a second.
const (
	maxRecentAge = 1 << 16
	maxAge       = 1 << 22
)

// continueCalls continues the calls that the supervisor had received. Their numbers are between from and to before the
// number of the knock. Calls that the supervisor had not received are answered by then.
func (g *guardian) continueCalls(from, to uint64) {
	id := g.id.Load() - 1
	for i := from; i < to; i++ {
		_ = sendResponse(g.source.listener, &notificationResponse{id: id - i, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
	}
}

// continueCallsUntil continues the calls with older numbers, up to maxAge.
func (g *guardian) continueCallsUntil(over <-chan struct{}) {
	for i := uint64(maxRecentAge); i < maxAge; i += maxRecentAge {
		select {
		case <-over:
			return
		default:
			g.continueCalls(i, i+maxRecentAge)
		}
	}
}

func (g *guardian) serve() {
	var n notification
	for g.source.next(&n) {
		if n.tid == g.tid {
			g.id.Store(n.id)
		}
		r := notificationResponse{id: n.id}
		if g.isVerbs(&n) {
			r.errno = -int32(unix.EIO)
		} else {
			r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		_ = sendResponse(g.source.listener, &r) // the thread may have been killed
	}
}

// isVerbs reports whether the call uses a device file.
func (g *guardian) isVerbs(n *notification) bool {
	switch callOf(n) {
	case callIoctl:
		return true
	case callWrite:
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.tid, int32(n.args[0])))
		return err == nil && strings.HasSuffix(strings.TrimSuffix(name, " (deleted)"), queueSuffix)
	}
	return false
}
