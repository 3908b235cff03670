package ucma

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"

	ibslot "verbena/ib/slot"
	"verbena/internal/quota"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/uapi"
	"verbena/uapi/ucm"
)

// TestMalformedCommandsAreRejected checks the rejection of invalid commands on a resolved ID. Only package ucma itself
// checks these commands.
func TestMalformedCommandsAreRejected(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		const gid, route = uint8(afIB), 400
		v4 := sockaddrOf(netip.MustParseAddrPort("10.0.0.1:5001"))
		group := sockaddrOf(netip.MustParseAddrPort("239.1.2.3:0"))
		ib := ucm.Sockaddr{0: gid}
		var v4Short, ibShort, odd ucm.SockaddrIn6
		copy(v4Short[:], v4[:])
		ibShort[0], odd[0] = gid, 1
		id := a.createID(msg.PortSpaceTCP, 1)
		a.must(issueCommand(a, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: id, DstSize: sizeofInet, DstAddr: v4}, 0))
		a.nextEvent()
		udp := a.createID(msg.PortSpaceUDP, 2)
		a.must(a.bindID(udp, "10.0.0.1:0"))
		fresh := a.createID(msg.PortSpaceTCP, 3)
		foreign := newProgram(t, NewServer(s.m), nil)
		defer foreign.files[0].Close()
		a.files = append(a.files, foreign.files[0])
		for _, c := range []struct {
			what string
			err  error
			want syscall.Errno
		}{
			{"no space for the answer to DESTROY_ID", issueCommand(a, ucm.CmdDestroyID, ucm.DestroyID{Response: responseAt,
				ID: fresh},
				3), syscall.ENOSPC},
			{"no space for the answer to LEAVE_MCAST", issueCommand(a, ucm.CmdLeaveMcast, ucm.DestroyID{Response: responseAt,
				ID: udp},
				3), syscall.ENOSPC},
			{"no space for the answer to JOIN_MCAST", issueCommand(a, ucm.CmdJoinMcast,
				ucm.JoinMcast{Response: responseAt, ID: udp, AddrSize: sizeofInet, Addr: group}, 3), syscall.ENOSPC},
			{"no space for the answer to MIGRATE_ID", issueCommand(a, ucm.CmdMigrateID, ucm.MigrateID{Response: responseAt,
				ID: fresh},
				3), syscall.ENOSPC},
			{"no space for the answer to QUERY_ROUTE", issueCommand(a, ucm.CmdQueryRoute, ucm.Query{Response: responseAt,
				ID: id},
				routeWithoutIndex-1), syscall.ENOSPC},
			{"no space for the answer to QUERY", issueCommand(a, ucm.CmdQuery,
				ucm.Query{Response: responseAt, ID: id, Option: ucm.QueryPath}, 7), syscall.ENOSPC},
			{"no space for the answer to INIT_QP_ATTR", issueCommand(a, ucm.CmdInitQPAttr,
				ucm.InitQPAttr{Response: responseAt, ID: id, QPState: 1}, uapi.SizeOf[ucm.QPAttr]()-1), syscall.ENOSPC},
			{"a state beyond the last", issueCommand(a, ucm.CmdInitQPAttr, ucm.InitQPAttr{Response: responseAt, ID: id,
				QPState: 7},
				144), syscall.EINVAL},
			{"bind to an InfiniBand address by BIND_IP", issueCommand(a, ucm.CmdBindIP, ucm.BindIP{ID: fresh, Addr: ibShort}, 0),
				syscall.EINVAL},
			{"bind to no address", issueCommand(a, ucm.CmdBindIP, ucm.BindIP{ID: fresh}, 0), syscall.EAFNOSUPPORT},
			{"resolve a source of an unknown family", issueCommand(a, ucm.CmdResolveIP,
				ucm.ResolveIP{ID: fresh, SrcAddr: odd, DstAddr: v4Short}, 0), syscall.EINVAL},
			{"resolve an InfiniBand source", issueCommand(a, ucm.CmdResolveIP,
				ucm.ResolveIP{ID: fresh, SrcAddr: ibShort, DstAddr: v4Short}, 0), syscall.EINVAL},
			{"resolve without a destination", issueCommand(a, ucm.CmdResolveIP, ucm.ResolveIP{ID: fresh}, 0), syscall.EINVAL},
			{"resolve with reserved bits", issueCommand(a, ucm.CmdResolveAddr,
				ucm.ResolveAddr{ID: fresh, DstSize: sizeofInet, DstAddr: v4, Reserved: 1}, 0), syscall.EINVAL},
			{"resolve a source of a wrong size", issueCommand(a, ucm.CmdResolveAddr,
				ucm.ResolveAddr{ID: fresh, SrcSize: 28, SrcAddr: v4, DstSize: sizeofInet, DstAddr: v4}, 0), syscall.EINVAL},
			{"resolve a destination of a wrong size", issueCommand(a, ucm.CmdResolveAddr,
				ucm.ResolveAddr{ID: fresh, DstSize: 28, DstAddr: v4}, 0), syscall.EINVAL},
			{"resolve an InfiniBand destination", issueCommand(a, ucm.CmdResolveAddr,
				ucm.ResolveAddr{ID: fresh, DstSize: uint16(parseSockaddr(ib[:]).size), DstAddr: ib}, 0), syscall.ENODEV},
			{"another event than IBV_EVENT_COMM_EST", issueCommand(a, ucm.CmdNotify, ucm.Notify{ID: id, Event: 1}, 0),
				syscall.EINVAL},
			{"no path", issueCommand(a, ucm.CmdSetOption, ucm.SetOption{ID: id, Level: ucm.OptionIB, OptName: ucm.OptionIBPath,
				OptVal: responseAt}, 0), syscall.EINVAL},
			{"half a path", issueCommand(a, ucm.CmdSetOption, ucm.SetOption{ID: id, Level: ucm.OptionIB,
				OptName: ucm.OptionIBPath,
				OptVal:  responseAt, OptLen: 36}, 0), syscall.EINVAL},
			{"join an address of a wrong size", issueCommand(a, ucm.CmdJoinMcast,
				ucm.JoinMcast{Response: responseAt, ID: udp, AddrSize: 28, Addr: group}, 4), syscall.EINVAL},
			{"join with unknown flags", issueCommand(a, ucm.CmdJoinMcast,
				ucm.JoinMcast{Response: responseAt, ID: udp, AddrSize: sizeofInet, JoinFlags: 2, Addr: group}, 4), syscall.EINVAL},
			{"join without an address", issueCommand(a, ucm.CmdJoinIPMcast, ucm.JoinIPMcast{Response: responseAt, ID: udp}, 4),
				syscall.EAFNOSUPPORT},
			{"migrate from another service's file", issueCommand(a, ucm.CmdMigrateID,
				ucm.MigrateID{Response: responseAt, ID: fresh, FD: 1}, 4), syscall.EINVAL},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: got %v, want %v", c.what, c.err, c.want)
			}
		}
		a.must(issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id}, 0))
		a.nextEvent()
		if err := issueCommand(a, ucm.CmdConnect, ucm.Connect{ID: id}, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("connect without parameters: got %v, want EINVAL", err)
		}
		a.destroyID(fresh) // exists after all failing commands
	})
}

