package ib

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/internal/testutil"
)

// blockMethod blocks a method of the driver until release is called. The argument of release is the result of the
// method.
func (d *fakeDriver) blockMethod(method string) (release func(error)) {
	result := make(chan error)
	d.fail = func(what string) error {
		if what == method {
			return <-result
		}
		return nil
	}
	return func(err error) { result <- err }
}

// TestDestroyContext checks, for each kind of object, that a context that ends only ends the wait. The destruction
// continues, another call can join it, and all other calls fail. If the driver's method fails, the object remains
// usable.
func TestDestroyContext(t *testing.T) {
	for _, observed := range []bool{false, true} {
		for _, test := range []struct {
			kind, method string
			destroy      func(b *testBench) (in func(context.Context) error, plain func() error)
			used         func(b *testBench) error // the call must fail during the destruction
		}{
			{"PD", "dealloc pd", func(b *testBench) (func(context.Context) error, func() error) {
				return b.pd.DeallocContext,
					b.pd.Dealloc
			},
				func(b *testBench) error { return errorOf(b.pd.AllocMR(1)) }},
			{"CQ", "destroy cq", func(b *testBench) (func(context.Context) error, func() error) {
				return b.cq.DestroyContext,
					b.cq.Destroy
			},
				func(b *testBench) error { return b.cq.Resize(4) }},
			{"QP", "destroy qp", func(b *testBench) (func(context.Context) error, func() error) {
				return b.qp.DestroyContext,
					b.qp.Destroy
			},
				func(b *testBench) error { return b.qp.Modify(QPAttr{State: QPErr}, QPAttrState) }},
			{"MR", "dereg mr", func(b *testBench) (func(context.Context) error, func() error) {
				mr, err := b.pd.RegBytes(make([]byte, 8), 0)
				must(t, err)
				return mr.DeregContext, mr.Dereg
			}, nil},
			{"MW", "dealloc mw", func(b *testBench) (func(context.Context) error, func() error) {
				mw, err := b.pd.AllocMW(MWType1)
				must(t, err)
				return mw.DeallocContext, mw.Dealloc
			}, nil},
			{"SRQ", "destroy srq", func(b *testBench) (func(context.Context) error, func() error) {
				srq, err := b.pd.CreateSRQ(SRQInitAttr{Attr: SRQAttr{MaxWR: 1}})
				must(t, err)
				return srq.DestroyContext, srq.Destroy
			}, nil},
			{"XRCD", "dealloc pd", func(b *testBench) (func(context.Context) error, func() error) {
				x, err := b.dev.AllocXRCD() // the fake driver uses its domains for XRC domains
				must(t, err)
				return x.DeallocContext, x.Dealloc
			}, nil},
		} {
			t.Run(test.kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					checkDestroyContext(t, observed, test.kind, test.method, test.destroy,
						test.used)
				})
			})
		}
	}
}

func checkDestroyContext(t *testing.T, observed bool, kind, method string,
	destroyer func(*testBench) (func(context.Context) error, func() error), used func(*testBench) error) {
	core, rec := &Core{}, &recordingObserver{}
	if observed {
		core.setObserver(rec)
	}
	b := newFullBenchOn(t, core)
	if kind == "PD" || kind == "CQ" {
		must(t, b.qp.Destroy())
	}
	destroy, plain := destroyer(b)
	release := b.drv.blockMethod(method)
	before := b.dev.Objects()

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := destroy(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("destroy with a blocked driver: got %v, want %v", err, context.DeadlineExceeded)
	}
	if used != nil {
		wantErrno(t, "use during the destruction", used(b), syscall.EINVAL)
	}
	joined := make(chan error)
	go func() { joined <- plain() }()
	synctest.Wait()
	release(syscall.EIO)
	wantErrno(t, "the call that joined a failing one", <-joined, syscall.EIO)
	synctest.Wait()
	if got := b.dev.Objects(); got != before {
		t.Errorf("objects after a failed destruction: got %v, want %v", got, before)
	}

	go func() { joined <- plain() }()
	synctest.Wait()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := destroy(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second destroy with a context: got %v, want %v", err, context.DeadlineExceeded)
	}
	release(nil)
	must(t, <-joined)
	must(t, plain()) // the result that the call with a context did not wait for
	wantErrno(t, "once more", plain(), syscall.EINVAL)
	b.drv.fail = nil
	switch kind { // the other objects are destroyed first
	case "PD":
		must(t, b.cq.Destroy())
	case "CQ":
		must(t, b.pd.Dealloc())
	case "QP":
		must(t, errors.Join(b.cq.Destroy(), b.pd.Dealloc()))
	default:
		must(t, errors.Join(b.qp.Destroy(), b.cq.Destroy(), b.pd.Dealloc()))
	}
	must(t, b.core.Unregister(&b.dev.handle))
	rec.checkAllLeft(t)
}

