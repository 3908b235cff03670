// Package verb is the table of verbs: each operation that the midlayer offers, the system calls and methods by which programs,
// consumers and drivers call it, and its effect. It makes no promise of stability.
package verb
