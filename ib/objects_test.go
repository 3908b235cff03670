package ib

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/internal/gate"
	"verbena/umem"
)

// TestObjectInUseIsNotDestroyed checks that an object in use cannot be destroyed. The test also checks that the use
// ends when the using object is destroyed.
func TestObjectInUseIsNotDestroyed(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 10))
	must(t, err)
	mr, err := b.pd.RegMR(MRInit{Space: mem, Addr: addr, Length: 10, Access: AccessLocalWrite})
	must(t, err)
	ah, err := b.pd.CreateAH(&AHAttr{})
	must(t, err)

	busy := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: got %v, want EBUSY", what, err)
		}
	}
	busy("pd with qp, mr, ah", b.pd.Dealloc())
	busy("cq with qp", b.cq.Destroy())
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	busy("pd with mr, ah", b.pd.Dealloc())
	must(t, mr.Dereg())
	busy("pd with ah", b.pd.Dealloc())
	must(t, ah.Destroy())
	must(t, b.pd.Dealloc())
	if left := b.dev.Objects().String(); left != "" {
		t.Errorf("remaining objects: got %s, want none", left)
	}
	for what, err := range map[string]error{"pd": b.pd.Dealloc(), "cq": b.cq.Destroy(), "qp": b.qp.Destroy(),
		"mr": mr.Dereg(), "ah": ah.Destroy()} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("second destroy of %s: got %v, want EINVAL", what, err)
		}
	}
	for what, err := range map[string]error{
		"mr": errorOf(b.pd.RegMR(MRInit{Space: mem, Addr: addr, Length: 1, Access: 0})),
		"ah": errorOf(b.pd.CreateAH(&AHAttr{})),
		"qp": errorOf(b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq})),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("creation of %s from destroyed objects: got %v, want EINVAL", what, err)
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

// TestFailedDriverMethodLeavesNothing checks that a failing driver method leaves neither objects nor charged pages.
func TestFailedDriverMethodLeavesNothing(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 10))
	must(t, err)
	acct := umem.NewAccount(nil)
	b.drv.fail = func(what string) error {
		if strings.HasPrefix(what, "create") || strings.HasPrefix(what, "alloc") || strings.HasPrefix(what, "reg") {
			return syscall.ENOMEM
		}
		return nil
	}
	before := b.dev.Objects()
	for what, err := range map[string]error{
		"pd": errorOf(b.dev.AllocPD()),
		"mr": errorOf(b.pd.RegMR(MRInit{Space: mem, Account: acct, Addr: addr, Length: 1, Access: 0})),
		"cq": errorOf(b.dev.CreateCQ(CQInit{Entries: 1})),
		"qp": errorOf(b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq})),
		"ah": errorOf(b.pd.CreateAH(&AHAttr{})),
	} {
		if !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if b.dev.Objects() != before || acct.Pages() != 0 {
		t.Errorf("after a failed create: got objects %v and %[3]d charged pages, want %[2]v and 0",
			b.dev.Objects(), before, acct.Pages())
	}
	b.drv.fail = func(what string) error { return syscall.EIO }
	if err := b.qp.Destroy(); !errors.Is(err, syscall.EIO) {
		t.Errorf("destroy qp: %v", err)
	}
	b.drv.fail = nil
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
}

func TestObjectsOfAnotherDeviceAreRejected(t *testing.T) {
	a, b := newBench(t, nil, nil, nil), newBench(t, nil, nil, nil)
	if _, err := a.pd.CreateQP(QPInitAttr{SendCQ: a.cq, RecvCQ: b.cq}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v", err)
	}
	if _, err := a.pd.CreateQP(QPInitAttr{SendCQ: a.cq}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateQP without a receive queue: got %v, want EINVAL", err)
	}
	must(t, a.qp.Destroy())
	must(t, a.cq.Destroy())
	must(t, a.pd.Dealloc())
}

func TestRegMRRejectsBadArguments(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 10))
	must(t, err)
	acct := umem.NewAccount(func() uint64 { return umem.PageSize })
	for _, test := range []struct {
		name   string
		length uint64
		access AccessFlags
		want   error
	}{
		{"remote write without local write", 10, AccessRemoteWrite, syscall.EINVAL},
		{"atomics without local write", 10, AccessRemoteAtomic, syscall.EINVAL},
		{"unmapped memory", 11, AccessLocalWrite, syscall.EFAULT},
		{"over the limit", 4 * umem.PageSize, AccessLocalWrite, syscall.ENOMEM},
		{"on demand, of a device without", 10, AccessOnDemand, syscall.EOPNOTSUPP},
		{"fine", 10, AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead, nil},
	} {
		mr, err := b.pd.RegMR(MRInit{Space: mem, Account: acct, Addr: addr, Length: test.length, IOVA: 0,
			Access: test.access})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
		if err == nil {
			if mr.LKey() != 1 || mr.RKey() != 2 || mr.Region().Len() != 10 || mr.Access() != test.access {
				t.Errorf("%+v", mr)
			}
			must(t, mr.Dereg())
		}
	}
	if acct.Pages() != 0 {
		t.Errorf("charged pages: got %d, want 0", acct.Pages())
	}
}

