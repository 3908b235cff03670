package embed_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/verbs"
)

// TestRejectedRequestIsNotSentLater checks that a work request is not sent later if it was rejected because of the
// queue pair's state.
func TestRejectedRequestIsNotSentLater(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	a, b := newTestEnd(t, dev, verbs.QPInit{SignalAll: true}), newTestEnd(t, dev, verbs.QPInit{})
	refused := func(state string) {
		t.Helper()
		err := a.qp.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.Write, Local: a.mr.SGE(0, 4), Remote: b.remoteMemory()})
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), state) {
			t.Errorf("PostSend in %s: got %v, want EINVAL", state, err)
		}
		if n, err := a.qp.PostSends(make([]verbs.SendWR, 2)); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("PostSends in %s: got %d, %v, want 0, EINVAL", state, n, err)
		}
	}
	only := func() {
		t.Helper()
		if err := a.qp.PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.Write, Local: a.mr.SGE(0, 4),
			Remote: b.remoteMemory()}); err != nil {
			t.Fatal(err)
		}
		var wc [2]verbs.WC
		if n, err := a.cq.Wait(t.Context(), wc[:]); n != 1 || err != nil || wc[0].ID != 2 || wc[0].Status != verbs.Success {
			t.Errorf("Wait: got %d completions, error %v and %+v, want one completion of work request 2", n, err, wc[0])
		}
	}
	refused("RESET")
	if err := a.qp.Prepare(verbs.Path{}); err != nil {
		t.Fatal(err)
	}
	refused("INIT")
	if err := verbs.ConnectPair(a.qp, b.qp); err != nil {
		t.Fatal(err)
	}
	only()
	// A failing transition must not change the state.
	if err := a.qp.Modify(verbs.QPAttr{State: verbs.Init}, verbs.AttrState); err == nil {
		t.Error("Modify from RTS to INIT: got nil, want an error")
	}
	if err := a.qp.Modify(verbs.QPAttr{State: verbs.Reset}, verbs.AttrState|verbs.AttrPathMTU); err == nil {
		t.Error("Modify to RESET with attributes: got nil, want an error")
	}
	only()
	for _, s := range []verbs.QPState{verbs.Error, verbs.Reset} {
		if err := a.qp.Modify(verbs.QPAttr{State: s}, verbs.AttrState); err != nil {
			t.Fatal(err)
		}
		if s == verbs.Error { // the request is flushed
			if err := a.qp.PostSend(&verbs.SendWR{ID: 3, Opcode: verbs.Write, Local: a.mr.SGE(0, 4),
				Remote: b.remoteMemory()}); err != nil {
				t.Errorf("PostSend in ERR: %v", err)
			}
		}
	}
	refused("RESET")
}
