package ib

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"verbena/umem"
)

// What something refers to cannot be destroyed; the reference ends with the object that holds it.
func TestUseCounts(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 10))
	must(t, err)
	mr, err := b.pd.RegMR(mem, nil, addr, 10, addr, AccessLocalWrite, nil)
	must(t, err)
	ah, err := b.pd.CreateAH(&AHAttr{}, nil)
	must(t, err)

	busy := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v, want EBUSY", what, err)
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
		t.Errorf("left: %s", left)
	}
	for what, err := range map[string]error{"pd": b.pd.Dealloc(), "cq": b.cq.Destroy(), "qp": b.qp.Destroy(), "mr": mr.Dereg(), "ah": ah.Destroy()} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s destroyed twice: %v, want EINVAL", what, err)
		}
	}
	for what, err := range map[string]error{
		"mr": second(b.pd.RegMR(mem, nil, addr, 1, addr, 0, nil)),
		"ah": second(b.pd.CreateAH(&AHAttr{}, nil)),
		"qp": second(b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq}, nil)),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s made of destroyed objects: %v, want EINVAL", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// When the driver refuses, nothing stays behind.
func TestDriverRefuses(t *testing.T) {
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
		"pd": second(b.dev.AllocPD(nil)),
		"mr": second(b.pd.RegMR(mem, acct, addr, 1, addr, 0, nil)),
		"cq": second(b.dev.CreateCQ(CQAttr{Entries: 1}, nil, nil, nil)),
		"qp": second(b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq}, nil)),
		"ah": second(b.pd.CreateAH(&AHAttr{}, nil)),
	} {
		if !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if b.dev.Objects() != before || acct.Pages() != 0 {
		t.Errorf("objects %v, were %v; %d pages", b.dev.Objects(), before, acct.Pages())
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

func TestObjectsOfAnotherDevice(t *testing.T) {
	a, b := newBench(t, nil, nil, nil), newBench(t, nil, nil, nil)
	if _, err := a.pd.CreateQP(QPInitAttr{SendCQ: a.cq, RecvCQ: b.cq}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v", err)
	}
	if _, err := a.pd.CreateQP(QPInitAttr{SendCQ: a.cq}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without a receive queue: %v", err)
	}
	must(t, a.qp.Destroy())
	must(t, a.cq.Destroy())
	must(t, a.pd.Dealloc())
}

func TestRegMRChecks(t *testing.T) {
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
		{"memory that is not there", 11, AccessLocalWrite, syscall.EFAULT},
		{"over the limit", 4 * umem.PageSize, AccessLocalWrite, syscall.ENOMEM},
		{"on demand, of a device without", 10, AccessOnDemand, syscall.EOPNOTSUPP},
		{"fine", 10, AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead, nil},
	} {
		mr, err := b.pd.RegMR(mem, acct, addr, test.length, 0, test.access, nil)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if err == nil {
			if mr.LKey() != 1 || mr.RKey() != 2 || mr.Region().Len() != 10 || mr.Access() != test.access {
				t.Errorf("%+v", mr)
			}
			must(t, mr.Dereg())
		}
	}
	if acct.Pages() != 0 {
		t.Errorf("%d pages left", acct.Pages())
	}
}

// In the error state nothing is made or modified, but a queue pair can be stopped and everything destroyed.
func TestDeviceInError(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	init := QPAttr{State: QPInit, Port: 1}
	initMask := QPAttrState | QPAttrPort | QPAttrPKeyIndex | QPAttrAccessFlags
	must(t, b.qp.Modify(init, initMask, nil))
	b.dev.SetError()
	if b.dev.State() != DeviceError {
		t.Fatalf("device is %v", b.dev.State())
	}
	for what, err := range map[string]error{
		"pd":     second(b.dev.AllocPD(nil)),
		"mr":     second(b.pd.RegMR(umem.NewLocal(), nil, 0, 0, 0, 0, nil)),
		"cq":     second(b.dev.CreateCQ(CQAttr{Entries: 1}, nil, nil, nil)),
		"qp":     second(b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq}, nil)),
		"ah":     second(b.pd.CreateAH(&AHAttr{}, nil)),
		"modify": b.qp.Modify(init, initMask, nil),
	} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", what, err)
		}
	}
	must(t, b.qp.Modify(QPAttr{State: QPErr}, QPAttrState, nil))
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	must(t, b.pd.Dealloc())
	must(t, b.core.Unregister(b.dev))
	b.dev.SetError()
	if b.dev.State() != DeviceGone {
		t.Errorf("a device that is gone became %v", b.dev.State())
	}
}

func TestCQResizeUnsupported(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	if err := b.cq.Resize(32, nil); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("got %v", err)
	}
	if _, err := b.dev.CreateCQ(CQAttr{}, nil, nil, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no entries: %v", err)
	}
}
