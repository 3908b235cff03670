// Package sched is about the threads of the data path: what the kernel's scheduler is told of them, and how they wait
// for each other.
package sched

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Slices of threads, to be given to Prompt. Ordinary ones have some milliseconds.
const (
	// SleeperSlice is for a thread that sleeps when there is nothing to do: the least that the kernel takes.
	SleeperSlice = 100 * time.Microsecond
	// PollerSlice is for a thread that spins and yields beside programs that do so, too. sched_yield(2) moves a thread
	// back by one slice in the run queue: with SleeperSlice it yields 28 times before a program with an ordinary slice
	// runs again. On two processors and Linux 6.18, 100,000 round trips of two such programs took 24 to 36 us each with
	// that, and 17 to 20 with this.
	PollerSlice = 400 * time.Microsecond
)

// Prompt makes the calling thread, which must be locked to its goroutine, one that runs for short times and soon after
// it wakes. RDMA programs spin while they wait for completions, on every core there is, and without this a thread that
// has a packet or a system call for them waits until the slice of the one that spins is over.
//
// It asks for that slice (sched_setattr(2), sched_runtime under the EEVDF scheduler, Linux 6.12), which takes no
// privilege and gives no larger share of the processor. Where the kernel does not know that, nothing changes.
func Prompt(slice time.Duration) {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return // somebody has given this process another policy, and knows why
	}
	attr.Runtime = uint64(slice.Nanoseconds())
	_ = unix.SchedSetAttr(0, attr, 0)
}

// parallel is how many threads may come back from the kernel at about the same time: of each program some one or two,
// and one of each address of a device.
const parallel = 32

// Widen lets threads that wait in the kernel, in system calls that the Go scheduler takes for short, keep their place
// in it. With as many places as cores, the usual setting, a thread that wakes finds them all held by others that wait,
// and gets one only when the runtime's monitor takes it away from them, which on a busy machine is milliseconds later.
func Widen() {
	runtime.GOMAXPROCS(max(parallel, 2*runtime.NumCPU()))
}

// Slices reports whether the kernel takes a slice from Prompt. It may sleep.
func Slices() bool {
	there := make(chan bool)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		Prompt(SleeperSlice)
		attr, err := unix.SchedGetAttr(0, 0)
		there <- err == nil && attr.Runtime == uint64(SleeperSlice.Nanoseconds())
	}()
	return <-there
}
