package nldev

import "syscall"

// A Chardev is a character device file.
type Chardev struct {
	Name         string // file name without the directory, for instance "uverbs0"
	Major, Minor uint32 // at most 12 and 20 bits
	ABI          uint64 // revision of the file's interface
}

// deviceNumber returns the device number in the encoding of huge_encode_dev: minor bits 0 to 7, major, minor bits 8 to
// 19.
func (c Chardev) deviceNumber() uint64 {
	return uint64(c.Minor&0xff | c.Major<<8 | c.Minor&^uint32(0xff)<<12)
}

// getChardev mirrors nldev_get_chardev, ib_get_client_nl_info, ib_uverbs_get_nl_info and ucma_get_global_nl_info.
// There are two clients. "uverbs" has a file for each device, and "rdma_cm" has one file for all devices.
// getChardev returns EOPNOTSUPP if there is no file of the requested kind.
func (q *request) getChardev() syscall.Errno {
	if !q.parseAttributes(false, attrChardevType) {
		return syscall.EINVAL
	}
	client := q.tb.getText(attrChardevType, chardevTypeSize)
	var dev *Device
	hasPort := q.tb.hasAll(attrPortIndex)
	if q.tb.hasAll(attrDevIndex) {
		if dev = q.requestedDevice(); dev == nil {
			return syscall.EINVAL
		}
		if hasPort && !dev.validPort(q.tb.getU32(attrPortIndex)) {
			return syscall.EINVAL
		}
	} else if hasPort {
		return syscall.EINVAL
	}

	var file Chardev
	switch {
	case client == "uverbs" && dev != nil && dev.Uverbs.Name != "":
		if hasPort {
			return syscall.EINVAL
		}
		file = dev.Uverbs
	case client == "rdma_cm" && dev == nil:
		var ok bool
		if file, ok = q.src.ConnectionManager(); !ok {
			return syscall.EOPNOTSUPP
		}
	default:
		return syscall.EOPNOTSUPP
	}
	return q.reply(cmdGetChardev, func(d *datagram) syscall.Errno {
		if dev != nil {
			d.putU32(attrUverbsDriverID, dev.DriverID)
		}
		d.putU64(attrChardev, file.deviceNumber())
		d.putU64(attrChardevABI, file.ABI)
		d.putText(attrChardevName, file.Name)
		return 0
	})
}
