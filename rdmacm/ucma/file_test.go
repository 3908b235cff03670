package ucma

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"syscall"
	"testing"
	"testing/synctest"

	"verbena/driver/rxe"
	"verbena/ib"
	"verbena/ib/check"
	ibslot "verbena/ib/slot"
	"verbena/internal/leaktest"
	"verbena/internal/quota"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/uapi"
	"verbena/uapi/ucm"
	"verbena/umem"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// programMemory is the memory of a program, with addresses from 0x1000.
type programMemory struct{ b []byte }

const memoryBase = 0x1000

func (m *programMemory) bytesAt(addr uint64, n int) ([]byte, error) {
	if addr < memoryBase || addr-memoryBase > uint64(len(m.b)) || uint64(n) > uint64(len(m.b))-(addr-memoryBase) {
		return nil, umem.ErrFault
	}
	return m.b[addr-memoryBase:][:n], nil
}

func (m *programMemory) Check(addr, length uint64, _ bool) error {
	_, err := m.bytesAt(addr, int(length))
	return err
}

func (m *programMemory) ReadV(dst [][]byte, addr uint64) error {
	for _, d := range dst {
		b, err := m.bytesAt(addr, len(d))
		if err != nil {
			return err
		}
		addr += uint64(copy(d, b))
	}
	return nil
}

func (m *programMemory) WriteV(src [][]byte, addr uint64) error {
	for _, s := range src {
		b, err := m.bytesAt(addr, len(s))
		if err != nil {
			return err
		}
		addr += uint64(copy(b, s))
	}
	return nil
}

// testProgram is a caller with files.
type testProgram struct {
	t     *testing.T
	mem   programMemory
	files []*File
	low   bool
	ready bool        // whether the first file is ready
	taken *TakenEvent // the last event taken
}

func (p *testProgram) Space() umem.Space { return &p.mem }

func (p *testProgram) CMFile(fd int) (*File, error) {
	if fd < 0 || fd >= len(p.files) {
		return nil, syscall.EINVAL
	}
	return p.files[fd], nil
}

func (p *testProgram) MayConnect(_ *ib.Device, num uint32) bool { return num != foreignQPNum }

// foreignQPNum is a queue pair of another user.
const foreignQPNum = 0xf00

func (p *testProgram) MayBindLowPorts() bool { return p.low }

// The following constants are the addresses of a command and of its response.
const (
	commandAt  = memoryBase
	responseAt = memoryBase + 2048
)

func newProgram(t *testing.T, s *Server, u *quota.User) *testProgram {
	p := &testProgram{t: t, mem: programMemory{make([]byte, 4096)}}
	p.files = []*File{s.Open(Config{User: u, Ready: func(on bool) { p.ready = on }})}
	return p
}

// issueRawCommand issues a command given as bytes.
func (p *testProgram) issueRawCommand(f *File, cmd ucm.Command, in []byte, out int) error {
	h := ucm.Hdr{Cmd: cmd, In: uint16(len(in)), Out: uint16(out)}
	b := append(uapi.AppendTo(nil, &h), in...)
	copy(p.mem.b, b)
	n, taken, err := f.Write(p, commandAt, len(b))
	if taken != nil {
		p.taken = taken
	}
	if err == nil && n != len(b) {
		p.t.Errorf("%v: got %d bytes written, want %d", cmd, n, len(b))
	}
	return err
}

func issueCommand[C any](p *testProgram, cmd ucm.Command, v C, out int) error {
	return p.issueRawCommand(p.files[0], cmd, uapi.AppendTo(nil, &v), out)
}

// decodeResponse decodes the response.
func decodeResponse[R any](p *testProgram) R {
	v, _ := uapi.Decode[R](p.mem.b[responseAt-memoryBase:])
	return v
}

