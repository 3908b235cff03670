package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"verbena/verbs"
	"verbena/verbs/embed"
)

// verbsFlags say which RDMA device a command uses by itself.
type verbsFlags struct {
	Dev      string     `short:"d" help:"Device to use; default: the first." placeholder:"DEV"`
	Embedded bool       `help:"Make a software device in this process, and run both ends on it."`
	Addr     netip.Addr `help:"Make a software device in this process, with this address of the host, where UDP port 4791 must be free." placeholder:"IP"`
	Wire     bool       `help:"With --embedded: send packets, rather than copy messages within the process."`
}

// openDevice opens the device. The command is for the error, which says how to get one.
func (f *verbsFlags) openDevice(command string) (dev *verbs.Device, done func(), err error) {
	if f.Embedded || f.Addr.IsValid() {
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
		return nil, nil, fmt.Errorf("%s: --wire is for --embedded; `verbena serve --wire` is the same for a service", command)
	}
	list, err := findDevices(command, f.Dev)
	if err != nil {
		return nil, nil, err
	}
	if dev, err = list[0].Open(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", command, err)
	}
	return dev, func() { dev.Close() }, nil
}

// findDevices lists the devices that this process sees, at least one; name, if not "", is that of the one to find.
func findDevices(command, name string) ([]verbs.DeviceInfo, error) {
	list, err := verbs.Devices()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: there is no RDMA device here; give it one of a service by `verbena run -- verbena %[1]s`, or one in its own process by --embedded", command)
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
	return nil, fmt.Errorf("%s: no device is called %q; there are: %s", command, name, strings.Join(names, ", "))
}

// byteSize is a number of bytes, such as 4096, 64K or 1M.
type byteSize int

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *byteSize) UnmarshalText(b []byte) error {
	text, shift := strings.ToUpper(string(b)), 0
	for i, unit := range []string{"K", "M", "G"} {
		if t, ok := strings.CutSuffix(text, unit); ok {
			text, shift = t, 10*(i+1)
			break
		}
	}
	v, err := strconv.ParseUint(text, 10, 31)
	if err == nil && v<<shift >= 1<<31 {
		err = errors.New("too many")
	}
	if err != nil {
		return fmt.Errorf("%q is not a number of bytes below 2G: write 4096, 64K or 1M", b)
	}
	*s = byteSize(v << shift)
	return nil
}
