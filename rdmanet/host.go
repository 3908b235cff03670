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

// Host is where devices and a connection manager are. They are open while they are in use; a device that has gone is
// looked for again by the next connection, so that a Dialer, or a Listener, goes on with the one that comes back.
//
// The zero Host is the machine, or the Verbena service under which the program runs. One for devices of this process
// is, for a stack of package verbs/embed,
//
//	rdmanet.Host{
//		Devices: func() ([]verbs.DeviceInfo, error) { return stack.Devices(), nil },
//		Manager: func() (*cm.Manager, error) { return stack.ConnectionManager(nil) },
//	}
type Host struct {
	// Devices lists the devices; nil: verbs.Devices.
	Devices func() ([]verbs.DeviceInfo, error)
	// Manager opens the connection manager, which the Host closes; nil: cm.Open.
	Manager func() (*cm.Manager, error)

	//verbena:program those of this program who open devices
	mu      sync.Mutex
	devices []*openDevice
	cm      *openManager // nil: none
}

// machine is the Host of a Config that has none.
var machine Host

type openDevice struct {
	dev   *verbs.Device
	guid  uint64
	first bool // of the list
	users int
}

type openManager struct {
	m     *cm.Manager
	users int
}

// device returns the device with a node GUID, or the first, for 0, and how to release it.
func (h *Host) device(guid uint64) (*verbs.Device, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.devices = slices.DeleteFunc(h.devices, func(o *openDevice) bool {
		_, err := o.dev.Query()
		return err != nil // it has gone; its users close it
	})
	for _, o := range h.devices {
		if guid == 0 && o.first || guid != 0 && o.guid == guid {
			return o.dev, h.use(o), nil
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
			o := &openDevice{dev: d, guid: a.NodeGUID, first: n == 0}
			h.devices = append(h.devices, o)
			return d, h.use(o), nil
		}
		_ = d.Close()
		if guid == 0 {
			return nil, nil, err
		}
	}
	if guid != 0 {
		return nil, nil, fmt.Errorf("%w with node GUID %016x", verbs.ErrNoDevice, guid)
	}
	return nil, nil, fmt.Errorf("%w: no RDMA device is known here; `verbena run` gives a program one", verbs.ErrNoDevice)
}

// use notes a user, and returns what ends that. The lock is held.
func (h *Host) use(o *openDevice) func() {
	o.users++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if o.users--; o.users == 0 {
			h.devices = slices.DeleteFunc(h.devices, func(x *openDevice) bool { return x == o })
			_ = o.dev.Close()
		}
	})
}

// manager returns the connection manager, and how to release it.
func (h *Host) manager() (*cm.Manager, func(), error) {
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
		o = &openManager{m: m}
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

// forget makes the next user open the connection manager anew, if an error says that this one can do no more.
func (h *Host) forget(m *cm.Manager, err error) {
	if !errors.Is(err, verbs.ErrClosed) && !errors.Is(err, syscall.EIO) { // ENODEV: a device may come
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cm != nil && h.cm.m == m {
		h.cm = nil
	}
}

// deviceGone reports whether an error of a call is that its device, or the file of that, is no more.
func deviceGone(err error) bool {
	return errors.Is(err, verbs.ErrClosed) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)
}