func (p *testProgram) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *testProgram) createID(space msg.PortSpace, uid uint64) uint32 {
	p.t.Helper()
	p.must(issueCommand(p, ucm.CmdCreateID, ucm.CreateID{UID: uid, Response: responseAt, PS: uint16(space),
		QPType: uint8(ib.QPTypeRC)}, 4))
	return decodeResponse[ucm.CreateIDResp](p).ID
}

func (p *testProgram) destroyID(id uint32) uint32 {
	p.t.Helper()
	p.must(issueCommand(p, ucm.CmdDestroyID, ucm.DestroyID{Response: responseAt, ID: id}, 4))
	return decodeResponse[ucm.DestroyIDResp](p).EventsReported
}

func sockaddrOf(a netip.AddrPort) (s ucm.Sockaddr) { putSockaddr(s[:], a); return s }

func (p *testProgram) bindID(id uint32, a string) error {
	addr := netip.MustParseAddrPort(a)
	s := sockaddrOf(addr)
	return issueCommand(p, ucm.CmdBind, ucm.Bind{ID: id, AddrSize: uint16(parseSockaddr(s[:]).size), Addr: s}, 0)
}

func (p *testProgram) nextEvent() ucm.EventResp {
	p.t.Helper()
	synctest.Wait()
	if err := issueCommand(p, ucm.CmdGetEvent, ucm.GetEvent{Response: responseAt},
		uapi.SizeOf[ucm.EventResp]()); err != nil {
		p.t.Fatal(err)
	}
	return decodeResponse[ucm.EventResp](p)
}

// withPrograms runs a test with a device, a server, and programs of two users.
func withPrograms(t *testing.T, f func(t *testing.T, s *Server, slot *ibslot.Slot, a, b *testProgram)) {
	withFuzzPrograms(t, true, f)
}