// TestUnregisterContext checks that Modify and Unregister continue after their contexts have ended. The test also
// checks that a second Unregister joins the first one.
func TestUnregisterContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, nil, nil)
		release := b.drv.blockMethod("modify qp")
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		err := b.qp.ModifyContext(short(), QPAttr{State: QPErr}, QPAttrState)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Modify: got %v, want %v", err, context.DeadlineExceeded)
		}
		release(nil)
		b.drv.fail = nil
		synctest.Wait()
		if s := b.qp.State(); s != QPErr {
			t.Errorf("QP state after Modify: got %v, want ERR", s)
		}
		must(t, errors.Join(b.qp.Destroy(), b.cq.Destroy(), b.pd.Dealloc()))

		removing := make(chan int)
		cl := &Client{Name: "slow", Add: func(*Device) (any, error) { return nil, nil },
			Remove: func(*Device, any) { <-removing }}
		must(t, b.core.RegisterClient(cl))
		if err := b.core.UnregisterContext(short(), &b.dev.handle); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Unregister: got %v, want %v", err, context.DeadlineExceeded)
		}
		if err := b.core.UnregisterClientContext(short(), cl); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("UnregisterClient: got %v, want %v", err, context.DeadlineExceeded)
		}
		joined, gone := make(chan error, 1), make(chan int)
		go func() { joined <- b.core.Unregister(&b.dev.handle) }()
		go func() {
			b.core.UnregisterClient(cl)
			close(gone)
		}()
		synctest.Wait()
		select {
		case <-joined:
			t.Error("second Unregister: returned before the first, want it to wait")
		case <-gone:
			t.Error("second UnregisterClient: returned before the first, want it to wait")
		default:
		}
		close(removing)
		must(t, <-joined)
		<-gone
		if s := b.dev.State(); s != DeviceGone {
			t.Errorf("state: got %v, want %v", s, DeviceGone)
		}
		wantErrno(t, "once more", b.core.Unregister(&b.dev.handle), syscall.ENODEV)

		// The first call after the end of an abandoned unregistration returns its result.
		b = newBench(t, nil, nil, nil)
		must(t, errors.Join(b.qp.Destroy(), b.cq.Destroy(), b.pd.Dealloc()))
		slow := &Client{Name: "slow", Add: func(*Device) (any, error) { return nil, nil },
			Remove: func(*Device, any) { time.Sleep(time.Second) }}
		must(t, b.core.RegisterClient(slow))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.core.UnregisterContext(ended, &b.dev.handle); !errors.Is(err, context.Canceled) {
			t.Errorf("Unregister with an ended context: got %v, want %v", err, context.Canceled)
		}
		testutil.AdvanceTime(2 * time.Second)
		must(t, b.core.Unregister(&b.dev.handle))
		wantErrno(t, "once more", b.core.Unregister(&b.dev.handle), syscall.ENODEV)
	})
}
