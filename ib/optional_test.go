package ib

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/umem"
)

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// TestMissingInterfacesAreUnsupported checks a driver without optional interfaces. The calls must return EOPNOTSUPP and
// leave no objects.
func TestMissingInterfacesAreUnsupported(t *testing.T) {
	b := newBench(t, nil, nil, nil)
	before := b.dev.Objects()
	for what, err := range map[string]error{
		"srq":      errorOf(b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 1}})),
		"mw":       errorOf(b.pd.AllocMW(MWType1)),
		"mr":       errorOf(b.pd.AllocMR(1)),
		"xrcd":     errorOf(b.dev.AllocXRCD()),
		"resize":   b.cq.Resize(4),
		"moderate": b.cq.Moderate(4, 0),
		"attach":   b.qp.AttachMcast(GID{0: 0xff}, 0),
		"detach":   b.qp.DetachMcast(GID{0: 0xff}, 0),
	} {
		wantErrno(t, what, err, syscall.EOPNOTSUPP)
	}
	if b.dev.Objects() != before {
		t.Errorf("got objects %v, want %v", b.dev.Objects(), before)
	}
	b.destroyAll(t)
}

func TestOptionalObjectsCountUses(t *testing.T) {
	b := newFullBench(t)
	srq, err := b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 4}})
	must(t, err)
	qp, err := b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq, Type: QPTypeRC})
	must(t, err)
	wantErrno(t, "srq with qp", srq.Destroy(), syscall.EBUSY)
	must(t, qp.Destroy())
	must(t, srq.Destroy())
	wantErrno(t, "srq twice", srq.Destroy(), syscall.EINVAL)

	x, err := b.dev.AllocXRCD()
	must(t, err)
	xsrq, err := b.pd.CreateSRQ(SRQInitAttr{Type: SRQXRC, XRCD: x, CQ: b.cq, Attr: SRQAttr{MaxWR: 4}})
	must(t, err)
	tgt, err := b.pd.CreateQP(QPInitAttr{XRCD: x, Type: QPTypeXRCTgt})
	must(t, err)
	ini, err := b.pd.CreateQP(QPInitAttr{SendCQ: b.cq, Type: QPTypeXRCInit})
	must(t, err)
	if xsrq.Num() != 7 || xsrq.PD() != b.pd || xsrq.Init().CQ != b.cq {
		t.Errorf("%+v", xsrq.Init())
	}
	wantErrno(t, "xrcd with srq, qp", x.Dealloc(), syscall.EBUSY)
	must(t, tgt.Destroy())
	wantErrno(t, "xrcd with srq", x.Dealloc(), syscall.EBUSY)
	must(t, xsrq.Destroy())
	must(t, x.Dealloc())
	must(t, ini.Destroy())

	mw, err := b.pd.AllocMW(MWType2)
	must(t, err)
	mr, err := b.pd.AllocMR(3)
	must(t, err)
	must(t, b.qp.AttachMcast(GID{0: 0xff}, 0))
	if got := b.dev.Objects().String(); got != "1 PD, 1 MR, 1 CQ, 1 QP, 1 MW" {
		t.Errorf("objects: %s", got)
	}
	wantErrno(t, "qp in a group", b.qp.Destroy(), syscall.EBUSY)
	must(t, b.qp.DetachMcast(GID{0: 0xff}, 0))
	must(t, b.qp.Destroy())
	must(t, b.cq.Destroy())
	wantErrno(t, "pd with mw, mr", b.pd.Dealloc(), syscall.EBUSY)
	must(t, mw.Dealloc())
	wantErrno(t, "pd with mr", b.pd.Dealloc(), syscall.EBUSY)
	must(t, mr.Dereg())
	must(t, b.pd.Dealloc())
	must(t, b.core.Unregister(&b.dev.handle))
}

