//go:build race

package ibtest

// defaultLoad is the load without the option Load.
const defaultLoad = 1

// registrations are those of testManyRegistrations, of which the race detector makes seconds.
const registrations = 1 << 12

// defaultSeeds is the number of seeds of a check of the group Model that takes about two seconds on package loopback.
const defaultSeeds = 30

// refusals is the number of times that testRefusedLeavesNothing repeats each refusal, on one thread.
const refusals = leastAsked

// These two lessen the work of the checks of the group Model that make calls on one thread.
const (
	fewerSeeds = 8 // divides the seeds of Model/Steps
	fewerSteps = 2 // divides the calls of Model/Destroyed, whose time grows with the square
)
