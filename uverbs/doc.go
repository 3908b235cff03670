// Package uverbs is userspace verbs access: the file /dev/infiniband/uverbsN, and what programs do with it. It
// stands for drivers/infiniband/core/{uverbs_main,uverbs_cmd,uverbs_ioctl,rdma_core}.c, and answers as they do.
//
// A [Server] is a client of the midlayer: for each of its devices there is a [Device], whose name and minor number
// a program finds in sysfs. To open that is to make a [File], the user's context. The program sends commands to it
// in the Linux user ABI (package uapi), in one of three ways:
//
//	write(2), plain       header, command, driver's data; the command says where the response goes
//	write(2), extended    the same with separate lengths for the core's and the driver's parts
//	ioctl(2)              a method with attributes; INVOKE_WRITE carries the commands of the other two
//
// Who calls, a trapped system call of an unmodified program or a test, is hidden behind three interfaces: [Process]
// opened the file, [Caller] issued one call (perhaps another process, after a fork), and [Memory] is what the
// program maps.
//
// # Objects
//
// What the program makes lives in the table of its context, under a handle: a small number that means nothing
// elsewhere. A handle is of one kind, and is not used again soon after its object has gone. While one thread's
// command uses an object, another's cannot destroy it (EBUSY); an object that is being made or destroyed is not
// found. A new object can be used when the response that names it has been written; if that fails, the object is
// destroyed again.
//
// # Events
//
// A completion channel and the asynchronous event file are pipes. The program has the reading end; the service
// writes, never waiting, one record for each event (events.go). Destroying an object takes its unread events out of
// the pipe and reports how many were read, which is what the C library waits to see acknowledged.
//
// # The end of a context
//
//	         GET_CONTEXT           device removed
//	fresh ---------------> live ------------------> zombie
//	  |                      |                        |
//	  +----------------------+--------- Close --------+----> closed
//
// When the device goes, every object on it is destroyed at once, queue pairs first, protection domains last. What is
// left is a zombie: the asynchronous event file delivers IBV_EVENT_DEVICE_FATAL, waiting readers of completion
// channels see the end of the file (the kernel's: EIO, which a pipe cannot say), destroying a handle succeeds and
// reports its event counts, everything else is EIO. Close, at the last close of the file, frees what is left in any
// state.
//
// A call of the program, or a packet for it, may be stopped in its memory (a page of a FUSE file, or of userfaultfd) for as
// long as it likes. The end of its context then takes as long, but nobody waits for that longer than ServerOptions.Grace:
// its objects are abandoned (ib.QP.Abandon and its like), the device goes without them, and they are destroyed when the
// call returns. The program sees a zombie from the first moment on.
//
// # Errors
//
// Errors wrap the syscall.Errno that the program is to see.
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
// No lock is held while a command accesses the memory of the program, which may take as long as it likes. What the driver
// copies for work requests of POST_SEND, and for advice, is copied below File.life.
package uverbs
