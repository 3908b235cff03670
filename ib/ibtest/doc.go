// Package ibtest is a conformance suite with which a driver shows that it keeps the contract of package ib. Each rule
// has a named subtest. docs/results/contract.md lists them.
//
// A driver's test imports it:
//
//	func TestContract(t *testing.T) {
//		ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle {
//			d := mydriver.New("my0")
//			t.Cleanup(d.Close) // runs when the suite has unregistered the device
//			return d.Handle()
//		})
//	}
//
// Each subtest has a device and a Core of its own, in checked mode (package check), so a violation of the contract
// fails the subtest in which it occurs. The tests of reentrancy run a second time without checked mode, at full speed.
// Those of the group Sleep, which measure time, run only without it. Checks that need a feature that the driver lacks
// are skipped. They are listed at the end, which go test shows only with -v. docs/results/contract.md lists the
// features with their checks.
//
// A driver needs SEND and receive on queue pairs of type RC, completion queues and memory regions. All other features
// are optional. A check that needs messages of any kind uses RDMA WRITE if the driver supports it, and SEND otherwise.
//
// The suite uses a device like any consumer. It connects queue pairs of one device with each other through the first
// GID of port 1 (see GIDIndex), so a device must reach itself. A test waits for an expected event (see Timeout) and
// fails if it does not occur. Nothing else is timed, except the processor time of calls that may not sleep. A driver
// that works in a bubble of package testing/synctest should pass the option Bubble.
//
// The group Model compares the driver with a reference model (package model), which states the specification's result
// of each call. Package modeltest draws the calls from a seed. The calls include resets of the device. A failure names
// the seed, the command that repeats it, and the shortest sequence of calls found that shows the difference.
// Model/Shared calls methods of the same objects on several threads, and searches for an order of the calls that
// explains the results; its failures also depend on the schedule. Seeds sets the number of runs; go test -short divides
// it by ten. Flags of go test also set it:
//
// The race detector finds little in checks that make calls on one thread, and slows them down. With -race, Model/Steps,
// Model/Destroyed and Errors/RefusedLeavesNothing do a fraction of their work: run the suite without -race as well.
//
// # Everything
//
// The following command finds the most faults in a given time. It runs the suite as above. Beside that, it runs more
// seeds of Model, and the concurrent checks with the race detector and random pauses:
//
//	go run verbena/ib/ibtest/schedule -within 1m -run TestContract ./driver/mine
//
// # Schedules
//
// The suite alone finds few races, because their windows last only a few instructions. The following command runs the
// suite with the race detector and more repetitions. It also modifies the driver's source to pause at random before and
// after each Lock and Unlock:
//
//	go run verbena/ib/ibtest/schedule -race -seeds 20 -run TestContract \
//		-args '-ibtest.load 3 -ibtest.seeds 200' ./driver/mine
//
// It reports the seed that fails. Model/Destroyed destroys all objects after each step, in a second pass. In
// Callback/ArmedElsewhere and Callback/ArmedByTwo, threads arm queues outside their handlers.
// Errors/RefusedLeavesNothing repeats each rejected call. Package ib/weak tests consumers against the least convenient
// device.
//
// # Other options
//
// Model runs only this group, for a driver with options that depend on the seed, such as the faults of its network.
package ibtest
