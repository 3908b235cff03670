package check

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"time"

	"verbena/ib"
)

// Rule is a rule of the contract that checked mode enforces.
type Rule uint8

const (
	// RuleSleepInMethod is violated by a driver's method that may not sleep but has slept, or called a function that
	// may sleep.
	RuleSleepInMethod Rule = 1 + iota
	// RuleSleepInCallback is violated by a consumer that slept in a callback, or called a function that may sleep.
	RuleSleepInCallback
	// RuleHold is violated by a thread that slept between HoldCallbacks and RunCallbacks, called only one of the two,
	// or called one in a method or a callback. The rule applies in the same way to a Hold.
	RuleHold
	// RuleCallchain is violated by a callback that runs in the callchain of a call.
	RuleCallchain
	// RuleOneHandler is violated by two completion handlers of one CQ that run at the same time.
	RuleOneHandler
	// RuleNotifyOnce is violated by a driver that calls CQHandle.Completed more often than ReqNotify has armed the CQ.
	RuleNotifyOnce
	// RuleLockAcrossCallback is violated by a driver that runs callbacks with a lock held that its own methods need.
	RuleLockAcrossCallback
	// RuleLockAcrossRegister is violated by a driver that holds a lock across Register or Unregister if a consumer's
	// call needs the lock.
	RuleLockAcrossRegister
	// RuleWaitForSelf is violated by a call that waits for the end of the callback, Add or Remove from which the call
	// was made.
	RuleWaitForSelf
	// RuleUseAfterUnregister is violated by the use of a device after Unregister has returned.
	RuleUseAfterUnregister
	// RuleUseAfterDestroy is violated by the use of a destroyed object, and by a driver's report on a destroyed object.
	RuleUseAfterDestroy
	// RuleLeftBehind is violated by an object that remains when its client's Remove, or the device's Unregister,
	// returns.
	RuleLeftBehind
	// RuleInsideAtUnregister is violated by a call on a device that is in progress when Unregister returns.
	RuleInsideAtUnregister
	// RuleFreeBeforeUnregister is violated by a driver that frees its device before Unregister has returned.
	RuleFreeBeforeUnregister
	// RuleResult is violated by a driver's method that returns inconsistent results.
	RuleResult
	// RuleCallbackReturns is violated by a consumer's callback that panics, ends its goroutine, or does not return in
	// time.
	RuleCallbackReturns
	// RuleClientReturns is violated by a client's Add or Remove that does not return in time.
	RuleClientReturns
	// RuleInUse is violated by the destruction of an object, or the unregistration of a device, while a thread is
	// inside a call on it.
	RuleInUse
	// RuleArmWithoutPoll is violated by a consumer that arms a CQ that holds completions, and does not poll the CQ
	// afterwards.
	RuleArmWithoutPoll
	// RuleInFlight is violated by the deregistration or change of a region while a work request that uses the region is
	// outstanding.
	RuleInFlight
	// RuleDestroyUndrained is violated by polling a completion of a QP that was destroyed before it was drained.
	RuleDestroyUndrained
	// RuleSRQUndrained is violated by the destruction of a QP with a shared receive queue before EventQPLastWQEReached.
	RuleSRQUndrained
	// RuleCQTooSmall is violated by posting more work requests than the CQ on which they complete has entries.
	RuleCQTooSmall
	// RuleUnsignaledOnly is violated by filling a send queue with unsignaled work requests only.
	RuleUnsignaledOnly
	// RuleNotRearmed is violated by a completion handler that polls its CQ and does not arm it again, if remaining or
	// later completions are not polled.
	RuleNotRearmed
	// RuleLeftInCQ is violated by a completion handler that arms its CQ without NotifyReportMissed, and does not poll
	// until the CQ is empty.
	RuleLeftInCQ
	// RuleUseAfterRemove is violated by a client that uses a device after the client's Remove has returned.
	RuleUseAfterRemove
	// RuleSourceChanged is violated by a consumer that changes the memory of a SEND or RDMA WRITE before it has polled the
	// completion.
	RuleSourceChanged
	// RuleTargetReused is violated by a receive, READ or atomic operation whose memory belongs to an outstanding request
	// that also changes it. The rule is off unless Config.TargetReuse is set.
	RuleTargetReused
	// RuleTargetUnflushed is the equivalent of RuleTargetReused for an outstanding request of a QP in ERR: the consumer
	// has not polled its flush completion.
	RuleTargetUnflushed
	// RuleEndlessFlush is violated by a consumer that posts receives on a QP in ERR, from the functions of flushed
	// receives, without end.
	RuleEndlessFlush
	// RuleLeftInSQE is violated by a consumer that has polled the failure of a send on a UD or UC queue pair, and then
	// continues to post sends until it destroys the queue pair, without a Modify.
	RuleLeftInSQE
	// RuleSourcePending is violated by a send whose memory is the target of an outstanding READ or atomic operation, if
	// no fence orders the send after the operation.
	RuleSourcePending
	// RuleSourceAfterReply is the equivalent of RuleSourceChanged for memory that has changed after a message of the peer
	// had arrived. The message may prove that the device has read the memory. The rule is off by default.
	RuleSourceAfterReply
	// RuleTargetWritten is violated by a consumer that changes the memory of a receive, READ or atomic operation between
	// the arrival of the data and the poll of the completion.
	RuleTargetWritten
	// RuleUnmapped is violated by a consumer that unmaps the memory of an outstanding request.
	RuleUnmapped
	// RuleKeyKind is violated by a work request that names its own memory by a remote key.
	RuleKeyKind
	// RuleKeyEnded is violated by a work request that names a region after its deregistration, or by its former key.
	RuleKeyEnded
	// RuleKeyUnknown is violated by a work request with a local key that no region has had.
	RuleKeyUnknown
	// RuleKeyDomain is violated by a work request that names a region of another protection domain.
	RuleKeyDomain
	// RuleKeyRange is violated by a work request with an element that exceeds its region.
	RuleKeyRange
	// RuleKeyRight is violated by a receive, READ or atomic operation on a region without AccessLocalWrite.
	RuleKeyRight
	// RulePostsInErr is violated by a consumer that has polled a failed completion, and continues to post sends on the QP
	// in ERR.
	RulePostsInErr
	// RuleNoReceive is violated by a consumer that has posted no receive since RESET when a message arrives, in the first
	// second after the Modify of an RC queue pair to RTR.
	RuleNoReceive
	// RuleSourceReused is violated by a request that changes memory of an outstanding SEND or RDMA WRITE of another queue.
	RuleSourceReused
	// RuleAHInFlight is violated by the destruction of an address handle while a datagram that uses it is outstanding.
	RuleAHInFlight
	// RuleInFlightUnsignaled is the equivalent of RuleInFlight and RuleAHInFlight for an unsignaled request without a
	// later signaled one, if the program posts no more to the queue pair. The rule is off by default.
	RuleInFlightUnsignaled
	// RuleInFlightUnflushed is the equivalent of RuleInFlight for a request of a QP in ERR: the program has not polled its
	// flush completion. The rule is off by default.
	RuleInFlightUnflushed
	numRules
)

