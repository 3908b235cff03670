package ib

import (
	"fmt"
	"syscall"
)

// AttachMcast adds the datagram queue pair to a multicast group. A queue pair may be a member of several groups. The
// queue pair must leave all groups before it is destroyed. AttachMcast returns EOPNOTSUPP if the driver lacks the
// method. AttachMcast may sleep. (ib_attach_mcast)
func (qp *QP) AttachMcast(gid GID, lid uint16) error {
	defer qp.enterSleeping("QP.AttachMcast").leave()
	m, err := qp.mcastDriverQP(gid)
	if err == nil {
		err = qp.dev.checkActive()
	}
	if err == nil {
		err = qp.addUse(qp.dev)
	}
	if err == nil {
		if err = m.AttachMcast(gid, lid); err != nil {
			qp.dropUse()
		}
	}
	if err != nil {
		return fmt.Errorf("attach qp %d on %s to group %v: %w", qp.num, qp.dev.name, gid, err)
	}
	return nil
}

// DetachMcast removes the queue pair from a multicast group. DetachMcast may sleep. (ib_detach_mcast)
func (qp *QP) DetachMcast(gid GID, lid uint16) error {
	defer qp.enterSleeping("QP.DetachMcast").leave()
	m, err := qp.mcastDriverQP(gid)
	if err == nil {
		if err = m.DetachMcast(gid, lid); err == nil {
			qp.dropUse()
		}
	}
	if err != nil {
		return fmt.Errorf("detach qp %d on %s from group %v: %w", qp.num, qp.dev.name, gid, err)
	}
	return nil
}

func (qp *QP) mcastDriverQP(gid GID) (McastQP, error) {
	m, ok := As[McastQP](qp.drv)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	if qp.init.Type != QPTypeUD {
		return nil, fmt.Errorf("a %v queue pair cannot join multicast groups: %w", qp.init.Type, syscall.EINVAL)
	}
	if !gid.Addr().IsMulticast() {
		return nil, fmt.Errorf("not a multicast address: %w", syscall.EINVAL)
	}
	return m, nil
}