// withFuzzPrograms is like withPrograms, but uses checked mode only on request, because checked mode takes most of the
// time.
func withFuzzPrograms(t *testing.T, checked bool, f func(t *testing.T, s *Server, slot *ibslot.Slot, a,
	b *testProgram)) {
	synctest.Test(t, func(t *testing.T) {
		var core ib.Core
		if checked {
			check.On(&core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
		}
		slot := ibslot.New(&core, "rxe0", rxe.NewHardware(rxe.Config{
			Name: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}),
			Fabric: &rxe.Fabric{},
			Rand:   rand.New(rand.NewPCG(1, 2)),
			Netdev: netdev.Interface{Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true, MAC: []byte{2, 0, 0, 0, 0, 1}},
		}), nil)
		if err := slot.Plug(); err != nil {
			t.Fatal(err)
		}
		m, err := rdmacm.New(&core, rdmacm.Config{Timeout: 10,
			Source: func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("10.0.0.1"), nil }})
		if err != nil {
			t.Fatal(err)
		}
		s := NewServer(m)
		ledger := quota.New(quota.Limits{quota.CMIDs: {PerUser: 8}})
		ledger.OnRefusal(func(*quota.LimitError) {})
		a, b := newProgram(t, s, ledger.User(1)), newProgram(t, s, ledger.User(2))
		f(t, s, slot, a, b)
		for _, p := range []*testProgram{a, b} {
			for _, f := range p.files {
				f.Close()
				f.Close()
			}
		}
		for _, u := range []int{1, 2} {
			if n := ledger.User(u).Held(quota.CMIDs); n != 0 {
				t.Errorf("IDs charged to user %d: got %d, want 0", u, n)
			}
		}
		if len(s.ids)+len(s.groups) != 0 {
			t.Errorf("remaining objects: got %d IDs and %d groups, want 0", len(s.ids), len(s.groups))
		}
		m.Close()
		if err := slot.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestTraceFindsIDOfEachCommand checks that the trace finds the ID of every command.
func TestTraceFindsIDOfEachCommand(t *testing.T) {
	for cmd, v := range map[ucm.Command]any{
		ucm.CmdDestroyID: ucm.DestroyID{}, ucm.CmdBindIP: ucm.BindIP{}, ucm.CmdResolveIP: ucm.ResolveIP{},
		ucm.CmdResolveRoute: ucm.ResolveRoute{}, ucm.CmdQueryRoute: ucm.Query{}, ucm.CmdConnect: ucm.Connect{},
		ucm.CmdListen: ucm.Listen{},
		ucm.CmdAccept: ucm.Accept{}, ucm.CmdReject: ucm.Reject{}, ucm.CmdDisconnect: ucm.Disconnect{},
		ucm.CmdInitQPAttr: ucm.InitQPAttr{},
		ucm.CmdSetOption:  ucm.SetOption{}, ucm.CmdNotify: ucm.Notify{}, ucm.CmdJoinIPMcast: ucm.JoinIPMcast{},
		ucm.CmdLeaveMcast: ucm.DestroyID{}, ucm.CmdMigrateID: ucm.MigrateID{}, ucm.CmdQuery: ucm.Query{},
		ucm.CmdBind:        ucm.Bind{},
		ucm.CmdResolveAddr: ucm.ResolveAddr{}, ucm.CmdJoinMcast: ucm.JoinMcast{},
		ucm.CmdResolveIBService: ucm.ResolveIBService{}, ucm.CmdWriteCMEvent: ucm.WriteCMEvent{},
	} {
		f, _ := reflect.TypeOf(v).FieldByName("ID")
		if int(f.Offset) != idOffsets[cmd] {
			t.Errorf("%v: got the ID at offset %d, want %d", cmd, f.Offset, idOffsets[cmd])
		}
	}
	if f, _ := reflect.TypeFor[ucm.EventResp]().FieldByName("Reserved"); int(f.Offset) != ucm.MinEventResp {
		t.Errorf("offset of the reserved field of an event: got %d, want %d", f.Offset, ucm.MinEventResp)
	}
}

// TestConnectionReportsEvents connects two programs. It checks that each ID receives its events, and that events are
// counted when they are delivered.
func TestConnectionReportsEvents(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		l := b.createID(msg.PortSpaceTCP, 0xb0)
		b.must(b.bindID(l, "0.0.0.0:7471"))
		b.must(issueCommand(b, ucm.CmdListen, ucm.Listen{ID: l, Backlog: 4}, 0))
		c := a.createID(msg.PortSpaceTCP, 0xa0)
		if err := issueCommand(a, ucm.CmdGetEvent, ucm.GetEvent{Response: responseAt}, 400); !errors.Is(err, ErrNoEvent) {
			t.Errorf("GET_EVENT without an event: got %v, want ErrNoEvent", err)
		}
		dst := sockaddrOf(netip.MustParseAddrPort("10.0.0.1:7471"))
		a.must(issueCommand(a, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: c, DstSize: sizeofInet, DstAddr: dst}, 0))
		if e := a.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.AddrResolved || e.UID != 0xa0 || e.ID != c {
			t.Fatalf("event: got %+v, want address resolved with UID 0xa0", e)
		}
		a.must(issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: c}, 0))
		a.nextEvent()
		a.must(issueCommand(a, ucm.CmdQueryRoute, ucm.Query{Response: responseAt, ID: c}, 400))
		if r := decodeResponse[ucm.QueryRouteResp](a); r.NumPaths != 1 || r.PortNum != 1 ||
			parseSockaddr(r.DstAddr[:]).ip != netip.MustParseAddrPort("10.0.0.1:7471") {
			t.Errorf("address: got %+v, want 10.0.0.1:7471 as the destination", r)
		}
		// The buffers have the current library's size, and the size of a library without a device index.
		for room, want := range map[int]error{uapi.SizeOf[ucm.QueryRouteResp](): nil, 200: nil, 199: syscall.ENOSPC} {
			if err := issueCommand(a, ucm.CmdQueryRoute, ucm.Query{Response: responseAt, ID: c}, room); !errors.Is(err, want) {
				t.Errorf("QUERY_ROUTE with room for %d bytes: got %v, want %v", room, err, want)
			}
		}
		a.must(issueCommand(a, ucm.CmdQuery, ucm.Query{Response: responseAt, ID: c, Option: ucm.QueryPath}, 400))
		if r := decodeResponse[ucm.QueryPathResp](a); r.NumPaths != 1 {
			t.Errorf("paths: got %+v, want 1", r)
		}
		cp := ucm.ConnParam{QPNum: 7, ResponderResources: 1, InitiatorDepth: 1, Valid: 1, PrivateDataLen: 2,
			PrivateData: [256]uint8{1, 2}}
		a.must(issueCommand(a, ucm.CmdConnect, ucm.Connect{ConnParam: cp, ID: c}, 0))
		e := b.nextEvent()
		if rdmacm.EventType(e.Event) != rdmacm.ConnectRequest || e.UID != 0xb0 || e.ID == l {
			t.Fatalf("event: got %+v, want connect request with UID 0xb0", e)
		}
		p, _ := uapi.Decode[ucm.ConnParam](e.Param[:])
		if p.QPNum != 7 || p.PrivateDataLen != 56 || p.PrivateData[0] != 1 || p.PrivateData[2] != 0 {
			t.Errorf("parameters: got %+v, want QP 7 and 56 bytes of private data", p)
		}
		b.must(issueCommand(b, ucm.CmdAccept, ucm.Accept{UID: 0xb1, ConnParam: ucm.ConnParam{QPNum: 8, Valid: 1}, ID: e.ID},
			0))
		if e := a.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.ConnectResponse {
			t.Fatalf("event: got %+v, want connect response", e)
		}
		a.must(issueCommand(a, ucm.CmdAccept, ucm.Accept{ID: c}, 0))
		if e := b.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.Established || e.UID != 0xb1 {
			t.Fatalf("event: got %+v, want established with UID 0xb1", e)
		}
		a.must(issueCommand(a, ucm.CmdDisconnect, ucm.Disconnect{ID: c}, 0))
		if e := b.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.Disconnected {
			t.Fatalf("event: got %+v, want disconnected", e)
		}
		b.must(issueCommand(b, ucm.CmdDisconnect, ucm.Disconnect{ID: e.ID}, 0))
		synctest.Wait()
		if !a.ready {
			t.Error("ready with an event: got false, want true")
		}
		if n := a.destroyID(c); n != 3 || a.ready {
			t.Errorf("reported events: got %d with ready %v, want 3 and false", n, a.ready)
		}
		if n := b.destroyID(e.ID); n != 2 {
			t.Errorf("reported events of the connection: got %d, want 2", n)
		}
		if n := b.destroyID(l); n != 1 {
			t.Errorf("reported events of the listener: got %d, want 1", n)
		}
	})
}

