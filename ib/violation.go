package ib

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"time"
)

// Rule is a rule of the contract that checked mode watches.
type Rule uint8

const (
	// RuleSleepInMethod: a driver's method that may not sleep was found sleeping, or called something that may
	// sleep.
	RuleSleepInMethod Rule = 1 + iota
	// RuleSleepInCallback: a consumer slept in a callback, or called something there that may sleep.
	RuleSleepInCallback
	// RuleHold: a thread slept between HoldCallbacks and RunCallbacks, called one without the other, or called them in a
	// method or a callback; the same for a Hold.
	RuleHold
	// RuleCallchain: a callback came from the callchain of a call.
	RuleCallchain
	// RuleOneHandler: two completion handlers of one CQ ran at once.
	RuleOneHandler
	// RuleNotifyOnce: a driver reported more completions by CQHandle.Completed than had been asked for by ReqNotify.
	RuleNotifyOnce
	// RuleLockAcrossCallback: a driver runs callbacks with a lock held that its own methods need.
	RuleLockAcrossCallback
	// RuleLockAcrossRegister: a driver holds a lock across Register or Unregister that a consumer's call needs.
	RuleLockAcrossRegister
	// RuleWaitForSelf: a call waits for the end of the callback, Add or Remove that it was made from.
	RuleWaitForSelf
	// RuleUseAfterUnregister: a device was used when Unregister had returned.
	RuleUseAfterUnregister
	// RuleUseAfterDestroy: an object was used, or reported on by its driver, when it had been destroyed.
	RuleUseAfterDestroy
	// RuleLeftBehind: an object was left when its client's Remove, or the device's Unregister, returned.
	RuleLeftBehind
	// RuleInsideAtUnregister: a call on a device had not returned when Unregister did.
	RuleInsideAtUnregister
	// RuleFreeBeforeUnregister: a driver freed its device before Unregister had returned.
	RuleFreeBeforeUnregister
	// RuleResult: what a driver's method returned contradicts itself.
	RuleResult
	// RuleCallbackReturns: a consumer's callback panicked, ended its goroutine, or has not returned for long.
	RuleCallbackReturns
	// RuleClientReturns: a client's Add or Remove has not returned for long.
	RuleClientReturns
	// RuleInUse: a thread was inside a call on an object or a device when it had been destroyed or unregistered.
	RuleInUse
	// RuleArmWithoutPoll: a consumer armed a CQ that had completions in it, and did not poll it afterwards.
	RuleArmWithoutPoll
	// RuleInFlight: a region was deregistered or changed while a work request that uses it was outstanding.
	RuleInFlight
	// RuleDestroyUndrained: a completion was polled of a QP that had been destroyed before it was drained.
	RuleDestroyUndrained
	// RuleSRQUndrained: a QP with a shared receive queue was destroyed before EventQPLastWQEReached.
	RuleSRQUndrained
	// RuleCQTooSmall: more work requests were posted than the CQ on which they complete has entries.
	RuleCQTooSmall
	// RuleUnsignaledOnly: a send queue was filled with work requests of which none is signaled.
	RuleUnsignaledOnly
	// RuleNotRearmed: a completion handler polled its CQ and did not arm it again, and completions that it left, or that came later,
	// were not polled.
	RuleNotRearmed
	// RuleLeftInCQ: a completion handler armed its CQ, without asking what it had missed, and did not poll until the CQ was empty.
	RuleLeftInCQ
	// RuleUseAfterRemove: a client used a device when its Remove had returned.
	RuleUseAfterRemove
	numRules
)

var ruleText = [numRules]struct {
	name  string
	point int
}{
	RuleSleepInMethod:        {"sleep-in-method", 1},
	RuleSleepInCallback:      {"sleep-in-callback", 4},
	RuleHold:                 {"hold", 3},
	RuleCallchain:            {"callchain", 3},
	RuleOneHandler:           {"one-handler", 3},
	RuleNotifyOnce:           {"notify-once", 3},
	RuleLockAcrossCallback:   {"lock-across-callback", 3},
	RuleLockAcrossRegister:   {"lock-across-register", 5},
	RuleWaitForSelf:          {"wait-for-self", 5},
	RuleUseAfterUnregister:   {"use-after-unregister", 5},
	RuleUseAfterDestroy:      {"use-after-destroy", 5},
	RuleLeftBehind:           {"left-behind", 5},
	RuleInsideAtUnregister:   {"inside-at-unregister", 5},
	RuleFreeBeforeUnregister: {"free-before-unregister", 5},
	RuleResult:               {"result", 1},
	RuleCallbackReturns:      {"callback-returns", 4},
	RuleClientReturns:        {"client-returns", 5},
	RuleInUse:                {"in-use", 5},
	RuleArmWithoutPoll:       {"arm-without-poll", 3},
	RuleNotRearmed:           {"not-rearmed", 3},
	RuleLeftInCQ:             {"left-in-cq", 3},
	RuleUseAfterRemove:       {"use-after-remove", 5},
	RuleInFlight:             {"in-flight", 5},
	RuleDestroyUndrained:     {"destroy-undrained", 5},
	RuleSRQUndrained:         {"srq-undrained", 5},
	RuleCQTooSmall:           {"cq-too-small", 1},
	RuleUnsignaledOnly:       {"unsignaled-only", 1},
}

