package skeleton

import (
	"testing"

	"go.uber.org/goleak"

	"verbena/ib"
	"verbena/ib/ibtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle {
		d := New("skel0", t.Logf)
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d.Handle()
	})
}