// TestErrorsMatchKernel compares the errors with those of the kernel.
func TestErrorsMatchKernel(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		id := a.createID(msg.PortSpaceTCP, 1)
		other := b.createID(msg.PortSpaceTCP, 1)
		v6 := sockaddrOf(netip.MustParseAddrPort("[fd00::1]:1"))
		for _, c := range []struct {
			what string
			err  error
			want syscall.Errno
		}{
			{"a command number that is too large", a.issueRawCommand(a.files[0], ucm.NumCommands, nil, 0), syscall.EINVAL},
			{"GET_OPTION", a.issueRawCommand(a.files[0], ucm.CmdGetOption, make([]byte, 24), 0), syscall.ENOSYS},
			{"an unknown ID", issueCommand(a, ucm.CmdListen, ucm.Listen{ID: 99}, 0), syscall.ENOENT},
			{"another file's ID", issueCommand(a, ucm.CmdListen, ucm.Listen{ID: other}, 0), syscall.EINVAL},
			{"no space for the response", issueCommand(a, ucm.CmdCreateID, ucm.CreateID{Response: responseAt, PS: 0x106}, 3),
				syscall.ENOSPC},
			{"no space for an event", issueCommand(a, ucm.CmdGetEvent, ucm.GetEvent{Response: responseAt}, ucm.MinEventResp-1),
				syscall.ENOSPC},
			{"an unknown port space", issueCommand(a, ucm.CmdCreateID, ucm.CreateID{Response: responseAt, PS: 7}, 4),
				syscall.EINVAL},
			{"an unmapped response", issueCommand(a, ucm.CmdCreateID, ucm.CreateID{Response: 1, PS: 0x106}, 4), syscall.EFAULT},
			{"a low port", a.bindID(id, "0.0.0.0:80"), syscall.EACCES},
			{"an address without a device", a.bindID(id, "10.0.0.9:0"), syscall.EADDRNOTAVAIL},
			{"an address of a wrong size", issueCommand(a, ucm.CmdBind,
				ucm.Bind{ID: id, AddrSize: 28, Addr: sockaddrOf(netip.MustParseAddrPort("10.0.0.1:1"))}, 0), syscall.EINVAL},
			{"an unknown family", issueCommand(a, ucm.CmdBindIP, ucm.BindIP{ID: id, Addr: ucm.SockaddrIn6{1}}, 0),
				syscall.EINVAL},
			{"resolve a route", issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id}, 0), syscall.EINVAL},
			{"connect", issueCommand(a, ucm.CmdConnect, ucm.Connect{ConnParam: ucm.ConnParam{Valid: 1}, ID: id}, 0),
				syscall.EINVAL},
			{"connect without parameters", issueCommand(a, ucm.CmdConnect, ucm.Connect{ID: id}, 0), syscall.EINVAL},
			{"accept", issueCommand(a, ucm.CmdAccept, ucm.Accept{ConnParam: ucm.ConnParam{Valid: 1}, ID: id}, 0),
				syscall.EINVAL},
			{"complete", issueCommand(a, ucm.CmdAccept, ucm.Accept{ID: id}, 0), syscall.EINVAL},
			{"reject", issueCommand(a, ucm.CmdReject, ucm.Reject{ID: id}, 0), syscall.EINVAL},
			{"reject with a reason of the CM", issueCommand(a, ucm.CmdReject, ucm.Reject{ID: id, Reason: 8}, 0), syscall.EINVAL},
			{"disconnect", issueCommand(a, ucm.CmdDisconnect, ucm.Disconnect{ID: id}, 0), syscall.EINVAL},
			{"attributes without a device", issueCommand(a, ucm.CmdInitQPAttr, ucm.InitQPAttr{Response: responseAt, ID: id,
				QPState: 1},
				144), syscall.EINVAL},
			{"an option of a wrong size", issueCommand(a, ucm.CmdSetOption, ucm.SetOption{ID: id, OptLen: 2,
				OptVal: responseAt}, 0),
				syscall.EINVAL},
			{"an unknown option", issueCommand(a, ucm.CmdSetOption, ucm.SetOption{ID: id, OptName: 9, OptLen: 1,
				OptVal: responseAt},
				0), syscall.ENOSYS},
			{"an unknown query", issueCommand(a, ucm.CmdQuery, ucm.Query{Response: responseAt, ID: id, Option: 7}, 400),
				syscall.ENOSYS},
			{"join without a device", issueCommand(a, ucm.CmdJoinMcast,
				ucm.JoinMcast{Response: responseAt, ID: id, AddrSize: 28, Addr: v6}, 4), syscall.EINVAL},
			{"leave no group", issueCommand(a, ucm.CmdLeaveMcast, ucm.DestroyID{Response: responseAt, ID: id}, 4),
				syscall.ENOENT},
			{"migrate from a missing file", issueCommand(a, ucm.CmdMigrateID, ucm.MigrateID{Response: responseAt, ID: id,
				FD: 9}, 4),
				syscall.EINVAL},
			{"destroy another's", issueCommand(a, ucm.CmdDestroyID, ucm.DestroyID{Response: responseAt, ID: other}, 4),
				syscall.EINVAL},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: got %v, want %v", c.what, c.err, c.want)
			}
		}
		h := ucm.Hdr{Cmd: ucm.CmdListen, In: 8}
		copy(a.mem.b, uapi.AppendTo(nil, &h))
		if _, _, err := a.files[0].Write(a, commandAt, 15); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("write shorter than its header: got %v, want EINVAL", err)
		}
		if _, _, err := a.files[0].Write(a, 8, 16); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("write from an unmapped address: got %v, want EFAULT", err)
		}
		var err error
		for range 20 {
			if err = issueCommand(a, ucm.CmdCreateID, ucm.CreateID{Response: responseAt, PS: 0x106}, 4); err != nil {
				break
			}
		}
		if !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("too many IDs: got %v, want ENOMEM", err)
		}
	})
}

