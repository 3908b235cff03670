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
	if slices.Contains(d.groups[gid], q) {
		return syscall.EINVAL
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
