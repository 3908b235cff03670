package sched

import "runtime"

// gosched is the number of calls of Relax after which other goroutines get the processor. With 8, several of 20,000
// round trips under `verbena run` on two busy processors took 0.7 s and more. With 64, none took 30 ms.
const gosched = 64

// Relax is called in the n-th iteration of a polling loop. It yields to other threads, and at times to other
// goroutines. runtime.Gosched alone does not help a peer in another process. In every iteration it would even delay
// that process, since each call wakes a thread of this process that searches for goroutines, on the processor that the
// other process needs.
func Relax(n int) {
	if n%gosched == gosched-1 {
		runtime.Gosched()
	}
	Yield()
}