// TestPortSharingFollowsKernel checks which IDs can share a port. (cma_check_port)
func TestPortSharingFollowsKernel(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		b.low = true
		bound := func(p *testProgram, addr string, reuse bool) (uint32, error) {
			id := p.createID(msg.PortSpaceTCP, 1)
			if reuse {
				binary.NativeEndian.PutUint32(p.mem.b[1024:], 1)
				p.must(issueCommand(p, ucm.CmdSetOption, ucm.SetOption{ID: id, OptName: ucm.OptionIDReuseAddr, OptLen: 4,
					OptVal: memoryBase +
						1024}, 0))
			}
			return id, p.bindID(id, addr)
		}
		for _, c := range []struct {
			first, second  string
			reuse1, reuse2 bool
			want           error
		}{
			{"10.0.0.1:5000", "10.0.0.1:5000", false, false, syscall.EADDRINUSE},
			{"0.0.0.0:5000", "10.0.0.1:5000", false, false, syscall.EADDRNOTAVAIL},
			{"10.0.0.1:5000", "0.0.0.0:5000", false, false, syscall.EADDRNOTAVAIL},
			{"10.0.0.1:5000", "10.0.0.1:5000", true, false, syscall.EADDRINUSE},
			{"10.0.0.1:5000", "10.0.0.1:5000", true, true, nil},
			{"10.0.0.1:5000", "10.0.0.1:5001", false, false, nil},
			{"0.0.0.0:5000", "[::]:5000", false, false, syscall.EADDRNOTAVAIL},
		} {
			x, err1 := bound(a, c.first, c.reuse1)
			y, err2 := bound(b, c.second, c.reuse2)
			if err1 != nil || !errors.Is(err2, c.want) || (c.want == nil) != (err2 == nil) {
				t.Errorf("bind %s then %s: got %v and %v, want %v", c.first, c.second, err1, err2, c.want)
			}
			a.destroyID(x)
			b.destroyID(y)
		}
		if id, err := bound(b, "0.0.0.0:80", false); err != nil {
			t.Errorf("low port with the capability: got %v, want no error", err)
		} else {
			b.destroyID(id)
		}
	})
}

