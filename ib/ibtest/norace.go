//go:build !race

package ibtest

// defaultLoad is the load without the option Load.
const defaultLoad = 3

// registrations is the count of testManyRegistrations. It exceeds the number of values of 16 bits of a key.
const registrations = 1<<16 + 300

// defaultSeeds is the number of seeds of a check of the group Model. All four checks take about six seconds with package loopback.
const defaultSeeds = 400

// refusals is the number of times that testRefusedLeavesNothing repeats each rejected call.
const refusals = 1000

const (
	fewerSeeds = 1
	fewerSteps = 1
)

// longest is the longest message of testMessageLimit.
const longest = 1 << 31

// crowd is the number of objects of the group Scale.
const crowd = 1100

// old divides the number of objects that testOld creates.
const old = 1
