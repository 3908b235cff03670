package supervisor

import (
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A registration must not give access to the memory of the program that a process executes next. Therefore exec is
// trapped. Before exec continues in the kernel, the supervisor binds each address space of the process
// (umem.Process.Bind). The supervisor cannot see whether the exec succeeds. If another thread of the process makes
// a call during the exec, it gets an address space that is bound from the start. An exec has ended when its thread
// makes another call.

// execTimeout limits the time for which an exec waits for accesses to the process's memory. After execTimeout the
// exec fails with EAGAIN.
const execTimeout = time.Second

// answerExec answers execve(2) or execveat(2).
func (c *caller) answerExec(token *tokenHolder) callResult {
	token.beginBusy()
	c.session.dropCachedFiles(0, math.MaxUint32) // the exec closes descriptors
	for _, s := range c.session.processes.beginExec(c.n.tid) {
		if err := s.Bind(execTimeout); err != nil {
			c.session.log.Warn("thread cannot execute another program", "tid", c.n.tid, "err", err)
			return failWith(err)
		}
	}
	c.pauseForTest("exec")
	return callResult{fate: fateContinued}
}

// execThreads holds the threads that may be executing a program. execThreads is safe for concurrent use.
type execThreads struct {
	mu   sync.Mutex
	tids map[uint32]struct{}
	look int // number of threads from which on add removes ended threads
}

const firstExecCheck = 64

func (e *execThreads) add(tid uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tids == nil {
		e.tids = map[uint32]struct{}{}
	}
	if len(e.tids) >= max(e.look, firstExecCheck) {
		for t := range e.tids {
			var st unix.Stat_t
			if unix.Stat("/proc/"+strconv.Itoa(int(t)), &st) == unix.ENOENT {
				delete(e.tids, t)
			}
		}
		e.look = 2 * len(e.tids)
	}
	e.tids[tid] = struct{}{}
}

// recordCallOfThread records that the caller is not executing a program, because it is making a
// call. If that thread was killed, its thread ID may belong to another thread, and recordCallOfThread does nothing.
func (e *execThreads) recordCallOfThread(c *caller) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, there := e.tids[c.n.tid]; there && c.checkTrapped() == nil {
		delete(e.tids, c.n.tid)
	}
}

// isExecPending reports whether a thread of the process other than the caller may be executing a program.
func (e *execThreads) isExecPending(caller uint32, p *process) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for t := range e.tids {
		if t != caller && p.hasThread(t) {
			return true
		}
	}
	return false
}
