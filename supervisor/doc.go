// Package supervisor runs unmodified programs on RDMA devices that only exist in user space. A program opens
// /dev/infiniband/uverbs0, reads /sys/class/infiniband and maps its queues in the same way as with a kernel device.
//
// # How
//
// The kernel's seccomp user notification (seccomp_unotify(2)) stops a system call and asks another process for its
// result. Three processes take part:
//
//	launcher (Start)                     program                      service (Supervisor)
//	  filter on a thread of its own
//	  listener ---------------------------- Handover ----------------> Attach
//	  fork and exec from that thread --> main()
//	                                      open("/dev/infiniband/..") --> Session answers
//	  waits, passes signals on,           write(fd, doorbell) ---------> uverbs.File.Write
//	  guards (Program.Guard)              mmap(fd), read(sysfs) .... native
//
// The filter allows nearly all calls. The package traps RDMA's ioctl, by its request number; write, fstat and close
// on descriptors with the numbers of device files (numbers.go), which few other files have; sockets of NETLINK_RDMA
// (netlink.go); and calls with a path, since a filter cannot read a path. Most paths are not virtual, and the call
// continues in the kernel. For a path below /dev/infiniband or /sys/class/infiniband*, the supervisor answers from
// a tree of real files per user (trees.go, sysfs.go). The program receives a descriptor of such a file and uses it
// without further traps.
//
// A program may also ring doorbells natively, by writes that are not trapped (native.go).
//
// The descriptor of a device file refers to a queue file (package shm), so mmap(2) is native as well. The last
// close is not trapped either: inotify reports the close, whatever caused it.
//
// # Trust
//
// The Supervisor may run as root for users who do not trust one another. The package finds a thread or process by
// its ID, and proves before any effect that the ID belongs to the trapped thread (caller.go). Afterwards the package
// uses only objects bound to that process: a pidfd, and files opened below its directory in /proc (processes.go).
// Registered memory belongs to an address space and does not survive exec. The filter therefore traps exec (exec.go).
// A queue file belongs to the user, and the user can rename and replace it, so the service accesses it by descriptor.
// Resources are charged to the user (package quota).
//
// # Threads
//
// The thread that receives a call also answers it (worker.go), because waking another thread takes several times as
// long. tokens.go contains the rules for passing the receive token to a second thread. A worker has a type for each
// kind of calls: on device files (devicecalls.go), descriptors (duplicate.go), directories (directories.go), paths
// (pathcalls.go) and netlink sockets (netlink.go).
//
// # When one of the three dies
//
//   - The program: the kernel closes its descriptors, and with them its device files. When no process is left under
//     the filter, the session ends.
//   - The launcher: the program continues, without a guardian.
//   - The service: the launcher answers in its place (guardian.go): files as without a supervisor, EIO for devices.
//
// # Limitations
//
// A program cannot reach a device by io_uring, as a 32-bit program, or by ".." after a link in the file system.
// chdir to a virtual directory fails (fchdir works: directories.go), and O_PATH of a device or a link fails too.
// From a virtual directory, no path with ".." leads to files outside. The kernel allows one supervisor per program
// (errNested). Without CAP_SYS_ADMIN the program runs with no_new_privs, so setuid programs have no effect. If a
// program closes a device's descriptor by io_uring, or while another thread writes to the descriptor, the kernel
// can reuse the number. For half a second, the supervisor may then mistake a write(2) of 32 bytes to the new file
// for a doorbell.
//
// The service must be allowed to access the program's memory, so it must run as the same user or have CAP_SYS_PTRACE
// (otherwise Attach returns umem.ErrAccess). If Yama allows that access only to ancestors (ptrace_scope 1), the
// program itself allows it to the service (tracer.go). For other processes, such as children of the program, the
// launcher opens /proc/PID/mem (helper.go). The launcher stays an ancestor of these processes while it runs, which is
// as long as the program runs. Processes that outlive the program keep their open devices, but cannot open other
// devices.
//
// A signal with a handler without SA_RESTART can interrupt a trapped call with EINTR, even if the call would not
// sleep in the kernel. Before Linux 5.19 such an interruption can happen at any time. Since Linux 5.19 it can
// happen only until the service has received the call, which takes a short time unless the machine is busy. An
// interrupted call has had no effect.
//
// Linux 5.9 is the minimum. From Linux 6.6 on, answers are several times as fast.
package supervisor
