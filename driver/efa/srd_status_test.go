package efa_test

import (
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/qpinfo"
	"verbena/link/simnet"
	abi "verbena/uapi/efa"
)

// TestSRDFlowStatus tests that the status of a queue pair counts its flows, and the packets that wait for receives.
func TestSRDFlowStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, ah, _ := newSRD(t, simnet.New(simnet.Config{Latency: 10 * time.Microsecond}))
		check := func(when string, wantA, wantB qpinfo.Flows) {
			t.Helper()
			synctest.Wait()
			for p, want := range map[*program]qpinfo.Flows{a: wantA, b: wantB} {
				if got := p.dev.QPStatuses()[0].Flows; got == nil || *got != want {
					t.Errorf("%s: got %v, want %v", when, got, &want)
				}
			}
		}
		check("new queue pairs", qpinfo.Flows{}, qpinfo.Flows{})
		for id := range uint16(3) {
			a.send(id, ah, b.qp.Num(), 0, 8, nil)
		}
		time.Sleep(time.Millisecond)
		check("without receives", qpinfo.Flows{Out: 1, Busy: 1, Waiting: 3}, qpinfo.Flows{In: 1})
		if n := a.dev.QPStatuses()[0].Retransmits; n == 0 {
			t.Error("retransmissions without receives: got none")
		}
		for id := range uint16(3) {
			b.recv(100+id, 0, 8)
		}
		for range 3 {
			if c := a.poll(); c.Common.Status != abi.IOCompStatusOK {
				t.Errorf("SEND: got %+v, want success", c)
			}
			b.poll()
		}
		check("with receives", qpinfo.Flows{Out: 1}, qpinfo.Flows{In: 1})
	})
}
