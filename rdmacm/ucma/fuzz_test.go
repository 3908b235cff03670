package ucma

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ibslot "verbena/ib/slot"
	"verbena/internal/testutil"
	"verbena/rdmacm/msg"
	"verbena/uapi"
	"verbena/uapi/ucm"
)

// fuzzInput is the input of the fuzz target, read byte by byte. After its end it yields zeros.
type fuzzInput []byte

func (s *fuzzInput) nextByte() (b byte) {
	if len(*s) > 0 {
		b, *s = (*s)[0], (*s)[1:]
	}
	return b
}

func pickElement[T any](s *fuzzInput, list ...T) T { return list[int(s.nextByte())%len(list)] }

// nextID returns an ID or a membership of any file, or an unknown number.
func (s *fuzzInput) nextID(srv *Server) uint32 {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	list := append(slices.Sorted(maps.Keys(srv.ids)), slices.Sorted(maps.Keys(srv.groups))...)
	return pickElement(s, append(list, 0, 1000)...)
}

// nextAddr returns an address, and the size for the command.
func (s *fuzzInput) nextAddr() (ucm.Sockaddr, uint16) {
	port := pickElement(s, uint16(0), 7001, 7002, 80)
	a := sockaddrOf(netip.AddrPortFrom(netip.MustParseAddr(pickElement(s, "10.0.0.1", "0.0.0.0", "127.0.0.1", "::", "::1",
		"239.1.2.3", "10.0.0.9", "fe80::1")), port))
	size := uint16(sizeofInet)
	switch pickElement(s, 0, 0, 0, 1, 2, 3) {
	case 1:
		binary.NativeEndian.PutUint16(a[:], afIB)
		size = sizeofIB
	case 2:
		size = uint16(s.nextByte())
	default:
		if binary.NativeEndian.Uint16(a[:]) != 2 {
			size = sizeofInet6
		}
	}
	return a, size
}

// nextCommand returns the next command, with mostly valid bytes.
func (s *fuzzInput) nextCommand(srv *Server) (ucm.Command, []byte) {
	cmd := ucm.Command(s.nextByte()) % (ucm.NumCommands + 1)
	response := pickElement(s, uint64(responseAt), responseAt, responseAt, 0)
	id := s.nextID(srv)
	p := ucm.ConnParam{QPNum: pickElement(s, uint32(1), 2, foreignQPNum), PrivateDataLen: s.nextByte(),
		Valid: pickElement(s, uint8(1), 1,
			0),
		RetryCount: s.nextByte(), ResponderResources: 1}
	enc := func(v []byte) (ucm.Command, []byte) { return cmd, v }
	switch cmd {
	case ucm.CmdCreateID:
		return enc(uapi.AppendTo(nil, &ucm.CreateID{
			UID: uint64(s.nextByte()), Response: response, PS: uint16(pickElement(s, msg.PortSpaceTCP, msg.PortSpaceUDP,
				msg.PortSpaceIB,
				msg.PortSpaceIPoIB)), QPType: pickElement(s, uint8(2), 3, 4, 9),
		}))
	case ucm.CmdDestroyID, ucm.CmdLeaveMcast:
		return enc(uapi.AppendTo(nil, &ucm.DestroyID{Response: response, ID: id}))
	case ucm.CmdBindIP:
		a, _ := s.nextAddr()
		return enc(uapi.AppendTo(nil, &ucm.BindIP{Addr: ucm.SockaddrIn6(a[:28]), ID: id}))
	case ucm.CmdBind:
		a, n := s.nextAddr()
		return enc(uapi.AppendTo(nil, &ucm.Bind{ID: id, AddrSize: n, Addr: a}))
	case ucm.CmdResolveIP:
		a, _ := s.nextAddr()
		return enc(uapi.AppendTo(nil, &ucm.ResolveIP{DstAddr: ucm.SockaddrIn6(a[:28]), ID: id}))
	case ucm.CmdResolveAddr:
		a, n := s.nextAddr()
		b, m := s.nextAddr()
		return enc(uapi.AppendTo(nil, &ucm.ResolveAddr{ID: id, SrcSize: pickElement(s, 0, m), SrcAddr: b, DstSize: n,
			DstAddr: a}))
	case ucm.CmdResolveRoute, ucm.CmdDisconnect:
		return enc(uapi.AppendTo(nil, &ucm.ResolveRoute{ID: id}))
	case ucm.CmdQuery, ucm.CmdQueryRoute:
		return enc(uapi.AppendTo(nil, &ucm.Query{Response: response, ID: id, Option: uint32(s.nextByte() & 3)}))
	case ucm.CmdConnect:
		return enc(uapi.AppendTo(nil, &ucm.Connect{ConnParam: p, ID: id}))
	case ucm.CmdListen:
		return enc(uapi.AppendTo(nil, &ucm.Listen{ID: id, Backlog: uint32(s.nextByte())}))
	case ucm.CmdAccept:
		return enc(uapi.AppendTo(nil, &ucm.Accept{UID: uint64(s.nextByte()), ConnParam: p, ID: id}))
	case ucm.CmdReject:
		return enc(uapi.AppendTo(nil, &ucm.Reject{ID: id, PrivateDataLen: s.nextByte(), Reason: pickElement(s, uint8(0), 28,
			35,
			1)}))
	case ucm.CmdInitQPAttr:
		return enc(uapi.AppendTo(nil, &ucm.InitQPAttr{Response: response, ID: id, QPState: uint32(s.nextByte() & 7)}))
	case ucm.CmdGetEvent:
		return enc(uapi.AppendTo(nil, &ucm.GetEvent{Response: response}))
	case ucm.CmdSetOption:
		return enc(uapi.AppendTo(nil, &ucm.SetOption{OptVal: responseAt, ID: id, Level: uint32(s.nextByte() & 1),
			OptName: uint32(s.nextByte() & 7), OptLen: pickElement(s, uint32(1), 4, 72)}))
	case ucm.CmdNotify:
		return enc(uapi.AppendTo(nil, &ucm.Notify{ID: id, Event: pickElement(s, uint32(uapi.EventCommEst), 0)}))
	case ucm.CmdJoinIPMcast:
		a, _ := s.nextAddr()
		return enc(uapi.AppendTo(nil, &ucm.JoinIPMcast{Response: response, UID: 9, Addr: ucm.SockaddrIn6(a[:28]), ID: id}))
	case ucm.CmdJoinMcast:
		a, n := s.nextAddr()
		return enc(uapi.AppendTo(nil, &ucm.JoinMcast{Response: response, UID: 9, ID: id, AddrSize: n, Addr: a}))
	case ucm.CmdResolveIBService:
		return enc(uapi.AppendTo(nil, &ucm.ResolveIBService{ID: id, Flags: uint32(s.nextByte())}))
	case ucm.CmdWriteCMEvent:
		return enc(uapi.AppendTo(nil, &ucm.WriteCMEvent{ID: id, Event: uint32(s.nextByte() & 31)}))
	case ucm.CmdMigrateID:
		return enc(uapi.AppendTo(nil, &ucm.MigrateID{Response: response, ID: id, FD: uint32(pickElement(s, 0, 1, 2, 3))}))
	}
	return cmd, make([]byte, s.nextByte())
}

