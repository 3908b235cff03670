package strict

import (
	"fmt"
	"strings"
	"testing"

	"verbena/ib/check"
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
