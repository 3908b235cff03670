// Package pci describes the PCI functions that programs see in place of devices without hardware: their addresses,
// identifiers and configuration bytes, and the files of sysfs in the form of the kernel (drivers/pci/pci-sysfs.c).
//
// A user describes a function in one line; see [Parse].
package pci

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Address is the address of a PCI function. The text form is DOMAIN:BUS:DEVICE.FUNCTION, in hexadecimal.
type Address struct {
	Domain   uint16
	Bus      uint8
	Device   uint8 // 0 to 31
	Function uint8 // 0 to 7
}

func (a Address) String() string { return fmt.Sprintf("%s:%02x.%x", a.BusName(), a.Device, a.Function) }

// BusName returns the name of the function's bus, DOMAIN:BUS.
func (a Address) BusName() string { return fmt.Sprintf("%04x:%02x", a.Domain, a.Bus) }

// ParseAddress parses an address. The domain may be omitted, and is then 0.
func ParseAddress(text string) (a Address, err error) {
	parts := strings.Split(text, ":")
	if len(parts) == 2 {
		parts = slices.Insert(parts, 0, "0")
	}
	bad := func() (Address, error) {
		return Address{}, fmt.Errorf("%.30q is not a PCI address: write DOMAIN:BUS:DEVICE.FUNCTION, such as 0000:81:00.0: %w",
			text, syscall.EINVAL)
	}
	if len(parts) != 3 {
		return bad()
	}
	device, function, ok := strings.Cut(parts[2], ".")
	var n [4]uint64
	for i, field := range []struct {
		text   string
		digits int
		most   uint64
	}{{parts[0], 4, 0xffff}, {parts[1], 2, 0xff}, {device, 2, 31}, {function, 1, 7}} {
		var err error
		n[i], err = strconv.ParseUint(field.text, 16, 16)
		if ok = ok && err == nil && len(field.text) <= field.digits && n[i] <= field.most; !ok {
			return bad()
		}
	}
	return Address{Domain: uint16(n[0]), Bus: uint8(n[1]), Device: uint8(n[2]), Function: uint8(n[3])}, nil
}

// busesPerRoot is the number of buses below one host bridge: bus N0 is the root bus, and the bridge N0:0x.0 leads to
// bus Nx.
const busesPerRoot = 16

// Root returns the root bus above the function.
func (a Address) Root() Address {
	return Address{Domain: a.Domain, Bus: a.Bus &^ (busesPerRoot - 1)}
}

// Bridge returns the bridge from the root bus to the function's bus. ok is false if the function is on the root bus.
func (a Address) Bridge() (bridge Address, ok bool) {
	b := a.Root()
	b.Device = a.Bus - b.Bus
	return b, b.Device != 0
}

// Function is a PCI function.
type Function struct {
	Address Address
	NUMA    int // NUMA node, or -1 if it is unknown

	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Class                uint32 // class, subclass and programming interface
	Revision             uint8
	Driver               string // name of the driver

	Speed int // index of the maximum link speed, from 1: 2.5, 5, 8, 16, 32 and 64 GT/s
	Width int // maximum link width
}

// The following constants are the defaults of [Parse]. The identifiers are from a range for experiments, and belong to
// no real adapter. (QEMU, docs/specs/pci-ids)
const (
	defaultVendor = 0x1af4
	defaultDevice = 0x10f0
	defaultClass  = 0x020000 // Ethernet controller
	defaultSpeed  = 4
	defaultWidth  = 16
)

// maxNUMA limits the number of a NUMA node. (MAX_NUMNODES)
const maxNUMA = 1023

// maxDriverName limits the length of a driver's name in bytes.
const maxDriverName = 32

// speeds are the texts of link speeds.
var speeds = [...]string{1: "2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe",
	"64.0 GT/s PCIe"}

// option is an option of [Parse].
type option struct {
	name  string
	parse func(f *Function, text string) error
	text  func(f *Function) string
}

func hexOption(name string, most uint64, field func(*Function) (get uint64, set func(uint64))) option {
	return option{name,
		func(f *Function, text string) error {
			n, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(text), "0x"), 16, 32)
			if err != nil || n > most {
				return fmt.Errorf("%.20q is not a hexadecimal number up to %#x", text, most)
			}
			_, set := field(f)
			set(n)
			return nil
		},
		func(f *Function) string {
			n, _ := field(f)
			return fmt.Sprintf("%#x", n)
		}}
}

func id(name string, of func(*Function) *uint16) option {
	return hexOption(name, 0xffff, func(f *Function) (uint64, func(uint64)) {
		p := of(f)
		return uint64(*p), func(n uint64) { *p = uint16(n) }
	})
}