// TestDeviceRemovalIsReported checks that the removal of a device is reported to its IDs, which can then only be
// destroyed.
func TestDeviceRemovalIsReported(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, slot *ibslot.Slot, a, b *testProgram) {
		id, wild := a.createID(msg.PortSpaceTCP, 5), b.createID(msg.PortSpaceTCP, 6)
		a.must(a.bindID(id, "10.0.0.1:5000"))
		a.must(issueCommand(a, ucm.CmdListen, ucm.Listen{ID: id}, 0))
		b.must(b.bindID(wild, "0.0.0.0:5001"))
		b.must(issueCommand(b, ucm.CmdListen, ucm.Listen{ID: wild}, 0))
		a.must(slot.Unplug())
		if e := a.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.DeviceRemoval || e.UID != 5 {
			t.Fatalf("event: got %+v, want device removal with UID 5", e)
		}
		if err := issueCommand(a, ucm.CmdListen, ucm.Listen{ID: id}, 0); !errors.Is(err, syscall.EIO) {
			t.Errorf("listen after the removal: got %v, want EIO", err)
		}
		synctest.Wait()
		if b.ready {
			t.Error("ready of a listener at all addresses: got true, want false")
		}
		a.must(slot.Plug())
		c := a.createID(msg.PortSpaceTCP, 7)
		a.must(issueCommand(a, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: c, DstSize: sizeofInet,
			DstAddr: sockaddrOf(netip.MustParseAddrPort("10.0.0.1:5001"))}, 0))
		if e := a.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.AddrResolved {
			t.Fatalf("event of the device after its return: got %+v, want address resolved", e)
		}
		a.must(issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: c}, 0))
		a.nextEvent()
		a.must(issueCommand(a, ucm.CmdConnect, ucm.Connect{ConnParam: ucm.ConnParam{Valid: 1, QPNum: 3}, ID: c}, 0))
		if e := b.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.ConnectRequest {
			t.Fatalf("event of the listener on all addresses: got %+v, want connect request", e)
		}
		if n := a.destroyID(id); n != 1 {
			t.Errorf("reported events: got %d, want 1", n)
		}
	})
}

