package attach_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/attach"
	"verbena/ib/check"
	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// diskAttachment is an object of an upper-level protocol. The session of a disk is a protection domain.
type diskAttachment struct {
	t    *testing.T
	core *ib.Core
	a    *attach.Attachment[*ib.PD]
	made time.Time

	mu     sync.Mutex
	log    []string // calls of Config's functions, each with its time in seconds
	fail   error    // result of Attach
	slow   bool     // Attach waits until its context ends
	failed func(error)
}

func newDiskAttachment(t *testing.T, core *ib.Core, cfg attach.Config[*ib.PD]) *diskAttachment {
	t.Helper()
	d := &diskAttachment{t: t, core: core, made: time.Now()}
	cfg.Name, cfg.Attach, cfg.Detach, cfg.Lost = "disk0", d.attach, d.detach, d.recordLoss
	var err error
	d.a, err = attach.New(core, cfg)
	must(t, err)
	return d
}

func (d *diskAttachment) recordCall(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, fmt.Sprintf("%v ", time.Since(d.made).Round(time.Second))+fmt.Sprintf(format, args...))
}

// takeRecordedCalls returns the calls since the previous invocation of calls.
func (d *diskAttachment) takeRecordedCalls() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	log := d.log
	d.log = nil
	return log
}

func (d *diskAttachment) wantCalls(calls ...string) {
	d.t.Helper()
	if got := d.takeRecordedCalls(); !slices.Equal(got, calls) {
		d.t.Errorf("got calls %q, want %q", got, calls)
	}
}

func (d *diskAttachment) wantState(s attach.State) {
	d.t.Helper()
	synctest.Wait()
	if got := d.a.State(); got != s {
		d.t.Errorf("state: got %v, want %v", got, s)
	}
}

func (d *diskAttachment) attach(ctx context.Context, dev *ib.Device, failed func(error)) (*ib.PD, error) {
	d.mu.Lock()
	fail, slow := d.fail, d.slow
	d.failed = failed
	d.mu.Unlock()
	if slow {
		<-ctx.Done()
		fail = context.Cause(ctx)
	}
	if fail != nil {
		d.recordCall("no %s", dev.Name())
		return nil, fail
	}
	d.recordCall("attach %s", dev.Name())
	return dev.AllocPD()
}

func (d *diskAttachment) detach(dev *ib.Device, pd *ib.PD) {
	d.recordCall("detach %s", dev.Name())
	if err := pd.Dealloc(); err != nil {
		d.t.Error(err)
	}
}

func (d *diskAttachment) recordLoss(cause error) {
	if !errors.Is(cause, attach.ErrLost) {
		d.t.Errorf("cause in Lost: got %v, want ErrLost", cause)
	}
	d.recordCall("lost")
}

func registerDevice(t *testing.T, core *ib.Core, name string) *ib.DeviceHandle {
	t.Helper()
	d := loopback.New(name, nil).Handle()
	must(t, core.Register(d))
	return d
}

// TestTransientReset checks that the object survives a reset, and that its users only see a delay.
func TestTransientReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		d := newDiskAttachment(t, core, attach.Config[*ib.PD]{Device: attach.Identity{Name: "lo0"},
			LossTimeout: 10 * time.Second})
		dev := registerDevice(t, core, "lo0")
		d.wantCalls("0s attach lo0")
		for i := range 3 {
			dev.DispatchEvent(ib.EventDeviceFatal, 0)
			dev.SetError()
			must(t, core.Unregister(dev))
			d.wantState(attach.Held)
			began := time.Now()
			back := make(chan *ib.DeviceHandle, 1)
			time.AfterFunc(3*time.Second, func() { back <- registerDevice(t, core, "lo0") })
			pd, err := d.a.Acquire(t.Context())
			must(t, err)
			dev = <-back
			if !pd.Device().Same(dev.Device()) || time.Since(began) != 3*time.Second {
				t.Errorf("Acquire: got PD %p after %v, want %p after 3s", pd.Device(), time.Since(began), dev)
			}
			d.a.Release()
			d.wantCalls(fmt.Sprintf("%ds detach lo0", 3*i), fmt.Sprintf("%ds attach lo0", 3*i+3))
		}
		d.a.Close()
		d.wantState(attach.Closed)
		d.wantCalls("9s detach lo0")
		if _, err := d.a.Acquire(t.Context()); !errors.Is(err, attach.ErrClosed) {
			t.Errorf("Acquire: got %v", err)
		}
		must(t, core.Unregister(dev))
	})
}

