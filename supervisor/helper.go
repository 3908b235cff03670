package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"verbena/internal/procfile"
	"verbena/umem"
)

// Helper accesses programs for a Supervisor if Yama restricts ptrace to ancestors
// (/proc/sys/kernel/yama/ptrace_scope is 1). Helper is the process that called Start, or a proxy for that process.
// A Helper is safe for concurrent use, and its methods may sleep.
type Helper interface {
	// OpenMem opens /proc/TID/mem for reading and writing.
	OpenMem(tid int) (*os.File, error)
}

// Ancestor is the Helper in the process that called Start. Ancestor accesses only its own descendants, because
// another user's service may have sent the request.
type Ancestor struct{}

// OpenMem implements Helper.
func (Ancestor) OpenMem(tid int) (*os.File, error) {
	if err := CheckDescendant(tid); err != nil {
		return nil, err
	}
	return os.OpenFile("/proc/"+strconv.Itoa(tid)+"/mem", os.O_RDWR|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
}

// maxAncestors limits the walk from a process to its ancestors, since these may change meanwhile.
const maxAncestors = 4096

// CheckDescendant returns an error unless a thread's process is a descendant of this process.
func CheckDescendant(tid int) error {
	at := tid
	for range maxAncestors {
		pid, parent, err := processAndParentOf(at)
		if err != nil {
			return err
		}
		if pid == os.Getpid() && at != tid {
			return nil
		}
		if parent == 0 {
			break
		}
		at = parent
	}
	return fmt.Errorf("process %d is not a descendant of this process: %w", tid, unix.EPERM)
}

// processAndParentOf returns the process of a thread, and that process's parent.
func processAndParentOf(tid int) (pid, parent int, err error) {
	text, err := procfile.ReadNoFollow("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0, 0, fmt.Errorf("look up process %d: %w", tid, err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Tgid":
			pid, err = strconv.Atoi(strings.TrimSpace(value))
		case "PPid":
			parent, err = strconv.Atoi(strings.TrimSpace(value))
		}
		if err != nil {
			return 0, 0, fmt.Errorf("malformed status of process %d: %w", tid, err)
		}
	}
	return pid, parent, nil
}

// ptraceScope returns the level at which Yama restricts access to another process's memory. Level 0 does not
// restrict it, level 1 allows it to ancestors, level 2 requires CAP_SYS_PTRACE, and level 3 denies it.
// (Documentation/admin-guide/LSM/Yama.rst)
func ptraceScope() string {
	b, err := procfile.ReadNoFollow("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return "0"
	}
	return strings.TrimSpace(string(b))
}

// UsesHelper reports whether the session may need the Helper to access its program. The launcher of such a session
// should adopt orphans.
func (t *Session) UsesHelper() bool { return t.helper != nil }

// NeedsPtracer reports whether the session directly accesses processes that allow the access. The program of such a
// session should name this process with PR_SET_PTRACER (Tracer).
func (t *Session) NeedsPtracer() bool { return t.helper != nil && !t.asksOnly }

// checkDirectAccess returns an error if this process may not access another process's memory. It returns nil if that
// process does not exist.
func checkDirectAccess(pid int) error {
	// The kernel checks the permission before the address.
	if _, err := readMemory(pid, 0, make([]byte, 1)); err == unix.EPERM {
		return err
	}
	return nil
}

// readThreadMemory reads from the memory of a thread's process. n is less than len(b) if part of the range is not
// mapped.
func (t *Session) readThreadMemory(tid int, addr uint64, b []byte) (n int, err error) {
	if !t.asksOnly {
		if n, err = readMemory(tid, addr, b); t.helper == nil || err != unix.EPERM {
			return n, err
		}
	}
	f, err := t.openMem(tid)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	// Unlike process_vm_readv, read also reads pages without access rights. These pages belong to the program
	// itself.
	if n, err = f.ReadAt(b, int64(addr)); n == 0 && len(b) > 0 {
		return 0, unix.EFAULT
	}
	return n, nil
}

func (t *Session) openMem(tid int) (*os.File, error) {
	f, err := t.helper.OpenMem(tid)
	if err == nil {
		if err = umem.CheckProcMem(int(f.Fd())); err != nil {
			f.Close()
		}
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT):
		return nil, unix.ESRCH // the thread was killed in its call, for example by another thread's exec
	}
	t.warnOnce(func() error { return fmt.Errorf("memory of thread %d: %w", tid, err) })
	return nil, err
}

// orphanReaper adopts processes after the end of their parent. The orphans become children of this process, so this
// process stays an ancestor of all processes of the program, including daemons.
type orphanReaper struct{ ended chan os.Signal }

// newOrphanReaper must run before the fork, so that it misses no child.
func newOrphanReaper() (*orphanReaper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of orphans: %w", err)
	}
	o := &orphanReaper{make(chan os.Signal, 1)}
	signal.Notify(o.ended, unix.SIGCHLD)
	return o, nil
}

func (o *orphanReaper) close() {
	signal.Stop(o.ended)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
}

// run must start after the fork, because it must exclude the program, which is not an orphan. run returns when p is
// released.
func (o *orphanReaper) run(p *Program) {
	defer o.close()
	for {
		select {
		case <-o.ended:
			p.reapOrphans()
		case <-p.over:
			return
		}
	}
}

// reapOrphans reaps children other than the program. Wait reaps the program.
//
//verbena:allow open files of the own directory in /proc
func (p *Program) reapOrphans() {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil && pid != p.pid {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}