// TestEventWakesWaiter checks that an event wakes a waiting call, and that an event is queued again if its response is
// not delivered.
func TestEventWakesWaiter(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		f := a.files[0]
		woken := 0
		w := f.AddWaiter(func() { woken++ })
		v := f.AddWaiter(func() { woken += 10 })
		if !f.CancelWait(v) || f.CancelWait(v) {
			t.Error("first and second Cancel: got another result, want true and false")
		}
		id := a.createID(msg.PortSpaceTCP, 5)
		a.must(issueCommand(a, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: id, DstSize: sizeofInet,
			DstAddr: sockaddrOf(netip.MustParseAddrPort("10.0.0.1:5001"))}, 0))
		synctest.Wait()
		if woken != 1 || f.CancelWait(w) || f.AddWaiter(func() {}) != nil {
			t.Errorf("calls of wake: got %d, want 1", woken)
		}
		taken, err := f.takeEvent()
		a.must(err)
		if a.ready {
			t.Error("ready without an event: got true, want false")
		}
		taken.Requeue()
		if e := a.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.AddrResolved || e.ID != id {
			t.Errorf("event: got %+v, want address resolved", e)
		}
		// An event stays in the queue if its response cannot be stored.
		a.must(issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id}, 0))
		synctest.Wait()
		if err := issueCommand(a, ucm.CmdGetEvent, ucm.GetEvent{Response: 3}, 400); !errors.Is(err, syscall.EFAULT) {
			t.Error(err)
		}
		if e := a.nextEvent(); rdmacm.EventType(e.Event) != rdmacm.RouteResolved {
			t.Errorf("event: got %+v, want route resolved", e)
		}
		if n := a.destroyID(id); n != 2 {
			t.Errorf("reported events: got %d, want 2", n)
		}
		w = f.AddWaiter(func() { woken += 100 })
		f.Close()
		if woken != 101 || w == nil {
			t.Errorf("sum of the wake calls after Close: got %d, want 101", woken)
		}
		if err := issueCommand(a, ucm.CmdGetEvent, ucm.GetEvent{Response: responseAt}, 400); !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
	})
}

