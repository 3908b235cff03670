//go:build !race

package ibtest

// defaultLoad is the load without the option Load.
const defaultLoad = 3

// registrationCount is the count of testManyRegistrations. It exceeds the number of values of 16 bits of a key.
const registrationCount = 1<<16 + 300

// defaultSeeds is the number of seeds of a check of the group Model. All four checks take about six seconds with
// package loopback.
const defaultSeeds = 400

// rejectionCount is the number of times that testRejectedCallLeavesNoObject repeats each rejected call.
const rejectionCount = 3 * leastAsked

const (
	fewerSeeds = 1
	fewerSteps = 1
)

// longestMessage is the longest message of testMessageLimit.
const longestMessage = 1 << 31

// scaleObjects is the number of objects of the group Scale.
const scaleObjects = 1100

// oldDivisor divides the number of objects that testModelAfterManyObjects creates.
const oldDivisor = 1

// fewerWraps divides the time of the group Wrap.
const fewerWraps = 1
