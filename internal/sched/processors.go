package sched

import "runtime"

// initialProcs is GOMAXPROCS as set by the runtime, before RaiseMaxProcs.
var initialProcs = runtime.GOMAXPROCS(0)

// Processors returns the number of processors that this process can keep busy, limited by its affinity, its control
// group and GOMAXPROCS.
func Processors() int { return initialProcs }
