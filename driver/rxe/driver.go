package rxe

import (
	"verbena/driver"
	"verbena/driver/relay"
	"verbena/driver/rxe/layout"
	"verbena/engine"
	"verbena/ib"
)

// The devices of this package are devices of package engine with the layout of rxe.
type (
	// Config is the configuration of a device. New and NewHardware set its Layout.
	Config = engine.Config
	// Device is a software RoCEv2 device.
	Device = engine.Device
	// Hardware is the adapter of a Device. It stays when the device is reset.
	Hardware = engine.Hardware
	// Fabric connects devices of a process that reach each other in memory.
	Fabric = engine.Fabric
	// Clock and Timer are the source of time of a device, for tests on virtual time.
	Clock = engine.Clock
	Timer = engine.Timer
)

// New makes a device, ready for ib.Core.Register, on hardware of its own, and binds its addresses. The error is
// EADDRINUSE if an address is taken by another program or by the kernel's own rxe. New may sleep.
func New(cfg Config) (*Device, error) {
	cfg.Layout = layout.Layout{}
	return engine.New(cfg)
}

// NewHardware makes an adapter that works. All its devices have the configuration cfg.
func NewHardware(cfg Config) *Hardware {
	cfg.Layout = layout.Layout{}
	return engine.NewHardware(cfg)
}

// Driver makes the adapters of one service. Their devices share a Fabric. The zero Driver is ready for use.
type Driver struct{ fabric Fabric }

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Hardware = (*Hardware)(nil)
	_ driver.Device   = (*Device)(nil)
)

// Type implements driver.Driver.
func (*Driver) Type() string { return "rxe" }

// Open implements driver.Driver. A panic of the engine resets the device.
func (d *Driver) Open(c driver.Config) driver.Hardware {
	probed := c.Probed
	c.Probed = func(dev driver.Device) {
		dev.Handle().Wrap(func(d ib.Driver) ib.Driver { return relay.New(d, layout.Layout{}) })
		probed(dev)
	}
	return engine.OpenHardware(layout.Layout{}, &d.fabric, c)
}

// MinQueueMemory returns the least Config.QueueMemory, in bytes, with which a device can be made.
func (*Driver) MinQueueMemory() uint64 { return engine.MinQueueMemory(layout.Layout{}) }

// QueueLimits returns the longest work queue and completion queue, in entries, of a device with a Config.QueueMemory.
// The error is that of New.
func (*Driver) QueueLimits(memory uint64) (work, completions int, err error) {
	return engine.QueueLimits(layout.Layout{}, memory)
}
