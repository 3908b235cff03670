package confine

import (
	"os"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// rule is a restriction of a filter.
type rule struct {
	Name    string
	Refuses string            // description of the refused calls, for users
	calls   []string          // names of system calls; names that the architecture does not have are ignored
	except  []conditionalRule // exceptions: calls that are allowed
}

// conditionalRule allows a system call if all conditions hold.
type conditionalRule struct {
	call       string
	conditions seccomp.ArgumentConditions
}

// allowedCalls lists the system calls that both filters allow with any arguments. Since Linux 5.11 the kernel decides
// these calls from a cache, without executing the filter.
var allowedCalls = []string{
	// These calls are for the Go runtime, and for the C library in binaries with cgo.
	"arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "exit", "exit_group", "futex", "futex_waitv",
	"get_robust_list", "getcpu", "getpid", "getppid", "getrandom", "gettid", "gettimeofday", "madvise", "membarrier",
	"mincore",
	"mlock", "mremap", "munlock", "munmap", "nanosleep", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
	"rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "sched_getaffinity", "sched_yield", "set_robust_list",
	"set_tid_address", "setitimer", "sigaltstack", "time", "timer_create", "timer_delete", "timer_gettime",
	"timer_settime",
	"timerfd_create", "timerfd_settime", "timerfd_gettime",
	// Files and descriptors.
	"access", "close", "close_range", "copy_file_range", "dup", "dup2", "dup3", "epoll_create1", "epoll_ctl",
	"epoll_pwait",
	"epoll_pwait2", "epoll_wait", "eventfd2", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchmod", "fchmodat",
	"fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "getcwd",
	"getdents64", "inotify_add_watch", "inotify_init1", "inotify_rm_watch", "linkat", "lseek", "lstat", "memfd_create",
	"fstatat", "mkdirat", "newfstatat", "openat2", "pipe2", "poll", "ppoll", "pread64", "preadv", "preadv2", "pselect6",
	"pwrite64",
	"pwritev", "pwritev2", "read", "readlink", "readlinkat", "readv", "renameat", "renameat2", "sendfile", "splice",
	"stat",
	"statfs", "statx", "symlinkat", "umask", "unlinkat", "utimensat", "write", "writev",
	// These calls are operations on existing sockets, and on addresses.
	"accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "recvfrom", "recvmmsg", "recvmsg",
	"sendmmsg",
	"sendmsg", "sendto", "setsockopt", "shutdown", "socketpair",
	// These calls are for programs: their memory, descriptors, limits and identity.
	"getpgid", "getpgrp", "getsid", "kcmp", "pidfd_getfd", "pidfd_open", "prlimit64", "process_vm_readv",
	"process_vm_writev",
	// This process.
	"capget", "getegid", "geteuid", "getgid", "getgroups", "getresgid", "getresuid", "getrlimit", "getrusage", "getuid",
	"sched_get_priority_max", "sched_get_priority_min", "sched_getattr", "sched_getparam", "sched_getscheduler",
	"sched_setattr", "setrlimit", "sysinfo", "times", "uname",
}

// The following constants are the requests of ioctl(2) that a service makes.
const (
	procmapQuery  = 0xc0686611
	nsGetUserNS   = 0xb701
	nsGetParent   = 0xb702
	nsGetType     = 0xb703
	nsGetOwnerUID = 0xb704
	verbsIoctl    = 0xc0181b01 // RDMA_VERBS_IOCTL
)

const (
	threadFlags = unix.CLONE_THREAD
	spaceFlags  = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME
	typeMask = 0xf // mask of the type in the second argument of socket(2), without its flags
	tmpfile  = unix.O_TMPFILE &^ unix.O_DIRECTORY
)

// commonRules returns the rules of both filters. The filters also refuse a call that is neither in a rule nor in
// allowed.
func commonRules() []rule {
	return []rule{
		{
			Name: "ioctl", Refuses: "ioctl(2), except for a few requests of seccomp listeners, mappings, namespaces, sockets and pipes; so terminals and devices are excluded",
			calls: []string{"ioctl"},
			except: allowIoctlRequests(unix.SECCOMP_IOCTL_NOTIF_RECV, unix.SECCOMP_IOCTL_NOTIF_SEND,
				unix.SECCOMP_IOCTL_NOTIF_ID_VALID,
				unix.SECCOMP_IOCTL_NOTIF_ADDFD, unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, procmapQuery, unix.TIOCINQ, unix.SIOCOUTQ,
				nsGetUserNS, nsGetParent, nsGetType, nsGetOwnerUID),
		},
		{
			Name: "exec", Refuses: "executing a program",
			calls: []string{"execve", "execveat"},
		},
		{
			Name: "processes", Refuses: "making a process; making a thread is allowed",
			calls: []string{"fork", "vfork", "clone"},
			except: []conditionalRule{{"clone", seccomp.ArgumentConditions{
				{Argument: 0, Operation: seccomp.BitsSet, Value: threadFlags},
				{Argument: 0, Operation: seccomp.BitsNotSet, Value: spaceFlags}}}},
		},
		{
			Name: "code", Refuses: "executable memory",
			calls: []string{"mmap", "mprotect", "pkey_mprotect", "memfd_secret", "shmat", "remap_file_pages"},
			except: []conditionalRule{
				{"mmap", seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.BitsNotSet, Value: unix.PROT_EXEC}}},
				{"mprotect", seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.BitsNotSet, Value: unix.PROT_EXEC}}},
			},
		},
		{
			Name: "mounts", Refuses: "mounting, and changing the root directory",
			calls: []string{"mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen",
				"fsconfig",
				"fsmount", "fspick", "mount_setattr"},
		},
		{
			Name: "namespaces", Refuses: "entering or making a namespace",
			calls: []string{"setns", "unshare"},
		},
		{
			Name: "ptrace", Refuses: "tracing a process",
			calls: []string{"ptrace"},
		},
		{
			Name: "kernel", Refuses: "modules, programs and events of the kernel, clocks, swap, quotas",
			calls: []string{"bpf", "perf_event_open", "init_module", "finit_module", "delete_module", "kexec_load",
				"kexec_file_load",
				"reboot", "swapon", "swapoff", "iopl", "ioperm", "syslog", "acct", "quotactl", "quotactl_fd", "settimeofday",
				"clock_settime", "clock_adjtime", "adjtimex", "personality"},
		},
		{
			Name: "keys", Refuses: "the kernel's keys",
			calls: []string{"keyctl", "add_key", "request_key"},
		},
		{
			Name: "rings", Refuses: "io_uring, which bypasses the filter, and userfaultfd",
			calls: []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "io_setup", "io_submit"},
		},
		{
			Name: "identity", Refuses: "changing user, group or capabilities",
			calls: []string{"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid",
				"setgroups",
				"capset", "setsid", "setpgid"},
		},
		{
			Name: "prctl", Refuses: "prctl(2), except for names, timers and orphans; so dropped privileges stay dropped",
			calls: []string{"prctl"},
			except: allowFirstArgValues("prctl", unix.PR_SET_NAME, unix.PR_SET_VMA, unix.PR_SET_TIMERSLACK,
				unix.PR_SET_NO_NEW_PRIVS,
				unix.PR_SET_CHILD_SUBREAPER),
		},
		{
			Name: "nodes", Refuses: "device nodes, and opening files by handle",
			calls: []string{"mknod", "mknodat", "name_to_handle_at", "open_by_handle_at"},
		},
		{
			Name:    "open",
			Refuses: "openat(2) without O_NOFOLLOW and O_NOCTTY, except for directories and O_PATH; open(2) and creat(2)",
			calls:   []string{"open", "creat", "openat"},
			except: []conditionalRule{
				{"openat", thirdArgHasFlag(unix.O_PATH)},
				{"openat", append(thirdArgHasFlag(unix.O_DIRECTORY), thirdArgLacksFlags(unix.O_ACCMODE|unix.O_CREAT|tmpfile)...)},
				{"openat", append(thirdArgHasFlag(unix.O_NOFOLLOW), thirdArgHasFlag(unix.O_NOCTTY)...)},
			},
		},
	}
}

