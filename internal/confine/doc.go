// Package confine takes away from the processes of Verbena what they do not need: system calls, by seccomp filters, and
// files, by a Landlock domain. It holds for every thread, present and future, and cannot be undone. Capabilities are
// given up by package privilege.
//
// [Process] is for a service, after its start and before its first client. [Rule] lists what its filter refuses; a call
// that is not needed at all is refused as well. [Threads] is for a launcher, once its program runs.
//
// [Opener] is for files that a program has chosen, by whatever link or descriptor. A thread in a Landlock domain
// reopens them, which can open ordinary files of the service's directory and memfds, and nothing else.
//
// # Limits
//
// A Landlock domain cannot be for the whole process. It denies every access to processes outside of it that ptrace(2)
// would need: process_vm_readv(2), pidfd_getfd(2), /proc/PID/mem, /proc/PID/ns and /proc/PID/fd. A service consists of
// such accesses, on each thread that runs a queue pair. A launcher needs them as well: it opens /proc/PID/mem for a
// service that Yama restricts, and looks in /proc/PID/fd for processes that keep devices open. So:
//
//   - Code that has taken over a service still reads and writes the memory of every program that the service may access,
//     receives and sends descriptors, opens files by openat2(2) that its user may open, and sends UDP packets. Landlock
//     does not stop it; the filter and the user's rights do. It cannot execute a program, make executable memory, trace,
//     mount, change its user, connect to a TCP port, or reach a terminal.
//   - A filter sees no paths. It requires O_NOFOLLOW and O_NOCTTY of openat(2), unless that opens nothing (O_PATH) or a
//     directory, so that a mistake such as the opening of /proc/TID/fd/N is an error. Links in the midst of a path are
//     followed, and openat2(2) is allowed: package reopen and the tree of virtual files use it. A launcher may read by a
//     path from the root directory without the flags. The standard library opens without them, too: what a service reads
//     after its start, it reads by package procfile, and a file of the library's is not found. Profiles then lack the
//     names of mapped files.
//   - The thread of Opener is of the same process. Landlock protects against a file that was opened by mistake, not
//     against code that runs on another thread.
//   - Without Landlock (before Linux 5.13, or not enabled at boot) files are reopened by the thread that needs them; the
//     check of the file's type and file system goes with the domain. Without seccomp filters nothing is refused. A
//     service logs either at its start.
//   - In a binary with cgo, such as one with the race detector, Go cannot reach all threads: a launcher goes without.
//
// Of the library for Landlock only the making of a ruleset is used: its own functions restrict all threads.
package confine
