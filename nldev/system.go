package nldev

import "syscall"

// The following constants are the state of the subsystem, which a program cannot change.
const (
	sharedNetns    = true  // every network namespace sees every device
	privilegedQKey = false // a program without CAP_NET_RAW cannot use a controlled Q_Key
	monitor        = false // notifications of added and removed devices are sent
	copyOnFork     = true  // a fork copies pinned pages, so libibverbs needs no madvise
)

// getSystem mirrors nldev_sys_get_doit. getSystem is the only command that reports the errno of a malformed
// attribute.
func (q *request) getSystem() syscall.Errno {
	if errno := q.tb.parse(q.msg[headerSize:], false); errno != 0 {
		return errno
	}
	return q.reply(cmdSysGet, func(d *datagram) syscall.Errno {
		d.putFlag(attrSysNetnsMode, sharedNetns)
		d.putFlag(attrSysPrivilegedQkeyMode, privilegedQKey)
		d.putFlag(attrSysMonitorMode, monitor)
		d.putFlag(attrSysCopyOnFork, copyOnFork)
		return 0
	})
}

// setSystem mirrors nldev_set_sys_set_doit.
func (q *request) setSystem() syscall.Errno {
	if !q.parseAttributes(true) {
		return syscall.EINVAL
	}
	switch {
	case q.tb.hasAll(attrSysNetnsMode):
		return checkFlagUnchanged(q.tb.getU8(attrSysNetnsMode), sharedNetns)
	case q.tb.hasAll(attrSysPrivilegedQkeyMode):
		return checkFlagUnchanged(q.tb.getU8(attrSysPrivilegedQkeyMode), privilegedQKey)
	}
	return syscall.EINVAL
}