// atFDCWD is AT_FDCWD in a register.
const atFDCWD = 1<<64 + unix.AT_FDCWD

func thirdArgHasFlag(flag uint64) seccomp.ArgumentConditions {
	return seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.BitsSet, Value: flag}}
}

func thirdArgLacksFlags(flags uint64) seccomp.ArgumentConditions {
	return seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.BitsNotSet, Value: flags}}
}

func allowFirstArgValues(call string, values ...uint64) (list []conditionalRule) {
	for _, v := range values {
		list = append(list, conditionalRule{
			call, seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: v}},
		})
	}
	return list
}

func allowIoctlRequests(numbers ...uint64) (list []conditionalRule) {
	for _, n := range numbers {
		list = append(list, conditionalRule{
			"ioctl", seccomp.ArgumentConditions{{Argument: 1, Operation: seccomp.Equal, Value: n}},
		})
	}
	return list
}

// serviceRules returns the rules of a service's filter.
func serviceRules() []rule {
	return append(commonRules(),
		rule{
			Name: "sockets", Refuses: "sockets other than Unix, UDP and NETLINK_ROUTE; listening",
			calls: []string{"socket", "listen"},
			except: append(append(allowUDPSockets(unix.AF_INET), allowUDPSockets(unix.AF_INET6)...),
				conditionalRule{"socket", seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: unix.AF_UNIX}}},
				conditionalRule{"socket", seccomp.ArgumentConditions{
					{Argument: 0, Operation: seccomp.Equal, Value: unix.AF_NETLINK},
					{Argument: 2, Operation: seccomp.Equal, Value: unix.NETLINK_ROUTE}}}),
		},
		rule{
			Name: "signals", Refuses: "signals to other processes; checking whether they exist is allowed",
			calls: []string{"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"},
			except: append(allowFirstArgValues("tgkill", uint64(os.Getpid())),
				conditionalRule{"tgkill", seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.Equal, Value: 0}}}),
		},
	)
}

