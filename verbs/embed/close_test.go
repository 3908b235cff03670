package embed_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"verbena/internal/testutil"
	"verbena/verbs"
)

// TestCloseInAnyOrder checks that all objects on a closed device have ended. The order of their Close calls must not
// matter.
func TestCloseInAnyOrder(t *testing.T) {
	s := newSoftwareStack(t)
	dev, err := s.Open("")
	if err != nil {
		t.Fatal(err)
	}
	e := newTestEnd(t, dev, verbs.QPInit{})
	for _, c := range []interface{ Close() error }{e.cq, e.pd} {
		if err := c.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%T.Close: got %v, want EBUSY", c, err)
		}
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []interface{ Close() error }{e.pd, e.cq, e.mr, e.qp, e.cq.Channel(), dev} {
		if err := c.Close(); err != nil {
			t.Errorf("%T.Close: %v", c, err)
		}
	}
	for what, err := range map[string]error{
		"Alloc": errorOf(dev.Alloc(64)), "AllocPD": errorOf(dev.AllocPD()), "PD.Alloc": errorOf(e.pd.Alloc(64, 0)),
		"Query":    errorOf(dev.Query()),
		"CreateCQ": errorOf(dev.CreateCQ(1, nil)), "CreateQP": errorOf(e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq})),
		"Poll":     errorOf(e.cq.Poll(nil)),
		"PostSend": e.qp.PostSend(&verbs.SendWR{}), "PostRecv": e.qp.PostRecv(&verbs.RecvWR{}),
		"Modify":    e.qp.Modify(verbs.QPAttr{}, 0),
		"NextEvent": errorOf(dev.NextEvent(t.Context())), "Wait": errorOf(e.cq.Wait(t.Context(), make([]verbs.WC, 1))),
	} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after Close: got %v, want ErrClosed", what, err)
		}
	}
}

// TestConcurrentMRAndDeviceClose closes registrations and their device concurrently. The registrations must end and
// free their memory.
func TestConcurrentMRAndDeviceClose(t *testing.T) {
	s := newSoftwareStack(t)
	for range 30 {
		dev, err := s.Open("")
		if err != nil {
			t.Fatal(err)
		}
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		var mrs [64]*verbs.MR
		for i := range mrs {
			if mrs[i], err = pd.Alloc(4096, verbs.LocalWrite); err != nil {
				t.Fatal(err)
			}
		}
		var closing sync.WaitGroup
		closing.Go(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		for _, m := range mrs {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if m.Bytes() != nil {
				t.Error("Bytes after Close: got memory, want nil")
			}
		}
		closing.Wait()
	}
}

// TestClosedObjectKeepsReusedHandle checks a closed object after another object has received its handle. Calls on the
// closed object must not affect the other one.
func TestClosedObjectKeepsReusedHandle(t *testing.T) {
	dev := openDevice(t, newSoftwareStack(t), "")
	a, b := newTestEnd(t, dev, verbs.QPInit{}), newTestEnd(t, dev, verbs.QPInit{})
	group := verbs.GID{0: 0xff, 1: 0x0e, 15: 1}
	srq, err := a.pd.CreateSRQ(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []interface{ Close() error }{a.qp, srq} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var qps []*verbs.QP
	for range 8 { // one of the eight objects receives the handle
		qp, err := a.pd.CreateQP(verbs.QPInit{SendCQ: a.cq})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.pd.CreateSRQ(4, 1); err != nil {
			t.Fatal(err)
		}
		qps = append(qps, qp)
	}
	for what, err := range map[string]error{
		"Modify":  a.qp.Modify(verbs.QPAttr{State: verbs.Error}, verbs.AttrState),
		"Query":   errorOf(a.qp.Query()),
		"Local":   errorOf(a.qp.Local()),
		"Connect": a.qp.Connect(verbs.Endpoint{}),
		"Prepare": a.qp.Prepare(verbs.Path{}),
		"Attach":  a.qp.Attach(group), "Detach": a.qp.Detach(group),
		"SRQ.Query": errorOf(srq.Query()), "SRQ.SetLimit": srq.SetLimit(1), "SRQ.Resize": srq.Resize(8),
		"SRQ.PostRecv": srq.PostRecv(&verbs.RecvWR{}),
	} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after Close: got %v, want ErrClosed", what, err)
		}
	}
	for i, qp := range append(qps, b.qp) {
		if q, err := qp.Query(); err != nil || q.State != verbs.Reset {
			t.Errorf("state of queue pair %d: got %v, %v, want RESET", i, q.State, err)
		}
	}
	channel, err := openDevice(t, newSoftwareStack(t), "").CreateChannel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.CreateCQ(4, channel); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateCQ with a channel of another device: got %v, want EINVAL", err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// TestConcurrentCloseAndUse closes objects and devices while goroutines use them.
func TestConcurrentCloseAndUse(t *testing.T) {
	for range 5 {
		s := newSoftwareStack(t)
		a, b := newTestEnd(t, openDevice(t, s, ""), verbs.QPInit{}), newTestEnd(t, openDevice(t, s, ""), verbs.QPInit{})
		if err := verbs.ConnectPair(a.qp, b.qp); err != nil {
			t.Fatal(err)
		}
		wr := verbs.SendWR{Opcode: verbs.Write, Flags: verbs.Signaled, Local: a.mr.SGE(0, 64), Remote: b.remoteMemory()}
		done := make(chan struct{})
		users := []func() error{
			func() error {
				err := a.qp.PostSend(&wr)
				if errors.Is(err, verbs.ErrQueueFull) {
					return nil
				}
				return err
			},
			func() error { return errorOf(a.cq.Wait(t.Context(), make([]verbs.WC, 4))) },
			func() error { return errorOf(a.dev.NextEvent(t.Context())) },
			func() error { return errorOf(b.dev.NextEvent(t.Context())) },
			func() error {
				mr, err := a.pd.Alloc(4096, 0)
				if err != nil {
					return err
				}
				return mr.Close()
			},
		}
		posted := &atomic.Int64{}
		for i, use := range users {
			go func() {
				for use() == nil {
					if i == 0 {
						posted.Add(1)
					}
				}
				done <- struct{}{}
			}()
		}
		testutil.Eventually(t, "work requests to be posted", func() bool { return posted.Load() >= 100 })
		for range 2 {
			go a.dev.Close()
			go b.mr.Close()
			go b.qp.Close()
			go b.dev.Close()
		}
		for range users {
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatal("concurrent calls: one has not returned after 20 s, want all to return")
			}
		}
	}
}