// String is the rule's name, such as "callchain".
func (r Rule) String() string {
	if r > 0 && r < numRules {
		return ruleText[r].name
	}
	return fmt.Sprintf("Rule(%d)", uint8(r))
}

// Point is the number of the point of the contract, in the package comment, that the rule belongs to.
func (r Rule) Point() int {
	if r < numRules {
		return ruleText[r].point
	}
	return 0
}

// Violation is a breach of the contract that checked mode has found.
type Violation struct {
	Rule   Rule
	Device string
	What   string // one line: who did what
	// Stacks are those of both sides, the offending one first.
	Stacks []Stack
}

// Stack is what a thread was doing, or had been doing.
type Stack struct {
	Title string // one line, such as "made at"
	Trace string // as runtime.Stack prints it
}

// String is a report of several lines.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: rule %v (point %d): %s", v.Device, v.Rule, v.Rule.Point(), v.What)
	for _, s := range v.Stacks {
		fmt.Fprintf(&b, "\n  %s:\n\t%s", s.Title, strings.ReplaceAll(strings.TrimRight(s.Trace, "\n"), "\n", "\n\t"))
	}
	return b.String()
}

// CheckConfig is how checked mode works.
type CheckConfig struct {
	// Report is called with each violation, by the thread that found it, one at a time; the same violation at
	// the same place is reported once. It must not call into this package.
	Report func(Violation)
	// Patience is how long a call may wait for a lock before that is a violation: a deadlock, or a lock whose
	// holder sleeps. Default: 2 s. Sleeping itself is reported at once.
	Patience time.Duration
	// ClientPatience is how long an Add, a Remove or a callback may take. Default: 30 s.
	ClientPatience time.Duration
}

// Check turns checked mode on for the devices that are registered from now on, or off with a nil Report. The rules
// are those of the package comment; docs/contract.md lists them. A call costs several microseconds more in
// checked mode; when it is off, posting and polling cost nothing, other calls one comparison. Check may not sleep.
//
// The check knows who is a callback's and who a method's thread as long as both stay on their goroutines. What
// sleeps is found by looking at the goroutines that take long, so a sleep of a millisecond or two can pass unseen.
// Package ibtest finds shorter ones in drivers; docs/contract.md says how short.
func (c *Core) Check(cfg CheckConfig) {
	c.lock()
	defer c.mu.Unlock()
	c.check = nil
	if cfg.Report != nil {
		if cfg.Patience <= 0 {
			cfg.Patience = 2 * time.Second
		}
		if cfg.ClientPatience <= 0 {
			cfg.ClientPatience = 30 * time.Second
		}
		c.check = newChecker(cfg)
	}
}

// callers is the stack of the function that called the caller's caller, and further out.
func callers(skip int) []uintptr {
	var pc [48]uintptr
	return append([]uintptr(nil), pc[:runtime.Callers(skip+2, pc[:])]...)
}

// trace prints a stack as runtime.Stack does, without the checker's own functions at its top.
func trace(pc []uintptr) string {
	var b, top strings.Builder
	frames := runtime.CallersFrames(pc)
	for len(pc) > 0 {
		f, more := frames.Next()
		to := &b
		if b.Len() == 0 && internalFunction(f.Function) {
			to = &top
		}
		if f.Function != "runtime.goexit" {
			fmt.Fprintf(to, "%s(...)\n\t%s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			break
		}
	}
	if b.Len() == 0 {
		return top.String()
	}
	return b.String()
}

// internalFunction tells whether a function is one of this package that is not exported.
func internalFunction(name string) bool {
	here := reflect.TypeFor[Device]().PkgPath() + "."
	rest, ok := strings.CutPrefix(name, here)
	rest, _, _ = strings.Cut(rest, "[")
	rest = rest[strings.LastIndexByte(rest, '.')+1:]
	return ok && rest != "" && rest[0] >= 'a' && rest[0] <= 'z'
}
