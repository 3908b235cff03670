package sched

import "golang.org/x/sys/unix"

// Yield runs another ready thread on this processor first (sched_yield(2)). If no other thread is ready, Yield
// takes less than a microsecond. The Go scheduler does not detect the yield, so the caller keeps its P.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
