package check

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"verbena/ib"
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

// callers returns the stack of the caller.
func callers() []uintptr {
	var pc [56]uintptr
	return append([]uintptr(nil), pc[:runtime.Callers(2, pc[:])]...)
}

// trace prints a stack as runtime.Stack does, without the functions at its top that are the midlayer's own.
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

// place returns the innermost call of a stack, and the two around it, as trace prints them.
func place(pc []uintptr) string {
	lines := strings.SplitAfterN(trace(pc), "\n", 7)
	return strings.Join(lines[:min(6, len(lines))], "")
}

var (
	midlayer = reflect.TypeFor[ib.Device]().PkgPath()
	own      = reflect.TypeFor[checker]().PkgPath()
)

// internalFunction reports whether a function is one of this package, or one of package ib that is not exported.
func internalFunction(name string) bool {
	if strings.HasPrefix(name, own+".") {
		return true
	}
	rest, ok := strings.CutPrefix(name, midlayer+".")
	rest, _, _ = strings.Cut(rest, "[")
	rest = rest[strings.LastIndexByte(rest, '.')+1:]
	return ok && rest != "" && rest[0] >= 'a' && rest[0] <= 'z'
}
