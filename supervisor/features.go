package supervisor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"verbena/internal/confine"
	"verbena/internal/sched"
	"verbena/umem"
)

// Feature is an optional feature of the kernel.
type Feature struct {
	Name, Since string
	Here        bool
	Without     string // consequence of its absence
	Promise     string // promise of SECURITY.md that depends on it; "" for none
}

// Features lists the optional features of the kernel, the newest last. It returns an error if the kernel cannot run
// programs at all (Probe). It may sleep.
func Features() ([]Feature, error) {
	if err := Probe(); err != nil {
		return nil, err
	}
	list := KnownFeatures()
	t := newThread()
	defer t.end()
	var err error
	here := map[string]bool{
		"pidfd_getfd": copiesDescriptors(), "SO_PEERPIDFD": peerPidfd(), "PROCMAP_QUERY": umem.QueriesMappings(),
		"short slices": sched.Slices(),
		"Landlock":     confine.HasLandlock(), "SO_PASSRIGHTS": refusesRights(),
	}
	t.do(func() { err = probeListener(here) })
	for i := range list {
		list[i].Here = here[list[i].Name]
	}
	return list, err
}

// KnownFeatures lists all features, independent of the kernel.
func KnownFeatures() []Feature {
	return []Feature{
		{Name: "pidfd_getfd", Since: "5.6", Without: "dup of a device's descriptor opens another description of it"},
		{Name: "ADDFD_FLAG_SEND", Since: "5.14",
			Without: "a program may find a descriptor open that a signal has kept it from learning of"},
		{Name: "WAIT_KILLABLE_RECV", Since: "5.19",
			Without: "a signal interrupts a call that is being answered: it is made again, or fails with EINTR where the handler is without SA_RESTART"},
		{Name: "Landlock", Since: "6.2",
			Without: "files that a program names are reopened by a thread that may open any file",
			Promise: "a file that a program has chosen is opened by a thread that can open nothing but queue files and memfds"},
		{Name: "SO_PEERPIDFD", Since: "6.5", Without: "who connects is looked up by number and user",
			Promise: "a client is the process that has connected, and no other with its number"},
		{Name: "SYNC_WAKE_UP", Since: "6.6", Without: "a call that the service answers takes some five times as long"},
		{Name: "PROCMAP_QUERY", Since: "6.11", Without: "memory of a program is looked up in the text of its /proc/PID/maps",
			Promise: "what looking up a program's memory takes does not grow with the number of its mappings"},
		{Name: "short slices", Since: "6.12",
			Without: "beside programs that poll on every processor, the service waits for its turn"},
		{Name: "SO_PASSRIGHTS", Since: "6.16",
			Without: "descriptors that a client sends and the service did not ask for reach the service's process",
			Promise: "no descriptor reaches the service's process that it has not asked for"},
	}
}

// probeListener records the features of a listener. It leaves a filter on the calling thread.
func probeListener(here map[string]bool) error {
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	// needed without CAP_SYS_ADMIN; otherwise the filter fails with EACCES
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	listener, err := setFilter(filter, unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	killable := err == nil
	if err != nil {
		if listener, err = setFilter(filter, 0); err != nil {
			return explain(err, isGVisor)
		}
	}
	defer unix.Close(listener)
	// There is no notification, so a kernel that knows the flag returns ENOENT.
	_, send := sendAddFD(listener, &addFD{srcFD: uint32(listener), flags: unix.SECCOMP_ADDFD_FLAG_SEND})
	here["WAIT_KILLABLE_RECV"] = killable
	here["ADDFD_FLAG_SEND"] = errors.Is(send, unix.ENOENT)
	here["SYNC_WAKE_UP"] = setSyncWakeUp(listener, true) == nil
	return nil
}

// copiesDescriptors reports whether pidfd_getfd(2) is available and allowed.
func copiesDescriptors() bool {
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

// refusesRights reports whether a socket can refuse descriptors.
func refusesRights() bool {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	return unix.SetsockoptInt(ends[0], unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
}

// peerPidfd reports whether a socket provides a pidfd of its peer.
func peerPidfd() bool {
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

// Access describes how the service accesses the memory of programs here, depending on Yama.
func Access() string {
	switch scope := ptraceScope(); scope {
	case "0":
		return "the service reaches programs' memory itself"
	case "1":
		return fmt.Sprintf("kernel.yama.ptrace_scope is %s: an ordinary user's service reaches the memory of a program, and `verbena run` that of the processes that it starts",
			scope)
	default:
		return fmt.Sprintf("kernel.yama.ptrace_scope is %s: only root's service reaches programs' memory", scope)
	}
}
