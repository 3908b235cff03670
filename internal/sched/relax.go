package sched

import "runtime"

// relaxesPerGosched is the number of calls of Relax after which other goroutines get the processor. With a value of 8,
// several of 20,000 round trips under `verbena run` on two busy processors took 0.7 s and more. With a value of 64,
// no round trip took 30 ms.
const relaxesPerGosched = 64

// Relax must be called in the n-th iteration of a polling loop. Relax yields to other threads, and at times to
// other goroutines. runtime.Gosched alone does not help a peer in another process. In every iteration,
// runtime.Gosched would even delay that peer. Each call wakes a thread of this process that searches for
// goroutines, on the processor that the peer needs.
func Relax(n int) {
	if n%relaxesPerGosched == relaxesPerGosched-1 {
		runtime.Gosched()
	}
	Yield()
}
