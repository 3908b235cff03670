package rxe

import (
	"net/netip"
	"testing"

	"verbena/driver/rxe/wire/netdev"
	"verbena/driver/rxe/wire/simnet"
	"verbena/ib"
	"verbena/ib/ibtest"
)

// TestContract: the driver keeps the midlayer's contract, on both ways that its packets take.
func TestContract(t *testing.T) {
	for _, direct := range []bool{true, false} {
		name := "shortcut"
		if !direct {
			name = "wire"
		}
		t.Run(name, func(t *testing.T) {
			ibtest.Run(t, func(t testing.TB) *ib.Device {
				d, err := New(Config{
					Name:    "rxe0",
					Netdev:  netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
					Addrs:   []netip.Addr{netip.MustParseAddr("10.1.0.1")},
					Network: simnet.New(simnet.Config{}),
					Fabric:  &Fabric{},
					Logf:    t.Logf,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				d.SetShortcut(direct)
				return d.IB()
			})
		})
	}
}
