// Package vet checks programs against the locking contract of verbena/ib from their source. Command verbenavet runs it, and
// docs/verbenavet.md explains its reports.
//
//	Load          go/packages -> SSA; one Program for each command, and one for the packages that no command imports
//	readDirectives the //verbena: comments (directive.go)
//	scan          calls and operations of each function (program.go): what sleeps or copies by itself, by the tables of contract.go
//	link          callees: VTA; functions passed as arguments are resolved at each call site (passFunctions)
//	flowLocks     locks that may be, and that must be, held at each instruction (lock.go); a lock is a class: type and field
//	Check         effects, from operations up to callers, and reachability, from the contract's functions down (check.go)
//
// Calls through the interfaces of drivers, and of handlers, are boundaries: each side is checked against the contract, not against
// the other. A lock that is held across a sleeping operation makes every function that waits for it a sleeping one; sleepyLocks
// repeats that until nothing changes.
//
// checkGuards applies further checks to the packages that serve users who do not trust one another (guard.go): how they open files,
// read sockets, close received descriptors (descriptor.go follows these as values) and contain panics.
//
// Analyzer applies the same checks to one package, with facts for the others.
package vet
