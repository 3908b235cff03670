package nldev

import "syscall"

// A fillResourceFunc appends the attributes of one resource for a command. Mirrors res_fill_func_t.
type fillResourceFunc func(r resource, d *datagram, v requestView) syscall.Errno

// newResourceCommand returns the command that reports resources of one kind. Mirrors RES_GET_FUNCS.
func newResourceCommand(k *resourceKind, fill fillResourceFunc) command {
	return command{
		do:   func(q *request) syscall.Errno { return q.getResource(k, fill) },
		dump: func(q *request, d *dumpAnswer) syscall.Errno { return q.dumpResources(d, k, fill) },
	}
}

// refuseRawForm mirrors fill_res_qp_raw_entry and similar functions, for drivers without a raw form.
func refuseRawForm(r resource, _ *datagram, v requestView) syscall.Errno {
	if qp, ok := r.(*QP); ok && v.port != 0 && v.port != qp.Port {
		return syscall.EAGAIN
	}
	return syscall.EINVAL
}

// fillMRStat mirrors fill_stat_mr_entry.
func fillMRStat(r resource, d *datagram, _ requestView) syscall.Errno {
	d.putU32(attrResMRN, r.id())
	return 0
}

// parseQuery parses a request for resources. need lists the required attributes besides the index of the device.
// The returned port is 0 if the request has none. The error is EINVAL.
func (q *request) parseQuery(need ...int) (dev *Device, v requestView, errno syscall.Errno) {
	if !q.parseAttributes(false, attrDevIndex) || !q.tb.hasAll(need...) {
		return nil, requestView{}, syscall.EINVAL
	}
	if dev = q.requestedDevice(); dev == nil {
		return nil, requestView{}, syscall.EINVAL
	}
	v.admin = q.admin != nil
	if q.tb.hasAll(attrPortIndex) {
		if v.port = q.tb.getU32(attrPortIndex); !dev.validPort(v.port) {
			return nil, requestView{}, syscall.EINVAL
		}
	}
	return dev, v, 0
}

// getResource reports one resource. A kind with objects that belong to a port requires the port. The other kinds
// must not have a port. Mirrors res_get_common_doit.
func (q *request) getResource(k *resourceKind, fill fillResourceFunc) syscall.Errno {
	dev, v, errno := q.parseQuery(int(k.id))
	if errno != 0 {
		return errno
	}
	if (v.port != 0) == k.perDevice {
		return syscall.EINVAL
	}
	r, ok := findResource(k.list(&dev.Resources), q.tb.getU32(int(k.id)))
	if !ok {
		return syscall.ENOENT
	}
	return q.reply(q.typ&commandMask, func(d *datagram) syscall.Errno {
		d.putHandle(dev)
		return fill(r, d, v)
	})
}

// dumpResources reports the resources of one kind. Each datagram has a message with a table of entries. A port in
// the request restricts the answer to the objects of that port. Mirrors res_get_common_dumpit.
func (q *request) dumpResources(d *dumpAnswer, k *resourceKind, fill fillResourceFunc) syscall.Errno {
	dev, v, errno := q.parseQuery()
	if errno != 0 {
		return errno
	}
	list := k.list(&dev.Resources)
	for len(list) > 0 {
		n, errno := d.fillResourceTable(dev, k, list, v, fill)
		if errno != 0 {
			d.cur.truncateTo(0)
			return errno
		}
		d.flushDatagram()
		list = list[n:]
	}
	return 0
}

// fillResourceTable fills the current, empty datagram with one message. It returns the number of resources of the list
// in the message, which is at least one. fillResourceTable returns EMSGSIZE if the first one does not fit.
func (d *dumpAnswer) fillResourceTable(dev *Device, k *resourceKind, list []resource, v requestView,
	fill fillResourceFunc) (int,
	syscall.Errno) {
	g := &d.cur
	at := d.beginDumpMessage()
	g.putHandle(dev)
	table := g.beginNest(k.table)
	if g.full {
		return 0, syscall.EMSGSIZE
	}
	n, result := 0, syscall.EMSGSIZE // until the first resource fits
	for n < len(list) {
		entry := g.beginNest(k.entry)
		errno := fill(list[n], g, v)
		if errno == 0 && g.full {
			g.truncateTo(entry)
			break
		}
		switch errno {
		case 0:
			g.endNest(entry)
		case syscall.EAGAIN:
			g.truncateTo(entry)
		default:
			return 0, errno
		}
		n++
		result = 0
	}
	g.endNest(table)
	g.endMessage(at)
	return n, result
}

// putSummary appends the number of resources of a device by kind. Mirrors fill_res_info.
func (d *datagram) putSummary(dev *Device) {
	d.putHandle(dev)
	table := d.beginNest(attrResSummary)
	for _, k := range summaryKinds {
		entry := d.beginNest(attrResSummaryEntry)
		d.putText(attrResSummaryEntryName, k.name)
		d.putU64(attrResSummaryEntryCurr, uint64(len(k.list(&dev.Resources))))
		d.endNest(entry)
	}
	d.endNest(table)
}

// getSummary mirrors nldev_res_get_doit.
func (q *request) getSummary() syscall.Errno {
	if !q.parseAttributes(false, attrDevIndex) {
		return syscall.EINVAL
	}
	dev := q.requestedDevice()
	if dev == nil {
		return syscall.EINVAL
	}
	return q.reply(cmdResGet, func(d *datagram) syscall.Errno {
		d.putSummary(dev)
		return 0
	})
}

// dumpSummaries mirrors nldev_res_get_dumpit, which ignores all attributes.
func (q *request) dumpSummaries(d *dumpAnswer) syscall.Errno {
	devices := q.sortedDevices()
	for i := range devices {
		if errno := d.addMessage(func(g *datagram) { g.putSummary(&devices[i]) }); errno != 0 {
			return errno
		}
	}
	return 0
}
