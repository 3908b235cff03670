package remote

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"

	"verbena/driver/rxe"
	"verbena/ib"
	ibslot "verbena/ib/slot"
	"verbena/internal/ctl/devfile"
	"verbena/internal/principal"
	"verbena/internal/quota"
	"verbena/link/simnet"
	"verbena/netdev"
	"verbena/rdmacm"
	"verbena/rdmacm/msg"
	"verbena/rdmacm/ucma"
	"verbena/uapi"
	"verbena/uapi/ucm"
)

// runWithCM runs a test with a connection manager that has a device at 10.0.0.1.
func runWithCM(t *testing.T, f func(t *testing.T, cm *ucma.Server)) {
	synctest.Test(t, func(t *testing.T) {
		var core ib.Core
		slot := ibslot.New(&core, "rxe0", rxe.NewHardware(rxe.Config{
			Name: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Network: simnet.New(simnet.Config{}),
			Fabric: &rxe.Fabric{}, Rand: rand.New(rand.NewPCG(1, 2)), Netdev: netdev.Interface{
				Name: "sim0", Index: 1, MTU: 4200, Up: true, Running: true, MAC: []byte{2, 0, 0, 0, 0, 1},
			},
		}), nil)
		if err := slot.Plug(); err != nil {
			t.Fatal(err)
		}
		m, err := rdmacm.New(&core, rdmacm.Config{
			Timeout: 10, Source: func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("10.0.0.1"), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		f(t, ucma.NewServer(m))
		m.Close()
		if err := slot.Close(); err != nil {
			t.Error(err)
		}
	})
}

// cmProgram issues commands to the connection manager through an open File.
type cmProgram struct {
	t   *testing.T
	f   *File
	mem []byte
}

const noEvent = ^rdmacm.EventType(0)

const cmMemoryAddr, cmResponse = 0x5000_0000_0000, 2048

func openCM(t *testing.T, s *Server, process *os.File) *cmProgram {
	t.Helper()
	f, _, err := s.Open(Client{PID: os.Getpid(), UID: os.Getuid(), Process: process}, devfile.ConnectionManager)
	if err != nil {
		t.Fatal(err)
	}
	p := &cmProgram{t, f, make([]byte, 4096)}
	if err := f.space.windows.AddAt(cmMemoryAddr, p.mem); err != nil {
		t.Fatal(err)
	}
	return p
}

func runCommand[C any](p *cmProgram, cmd ucm.Command, v C, out int) {
	p.t.Helper()
	h := ucm.Hdr{Cmd: cmd, In: uint16(uapi.SizeOf[C]()), Out: uint16(out)}
	b := uapi.AppendTo(uapi.AppendTo(nil, &h), &v)
	if n, err := p.writeCommand(b); err != nil || int(n) != len(b) {
		p.t.Fatalf("%v: got %d and error %v, want %d bytes", cmd, n, err, len(b))
	}
}

func (p *cmProgram) writeCommand(b []byte) (uint64, error) {
	copy(p.mem, b)
	return p.f.executeRequest(devfile.Request{Op: devfile.OpWrite, Addr: cmMemoryAddr, N: uint64(len(b))}, nil)
}

func (p *cmProgram) createID() uint32 {
	p.t.Helper()
	create := ucm.CreateID{UID: 1, Response: cmMemoryAddr + cmResponse, PS: uint16(msg.PortSpaceTCP)}
	create.QPType = uint8(ib.QPTypeRC)
	runCommand(p, ucm.CmdCreateID, create, 4)
	r, _ := uapi.Decode[ucm.CreateIDResp](p.mem[cmResponse:])
	return r.ID
}

// nextEvent returns the type of the next event, or noEvent.
func (p *cmProgram) nextEvent() rdmacm.EventType {
	p.t.Helper()
	synctest.Wait()
	h := ucm.Hdr{Cmd: ucm.CmdGetEvent, In: 8, Out: uint16(uapi.SizeOf[ucm.EventResp]())}
	get := ucm.GetEvent{Response: cmMemoryAddr + cmResponse}
	_, err := p.writeCommand(uapi.AppendTo(uapi.AppendTo(nil, &h), &get))
	if errors.Is(err, syscall.EAGAIN) {
		return noEvent
	}
	if err != nil {
		p.t.Fatal(err)
	}
	r, _ := uapi.Decode[ucm.EventResp](p.mem[cmResponse:])
	return rdmacm.EventType(r.Event)
}

// inetSockaddr returns an IPv4 address for a command.
func inetSockaddr(port uint16) (s ucm.Sockaddr) {
	copy(s[:], []byte{syscall.AF_INET, 0, byte(port >> 8), byte(port), 10, 0, 0, 1})
	return s
}

// TestRequestWaitsForNextListener tests a connection request after the client has destroyed its listener. The request
// waits for the next listener, or is rejected at once if the client has ended.
func TestRequestWaitsForNextListener(t *testing.T) {
	own, ended := openPidfd(t, os.Getpid()), endedProcessPidfd(t)
	duplicate := func(f *os.File) *os.File { // a File closes the client's pidfd
		fd, err := syscall.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "pidfd")
	}
	for name, tt := range map[string]struct {
		process *os.File
		want    rdmacm.EventType
	}{"alive": {own, noEvent}, "ended": {ended, rdmacm.Rejected}} {
		runWithCM(t, func(t *testing.T, cm *ucma.Server) {
			s := New(Config{CM: cm})
			server, client := openCM(t, s, duplicate(tt.process)), openCM(t, s, duplicate(own))
			defer server.f.Close()
			defer client.f.Close()
			l := server.createID()
			runCommand(server, ucm.CmdBind, ucm.Bind{ID: l, AddrSize: 16, Addr: inetSockaddr(7001)}, 0)
			runCommand(server, ucm.CmdListen, ucm.Listen{ID: l}, 0)
			runCommand(server, ucm.CmdDestroyID, ucm.DestroyID{Response: cmMemoryAddr + cmResponse, ID: l}, 4)
			c := client.createID()
			runCommand(client, ucm.CmdResolveAddr, ucm.ResolveAddr{ID: c, DstSize: 16, DstAddr: inetSockaddr(7001)}, 0)
			if e := client.nextEvent(); e != rdmacm.AddrResolved {
				t.Fatalf("%s: got event %v, want %v", name, e, rdmacm.AddrResolved)
			}
			runCommand(client, ucm.CmdResolveRoute, ucm.ResolveRoute{ID: c}, 0)
			client.nextEvent()
			s.cfg.Uverbs = newUverbsServer(t)
			defer s.cfg.Uverbs.Close()
			client.f.client.Manager = true // a manager may connect any queue pair
			runCommand(client, ucm.CmdConnect, ucm.Connect{ID: c, ConnParam: ucm.ConnParam{QPNum: 1, Valid: 1}}, 0)
			if e := client.nextEvent(); e != tt.want {
				t.Errorf("%s: got event %v, want %v", name, e, tt.want)
			}
		})
	}
}

// TestCMFileIsChargedAsContext tests that a file of the connection manager is charged as a context of its user.
func TestCMFileIsChargedAsContext(t *testing.T) {
	runWithCM(t, func(t *testing.T, cm *ucma.Server) {
		ledger := quota.New(quota.Limits{quota.Contexts: {PerUser: 1}})
		s := New(Config{CM: cm, Quota: ledger})
		user := ledger.User(4242)
		open := func() (*File, error) {
			c := Client{PID: os.Getpid(), UID: 4242, Process: openPidfd(t, os.Getpid())}
			c.Principal = principal.Principal{Account: user.ID()}
			f, _, err := s.Open(c, devfile.ConnectionManager)
			return f, err
		}
		f, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open(); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("Open beyond the limit: got %v, want ENOMEM", err)
		}
		if n := user.Held(quota.Contexts); n != 1 {
			t.Errorf("charged contexts: got %d, want 1", n)
		}
		f.Close()
		if f, err = open(); err != nil {
			t.Errorf("Open after a Close: got %v, want success", err)
		} else {
			f.Close()
		}
		for _, k := range []quota.ResourceKind{quota.Contexts, quota.Descriptors, quota.BufferBytes} {
			if n := user.Held(k); n != 0 {
				t.Errorf("charged %v at the end: got %d, want 0", k, n)
			}
		}
	})
}

