// Package service gives package verbs access to the devices of a running service over its socket. The service was
// started by `verbena serve` or `verbena run`. The package is for Go programs that are not started by `verbena run`.
//
// Queues and the buffers of [verbs.Device.Alloc] and [verbs.PD.Alloc] are memory that the program shares with the
// service. Posts and polls make no system call while the service is awake. A message is copied directly between two
// buffers. For memory of [verbs.PD.RegSlice], the program gives the service access to its own memory. The service then
// needs a system call for each access.
//
// When the service ends, waiting calls return, outstanding requests complete with a flush error, and all later calls
// fail.
package service

import (
	"cmp"
	"fmt"
	"slices"

	"verbena/internal/ctl"
	"verbena/uapi"
	"verbena/verbs"
	"verbena/verbs/internal/transport"
)

// Service represents a service. Programs can open its devices.
type Service struct{ loc ctl.Location }

// At returns the service that listens on a socket. "" means $VERBENA_SOCKET or, if this is not set, the user's own
// socket. At creates the directory of the user's own socket. At does not connect to the service.
func At(socket string) (*Service, error) {
	if socket != "" {
		return &Service{ctl.Location{Socket: socket}}, nil
	}
	loc, err := ctl.DefaultLocation()
	if err != nil {
		return nil, fmt.Errorf("verbs: find the service: %w", err)
	}
	return &Service{loc}, nil
}

// AtLocation returns the service at a location. AtLocation does not connect to the service.
func AtLocation(loc ctl.Location) *Service { return &Service{loc} }

// Devices returns the working devices, sorted by name. Devices returns an error if no service is running. Devices also
// returns an error if the service is not trusted, because a service can observe its programs. Devices may sleep.
func (s *Service) Devices() ([]verbs.DeviceInfo, error) {
	c, err := ctl.Dial(s.loc)
	if err != nil {
		return nil, fmt.Errorf("verbs: list devices: %w", err)
	}
	defer c.Close()
	r, err := c.Do(&ctl.Request{Op: ctl.OpDevShow})
	if err != nil {
		return nil, fmt.Errorf("verbs: list devices: %w", err)
	}
	var list []verbs.DeviceInfo
	for _, d := range r.Devs {
		if d.State == "unplugged" {
			continue
		}
		list = append(list, verbs.NewDeviceInfo(verbs.Entry{
			Name: d.Name, Path: s.loc.Socket, Driver: uapi.DriverID(d.Driver), ABI: d.ABI,
			Open: func() (transport.Transport, error) { return openFile(s.loc, d.Name) },
		}))
	}
	slices.SortFunc(list, func(a, b verbs.DeviceInfo) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Open opens a device by name. "" means the first device. Open returns verbs.ErrNoDevice if the device does not exist.
// Open may sleep.
func (s *Service) Open(name string) (*verbs.Device, error) {
	list, err := s.Devices()
	if err != nil {
		return nil, err
	}
	for _, i := range list {
		if name == "" || i.Name == name {
			return i.Open()
		}
	}
	return nil, fmt.Errorf("%w: %q of the service at %s", verbs.ErrNoDevice, name, s.loc.Socket)
}
