// Package ibtest is a suite of tests by which a driver shows that it keeps the contract of package ib, one named subtest
// for each rule. docs/results/contract.md lists them.
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
// Each subtest has a device and a Core of its own, in checked mode (package check), so that a breach of the contract
// fails it wherever it shows. The tests of reentrancy run a second time without the check, at full speed, and those of the
// group Sleep, which measure, run without it only. What needs an ability that the driver lacks is skipped, and named in a list at
// the end, which go test shows with -v only. docs/results/contract.md lists the checks by ability.
//
// A driver needs SEND and receive on queue pairs of type RC, completion queues and memory regions. Everything else is an
// ability. Where a check needs messages, of whatever kind, it takes RDMA WRITE if there is one, and SEND if not.
//
// The suite uses a device as any consumer does: it connects queue pairs of one device with each other by the first GID of
// port 1 (see GIDIndex), so that a device must reach itself. A test waits for what must come (see Patience) and fails if
// it does not; nothing is timed otherwise, except the processor time of calls that may not sleep. A driver that can live in
// a bubble of package testing/synctest says so by Bubble.
//
// The group Model compares the driver with a reference model (package model) that states the specification's result for each
// call. Package modeltest draws the calls from a seed. They include resets of the device within a run. A failure names the seed, the
// command that runs it again, and the fewest calls that it has found to show the difference. Model/Shared has threads call on the same
// objects at once, and searches for an order of the calls that explains the results; its failures depend on the schedule, too. Seeds sets
// the number of runs, of which go test -short makes a tenth. So do the flags of go test:
//
//	go test ./driver/mine -run 'TestContract/^Model$' -ibtest.seeds 10000
//
// The race detector finds little in checks that make calls on one thread, and makes them slow. With -race, Model/Steps,
// Model/Destroyed and Errors/RefusedLeavesNothing do a fraction of their work: run the suite without -race as well.
//
// # Schedules
//
// The suite alone finds few races: their windows are some instructions wide. One command runs all of it, with the race detector, a driver
// whose source pauses at random before and after each Lock and Unlock, and more repetitions:
//
//	go run verbena/ib/ibtest/schedule -race -seeds 20 -run TestContract -args '-ibtest.load 3 -ibtest.seeds 200' ./driver/mine
//
// It names the seed that fails. Model/Destroyed is the second pass that destroys all objects after each step; the threads of
// Callback/ArmedElsewhere and Callback/ArmedByTwo arm queues whose handlers they are not; Errors/RefusedLeavesNothing repeats each refusal.
// Consumers are tested against the least convenient device by package ib/weak.
//
// # Other options
//
// Model runs the group alone, for a driver whose options depend on the seed, such as the faults of its network.
package ibtest