// launcherRules returns the rules of a launcher's filter. A launcher waits for its program, and passes signals on to
// the program.
func launcherRules() []rule {
	rules := commonRules()
	for i := range rules {
		switch rules[i].Name {
		case "ioctl":
			// The guardian itself makes one trapped call, and queries the foreground process group of the terminal.
			rules[i].except = append(rules[i].except, allowIoctlRequests(verbsIoctl, unix.TIOCGPGRP)...)
		case "open":
			rules[i].Refuses += "; reading by a path from the working directory is allowed"
			// The standard library reads files in this way.
			rules[i].except = append(rules[i].except, conditionalRule{"openat",
				append(thirdArgLacksFlags(unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC|tmpfile),
					seccomp.Condition{Argument: 0, Operation: seccomp.Equal, Value: atFDCWD})})
		}
	}
	return append(rules, rule{Name: "sockets", Refuses: "making sockets",
		calls: []string{"socket", "socketpair", "listen", "bind", "connect"}})
}

// launcherCalls lists the calls that are allowed to a launcher in addition to allowed.
var launcherCalls = []string{"kill", "tgkill", "pidfd_send_signal", "wait4", "waitid"}

// allowUDPSockets allows datagram sockets of an address family.
func allowUDPSockets(family uint64) (list []conditionalRule) {
	for _, protocol := range []uint64{0, unix.IPPROTO_UDP} {
		list = append(list, conditionalRule{"socket", seccomp.ArgumentConditions{
			{Argument: 0, Operation: seccomp.Equal, Value: family},
			{Argument: 1, Operation: seccomp.BitsSet, Value: unix.SOCK_DGRAM},
			{Argument: 1, Operation: seccomp.BitsNotSet, Value: typeMask &^ unix.SOCK_DGRAM},
			{Argument: 2, Operation: seccomp.Equal, Value: protocol}}})
	}
	return list
}