var ruleTexts = [numRules]struct {
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
	RuleSourceChanged:        {"source-changed", 1},
	RuleTargetReused:         {"target-reused", 1},
	RuleTargetUnflushed:      {"target-unflushed", 1},
	RuleEndlessFlush:         {"endless-flush", 4},
	RuleLeftInSQE:            {"left-in-sqe", 1},
	RuleSourcePending:        {"source-pending", 1},
	RuleSourceAfterReply:     {"source-after-reply", 1},
	RuleTargetWritten:        {"target-written", 1},
	RuleUnmapped:             {"unmapped", 5},
	RuleKeyKind:              {"key-kind", 1},
	RuleKeyEnded:             {"key-ended", 5},
	RuleKeyUnknown:           {"key-unknown", 1},
	RuleKeyDomain:            {"key-domain", 1},
	RuleKeyRange:             {"key-range", 1},
	RuleKeyRight:             {"key-right", 1},
	RulePostsInErr:           {"posts-in-err", 1},
	RuleNoReceive:            {"no-receive", 1},
	RuleSourceReused:         {"source-reused", 1},
	RuleAHInFlight:           {"ah-in-flight", 5},
	RuleInFlightUnsignaled:   {"in-flight-unsignaled", 5},
	RuleInFlightUnflushed:    {"in-flight-unflushed", 5},
}

