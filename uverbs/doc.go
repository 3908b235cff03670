// Package uverbs implements userspace verbs access: the file /dev/infiniband/uverbsN. The package corresponds to
// drivers/infiniband/core/{uverbs_main,uverbs_cmd,uverbs_ioctl,rdma_core}.c, and returns the same results.
//
// A [Server] is a client of the midlayer. The Server has a [Device] for each of the midlayer's devices. Programs find
// the name and the minor number in sysfs. Opening a Device creates a [File], the user context. The program sends
// commands to the File in the Linux user ABI (package uapi), in one of three forms:
//
//	write(2), plain       header, command, driver's data; the command contains the address of the response
//	write(2), extended    the same data with separate lengths for the core's and the driver's parts
//	ioctl(2)              a method with attributes; INVOKE_WRITE carries the commands of the write forms
//
// Three interfaces separate the package from the caller, which is a trapped system call of an unmodified program or a
// test. A [Process] has opened the file. A [Caller] has issued one call. After a fork it may be another process than
// the opener. [Memory] is the file that the program maps.
//
// # Objects
//
// The table of the context contains the objects of a program, indexed by handles. A handle is a small number that is
// valid only in its context. A handle refers to one kind of object, and is not reused soon after the destruction of the
// object. While one thread's command uses an object, another thread's command cannot destroy the object (EBUSY). A
// lookup fails for an object that is being created or destroyed. A new object becomes usable when the response with its
// handle has been written. If this write fails, the object is destroyed.
//
// # Events
//
// A completion channel and the asynchronous event file are pipes. The program has the read end. The service writes one
// record for each event, without blocking (events.go). The destruction of an object removes the object's unread events
// from the pipe and reports the number of events that were read. The C library waits until this number of events has
// been acknowledged.
//
// # The end of a context
//
//	         GET_CONTEXT           device removed
//	fresh ---------------> live ------------------> zombie
//	  |                      |                        |
//	  +----------------------+--------- Close --------+----> closed
//
// When the device is removed, all objects on the device are destroyed at once, with queue pairs first and protection
// domains last. The context becomes a zombie. The asynchronous event file of the zombie delivers
// IBV_EVENT_DEVICE_FATAL. Readers of completion channels see the end of the file. The kernel returns EIO instead, which
// is impossible with a pipe. A command that destroys a handle succeeds and reports the event counts of the object. All
// other commands return EIO. Close, at the last close of the file, frees all remaining resources in any state.
//
// A call of the program, or a packet for the program, may be blocked without limit on the program's memory (a page of a
// FUSE file, or of userfaultfd). The end of the context then takes as long, but the removal of the device waits at most
// ServerOptions.Grace. After the grace period the objects are abandoned (ib.QP.Abandon and the like), and the device is
// removed without them. The objects are destroyed when the call returns. From the start of the removal, the context is
// a zombie for the program.
//
// # Errors
//
// Errors wrap the syscall.Errno that the program receives.
//
// # Locks, outermost first
//
//	File.ends     held while the end of the context is started
//	File.life     read-locked while a command is in the midlayer, write-locked to end the context
//	File.open     one GET_CONTEXT at a time
//	xrcDomain.mu, xrcDomains.mu  the XRC domains, which programs share
//	doorbells.mu  held when queue pairs are added or removed; the doorbell does not lock it
//	doorbell.ringing  read-locked by the doorbell of one queue pair, write-locked when the queue pair is added or removed
//	table.mu      the handles
//	eventFiles.mu the event files; setEventFile.mu of one file follows
//
// No lock is held while a command accesses the memory of the program, because such an access may take an unlimited
// time. One exception is the data that the driver copies for work requests of POST_SEND and for advice. File.life is
// held during these copies.
package uverbs
