package sched

import "runtime"

// before is GOMAXPROCS as the runtime has set it, before Widen.
var before = runtime.GOMAXPROCS(0)

// Processors returns how many processors this process can keep busy: those that it may run on, less what its control
// group or GOMAXPROCS allows.
func Processors() int { return before }
