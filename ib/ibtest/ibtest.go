package ibtest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
)

// NewDevice creates a device that is ready for registration, under a name of its choice. It must release resources in
// t.Cleanup, which runs after the suite has unregistered the device.
type NewDevice func(t testing.TB) *ib.DeviceHandle

// Option is an option of Run.
type Option func(*suiteConfig)

type suiteConfig struct {
	allowed   []check.Rule // rules for consumers that the checks violate on purpose
	newDevice NewDevice
	plug      func(core *ib.Core, d *ib.DeviceHandle) error
	unplug    func(core *ib.Core, d *ib.DeviceHandle) error
	timeout   time.Duration
	roomy     bool
	load      int
	gidIndex  int // -1: the first GID
	bubble    bool
	seeds     int // number of seeds of the group Model; 0: defaultSeeds
	newSeeded func(t testing.TB, seed uint64) (*ib.DeviceHandle, bool)
	packages  *driverPackageSet
	groups    []string // groups of checks; nil: all
	abilities *triedOperations
}

// Bubble tells the suite that the driver works in a bubble of package testing/synctest: its threads end when its device
// has been freed, and none of them waits for anything outside the process. Checks then detect every time.Sleep, timer
// and ticker that a method waits for, however short.
func Bubble() Option { return func(c *suiteConfig) { c.bubble = true } }

// RoomyQueues tells the suite that completion queues may hold more completions than they report. The model then expects
// nothing of an overrun.
func RoomyQueues() Option { return func(c *suiteConfig) { c.roomy = true } }

// GIDIndex selects the GID of port 1 that queue pairs use. Default: the first that is not zero.
func GIDIndex(i int) Option { return func(c *suiteConfig) { c.gidIndex = i } }

// Timeout sets the time to wait for an expected event before the test fails. A check that takes twelve times as long,
// or twice as long after its first failure, is treated as blocked and abandoned. Default: 10 s.
func Timeout(d time.Duration) Option { return func(c *suiteConfig) { c.timeout = d } }

// Load multiplies the work of the checks under load, and the repetitions of rejected calls. Default: 3, or 1 with the
// race detector or -short. The flag -ibtest.load overrides it.
func Load(n int) Option { return func(c *suiteConfig) { c.load = n } }

var loadFlag = flag.Int("ibtest.load", 0, "multiple of the work of tests under load; 0: as the options say")

// Plug sets the function that registers a device. Default: Core.Register.
func Plug(f func(core *ib.Core, d *ib.DeviceHandle) error) Option {
	return func(c *suiteConfig) { c.plug = f }
}

// Unplug sets the function that unregisters a device. It must return the result of Core.Unregister. Default:
// Core.Unregister.
func Unplug(f func(core *ib.Core, d *ib.DeviceHandle) error) Option {
	return func(c *suiteConfig) { c.unplug = f }
}

// Groups limits Run to some groups of checks, by name, for a second run with other options of the driver.
func Groups(names ...string) Option { return func(c *suiteConfig) { c.groups = names } }

func newConfig(newDevice NewDevice, opts []Option) suiteConfig {
	c := suiteConfig{
		newDevice: newDevice, plug: (*ib.Core).Register, unplug: (*ib.Core).Unregister,
		timeout: 10 * time.Second, load: defaultLoad, gidIndex: -1, packages: &driverPackageSet{},
		abilities: &triedOperations{known: map[qpTypeOperation]bool{}},
	}
	if testing.Short() {
		c.load = 1
	}
	for _, o := range opts {
		o(&c)
	}
	if *loadFlag > 0 {
		c.load = *loadFlag
	}
	return c
}

// Run runs the suite. If the command schedule has added pauses to the driver, it omits the group Sleep.
func Run(t *testing.T, newDevice NewDevice, opts ...Option) {
	cfg := newConfig(newDevice, opts)
	cfg.allowed = []check.Rule{check.RuleDestroyUndrained, check.RuleSRQUndrained} // drivers must tolerate these
	blocked := watchBlockProfile(t, cfg)
	all := slices.DeleteFunc(allChecks(), func(c ruleTest) bool {
		group, _, _ := strings.Cut(c.name, "/")
		return cfg.groups != nil && !slices.Contains(cfg.groups, group) || group == "Sleep" &&
			os.Getenv("SCHEDULE_SEED") != ""
	})
	if cfg.seeds < 0 {
		all = slices.DeleteFunc(all, func(c ruleTest) bool { return strings.HasPrefix(c.name, "Model/") })
	}
	skipped := runChecks(t, cfg, all)
	t.Run("NothingBlocked", func(t *testing.T) { blocked(t) })
	if len(skipped) > 0 {
		t.Logf("not tested, since the driver lacks the ability (see the skipped tests): %s", strings.Join(skipped, ", "))
	}
}

// Model runs only the group Model of the suite. f creates the device of a seed; its properties must depend only on the
// seed. lossy reports whether the network between its queue pairs loses packets.
func Model(t *testing.T, f func(t testing.TB, seed uint64) (d *ib.DeviceHandle, lossy bool), opts ...Option) {
	cfg := newConfig(func(t testing.TB) *ib.DeviceHandle {
		d, _ := f(t, *modelSeed)
		return d
	}, opts)
	cfg.newSeeded = f
	runChecks(t, cfg, modelChecks)
}

