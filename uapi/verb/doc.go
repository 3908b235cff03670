// Package verb provides the table of verbs. A verb is an operation that the midlayer offers. Its row has the system
// calls and methods by which programs, consumers and drivers call the verb, and its effect. The package makes no
// promise of stability.
package verb
