// Package service gives package verbs access to the devices of a running service (`verbena serve`, or one started by
// `verbena run`), over its socket. It is for Go programs that are not started by `verbena run`.
//
// Queues and the buffers of [verbs.Device.Alloc] and [verbs.PD.Alloc] are memory that the program shares with the
// service. Posting and polling make no system call while the service is awake, and a message is copied directly between
// two buffers. For memory of [verbs.PD.RegSlice] the program gives the service access to its own memory; the service
// then needs a system call for each access.
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

// Service is a service with devices that programs can open.
type Service struct{ loc ctl.Location }

// At returns the service that listens on a socket. "" stands for $VERBENA_SOCKET or, without that, for this user's own,
// whose directory is created. It does not connect.
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

// AtLocation returns the service at a location. It does not connect.
func AtLocation(loc ctl.Location) *Service { return &Service{loc} }

// Devices returns the working devices, by name. It returns an error if no service runs, or if the service is not
// trusted, because a service can observe its programs. It may sleep.
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
			Open: func() (transport.Transport, error) { return open(s.loc, d.Name) },
		}))
	}
	slices.SortFunc(list, func(a, b verbs.DeviceInfo) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Open opens a device by name; "" stands for the first one. It returns verbs.ErrNoDevice if there is none. It may
// sleep.
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
