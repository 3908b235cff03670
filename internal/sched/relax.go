package sched

import "runtime"

// gosched is after how many calls of Relax other goroutines get the processor.
const gosched = 8

// Relax is for a loop that polls, in its n-th turn: it lets other threads run, and at times other goroutines. runtime.Gosched alone does not
// help what is waited for in another process, and in every turn it hurts: each call wakes a thread of this process that looks for goroutines
// in vain, on the processor which the other process needs.
func Relax(n int) {
	if n%gosched == gosched-1 {
		runtime.Gosched()
	}
	Yield()
}
