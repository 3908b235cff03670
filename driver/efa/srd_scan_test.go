package efa_test

import (
	"testing"
	"testing/synctest"
	"time"

	"verbena/driver/efa"
	"verbena/engine"
	"verbena/ib"
	"verbena/link/simnet"
	abi "verbena/uapi/efa"
)

// TestSRDScan tests that a sender without the Q_Key cannot distinguish a queue pair from an unused number by the status
// or the time of a request, or by the counters of the device.
func TestSRDScan(t *testing.T) {
	for name, shortcut := range map[string]bool{"shortcut": true, "wire": false} {
		for _, state := range []ib.QPState{ib.QPRTS, ib.QPErr, ib.QPReset} {
			t.Run(name+"/"+state.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { scan(t, shortcut, state) })
			})
		}
	}
}

func scan(t *testing.T, shortcut bool, state ib.QPState) {
	fabric := &engine.Fabric{}
	join := func(c *efa.Config) { c.Fabric = fabric }
	net := simnet.New(simnet.Config{Latency: 10 * time.Microsecond})
	a, b := newProgram(t, net, "10.0.0.1", ib.QPTypeSRD, join), newProgram(t, net, "10.0.0.2", ib.QPTypeSRD, join)
	a.dev.SetShortcut(shortcut)
	_, ah := a.newAH("10.0.0.2")
	if state != ib.QPRTS {
		b.check(b.qp.Modify(ib.QPAttr{State: state}, ib.QPAttrState))
	}
	ask := func(num uint32) (time.Duration, uint64) {
		began, before := time.Now(), b.dev.Stats()["drop_unknown_qp"]
		a.send(1, ah, num, 0, 8, func(m *abi.TXMetaDesc, _ *abi.TXBufDesc) { m.QKey++ })
		a.await(1, abi.IOCompStatusRemoteErrorBadDestQPN)
		return time.Since(began), b.dev.Stats()["drop_unknown_qp"] - before
	}
	ask(b.qp.Num() + 2) // the first packet takes longer
	missing, dropped := ask(b.qp.Num() + 1)
	took, also := ask(b.qp.Num())
	const step = 20 * time.Microsecond // by which poll may be late
	if (took-missing).Abs() > step || also != dropped {
		t.Errorf("request to a queue pair: got %v, %d drops, want %v, %d as for an unused number", took, also, missing, dropped)
	}
}
