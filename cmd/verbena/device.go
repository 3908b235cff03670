package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"verbena/internal/ctl"
	"verbena/internal/fault"
	"verbena/verbs"
	"verbena/verbs/embed"
	"verbena/verbs/service"
)

// deviceSelectionFlags select the RDMA device that a command opens for itself.
type deviceSelectionFlags struct {
	Dev      string     `short:"d" help:"Device to use; default: the first." placeholder:"DEV" complete:"device"`
	Direct   bool       `name:"service" help:"Use a device of the running service, over its socket, even if this process sees other devices; the default if it sees none."`
	Embedded bool       `help:"Create a software device in this process, and run both ends on it."`
	Addr     netip.Addr `help:"Create a software device in this process, with this address of the host, whose UDP port 4791 must be free." placeholder:"IP" complete:"none"`
	Wire     bool       `help:"With --embedded: send packets instead of copying messages within the process."`
}

// openDevice opens the selected device. The errors of openDevice begin with command and name the remedy.
func (f *deviceSelectionFlags) openDevice(c *cli, command string) (dev *verbs.Device, done func(), err error) {
	if f.Embedded || f.Addr.IsValid() {
		if f.Direct {
			return nil, nil, fmt.Errorf("%s: --embedded and --addr create a device in this process: omit them or --service",
				command)
		}
		s, err := embed.NewSoftware(embed.Software{Addr: f.Addr, Wire: f.Wire, Name: f.Dev})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", command, err)
		}
		if dev, err = s.Open(""); err != nil {
			s.Close()
			return nil, nil, fmt.Errorf("%s: %w", command, err)
		}
		return dev, func() { dev.Close(); s.Close() }, nil
	}
	if f.Wire {
		return nil, nil, fmt.Errorf("%s: --wire needs --embedded; for a service use `verbena serve --wire`", command)
	}
	list, err := findDevices(c, command, f.Dev, f.Direct)
	if err != nil {
		return nil, nil, err
	}
	if dev, err = list[0].Open(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", command, err)
	}
	return dev, func() { dev.Close() }, nil
}

// findDevices lists the devices that this process sees. If this process sees none, or if direct is true,
// findDevices lists the devices of the running service. A nil error implies at least one device. A name that is not
// empty restricts the list to the device with that name.
func findDevices(c *cli, command, name string, direct bool) (list []verbs.DeviceInfo, err error) {
	if !direct {
		if list, err = verbs.Devices(); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
	}
	if len(list) == 0 {
		loc, err := c.serviceLocation()
		if err == nil {
			list, err = service.AtLocation(loc).Devices()
		}
		switch {
		case errors.Is(err, ctl.ErrNotRunning) && !direct:
			return nil, fmt.Errorf("%s: this process sees no RDMA device, and no service runs at %s: run it with a device by `verbena run -- verbena %[1]s`, "+
				"start a service by `verbena serve --daemon`, or use --embedded for a device in this process", command, loc.Socket)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", command, err)
		case len(list) == 0:
			return nil, fmt.Errorf("%s: the service at %s has no device; create one by `verbena link add`", command, loc.Socket)
		}
	}
	if name == "" {
		return list, nil
	}
	names := make([]string, len(list))
	for i, d := range list {
		if d.Name == name {
			return list[i : i+1], nil
		}
		names[i] = d.Name
	}
	return nil, fmt.Errorf("%s: no device is named %q; the devices are: %s", command, name, strings.Join(names, ", "))
}

// byteSize is a number of bytes, such as 4096, 64K or 1M.
type byteSize int

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *byteSize) UnmarshalText(b []byte) error {
	v, err := fault.ParseSize(string(b))
	if err != nil || v >= 1<<31 {
		return fmt.Errorf("%q is not a number of bytes below 2G: write 4096, 64K or 1M", b)
	}
	*s = byteSize(v)
	return nil
}
