package uverbs

import (
	"syscall"
	"testing"

	"verbena/uapi"
	"verbena/umem"
)

// guestCaller is a process that has received a descriptor of another process's file.
type guestCaller struct {
	*program
	space umem.Space
	acct  *umem.Account
}

func (c *guestCaller) Space() umem.Space      { return c.space }
func (c *guestCaller) Account() *umem.Account { return c.acct }

// overlaySpace is the memory of a program, extended by additional memory.
type overlaySpace struct {
	umem.Space
	more *umem.Local
	at   uint64
}

func (o overlaySpace) Check(addr, length uint64, write bool) error {
	if addr == o.at {
		return o.more.Check(addr, length, write)
	}
	return umem.ErrFault
}

func (o overlaySpace) ReadV(dst [][]byte, addr uint64) error {
	if addr == o.at {
		return o.more.ReadV(dst, addr)
	}
	return o.Space.ReadV(dst, addr)
}

// TestRegionBelongsToCaller checks a process that registers memory through another process's file. The process must
// register its own memory and be charged for it.
func TestRegionBelongsToCaller(t *testing.T) {
	testEachForm(t, func(t *testing.T, form commandForm) {
		w := newFixture(t)
		p := w.startProgram(form)
		pd := p.allocPD()
		mine := make([]byte, 2*umem.PageSize)
		more := umem.NewLocal()
		addr, err := more.Add(mine)
		must(t, err)
		guest := &guestCaller{p, overlaySpace{p.space, more, addr},
			umem.NewAccount(func() uint64 { return 3 * umem.PageSize })}
		reg := func(at, length uint64) error {
			req := uapi.RegMR{Start: at, HCAVA: at, Length: length, PDHandle: pd, AccessFlags: uapi.AccessLocalWrite}
			resp := p.allocMem(16)
			req.Response = addressOf(resp)
			b := uapi.AppendTo(nil, &req)
			hdr := uapi.CmdHdr{Command: uint32(uapi.CmdRegMR), InWords: uint16((8 + len(b)) / 4), OutWords: 3}
			b = p.storeBytes(append(uapi.AppendTo(nil, &hdr), b...))
			_, err := p.f.Write(guest, addressOf(b), len(b))
			return err
		}
		must(t, reg(addr, 2*umem.PageSize))
		if p.acct.Pages() != 0 || guest.acct.Pages() == 0 {
			t.Errorf("charged pages: got %d for the opener and %d for the caller, want 0 and more than 0", p.acct.Pages(),
				guest.acct.Pages())
		}
		wantErrno(t, "over the caller's limit", reg(addr, 2*umem.PageSize), syscall.ENOMEM)
		opener := (addressOf(p.allocMem(2*int(umem.PageSize))) + umem.PageSize - 1) &^ (umem.PageSize - 1)
		guest.acct = umem.NewAccount(nil)
		wantErrno(t, "memory of the opener", reg(opener, 1), syscall.EFAULT)
		var mr *mrObject
		for o := range p.f.objects.all() {
			if m, ok := o.res.(*mrObject); ok {
				mr = m
			}
		}
		mine[0] = 77
		var got [1]byte
		must(t, mr.Region().ReadV([][]byte{got[:]}, addr))
		if got[0] != 77 {
			t.Errorf("the region reads %d", got[0])
		}
	})
}
