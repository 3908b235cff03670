package ucma

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"

	ibslot "verbena/ib/slot"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/uapi"
	"verbena/uapi/ucm"
)

// newResolvedID creates an ID and resolves its route.
func (p *testProgram) newResolvedID(to string) uint32 {
	p.t.Helper()
	id := p.createID(msg.PortSpaceTCP, 5)
	p.must(issueCommand(p, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: id, DstSize: sizeofInet,
		DstAddr: sockaddrOf(netip.MustParseAddrPort(to))}, 0))
	p.nextEvent()
	p.must(issueCommand(p, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id}, 0))
	p.nextEvent()
	return id
}

// newListenerWithRequest returns a listener of p, and the ID of an unread request of q.
func newListenerWithRequest(s *Server, p, q *testProgram) (l, r uint32) {
	l = p.createID(msg.PortSpaceTCP, 6)
	p.must(p.bindID(l, "10.0.0.1:7001"))
	p.must(issueCommand(p, ucm.CmdListen, ucm.Listen{ID: l}, 0))
	id := q.newResolvedID("10.0.0.1:7001")
	q.must(issueCommand(q, ucm.CmdConnect, ucm.Connect{ID: id, ConnParam: ucm.ConnParam{QPNum: 1, Valid: 1}}, 0))
	synctest.Wait()
	return l, s.next
}

// TestDestroyedUnreadRequestLeavesNoState checks that a request that its program destroys before it reads the event
// leaves no state.
func TestDestroyedUnreadRequestLeavesNoState(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, p, q *testProgram) {
		_, r := newListenerWithRequest(s, p, q)
		p.destroyID(r)
		if n := len(p.files[0].events); n > 0 || p.ready {
			t.Errorf("remaining events: got %d with ready %v, want 0 and false", n, p.ready)
		}
	})
}

// TestMigratedRequestStaysInItsFile checks that a request that was moved before its listener stays in its file, and in
// one table.
func TestMigratedRequestStaysInItsFile(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, p, q *testProgram) {
		p.files = append(p.files, s.Open(Config{}), s.Open(Config{}))
		l, r := newListenerWithRequest(s, p, q)
		for i, id := range []uint32{r, l} {
			m := ucm.MigrateID{Response: responseAt, ID: id}
			p.must(p.issueRawCommand(p.files[1+i], ucm.CmdMigrateID, uapi.AppendTo(nil, &m), 4))
		}
		if a, b := len(p.files[1].ids), len(p.files[2].ids); a != 1 || b != 1 || s.ids[r].file != p.files[1] {
			t.Errorf("IDs of the two files: got %d and %d, want the request in one and the listener in the other", a, b)
		}
	})
}

// TestUnreadEventsAreLimited checks that the number of events of an ID that fails repeatedly is limited.
func TestUnreadEventsAreLimited(t *testing.T) {
	withPrograms(t, func(t *testing.T, _ *Server, slot *ibslot.Slot, p, _ *testProgram) {
		id := p.createID(msg.PortSpaceTCP, 5)
		p.must(p.bindID(id, "0.0.0.0:0"))
		var err error
		n := 0
		to := ucm.ResolveAddr{ID: id, DstSize: sizeofInet, DstAddr: sockaddrOf(netip.MustParseAddrPort("10.0.0.1:1"))}
		if err := slot.Unplug(); err != nil { // no address can be resolved
			t.Fatal(err)
		}
		for n = 0; n < 10*maxUnreadEvents && err == nil; n++ {
			err = issueCommand(p, ucm.CmdResolveAddr, to, 0)
			synctest.Wait()
		}
		n--
		if !errors.Is(err, syscall.ENOMEM) || n != maxUnreadEvents {
			t.Errorf("resolution after %d unread events: got %v, want ENOMEM", n, err)
		}
		for range n {
			p.nextEvent()
		}
		if err = issueCommand(p, ucm.CmdResolveAddr, to, 0); errors.Is(err, syscall.ENOMEM) {
			t.Errorf("resolution after the events were read: got %v, want no ENOMEM", err)
		}
	})
}