// String returns the name of the rule, such as "callchain".
func (r Rule) String() string {
	if r > 0 && r < numRules {
		return ruleTexts[r].name
	}
	return fmt.Sprintf("Rule(%d)", uint8(r))
}

// ContractPoint returns the number of the point of the contract that contains the rule. The comment of package ib has
// the contract.
func (r Rule) ContractPoint() int {
	if r < numRules {
		return ruleTexts[r].point
	}
	return 0
}

// Violation is a violation of the contract, found by checked mode.
type Violation struct {
	Rule   Rule
	Device string
	What   string // one line: the violating call and the violated rule
	// Stacks holds the stacks of both sides; the stack of the violation is first. The violation of a program has none.
	Stacks []Stack
	// Requests describes the work requests that the violation is about; the violating request is first.
	Requests []Request
	// Memory is the changed memory, or nil. Only the violation of a program has it.
	Memory *ChangedMemory
	Time   time.Time // when the checker found the violation
	// Count is 1. When a Program is closed, it reports each repeated violation again, with the number of occurrences.
	Count uint64

	object *checkedObject // the queue of a program's violation, for the site; may be nil
	atEnd  bool           // applies at the end of the program too
}

// Request describes a work request of a violation.
type Request struct {
	QPN    uint32 // 0: posted to an SRQ
	Peer   uint32 // number of the connected queue pair, or 0
	Opcode string // such as "SEND", or "receive"
	ID     uint64 // given by the consumer
	Index  uint64 // number of earlier requests of the queue
	Length uint64 // in bytes
	Posted time.Time
}

// ChangedMemory describes memory of a work request that has changed.
type ChangedMemory struct {
	Element       int    // index in the list of the request
	Addr          uint64 // address of the element, in the space of the program
	Length        uint64 // length of the element, in bytes
	Offset        uint64 // offset of the first changed byte
	Changed       int    // number of compared bytes that have changed
	region        uint64 // address of the region
	Before, After []byte // the contents from Offset on, at most 16 bytes
}

// Stack is the stack of a thread at a present or past call.
type Stack struct {
	Title string // one line, such as "made at"
	Trace string // in the format of runtime.Stack
}

// String returns a report of several lines.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: rule %v (point %d): %s", v.Device, v.Rule, v.Rule.ContractPoint(), v.What)
	for _, s := range v.Stacks {
		fmt.Fprintf(&b, "\n  %s:\n\t%s", s.Title, strings.ReplaceAll(strings.TrimRight(s.Trace, "\n"), "\n", "\n\t"))
	}
	return b.String()
}

// callerPCs returns the stack of the caller.
func callerPCs() []uintptr {
	var pc [56]uintptr
	return append([]uintptr(nil), pc[:runtime.Callers(2, pc[:])]...)
}

// formatStack formats a stack like runtime.Stack, without the midlayer's own functions at the top.
func formatStack(pc []uintptr) string {
	var b, top strings.Builder
	frames := runtime.CallersFrames(pc)
	for len(pc) > 0 {
		f, more := frames.Next()
		to := &b
		if b.Len() == 0 && isInternalFunction(f.Function) {
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

// callSite returns the innermost call of a stack and its two callers, as formatted by trace.
func callSite(pc []uintptr) string {
	lines := strings.SplitAfterN(formatStack(pc), "\n", 7)
	return strings.Join(lines[:min(6, len(lines))], "")
}

var (
	midlayerPath = reflect.TypeFor[ib.Device]().PkgPath()
	ownPath      = reflect.TypeFor[checker]().PkgPath()
)

// isInternalFunction reports whether a function belongs to this package, or is an unexported function of package ib.
func isInternalFunction(name string) bool {
	if strings.HasPrefix(name, ownPath+".") {
		return true
	}
	rest, ok := strings.CutPrefix(name, midlayerPath+".")
	rest, _, _ = strings.Cut(rest, "[")
	rest = rest[strings.LastIndexByte(rest, '.')+1:]
	return ok && rest != "" && rest[0] >= 'a' && rest[0] <= 'z'
}
