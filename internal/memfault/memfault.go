// Package memfault makes accesses to memory that another process can remove end without a panic.
package memfault

import "runtime/debug"

// Survive ends an access: after a fault, the function that has deferred Survive directly returns with its present
// results. The argument is the result of debug.SetPanicOnFault(true):
//
//	defer memfault.Survive(debug.SetPanicOnFault(true))
func Survive(panicOnFault bool) {
	debug.SetPanicOnFault(panicOnFault)
	if e := recover(); e != nil {
		if _, fault := e.(interface{ Addr() uintptr }); !fault {
			panic(e)
		}
	}
}
