package ibtest

import (
	"sync"

	"verbena/ib/ibtest/modeltest"
)

// modelThreads is the number of threads of Model/Threads.
const modelThreads = 4

// testModelThreads has several threads make the calls of seeds of their own on one device, each with a model beside
// its own objects: no thread must notice what the others do. Numbers and keys must be different among all of them.
func testModelThreads(e *env) {
	known := modeltest.NewAbilities()
	for i := range max(1, e.seeds()/(2*modelThreads)) {
		seed := *modelSeed + uint64(i)
		target, end := e.factory(seed, known)()
		target.Names = modeltest.NewNames()
		var wg sync.WaitGroup
		failures := make([]*modeltest.Failure, modelThreads)
		for k := range failures {
			wg.Go(func() { failures[k] = modeltest.RunOn(target, seed<<8+uint64(k), *modelSteps) })
		}
		wg.Wait()
		if err := end(); err != nil {
			e.Errorf("seed %d: take the device away: %v", seed, err)
		}
		for k, f := range failures {
			if f != nil {
				e.Errorf("thread %d of %d: %v", k, modelThreads, f)
			}
		}
		if e.Failed() {
			e.Fatalf("run it again: %s", e.repeat(seed))
		}
	}
}

// testModelShared has several threads make calls on the same objects.
func testModelShared(e *env) {
	known := modeltest.NewAbilities()
	for i := range max(1, e.seeds()/2) {
		seed := *modelSeed + uint64(i)
		if f := modeltest.RunShared(e.factory(seed, known), seed, *modelSteps); f != nil {
			e.Fatalf("%v\nrun it again, perhaps several times: %s", f, e.repeat(seed))
		}
	}
}
