package ucma

import (
	"fmt"
	"slices"
	"syscall"

	"verbena/internal/quota"
	"verbena/uapi"
	"verbena/uapi/ucm"
)

func (k *commandCall) joinIPMcast() error {
	cmd := decodeCommand[ucm.JoinIPMcast](k)
	return k.joinGroup(cmd.Response, cmd.UID, cmd.ID, parseSockaddr(cmd.Addr[:]))
}

func (k *commandCall) joinMcast() error {
	cmd := decodeCommand[ucm.JoinMcast](k)
	a := parseSockaddr(cmd.Addr[:])
	if int(cmd.AddrSize) != a.size || cmd.JoinFlags > 1 {
		return fmt.Errorf("address of %d bytes, flags %d: %w", cmd.AddrSize, cmd.JoinFlags, syscall.EINVAL)
	}
	return k.joinGroup(cmd.Response, cmd.UID, cmd.ID, a)
}

func (k *commandCall) joinGroup(response, uid uint64, id uint32, a programSockaddr) error {
	if k.out < uapi.SizeOf[ucm.CreateIDResp]() {
		return syscall.ENOSPC
	}
	if !a.ip.IsValid() {
		return errUnknownFamily
	}
	s := k.f.srv
	s.mu.Lock() // the event must be queued after the group has a number
	c, err := k.f.lookupID(id)
	var g *groupMembership
	if err == nil {
		err = c.user.Charge(quota.CMIDs, 1)
	}
	if err == nil {
		g = &groupMembership{uid: uid, ctx: c}
		if g.member, err = c.cm.Join(a.ip.Addr()); err != nil {
			c.user.Release(quota.CMIDs, 1)
		} else {
			g.id = s.unusedID()
			s.groups[g.id] = g
			c.groups = append(c.groups, g)
		}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := storeResponse(k, response, &ucm.CreateIDResp{ID: g.id}, 0); err != nil {
		s.leaveGroup(g)
		return err
	}
	return nil
}

// leaveGroup ends a membership, and returns the number of its events that the program has received.
func (s *Server) leaveGroup(g *groupMembership) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups[g.id] != g { // the group's ID was destroyed, or another thread has left the group
		return g.reported
	}
	delete(s.groups, g.id)
	g.left = true
	g.ctx.user.Release(quota.CMIDs, 1)
	is := func(o *groupMembership) bool { return o == g }
	g.ctx.groups = slices.DeleteFunc(g.ctx.groups, is)
	f := g.ctx.file
	f.events = slices.DeleteFunc(f.events, func(e *unreadEvent) bool {
		if e.group == g {
			e.ctx.unread--
		}
		return e.group == g
	})
	s.signalReady(f)
	g.member.Leave()
	return g.reported
}

func (k *commandCall) leaveMcast() error {
	cmd := decodeCommand[ucm.DestroyID](k)
	if k.out < uapi.SizeOf[ucm.DestroyIDResp]() {
		return syscall.ENOSPC
	}
	s := k.f.srv
	s.mu.Lock()
	g := s.groups[cmd.ID]
	var err error
	switch {
	case g == nil:
		err = syscall.ENOENT
	case g.ctx.file != k.f:
		err = syscall.EINVAL
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("membership %d: %w", cmd.ID, err)
	}
	return storeResponse(k, cmd.Response, &ucm.DestroyIDResp{EventsReported: s.leaveGroup(g)}, 0)
}
