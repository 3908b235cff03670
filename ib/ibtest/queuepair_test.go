package ibtest

import (
	"testing"

	"pgregory.net/rapid"

	"verbena/driver/loopback"
	"verbena/ib"
)

// TestModifySequencesFollowModel checks that any sequence of Modify calls on a driver's queue pair follows the
// specification's table.
func TestModifySequencesFollowModel(t *testing.T) {
	cfg := newConfig(func(t testing.TB) *ib.DeviceHandle { return loopback.New("loop0", nil).Handle() }, nil)
	kinds := []ib.QPType{ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCInit, ib.QPTypeXRCTgt}
	rapid.Check(t, func(rt *rapid.T) {
		kind := rapid.SampledFrom(kinds).Draw(rt, "type")
		choices := rapid.SliceOf(rapid.IntRange(0, 1<<20)).Draw(rt, "choices")
		r := recordRun(t, func(r *recordingTB) {
			e := newTestEnv(r, cfg, false)
			e.registerDevice()
			m := &expectedQPState{e: e, qp: e.newQPOfType(kind, e.newPD(), e.newCQ(8, nil)), state: "RESET"}
			for len(choices) > 0 {
				e.must("modify qp", m.stepRandomly(func(n int) int {
					if len(choices) == 0 {
						return 0
					}
					c := choices[0] % n
					choices = choices[1:]
					return c
				}))
			}
		})
		if r.failed {
			rt.Fatal(r)
		}
	})
}
