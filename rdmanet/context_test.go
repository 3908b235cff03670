package rdmanet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"verbena/driver/rxe"
	"verbena/rdmanet"
)

// expiredRunningContext is a context that has not ended although its deadline has passed. Another timer with the same
// deadline, for example in package net, may fire first.
type expiredRunningContext struct {
	context.Context
	passed time.Time
}

func (c expiredRunningContext) Deadline() (time.Time, bool) { return c.passed, true }

// TestDialErrorWrapsCause checks that the error of DialContext wraps both the cause and the error of its context, at
// any time of the set-up. The error must be a timeout if the context ended by a deadline.
func TestDialErrorWrapsCause(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	reason := errors.New("stopped by the test")
	// Both listeners never respond.
	tcp, err := net.Listen("tcp", "127.0.0.80:0")
	must(t, err)
	defer tcp.Close()
	_, m := w.newOtherHost(t)
	byCM, err := m.Listen(netip.MustParseAddrPort("127.0.0.80:0"), 0)
	must(t, err)
	defer byCM.Close()

	ended := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(reason)
		return ctx, func() { cancel(nil) }
	}
	cancelled := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(10*time.Millisecond, func() { cancel(reason) })
		return ctx, func() { cancel(nil) }
	}
	timed := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, 10*time.Millisecond, reason)
	}
	late := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Millisecond, reason)
		return expiredRunningContext{ctx, time.Now()}, cancel
	}
	for _, x := range []struct {
		name    string
		cm      bool
		with    func(context.Context) (context.Context, context.CancelFunc)
		err     error
		timeout bool
	}{
		{"TCP, cancelled before", false, ended, context.Canceled, false},
		{"TCP, cancelled", false, cancelled, context.Canceled, false},
		{"TCP, deadline", false, timed, context.DeadlineExceeded, true},
		{"TCP, deadline of another timer", false, late, context.DeadlineExceeded, true},
		{"CM, cancelled before", true, ended, context.Canceled, false},
		{"CM, cancelled", true, cancelled, context.Canceled, false},
		{"CM, deadline", true, timed, context.DeadlineExceeded, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			at := tcp.Addr().String()
			if x.cm {
				at = byCM.Addr().String()
			}
			d := rdmanet.Dialer{Config: rdmanet.Config{Host: w.newHost()}, CM: x.cm}
			ctx, cancel := x.with(context.Background())
			defer cancel()
			_, err := d.DialContext(ctx, "rdma", at)
			checkOpError(t, "DialContext", err, reason, x.err)
			if ne := net.Error(nil); !errors.As(err, &ne) || ne.Timeout() != x.timeout {
				t.Errorf("DialContext with error %v: got Timeout %t, want %t", err, !x.timeout, x.timeout)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("DialContext: got %q, want one line", err)
			}
		})
	}
}

// incomparableCause is an error that is not comparable.
type incomparableCause struct{ v any }

func (incomparableCause) Error() string { return "odd" }

// TestDialWithUnusualContext checks DialContext with two unusual contexts. One has a cause that is not comparable, and
// the other has a deadline that does not end it.
func TestDialWithUnusualContext(t *testing.T) {
	t.Parallel()
	w := newTestbed(t, &rxe.Fabric{})
	tcp, err := net.Listen("tcp", "127.0.0.80:0")
	must(t, err)
	defer tcp.Close()
	d := rdmanet.Dialer{Config: rdmanet.Config{Host: w.newHost()}}
	odd, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(10*time.Millisecond, func() { cancel(incomparableCause{[]int{1}}) })
	if _, err := d.DialContext(odd, "rdma", tcp.Addr().String()); !errors.Is(err, context.Canceled) ||
		!errors.As(err, new(incomparableCause)) {
		t.Errorf("DialContext with a cause that is not comparable: got %v, want this cause", err)
	}
	var ne net.Error
	if _, err := d.DialContext(expiredRunningContext{context.Background(), time.Now()}, "rdma",
		tcp.Addr().String()); !errors.As(err,
		&ne) || !ne.Timeout() {
		t.Errorf("DialContext after a deadline: got %v, want a timeout", err)
	}
}
