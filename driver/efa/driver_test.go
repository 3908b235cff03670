package efa_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"verbena/driver"
	"verbena/driver/efa"
	"verbena/engine"
	"verbena/ib"
	"verbena/ib/ibtest"
	"verbena/link"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/uapi"
)

// TestContract checks SRD on both ways that packets take.
func TestContract(t *testing.T) {
	for name, shortcut := range map[string]bool{"shortcut": true, "wire": false} {
		t.Run(name, func(t *testing.T) {
			ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle {
				d, err := efa.New(efa.Config{
					Name: "efa0", Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
					Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}),
					Fabric: &engine.Fabric{}, Logf: t.Logf,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				d.SetShortcut(shortcut)
				return d.Handle()
			}, ibtest.Bubble(), ibtest.Groups("QueuePair", "SRD", "Model"))
		})
	}
}

// TestDriver opens an adapter as a service does. The device must have the user ABI of EFA, and must keep
// the contract in the checks that involve its queues. Package engine runs the whole suite.
func TestDriver(t *testing.T) {
	ibtest.Run(t, func(t testing.TB) *ib.DeviceHandle {
		d := &efa.Driver{}
		if d.Type() != "efa" {
			t.Errorf("Type: got %q, want efa", d.Type())
		}
		probed := false
		hw := d.Open(driver.Config{
			Name: "efa0", Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
			Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}), Taps: &link.Taps{},
			Logf: t.Logf, Probed: func(driver.Device) { probed = true },
		})
		slotDevice, err := hw.Probe()
		if err != nil {
			t.Fatal(err)
		}
		dev := slotDevice.(*efa.Device)
		t.Cleanup(func() { dev.Close() })
		if !probed {
			t.Error("Open: Config.Probed was not called")
		}
		return dev.Handle()
	}, ibtest.Bubble(), ibtest.Groups("CQ", "SRD"))
}

// TestLayoutIsRequired tests that the constructors of this package set the layout, and that the engine refuses a
// configuration without one.
func TestLayoutIsRequired(t *testing.T) {
	cfg := efa.Config{
		Name: "efa0", Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true},
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}),
	}
	if _, err := engine.New(cfg); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("engine.New without a layout: got %v, want EINVAL", err)
	}
	d, err := efa.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var abi interface {
		UserABI() (driverID, version uint32)
	}
	d.Handle().Wrap(func(drv ib.Driver) ib.Driver {
		abi = drv.(interface {
			UserABI() (driverID, version uint32)
		})
		return drv
	})
	if id, version := abi.UserABI(); id != uint32(uapi.DriverEFA) || version != 1 {
		t.Errorf("UserABI: got %d and %d, want %d and 1", id, version, uapi.DriverEFA)
	}
}

// TestQueueLimits tests that a device with the least queue memory exists, and that more memory never means shorter
// queues.
func TestQueueLimits(t *testing.T) {
	d := &efa.Driver{}
	least := d.MinQueueMemory()
	if _, _, err := d.QueueLimits(least - 1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("QueueLimits(%d): got %v, want ENOMEM", least-1, err)
	}
	work, completions := 0, 0
	for memory := least; memory < 1<<31; memory *= 2 {
		w, c, err := d.QueueLimits(memory)
		if err != nil || w < work || c < completions {
			t.Errorf("QueueLimits(%d): got %d, %d, %v, want at least %d and %d", memory, w, c, err, work, completions)
		}
		work, completions = w, c
	}
}
