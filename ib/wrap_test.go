package ib

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"verbena/umem"
)

// wrappedDriver is a transparent wrapper of a driver. Neither the wrapper nor its objects implement an optional
// interface.
type wrappedDriver struct{ Driver }

func (w wrappedDriver) Unwrap() Driver { return w.Driver }

type wrappedMR struct{ DriverMR }

func (w wrappedMR) Unwrap() DriverMR { return w.DriverMR }

type wrappedCQ struct{ DriverCQ }

func (w wrappedCQ) Unwrap() DriverCQ { return w.DriverCQ }

type wrappedQP struct{ DriverQP }

func (w wrappedQP) Unwrap() DriverQP { return w.DriverQP }

func (w wrappedDriver) RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR, error) {
	m, err := w.Driver.RegMR(mr, pd, r, access, u)
	return wrappedMR{m}, err
}

func (w wrappedDriver) CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error) {
	c, err := w.Driver.CreateCQ(cq, attr, u)
	return wrappedCQ{c}, err
}

func (w wrappedDriver) CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error) {
	q, err := w.Driver.CreateQP(qp, init, u)
	return wrappedQP{q}, err
}

// fullUserDriver is a driver that also implements the interfaces for user contexts.
type fullUserDriver struct{ fullDriver }

func (fullUserDriver) AllocUserContext(*Udata) error                           { return nil }
func (fullUserDriver) DeallocUserContext(UserContext)                          {}
func (fullUserDriver) Disassociate(UserContext)                                {}
func (fullUserDriver) AdviseMR(DriverPD, MRAdvice, MRAdviceFlags, []SGE) error { return nil }
func (d fullUserDriver) CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error) {
	q, err := d.fullDriver.CreateQP(qp, init, u)
	return &userQP{q.(*fullQP)}, err
}

type userQP struct{ *fullQP }

func (*userQP) Doorbell(*Hold)         {}
func (*userQP) Posted() (uint32, bool) { return 0, false }
func (*userQP) TakeBack()              {}

// TestWrappersKeepAbilities checks that a driver, wrapped once or twice, has all its optional interfaces.
func TestWrappersKeepAbilities(t *testing.T) {
	for _, wrap := range []func(Driver) Driver{
		func(d Driver) Driver { return d },
		func(d Driver) Driver { return wrappedDriver{d} },
		func(d Driver) Driver { return wrappedDriver{wrappedDriver{d}} },
	} {
		core := &Core{}
		d := NewDevice("full0", wrap(fullUserDriver{fullDriver{&fakeDriver{}}}), nil)
		must(t, core.Register(d))
		dev := d.Device()
		pd, err := dev.AllocPD()
		must(t, err)
		cq, err := dev.CreateCQ(CQInit{Entries: 1})
		must(t, err)
		qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: QPTypeUD})
		must(t, err)
		mr, err := pd.RegBytes(make([]byte, 8), AccessLocalWrite)
		must(t, err)
		fast, err := pd.AllocMR(1)
		must(t, err)
		srq, err := pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 1}})
		must(t, err)
		mw, err := pd.AllocMW(MWType1)
		must(t, err)
		x, err := dev.AllocXRCD()
		must(t, err)
		ah, err := pd.CreateAH(&AHAttr{})
		must(t, err)
		group := GID{0: 0xff}
		mem := umem.NewLocal()
		addr, err := mem.Add(make([]byte, 8))
		must(t, err)
		for what, err := range map[string]error{
			"CQResizer":      cq.Resize(2),
			"CQModerator":    cq.Moderate(2, time.Millisecond),
			"McastQP":        errors.Join(qp.AttachMcast(group, 0), qp.DetachMcast(group, 0)),
			"ReregMR":        mr.Rereg(MRChangeAccess, MRChange{Access: 0}),
			"FastMR":         fast.Map(mem, nil, []umem.Range{{Addr: addr, Length: 8}}, addr),
			"MRAdviser":      pd.AdviseMR(0, 0, nil),
			"UserQP":         checkHasInterface(As[UserQP](qp.drv)),
			"UserContexter":  checkHasInterface(As[UserContexter](dev.drv)),
			"Disassociator":  checkHasInterface(As[Disassociator](dev.drv)),
			"the own driver": checkHasInterface(As[fullUserDriver](dev.drv)),
		} {
			if err != nil {
				t.Errorf("%T: %s: got %v", dev.drv, what, err)
			}
		}
		must(t, errors.Join(ah.Destroy(), x.Dealloc(), mw.Dealloc(), srq.Destroy(), fast.Dereg(), mr.Dereg(), qp.Destroy(),
			cq.Destroy(),
			pd.Dealloc(), core.Unregister(d)))
	}
	if _, ok := As[UserQP](DriverQP(nil)); ok {
		t.Error("As(nil): got an interface, want none")
	}
}

