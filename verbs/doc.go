// Package verbs provides RDMA for Go programs: devices, registered memory, queue pairs and completions, without cgo and
// without libibverbs. The package implements the Linux user ABI. The package runs on the RDMA devices of a kernel
// (/dev/infiniband) and on the devices of a Verbena service. With package verbs/embed it runs on devices in this
// process.
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
// The objects have the names of libibverbs. The manual pages of libibverbs therefore apply. The API itself does not
// depend on Linux.
//
// # Memory
//
// Registered memory must not move. [PD.Alloc] returns memory outside the heap of the garbage collector. [PD.RegSlice]
// registers a slice of the program. The slice is pinned until MR.Close. Memory of a closed MR may be reused for another
// MR. A slice of this memory can still be read and written, but its contents are undefined.
//
// # Lifetimes
//
// Each object has a Close method, which may be called again. An object must be closed before the objects from which it
// was created. Otherwise Close returns EBUSY. Close of the Device ends all objects on the device. A call on a closed
// object returns [ErrClosed].
//
// # Concurrency
//
// All methods may be called by several goroutines concurrently. No completion is lost or returned twice.
//
// # Errors
//
// An error of the device wraps its syscall.Errno. WC.Status is the result of a work request. [CompletionError] converts
// it to an error that names the queue pair and the request. errors.Is can compare this error with the statuses, such as
// [RetryExceeded]. After a device has been removed or reset, calls that create or change objects return an error that
// wraps EIO.
//
// # Speed
//
// Posts and polls access queues in memory that the device shares. Posts and polls do not allocate. A wait with a
// context costs a system call.
package verbs
