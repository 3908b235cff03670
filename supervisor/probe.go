package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// errNested is the error for a process that already runs under a supervisor. The kernel allows only one
	// supervisor per process.
	errNested = errors.New("this process already runs under `verbena run` or another supervisor of system calls (seccomp user notification), and the kernel allows only one: " +
		"inside `verbena run`, omit the inner `verbena run`, since its program sees the same devices; " +
		"in a container, disable the interception of system calls by its runtime (LXD: security.syscalls.intercept.*; Podman, runc: the profile's SCMP_ACT_NOTIFY)")
	// ErrUnsupported is the error if the kernel or a container's policy does not provide a required feature.
	ErrUnsupported = errors.New("seccomp user notification is not available")
)

// errProc is the error if /proc is missing or belongs to another PID namespace.
var errProc = errors.New("/proc does not belong to this PID namespace, so programs cannot be found in it; mount a new one " +
	"(unshare --pid --fork --mount-proc, or mount -t proc proc /proc)")

// CheckProc returns errProc unless /proc lists processes by their IDs in this PID namespace. It may sleep.
func CheckProc() error { return checkProc(os.Readlink, os.Getpid()) }

func checkProc(readlink func(string) (string, error), own int) error {
	switch self, err := readlink("/proc/self"); {
	case err != nil:
		return fmt.Errorf("%w: %w", errProc, err)
	case self != strconv.Itoa(own):
		return fmt.Errorf("%w: process %d has the ID %s in /proc", errProc, own, self)
	}
	return nil
}

// Probe checks whether this process can start programs under a supervisor, without side effects. Probe returns
// errNested, ErrUnsupported, errProc, or another error of the kernel. It may sleep.
func Probe() error {
	if err := CheckProc(); err != nil {
		return err
	}
	t := newThread()
	defer t.end()
	var err error
	t.do(func() {
		var listener int
		if listener, err = installFilter(
			[]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}); err != nil {
			return
		}
		defer unix.Close(listener)
		// There is no notification, so a kernel that supports the request returns ENOENT.
		if _, e := sendAddFD(listener, &addFD{srcFD: uint32(listener)}); errors.Is(e, unix.EINVAL) {
			err = fmt.Errorf("%w: Linux 5.9 or newer is required", ErrUnsupported)
		}
	})
	return err
}

// installFilter installs a filter on the calling thread and returns its listener.
//
// installFilter avoids no_new_privs if allowed (CAP_SYS_ADMIN), so that setuid programs keep working. On a kernel
// without WAIT_KILLABLE_RECV (5.19), a signal interrupts a trapped call, and the thread then repeats the call. The
// repetition is harmless, except that a descriptor may remain open in the program if its install was interrupted.
func installFilter(filter []unix.SockFilter) (listener int, err error) {
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	privileged := true
	for {
		listener, err = setFilter(filter, flags)
		switch {
		case err == nil:
			return listener, nil
		case errors.Is(err, unix.EACCES) && privileged:
			privileged = false
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return -1, fmt.Errorf("set no_new_privs: %w", err)
			}
		case errors.Is(err, unix.EINVAL) && flags != 0:
			flags = 0
		default:
			return -1, explainFilterError(err, isGVisor)
		}
	}
}

func explainFilterError(err error, gVisor func() bool) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return errNested
	case (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL)) && gVisor():
		return fmt.Errorf("%w: this is a gVisor sandbox, and its kernel does not implement this feature: run the container with another runtime (docker run --runtime=runc, "+
			"a pod with another runtimeClassName); Go programs can use package verbs/embed instead: seccomp: %w",
			ErrUnsupported, err)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: Linux 5.9 or newer with CONFIG_SECCOMP_FILTER is required: seccomp: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: seccomp: %w; in a container, the seccomp profile must allow the system call seccomp(2)",
			ErrUnsupported, err)
	}
	return fmt.Errorf("install the system call filter: %w", err)
}

// isGVisor reports whether the kernel is gVisor.
func isGVisor() bool {
	version, _ := os.ReadFile("/proc/version")
	messages := make([]byte, maxKernelLogSize)
	const readAll = 3 // SYSLOG_ACTION_READ_ALL
	n, err := unix.Klogctl(readAll, messages)
	if err != nil { // on Linux, reading the messages may need a privilege
		n = 0
	}
	return mentionsGVisor(string(version), string(messages[:n]))
}

// maxKernelLogSize exceeds the size of gVisor's messages.
const maxKernelLogSize = 16 << 10

// mentionsGVisor looks for gVisor's name in /proc/version and at the beginning of the kernel's messages.
func mentionsGVisor(version, messages string) bool {
	const old = "#1 SMP Sun Jan 10 15:06:54 PST 2016" // an old version that does not contain the name
	return strings.Contains(strings.ToLower(version), "gvisor") || strings.Contains(version, old) ||
		strings.Contains(messages, "] Starting gVisor")
}

// hardFileLimit returns the hard limit of this process's descriptors.
func hardFileLimit() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return l.Max, nil
}
