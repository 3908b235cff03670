package uverbs

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/ib"
	"verbena/ib/ibfake"
	"verbena/internal/quota"
	"verbena/uapi"
	"verbena/uapi/verb"
	"verbena/umem"
)

// flatSpace is the memory of a program: contiguous bytes starting at base.
type flatSpace struct {
	base uint64
	mem  []byte
}

func (s *flatSpace) at(addr uint64, bufs [][]byte) ([]byte, error) {
	var n uint64
	for _, b := range bufs {
		n += uint64(len(b))
	}
	return s.slice(addr, n)
}

func (s *flatSpace) slice(addr, n uint64) ([]byte, error) {
	off := addr - s.base
	if addr < s.base || off > uint64(len(s.mem)) || n > uint64(len(s.mem))-off {
		return nil, umem.ErrFault
	}
	return s.mem[off : off+n], nil
}

func (s *flatSpace) Check(addr, length uint64, write bool) error {
	_, err := s.slice(addr, length)
	return err
}

func (s *flatSpace) ReadV(dst [][]byte, addr uint64) error {
	mem, err := s.at(addr, dst)
	for _, b := range dst {
		mem = mem[copy(b, mem):]
	}
	return err
}

func (s *flatSpace) WriteV(src [][]byte, addr uint64) error {
	mem, err := s.at(addr, src)
	if err != nil {
		return err
	}
	for _, b := range src {
		mem = mem[copy(mem, b):]
	}
	return nil
}

// fuzzProgram is a program that sends arbitrary commands.
type fuzzProgram struct {
	space *flatSpace
	acct  *umem.Account
	user  *quota.User
	fds   []int
}

func (p *fuzzProgram) PID() int               { return 1 }
func (p *fuzzProgram) User() *quota.User      { return p.user }
func (p *fuzzProgram) Name() string           { return "fuzz" }
func (p *fuzzProgram) UID() int               { return 0 }
func (p *fuzzProgram) Space() umem.Space      { return p.space }
func (p *fuzzProgram) Account() *umem.Account { return p.acct }

func (p *fuzzProgram) InstallFD(fd int, cloexec bool) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		p.fds = append(p.fds, n)
	}
	return n, err
}

func (p *fuzzProgram) FileInode(fd int) (dev, ino uint64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Dev, st.Ino, err
}

const fuzzBase = 0x10000

