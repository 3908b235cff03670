// Package supervisor runs unmodified programs on RDMA devices that only exist in user space. A program opens
// /dev/infiniband/uverbs0, reads /sys/class/infiniband, maps its queues, and finds what it expects.
//
// # How
//
// The kernel's seccomp user notification (seccomp_unotify(2)) stops a system call and asks another process what to do
// about it. Three processes take part:
//
//	launcher (Start)                     program                      service (Supervisor)
//	  filter on a thread of its own
//	  listener ---------------------------- Handover ----------------> Attach
//	  fork and exec from that thread --> main()
//	                                      open("/dev/infiniband/..") --> Session answers
//	  waits, passes signals on,           write(fd, doorbell) ---------> uverbs.File.Write
//	  guards (Program.Guard)              mmap(fd), read(sysfs) .... native
//
// The filter lets nearly everything through. Trapped are: RDMA's ioctl, by its request number; write, fstat and close
// on descriptors with the numbers that device files get (numbers.go), which few other files have; sockets of
// NETLINK_RDMA (netlink.go); and calls with a path, because a filter cannot see what is in it. Most paths are not
// virtual, and the call goes on in the kernel. A path below /dev/infiniband or /sys/class/infiniband* is answered from
// a tree of real files, of the user (trees.go, sysfs.go): the program gets a descriptor of one and does the rest
// without being trapped.
//
// A program may also ring natively, by writes that are not trapped: native.go says which, and how they are seen.
//
// For a device file it gets a descriptor of a queue file (package shm), so that mmap(2) is native as well.
// The last close is not trapped either: inotify reports it, however it comes about.
//
// # Trust
//
// The Supervisor may run as root for users who do not trust one another. A thread or a process is found by number, and
// then proven to be the trapped one before anything is done for it; only objects that stay its own are used: a pidfd,
// and files opened below its directory in /proc (caller.go). Registered memory belongs to an address space and does not
// follow exec, which is therefore trapped (exec.go). A queue file belongs to the user, who can rename and replace it:
// it is used by descriptor. Resources are charged to the user (package quota).
//
// # Threads
//
// A call is answered by the thread that received it (worker.go), because to wake another takes several times as long;
// turn.go has the rules by which a second thread takes over.
//
// # When one of the three dies
//
//   - The program: its descriptors go, so its device files are closed; when no process is left under the filter, the
//     session ends.
//   - The launcher: the program goes on, without a guardian.
//   - The service: the launcher answers in its place (guardian.go): files as without a supervisor, EIO for devices.
//
// # What does not work
//
// A program that reaches a device by io_uring or as a 32-bit program does not find it, nor by ".." after a link in the
// file system; chdir to a virtual directory fails (fchdir does not: directories.go), and so does O_PATH of a device or
// a link; from a virtual directory no path leads by ".." to files outside. One supervisor per program is all that the
// kernel allows (ErrNested). Without CAP_SYS_ADMIN the program runs with no_new_privs: setuid programs have no effect
// in it. If a program closes a device's descriptor by io_uring, or while another thread writes to it, a write(2) of the
// doorbell's 32 bytes to the next file under the number may be taken for a doorbell, for half a second.
//
// The service must be allowed to access the program's memory: same user, or CAP_SYS_PTRACE (umem.ErrAccess from
// Attach). Where Yama allows that to ancestors only (ptrace_scope 1), the program allows it to the service as well
// (tracer.go); for processes that do not, such as its children, the launcher is asked to open /proc/PID/mem
// (helper.go). It stays an ancestor of what the program starts as long as it lives, which is as long as the program
// does; processes that go on after that reach what they have open, and find no more devices.
//
// A signal whose handler was installed without SA_RESTART can interrupt a trapped call with EINTR, where the kernel
// would not sleep at all: before Linux 5.19 at any time, and since then until the service has received the call, which
// is a moment unless the machine is busy; what is interrupted there has not been carried out.
//
// Linux 5.9 is the minimum. From 6.6 on answers come several times as fast.
package supervisor
