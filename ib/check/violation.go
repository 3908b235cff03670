package check

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"verbena/ib"
)

// Rule is a rule of the contract that checked mode enforces.
type Rule uint8

const (
	// RuleSleepInMethod: a driver's method that may not sleep has slept, or called a function that may sleep.
	RuleSleepInMethod Rule = 1 + iota
	// RuleSleepInCallback: a consumer slept in a callback, or called a function there that may sleep.
	RuleSleepInCallback
	// RuleHold: a thread slept between HoldCallbacks and RunCallbacks, called only one of them, or called them in a
	// method or a callback; the same for a Hold.
	RuleHold
	// RuleCallchain: a callback was called from the callchain of a call.
	RuleCallchain
	// RuleOneHandler: two completion handlers of one CQ ran at the same time.
	RuleOneHandler
	// RuleNotifyOnce: a driver called CQHandle.Completed more often than ReqNotify had armed the CQ.
	RuleNotifyOnce
	// RuleLockAcrossCallback: a driver runs callbacks while it holds a lock that its own methods need.
	RuleLockAcrossCallback
	// RuleLockAcrossRegister: a driver holds a lock across Register or Unregister that a consumer's call needs.
	RuleLockAcrossRegister
	// RuleWaitForSelf: a call waits for the end of the callback, Add or Remove from which it was made.
	RuleWaitForSelf
	// RuleUseAfterUnregister: a device was used after Unregister had returned.
	RuleUseAfterUnregister
	// RuleUseAfterDestroy: an object was used, or reported on by its driver, after its destruction.
	RuleUseAfterDestroy
	// RuleLeftBehind: an object remained when its client's Remove, or the device's Unregister, returned.
	RuleLeftBehind
	// RuleInsideAtUnregister: a call on a device was in progress when Unregister returned.
	RuleInsideAtUnregister
	// RuleFreeBeforeUnregister: a driver freed its device before Unregister had returned.
	RuleFreeBeforeUnregister
	// RuleResult: the results of a driver's method are inconsistent.
	RuleResult
	// RuleCallbackReturns: a consumer's callback panicked, ended its goroutine, or has not returned in time.
	RuleCallbackReturns
	// RuleClientReturns: a client's Add or Remove has not returned in time.
	RuleClientReturns
	// RuleInUse: a thread was inside a call on an object or a device when it was destroyed or unregistered.
	RuleInUse
	// RuleArmWithoutPoll: a consumer armed a CQ that held completions, and did not poll it afterwards.
	RuleArmWithoutPoll
	// RuleInFlight: a region was deregistered or changed while a work request that uses it was outstanding.
	RuleInFlight
	// RuleDestroyUndrained: a completion was polled for a QP that had been destroyed before it was drained.
	RuleDestroyUndrained
	// RuleSRQUndrained: a QP with a shared receive queue was destroyed before EventQPLastWQEReached.
	RuleSRQUndrained
	// RuleCQTooSmall: more work requests were posted than the CQ on which they complete has entries.
	RuleCQTooSmall
	// RuleUnsignaledOnly: a send queue was filled with unsignaled work requests only.
	RuleUnsignaledOnly
	// RuleNotRearmed: a completion handler polled its CQ and did not arm it again, and remaining or later completions
	// were not polled.
	RuleNotRearmed
	// RuleLeftInCQ: a completion handler armed its CQ without NotifyReportMissed, and did not poll until the CQ was
	// empty.
	RuleLeftInCQ
	// RuleUseAfterRemove: a client used a device after its Remove had returned.
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

// String returns the name of the rule, such as "callchain".
func (r Rule) String() string {
	if r > 0 && r < numRules {
		return ruleText[r].name
	}
	return fmt.Sprintf("Rule(%d)", uint8(r))
}

// Point returns the number of the contract's point, in the comment of package ib, that contains the rule.
func (r Rule) Point() int {
	if r < numRules {
		return ruleText[r].point
	}
	return 0
}

// Violation is a violation of the contract that checked mode has found.
type Violation struct {
	Rule   Rule
	Device string
	What   string // one line: the violating call and the rule it breaks
	// Stacks holds the stacks of both sides, the violating one first.
	Stacks []Stack
}

// Stack is the stack of a thread at a present or past call.
type Stack struct {
	Title string // one line, such as "made at"
	Trace string // in the format of runtime.Stack
}

// String returns a report of several lines.
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

// trace formats a stack like runtime.Stack, without the midlayer's own functions at the top.
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

// place returns the innermost call of a stack and its two callers, as formatted by trace.
func place(pc []uintptr) string {
	lines := strings.SplitAfterN(trace(pc), "\n", 7)
	return strings.Join(lines[:min(6, len(lines))], "")
}

var (
	midlayer = reflect.TypeFor[ib.Device]().PkgPath()
	own      = reflect.TypeFor[checker]().PkgPath()
)

// internalFunction reports whether a function belongs to this package, or is an unexported one of package ib.
func internalFunction(name string) bool {
	if strings.HasPrefix(name, own+".") {
		return true
	}
	rest, ok := strings.CutPrefix(name, midlayer+".")
	rest, _, _ = strings.Cut(rest, "[")
	rest = rest[strings.LastIndexByte(rest, '.')+1:]
	return ok && rest != "" && rest[0] >= 'a' && rest[0] <= 'z'
}