// FuzzCommand sends random commands to a context. Each command starts with its form and length in the input. No command
// may panic, errors must wrap an errno, and no objects may remain.
func FuzzCommand(f *testing.F) {
	seed := func(cmds ...[]byte) {
		var b []byte
		for _, c := range cmds {
			b = append(b, 0, byte(len(c)), byte(len(c)>>8))
			b = append(b, c...)
		}
		f.Add(b)
	}
	plain := func(cmd uapi.Command, body []byte, driver int) []byte {
		body = append(body, make([]byte, driver)...)
		if commands[uint32(cmd)].Answers {
			putUint64(body, fuzzBase+0x4000)
		}
		hdr := uapi.CmdHdr{Command: uint32(cmd), InWords: uint16(2 + len(body)/4), OutWords: 64}
		return append(uapi.AppendTo(nil, &hdr), body...)
	}
	extended := func(cmd uapi.ExCommand, body []byte) []byte {
		hdr := uapi.CmdHdr{Command: uint32(cmd) | uapi.CmdFlagExtended, InWords: uint16(len(body) / 8), OutWords: 64}
		ex := uapi.ExCmdHdr{Response: fuzzBase + 0x4000}
		return append(uapi.AppendTo(uapi.AppendTo(nil, &hdr), &ex), body...)
	}
	session := [][]byte{
		plain(uapi.CmdGetContext, make([]byte, 8), 0),
		plain(uapi.CmdAllocPD, make([]byte, 8), 0),
		plain(uapi.CmdCreateCQ, encode(uapi.CreateCQ{CQE: 5, CompChannel: -1}), 8),
		plain(uapi.CmdCreateQP, encode(uapi.CreateQP{PDHandle: 1, SendCQHandle: 2, RecvCQHandle: 2, QPType: uapi.QPTRC}), 0),
		plain(uapi.CmdRegMR, encode(uapi.RegMR{Start: fuzzBase, HCAVA: fuzzBase, Length: 4096, PDHandle: 1}), 0),
		plain(uapi.CmdCreateAH, encode(uapi.CreateAH{PDHandle: 1, Attr: uapi.AHAttr{PortNum: 1}}), 0),
	}
	seed(session...)
	for n, cmd := range commands {
		c := plain(uapi.Command(n), make([]byte, cmd.Request), 0)
		if n&uapi.CmdFlagExtended != 0 {
			c = extended(uapi.ExCommand(n&uapi.CmdCommandMask), make([]byte, (cmd.Request+7)&^7))
		}
		seed(append(session[:len(session):len(session)], c)...)
	}
	for id, m := range methods {
		hdr := uapi.IoctlHdr{Length: uint16(24 + len(m.Attrs)*16), ObjectID: id.object, MethodID: id.method,
			NumAttrs: uint16(len(m.Attrs)), DriverID: uapi.DriverRXE}
		b := uapi.AppendTo(nil, &hdr)
		for _, s := range m.Attrs {
			a := uapi.Attr{AttrID: s.ID, Len: uint16(s.Min), Data: fuzzBase + 0x4000}
			switch {
			case s.Kind == verb.Use, s.Kind == verb.Destroy, s.Kind == verb.In && s.Max <= 8:
				a.Data = 2
			case s.Kind == verb.Out && s.Min == 0:
				a.Len = 64
			}
			b = uapi.AppendTo(b, &a)
		}
		var script []byte
		for _, c := range session {
			script = append(append(script, 0, byte(len(c)), byte(len(c)>>8)), c...)
		}
		f.Add(append(append(script, 1, byte(len(b)), byte(len(b)>>8)), b...))
	}

	core, drv := &ib.Core{}, ibfake.New()
	drv.ChangeQueryResults(func(a *ibfake.QueryResults) { a.GIDs = make([]ib.GIDEntry, 3) })
	dev := ib.NewDevice("rxe0", drv, nil)
	must(f, core.Register(dev))
	srv, err := NewServer(core, ServerOptions{CompVectors: 1})
	must(f, err)
	defer srv.Close()

	f.Fuzz(func(t *testing.T, script []byte) {
		ledger := quota.New(quota.Limits{})
		p := &fuzzProgram{space: &flatSpace{fuzzBase, make([]byte, 0x8000)}, acct: umem.NewAccount(nil), user: ledger.User(1)}
		file, err := srv.Open("uverbs0", p, &unmappedMemory{})
		must(t, err)
		for len(script) >= 3 {
			form, n := script[0], int(script[1])|int(script[2])<<8
			script = script[3:]
			n = min(n, len(script), len(p.space.mem))
			copy(p.space.mem, script[:n])
			script = script[n:]
			switch form & 1 {
			case 0:
				_, err = file.Write(p, fuzzBase, n)
			case 1:
				err = file.Ioctl(p, uapi.VerbsIoctl, fuzzBase)
			}
			var errno syscall.Errno
			if err != nil && !errors.As(err, &errno) {
				t.Errorf("error: got %v, want an errno", err)
			}
		}
		file.info()
		file.Close()
		for _, fd := range p.fds {
			unix.Close(fd)
		}
		if left := dev.Device().Objects().String(); left != "" || p.acct.Pages() != 0 || drv.UserContextCount() != 0 {
			t.Errorf("remaining objects: got %s, %d pages and %d contexts, want none", left, p.acct.Pages(),
				drv.UserContextCount())
		}
		checkNoCharges(t, ledger)
		drv.TakeDestroyedKinds()
	})
}
