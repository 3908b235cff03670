package ib

import (
	"syscall"
	"testing"

	"verbena/umem"
)

// readOnlyMemory is memory without write permission.
type readOnlyMemory struct{ *umem.Local }

func (r readOnlyMemory) Check(addr, length uint64, write bool) error {
	if write {
		return umem.ErrFault
	}
	return r.Local.Check(addr, length, write)
}

// TestRereg checks that Rereg changes the properties in flags, and passes the other properties to the driver unchanged.
// Use counts and charged pages must follow. A failure must change nothing.
func TestRereg(t *testing.T) {
	b := newFullBench(t)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 4*umem.PageSize))
	must(t, err)
	acct := umem.NewAccount(func() uint64 { return umem.Unlimited })
	other, err := b.dev.AllocPD()
	must(t, err)
	mr, err := b.pd.RegMR(MRInit{Space: readOnlyMemory{mem}, Account: acct, Addr: addr, Length: 8,
		Access: AccessRemoteRead})
	must(t, err)
	drv := mr.drv.(*fakeReregMR)
	before := acct.Pages()
	for _, c := range []struct {
		name  string
		flags MRChangeFlags
		to    MRChange
		want  syscall.Errno
	}{
		{"no change", 0, MRChange{}, syscall.EINVAL},
		{"unknown change", 8, MRChange{}, syscall.EINVAL},
		{"no domain", MRChangePD, MRChange{}, syscall.EINVAL},
		{"remote write alone", MRChangeAccess, MRChange{Access: AccessRemoteWrite}, syscall.EINVAL},
		{"write access to read-only memory", MRChangeAccess, MRChange{Access: AccessLocalWrite}, syscall.EFAULT},
		{"addresses from zero without a change of memory", MRChangeAccess,
			MRChange{Access: AccessRemoteRead | AccessZeroBased}, syscall.EINVAL},
		{"unmapped memory", MRChangeTranslation, MRChange{Space: mem, Account: acct, Addr: 1, Length: 8},
			syscall.EFAULT},
	} {
		wantErrno(t, c.name, mr.Rereg(c.flags, c.to), c.want)
	}
	b.drv.fail = func(what string) error { return syscall.EBUSY }
	wantErrno(t, "a driver that refuses", mr.Rereg(MRChangeTranslation|MRChangePD,
		MRChange{Space: mem, Account: acct, Addr: addr, Length: 8, PD: other}), syscall.EBUSY)
	b.drv.fail = nil
	if drv.region != nil || mr.PD() != b.pd || mr.Access() != AccessRemoteRead || acct.Pages() != before {
		t.Errorf("region after failures: got PD %v, access %v and %d pages, want the former values",
			mr.PD() == b.pd, mr.Access(), acct.Pages())
	}

	must(t, mr.Rereg(MRChangePD, MRChange{PD: other}))
	if drv.pd != other.drv || drv.region != mr.Region() || drv.access != AccessRemoteRead || mr.PD() != other {
		t.Errorf("Rereg of the domain: driver got %+v, want only the domain changed", drv)
	}
	wantErrno(t, "the new domain", other.Dealloc(), syscall.EBUSY)
	must(t, mr.Rereg(MRChangePD, MRChange{PD: other})) // the current domain
	long := 3 * umem.PageSize
	must(t, mr.Rereg(MRChangeTranslation|MRChangeAccess, MRChange{
		Space: mem, Account: acct, Addr: addr, Length: long, IOVA: 64, Access: AccessLocalWrite | AccessRemoteWrite,
	}))
	if r := mr.Region(); drv.region != r || r.Len() != long || r.IOVA() != 64 || acct.Pages() != r.Pages() ||
		mr.Access() != AccessLocalWrite|AccessRemoteWrite || drv.access != mr.Access() || drv.pd != other.drv {
		t.Errorf("Rereg of memory and rights: got %+v and %d charged pages, want the new memory", r, acct.Pages())
	}
	must(t, mr.Rereg(MRChangeTranslation|MRChangeAccess, MRChange{
		Space: mem, Account: acct, Addr: addr + 8, Length: 8, IOVA: addr + 8, Access: AccessLocalWrite | AccessZeroBased,
	}))
	if r := mr.Region(); r.IOVA() != 0 || r.Addr() != addr+8 {
		t.Errorf("zero-based region: got IOVA %#x and address %#x, want 0 and %#x", r.IOVA(), r.Addr(), addr+8)
	}
	wantErrno(t, "addresses no more from zero", mr.Rereg(MRChangeAccess, MRChange{Access: AccessLocalWrite}),
		syscall.EINVAL)
	must(t, mr.Rereg(MRChangePD, MRChange{PD: b.pd}))
	must(t, other.Dealloc())
	must(t, mr.Dereg())
	if acct.Pages() != 0 {
		t.Errorf("charged pages: got %d, want 0", acct.Pages())
	}

	fast, err := b.pd.AllocMR(1)
	must(t, err)
	wantErrno(t, "a region of AllocMR", fast.Rereg(MRChangeAccess, MRChange{}), syscall.EINVAL)
	must(t, fast.Dereg())
}

func TestReregWithoutDriverIsUnsupported(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 8))
	must(t, err)
	mr, err := b.pd.RegMR(MRInit{Space: mem, Addr: addr, Length: 8, Access: 0})
	must(t, err)
	wantErrno(t, "a driver without", mr.Rereg(MRChangeAccess, MRChange{}), syscall.EOPNOTSUPP)
	must(t, mr.Dereg())
	b.destroyAll(t)
}
