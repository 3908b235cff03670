package privilege

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Capability is a capability that a service of root keeps.
type Capability struct {
	Number int
	Name   string // name as in capabilities(7)
	Reason string
}

// KeptCapabilities lists the capabilities that a service of root keeps. SECURITY.md and the systemd unit list the same
// capabilities.
var KeptCapabilities = []Capability{
	{unix.CAP_CHOWN, "CAP_CHOWN", "gives queue files to the users of programs"},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE",
		"opens queue files, and files below the /proc/PID of programs, of other users; searches the directory of the virtual files"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE",
		"reads and writes registered memory, and duplicates descriptors that programs name"},
	{unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE",
		"raises a program's RLIMIT_NOFILE during the install of a device file's descriptor"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "makes socket buffers larger than net.core.rmem_max"},
	{unix.CAP_LEASE, "CAP_LEASE", "detects by a lease whether another user's queue file is still open"},
}

// StartCapabilities lists the capabilities that a service of root drops after its start.
var StartCapabilities = []Capability{
	{unix.CAP_SETPCAP, "CAP_SETPCAP", "gives up the other capabilities permanently"},
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "makes the detached mount that programs in other mount namespaces see"},
}

// DropPrivileges permanently drops privileges of all threads. DropPrivileges drops every capability except those of
// keep that the process has, and sets no_new_privs, so that executing a program gains no privileges. Confine disables
// core dumps, which would hold data of other users. For root, DropPrivileges denies processes without CAP_SYS_PTRACE
// access to /proc/self. DropPrivileges sets the umask to 077.
//
// A process without CAP_SYS_PTRACE keeps its capabilities. If it dropped them, the kernel would deny it access to
// processes with more capabilities than its own (cap_ptrace_access_check), such as a process of root in a container.
//
// In a binary with cgo, such as one with the race detector, Go cannot change all threads. The error then wraps
// ENOTSUP, and the capabilities stay unchanged. DropPrivileges must be called before any thread blocks signals.
func DropPrivileges(keep []Capability) error {
	unix.Umask(0o077)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("disable core dumps: %w", err)
	}
	if os.Geteuid() == 0 {
		// This setting affects the whole process. With it, a process of another user would belong to root, and its
		// own user could not access it.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("deny other processes access to /proc/self: %w", err)
		}
	}
	var mask uint64
	for _, c := range keep {
		mask |= 1 << c.Number
	}
	if err := dropCapabilities(mask); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

func dropCapabilities(keep uint64) error {
	if err := syscallOnAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return err
	}
	have, err := ReadCapabilities("self")
	if err != nil {
		return err
	}
	if have.Permitted&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return nil
	}
	if have.Effective&(1<<unix.CAP_SETPCAP) != 0 {
		for c := range uintptr(64) {
			if keep&(1<<c) != 0 || have.Bounding&(1<<c) == 0 {
				continue
			}
			if err := syscallOnAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); err != nil {
				return err
			}
		}
	}
	err = syscallOnAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // Linux before 4.3 returns EINVAL
		return err
	}
	return setCapabilities(have.Permitted & keep)
}

// syscallOnAllThreads makes a system call with up to three arguments on every thread.
func syscallOnAllThreads(nr, a, b, c uintptr) error {
	_, _, e := syscall.AllThreadsSyscall6(nr, a, b, c, 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// CapabilitySets holds the capability sets of a thread, one bit per capability.
type CapabilitySets struct{ Inheritable, Permitted, Effective, Bounding, Ambient uint64 }

// ReadCapabilities reads the capabilities of a process or thread from its directory in /proc, such as "self" or
// "12/task/13".
func ReadCapabilities(who string) (s CapabilitySets, err error) {
	b, err := os.ReadFile("/proc/" + who + "/status")
	if err != nil {
		return s, fmt.Errorf("read capabilities: %w", err)
	}
	return parseCapabilityStatus(string(b))
}

// ReadCapabilitiesAt reads the capabilities of a process or thread by a descriptor of its directory in /proc.
func ReadCapabilitiesAt(proc int) (s CapabilitySets, err error) {
	b, err := ReadProcFile(proc, "status")
	if err != nil {
		return s, fmt.Errorf("read capabilities: %w", err)
	}
	return parseCapabilityStatus(string(b))
}

// ReadProcFile reads a file of a process by a descriptor of its directory in /proc.
func ReadProcFile(proc int, name string) ([]byte, error) {
	fd, err := unix.Openat(proc, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}

// parseCapabilityStatus parses the capabilities in the text of proc_pid_status(5).
func parseCapabilityStatus(status string) (s CapabilitySets, err error) {
	found := 0
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		i := slices.Index([]string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}, key)
		if i < 0 {
			continue
		}
		into := []*uint64{&s.Inheritable, &s.Permitted, &s.Effective, &s.Bounding, &s.Ambient}[i]
		if _, err := fmt.Sscanf(value, "%x", into); err != nil {
			return s, fmt.Errorf("read capabilities: %q: %w", line, err)
		}
		found++
	}
	if found != 5 {
		return s, fmt.Errorf("read capabilities: the status of a process has %d sets, want 5: %w", found, syscall.EINVAL)
	}
	return s, nil
}