// TestMigrateMovesEvents checks that an ID moves with its events, and belongs to one file at a time.
func TestMigrateMovesEvents(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		a.files = append(a.files, s.Open(Config{User: a.files[0].cfg.User}))
		id := a.createID(msg.PortSpaceTCP, 5)
		a.must(issueCommand(a, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: id, DstSize: sizeofInet,
			DstAddr: sockaddrOf(netip.MustParseAddrPort("10.0.0.1:5001"))}, 0))
		a.nextEvent()
		a.must(issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id}, 0))
		synctest.Wait()
		mig := ucm.MigrateID{Response: responseAt, ID: id, FD: 0}
		a.must(a.issueRawCommand(a.files[1], ucm.CmdMigrateID, uapi.AppendTo(nil, &mig), 4))
		if n := decodeResponse[ucm.MigrateResp](a).EventsReported; n != 1 || a.ready {
			t.Errorf("reported events: got %d with ready %v, want 1 and false", n, a.ready)
		}
		if err := issueCommand(a, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: id}, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("command on the former file: got %v, want EINVAL", err)
		}
		if err := a.issueRawCommand(a.files[1], ucm.CmdMigrateID, uapi.AppendTo(nil, &mig), 4); !errors.Is(err,
			syscall.EINVAL) {
			t.Errorf("second migration: got %v, want EINVAL", err)
		}
		ge := ucm.GetEvent{Response: responseAt}
		a.must(a.issueRawCommand(a.files[1], ucm.CmdGetEvent, uapi.AppendTo(nil, &ge), 400))
		if e := decodeResponse[ucm.EventResp](a); rdmacm.EventType(e.Event) != rdmacm.RouteResolved {
			t.Errorf("event: got %+v, want route resolved", e)
		}
	})
}

// TestMembershipEndsWithID checks the data for sending to a group, and that a membership ends with its ID.
func TestMembershipEndsWithID(t *testing.T) {
	withPrograms(t, func(t *testing.T, s *Server, _ *ibslot.Slot, a, b *testProgram) {
		id := a.createID(msg.PortSpaceUDP, 5)
		a.must(a.bindID(id, "10.0.0.1:0"))
		join := ucm.JoinMcast{Response: responseAt, UID: 77, ID: id, AddrSize: sizeofInet,
			Addr: sockaddrOf(netip.MustParseAddrPort("239.1.2.3:0"))}
		a.must(issueCommand(a, ucm.CmdJoinMcast, join, 4))
		g := decodeResponse[ucm.CreateIDResp](a).ID
		e := a.nextEvent()
		p, _ := uapi.Decode[ucm.UDParam](e.Param[:])
		want := [16]uint8{10: 0xff, 0xff, 239, 1, 2, 3}
		if rdmacm.EventType(e.Event) != rdmacm.MulticastJoin || e.UID != 77 || e.ID != g || p.QPNum != 0xffffff ||
			p.QKey != 0x01234567 ||
			p.AHAttr.GRH.DGID != want || p.AHAttr.IsGlobal != 1 {
			t.Errorf("event and parameters: got %+v and %+v, want the multicast GID", e, p)
		}
		if err := issueCommand(b, ucm.CmdLeaveMcast, ucm.DestroyID{Response: responseAt, ID: g}, 4); !errors.Is(err,
			syscall.EINVAL) {
			t.Errorf("ID of another file: got %v, want EINVAL", err)
		}
		a.must(issueCommand(a, ucm.CmdLeaveMcast, ucm.DestroyID{Response: responseAt, ID: g}, 4))
		if n := decodeResponse[ucm.DestroyIDResp](a).EventsReported; n != 1 {
			t.Errorf("reported events: got %d, want 1", n)
		}
		for range 7 { // together with the ID, these groups reach the user's limit
			a.must(issueCommand(a, ucm.CmdJoinMcast, join, 4))
		}
		if err := issueCommand(a, ucm.CmdJoinMcast, join, 4); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("group beyond the limit: got %v, want ENOMEM", err)
		}
		other := b.createID(msg.PortSpaceUDP, 5)
		b.must(b.bindID(other, "10.0.0.1:0"))
		b.must(issueCommand(b, ucm.CmdJoinMcast, ucm.JoinMcast{Response: responseAt, ID: other, AddrSize: sizeofInet,
			Addr: join.Addr}, 4))
		a.destroyID(id)
		if a.ready {
			t.Error("ready after the ID was destroyed: got true, want false")
		}
	})
}
