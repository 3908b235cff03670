package loopback_test

import (
	"testing"

	"go.uber.org/goleak"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/ibtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle { return loopback.New("loop0", t.Logf).Handle() }, ibtest.Bubble())
}
