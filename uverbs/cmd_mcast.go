package uverbs

import (
	"fmt"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/internal/quota"
	"verbena/uapi"
)

// membership identifies a multicast group in which a queue pair is a member. (struct ib_uverbs_mcast_entry)
type membership struct {
	gid ib.GID
	lid uint16
}

// memberships holds the groups of one queue pair. The zero value is empty.
type memberships struct {
	mu     sync.Mutex
	groups map[membership]struct{}
}

// cmdAttachMcast adds a datagram queue pair to a group. cmdAttachMcast succeeds if the queue pair is already a member.
// (ib_uverbs_attach_mcast)
func cmdAttachMcast(c *call) error {
	req, err := decodeRequest[uapi.AttachMcast](c)
	if err != nil {
		return err
	}
	c.noteQP(req.QPHandle)
	qp, err := lookup[*qpObject](c.f, req.QPHandle)
	if err != nil {
		return err
	}
	defer qp.releaseUse()
	return qp.res.groups.attach(qp.res.QP, c.f.user, membership{req.GID, req.MLID})
}

// cmdDetachMcast removes a queue pair from a group. cmdDetachMcast returns EINVAL if the queue pair is not a member.
// (ib_uverbs_detach_mcast)
func cmdDetachMcast(c *call) error {
	req, err := decodeRequest[uapi.DetachMcast](c)
	if err != nil {
		return err
	}
	c.noteQP(req.QPHandle)
	qp, err := lookup[*qpObject](c.f, req.QPHandle)
	if err != nil {
		return err
	}
	defer qp.releaseUse()
	return qp.res.groups.detach(qp.res.QP, c.f.user, membership{req.GID, req.MLID})
}

func (m *memberships) attach(qp *ib.QP, user *quota.User, g membership) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.groups[g]; ok {
		return nil
	}
	if err := user.Charge(quota.Multicast, 1); err != nil {
		return err
	}
	if err := qp.AttachMcast(g.gid, g.lid); err != nil {
		user.Release(quota.Multicast, 1)
		return err
	}
	if m.groups == nil {
		m.groups = map[membership]struct{}{}
	}
	m.groups[g] = struct{}{}
	return nil
}

func (m *memberships) detach(qp *ib.QP, user *quota.User, g membership) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.groups[g]; !ok {
		return fmt.Errorf("queue pair %d is not in group %v: %w", qp.Num(), g.gid, syscall.EINVAL)
	}
	if err := qp.DetachMcast(g.gid, g.lid); err != nil {
		return err
	}
	delete(m.groups, g)
	user.Release(quota.Multicast, 1)
	return nil
}

// leaveAll removes a queue pair from all groups before the queue pair is destroyed. (ib_uverbs_detach_umcast)
func (m *memberships) leaveAll(qp *ib.QP, user *quota.User) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for g := range m.groups {
		_ = qp.DetachMcast(g.gid, g.lid) // after a failure the destruction fails too, and reports the error
		delete(m.groups, g)
		user.Release(quota.Multicast, 1)
	}
}
