// Package confine removes rights that processes of Verbena do not need. It removes system calls by seccomp filters,
// and files by a Landlock domain. The restrictions apply to all present and future threads, and are permanent.
// Package privilege drops capabilities.
//
// [FilterProcess] confines a service, after its start and before its first client. [Rule] describes the calls that its
// filter refuses. The filter also refuses calls that have no rule and are not needed. [FilterThreads] confines a
// launcher, once its program runs.
//
// [StartOpener] opens files chosen by a program, given by any link or descriptor. A thread in a Landlock domain reopens
// these files. That thread can open only regular files of the service's directory and memfds.
//
// # Limits
//
// A Landlock domain cannot cover the whole process. A domain denies every access to processes outside of the domain
// that needs the permission of ptrace(2): process_vm_readv(2), pidfd_getfd(2), /proc/PID/mem, /proc/PID/ns and
// /proc/PID/fd. A service makes such accesses on each thread that runs a queue pair. A launcher needs such accesses
// too. It opens /proc/PID/mem for a service restricted by Yama, and searches /proc/PID/fd for processes that keep
// devices open. The consequences are:
//
//   - Code that has taken over a service can still read and write the memory of every program that the service may
//     access, receive and send descriptors, open files by openat2(2) with the user's rights, and send UDP packets.
//     Landlock does not prevent that; the filter and the user's rights limit it. Such code cannot execute a program,
//     make executable memory, trace, mount, change its user, connect to a TCP port, or access a terminal.
//   - A filter sees no paths. It requires O_NOFOLLOW and O_NOCTTY for openat(2), except with O_PATH or for a directory.
//     So a mistake such as opening /proc/TID/fd/N is an error. Links within a path are followed. openat2(2) is allowed,
//     since package reopen and the tree of virtual files use it. A launcher may read absolute paths without the flags.
//     The standard library opens files without the flags, too. So a service reads files by package procfile after its
//     start, and the library does not find its own files. Profiles then lack the names of mapped files.
//   - The thread of StartOpener belongs to the same process. Landlock protects against opening a wrong file by mistake,
//     not against code on another thread.
//   - Without Landlock (before Linux 5.13, or disabled at boot) the calling thread reopens files, and the check of the
//     file's type and file system is missing as well. Without seccomp filters nothing is refused. A service logs both
//     at its start.
//   - In a binary with cgo, such as one with the race detector, Go cannot reach all threads. A launcher is then not
//     confined.
//
// The package uses only the function of the Landlock library that makes a ruleset. The library's other functions
// restrict all threads.
package confine
