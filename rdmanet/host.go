package rdmanet

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"verbena/verbs"
	"verbena/verbs/cm"
)

// Host provides devices and a connection manager. Both remain open while connections or listeners use them. After the
// removal of a device, the next connection searches for the device again. A Dialer or Listener can thus continue with
// the device when it returns.
//
// The zero Host represents the machine, or the Verbena service under which the program runs. A Host for the devices of
// this process, which belong to a stack of package verbs/embed, is
//
//	rdmanet.Host{
//		Devices: func() ([]verbs.DeviceInfo, error) { return stack.Devices(), nil },
//		Manager: func() (*cm.Manager, error) { return stack.ConnectionManager(nil) },
//	}
type Host struct {
	// Devices lists the devices. nil means verbs.Devices.
	Devices func() ([]verbs.DeviceInfo, error)
	// Manager opens the connection manager, and the Host closes it. nil means cm.Open.
	Manager func() (*cm.Manager, error)

	//verbena:program those of this program who open devices
	mu      sync.Mutex
	devices []*sharedDevice
	cm      *sharedManager // nil: not open
}

// defaultHost is the Host for a Config without a Host.
var defaultHost Host

type sharedDevice struct {
	dev   *verbs.Device
	guid  uint64
	first bool // the device was the first one in the list
	users int
}

type sharedManager struct {
	m     *cm.Manager
	users int
}

// acquireDevice returns the device with a node GUID, or the first device if guid is 0. The returned function releases
// the device.
func (h *Host) acquireDevice(guid uint64) (*verbs.Device, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.devices = slices.DeleteFunc(h.devices, func(o *sharedDevice) bool {
		_, err := o.dev.Query()
		return err != nil // the device has been removed, and its users close it
	})
	for _, o := range h.devices {
		if guid == 0 && o.first || guid != 0 && o.guid == guid {
			return o.dev, h.addDeviceUser(o), nil
		}
	}
	list := verbs.Devices
	if h.Devices != nil {
		list = h.Devices
	}
	infos, err := list()
	if err != nil {
		return nil, nil, err
	}
	for n, i := range infos {
		d, err := i.Open()
		if err != nil {
			if guid == 0 {
				return nil, nil, err
			}
			continue
		}
		a, err := d.Query()
		if err == nil && (guid == 0 || a.NodeGUID == guid) {
			o := &sharedDevice{dev: d, guid: a.NodeGUID, first: n == 0}
			h.devices = append(h.devices, o)
			return d, h.addDeviceUser(o), nil
		}
		_ = d.Close()
		if guid == 0 {
			return nil, nil, err
		}
	}
	if guid != 0 {
		return nil, nil, fmt.Errorf("%w with node GUID %016x", verbs.ErrNoDevice, guid)
	}
	return nil, nil, fmt.Errorf("%w: no RDMA device was found; run the program with `verbena run` to provide one",
		verbs.ErrNoDevice)
}

// addDeviceUser adds a user of o, and returns a function that removes this user. The lock must be held.
func (h *Host) addDeviceUser(o *sharedDevice) func() {
	o.users++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if o.users--; o.users == 0 {
			h.devices = slices.DeleteFunc(h.devices, func(x *sharedDevice) bool { return x == o })
			_ = o.dev.Close()
		}
	})
}

// acquireManager returns the connection manager. The returned function releases the manager.
func (h *Host) acquireManager() (*cm.Manager, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.cm
	if o == nil {
		open := cm.Open
		if h.Manager != nil {
			open = h.Manager
		}
		m, err := open()
		if err != nil {
			return nil, nil, err
		}
		o = &sharedManager{m: m}
		h.cm = o
	}
	o.users++
	return o.m, sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if o.users--; o.users == 0 {
			if h.cm == o {
				h.cm = nil
			}
			_ = o.m.Close()
		}
	}), nil
}

// forgetManager makes the next user reopen the connection manager if err means that m is unusable.
func (h *Host) forgetManager(m *cm.Manager, err error) {
	// ENODEV is not fatal, because a device may be added later
	if !errors.Is(err, verbs.ErrClosed) && !errors.Is(err, syscall.EIO) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cm != nil && h.cm.m == m {
		h.cm = nil
	}
}

// isDeviceGone reports whether err means that the device, or its file, is unusable.
func isDeviceGone(err error) bool {
	return errors.Is(err, verbs.ErrClosed) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)
}
