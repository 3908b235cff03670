package ibtest

import (
	"slices"
	"testing"

	"verbena/ib"
	"verbena/uapi/verb"
)

// Sleep/LockHolders calls every driver method that may sleep.
func TestSleepers(t *testing.T) {
	elsewhere := map[string]string{
		"Device.FindGID": "calls Device.QueryGID", "Device.FindPKey": "calls Device.QueryPKey", "PD.RegBytes": "calls PD.RegMR",
		"QP.Prepare": "calls QP.Modify", "QP.Connect": "calls QP.Modify", "QP.ConnectDatagram": "calls QP.Modify",
		"Device.GetGID": "calls no driver", "GIDRef.Put": "calls no driver", "Device.Local": "calls no driver",
	}
	e := newTestEnv(t, newConfig(func(t testing.TB) *ib.DeviceHandle { return newWrongDriver(t).dev }, nil), false)
	e.registerDevice()
	var called []string
	for _, s := range e.sleepingCalls(e.newPair(pairConfig{kind: ib.QPTypeRC})) {
		called = append(called, s.methods...)
	}
	for _, v := range verb.Table {
		for _, m := range v.Midlayer {
			if !v.Atomic && !slices.Contains(called, m) && elsewhere[m] == "" {
				t.Errorf("method %s may sleep: got no call in Sleep/LockHolders, want one", m)
			}
		}
	}
}
