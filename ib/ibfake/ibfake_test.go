package ibfake

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"verbena/ib"
	"verbena/umem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has one object of each kind, created through package ib.
type world struct {
	*testing.T
	core ib.Core
	drv  *Driver
	dev  *ib.DeviceHandle
	mem  *umem.Local
	at   uint64
	pd   *ib.PD
	mr   *ib.MR
	fast *ib.MR
	mw   *ib.MW
	ah   *ib.AH
	cq   *ib.CQ
	qp   *ib.QP
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, drv: New(), mem: umem.NewLocal()}
	w.dev = ib.NewDevice("fake0", w.drv, nil)
	d := w.dev.Device()
	w.must(w.core.Register(w.dev))
	var err error
	w.at, err = w.mem.Add(make([]byte, 100))
	w.must(err)
	w.pd, err = d.AllocPD()
	w.must(err)
	w.mr, err = w.pd.RegMR(w.region())
	w.must(err)
	w.fast, err = w.pd.AllocMR(2)
	w.must(err)
	w.mw, err = w.pd.AllocMW(ib.MWType1)
	w.must(err)
	w.ah, err = w.pd.CreateAH(&ib.AHAttr{SL: 3})
	w.must(err)
	w.cq, err = d.CreateCQ(ib.CQInit{Entries: 7, Handler: func(*ib.CQ) {}})
	w.must(err)
	w.qp, err = w.pd.CreateQP(w.init())
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) region() ib.MRInit {
	return ib.MRInit{Space: w.mem, Addr: w.at, Length: 100, Access: ib.AccessLocalWrite}
}

func (w *world) init() ib.QPInitAttr {
	return ib.QPInitAttr{SendCQ: w.cq, RecvCQ: w.cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 5}}
}

func (w *world) toInit() error {
	return w.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
		ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags)
}

func (w *world) free() {
	w.Helper()
	w.must(errors.Join(w.qp.Destroy(), w.cq.Destroy(), w.ah.Destroy(), w.mw.Dealloc(), w.fast.Dereg(), w.mr.Dereg(),
		w.pd.Dealloc(),
		w.core.Unregister(w.dev)))
}

func second[T any](_ T, err error) error { return err }

// calls has one call for each method that a consumer can cause.
var calls = map[Method]func(w *world) error{
	QueryDevice: func(w *world) error { return second(w.dev.Device().QueryDevice()) },
	QueryPort:   func(w *world) error { return second(w.dev.Device().QueryPort(1)) },
	AllocPD:     func(w *world) error { return second(w.dev.Device().AllocPD()) },
	DeallocPD: func(w *world) error {
		pd, err := w.dev.Device().AllocPD()
		w.must(err)
		return pd.Dealloc()
	},
	RegMR:       func(w *world) error { return second(w.pd.RegMR(w.region())) },
	AllocMR:     func(w *world) error { return second(w.pd.AllocMR(1)) },
	MapMR:       func(w *world) error { return w.fast.Map(w.mem, nil, []umem.Range{{Addr: w.at, Length: 10}}, 0) },
	ReregMR:     func(w *world) error { return w.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessRemoteRead}) },
	DeregMR:     func(w *world) error { return w.mr.Dereg() },
	AllocMW:     func(w *world) error { return second(w.pd.AllocMW(ib.MWType2)) },
	DeallocMW:   func(w *world) error { return w.mw.Dealloc() },
	CreateAH:    func(w *world) error { return second(w.pd.CreateAH(&ib.AHAttr{})) },
	ModifyAH:    func(w *world) error { return w.ah.Modify(&ib.AHAttr{SL: 5}) },
	QueryAH:     func(w *world) error { return second(w.ah.Query()) },
	DestroyAH:   func(w *world) error { return w.ah.Destroy() },
	CreateCQ:    func(w *world) error { return second(w.dev.Device().CreateCQ(ib.CQInit{Entries: 1})) },
	ResizeCQ:    func(w *world) error { return w.cq.Resize(9) },
	PollCQ:      func(w *world) error { return second(w.cq.Poll(make([]ib.WC, 1))) },
	ReqNotifyCQ: func(w *world) error { return second(w.cq.ReqNotify(ib.NotifyNextComp)) },
	DestroyCQ: func(w *world) error {
		cq, err := w.dev.Device().CreateCQ(ib.CQInit{Entries: 1})
		w.must(err)
		return cq.Destroy()
	},
	CreateQP:  func(w *world) error { return second(w.pd.CreateQP(w.init())) },
	ModifyQP:  func(w *world) error { return w.toInit() },
	QueryQP:   func(w *world) error { _, _, err := w.qp.Query(0); return err },
	PostSend:  func(w *world) error { return second(w.qp.PostSend(ib.SendWR{})) },
	PostRecv:  func(w *world) error { return second(w.qp.PostRecv(ib.RecvWR{})) },
	DestroyQP: func(w *world) error { return w.qp.Destroy() },
}

