// Package fault describes faults of a network: rules that lose, repeat, damage and delay some of the packets of a
// device, and shapes that limit and delay all of them.
//
// Its types are those of package link, which carries the rules out, of the control protocol, of scenario files and of
// the command line. [Kinds] has a row for each kind of fault; help, errors, tables and pages follow from it.
// docs/add-a-fault.md adds one.
package fault
