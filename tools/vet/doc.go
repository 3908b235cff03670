// Package vet checks programs against the locking contract of verbena/ib. It analyses the source of the programs.
// Command verbenavet is based on this package. docs/verbenavet.md explains its reports.
//
//	Load            go/packages -> SSA (program.go). There is one Program for each command, and one for the packages that
//	                no command imports.
//	readDirectives  the //verbena: comments (directive.go, annotate.go)
//	link            callees (link.go): VTA, with library types. Functions passed as arguments are resolved at each call
//	                site.
//	scan            calls and operations of each function (scan.go), by the tables of contract.go, and loops that wait
//	                (spin.go, wait.go)
//	trace           sources of values (trace.go): streams (stream.go), completion queues (completion.go), functions
//	                (resolve.go)
//	specialise      copies of functions for the places and types that callers pass (special.go, object.go)
//	propagateLocks       locks that may be, and that must be, held at each instruction (lock.go, lockflow.go)
//	Check           effects, from operations up to callers (effect.go), and reachability, from the contract's functions
//	                down (roots.go). nosleep.go, callback.go and held.go have the rules. hold.go, keep.go, status.go,
//	                undefined.go, arm.go, order.go and panic.go have those on single mistakes of callbacks and locks.
//
// The interfaces of drivers and of handlers are boundaries of the analysis. The code on each side of a boundary is
// checked against the contract, and not against the code on the other side. If a lock is held across a sleeping
// operation, every function that waits for the lock may sleep. findSleepyLocks repeats this propagation until no
// function changes.
//
// checkGuards applies further checks to the packages that serve mutually distrusting users (guard.go). These checks
// cover opens of files, reads from sockets, closes of received descriptors (descriptor.go follows these as values)
// and panics.
//
// Analyzer applies the same checks to one package. Facts describe the functions of other packages.
package vet