// TestLoss checks that the object is lost after LossTimeout, once and permanently.
func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		dev := registerDevice(t, core, "lo0")
		d := newDiskAttachment(t, core, attach.Config[*ib.PD]{LossTimeout: 10 * time.Second})
		d.wantCalls("0s attach lo0")
		testutil.AdvanceTime(20 * time.Second) // LossTimeout does not run while the object is attached
		must(t, core.Unregister(dev))
		waits := make(chan error)
		go func() {
			_, err := d.a.Acquire(context.Background())
			waits <- err
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.a.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire while held: got %v, want a deadline error", err)
		}
		if err := <-waits; !errors.Is(err, attach.ErrLost) || !errors.Is(err, syscall.EIO) {
			t.Errorf("Acquire after the loss: got %v, want ErrLost and EIO", err)
		}
		d.wantCalls("20s detach lo0", "30s lost")
		dev = registerDevice(t, core, "lo0")
		d.wantState(attach.Lost)
		if _, ok := d.a.TryAcquire(); ok {
			t.Error("TryAcquire after the loss: got a session, want none")
		}
		must(t, core.Unregister(dev))
		d.a.Close()
		d.wantState(attach.Closed)
		d.wantCalls()
	})
}

// TestLossWhileAttaching checks that LossTimeout also ends a slow attempt and repeated failing attempts.
func TestLossWhileAttaching(t *testing.T) {
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			core := &ib.Core{}
			d := newDiskAttachment(t, core, attach.Config[*ib.PD]{LossTimeout: 2500 * time.Millisecond})
			d.slow, d.fail = slow, syscall.ECONNREFUSED
			dev := registerDevice(t, core, "lo0")
			testutil.AdvanceTime(time.Minute)
			if slow {
				d.wantCalls("3s no lo0", "3s lost")
			} else {
				d.wantCalls("0s no lo0", "1s no lo0", "2s no lo0", "3s lost")
			}
			d.a.Close()
			must(t, core.Unregister(dev))
		})
	}
}

func TestIdentity(t *testing.T) {
	guid := func(d *ib.Device) uint64 {
		id, err := attach.Of(d)
		must(t, err)
		return id.NodeGUID
	}
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		first, second := registerDevice(t, core, "a"), registerDevice(t, core, "b")
		a, b := first.Device(), second.Device()
		for _, test := range []struct {
			id   attach.Identity
			want *ib.Device
		}{
			{attach.Identity{}, a},
			{attach.Identity{Name: "b"}, b},
			{attach.Identity{NodeGUID: guid(a)}, a},
			{attach.Identity{Name: "b", NodeGUID: guid(b)}, b},
			{attach.Identity{Name: "b", NodeGUID: guid(b) + 1}, nil},
			{attach.Identity{Name: "c"}, nil},
		} {
			d := newDiskAttachment(t, core, attach.Config[*ib.PD]{Device: test.id})
			synctest.Wait()
			pd, ok := d.a.TryAcquire()
			switch {
			case ok != (test.want != nil):
				t.Errorf("%v: got attached: %v", test.id, ok)
			case ok && !pd.Device().Same(test.want):
				t.Errorf("%v: got %s", test.id, pd.Device().Name())
			}
			if ok {
				d.a.Release()
			}
			d.a.Close()
		}
		must(t, core.Unregister(first))
		must(t, core.Unregister(second))
	})
}

// TestSessionFails checks that a failed session on a working device is followed by another session, but only after
// RetryDelay.
func TestSessionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		dev := registerDevice(t, core, "lo0")
		d := newDiskAttachment(t, core, attach.Config[*ib.PD]{RetryDelay: 2 * time.Second})
		d.wantCalls("0s attach lo0")
		first := d.failed
		first(syscall.ECONNRESET)
		d.wantCalls("0s detach lo0")
		testutil.AdvanceTime(3 * time.Second)
		d.wantCalls("2s attach lo0")
		first(syscall.ECONNRESET) // failure report of a session that has already ended
		d.wantCalls()
		// After a new registration, the same hardware is tried at once.
		d.failed(syscall.ECONNRESET)
		must(t, core.Unregister(dev))
		dev = registerDevice(t, core, "lo0")
		d.wantCalls("3s detach lo0", "3s attach lo0")
		d.a.Close()
		must(t, core.Unregister(dev))
	})
}