func checkHasInterface[T any](_ T, ok bool) error {
	if !ok {
		return errors.New("lost")
	}
	return nil
}

// redirectingDriver is a wrapper that passes its own handles to the wrapped driver.
type redirectingDriver struct {
	Driver
	completed int
	cq        CQHandle
	raised    []EventType
	qp        QPHandle
}

func (d *redirectingDriver) Unwrap() Driver { return d.Driver }

func (d *redirectingDriver) CreateCQ(cq CQHandle, attr CQAttr, u *Udata) (DriverCQ, error) {
	d.cq = cq.Redirect(func() { d.completed++ })
	return d.Driver.CreateCQ(d.cq, attr, u)
}

func (d *redirectingDriver) CreateQP(qp QPHandle, init *DriverQPInit, u *Udata) (DriverQP, error) {
	d.qp = qp.Redirect(func(e EventType) { d.raised = append(d.raised, e) })
	return d.Driver.CreateQP(d.qp, init, u)
}

func (d *redirectingDriver) RegMR(mr MRHandle, pd DriverPD, r *umem.Region, access AccessFlags, u *Udata) (DriverMR,
	error) {
	return d.Driver.RegMR(mr.Redirect(func(lkey, rkey uint32) { mr.SetKeys(lkey+100, rkey) }), pd, r, access, u)
}

// TestRedirect checks that a wrapper receives the reports of the wrapped driver, and can replace them.
func TestRedirect(t *testing.T) {
	var d *redirectingDriver
	h := NewDevice("full0", fullDriver{&fakeDriver{}}, nil)
	h.Wrap(func(inner Driver) Driver {
		d = &redirectingDriver{Driver: inner}
		return d
	})
	core := &Core{}
	must(t, core.Register(h))
	dev := h.Device()
	calls := make(chan struct{}, 2)
	cq, err := dev.CreateCQ(CQInit{Entries: 1, Handler: func(*CQ) { calls <- struct{}{} }})
	must(t, err)
	d.cq.Completed()
	if d.completed != 1 || len(calls) != 0 {
		t.Errorf("completion: got %d calls of the wrapper and %d of the handler, want 1 and 0", d.completed, len(calls))
	}
	CQHandle{cq: cq}.Completed()
	<-calls
	pd, err := dev.AllocPD()
	must(t, err)
	events := make(chan EventType, 2)
	qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: QPTypeRC,
		Event: func(_ *QP, e EventType) { events <- e }})
	must(t, err)
	d.qp.Raise(EventCommEst)
	QPHandle{qp: qp}.Raise(EventSQDrained)
	if e := <-events; !slices.Equal(d.raised, []EventType{EventCommEst}) || e != EventSQDrained {
		t.Errorf("event: got %v in the wrapper and %v in the consumer, want EventCommEst and EventSQDrained", d.raised, e)
	}
	mr, err := pd.RegBytes(make([]byte, 8), AccessLocalWrite)
	must(t, err)
	if key := (QPHandle{qp: qp}).LKey(mr); mr.LKey() != key+100 || mr.RKey() != 2 {
		t.Errorf("keys: got local %d, remote %d and driver's %d, want the local key 100 above the driver's key and remote 2",
			mr.LKey(), mr.RKey(), key)
	}
	ah, err := pd.CreateAH(&AHAttr{})
	must(t, err)
	twin, err := d.qp.CopyAH(ah, fullDriver{&fakeDriver{}})
	must(t, errors.Join(err, ah.Destroy()))
	if d.qp.AH(ah) != nil || d.qp.AH(twin) == nil {
		t.Error("destruction of an address handle: got the copy destroyed as well, want only the original")
	}
	_, err = d.qp.CopyAH(ah, fullDriver{&fakeDriver{}})
	wantErrno(t, "CopyAH of a destroyed address handle", err, syscall.EINVAL)
	var lkey uint32
	MRHandle{}.Redirect(func(l, _ uint32) { lkey = l }).SetKeys(7, 8)
	if lkey != 7 {
		t.Errorf("local key of a region without an MR: got %d, want 7", lkey)
	}
	must(t, errors.Join(mr.Dereg(), qp.Destroy(), pd.Dealloc(), cq.Destroy(), core.Unregister(h)))
}
