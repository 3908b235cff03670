// Package sched manages the threads of the data path. It sets their parameters for the kernel's scheduler, and
// provides the ways in which they wait for each other.
package sched

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The following constants are slices of threads, for SetTimeSlice. Ordinary threads have slices of some milliseconds.
const (
	// SleeperSlice, the minimum of the kernel, is for a thread that sleeps without work.
	SleeperSlice = 100 * time.Microsecond
	// PollerSlice is for a thread that spins and yields next to programs that also spin and yield. sched_yield(2)
	// moves a thread back by one slice in the run queue. With SleeperSlice, such a thread yields 28 times before a
	// program with an ordinary slice runs again. On two processors and Linux 6.18, 100,000 round trips of two such
	// programs took 24 to 36 us each with SleeperSlice, and 17 to 20 us with PollerSlice.
	PollerSlice = 400 * time.Microsecond
)

// SetTimeSlice gives the calling thread, which must be locked to its goroutine, short slices and thereby a low wakeup
// latency. RDMA programs spin on every core while they wait for completions. Without SetTimeSlice, a thread with a
// packet or a system call for such programs waits until the slice of a spinning thread ends.
//
// Prompt requests the slice with sched_setattr(2) (sched_runtime under the EEVDF scheduler, Linux 6.12). The
// request needs no privilege, and does not increase the thread's share of the processor. On older kernels the
// request has no effect.
func SetTimeSlice(slice time.Duration) {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return // the user has chosen another policy for this process
	}
	attr.Runtime = uint64(slice.Nanoseconds())
	_ = unix.SchedSetAttr(0, attr, 0)
}

// minProcs is the number of threads that may return from the kernel at about the same time. These are one or two
// threads of each program, and one thread of each address of a device.
const minProcs = 32

// RaiseMaxProcs raises GOMAXPROCS, so that threads that wait in short system calls can keep their P of the Go
// scheduler. With one P per core, the default, a waking thread may find that other waiting threads hold every P. The
// thread then gets a P only from the runtime's monitor, which takes milliseconds on a busy machine.
func RaiseMaxProcs() {
	runtime.GOMAXPROCS(max(minProcs, 2*runtime.NumCPU()))
}

// SupportsTimeSlices reports whether the kernel accepts a slice from SetTimeSlice. It may sleep.
func SupportsTimeSlices() bool {
	there := make(chan bool)
	go func() {
		runtime.LockOSThread() // permanently locked, so the thread ends with the goroutine
		SetTimeSlice(SleeperSlice)
		attr, err := unix.SchedGetAttr(0, 0)
		there <- err == nil && attr.Runtime == uint64(SleeperSlice.Nanoseconds())
	}()
	return <-there
}