// TestFail checks that each method fails when requested, and succeeds again afterwards.
func TestFail(t *testing.T) {
	for _, m := range methods(t) {
		call := calls[m]
		if call == nil {
			if m != AllocUserContext && m != Doorbell { // package uverbs causes the calls of these methods
				t.Errorf("calls[%s]: got none, want one", m)
			}
			continue
		}
		t.Run(string(m), func(t *testing.T) {
			w := newWorld(t)
			w.drv.Fail(m, syscall.EXFULL)
			if err := call(w); !errors.Is(err, syscall.EXFULL) {
				t.Errorf("got %v, want %v", err, syscall.EXFULL)
			}
			w.drv.Fail(m, nil)
			if err := call(w); err != nil {
				t.Errorf("call after Fail with nil: got %v, want nil", err)
			}
		})
	}
}

// methods returns the constants of type Method from the source file.
func methods(t *testing.T) (all []Method) {
	f, err := parser.ParseFile(token.NewFileSet(), "driver.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Method" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Method(s))
		}
		return true
	})
	if len(all) < 20 {
		t.Fatalf("got only %d methods", len(all))
	}
	return all
}

func TestHold(t *testing.T) {
	w := newWorld(t)
	entered, release := w.drv.Hold(DestroyAH)
	done := make(chan error)
	go func() { done <- w.ah.Destroy() }()
	<-entered
	if got := w.drv.Destroyed(); len(got) != 0 {
		t.Errorf("Destroyed while the method is held: got %q, want none", got)
	}
	release()
	w.must(<-done)
	if got := w.drv.Destroyed(); !slices.Equal(got, []string{"AH"}) {
		t.Errorf("got %q", got)
	}
	if err := w.ah.Destroy(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("after release: got %v", err)
	}
}

// TestObjects checks the state that the objects of the driver expose to tests.
func TestObjects(t *testing.T) {
	w := newWorld(t)
	defer w.free()
	w.must(w.toInit())
	q := w.dev.QP(w.qp).(*QP)
	if a, mask := q.Modified(); a.Port != 1 || mask&ib.QPAttrPort == 0 || w.qp.State() != ib.QPInit {
		t.Errorf("Modified: got %+v, %v", a, mask)
	}
	if w.qp.Init().Cap.MaxSendWR != 6 || w.cq.Entries() != 8 {
		t.Errorf("capacities: got %+v, %d", w.qp.Init().Cap, w.cq.Entries())
	}
	n, err := w.qp.PostSend(ib.SendWR{ID: 1}, ib.SendWR{ID: 2}, ib.SendWR{ID: 3}, ib.SendWR{ID: 4})
	if n != qpRoom || !errors.Is(err, syscall.ENOMEM) || len(q.Sent()) != qpRoom || q.Sent()[2].ID != 3 {
		t.Errorf("post send: got %d, %v, %+v", n, err, q.Sent())
	}
	if n, err := w.qp.PostRecv(ib.RecvWR{ID: 7}); n != 1 || err != nil || q.Received()[0].ID != 7 {
		t.Errorf("post receive: got %d, %v", n, err)
	}
	c := w.dev.CQ(w.cq).(*CQ)
	c.Complete(ib.WC{ID: 5})
	if missed, err := w.cq.ReqNotify(ib.NotifyNextComp | ib.NotifyReportMissed); !missed || err != nil {
		t.Errorf("ReqNotify: got missed %v, %v", missed, err)
	}
	var wc [2]ib.WC
	if n, err := w.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].ID != 5 {
		t.Errorf("poll: got %d, %v, %+v", n, err, wc[0])
	}
	w.must(calls[MapMR](w))
	if r := w.dev.MR(w.fast).(*fastMR).Mapped(); r.Len() != 10 {
		t.Errorf("Mapped: got %+v", r)
	}
	if a, err := w.ah.Query(); err != nil || a.SL != 3 {
		t.Errorf("address: got %+v, %v", a, err)
	}
}
