package nldev

import (
	"errors"
	"strings"
	"syscall"
)

// Admin changes the devices, for a program with CAP_NET_ADMIN. Answer calls the methods of Admin on the caller's
// goroutine and waits for them. For an error of Admin, the program receives the syscall.Errno that errors.As finds
// in the error, or EINVAL.
type Admin interface {
	// AddLink adds a device on a network interface, for RDMA_NLDEV_CMD_NEWLINK, "rdma link add". name has 1 to 63
	// bytes without '%'. linkType ("rxe") and netdev have up to 15 bytes. nldev.c and the drivers return EINVAL for
	// an unknown type, ENODEV for an unknown interface, and EEXIST for a name or an interface that already has a
	// device.
	AddLink(name, linkType, netdev string) error
	// DeleteLink removes a device, for RDMA_NLDEV_CMD_DELLINK, "rdma link delete". The device existed when the
	// request arrived. nldev.c returns EINVAL for a device that is not removable.
	DeleteLink(name string) error
}

// errnoOfAdminError returns the errno for the program from an error of Admin.
func errnoOfAdminError(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno > 0 && errno < 4096 {
		return errno
	}
	return syscall.EINVAL
}

// newLink mirrors nldev_newlink.
func (q *request) newLink() syscall.Errno {
	if !q.parseAttributes(true, attrDevName, attrLinkType, attrNdevName) {
		return syscall.EINVAL
	}
	name := q.tb.getText(attrDevName, nameSize)
	if name == "" || strings.Contains(name, "%") {
		return syscall.EINVAL
	}
	q.loaded = false
	return errnoOfAdminError(q.admin.AddLink(name, q.tb.getText(attrLinkType, netdevSize), q.tb.getText(attrNdevName,
		netdevSize)))
}

// deleteLink mirrors nldev_dellink.
func (q *request) deleteLink() syscall.Errno {
	dev := q.parseDevice()
	if dev == nil {
		return syscall.EINVAL
	}
	q.loaded = false
	return errnoOfAdminError(q.admin.DeleteLink(dev.Name))
}

// parseDevice strictly parses a request that names a device. It returns nil if the request names none or if the
// device does not exist.
func (q *request) parseDevice(need ...int) *Device {
	if !q.parseAttributes(true, attrDevIndex) || !q.tb.hasAll(need...) {
		return nil
	}
	return q.requestedDevice()
}

// setDevice mirrors nldev_set_doit for devices that cannot be changed. It accepts the current value, and returns
// EOPNOTSUPP for any other value.
func (q *request) setDevice() syscall.Errno {
	dev := q.parseDevice()
	if dev == nil {
		return syscall.EINVAL
	}
	switch {
	case q.tb.hasAll(attrDevName):
		return q.rename(dev, q.tb.getText(attrDevName, nameSize))
	case q.tb.hasAll(attrNetNSFD):
		return syscall.EOPNOTSUPP
	case q.tb.hasAll(attrDevDIM):
		return checkFlagUnchanged(q.tb.getU8(attrDevDIM), dev.DIM)
	}
	return 0
}

// rename mirrors ib_device_rename, which always fails here.
func (q *request) rename(dev *Device, name string) syscall.Errno {
	if name == "" {
		return syscall.EINVAL
	}
	if name == dev.Name {
		return 0
	}
	for i := range q.devices {
		if q.devices[i].Name == name {
			return syscall.EEXIST
		}
	}
	return syscall.EOPNOTSUPP
}

// checkFlagUnchanged returns the errno of setting a boolean that cannot be changed. is is the current value.
func checkFlagUnchanged(v uint8, is bool) syscall.Errno {
	switch {
	case v > 1:
		return syscall.EINVAL
	case (v == 1) != is:
		return syscall.EOPNOTSUPP
	}
	return 0
}

// newDevice mirrors nldev_newdev for devices that cannot have sub-devices.
func (q *request) newDevice() syscall.Errno {
	if q.parseDevice(attrDevName, attrDevType) == nil {
		return syscall.EINVAL
	}
	return syscall.EOPNOTSUPP
}

// deleteDevice mirrors nldev_deldev for devices that are not sub-devices.
func (q *request) deleteDevice() syscall.Errno {
	if q.parseDevice() == nil {
		return syscall.EINVAL
	}
	return syscall.EOPNOTSUPP
}