// TestWrittenEventIsDelivered tests that a program reads the events that it writes, with their status and argument. The
// number of unread events is limited, and other events are refused.
func TestWrittenEventIsDelivered(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, slot *ibslot.Slot, p, q *testProgram) {
		id := p.createID(msg.PortSpaceTCP, 5)
		write := func(by *testProgram, id, event uint32, arg uint64) error {
			cmd := ucm.WriteCMEvent{ID: id, Event: event, Status: 7}
			binary.NativeEndian.PutUint64(cmd.Param[:], arg)
			return issueCommand(by, ucm.CmdWriteCMEvent, cmd, 0)
		}
		for _, event := range []uint32{eventUser, eventInternal} {
			p.must(write(p, id, event, 1<<63|5))
			e := p.nextEvent()
			if got := binary.NativeEndian.Uint64(e.Param[:]); e.Event != event || e.ID != id || e.UID != 5 || e.Status != 7 ||
				got != 1<<63|5 {
				t.Errorf("event %d: got %d of ID %d and UID %d, status %d and argument %#x", event, e.Event, e.ID, e.UID, e.Status,
					got)
			}
		}
		for _, c := range []struct {
			name string
			err  error
			want syscall.Errno
		}{
			{"another event", write(p, id, uint32(rdmacm.Established), 0), syscall.EINVAL},
			{"an unknown event", write(p, id, 1<<32-1, 0), syscall.EINVAL},
			{"no such ID", write(p, 99, eventUser, 0), syscall.ENOENT},
			{"the ID of another program", write(q, id, eventUser, 0), syscall.EINVAL},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
			}
		}
		for range maxUserEvents {
			p.must(write(p, id, eventUser, 0))
		}
		if err := write(p, id, eventUser, 0); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("event %d without a read: got %v, want ENOMEM", maxUserEvents+1, err)
		}
		p.nextEvent()
		p.must(write(p, id, eventUser, 0))
		if n := p.destroyID(id); n != 3 {
			t.Errorf("reported events: got %d, want 3", n)
		}
		if n := len(p.files[0].events); n > 0 {
			t.Errorf("events after the end of the ID: got %d, want 0", n)
		}
	})
}

// TestServiceResolutionIsRefused tests that a service cannot be resolved on Ethernet.
func TestServiceResolutionIsRefused(t *testing.T) {
	withPrograms(t, func(t *testing.T, _ *Server, _ *ibslot.Slot, p, _ *testProgram) {
		id := p.createID(msg.PortSpaceTCP, 5)
		resolve := func() error {
			return issueCommand(p, ucm.CmdResolveIBService, ucm.ResolveIBService{ID: id, Flags: 1}, 0)
		}
		if err := resolve(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("without an address: got %v, want EINVAL", err)
		}
		p.must(issueCommand(p, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: id, DstSize: sizeofInet,
			DstAddr: sockaddrOf(netip.MustParseAddrPort("10.0.0.1:1"))}, 0))
		p.nextEvent()
		if err := resolve(); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("with an address: got %v, want EOPNOTSUPP", err)
		}
	})
}

// TestLeftGroupEventIsNotRequeued checks that the event of a membership that was left meanwhile is not queued again.
func TestLeftGroupEventIsNotRequeued(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, p, _ *testProgram) {
		id := p.createID(msg.PortSpaceUDP, 5)
		p.must(p.bindID(id, "10.0.0.1:0"))
		p.must(issueCommand(p, ucm.CmdJoinMcast, ucm.JoinMcast{
			Response: responseAt, UID: 77, ID: id, AddrSize: sizeofInet,
			Addr: sockaddrOf(netip.MustParseAddrPort("239.1.2.3:0")),
		}, 4))
		g := decodeResponse[ucm.CreateIDResp](p).ID
		p.nextEvent()
		p.must(issueCommand(p, ucm.CmdLeaveMcast, ucm.DestroyID{Response: responseAt, ID: g}, 4))
		p.taken.Requeue()
		if n := len(p.files[0].events); n > 0 {
			t.Errorf("remaining events: got %d, want 0", n)
		}
	})
}

// TestForeignQueuePairIsRefused checks that a program cannot connect or accept with another user's queue pair.
func TestForeignQueuePairIsRefused(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, p, q *testProgram) {
		_, r := newListenerWithRequest(s, p, q)
		p.nextEvent()
		foreign := ucm.ConnParam{QPNum: foreignQPNum, Valid: 1}
		if err := issueCommand(p, ucm.CmdAccept, ucm.Accept{ID: r, ConnParam: foreign}, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("accept: got %v, want EINVAL", err)
		}
		p.must(issueCommand(p, ucm.CmdAccept, ucm.Accept{ID: r, ConnParam: ucm.ConnParam{QPNum: 3, Valid: 1}}, 0))
		id := q.newResolvedID("10.0.0.1:7001")
		for _, qpn := range []uint32{foreignQPNum, 1<<24 | foreignQPNum} {
			foreign.QPNum = qpn
			if err := issueCommand(q, ucm.CmdConnect, ucm.Connect{ID: id, ConnParam: foreign}, 0); !errors.Is(err,
				syscall.EINVAL) {
				t.Errorf("connect by %#x: got %v, want EINVAL", qpn, err)
			}
		}
	})
}
