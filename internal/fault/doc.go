// Package fault describes network faults: rules that drop, duplicate, corrupt and delay some of the packets of a
// device, and shapes that limit and delay all of them.
//
// Its types are used by package link, which applies the rules, by the control protocol, by scenario files and by the
// command line. [Kinds] has a row for each kind of fault. Help, errors, tables and pages are derived from it.
// docs/add-a-fault.md describes how to add one.
package fault
