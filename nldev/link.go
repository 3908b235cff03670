package nldev

import "syscall"

// handle appends the attributes that identify the device. Mirrors fill_nldev_handle.
func (d *datagram) handle(dev *Device) {
	d.u32(attrDevIndex, dev.Index)
	d.text(attrDevName, dev.Name)
}

// device appends the attributes of a device. Mirrors fill_dev_info.
func (d *datagram) device(dev *Device) {
	d.handle(dev)
	d.u32(attrPortIndex, uint32(len(dev.Ports)))
	d.u64(attrCapFlags, dev.CapFlags)
	if dev.FWVer != "" {
		d.text(attrFWVersion, dev.FWVer)
	}
	d.u64(attrNodeGUID, dev.NodeGUID)
	d.u64(attrSysImageGUID, dev.SysImageGUID)
	d.u8(attrDevNodeType, dev.NodeType)
	d.flag(attrDevDIM, dev.DIM)
	d.flag(attrNameAssignType, dev.NameByUser)
	if dev.Protocol != "" {
		d.text(attrDevProtocol, dev.Protocol)
	}
}

// port appends the attributes of a port that exists. Mirrors fill_port_info.
func (d *datagram) port(dev *Device, port uint32) {
	p := &dev.Ports[port-1]
	d.handle(dev)
	d.u32(attrPortIndex, port)
	if dev.Protocol == "ib" {
		d.u64(attrCapFlags, p.CapFlags)
		d.u64(attrSubnetPrefix, p.SubnetPrefix)
		d.u32(attrLID, p.LID)
		d.u32(attrSMLID, p.SMLID)
		d.u8(attrLMC, p.LMC)
	}
	d.u8(attrPortState, p.State)
	d.u8(attrPortPhysState, p.PhysState)
	if p.NetdevName != "" {
		d.u32(attrNdevIndex, p.NetdevIndex)
		d.text(attrNdevName, p.NetdevName)
	}
}

// get mirrors nldev_get_doit.
func (q *request) get() syscall.Errno {
	if !q.parse(false, attrDevIndex) {
		return syscall.EINVAL
	}
	dev := q.device()
	if dev == nil {
		return syscall.EINVAL
	}
	return q.reply(cmdGet, func(d *datagram) syscall.Errno {
		d.device(dev)
		return 0
	})
}

// dumpDevices mirrors nldev_get_dumpit, which ignores all attributes.
func (q *request) dumpDevices(d *dump) syscall.Errno {
	devices := q.list()
	for i := range devices {
		if errno := d.message(func(g *datagram) { g.device(&devices[i]) }); errno != 0 {
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
		d.port(dev, port)
		return 0
	})
}

// dumpPorts mirrors nldev_port_get_dumpit.
func (q *request) dumpPorts(d *dump) syscall.Errno {
	if !q.parse(false, attrDevIndex) {
		return syscall.EINVAL
	}
	dev := q.device()
	if dev == nil {
		return syscall.EINVAL
	}
	for i := range dev.Ports {
		if errno := d.message(func(g *datagram) { g.port(dev, uint32(i)+1) }); errno != 0 {
			return errno
		}
	}
	return 0
}

// parsePort parses a request that names a device and a port. The error is EINVAL if the device or the port is
// absent or unknown.
func (q *request) parsePort(strict bool) (dev *Device, port uint32, errno syscall.Errno) {
	if !q.parse(strict, attrDevIndex, attrPortIndex) {
		return nil, 0, syscall.EINVAL
	}
	dev, port = q.device(), q.tb.u32(attrPortIndex)
	if dev == nil || !dev.validPort(port) {
		return nil, 0, syscall.EINVAL
	}
	return dev, port, 0
}
