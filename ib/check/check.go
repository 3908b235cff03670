// Package check is checked mode: it watches over the contract of package ib, on the sides of drivers and of consumers, and reports each
// breach as a [Violation], with the stacks of both sides. Turn it on before the devices are registered:
//
//	check.On(&core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
//
// Package ib calls the checker as its observer: see ib/internal/observe. docs/results/contract.md lists the rules.
package check

import (
	"time"

	"verbena/ib"
	"verbena/ib/internal/observe"
)

// Config configures checked mode.
type Config struct {
	// Report is called with each violation, by the thread that found it, one at a time; the same violation at
	// the same place is reported once. It must not call into package ib.
	Report func(Violation)
	// Patience is how long a call may wait for a lock before that is a violation: a deadlock, or a lock whose
	// holder sleeps. Default: 2 s. Sleeping itself is reported at once.
	Patience time.Duration
	// ClientPatience is how long an Add, a Remove or a callback may take. Default: 30 s.
	ClientPatience time.Duration
}

// On turns checked mode on for the devices that are registered from now on. The rules are those of the comment of package ib;
// docs/results/contract.md lists them. A call costs several microseconds more in checked mode. When it is off, posting
// and polling cost nothing, other calls one comparison. On may not sleep.
//
// The check knows who is a callback's and who a method's thread as long as both stay on their goroutines. What
// sleeps is found by looking at the goroutines that take long, so a sleep of a millisecond or two can pass unseen.
// Package ibtest finds shorter ones in drivers; docs/results/contract.md has their lengths.
func On(core *ib.Core, cfg Config) {
	if cfg.Patience <= 0 {
		cfg.Patience = 2 * time.Second
	}
	if cfg.ClientPatience <= 0 {
		cfg.ClientPatience = 30 * time.Second
	}
	observe.Set(core, newChecker(cfg))
}

// Off turns checked mode off for the devices that are registered from now on. It may not sleep.
func Off(core *ib.Core) { observe.Set(core, nil) }
