// Package trace checks how a service finds its callers and their files. It examines the system calls of each of the
// service's threads, as recorded by strace(1).
//
// A call is the work of a thread from the receipt of a notification (SECCOMP_IOCTL_NOTIF_RECV) to its answer, which
// is NOTIF_SEND or a NOTIF_ADDFD that also sends. A proof is a successful NOTIF_ID_VALID in a call. The proof shows
// that all objects found by number before it belong to the caller. A second kind of proof is a pidfd of the
// looked-up process that afterwards reports that the process is alive. Such a proof is a poll without a wait. The
// service polls nothing else without a wait.
//
// The rules are:
//
//   - Paths: a queue file is named twice in its life, relative to an open directory: when it is created (O_CREAT,
//     O_EXCL, O_NOCTTY and O_NOFOLLOW), and when its name is removed (unlinkat). No other system call names a queue
//     file, and no system call names a file below a session's directory by an absolute path.
//   - Numbers: a lookup of a process by its number (pidfd_open, openat, stat, statx or readlink below /proc/NUMBER,
//     process_vm_readv, prlimit64 that sets nothing, signal 0) must be followed by a proof before the call is answered
//     with a result or a descriptor is installed. A call answered by "continue" needs no proof, because the lookup has
//     no effect.
//   - Changes: a change of a process by its number (process_vm_writev, prlimit64 that sets a limit, a signal) comes
//     after a proof in the same call.
//   - Memory: outside calls no process is accessed by its number, because no proof of the owner is possible there.
package trace

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Rule is one of the rules above.
type Rule string

// The following constants are the rules.
const (
	Paths   Rule = "paths"
	Numbers Rule = "numbers"
	Changes Rule = "changes"
	Memory  Rule = "memory"
)

// Violation is a system call that violates a rule.
type Violation struct {
	Rule Rule
	Line string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Rule, v.Line) }

var (
	pidfdLives  = regexp.MustCompile(`^\[\{fd=[0-9]+, events=POLLIN\}\], 1, \{tv_sec=0, tv_nsec=0\}.* = 0 \(Timeout\)$`)
	syscallName = regexp.MustCompile(`^([a-z0-9_]+)\((.*)$`)
	queueFile   = regexp.MustCompile(`"[^"]*\.queues(\.[^"/]*)?"`)
	sessionPath = regexp.MustCompile(`"/dev/shm/verbena-[0-9]+-[0-9]+/run/[^"/]+/[^"]*"`)
	procPath    = regexp.MustCompile(`^AT_FDCWD, "/proc/([0-9]+)[/"]|^"/proc/([0-9]+)[/"]`)
	number      = regexp.MustCompile(`^([0-9]+)`)
)

// Check returns the violations of one thread of process self. lines contains the output of strace -ff.
func Check(self int, lines []string) (bad []Violation) {
	var inCall, proven bool
	var unproven []string // lookups since the last proof
	add := func(r Rule, line string) { bad = append(bad, Violation{r, line}) }
	answered := func(result bool) {
		if result {
			for _, l := range unproven {
				add(Numbers, l)
			}
		}
		unproven = nil
	}
	for _, line := range lines {
		m := syscallName.FindStringSubmatch(line)
		if m == nil { // lines about signals and exits
			continue
		}
		name, args := m[1], m[2]
		ok := !strings.Contains(args, ") = -1 ") && !strings.Contains(args, ")  = -1 ")
		switch {
		case name == "ioctl" && strings.Contains(args, "SECCOMP_IOCTL_NOTIF_RECV"):
			inCall, proven, unproven = ok, false, nil
			continue
		case name == "ioctl" && strings.Contains(args, "SECCOMP_IOCTL_NOTIF_ID_VALID"):
			if ok {
				proven, unproven = true, nil
			}
			continue
		case name == "ppoll" && pidfdLives.MatchString(args):
			unproven = nil
			continue
		case name == "ioctl" && strings.Contains(args, "SECCOMP_IOCTL_NOTIF_SEND"):
			// An error only reports that a file or process does not exist.
			answered(!strings.Contains(args, "FLAG_CONTINUE") && strings.Contains(args, "error=0"))
			inCall, proven = false, false
			continue
		case name == "ioctl" && strings.Contains(args, "SECCOMP_IOCTL_NOTIF_ADDFD"):
			answered(true)
			if strings.Contains(args, "ADDFD_FLAG_SEND") {
				inCall, proven = false, false
			}
			continue
		}
		if !strings.HasPrefix(name, "process_vm_") &&
			(queueFile.MatchString(args) && !isPermittedQueueFileCall(name, args) || sessionPath.MatchString(args)) {
			add(Paths, line)
		}
		switch target, change := targetProcess(name, args); {
		case target == 0, target == self, !ok: // a failed call has found and changed nothing
		case !inCall:
			if strings.HasPrefix(name, "process_vm_") || change {
				add(Memory, line)
			}
		case change && !proven:
			add(Changes, line)
		case !change:
			unproven = append(unproven, line)
		}
	}
	return bad
}

// isPermittedQueueFileCall reports whether a call that names a queue file is one of the two permitted calls.
func isPermittedQueueFileCall(name, args string) bool {
	if !number.MatchString(args) { // the path is relative to an open directory
		return false
	}
	switch name {
	case "openat":
		return strings.Contains(args, "O_CREAT|O_EXCL|O_NOCTTY|O_NOFOLLOW")
	case "unlinkat":
		return true
	}
	return false
}

// targetProcess returns the process that a system call names by its number, or 0. It also reports whether the call
// changes the process.
func targetProcess(name, args string) (pid int, change bool) {
	first := func() int {
		n, _ := strconv.Atoi(number.FindString(args))
		return n
	}
	fields := strings.Split(args, ", ")
	switch name {
	case "pidfd_open", "process_vm_readv":
		return first(), false
	case "process_vm_writev":
		return first(), true
	case "prlimit64":
		return first(), len(fields) > 2 && fields[2] != "NULL"
	case "kill", "tkill":
		return first(), len(fields) > 1 && !strings.HasPrefix(fields[1], "0)")
	case "tgkill":
		return first(), len(fields) > 2 && !strings.HasPrefix(fields[2], "0)")
	}
	if m := procPath.FindStringSubmatch(args); m != nil &&
		slices.Contains([]string{"openat", "open", "newfstatat", "stat", "lstat",
			"statx", "readlinkat", "readlink", "openat2", "faccessat", "faccessat2", "access"}, name) {
		n, _ := strconv.Atoi(m[1] + m[2])
		return n, false
	}
	return 0, false
}