func TestOptionalCallsRejectBadArguments(t *testing.T) {
	b := newFullBench(t)
	x, err := b.dev.AllocXRCD()
	must(t, err)
	srq, err := b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 4}})
	must(t, err)
	cq := b.cq
	qp := func(init QPInitAttr) error { return errorOf(b.pd.CreateQP(init)) }
	for what, err := range map[string]error{
		"srq of no room":          errorOf(b.pd.CreateSRQ(SRQInitAttr{})),
		"srq, limit above room":   errorOf(b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 1, Limit: 2}})),
		"basic srq with a domain": errorOf(b.pd.CreateSRQ(SRQInitAttr{XRCD: x, Attr: SRQAttr{MaxWR: 1}})),
		"basic srq with a cq":     errorOf(b.pd.CreateSRQ(SRQInitAttr{CQ: cq, Attr: SRQAttr{MaxWR: 1}})),
		"xrc srq without":         errorOf(b.pd.CreateSRQ(SRQInitAttr{Type: SRQXRC, Attr: SRQAttr{MaxWR: 1}})),
		"srq of no type":          errorOf(b.pd.CreateSRQ(SRQInitAttr{Type: 2, Attr: SRQAttr{MaxWR: 1}})),
		"srq attributes":          srq.Modify(SRQAttr{}, 4),
		"mw of no type":           errorOf(b.pd.AllocMW(3)),
		"mr of no pages":          errorOf(b.pd.AllocMR(0)),
		"group of a single":       b.qp.AttachMcast(GID{0: 0xfe}, 0),
		"moderate backwards":      cq.Moderate(1, -1),
		"moderate too long":       cq.Moderate(1, time.Second),
		"moderate too many":       cq.Moderate(1<<16, 0),
		"no queues":               qp(QPInitAttr{Type: QPTypeRC}),
		"no receive queue":        qp(QPInitAttr{Type: QPTypeRC, SendCQ: cq}),
		"initiator without queue": qp(QPInitAttr{Type: QPTypeXRCInit, RecvCQ: cq}),
		"initiator with srq":      qp(QPInitAttr{Type: QPTypeXRCInit, SendCQ: cq, SRQ: srq}),
		"target without a domain": qp(QPInitAttr{Type: QPTypeXRCTgt}),
		"target with queues":      qp(QPInitAttr{Type: QPTypeXRCTgt, XRCD: x, SendCQ: cq, RecvCQ: cq}),
		"target with srq":         qp(QPInitAttr{Type: QPTypeXRCTgt, XRCD: x, SRQ: srq}),
		"RC with an XRC domain":   qp(QPInitAttr{Type: QPTypeRC, XRCD: x, SendCQ: cq, RecvCQ: cq}),
		"map what has its own":    (&MR{object: object{dev: b.dev}, drv: fakeMR{b.drv}}).Map(umem.NewLocal(), nil, nil, 0),
	} {
		wantErrno(t, what, err, syscall.EINVAL)
	}
	must(t, cq.Moderate(5, time.Millisecond))
	if c := cq.drv.(*fullCQ); c.count != 5 || c.period != time.Millisecond {
		t.Errorf("Moderate: driver got %d, %v", c.count, c.period)
	}
	must(t, cq.Resize(30))
	if cq.Entries() != 31 {
		t.Errorf("got %d entries", cq.Entries())
	}
	must(t, errors.Join(x.Dealloc(), srq.Destroy()))
	b.destroyAll(t)
}

func TestOptionalCallsReturnErrors(t *testing.T) {
	b := newFullBench(t)
	acct := umem.NewAccount(nil)
	mem := umem.NewLocal()
	addr, err := mem.Add(make([]byte, 10))
	must(t, err)
	mr, err := b.pd.AllocMR(1)
	must(t, err)
	srq, err := b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 4}})
	must(t, err)
	before := b.dev.Objects()
	try := func(want syscall.Errno) {
		t.Helper()
		for what, err := range map[string]error{
			"srq":        errorOf(b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 1}})),
			"mw":         errorOf(b.pd.AllocMW(MWType1)),
			"mr":         errorOf(b.pd.AllocMR(1)),
			"xrcd":       errorOf(b.dev.AllocXRCD()),
			"attach":     b.qp.AttachMcast(GID{0: 0xff}, 0),
			"map":        mr.Map(mem, acct, []umem.Range{{Addr: addr, Length: 10}}, 0),
			"modify srq": srq.Modify(SRQAttr{}, 0),
		} {
			wantErrno(t, what, err, want)
		}
		if b.dev.Objects() != before || acct.Pages() != 0 {
			t.Errorf("after failed calls: got objects %v and %[3]d charged pages, want %[2]v and 0",
				b.dev.Objects(), before, acct.Pages())
		}
	}
	b.drv.fail = func(string) error { return syscall.ENOMEM }
	try(syscall.ENOMEM)
	wantErrno(t, "detach", b.qp.DetachMcast(GID{0: 0xff}, 0), syscall.ENOMEM)
	wantErrno(t, "destroy srq", srq.Destroy(), syscall.ENOMEM)
	_, err = srq.Query()
	wantErrno(t, "query srq", err, syscall.ENOMEM)
	b.drv.fail = nil
	b.dev.handle.SetError()
	try(syscall.EIO)
	wantErrno(t, "moderate", b.cq.Moderate(1, 0), syscall.EIO)
	must(t, errors.Join(mr.Dereg(), srq.Destroy()))
	b.destroyAll(t)
}

