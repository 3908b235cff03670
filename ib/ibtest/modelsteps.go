package ibtest

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"verbena/ib"
	"verbena/ib/ibtest/modeltest"
)

// The driver is compared with a reference model. These checks make random calls on devices of their own.

var (
	modelSeeds = flag.Int("ibtest.seeds", 0, "number of seeds of the checks Model; 0: as many as take a few seconds")
	modelSeed  = flag.Uint64("ibtest.seed", 1, "the first of them")
	modelSteps = flag.Int("ibtest.steps", 80, "calls that each of them draws")
)

var modelChecks = []ruleTest{
	{
		name: "Model/Steps",
		rule: "after each of a random sequence of calls, results, completions, states, memory, events and " +
			"notifications are those of a model that states the specification",
		test: testModelSequences, asleep: true, plain: true, either: true,
	},
	{
		name: "Model/Destroyed",
		rule: "when all objects are destroyed right after any of a sequence of calls, all of them go, and no callback and no store " +
			"follows",
		test: testModelDestroyAfterPrefix, asleep: true, plain: true, either: true,
	},
	{
		name: "Model/Threads",
		rule: "threads that use one or two devices with objects of their own do not notice one another, and no number or " +
			"key of a device is given twice",
		test: testModelOnThreads, asleep: true, plain: true, either: true,
	},
	{
		name: "Model/Shared",
		rule: "whatever calls threads make on the same objects at the same time, there is an order of the calls in which the model has " +
			"their results, and what is seen afterwards",
		test: testModelOnSharedObjects, asleep: true, plain: true, either: true,
	},
}

// Seeds sets the number of seeds of each check of the group Model. A negative number omits the runs of the model. This
// is for drivers with timers that depend on the machine's load: they may give up peers that the model considers alive.
// The flag -ibtest.seeds overrides a positive number.
func Seeds(n int) Option { return func(c *suiteConfig) { c.seeds = n } }

// seedCount returns the number of seeds of a check. The flag -ibtest.seeds sets the number. Without the flag, -short
// divides the default by ten.
func seedCount(e *testEnv) int {
	if *modelSeeds > 0 {
		return *modelSeeds
	}
	n := defaultSeeds
	if e.cfg.seeds > 0 {
		n = e.cfg.seeds
	} else if !e.virtual {
		n /= 8
	}
	if testing.Short() {
		n /= 10
	}
	return max(1, n)
}

// singleThreadSeeds returns the number of seeds of a check that makes calls on one thread.
func singleThreadSeeds(e *testEnv) int {
	if *modelSeeds > 0 {
		return *modelSeeds
	}
	return max(1, seedCount(e)/fewerSeeds)
}

// maxShortenRuns limits the runs that shorten a failing sequence. With -short there are fewer.
const maxShortenRuns = 400

func testModelSequences(e *testEnv) {
	known, shorten := modeltest.NewDriverFeatures(), maxShortenRuns
	if testing.Short() {
		shorten /= 20
	}
	for i := range singleThreadSeeds(e) {
		seed := *modelSeed + uint64(i)
		f := modeltest.Run(modelFactory(e, seed, known), seed, *modelSteps, shorten)
		if f != nil {
			e.Fatalf("%v\nrun it again: %s", f, repeatSeedCommand(e, seed))
		}
	}
}

// testModelDestroyAfterPrefix runs each prefix of a sequence, and then destroys all objects. A sequence takes as long
// as dozens of seeds of Model/Steps.
func testModelDestroyAfterPrefix(e *testEnv) {
	known := modeltest.NewDriverFeatures()
	for i := range max(1, seedCount(e)/40) {
		seed := *modelSeed + uint64(i)
		if f := modeltest.RunDestroyPrefixes(modelFactory(e, seed, known), seed, *modelSteps/2/fewerSteps); f != nil {
			e.Fatalf("%v\nrun it again: %s", f, repeatSeedCommand(e, seed))
		}
	}
}

// repeatSeedCommand returns the command that repeats one seed of the check.
func repeatSeedCommand(t testing.TB, seed uint64) string {
	var parts []string
	for _, p := range strings.Split(t.Name(), "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(p)+"$")
	}
	return fmt.Sprintf("go test -run '%s' -ibtest.seeds 1 -ibtest.seed %d -ibtest.steps %d",
		strings.Join(parts, "/"), seed, *modelSteps)
}

// modelFactory returns the device factory for runs of a seed.
func modelFactory(e *testEnv, seed uint64, known *modeltest.DriverFeatures) modeltest.DeviceFactory {
	return func() (modeltest.TestedDevice, func() error) {
		s := &deviceSlot{e: e, cl: &ib.Client{Name: "model"}}
		s.cl.Add = func(d *ib.Device) (any, error) { s.dev = d; return nil, nil }
		s.cl.Remove = func(*ib.Device, any) { s.removeErr = s.remove() }
		e.must("register the client", s.core.RegisterClient(s.cl))
		s.make = func(t testing.TB) *ib.DeviceHandle {
			if e.cfg.newSeeded == nil {
				return e.cfg.newDevice(t)
			}
			h, lossy := e.cfg.newSeeded(t, seed)
			s.lossy = lossy
			return h
		}
		target := func() modeltest.TestedDevice {
			t := modeltest.TestedDevice{
				Device: s.dev, Handle: s.handle, Lossy: s.lossy, Roomy: e.cfg.roomy, Virtual: e.virtual,
				Timeout: e.cfg.timeout, Abilities: known,
			}
			if t.Virtual {
				t.Timeout = 2 * time.Minute
			}
			c := newConnector(e.resultChecker, t.Device, e.cfg.gidIndex)
			c.selectGID()
			t.GID, t.GIDIndex, t.Port = c.gid, c.gidIndex, c.port
			return t
		}
		e.must("register the device", s.plugDevice())
		t := target()
		t.Reset = func(remove func() error) (modeltest.TestedDevice, error) {
			if err := s.resetDevice(remove); err != nil {
				return modeltest.TestedDevice{}, err
			}
			n := target()
			n.Reset = t.Reset
			return n, nil
		}
		return t, s.unplugDevice
	}
}
