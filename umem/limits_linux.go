package umem

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockLimit returns the number of bytes that the process may currently lock. The number is the soft RLIMIT_MEMLOCK, or
// Unlimited if the process has CAP_IPC_LOCK in the caller's user namespace. LockLimit returns ErrLimit if the process
// has ended. LockLimit may sleep.
func (p *Process) LockLimit() (uint64, error) {
	limit, err := LockLimit(p.pid)
	if err != nil || !p.Alive() { // another process may now have the number
		return 0, ErrLimit
	}
	return limit, nil
}

// LockLimit returns the number of bytes that a process may lock. The number is the soft RLIMIT_MEMLOCK, or Unlimited
// with CAP_IPC_LOCK. A capability in another user namespace does not count, because the creator of a namespace has all
// capabilities in that namespace. LockLimit reads the limit with prlimit(2). For a process of another user it reads the
// limit from /proc. LockLimit may sleep.
func LockLimit(pid int) (uint64, error) {
	limit, err := readLockLimit(pid)
	if err != nil {
		return 0, fmt.Errorf("read the locked memory limit of process %d: %w", pid, err)
	}
	return limit, nil
}

// SoftLockLimit returns the soft RLIMIT_MEMLOCK of a process, regardless of its capabilities. SoftLockLimit may sleep.
func SoftLockLimit(pid int) (uint64, error) {
	limit, err := lockLimitFromProc(pid)
	if err != nil {
		return 0, fmt.Errorf("read the locked memory limit of process %d: %w", pid, err)
	}
	return limit, nil
}

func readLockLimit(pid int) (uint64, error) {
	caps, err := readProcField(pid, "status", "CapEff:")
	if err != nil {
		return 0, err
	}
	mask, err := strconv.ParseUint(caps, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("capabilities %q: %w", caps, err)
	}
	if mask&(1<<unix.CAP_IPC_LOCK) != 0 && isInOwnUserNamespace(pid) {
		return Unlimited, nil
	}
	var rlim unix.Rlimit
	err = unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &rlim)
	if errors.Is(err, unix.EPERM) {
		return lockLimitFromProc(pid)
	}
	if err != nil {
		return 0, err
	}
	if rlim.Cur == unix.RLIM_INFINITY {
		return Unlimited, nil
	}
	return rlim.Cur, nil
}

// isInOwnUserNamespace reports whether a process is in the user namespace of this process. /proc shows the namespace
// only to processes with ptrace access.
func isInOwnUserNamespace(pid int) bool {
	var own, its unix.Stat_t
	return unix.Stat("/proc/self/ns/user", &own) == nil &&
		unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/user", &its) == nil && own.Dev == its.Dev && own.Ino == its.Ino
}

// lockLimitFromProc reads the limit from /proc if prlimit is not permitted. Any user may read this file.
func lockLimitFromProc(pid int) (uint64, error) {
	v, err := readProcField(pid, "limits", "Max locked memory")
	if err != nil {
		return 0, err
	}
	soft, _, _ := strings.Cut(v, " ")
	if soft == "unlimited" {
		return Unlimited, nil
	}
	return strconv.ParseUint(soft, 10, 64)
}

// readProcField returns the rest of the line that begins with prefix, in a file of the process.
func readProcField(pid int, file, prefix string) (string, error) {
	f, err := openProc("/proc/"+strconv.Itoa(pid)+"/"+file, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), prefix); ok {
			return strings.TrimSpace(v), nil
		}
	}
	if err := s.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("%s: no line %q", f.Name(), prefix)
}
