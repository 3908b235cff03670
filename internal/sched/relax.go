package sched

import "runtime"

// gosched is after how many calls of Relax other goroutines get the processor. With 8, of 20,000 round trips under
// `verbena run` on two busy processors several took 0.7 s and more; with 64 none took 30 ms.
const gosched = 64

// Relax is for a loop that polls, in its n-th turn: it lets other threads run, and at times other goroutines.
// runtime.Gosched alone does not help what is waited for in another process, and in every turn it hurts: each call
// wakes a thread of this process that looks for goroutines in vain, on the processor which the other process needs.
func Relax(n int) {
	if n%gosched == gosched-1 {
		runtime.Gosched()
	}
	Yield()
}
