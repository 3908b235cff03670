package attached_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/slot"
	"verbena/link/simnet"
	"verbena/netdev"
)

// TestAttachmentSurvivesFailures makes the hardware of a device fail ten times. The attachment keeps the consumer
// attached.
func TestAttachmentSurvivesFailures(t *testing.T) {
	core := &ib.Core{}
	hw := rxe.NewHardware(rxe.Config{
		Name: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}),
		Netdev: netdev.Interface{Name: "eth0", MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 1500, Up: true, Running: true},
	})
	s := slot.New(core, "rxe0", hw, t.Logf)
	if err := s.Plug(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	// This consumer holds a protection domain. Yours holds more.
	a, err := attach.New(core, attach.Config[*ib.PD]{
		Name:   "consumer",
		Device: attach.Identity{Name: "rxe0"},
		Attach: func(_ context.Context, d *ib.Device, _ func(error)) (*ib.PD, error) { return d.AllocPD() },
		Detach: func(_ *ib.Device, pd *ib.PD) { pd.Dealloc() },
		Lost:   func(cause error) { t.Error(cause) },

		LossTimeout: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()

	for range 10 {
		before, err := a.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
		hw.Disconnect() // the hardware does not answer for 10 ms
		time.AfterFunc(10*time.Millisecond, hw.Return)
		if err := s.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		after, err := a.Acquire(t.Context()) // waits until the consumer is attached again
		if err != nil {
			t.Fatal(err)
		}
		if after == before || after.Device().State() != ib.DeviceActive {
			t.Error("device after the reset: got the old one, want the recovered one")
		}
		a.Release()
	}
}