// TestCMFileRefusesInvalidRequests tests the replies of a file of the connection manager to invalid requests.
func TestCMFileRefusesInvalidRequests(t *testing.T) {
	runWithCM(t, func(t *testing.T, cm *ucma.Server) {
		p := openCM(t, New(Config{CM: cm}), openPidfd(t, os.Getpid()))
		defer p.f.Close()
		list := ucm.Hdr{Cmd: ucm.CmdListen, In: 8}
		id := ucm.Listen{ID: 9}
		copy(p.mem[64:], uapi.AppendTo(uapi.AppendTo(nil, &list), &id))
		const write = devfile.OpWrite
		for _, tt := range []struct {
			r     devfile.Request
			errno syscall.Errno
			text  string
		}{
			{devfile.Request{Op: 99}, syscall.EINVAL, "request 99 is unknown: invalid argument"},
			{devfile.Request{Op: devfile.OpIoctl, Addr: cmMemoryAddr}, syscall.ENOTTY, syscall.ENOTTY.Error()},
			{devfile.Request{Op: devfile.OpAlloc, Addr: 8, N: 4096}, syscall.EINVAL, fmt.Sprintf(
				"allocate 4096 bytes for address 0x8: both must be multiples of %d: invalid argument", os.Getpagesize())},
			{devfile.Request{Op: write, Addr: cmMemoryAddr, N: 7}, syscall.EINVAL, "command of 7 bytes: invalid argument"},
			{devfile.Request{Op: write, Addr: cmMemoryAddr + 4096 - 4, N: 8}, syscall.EFAULT,
				"read the command: memory is not mapped with the requested rights: bad address: bad address"},
			{devfile.Request{Op: write, Addr: cmMemoryAddr + 64, N: 24}, syscall.ENOENT,
				"LISTEN: ID 9 does not exist: no such file or directory"},
			{devfile.Request{Op: devfile.OpForget, N: 1 << 40}, 0, ""},
		} {
			want := devfile.Answer{Errno: tt.errno, Text: tt.text}
			if got := p.f.answerRequest(tt.r, nil); got != want {
				t.Errorf("answer to %+v:\ngot  %+v\nwant %+v", tt.r, got, want)
			}
		}
	})
}
