package engine

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/link"
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

// noQKey is the value of QP.qkey in RESET.
const noQKey = 1 << 32

// refuses returns the reason for which the queue pair drops a datagram, or accept, as far as another thread can tell.
// b has no ICRC. Such a datagram does not wake the queue pair: it may come from another user. For SRD there is no
// difference between a wrong Q_Key and a number without a queue pair, in the answer or its time: senders do not learn
// which numbers are in use.
func (qp *QP) refuses(b []byte) counter {
	op := roce.BTH(b).Opcode()
	s := op.Service()
	if s != roce.UD && s != roce.SRD || op.Flags()&roce.FlagResponse != 0 || !op.Known() || len(b) < op.HeaderLen() {
		return accept
	}
	switch key := qp.qkey.Load(); {
	case s == roce.SRD && qp.srd == nil && qp.dev.hasSRD():
		return cntDropService
	case s != qp.wire, s == roce.UD && (key == noQKey || roce.BTH(b).PKey() != roce.DefaultPKey):
		return accept
	case key != uint64(roce.DETH(b[roce.BTHLen:]).QKey()):
		return cntDropQKey
	}
	return accept
}

// refusesTrain returns the reason for which the queue pair drops all packets of a train, or accept.
func (qp *QP) refusesTrain(t *train) (why counter) {
	for i := range t.spans {
		b := t.span(i)
		if why = qp.refuses(b[:len(b)-link.ICRCLen]); why == accept {
			return accept
		}
	}
	return why
}

// countRefused counts datagrams for which refuses has returned a reason. Users see the counters of the device: those of
// SRD do not distinguish a wrong Q_Key and a missing queue pair.
func (d *Device) countRefused(b []byte, packets int, why counter) {
	if roce.BTH(b).Opcode().Service() == roce.SRD {
		why = cntDropNobody
	}
	d.counters.add(why, packets)
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
