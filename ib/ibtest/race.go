//go:build race

package ibtest

// defaultLoad is the load without the option Load.
const defaultLoad = 1

// registrationCount is the count of testManyRegistrations, which takes seconds under the race detector.
const registrationCount = 1 << 12

// defaultSeeds is the number of seeds of a check of the group Model. All four checks take a few seconds with package
// loopback.
const defaultSeeds = 30

// rejectionCount is the number of times that testRejectedCallLeavesNoObject repeats each rejected call, on one thread.
const rejectionCount = leastAsked

// These two reduce the work of the checks of the group Model that make calls on one thread.
const (
	fewerSeeds = 8 // divides the number of seeds of Model/Steps
	fewerSteps = 2 // divides the number of calls of Model/Destroyed, whose time grows with the square
)

// longestMessage is the longest message of testMessageLimit, which takes seconds under the race detector.
const longestMessage = 0

// scaleObjects is the number of objects of the group Scale.
const scaleObjects = 140

// oldDivisor divides the number of objects that testModelAfterManyObjects creates.
const oldDivisor = 64

// fewerWraps divides the time of the group Wrap, whose checks use one thread.
const fewerWraps = 8
