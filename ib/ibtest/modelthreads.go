package ibtest

import (
	"sync"

	"verbena/ib/ibtest/modeltest"
)

// modelThreadCount is the number of threads of Model/Threads.
const modelThreadCount = 4

// testModelOnThreads runs the calls of several seeds at the same time, each seed on a thread of its own and compared
// with a model of its own objects. In turn, all threads use one device, or half of them use a second device. The
// threads must not affect each other. Numbers and keys must be unique among all threads of a device.
func testModelOnThreads(e *testEnv) {
	known := modeltest.NewDriverFeatures()
	for i := range max(1, seedCount(e)/(2*modelThreadCount)) {
		seed := *modelSeed + uint64(i)
		targets := make([]modeltest.TestedDevice, 1+seed%2)
		ends := make([]func() error, len(targets))
		for k := range targets {
			targets[k], ends[k] = modelFactory(e, seed, known)()
			targets[k].Names = modeltest.NewIDOwners()
		}
		var wg sync.WaitGroup
		failures := make([]*modeltest.RunFailure, modelThreadCount)
		for k := range failures {
			target := targets[k%len(targets)]
			target.Thread = k
			wg.Go(func() { failures[k] = modeltest.RunOn(target, seed<<8+uint64(k), *modelSteps) })
		}
		wg.Wait()
		for _, end := range ends {
			if err := end(); err != nil {
				e.Errorf("seed %d: take the device away: %v", seed, err)
			}
		}
		for k, f := range failures {
			if f != nil {
				e.Errorf("thread %d of %d, on %d devices: %v", k, modelThreadCount, len(targets), f)
			}
		}
		if e.Failed() {
			e.Fatalf("run it again: %s", repeatSeedCommand(e, seed))
		}
	}
}

// testModelOnSharedObjects makes calls on the same objects on several threads.
func testModelOnSharedObjects(e *testEnv) {
	known := modeltest.NewDriverFeatures()
	for i := range max(1, seedCount(e)/2) {
		seed := *modelSeed + uint64(i)
		if f := modeltest.RunOnSharedObjects(modelFactory(e, seed, known), seed, *modelSteps); f != nil {
			e.Fatalf("%v\nrun it again, perhaps several times: %s", f, repeatSeedCommand(e, seed))
		}
	}
}
