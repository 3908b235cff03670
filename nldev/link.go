package nldev

import "syscall"

// putHandle appends the attributes that identify the device. Mirrors fill_nldev_handle.
func (d *datagram) putHandle(dev *Device) {
	d.putU32(attrDevIndex, dev.Index)
	d.putText(attrDevName, dev.Name)
}

// putDevice appends the attributes of a device. Mirrors fill_dev_info.
func (d *datagram) putDevice(dev *Device) {
	d.putHandle(dev)
	d.putU32(attrPortIndex, uint32(len(dev.Ports)))
	d.putU64(attrCapFlags, dev.CapFlags)
	if dev.FWVer != "" {
		d.putText(attrFWVersion, dev.FWVer)
	}
	d.putU64(attrNodeGUID, dev.NodeGUID)
	d.putU64(attrSysImageGUID, dev.SysImageGUID)
	d.putU8(attrDevNodeType, dev.NodeType)
	d.putFlag(attrDevDIM, dev.DIM)
	d.putFlag(attrNameAssignType, dev.NameByUser)
	if dev.Protocol != "" {
		d.putText(attrDevProtocol, dev.Protocol)
	}
}

// putPort appends the attributes of a port that exists. Mirrors fill_port_info.
func (d *datagram) putPort(dev *Device, port uint32) {
	p := &dev.Ports[port-1]
	d.putHandle(dev)
	d.putU32(attrPortIndex, port)
	if dev.Protocol == "ib" {
		d.putU64(attrCapFlags, p.CapFlags)
		d.putU64(attrSubnetPrefix, p.SubnetPrefix)
		d.putU32(attrLID, p.LID)
		d.putU32(attrSMLID, p.SMLID)
		d.putU8(attrLMC, p.LMC)
	}
	d.putU8(attrPortState, p.State)
	d.putU8(attrPortPhysState, p.PhysState)
	if p.NetdevName != "" {
		d.putU32(attrNdevIndex, p.NetdevIndex)
		d.putText(attrNdevName, p.NetdevName)
	}
}

// getDevice mirrors nldev_get_doit.
func (q *request) getDevice() syscall.Errno {
	if !q.parseAttributes(false, attrDevIndex) {
		return syscall.EINVAL
	}
	dev := q.requestedDevice()
	if dev == nil {
		return syscall.EINVAL
	}
	return q.reply(cmdGet, func(d *datagram) syscall.Errno {
		d.putDevice(dev)
		return 0
	})
}

// dumpDevices mirrors nldev_get_dumpit, which ignores all attributes.
func (q *request) dumpDevices(d *dumpAnswer) syscall.Errno {
	devices := q.sortedDevices()
	for i := range devices {
		if errno := d.addMessage(func(g *datagram) { g.putDevice(&devices[i]) }); errno != 0 {
			return errno
		}
	}
	return 0
}

// getPort mirrors nldev_port_get_doit, including the type of its answer, GET.
func (q *request) getPort() syscall.Errno {
	dev, port, errno := q.parsePort(false)
	if errno != 0 {
		return errno
	}
	return q.reply(cmdGet, func(d *datagram) syscall.Errno {
		d.putPort(dev, port)
		return 0
	})
}

// dumpPorts mirrors nldev_port_get_dumpit.
func (q *request) dumpPorts(d *dumpAnswer) syscall.Errno {
	if !q.parseAttributes(false, attrDevIndex) {
		return syscall.EINVAL
	}
	dev := q.requestedDevice()
	if dev == nil {
		return syscall.EINVAL
	}
	for i := range dev.Ports {
		if errno := d.addMessage(func(g *datagram) { g.putPort(dev, uint32(i)+1) }); errno != 0 {
			return errno
		}
	}
	return 0
}

// parsePort parses a request that names a device and a port. The error is EINVAL if the device or the port is
// absent or unknown.
func (q *request) parsePort(strict bool) (dev *Device, port uint32, errno syscall.Errno) {
	if !q.parseAttributes(strict, attrDevIndex, attrPortIndex) {
		return nil, 0, syscall.EINVAL
	}
	dev, port = q.requestedDevice(), q.tb.getU32(attrPortIndex)
	if dev == nil || !dev.validPort(port) {
		return nil, 0, syscall.EINVAL
	}
	return dev, port, 0
}
