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

// allObjects has one object of each kind, created through package ib.
type allObjects struct {
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

func newAllObjects(t *testing.T) *allObjects {
	w := &allObjects{T: t, drv: New(), mem: umem.NewLocal()}
	w.dev = ib.NewDevice("fake0", w.drv, nil)
	d := w.dev.Device()
	w.failOnError(w.core.Register(w.dev))
	var err error
	w.at, err = w.mem.Add(make([]byte, 100))
	w.failOnError(err)
	w.pd, err = d.AllocPD()
	w.failOnError(err)
	w.mr, err = w.pd.RegMR(w.newMRInit())
	w.failOnError(err)
	w.fast, err = w.pd.AllocMR(2)
	w.failOnError(err)
	w.mw, err = w.pd.AllocMW(ib.MWType1)
	w.failOnError(err)
	w.ah, err = w.pd.CreateAH(&ib.AHAttr{SL: 3})
	w.failOnError(err)
	w.cq, err = d.CreateCQ(ib.CQInit{Entries: 7, Handler: func(*ib.CQ) {}})
	w.failOnError(err)
	w.qp, err = w.pd.CreateQP(w.newQPInitAttr())
	w.failOnError(err)
	return w
}

func (w *allObjects) failOnError(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *allObjects) newMRInit() ib.MRInit {
	return ib.MRInit{Space: w.mem, Addr: w.at, Length: 100, Access: ib.AccessLocalWrite}
}

func (w *allObjects) newQPInitAttr() ib.QPInitAttr {
	return ib.QPInitAttr{SendCQ: w.cq, RecvCQ: w.cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 5}}
}

func (w *allObjects) moveQPToInit() error {
	return w.qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
		ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags)
}

func (w *allObjects) destroyAll() {
	w.Helper()
	w.failOnError(errors.Join(w.qp.Destroy(), w.cq.Destroy(), w.ah.Destroy(), w.mw.Dealloc(), w.fast.Dereg(), w.mr.Dereg(),
		w.pd.Dealloc(),
		w.core.Unregister(w.dev)))
}

func errorOf[T any](_ T, err error) error { return err }

// callsByMethod has one call for each method that a consumer can cause.
var callsByMethod = map[Method]func(w *allObjects) error{
	QueryDevice: func(w *allObjects) error { return errorOf(w.dev.Device().QueryDevice()) },
	QueryPort:   func(w *allObjects) error { return errorOf(w.dev.Device().QueryPort(1)) },
	AllocPD:     func(w *allObjects) error { return errorOf(w.dev.Device().AllocPD()) },
	DeallocPD: func(w *allObjects) error {
		pd, err := w.dev.Device().AllocPD()
		w.failOnError(err)
		return pd.Dealloc()
	},
	RegMR:   func(w *allObjects) error { return errorOf(w.pd.RegMR(w.newMRInit())) },
	AllocMR: func(w *allObjects) error { return errorOf(w.pd.AllocMR(1)) },
	MapMR:   func(w *allObjects) error { return w.fast.Map(w.mem, nil, []umem.Range{{Addr: w.at, Length: 10}}, 0) },
	ReregMR: func(w *allObjects) error {
		return w.mr.Rereg(ib.MRChangeAccess, ib.MRChange{Access: ib.AccessRemoteRead})
	},
	DeregMR:     func(w *allObjects) error { return w.mr.Dereg() },
	AllocMW:     func(w *allObjects) error { return errorOf(w.pd.AllocMW(ib.MWType2)) },
	DeallocMW:   func(w *allObjects) error { return w.mw.Dealloc() },
	CreateAH:    func(w *allObjects) error { return errorOf(w.pd.CreateAH(&ib.AHAttr{})) },
	ModifyAH:    func(w *allObjects) error { return w.ah.Modify(&ib.AHAttr{SL: 5}) },
	QueryAH:     func(w *allObjects) error { return errorOf(w.ah.Query()) },
	DestroyAH:   func(w *allObjects) error { return w.ah.Destroy() },
	CreateCQ:    func(w *allObjects) error { return errorOf(w.dev.Device().CreateCQ(ib.CQInit{Entries: 1})) },
	ResizeCQ:    func(w *allObjects) error { return w.cq.Resize(9) },
	PollCQ:      func(w *allObjects) error { return errorOf(w.cq.Poll(make([]ib.WC, 1))) },
	ReqNotifyCQ: func(w *allObjects) error { return errorOf(w.cq.ReqNotify(ib.NotifyNextComp)) },
	DestroyCQ: func(w *allObjects) error {
		cq, err := w.dev.Device().CreateCQ(ib.CQInit{Entries: 1})
		w.failOnError(err)
		return cq.Destroy()
	},
	CreateQP:  func(w *allObjects) error { return errorOf(w.pd.CreateQP(w.newQPInitAttr())) },
	ModifyQP:  func(w *allObjects) error { return w.moveQPToInit() },
	QueryQP:   func(w *allObjects) error { _, _, err := w.qp.Query(0); return err },
	PostSend:  func(w *allObjects) error { return errorOf(w.qp.PostSend(ib.SendWR{})) },
	PostRecv:  func(w *allObjects) error { return errorOf(w.qp.PostRecv(ib.RecvWR{})) },
	DestroyQP: func(w *allObjects) error { return w.qp.Destroy() },
}