// runChecks runs checks in their groups. It returns the names of skipped checks.
func runChecks(t *testing.T, cfg suiteConfig, list []ruleTest) (skipped []string) {
	begun := map[string]bool{}
	for _, c := range list {
		if group, _, _ := strings.Cut(c.name, "/"); !begun[group] {
			begun[group] = true
			t.Run(group, func(t *testing.T) { // its subtests are the checks
				for _, c := range list {
					if name, ok := strings.CutPrefix(c.name, group+"/"); ok {
						t.Run(name, func(t *testing.T) {
							t.Cleanup(func() {
								if t.Skipped() {
									skipped = append(skipped, c.name)
								}
							})
							c.run(t, cfg)
						})
					}
				}
			})
		}
	}
	return skipped
}

// ruleTest is a check of a rule.
type ruleTest struct {
	name string // Group/Name
	// rule states the rule in a sentence.
	rule string
	test func(e *testEnv)
	// asleep means that the check registers the device itself.
	asleep bool
	// fast means that the check runs a second time without checked mode.
	fast bool
	// plain means that the check runs only without checked mode.
	plain bool
	// bubble means that the check runs only in a bubble of package testing/synctest. It is skipped without the option
	// Bubble.
	bubble bool
	// either means that the check runs in a bubble if the driver supports that, and outside otherwise.
	either bool
	// alone means that the check measures the process, so no check of another suite runs meanwhile.
	alone bool
}

// process excludes the checks of other suites of the process during a check that runs alone.
var process sync.RWMutex

// allChecks returns all checks in execution order: basic ones first, load last, so that the first failing check names
// the fault. A group runs as a whole, at the place of its first check.
func allChecks() []ruleTest {
	return slices.Concat(
		queuePairChecks, dataChecks, srdChecks, rightsChecks, errorChecks, incompleteChecks, sleepChecks,
		reentrantChecks, meetingChecks, callbackChecks, armedChecks,
		noSleepChecks, hotPlugChecks,
		cqChecks, objectChecks, deviceErrorChecks, disassociateChecks,
		completionChecks, rejectedCallChecks, keyChecks, domainChecks, lateEffectChecks, peerChecks,
		rejectedMemoryChecks, memoryFaultChecks, flushQueueChecks, retriedMessageChecks, failedStateChecks,
		registrationChecks,
		srqLimitChecks,
		attributeChecks, datagramChecks, windowChecks,
		limitChecks, resizeChecks, destroyedObjectChecks, scaleChecks, modelChecks,
		wrapChecks, loadChecks,
	)
}

// minBubbleTimeLimit is the minimum time before a check that computes in a bubble is abandoned.
const minBubbleTimeLimit = 2 * time.Minute

func (c ruleTest) run(t *testing.T, cfg suiteConfig) {
	if c.alone {
		process.Lock()
		defer process.Unlock()
	} else {
		process.RLock()
		defer process.RUnlock()
	}
	run := func(t *testing.T, checked bool) {
		limit := c.scaleTimeLimit(12 * cfg.timeout)
		runWithTimeLimit(t, limit, 2*cfg.timeout, func(t testing.TB) { c.runOn(t, cfg, checked) })
	}
	switch {
	case c.bubble && !cfg.bubble:
		t.Skip("the driver may not be able to live in a bubble of package testing/synctest: see Bubble")
	case c.bubble, c.either && cfg.bubble:
		limit := 2 * cfg.timeout
		if c.either {
			limit = c.scaleTimeLimit(max(6*limit, minBubbleTimeLimit)) // the check computes, and waits for nothing
		}
		runWithTimeLimit(t, limit, cfg.timeout, func(g testing.TB) { // the guard's time is outside the bubble
			defer func() {
				if r := recover(); r != nil {
					g.Errorf("%v", r) // deadlock
				}
			}()
			synctest.Test(t, func(t *testing.T) { c.runOn(t, cfg, !c.plain) })
		})
		return
	case !c.fast:
		run(t, !c.plain)
		return
	}
	skipped := false
	for _, mode := range []string{"checked", "unchecked"} {
		t.Run(mode, func(t *testing.T) {
			t.Cleanup(func() { skipped = skipped || t.Skipped() })
			run(t, mode == "checked")
		})
	}
	if skipped {
		t.Skip("see the subtests")
	}
}

// scaleTimeLimit scales the time limit of a check of the group Model by the number of seeds of the flag.
func (c ruleTest) scaleTimeLimit(d time.Duration) time.Duration {
	if c.either && *modelSeeds > defaultSeeds {
		return d * time.Duration(*modelSeeds/defaultSeeds+1)
	}
	return d
}

func (c ruleTest) runOn(t testing.TB, cfg suiteConfig, checked bool) {
	e := newTestEnv(t, cfg, checked)
	e.virtual = cfg.bubble && (c.bubble || c.either)
	if !c.asleep {
		e.registerDevice()
	}
	c.test(e)
}

// String returns the name and the rule.
func (c ruleTest) String() string { return fmt.Sprintf("%s: %s", c.name, c.rule) }
