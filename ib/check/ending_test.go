package check_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibfake"
)

// TestCheckAllowsBlockedDestroy checks that a destruction may block in the driver: there is no violation when the
// context of its caller ends and a second call joins the destruction, or comes after its end.
func TestCheckAllowsBlockedDestroy(t *testing.T) {
	type destroyer interface {
		DestroyContext(context.Context) error
		Destroy() error
	}
	for name, c := range map[string]struct {
		method ibfake.Method
		of     func(b *testBench) destroyer
		late   bool // the second call comes after the end
	}{
		"CQ":       {ibfake.DestroyCQ, func(b *testBench) destroyer { must(t, b.qp.Destroy()); return b.cq }, false},
		"QP":       {ibfake.DestroyQP, func(b *testBench) destroyer { return b.qp }, false},
		"CQ, late": {ibfake.DestroyCQ, func(b *testBench) destroyer { must(t, b.qp.Destroy()); return b.cq }, true},
		"QP, late": {ibfake.DestroyQP, func(b *testBench) destroyer { return b.qp }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, w := newCheckedBenchWithTimeout(t, time.Hour, nil, nil)
				x := c.of(b)
				entered, release := b.drv.HoldMethod(c.method)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := x.DestroyContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("DestroyContext with a blocked driver: got %v, want %v", err, context.DeadlineExceeded)
				}
				<-entered
				if c.late {
					release()
					synctest.Wait()
					must(t, x.Destroy())
				} else {
					joined := make(chan error)
					go func() { joined <- x.Destroy() }()
					synctest.Wait()
					release()
					must(t, <-joined)
				}
				w.expectRules(t)
				if err := x.Destroy(); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("second Destroy: got %v, want %v", err, syscall.EINVAL)
				}
				w.expectRules(t, check.RuleUseAfterDestroy)
				if strings.HasPrefix(name, "QP") {
					must(t, b.cq.Destroy())
				}
				must(t, errors.Join(b.pd.Dealloc(), b.core.Unregister(b.handle)))
			})
		})
	}
}

// TestCheckReportsCreateDuringUnregister checks that checked mode reports a call that creates an object during
// Unregister.
func TestCheckReportsCreateDuringUnregister(t *testing.T) {
	b, w := newCheckedBench(t, nil, nil)
	entered, release := b.drv.HoldMethod(ibfake.AllocPD)
	done := make(chan error)
	go func() {
		_, err := b.dev.AllocPD()
		done <- err
	}()
	<-entered
	b.destroyAll(t)
	release()
	if err := <-done; !errors.Is(err, syscall.ENODEV) {
		t.Errorf("AllocPD: got %v, want %v", err, syscall.ENODEV)
	}
	w.expectRules(t, check.RuleInsideAtUnregister)
}

// TestCheckAllowsSetError checks that the error state violates no rule.
func TestCheckAllowsSetError(t *testing.T) {
	b, w := newCheckedBench(t, nil, nil)
	b.handle.SetError()
	if s := b.dev.State(); s != ib.DeviceError {
		t.Errorf("State: got %v, want %v", s, ib.DeviceError)
	}
	b.destroyAll(t)
	w.expectRules(t)
}
