package strict

import (
	"fmt"
	"strings"
	"testing"

	"verbena/ib/check"
	"verbena/ib/ibtest/strict/expire"
)

// TestFaultFilterFindsWrongOrder checks which left objects count after a failure of the test. The device has failed a
// call of this test.
func TestFaultFilterFindsWrongOrder(t *testing.T) {
	f := &faultFilter{kind: failedCall}
	f.recordCall()
	call, ok := testCall(f.trace(0))
	if !ok {
		t.Fatalf("testCall: got no call of the test in %s", f.trace(0))
	}
	inside := func(what string) string {
		return fmt.Sprintf("verbena/ib.%s(...)\n\t/v/ib/x.go:1\nconsumer.New(...)\n\t/c/new.go:2\n%s(...)\n\t%s\n", what,
			call.function[:strings.LastIndex(call.function, "(")], call.file)
	}
	const elsewhere = "verbena/ib.(*Device).AllocPD(...)\n\t/v/ib/x.go:1\nconsumer.Open(...)\n\t/c/new.go:9\n" +
		"consumer.TestNew(...)\n\t/c/new_test.go:3\n"
	made := check.Stack{Title: "CQ made at", Trace: inside("(*Device).CreateCQ")}
	refused := check.Stack{Title: "CQ" + check.RefusedAt, Trace: inside("(*CQ).Destroy")}
	late := check.Stack{Title: "CQ" + check.RefusedAt, Trace: inside("(*CQ).DestroyContext")}
	other := check.Stack{Title: "PD made at", Trace: elsewhere}
	outside := check.Stack{Title: "CQ" + check.RefusedAt, Trace: elsewhere}
	for _, tt := range []struct {
		name   string
		stacks []check.Stack
		want   bool
	}{
		{"the destruction failed in the same call", []check.Stack{{}, made, refused}, true},
		{"objects of another call are left, too", []check.Stack{{}, other, made, refused}, true},
		{"no destruction", []check.Stack{{}, made}, false},
		{"another object of the call was not destroyed", []check.Stack{{}, made, refused, made}, false},
		{"the destruction failed in another call", []check.Stack{{}, made, outside}, false},
		{"a destruction with a limit", []check.Stack{{}, made, late}, false},
		{"the device failed no call there", []check.Stack{{}, other, outside}, false},
	} {
		if got := f.isWrongOrder(tt.stacks); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestMistakesOfTestsDoNotCount checks which violations after a failure of the test are faults of the consumer.
func TestMistakesOfTestsDoNotCount(t *testing.T) {
	const (
		destroy  = "verbena/ib.(*QP).Destroy(...)\n\t/v/ib/qp.go:1\nconsumer.(*Conn).close(...)\n\t/c/conn.go:2\n"
		byRemove = destroy + "verbena/ib.(*Core).callClientRemove(...)\n\t/v/ib/core.go:3\n" +
			"verbena/ib.(*Core).Unregister(...)\n\t/v/ib/core.go:4\nconsumer.TestConn(...)\n\t/c/conn_test.go:5\n"
		byTest   = destroy + "consumer.TestConn(...)\n\t/c/conn_test.go:6\n"
		byThread = destroy + "consumer.(*Conn).fail(...)\n\t/c/conn.go:7\n"
	)
	for _, tt := range []struct {
		name            string
		used, destroyed string
		want            bool
	}{
		{"the consumer destroys twice", byRemove, byThread, true},
		{"the test destroys an object, and Remove does it again", byRemove, byTest, false},
		{"the test destroys an object again", byTest, byThread, false},
	} {
		stacks := []check.Stack{{Title: "QP.Destroy", Trace: tt.used}, {Title: "destroyed at", Trace: tt.destroyed},
			{Title: "made at", Trace: byTest}}
		if got := isIndependentOfTests(stacks); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		if got, want := isCalledByTest(stacks), tt.used == byTest; got != want {
			t.Errorf("%s: called by the test: got %v, want %v", tt.name, got, want)
		}
	}
}

// TestHeldThreadsAreNotLate checks that only lasting violations count while threads are held.
func TestHeldThreadsAreNotLate(t *testing.T) {
	f := &faultFilter{kind: expire.LateThreads}
	stack := []check.Stack{{Trace: "consumer.(*Conn).handle(...)\n\t/c/conn.go:2\n"}}
	for _, tt := range []struct {
		rule check.Rule
		what string
		want bool
	}{
		{check.RuleSleepInCallback, "the completion handler sleeps (chan send)", true},
		{check.RuleSleepInCallback, "the completion handler has waited for long (syscall): a deadlock", false},
		{check.RuleClientReturns, "Remove of client c has not returned for 3s", false},
	} {
		if got := f.counts(check.Violation{Rule: tt.rule, What: tt.what, Stacks: stack}); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.what, got, tt.want)
		}
	}
}
