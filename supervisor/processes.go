package supervisor

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"verbena/internal/quota"
	"verbena/umem"
)

// process is a process that issues commands or has opened a device file. The address space of a process changes
// with each exec.
type process struct {
	pid   int
	name  string
	pidfd *os.File
	conn  syscall.RawConn // wraps pidfd for the runtime's poller
	user  *quota.User     // user charged for the descriptors
	acct  *umem.Account   // account for all address spaces of the process
	execs atomic.Uint32   // number of execve(2) calls that have begun

	// Under processTable.mu.
	space  *umem.Process   // current address space, or nil if unknown
	former []*umem.Process // earlier address spaces that another process may still use
}

// The service opens a pidfd for a process, and a pidfd and two files for each address space of the process.
const (
	processDescriptors = 1
	spaceDescriptors   = 3
)

// isAlive reports whether the process exists. While the process exists, its process ID is not reused.
func (p *process) isAlive() bool {
	alive := false
	//verbena:allow nosleep the function is called at once
	err := p.conn.Control(func(fd uintptr) {
		pfd := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			//verbena:allow nosleep a poll with the timeout 0 does not wait
			n, err := unix.Poll(pfd[:], 0)
			if err != unix.EINTR { // a signal can interrupt threads other than workers
				alive = err == nil && n == 0
				return
			}
		}
	})
	return err == nil && alive
}

// hasThread reports whether a thread belongs to the process.
func (p *process) hasThread(tid uint32) bool {
	// Signal 0 only checks whether the thread exists. EPERM also means that the thread exists.
	return unix.Tgkill(p.pid, int(tid), 0) != unix.ESRCH && p.isAlive()
}

// closeLocked ends all access to the process. The caller holds processTable.mu.
func (p *process) closeLocked() {
	for _, s := range p.former {
		p.closeAddressSpace(s)
	}
	if p.space != nil {
		p.closeAddressSpace(p.space)
	}
	p.former, p.space = nil, nil
	p.pidfd.Close()
	p.user.Release(quota.Descriptors, processDescriptors)
}

func (p *process) closeAddressSpace(s *umem.Process) {
	s.Close()
	p.user.Release(quota.Descriptors, spaceDescriptors)
}

// processTable holds the processes of a session that issue commands, and the threads that may be executing another
// program. processTable is safe for concurrent use.
type processTable struct {
	execs execThreads

	//verbena:program the processes of one session: what is read of a new one is an address of the kernel's
	mu  sync.Mutex
	all map[int]*process // processes by process ID
}

// memlockLimit returns the RLIMIT_MEMLOCK of the process that owns the account.
func (t *processTable) memlockLimit(p *process) (uint64, error) {
	t.mu.Lock()
	s := p.space
	if n := len(p.former); s == nil && n > 0 {
		s = p.former[n-1]
	}
	t.mu.Unlock()
	if s == nil {
		return 0, umem.ErrLimit
	}
	return s.LockLimit()
}

func (t *processTable) addressSpaceOf(p *process) *umem.Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return p.space
}

// removeEndedLocked removes processes that have ended.
func (t *processTable) removeEndedLocked() {
	for pid, p := range t.all {
		if !p.isAlive() {
			p.closeLocked()
			delete(t.all, pid)
		}
	}
}

// beginExec records that a thread is about to execute a program, and returns the address spaces of its process.
func (t *processTable) beginExec(tid uint32) (spaces []*umem.Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.execs.add(tid)
	for _, p := range t.all {
		if !p.hasThread(tid) {
			continue
		}
		p.execs.Add(1)
		kept := p.former[:0]
		for _, s := range p.former {
			if s.SpaceGone() {
				p.closeAddressSpace(s)
			} else {
				kept = append(kept, s)
			}
		}
		clear(p.former[len(kept):])
		p.former = kept
		if p.space != nil {
			p.former = append(p.former, p.space)
			p.space = nil
		}
		spaces = append(spaces, p.former...)
	}
	return spaces
}

// closeAll ends all access to the processes.
func (t *processTable) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.all {
		p.closeLocked()
	}
	clear(t.all)
}
