package loopback

import (
	"slices"
	"syscall"

	"verbena/ib"
)

// AttachMcast implements ib.McastQP.
func (q *QP) AttachMcast(gid ib.GID, lid uint16) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	members := d.groups[gid]
	switch {
	case slices.Contains(members, q):
		return syscall.EINVAL
	case len(members) == maxMcastMembers, members == nil && len(d.groups) == maxMcastGroups:
		return syscall.ENOMEM
	}
	d.groups[gid] = append(d.groups[gid], q)
	return nil
}

// DetachMcast implements ib.McastQP.
func (q *QP) DetachMcast(gid ib.GID, lid uint16) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.groups[gid], q)
	if i < 0 {
		return syscall.EINVAL
	}
	d.groups[gid] = slices.Delete(d.groups[gid], i, i+1)
	if len(d.groups[gid]) == 0 {
		delete(d.groups, gid)
	}
	return nil
}
