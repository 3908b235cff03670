// Package check implements checked mode. Checked mode observes drivers and consumers of package ib and reports each
// violation of the contract as a [Violation], with the stacks of both sides. A program turns checked mode on before it
// registers devices:
//
//	check.On(&core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
//
// The checker is the observer of package ib; see ib/internal/observe. docs/results/contract.md lists the rules.
package check

import (
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// Config configures checked mode.
type Config struct {
	// Report is called for each violation on the thread that found it. Calls of Report do not overlap. A violation is
	// reported once for each place in the code. Report must not call into package ib.
	Report func(Violation)
	// Timeout is the longest permitted wait for a lock. A longer wait means a deadlock or a sleeping lock holder.
	// Default: 2 s. Direct sleeping is reported at once.
	//
	// Timeout is also the longest time for which completions may wait for a poll after ReqNotify, or after a handler that
	// has not armed its CQ (RuleArmWithoutPoll, RuleNotRearmed, RuleLeftInCQ). A program that polls less often needs a
	// longer Timeout. A program that runs for less than two Timeouts may get no report.
	Timeout time.Duration
	// ClientTimeout is the longest permitted duration of an Add, a Remove or a callback. Default: 30 s.
	ClientTimeout time.Duration
	// TargetReuse turns on RuleTargetReused and RuleTargetUnflushed. A consumer may ignore the data of several receives,
	// and use the same memory for all of them. Such a consumer must not turn the rules on.
	TargetReuse bool
	// Ownership shows accesses of the device to the memory of outstanding requests to the race detector. The detector
	// then reports each access of the consumer before the completion. The detector must not observe the driver.
	Ownership bool
}

// On turns checked mode on for devices that are registered later. The rules are those of the comment of package ib;
// docs/results/contract.md lists them. Checked mode adds several microseconds to a call. When checked mode is off,
// posting and polling cost nothing extra, and other calls cost one comparison. While a callback of the device waits for
// a lock, checked mode delays the return of calls that may sleep, by up to 120 ms. On may not sleep.
//
// The checker attributes callbacks and methods to threads by goroutine. A callback or method must therefore not
// continue on another goroutine. The checker finds sleepers by inspecting goroutines with long calls, and can
// miss a sleep of one or two milliseconds. Package ibtest finds shorter sleeps in drivers; docs/results/contract.md
// states the limit of the checker.
func On(core *ib.Core, cfg Config) { observe.Set(core, newChecker(cfg)) }

// OnAll turns checked mode on for each core for which neither On nor Off is called before its first device or client.
// OnAll must be called before the program uses package ib, such as in a function init of a test. OnAll may not sleep.
func OnAll(cfg Config) { observe.Default = func() any { return newChecker(cfg) } }

// Off turns checked mode off for devices that are registered later. Off may not sleep.
func Off(core *ib.Core) { observe.Set(core, nil) }