// TestRepeatedFailureIsLoggedOnce checks that a repeated failure with the same reason is logged once.
func TestRepeatedFailureIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		dev := registerDevice(t, core, "lo0")
		var said []string
		var fail atomic.Value
		fail.Store(errors.New("no route"))
		a, err := attach.New(core, attach.Config[int]{
			Name:   "disk",
			Attach: func(context.Context, *ib.Device, func(error)) (int, error) { return 0, fail.Load().(error) },
			Detach: func(*ib.Device, int) {},
			Logf:   func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) },
		})
		must(t, err)
		testutil.AdvanceTime(time.Minute)
		fail.Store(errors.New("refused"))
		testutil.AdvanceTime(time.Minute)
		a.Close()
		must(t, core.Unregister(dev))
		want := []string{"disk: attach to lo0: no route", "disk: attach to lo0: refused"}
		if !slices.Equal(said, want) {
			t.Errorf("got log %q", said)
		}
	})
}

// TestFatalEventEndsSessions checks that a device in the error state has no sessions and no attempts.
func TestFatalEventEndsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		dev := registerDevice(t, core, "lo0")
		d := newDiskAttachment(t, core, attach.Config[*ib.PD]{})
		d.wantCalls("0s attach lo0")
		dev.SetError()
		dev.DispatchEvent(ib.EventDeviceFatal, 0)
		d.wantCalls("0s detach lo0")
		testutil.AdvanceTime(time.Minute)
		d.wantCalls()
		d.wantState(attach.Held)
		must(t, core.Unregister(dev))
		d.a.Close()
	})
}

// TestUnregisterWaits checks that Unregister waits for the end of the session, and that the session ends only after
// Release. The test also checks that Unregister cancels an attempt.
func TestUnregisterWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		dev := registerDevice(t, core, "lo0")
		d := newDiskAttachment(t, core, attach.Config[*ib.PD]{})
		_, err := d.a.Acquire(t.Context())
		must(t, err)
		gone := make(chan error, 1)
		go func() { gone <- core.Unregister(dev) }()
		testutil.AdvanceTime(100 * time.Millisecond) // a weak device delays the end of the event function
		d.wantState(attach.Detaching)
		select {
		case err := <-gone:
			t.Fatalf("Unregister while the session was in use: returned %v, want it to wait", err)
		default:
		}
		d.a.Release()
		must(t, <-gone)
		d.wantCalls("0s attach lo0", "0s detach lo0")
		d.mu.Lock()
		d.slow = true
		d.mu.Unlock()
		dev = registerDevice(t, core, "lo0")
		testutil.AdvanceTime(time.Second)
		must(t, core.Unregister(dev))
		d.wantCalls("1s no lo0")
		d.wantState(attach.Held)
		d.a.Close()
	})
}

// TestNoCallchain checks that Config's functions are not called from the callchain of Register, failed, Acquire or
// Release.
func TestNoCallchain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := &ib.Core{}
		check.On(core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
		d := newDiskAttachment(t, core, attach.Config[*ib.PD]{RetryDelay: time.Millisecond})
		// The functions Attach and Detach also lock d.mu.
		d.mu.Lock()
		dev := registerDevice(t, core, "lo0")
		d.mu.Unlock()
		_, err := d.a.Acquire(t.Context())
		must(t, err)
		d.mu.Lock()
		d.failed(syscall.EIO)
		if _, ok := d.a.TryAcquire(); ok {
			d.a.Release()
		}
		d.a.Release()
		d.mu.Unlock()
		testutil.AdvanceTime(time.Second)
		d.wantCalls("0s attach lo0", "0s detach lo0", "0s attach lo0")
		must(t, core.Unregister(dev))
		d.a.Close()
	})
}

func TestNewRejectsBadConfig(t *testing.T) {
	for _, cfg := range []attach.Config[int]{
		{},
		{Attach: func(context.Context, *ib.Device, func(error)) (int, error) { return 0, nil }},
		{
			Attach: func(context.Context, *ib.Device, func(error)) (int, error) { return 0, nil },
			Detach: func(*ib.Device, int) {}, LossTimeout: -1,
		},
	} {
		if _, err := attach.New(&ib.Core{}, cfg); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: got %v", cfg, err)
		}
	}
}