// options lists the options of [Parse].
var options = []option{
	{"numa", func(f *Function, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < -1 || n > maxNUMA {
			return fmt.Errorf("%.20q is not a NUMA node from -1 to %d", text, maxNUMA)
		}
		f.NUMA = n
		return nil
	}, func(f *Function) string { return strconv.Itoa(f.NUMA) }},
	id("vendor", func(f *Function) *uint16 { return &f.Vendor }),
	id("device", func(f *Function) *uint16 { return &f.Device }),
	id("subvendor", func(f *Function) *uint16 { return &f.SubVendor }),
	id("subdevice", func(f *Function) *uint16 { return &f.SubDevice }),
	hexOption("class", 0xffffff, func(f *Function) (uint64, func(uint64)) {
		return uint64(f.Class), func(n uint64) { f.Class = uint32(n) }
	}),
	hexOption("revision", 0xff, func(f *Function) (uint64, func(uint64)) {
		return uint64(f.Revision), func(n uint64) { f.Revision = uint8(n) }
	}),
	{"driver", func(f *Function, text string) error {
		odd := func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
		}
		if text == "" || len(text) > maxDriverName || strings.ContainsFunc(text, odd) {
			return fmt.Errorf("%.40q is not the name of a driver: use up to %d letters, digits, \"_\" or \"-\"", text,
				maxDriverName)
		}
		f.Driver = text
		return nil
	}, func(f *Function) string { return f.Driver }},
	{"gen", func(f *Function, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n >= len(speeds) {
			return fmt.Errorf("%.20q is not a generation of PCI Express from 1 to %d", text, len(speeds)-1)
		}
		f.Speed = n
		return nil
	}, func(f *Function) string { return strconv.Itoa(f.Speed) }},
	{"width", func(f *Function, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || !slices.Contains([]int{1, 2, 4, 8, 16, 32}, n) {
			return fmt.Errorf("%.20q is not a width: use 1, 2, 4, 8, 16 or 32", text)
		}
		f.Width = n
		return nil
	}, func(f *Function) string { return strconv.Itoa(f.Width) }},
}

// OptionNames returns the names of the options of [Parse].
func OptionNames() (list []string) {
	for _, o := range options {
		list = append(list, o.name)
	}
	return list
}

// maxText limits the length of the text form in bytes.
const maxText = 512

// Parse parses a function: its address or "auto", and then options, each as ",NAME=VALUE". Omitted options have
// defaults. driver is the default name of the driver. With "auto" the address is zero; see [Function.Place]. Errors
// wrap EINVAL.
func Parse(text, driver string) (f Function, auto bool, err error) {
	fail := func(format string, args ...any) (Function, bool, error) {
		return Function{}, false, fmt.Errorf("pci: %w: %w", fmt.Errorf(format, args...), syscall.EINVAL)
	}
	if len(text) > maxText {
		return fail("the description has %d bytes, the limit is %d", len(text), maxText)
	}
	f = Function{NUMA: -1, Vendor: defaultVendor, Device: defaultDevice, Class: defaultClass, Driver: driver,
		Speed: defaultSpeed, Width: defaultWidth}
	where, rest, _ := strings.Cut(text, ",")
	if auto = where == "" || where == "auto"; !auto {
		if f.Address, err = ParseAddress(where); err != nil {
			return Function{}, false, fmt.Errorf("pci: %w", err)
		}
	}
	given := map[string]bool{}
	for rest != "" {
		var field string
		field, rest, _ = strings.Cut(rest, ",")
		name, value, _ := strings.Cut(field, "=")
		i := slices.IndexFunc(options, func(o option) bool { return o.name == name })
		if i < 0 {
			return fail("there is no option %.20q; use %s", name, strings.Join(OptionNames(), ", "))
		}
		if given[name] {
			return fail("option %s is given twice", name)
		}
		given[name] = true
		if err := options[i].parse(&f, value); err != nil {
			return fail("%s: %w", name, err)
		}
	}
	if !given["subvendor"] {
		f.SubVendor = f.Vendor
	}
	if !given["subdevice"] {
		f.SubDevice = f.Device
	}
	return f, auto, nil
}

// String formats the function in a form that [Parse] accepts.
func (f Function) String() string {
	w := f.Address.String()
	for _, o := range options {
		w += "," + o.name + "=" + o.text(&f)
	}
	return w
}

// Place assigns the first free address for an automatic function, depending on its NUMA node: bus 81 to 8f for no node
// or node 0, 91 to 9f for node 1, and so on. Place returns ENOSPC if taken returns true for all addresses.
func (f *Function) Place(taken func(Address) bool) error {
	const (
		firstRoot = 8
		roots     = 16 - firstRoot
	)
	node := max(f.NUMA, 0)
	for bus := 1; bus < busesPerRoot; bus++ {
		a := Address{
			Domain: uint16(node / roots), Bus: uint8((firstRoot+node%roots)*busesPerRoot + bus),
		}
		if !taken(a) {
			f.Address = a
			return nil
		}
	}
	return fmt.Errorf("pci: no address is free for NUMA node %d; give one with pci=ADDRESS: %w", f.NUMA, syscall.ENOSPC)
}
