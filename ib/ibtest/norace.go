//go:build !race

package ibtest

// defaultLoad is the load without the option Load.
const defaultLoad = 3

// registrations are those of testManyRegistrations: more than 16 bits of the keys can tell apart.
const registrations = 1<<16 + 300

// defaultSeeds is the number of seeds of a check of the group Model that takes about two seconds on package loopback.
const defaultSeeds = 140

// refusals is the number of times that testRefusedLeavesNothing repeats each refusal.
const refusals = 1000

const (
	fewerSeeds = 1
	fewerSteps = 1
)
