package ib

import (
	"fmt"
	"syscall"
)

// AttachMcast has the datagram queue pair receive what is sent to a multicast group. It may be in several, and must
// leave all before it is destroyed. It may sleep. EOPNOTSUPP from a driver without. (ib_attach_mcast)
func (qp *QP) AttachMcast(gid GID, lid uint16) error {
	defer qp.sleeps("QP.AttachMcast").leave()
	m, err := qp.mcast(gid)
	if err == nil {
		err = qp.dev.usable()
	}
	if err == nil {
		err = qp.get(qp.dev)
	}
	if err == nil {
		if err = m.AttachMcast(gid, lid); err != nil {
			qp.put()
		}
	}
	if err != nil {
		return fmt.Errorf("attach qp %d on %s to group %v: %w", qp.num, qp.dev.name, gid, err)
	}
	return nil
}

// DetachMcast ends what AttachMcast began. It may sleep. (ib_detach_mcast)
func (qp *QP) DetachMcast(gid GID, lid uint16) error {
	defer qp.sleeps("QP.DetachMcast").leave()
	m, err := qp.mcast(gid)
	if err == nil {
		if err = m.DetachMcast(gid, lid); err == nil {
			qp.put()
		}
	}
	if err != nil {
		return fmt.Errorf("detach qp %d on %s from group %v: %w", qp.num, qp.dev.name, gid, err)
	}
	return nil
}

func (qp *QP) mcast(gid GID) (McastQP, error) {
	m, ok := As[McastQP](qp.drv)
	if !ok {
		return nil, syscall.EOPNOTSUPP
	}
	if qp.init.Type != QPTypeUD {
		return nil, fmt.Errorf("%v queue pair: %w", qp.init.Type, syscall.EINVAL)
	}
	if !gid.Addr().IsMulticast() {
		return nil, fmt.Errorf("no multicast address: %w", syscall.EINVAL)
	}
	return m, nil
}
