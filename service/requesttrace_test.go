package service

import (
	"errors"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/ctl"
	"verbena/internal/testutil"
	"verbena/reqtrace"
)

// TestTracesShareOneLook tests that all traces together have one goroutine that looks at the completion queues. A trace
// beyond the limit takes no memory.
func TestTracesShareOneLook(t *testing.T) {
	s, _ := newServedService(t, ctl.LinkSpec{Name: "rxe0", Addrs: []string{"127.91.8.45"}})
	looks := func() int {
		var b strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&b, 2)
		return strings.Count(b.String(), "created by verbena/service.(*traceLooks)")
	}
	who := userPeer(4242)
	held := func() (n uint64) {
		for _, u := range s.Users(who.OwnsAccount) {
			for _, h := range u.Holds {
				n += h.Held
			}
		}
		return n
	}
	var traces []*requestTrace
	for range reqtrace.MaxTraces {
		trace, theirs, err := s.traceRequests(who)
		if err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		traces = append(traces, trace)
	}
	if n := looks(); n != 1 {
		t.Errorf("goroutines that look at %d traces: got %d, want 1", len(traces), n)
	}
	before := held()
	if _, _, err := s.traceRequests(who); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("trace beyond the limit: got %v, want EBUSY", err)
	}
	if n := held(); n != before {
		t.Errorf("charge after a refused trace: got %d, want %d", n, before)
	}
	for _, trace := range traces {
		trace.end()
	}
	testutil.Eventually(t, "the end of the goroutine", func() bool { return looks() == 0 })
	if n := held(); n != 0 {
		t.Errorf("charge after the end: got %d, want none", n)
	}
}
