// Package verbs is RDMA for Go programs: devices, registered memory, queue pairs and completions, without cgo and without libibverbs. It
// speaks the Linux user ABI itself, and so runs on the RDMA devices of a kernel (/dev/infiniband), on those of a Verbena service, and, with
// package verbs/embed, on devices in this process.
//
// # From device to message
//
//	dev, err := verbs.Open("")                       // the first device; Devices lists them
//	pd, err := dev.AllocPD()
//	buf, err := pd.Alloc(4096, verbs.LocalWrite)     // memory that the device may reach
//	cq, err := dev.CreateCQ(16, nil)
//	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq})
//	err = qp.Connect(peer)                           // what the other end's qp.Local() returned
//	err = qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Local: buf.SGE(0, 64), Flags: verbs.Signaled})
//	for wc, err := range cq.Completions(ctx) { ... }
//
// The objects are those of libibverbs, with its names: a reader of its manual pages finds each. Nothing of Linux shows in the API.
//
// # Memory
//
// What a device reads and writes must stay where it is while it is registered. [PD.Alloc] returns memory for that, outside of the
// collector's heap. [PD.RegSlice] registers a slice of the program's, which is pinned until MR.Close. Memory of an MR that was closed
// may be used again for another; a slice of it that is kept is harmless, but its contents are anybody's.
//
// # Lifetimes
//
// Each object has a Close, which ends it, and may be called again. What it was made of must be closed after it (EBUSY). Closing the
// Device ends everything that was made on it, whatever is left. A call on an object that has been closed returns [ErrClosed].
//
// # Concurrency
//
// All methods may be called by several goroutines at a time. No completion is lost or seen twice.
//
// # Errors
//
// What a device refuses is an error that wraps its syscall.Errno. How a work request ended is WC.Status; [CompletionError] makes an error of it that
// names the queue pair and the request, and which errors.Is compares with the statuses, such as [RetryExceeded]. When a device has gone,
// or was reset, calls that make or change something return an error that wraps EIO.
//
// # Speed
//
// Posting and polling write and read queues in memory that the device shares. They allocate nothing; what is waited for with a context
// costs a system call.
package verbs
