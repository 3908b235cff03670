// Package verb provides the table of verbs. A verb is an operation that the midlayer offers. The row of a verb contains
// its effect, and the system calls and methods by which programs, consumers and drivers call the verb. The package has
// no stable API.
package verb
