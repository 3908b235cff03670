package engine

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/roce"
)

// The general services queue pair (GSI, number 1) is a datagram queue pair of a consumer in this process. Connection
// managers communicate through it. The port has at most one; its Q_Key is fixed and well known. Without a GSI queue
// pair, packets for number 1 are dropped. Subnet management (number 0) does not exist on RoCE.

// qkeyOf returns the Q_Key that the queue pair requires of received datagrams.
func qkeyOf(qp *QP) uint32 {
	if qp.typ == ib.QPTypeGSI {
		return roce.GSIQKey
	}
	return qp.attr.QKey
}

// checkGSI checks the attributes of a new GSI queue pair.
func checkGSI(d *Device, init *ib.DriverQPInit, u *ib.Udata) error {
	switch {
	case u != nil && u.Context != nil:
		return fmt.Errorf("the GSI queue pair is not for user processes: %w", syscall.EINVAL)
	case init.Port != 1:
		return fmt.Errorf("GSI queue pair of port %d: a device has port 1 only: %w", init.Port, syscall.EINVAL)
	case init.SRQ != nil:
		return fmt.Errorf("GSI queue pair with a shared receive queue: %w", syscall.EINVAL)
	}
	return nil
}

// number assigns a number, and a slot in the table, to a new queue pair. With fixed, the number of an unused slot does
// not depend on random numbers.
func number(d *Device, qp *QP, fixed bool) error {
	if qp.typ == ib.QPTypeGSI {
		if !d.qps.claim(roce.QPNGSI) {
			return fmt.Errorf("port 1 has a GSI queue pair already: %w", syscall.EBUSY)
		}
		qp.num, qp.attr.Port = roce.QPNGSI, 1
		return nil
	}
	slot, ok := d.qps.reserve()
	if !ok {
		return fmt.Errorf("%d queue pairs exist: %w", 1<<d.qpBits.slot-minQPSlot, syscall.ENOMEM)
	}
	seed := uint8(0)
	if !fixed {
		seed = uint8(d.random())
	}
	qp.num = d.qpBits.join(d.qpKeys.take(slot, seed), slot)
	return nil
}
