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
	// ErrNested: this process runs under a supervisor already, and the kernel allows a process only one.
	ErrNested = errors.New("this process is under `verbena run` or another supervisor of system calls (seccomp user notification) already, and the kernel allows only one: " +
		"inside `verbena run` leave out the inner one, its program sees the same devices without; " +
		"in a container turn off the interception of its runtime (LXD: security.syscalls.intercept.*; Podman, runc: the profile's SCMP_ACT_NOTIFY)")
	// ErrUnsupported: the kernel, or a container's policy, does not offer what is needed.
	ErrUnsupported = errors.New("seccomp user notification is not available")
)

// ErrProc: /proc is that of another PID namespace, or there is none.
var ErrProc = errors.New("/proc is not that of this PID namespace, so that programs cannot be found there; mount it anew " +
	"(unshare --pid --fork --mount-proc, or mount -t proc proc /proc)")

// CheckProc reports whether processes are found in /proc by the numbers that they have here: ErrProc if not. It may
// sleep.
func CheckProc() error { return checkProc(os.Readlink, os.Getpid()) }

func checkProc(readlink func(string) (string, error), own int) error {
	switch self, err := readlink("/proc/self"); {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProc, err)
	case self != strconv.Itoa(own):
		return fmt.Errorf("%w: process %d is %s there", ErrProc, own, self)
	}
	return nil
}

// Probe reports whether a program can be started here, without leaving a trace: ErrNested, ErrUnsupported, ErrProc, or
// what else the kernel said. It may sleep.
func Probe() error {
	if err := CheckProc(); err != nil {
		return err
	}
	t := newThread()
	defer t.end()
	var err error
	t.do(func() {
		var listener int
		if listener, err = install(
			[]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}); err != nil {
			return
		}
		defer unix.Close(listener)
		// There is no notification, so a kernel that knows the request says ENOENT.
		if _, e := sendAddFD(listener, &addFD{srcFD: uint32(listener)}); errors.Is(e, unix.EINVAL) {
			err = fmt.Errorf("%w: Linux 5.9 or newer is needed", ErrUnsupported)
		}
	})
	return err
}

// install puts a filter on the calling thread and returns its listener.
//
// It does without no_new_privs where it may (CAP_SYS_ADMIN), so that setuid programs work as ever. On a kernel
// without WAIT_KILLABLE_RECV (5.19) a signal interrupts a trapped call, which is then issued again: harmless, except
// that a descriptor which was just being installed may be left over in the program.
func install(filter []unix.SockFilter) (listener int, err error) {
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
			return -1, explain(err, isGVisor)
		}
	}
}

func explain(err error, gVisor func() bool) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return ErrNested
	case (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL)) && gVisor():
		return fmt.Errorf("%w: this is a gVisor sandbox, whose kernel does not have it: run the container with another runtime (docker run --runtime=runc, "+
			"a pod with another runtimeClassName); Go programs can do without by package verbs/embed: seccomp: %w",
			ErrUnsupported, err)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: Linux 5.9 or newer with CONFIG_SECCOMP_FILTER is needed: seccomp: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: seccomp: %w; in a container, its seccomp profile has to allow the system call seccomp(2)",
			ErrUnsupported, err)
	}
	return fmt.Errorf("install the system call filter: %w", err)
}

// isGVisor reports whether the kernel is that of gVisor.
func isGVisor() bool {
	version, _ := os.ReadFile("/proc/version")
	messages := make([]byte, maxMessages)
	const readAll = 3 // SYSLOG_ACTION_READ_ALL
	n, err := unix.Klogctl(readAll, messages)
	if err != nil { // not everybody may read those of Linux
		n = 0
	}
	return saysGVisor(string(version), string(messages[:n]))
}

// maxMessages is more than gVisor has.
const maxMessages = 16 << 10

// saysGVisor looks for its name in /proc/version and in the kernel's messages, which begin with it.
func saysGVisor(version, messages string) bool {
	const old = "#1 SMP Sun Jan 10 15:06:54 PST 2016" // whose version does not have the name
	return strings.Contains(strings.ToLower(version), "gvisor") || strings.Contains(version, old) ||
		strings.Contains(messages, "] Starting gVisor")
}

// hardLimit returns the hard limit on this process's descriptors.
func hardLimit() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return l.Max, nil
}