// TestClosedFileCreatesNoID checks that no ID is created for a closed file, because such an ID would never be
// destroyed.
func TestClosedFileCreatesNoID(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		user := quota.New(quota.Limits{}).User(3)
		p := newProgram(t, s, user)
		p.files[0].Close()
		if err := issueCommand(p, ucm.CmdCreateID, ucm.CreateID{Response: responseAt, PS: 0x106}, 4); err == nil {
			t.Error("create an ID on a closed file: got success, want an error")
		}
		if n := user.Held(quota.CMIDs); n != 0 {
			t.Errorf("charged IDs: got %d, want 0", n)
		}
	})
}

// TestBacklogIsLimited checks the backlog of listeners, which net.rdma_ucm.max_backlog limits.
func TestBacklogIsLimited(t *testing.T) {
	for _, tt := range []struct {
		n    uint32
		want int
	}{{0, 1024}, {1, 1}, {1023, 1023}, {1024, 1024}, {1025, 1024}, {1 << 31, 1024}, {1<<32 - 1, 1024}} {
		if got := limitBacklog(tt.n); got != tt.want {
			t.Errorf("backlog(%d): got %d, want %d", tt.n, got, tt.want)
		}
	}
}

// TestNotifyAcceptsOnlyCommEst checks that IBV_EVENT_COMM_EST is the only event by which a program can establish a
// connection.
func TestNotifyAcceptsOnlyCommEst(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, p, q *testProgram) {
		_, r := newListenerWithRequest(s, p, q)
		p.nextEvent()
		p.must(issueCommand(p, ucm.CmdAccept, ucm.Accept{UID: 8, ID: r, ConnParam: ucm.ConnParam{QPNum: 3, Valid: 1}}, 0))
		for _, e := range []uapi.EventType{0, uapi.EventCommEst - 1, uapi.EventCommEst + 1} {
			err := issueCommand(p, ucm.CmdNotify, ucm.Notify{ID: r, Event: uint32(e)}, 0)
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("event %d: got %v, want EINVAL", e, err)
			}
			if synctest.Wait(); p.ready {
				t.Fatalf("event %d: got an established connection, want none", e)
			}
		}
		p.must(issueCommand(p, ucm.CmdNotify, ucm.Notify{ID: r, Event: uint32(uapi.EventCommEst)}, 0))
		if e := p.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.Established || e.UID != 8 {
			t.Errorf("event: got %+v, want Established of UID 8", e)
		}
	})
}

