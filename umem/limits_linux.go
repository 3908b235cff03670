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

// NewProcessAccount returns an account with the limit of a process: its soft RLIMIT_MEMLOCK at the time of each
// charge, or none while it has CAP_IPC_LOCK. When the process is gone, nothing can be charged.
func NewProcessAccount(pid int) *Account {
	return NewAccount(func() uint64 {
		limit, err := LockLimit(pid)
		if err != nil {
			return 0
		}
		return limit
	})
}

// LockLimit is how many bytes a process may lock: its soft RLIMIT_MEMLOCK, Unlimited with CAP_IPC_LOCK. It reads
// the limit by prlimit(2) or, for a process of another user, from /proc. It may sleep.
func LockLimit(pid int) (uint64, error) {
	limit, err := lockLimit(pid)
	if err != nil {
		return 0, fmt.Errorf("read the locked memory limit of process %d: %w", pid, err)
	}
	return limit, nil
}

func lockLimit(pid int) (uint64, error) {
	caps, err := procField(pid, "status", "CapEff:")
	if err != nil {
		return 0, err
	}
	mask, err := strconv.ParseUint(caps, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("capabilities %q: %w", caps, err)
	}
	if mask&(1<<unix.CAP_IPC_LOCK) != 0 {
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

// lockLimitFromProc reads what prlimit would not tell: any user may read the file.
func lockLimitFromProc(pid int) (uint64, error) {
	v, err := procField(pid, "limits", "Max locked memory")
	if err != nil {
		return 0, err
	}
	soft, _, _ := strings.Cut(v, " ")
	if soft == "unlimited" {
		return Unlimited, nil
	}
	return strconv.ParseUint(soft, 10, 64)
}

// procField returns what follows a prefix on its line of a file of the process.
func procField(pid int, file, prefix string) (string, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/" + file)
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
