package minimal_test

import (
	"testing"

	"verbena/examples/minimal"
	"verbena/ib"
	"verbena/ib/ibtest"
)

func TestContract(t *testing.T) {
	ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle {
		d := minimal.New("minimal0", t.Logf)
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d.Handle()
	}, ibtest.Bubble())
}