// tracedProgram is a program with a trace of its commands.
type tracedProgram struct {
	*testProgram
	request string
}

func (p *tracedProgram) TraceCM(request, _ string) { p.request = request }

// TestShortCommandsFailOrAreZeroPadded checks that truncated commands fail or have zeros at their end. The trace of a
// command must contain an ID only if the command does.
func TestShortCommandsFailOrAreZeroPadded(t *testing.T) {
	withPrograms(t, func(t *testing.T, _ *Server, _ *ibslot.Slot, a, _ *testProgram) {
		for cmd := range ucm.NumCommands {
			if commandFuncs[cmd] == nil || cmd == ucm.CmdCreateID || cmd == ucm.CmdGetEvent {
				continue
			}
			for _, in := range []int{0, idOffsets[cmd], idOffsets[cmd] + 3, idOffsets[cmd] + 4} {
				p := &tracedProgram{testProgram: a}
				h := ucm.Hdr{Cmd: cmd, In: uint16(in)}
				b := append(uapi.AppendTo(nil, &h), make([]byte, in)...)
				if in > idOffsets[cmd] {
					b[len(b)-in+idOffsets[cmd]] = 99
				}
				copy(a.mem.b, b)
				n, _, err := a.files[0].Write(p, commandAt, len(b))
				if n != 0 || err == nil {
					t.Errorf("%v of %d bytes: got %d and error %v, want an error", cmd, in, n, err)
				}
				want := fmt.Sprintf("%v{}", cmd)
				if in == idOffsets[cmd]+4 {
					want = fmt.Sprintf("%v{ID: 99}", cmd)
				}
				if p.request != want {
					t.Errorf("%v of %d bytes: trace: got %q, want %q", cmd, in, p.request, want)
				}
			}
		}
	})
}

// TestRejectionsAreReported checks the report of a request that a program rejects, destroys, or loses with its file.
func TestRejectionsAreReported(t *testing.T) {
	for _, c := range []struct {
		name   string
		act    func(b *testProgram, request uint32)
		want   rdmacm.RejectionCause
		ending bool
	}{
		{"rejected", func(b *testProgram, request uint32) {
			b.must(issueCommand(b, ucm.CmdReject, ucm.Reject{ID: request}, 0))
		}, rdmacm.RejectedByOwner, false},
		{"destroyed", func(b *testProgram, request uint32) { b.destroyID(request) }, rdmacm.RejectedByDestroy, false},
		{"file closed", func(b *testProgram, _ uint32) { b.files[0].Close() }, rdmacm.RejectedByDestroy, true},
	} {
		withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
			var got []Report
			s.OnReport(func(f Report) {
				if f.Rejection != nil || f.Event.Type.IsFailure() {
					got = append(got, f)
				}
			})
			l := b.createID(msg.PortSpaceTCP, 1)
			b.must(b.bindID(l, "0.0.0.0:7471"))
			b.must(issueCommand(b, ucm.CmdListen, ucm.Listen{ID: l, Backlog: 4}, 0))
			id := a.newResolvedID("10.0.0.1:7471")
			a.must(issueCommand(a, ucm.CmdConnect, ucm.Connect{ConnParam: ucm.ConnParam{QPNum: 7, Valid: 1}, ID: id}, 0))
			c.act(b, b.nextEvent().ID)
			a.nextEvent()
			if len(got) != 2 || got[0].Rejection == nil || got[0].Rejection.Cause != c.want || got[0].Ending != c.ending ||
				got[0].User != b.files[0].cfg.User.ID() || got[1].Rejection != nil || got[1].View.Src != got[0].Rejection.Peer {
				t.Errorf("%s: got %+v, want the rejection with cause %d, and then the failure of the other end", c.name, got, c.want)
			}
		})
	}
}
