package ucma

import (
	"fmt"
	"syscall"

	"verbena/uapi/ucm"
)

// The following constants are the events that a program may write. Programs use the first one for themselves, librdmacm
// the second one. (RDMA_CM_EVENT_USER, RDMA_CM_EVENT_INTERNAL)
const (
	eventUser     = 18
	eventInternal = 19
)

// maxUserEvents limits the unread events of an ID to which its program writes events.
const maxUserEvents = 64

// writeCMEvent queues an event of the program for the program itself. (ucma_write_cm_event)
func (k *commandCall) writeCMEvent() error {
	cmd := decodeCommand[ucm.WriteCMEvent](k)
	if cmd.Event != eventUser && cmd.Event != eventInternal {
		return fmt.Errorf("event %d cannot be written: %w", cmd.Event, syscall.EINVAL)
	}
	s := k.f.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := k.f.lookupID(cmd.ID)
	if err != nil {
		return err
	}
	if c.unread >= maxUserEvents {
		return fmt.Errorf("%d events of the ID are unread: %w", c.unread, syscall.ENOMEM)
	}
	x := &unreadEvent{ctx: c, resp: ucm.EventResp{UID: c.uid, ID: c.id, Event: cmd.Event, Status: cmd.Status}}
	const arg = 8 // size of the argument in bytes
	copy(x.resp.Param[:arg], cmd.Param[:arg])
	s.enqueueEvent(c.file, x)
	return nil
}
