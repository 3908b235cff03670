package efa

import (
	"verbena/driver"
	"verbena/driver/efa/layout"
	"verbena/engine"
)

// The devices of this package are devices of package engine with the layout of EFA.
type (
	// Config is the configuration of a device. New sets its Layout.
	Config = engine.Config
	// Device is an EFA device.
	Device = engine.Device
)

// New makes a device, ready for ib.Core.Register, on hardware of its own, and binds its addresses. The error is
// EADDRINUSE if an address is taken. New may sleep.
func New(cfg Config) (*Device, error) {
	cfg.Layout = layout.Layout{}
	return engine.New(cfg)
}

// Driver makes the adapters of one service. Their devices share a Fabric. The zero Driver is ready for use.
type Driver struct{ fabric engine.Fabric }

var _ driver.PCIDriver = (*Driver)(nil)

// Type implements driver.Driver.
func (*Driver) Type() string { return "efa" }

// Open implements driver.Driver. A panic of the engine resets the device.
func (d *Driver) Open(c driver.Config) driver.Hardware {
	return engine.OpenHardware(layout.Layout{}, &d.fabric, c)
}

// MinQueueMemory returns the least Config.QueueMemory, in bytes, with which a device can be made.
func (*Driver) MinQueueMemory() uint64 { return engine.MinQueueMemory(layout.Layout{}) }

// QueueLimits returns the longest work queue and completion queue, in entries, of a device with a Config.QueueMemory.
// The error is that of New.
func (*Driver) QueueLimits(memory uint64) (work, completions int, err error) {
	return engine.QueueLimits(layout.Layout{}, memory)
}

// PCI implements driver.PCIDriver. The identifiers are those of the real adapter, by which libraries recognise it.
func (*Driver) PCI() string { return "auto,vendor=1d0f,device=efa2,driver=efa" }