// TestFastRegMapChargesMemory checks that the memory of a fast registration is charged while it is mapped.
func TestFastRegMapChargesMemory(t *testing.T) {
	b := newFullBench(t)
	acct := umem.NewAccount(nil)
	mem := umem.NewLocal()
	buf := make([]byte, 4*umem.PageSize)
	addr, err := mem.Add(buf)
	must(t, err)
	first := (addr + umem.PageSize - 1) / umem.PageSize * umem.PageSize // aligned
	mr, err := b.pd.AllocMR(2)
	must(t, err)
	drv := mr.drv.(*fakeFastMR)
	must(t, mr.Map(mem, acct, []umem.Range{{Addr: first, Length: 2 * umem.PageSize}}, 0x4000))
	if acct.Pages() != 2 || drv.mapped.IOVA() != 0x4000 || mr.Region() != nil {
		t.Errorf("Map: got %d charged pages and mapped memory %+v, want 2 pages at IOVA 0x4000", acct.Pages(), drv.mapped)
	}
	wantErrno(t, "too many pages", mr.Map(mem, acct, []umem.Range{{Addr: first, Length: 2*umem.PageSize + 1}}, 0),
		syscall.EINVAL)
	wantErrno(t, "not there", mr.Map(mem, acct, []umem.Range{{Addr: first + 64*umem.PageSize, Length: 1}}, 0),
		syscall.EFAULT)
	if acct.Pages() != 2 {
		t.Errorf("got %d pages charged", acct.Pages())
	}
	wantErrno(t, "too many pages of a list", mr.Map(mem, acct,
		[]umem.Range{{Addr: first, Length: 1}, {Addr: first, Length: umem.PageSize + 1}}, 0), syscall.EINVAL)
	must(t, mr.Map(mem, acct, []umem.Range{{Addr: first, Length: 1}}, 0))
	if acct.Pages() != 1 {
		t.Errorf("got %d pages charged", acct.Pages())
	}
	mr.UpdateKey(0x7f)
	if mr.LKey() != 0x127f || mr.RKey() != 0x127f {
		t.Errorf("keys: got %#x, %#x", mr.LKey(), mr.RKey())
	}
	must(t, mr.Dereg())
	if acct.Pages() != 0 {
		t.Errorf("got %d pages charged", acct.Pages())
	}
	for k, want := range map[uint32]uint32{0x1200: 0x1201, 0x12ff: 0x1200, 0xffffffff: 0xffffff00} {
		if got := IncRKey(k); got != want {
			t.Errorf("IncRKey(%#x): got %#x, want %#x", k, got, want)
		}
	}
	b.destroyAll(t)
}

func TestSRQPostQueryEventDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFullBench(t)
		var got []EventType
		release := make(chan int)
		srq, err := b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 4}, Event: func(s *SRQ, e EventType) {
			<-release
			got = append(got, e)
		}})
		must(t, err)
		if n, err := srq.PostRecv(RecvWR{}, RecvWR{}); n != 2 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		if a, err := srq.Query(); a.MaxWR != 5 || err != nil || srq.Init().Event == nil {
			t.Errorf("got %+v, %v", a, err)
		}
		SRQHandle{srq}.Raise(EventSRQLimitReached)
		synctest.Wait()
		gone := false
		go func() {
			must(t, srq.Destroy())
			gone = true
		}()
		synctest.Wait()
		if gone {
			t.Error("Destroy while the event function was running: returned, want it to wait")
		}
		close(release)
		synctest.Wait()
		if !gone || !slices.Equal(got, []EventType{EventSRQLimitReached}) {
			t.Errorf("got destroyed %v, events %v", gone, got)
		}
		b.destroyAll(t)
	})
}

func TestFindGIDAndPKeyReturnIndex(t *testing.T) {
	b := newFullBench(t)
	port, index, err := b.dev.FindGID(GID{0: 0xfe, 1: 0x80, 13: 2, 15: 1}, GIDTypeRoCEv2)
	if port != 2 || index != 1 || err != nil {
		t.Errorf("FindGID: got port %d, index %d, error %v, want port 2, index 1, no error", port, index, err)
	}
	_, _, err = b.dev.FindGID(GID{0: 0xfe, 1: 0x80, 13: 2, 15: 1}, GIDTypeIB)
	wantErrno(t, "another type", err, syscall.ENOENT)
	for pkey, want := range map[uint16]int{0xffff: 2, 0x7fff: 2, 0x8001: 1, 0x0002: 3} {
		if i, err := b.dev.FindPKey(1, pkey); i != want || err != nil {
			t.Errorf("FindPKey(%#x): got index %d, %v", pkey, i, err)
		}
	}
	_, err = b.dev.FindPKey(1, 0x8003)
	wantErrno(t, "no such key", err, syscall.ENOENT)
	_, err = b.dev.FindPKey(3, 0xffff)
	wantErrno(t, "no such port", err, syscall.EINVAL)
	b.destroyAll(t)
}

// TestEnterErrorIsCalledOnce checks that the driver's EnterError is called once, even with an observer. EnterError is
// not called for a device that is not active.
func TestEnterErrorIsCalledOnce(t *testing.T) {
	for _, observed := range []bool{false, true} {
		rec, core, drv, calls := &recordingObserver{}, &Core{}, &fakeDriver{}, 0
		if observed {
			core.setObserver(rec)
		}
		drv.fail = func(string) error { calls++; return nil }
		d := NewDevice("full0", fullDriver{drv}, nil)
		d.SetError()
		if calls != 0 || d.dev.State() != DeviceNew {
			t.Errorf("SetError before registration: got %d calls and state %v, want no calls and DeviceNew",
				calls, d.dev.State())
		}
		must(t, core.Register(d))
		d.SetError()
		d.SetError()
		if calls != 1 || d.dev.State() != DeviceError {
			t.Errorf("got %d calls, state %v", calls, d.dev.State())
		}
		must(t, core.Unregister(d))
		rec.checkAllLeft(t)
	}
}