// FuzzSession runs two users with three files, one of which both share. For any commands, the server must not
// crash, a file must not reach objects of another file, the number of unread events must stay limited, and no state
// may remain at the end.
func FuzzSession(f *testing.F) {
	for c := range byte(ucm.NumCommands) {
		f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 20, 0, 0, 0, 0, 0, 1, 0, 0, 0, c, 0, 0, 0, 0, 0, 1})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<12 {
			return
		}
		withFuzzPrograms(t, false, func(t *testing.T, s *Server, _ *ibslot.Slot, p, q *testProgram) {
			in := fuzzInput(b)
			shared := s.Open(Config{User: p.files[0].cfg.User})
			p.files = append(p.files, shared)
			q.files = append(q.files, shared, p.files[0]) // a file to migrate from, passed as with SCM_RIGHTS
			for range 200 {
				if len(in) == 0 {
					break
				}
				how := in.nextByte()
				who := []*testProgram{p, q}[how&1]
				file := who.files[how>>1&1]
				cmd, body := in.nextCommand(s)
				if how&4 != 0 { // changed bytes
					for range in.nextByte() >> 6 {
						if at := int(in.nextByte()); at < len(body) {
							body[at] ^= in.nextByte()
						}
					}
				}
				foreign := false
				if cmd < ucm.NumCommands && idOffsets[cmd] != 0 && cmd != ucm.CmdMigrateID && len(body) >= idOffsets[cmd]+4 {
					id := binary.NativeEndian.Uint32(body[idOffsets[cmd]:])
					s.mu.Lock()
					c, g := s.ids[id], s.groups[id]
					foreign = c != nil && c.file != file || g != nil && g.ctx.file != file
					s.mu.Unlock()
				}
				out := 400
				if how&8 != 0 {
					out = int(in.nextByte())
				}
				if err := who.issueRawCommand(file, cmd, body, out); err == nil && foreign {
					t.Errorf("%v with an ID of another file: got success, want an error", cmd)
				}
				switch how >> 4 & 7 {
				case 1:
					synctest.Wait()
				case 2:
					testutil.AdvanceTime(time.Millisecond)
				case 3:
					testutil.AdvanceTime(time.Second)
				case 4:
					if who.taken != nil {
						who.taken.Requeue()
						who.taken = nil
					}
				case 5:
					if how&8 != 0 {
						file.Close()
					}
				}
				s.mu.Lock()
				for _, f := range []*File{p.files[0], q.files[0], shared} {
					if most := (len(f.ids)+1)*maxUserEvents + len(s.groups) + MaxBacklog; len(f.events) > most {
						t.Errorf("pending events: got %d, want at most %d", len(f.events), most)
					}
					unread := 0
					for c := range f.ids {
						if unread += c.unread; c.file != f || s.ids[c.id] != c {
							t.Errorf("ID %d: got the table of another file, want its own", c.id)
						}
					}
					if unread != len(f.events) {
						t.Errorf("unread events: got a count of %d, want %d", unread, len(f.events))
					}
				}
				s.mu.Unlock()
			}
		})
	})
}
