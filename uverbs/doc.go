// Package uverbs implements userspace verbs access: the file /dev/infiniband/uverbsN. It corresponds to
// drivers/infiniband/core/{uverbs_main,uverbs_cmd,uverbs_ioctl,rdma_core}.c, and returns the same results.
//
// A [Server] is a client of the midlayer. It has a [Device] for each of the midlayer's devices; programs find the name
// and the minor number in sysfs. Opening a Device creates a [File], the user context. The program sends commands to the
// File in the Linux user ABI (package uapi), in one of three forms:
//
//	write(2), plain       header, command, driver's data; the command says where the response goes
//	write(2), extended    the same with separate lengths for the core's and the driver's parts
//	ioctl(2)              a method with attributes; INVOKE_WRITE carries the commands of the other two
//
// Three interfaces abstract from the caller, which is a trapped system call of an unmodified program or a test. A
// [Process] has opened the file. A [Caller] has issued one call; after a fork it may be another process. [Memory] is
// the file that the program maps.
//
// # Objects
//
// The objects of a program are in the table of its context, under handles: small numbers that are valid only in this
// context. A handle belongs to one kind of object, and is not reused soon after its object is destroyed. While a
// command of one thread uses an object, a command of another thread cannot destroy it (EBUSY). Lookup does not find an
// object that is being created or destroyed. A new object becomes usable once the response with its handle has been
// written; if the write fails, the object is destroyed again.
//
// # Events
//
// A completion channel and the asynchronous event file are pipes. The program has the read end. The service writes one
// record for each event, and never blocks (events.go). Destroying an object removes its unread events from the pipe and
// reports the number of events read; the C library waits until that number is acknowledged.
//
// # The end of a context
//
//	         GET_CONTEXT           device removed
//	fresh ---------------> live ------------------> zombie
//	  |                      |                        |
//	  +----------------------+--------- Close --------+----> closed
//
// When the device is removed, every object on it is destroyed at once, queue pairs first, protection domains last. The
// context becomes a zombie. Its asynchronous event file delivers IBV_EVENT_DEVICE_FATAL. Readers of completion channels
// see the end of the file; the kernel returns EIO, which a pipe cannot. Destroying a handle succeeds and reports its
// event counts. All other commands return EIO. Close, at the last close of the file, frees the rest in any state.
//
// A call of the program, or a packet for it, may be blocked on its memory (a page of a FUSE file, or of userfaultfd)
// for an unlimited time. The end of its context then takes as long, but the device's removal waits no longer than
// ServerOptions.Grace. Then the objects are abandoned (ib.QP.Abandon and the like), the device is removed without them,
// and they are destroyed when the call returns. The program sees a zombie from the start.
//
// # Errors
//
// Errors wrap the syscall.Errno for the program.
//
// # Locks, outermost first
//
//	File.ends     held while the end of the context begins
//	File.life     read by a command while it is in the midlayer, written to end the context
//	File.open     one GET_CONTEXT at a time
//	xrcDomain.mu, xrcDomains.mu  XRC domains, which programs share
//	doorbells.mu  held when queue pairs come and go; the doorbell does not take it
//	bell.ringing  read by the doorbell of one queue pair, written when it comes and goes
//	table.mu      the handles
//	eventFiles.mu the event files; then eventFile.mu, one of them
//
// No lock is held while a command accesses the memory of the program, which may take an unlimited time. An exception is
// data that the driver copies for work requests of POST_SEND, and for advice: File.life is held during these copies.
package uverbs