// TestFailedMethodReturnsError checks that each method fails when requested, and succeeds again afterwards.
func TestFailedMethodReturnsError(t *testing.T) {
	for _, m := range parseMethods(t) {
		call := callsByMethod[m]
		if call == nil {
			if m != AllocUserContext && m != Doorbell { // package uverbs causes the calls of these methods
				t.Errorf("calls[%s]: got none, want one", m)
			}
			continue
		}
		t.Run(string(m), func(t *testing.T) {
			w := newAllObjects(t)
			w.drv.FailMethod(m, syscall.EXFULL)
			if err := call(w); !errors.Is(err, syscall.EXFULL) {
				t.Errorf("got %v, want %v", err, syscall.EXFULL)
			}
			w.drv.FailMethod(m, nil)
			if err := call(w); err != nil {
				t.Errorf("call after Fail with nil: got %v, want nil", err)
			}
		})
	}
}

// parseMethods returns the constants of type Method from the source file.
func parseMethods(t *testing.T) (all []Method) {
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

func TestHoldBlocksMethod(t *testing.T) {
	w := newAllObjects(t)
	entered, release := w.drv.HoldMethod(DestroyAH)
	done := make(chan error)
	go func() { done <- w.ah.Destroy() }()
	<-entered
	if got := w.drv.TakeDestroyedKinds(); len(got) != 0 {
		t.Errorf("Destroyed while the method is held: got %q, want none", got)
	}
	release()
	w.failOnError(<-done)
	if got := w.drv.TakeDestroyedKinds(); !slices.Equal(got, []string{"AH"}) {
		t.Errorf("got %q", got)
	}
	if err := w.ah.Destroy(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("after release: got %v", err)
	}
}

// TestObjectsExposeState checks the state that the objects of the driver expose to tests.
func TestObjectsExposeState(t *testing.T) {
	w := newAllObjects(t)
	defer w.destroyAll()
	w.failOnError(w.moveQPToInit())
	q := w.dev.QP(w.qp).(*QP)
	if a, mask := q.lastModifyArgs(); a.Port != 1 || mask&ib.QPAttrPort == 0 || w.qp.State() != ib.QPInit {
		t.Errorf("Modified: got %+v, %v", a, mask)
	}
	if w.qp.Init().Cap.MaxSendWR != 6 || w.cq.Entries() != 8 {
		t.Errorf("capacities: got %+v, %d", w.qp.Init().Cap, w.cq.Entries())
	}
	n, err := w.qp.PostSend(ib.SendWR{ID: 1}, ib.SendWR{ID: 2}, ib.SendWR{ID: 3}, ib.SendWR{ID: 4})
	if n != qpQueueCapacity || !errors.Is(err, syscall.ENOMEM) || len(q.SentRequests()) != qpQueueCapacity ||
		q.SentRequests()[2].ID != 3 {
		t.Errorf("post send: got %d, %v, %+v", n, err, q.SentRequests())
	}
	if n, err := w.qp.PostRecv(ib.RecvWR{ID: 7}); n != 1 || err != nil || q.ReceiveRequests()[0].ID != 7 {
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
	w.failOnError(callsByMethod[MapMR](w))
	if r := w.dev.MR(w.fast).(*fastMR).LastMapped(); r.Len() != 10 {
		t.Errorf("Mapped: got %+v", r)
	}
	if a, err := w.ah.Query(); err != nil || a.SL != 3 {
		t.Errorf("address: got %+v, %v", a, err)
	}
}
