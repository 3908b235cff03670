package rxe

import "verbena/driver"

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
	return NewHardware(Config{
		Name:        c.Name,
		Netdev:      c.Netdev,
		Addrs:       c.Addrs,
		Network:     c.Network,
		Faults:      c.Faults,
		Taps:        c.Taps,
		Fabric:      &d.fabric,
		Rand:        c.Rand,
		NoProbe:     c.NoProbe,
		QueueMemory: c.QueueMemory,
		Recover:     true,
		QPFailed:    c.QPFailed,
		Logf:        c.Logf,
		Probed: func(dev *Device) {
			dev.SetShortcut(!c.Wire)
			c.Probed(dev)
		},
	})
}
