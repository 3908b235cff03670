// Package fault describes network faults. Rules drop, duplicate, corrupt and delay some of the packets of a device.
// Shapes limit and delay all of them.
//
// Package link applies the rules. The control protocol, scenario files and the command line use the types of this
// package. [Kinds] has a row for each kind of fault. The help, errors, tables and pages are derived from [Kinds].
// docs/add-a-fault.md describes how to add a kind.
package fault