// TestErrorStateForbidsCreation checks the error state of a device. No object can be created or modified, but a queue
// pair can be moved to ERR or RESET and every object can be destroyed.
func TestErrorStateForbidsCreation(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	init := QPAttr{State: QPInit, Port: 1}
	initMask := QPAttrState | QPAttrPort | QPAttrPKeyIndex | QPAttrAccessFlags
	must(t, b.qp.Modify(init, initMask))
	b.dev.handle.SetError()
	if b.dev.State() != DeviceError {
		t.Fatalf("device state: got %v", b.dev.State())
	}
	for what, err := range map[string]error{
		"pd":     errorOf(b.dev.AllocPD()),
		"mr":     errorOf(b.pd.RegMR(MRInit{Space: umem.NewLocal(), Addr: 0, Length: 0, Access: 0})),
		"cq":     errorOf(b.dev.CreateCQ(CQInit{Entries: 1})),
		"qp":     errorOf(b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq})),
		"ah":     errorOf(b.pd.CreateAH(&AHAttr{})),
		"modify": b.qp.Modify(init, initMask),
	} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: got %v, want EIO", what, err)
		}
	}
	must(t, b.qp.Modify(QPAttr{State: QPErr}, QPAttrState))
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
	must(t, b.core.Unregister(&b.dev.handle))
	b.dev.handle.SetError()
	if b.dev.State() != DeviceGone {
		t.Errorf("device state after SetError on an unregistered device: got %v, want DeviceGone", b.dev.State())
	}
}

func TestCQResizeWithoutDriverIsUnsupported(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	if err := b.cq.Resize(32); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("got %v", err)
	}
	if _, err := b.dev.CreateCQ(CQInit{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no entries: %v", err)
	}
}

// TestRegMRSetsAddress checks the addresses of regions. A consumer's region has its memory address unless IOVA is set.
// RegBytes registers a byte slice. A program's IOVA is used unchanged, even 0.
func TestRegMRSetsAddress(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 64))
	must(t, err)
	side := ForUser(gate.NewKey())
	reg := func(init MRInit) (*MR, error) { return b.pd.RegMR(init) }
	forUser := func(init MRInit) (*MR, error) { return side.RegMR(b.pd, init, nil) }
	for _, test := range []struct {
		what   string
		reg    func(MRInit) (*MR, error)
		iova   uint64
		access AccessFlags
		want   uint64
	}{
		{"no IOVA", reg, 0, 0, addr},
		{"an IOVA", reg, 4096, 0, 4096},
		{"zero based", reg, 0, AccessZeroBased, 0},
		{"zero based with an IOVA", reg, 4096, AccessZeroBased, 0},
		{"a program's address 0", forUser, 0, 0, 0},
		{"a program's address", forUser, addr, 0, addr},
	} {
		mr, err := test.reg(MRInit{Space: mem, Addr: addr, Length: 64, IOVA: test.iova, Access: test.access})
		must(t, err)
		if mr.Addr() != test.want {
			t.Errorf("%s: got address %#x, want %#x", test.what, mr.Addr(), test.want)
		}
		must(t, mr.Dereg())
	}
	buf := []byte("bytes")
	mr, err := b.pd.RegBytes(buf, AccessLocalWrite)
	must(t, err)
	got := make([]byte, len(buf))
	must(t, mr.Region().ReadV([][]byte{got}, mr.Addr()))
	if string(got) != "bytes" {
		t.Errorf("read %q", got)
	}
	must(t, mr.Dereg())
	b.destroyAll(t)
}

// TestForUserNeedsKey checks that the calls for user contexts panic without the key.
func TestForUserNeedsKey(t *testing.T) {
	d, _ := newDevice("fake0")
	for what, f := range map[string]func(){
		"ForUser":          func() { ForUser(gate.Key{}) },
		"UserSide.AllocPD": func() { _, _ = UserSide{}.AllocPD(d, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got no panic, want a panic", what)
				}
			}()
			f()
		}()
	}
}
