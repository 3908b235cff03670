package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"verbena/internal/confine"
	"verbena/internal/sched"
	"verbena/umem"
)

// Feature is an optional feature of the kernel.
type Feature struct {
	Name, Since string
	Here        bool
	Without     string // consequence of the absence of the feature
	Promise     string // promise of SECURITY.md that depends on the feature, or ""
}

// Features lists the optional features of the kernel, ordered by kernel version, the newest last. Features returns an
// error if the kernel cannot run programs at all (Probe). It may sleep.
func Features() ([]Feature, error) {
	if err := Probe(); err != nil {
		return nil, err
	}
	list := KnownFeatures()
	t := newThread()
	defer t.end()
	var err error
	here := map[string]bool{
		"pidfd_getfd": canCopyDescriptors(), "SO_PEERPIDFD": hasPeerPidfd(), "PROCMAP_QUERY": umem.QueriesMappings(),
		"short slices": sched.SupportsTimeSlices(),
		"Landlock":     confine.HasLandlock(), "SO_PASSRIGHTS": canRefuseRights(),
	}
	t.do(func() { err = probeListener(here) })
	for i := range list {
		list[i].Here = here[list[i].Name]
	}
	return list, err
}

// KnownFeatures lists all optional features, also if this kernel lacks them.
func KnownFeatures() []Feature {
	return []Feature{
		{Name: "pidfd_getfd", Since: "5.6", Without: "dup of a device's descriptor opens another description of it"},
		{Name: "ADDFD_FLAG_SEND", Since: "5.14",
			Without: "after a signal, a descriptor may stay open in a program that did not receive its number"},
		{Name: "WAIT_KILLABLE_RECV", Since: "5.19",
			Without: "a signal interrupts a call that is being answered: the call is repeated, or fails with EINTR if the handler lacks SA_RESTART"},
		{Name: "Landlock", Since: "6.2",
			Without: "a thread without restrictions reopens files that a program names",
			Promise: "a thread that can open only queue files and memfds opens the files that a program chooses"},
		{Name: "SO_PEERPIDFD", Since: "6.5", Without: "a client is looked up by process ID and user ID",
			Promise: "a client is the process that has connected, and not another process with its ID"},
		{Name: "SYNC_WAKE_UP", Since: "6.6", Without: "a call that the service answers takes about five times as long"},
		{Name: "PROCMAP_QUERY", Since: "6.11", Without: "the mappings of a program are read from the text of /proc/PID/maps",
			Promise: "the time to look up a program's memory does not grow with the number of its mappings"},
		{Name: "short slices", Since: "6.12",
			Without: "if programs poll on every processor, the service waits for a time slice"},
		{Name: "SO_PASSRIGHTS", Since: "6.16",
			Without: "unrequested descriptors from a client reach the service's process",
			Promise: "no unrequested descriptor reaches the service's process"},
	}
}

// probeListener records which features a seccomp listener has. The filter stays on the calling thread.
func probeListener(here map[string]bool) error {
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	// no_new_privs is needed without CAP_SYS_ADMIN; otherwise the filter fails with EACCES.
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	listener, err := setFilter(filter, unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	killable := err == nil
	if err != nil {
		if listener, err = setFilter(filter, 0); err != nil {
			return explainFilterError(err, isGVisor)
		}
	}
	defer unix.Close(listener)
	// There is no notification, so a kernel that supports the flag returns ENOENT.
	_, send := sendAddFD(listener, &addFD{srcFD: uint32(listener), flags: unix.SECCOMP_ADDFD_FLAG_SEND})
	here["WAIT_KILLABLE_RECV"] = killable
	here["ADDFD_FLAG_SEND"] = errors.Is(send, unix.ENOENT)
	here["SYNC_WAKE_UP"] = setSyncWakeUp(listener, true) == nil
	return nil
}

// kernelVersion returns the version of the kernel as parseKernelVersion does, or 0 if it is not known.
var kernelVersion = sync.OnceValue(func() int {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0
	}
	return parseKernelVersion(unix.ByteSliceToString(u.Release[:]))
})

// parseKernelVersion converts the version of a kernel, such as 6.12, to a number.
func parseKernelVersion(text string) int {
	major, rest, _ := strings.Cut(text, ".")
	minor := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		minor = rest[:i]
	}
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	return a*1000 + b
}

// canCopyDescriptors reports whether pidfd_getfd(2) is available and allowed.
func canCopyDescriptors() bool {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, pidfd, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// canRefuseRights reports whether a socket can refuse descriptors.
func canRefuseRights() bool {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	return unix.SetsockoptInt(ends[0], unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
}

// hasPeerPidfd reports whether a socket provides a pidfd of its peer.
func hasPeerPidfd() bool {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	fd, err := unix.GetsockoptInt(ends[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// DescribeAccess describes how the service accesses the memory of programs on this machine, depending on Yama.
func DescribeAccess() string {
	switch scope := ptraceScope(); scope {
	case "0":
		return "the service itself accesses programs' memory"
	case "1":
		return fmt.Sprintf("kernel.yama.ptrace_scope is %s: an ordinary user's service accesses the memory of a program, and `verbena run` accesses the memory of the processes that the program starts",
			scope)
	default:
		return fmt.Sprintf("kernel.yama.ptrace_scope is %s: only root's service can access programs' memory", scope)
	}
}
