package nldev

import (
	"maps"
	"slices"
	"syscall"
)

// getCounters depends on attribute STAT_RES. It reports the hardware counters of a port, the mode in which QPs are
// bound to counters, or a memory region's identifier. Mirrors nldev_stat_get_doit.
func (q *request) getCounters() syscall.Errno {
	if !q.parseAttributes(false, attrStatRes) {
		return q.getPortCounters() // returns EINVAL if an attribute is malformed
	}
	switch q.tb.getU32(attrStatRes) {
	case attrResQP:
		return q.getCounterMode()
	case attrResMR:
		return q.getResource(kindMR, fillMRStat)
	}
	return syscall.EINVAL
}

// getPortCounters mirrors stat_get_doit_default_counter.
func (q *request) getPortCounters() syscall.Errno {
	dev, port, errno := q.parsePort(false)
	if errno != 0 {
		return errno
	}
	counters := dev.counters(port)
	if counters == nil {
		return syscall.EINVAL
	}
	return q.reply(cmdStatGet, func(d *datagram) syscall.Errno {
		d.putHandle(dev)
		d.putU32(attrPortIndex, port)
		table := d.beginNest(attrStatHwcounters | attrFlagNested)
		for _, name := range slices.Sorted(maps.Keys(counters)) {
			entry := d.beginNest(attrStatHwcounterEntry | attrFlagNested)
			d.putText(attrStatHwcounterEntryName, name)
			d.putU64(attrStatHwcounterEntryValue, counters[name])
			d.endNest(entry)
		}
		d.endNest(table)
		return 0
	})
}

// getCounterMode mirrors stat_get_doit_qp. No counter is ever bound to a QP. Therefore the mode is none, and every
// counter identifier is unknown.
func (q *request) getCounterMode() syscall.Errno {
	if q.tb.hasAll(attrStatCounterID) {
		return q.getResource(kindCounter, resource.putAttrs)
	}
	if !q.tb.hasAll(attrStatMode) {
		return syscall.EINVAL
	}
	dev, port, errno := q.parsePort(false)
	if errno != 0 {
		return errno
	}
	return q.reply(cmdStatGet, func(d *datagram) syscall.Errno {
		d.putHandle(dev)
		d.putU32(attrPortIndex, port)
		d.putU32(attrStatMode, counterModeNone)
		return 0
	})
}

// dumpCounters mirrors nldev_stat_get_dumpit.
func (q *request) dumpCounters(d *dumpAnswer) syscall.Errno {
	if !q.parseAttributes(false, attrStatRes) {
		return syscall.EINVAL
	}
	switch q.tb.getU32(attrStatRes) {
	case attrResQP:
		return q.dumpResources(d, kindCounter, resource.putAttrs)
	case attrResMR:
		return q.dumpResources(d, kindMR, fillMRStat)
	}
	return syscall.EINVAL
}

// getCounterStatus reports the names of the counters of a port. getCounterStatus mirrors
// nldev_stat_get_counter_status_doit, for drivers without optional counters.
func (q *request) getCounterStatus() syscall.Errno {
	dev, port, errno := q.parsePort(false)
	if errno != 0 {
		return errno
	}
	counters := dev.counters(port)
	if counters == nil {
		return syscall.EINVAL
	}
	return q.reply(cmdStatStatus, func(d *datagram) syscall.Errno {
		d.putHandle(dev)
		d.putU32(attrPortIndex, port)
		table := d.beginNest(attrStatHwcounters | attrFlagNested)
		for i, name := range slices.Sorted(maps.Keys(counters)) {
			entry := d.beginNest(attrStatHwcounterEntry | attrFlagNested)
			d.putText(attrStatHwcounterEntryName, name)
			d.putU32(attrStatHwcounterIndex, uint32(i))
			d.endNest(entry)
		}
		d.endNest(table)
		return 0
	})
}

// setCounters binds QPs to counters, or enables optional counters. Both are unsupported. Binding returns
// EOPNOTSUPP, and enabling accepts only the empty set. Mirrors nldev_stat_set_doit.
func (q *request) setCounters() syscall.Errno {
	dev, port, errno := q.parsePort(true)
	if errno != 0 {
		return errno
	}
	if !q.tb.hasAll(attrStatMode) && !q.tb.hasAll(attrStatHwcounters) {
		return syscall.EINVAL
	}
	if q.tb.hasAll(attrStatMode) {
		return q.bindCounter()
	}
	if dev.counters(port) == nil || len(q.tb[attrStatHwcounters]) != 0 {
		return syscall.EINVAL
	}
	return q.reply(cmdStatSet, func(d *datagram) syscall.Errno {
		d.putHandle(dev)
		d.putU32(attrPortIndex, port)
		return 0
	})
}

// bindCounter mirrors nldev_stat_set_mode_doit.
func (q *request) bindCounter() syscall.Errno {
	if !q.tb.hasAll(attrStatRes) || q.tb.getU32(attrStatRes) != attrResQP {
		return syscall.EINVAL
	}
	if q.tb.getU32(attrStatMode) != counterModeAuto && !q.tb.hasAll(attrResLQPN) {
		return syscall.EINVAL
	}
	return syscall.EOPNOTSUPP
}

// deleteCounter unbinds a QP from its counter. Such a counter never exists. deleteCounter mirrors
// nldev_stat_del_doit and rdma_counter_unbind_qpn.
func (q *request) deleteCounter() syscall.Errno {
	dev, _, errno := q.parsePort(true)
	if errno != 0 {
		return errno
	}
	if !q.tb.hasAll(attrStatRes, attrStatCounterID, attrResLQPN) || q.tb.getU32(attrStatRes) != attrResQP {
		return syscall.EINVAL
	}
	if _, ok := findResource(kindQP.list(&dev.Resources), q.tb.getU32(attrResLQPN)); !ok {
		return syscall.ENOENT
	}
	return syscall.EINVAL
}
