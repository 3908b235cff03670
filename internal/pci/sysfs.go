package pci

import (
	"encoding/binary"
	"fmt"
)

// Modalias returns the text by which drivers are found. (pci_uevent)
func (f *Function) Modalias() string {
	return fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X", f.Vendor, f.Device, f.SubVendor, f.SubDevice,
		uint8(f.Class>>16), uint8(f.Class>>8), uint8(f.Class))
}

// Files returns the constant files of the function's directory in sysfs, by name.
func (f *Function) Files() map[string]string {
	line := func(format string, args ...any) string { return fmt.Sprintf(format, args...) + "\n" }
	driver := ""
	if f.Driver != "" {
		driver = line("DRIVER=%s", f.Driver)
	}
	return map[string]string{
		"vendor": line("0x%04x", f.Vendor), "device": line("0x%04x", f.Device),
		"subsystem_vendor": line("0x%04x", f.SubVendor), "subsystem_device": line("0x%04x", f.SubDevice),
		"class": line("0x%06x", f.Class), "revision": line("0x%02x", f.Revision), "modalias": line("%s", f.Modalias()),
		"uevent": line("%sPCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%v\nMODALIAS=%s",
			driver, f.Class, f.Vendor, f.Device, f.SubVendor, f.SubDevice, f.Address, f.Modalias()),
		"config": string(f.config()), "enable": "1\n", "irq": "0\n",
		"max_link_speed": speeds[f.Speed] + "\n", "current_link_speed": speeds[f.Speed] + "\n",
		"max_link_width": line("%d", f.Width), "current_link_width": line("%d", f.Width),
	}
}

// UpstreamBridge returns the bridge above the function. ok is false if the function is on the root bus.
func (f *Function) UpstreamBridge() (b Function, ok bool) {
	at, ok := f.Address.Bridge()
	return Function{
		Address: at, NUMA: f.NUMA, Vendor: bridgeVendor, Device: bridgeDevice, SubVendor: bridgeVendor, Class: bridgeClass,
		Speed: f.Speed, Width: f.Width,
	}, ok
}

// Bridges have the identifiers of QEMU's generic root port. (docs/specs/pci-ids)
const (
	bridgeVendor = 0x1b36
	bridgeDevice = 0x000c
	bridgeClass  = 0x060400 // PCI-to-PCI bridge
)

// The following constants are the layout of the configuration space. (PCI Local Bus 3.0, 6.1; PCI Express 4.0, 7.5)
const (
	configSize = 256

	configCommand    = 0x04
	configStatus     = 0x06
	configRevision   = 0x08 // and the class in the next three bytes
	configHeader     = 0x0e
	configBuses      = 0x18 // primary, secondary and subordinate bus of bridges
	configSubsystem  = 0x2c
	configCapability = 0x34 // offset of the first capability

	commandMemory    = 1 << 1
	commandMaster    = 1 << 2
	statusCapability = 1 << 4
	headerBridge     = 1

	express           = 0x40 // offset of the PCI Express capability
	expressID         = 0x10
	expressFlags      = express + 0x02
	expressLinkCap    = express + 0x0c
	expressLinkStatus = express + 0x12
	expressVersion    = 2
	expressRootPort   = 4 << 4
	widthShift        = 4
)

// config returns the configuration space.
func (f *Function) config() []byte {
	b := make([]byte, configSize)
	le := binary.LittleEndian
	le.PutUint16(b, f.Vendor)
	le.PutUint16(b[2:], f.Device)
	le.PutUint16(b[configCommand:], commandMemory|commandMaster)
	le.PutUint16(b[configStatus:], statusCapability)
	le.PutUint32(b[configRevision:], f.Class<<8|uint32(f.Revision))
	b[configCapability] = express
	b[express] = expressID
	flags := uint16(expressVersion)
	if f.Class == bridgeClass {
		b[configHeader] = headerBridge
		b[configBuses] = f.Address.Bus
		b[configBuses+1] = f.Address.Bus + f.Address.Device
		b[configBuses+2] = b[configBuses+1]
		flags |= expressRootPort
	} else {
		le.PutUint16(b[configSubsystem:], f.SubVendor)
		le.PutUint16(b[configSubsystem+2:], f.SubDevice)
	}
	le.PutUint16(b[expressFlags:], flags)
	le.PutUint32(b[expressLinkCap:], uint32(f.Speed|f.Width<<widthShift))
	le.PutUint16(b[expressLinkStatus:], uint16(f.Speed|f.Width<<widthShift))
	return b
}
