package slot_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/slot"
	"verbena/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testHardware is a loopback device that can become unreachable.
type testHardware struct {
	mu      sync.Mutex
	log     []string
	away    chan struct{} // closed when the hardware is reachable again; nil if it is reachable
	dead    error         // result of Await
	noProbe error
	hit     func() // argument of AtWorkRequest
	onReset func()
}

func (h *testHardware) recordStep(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *testHardware) takeSteps() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.log
	h.log = nil
	return log
}

type testDevice struct {
	*loopback.Device
	h *testHardware
}

func (d testDevice) Close() error {
	d.h.recordStep("close")
	return d.Handle().Dealloc()
}

func (h *testHardware) Probe() (slot.Device, error) {
	h.recordStep("probe")
	if h.noProbe != nil {
		return nil, h.noProbe
	}
	return testDevice{loopback.New("lo0", nil), h}, nil
}

func (h *testHardware) Reset(context.Context) error {
	h.recordStep("reset")
	if h.onReset != nil {
		h.onReset()
	}
	if h.away != nil {
		return syscall.EIO
	}
	return nil
}

func (h *testHardware) Await(ctx context.Context) error {
	h.recordStep("await")
	select {
	case <-h.away:
		return h.dead
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *testHardware) AtWorkRequest(_ uint64, f func()) bool {
	h.hit = f
	return true
}

// registerRecorder registers a client that records the calls of its functions, each with the state of the device.
func registerRecorder(t *testing.T, core *ib.Core, h *testHardware) {
	cl := &ib.Client{
		Name: "witness",
		Add: func(d *ib.Device) (any, error) {
			h.recordStep("add")
			return d.OnEvent(func(e ib.Event) { h.recordStep("%v", e.Type) }), nil
		},
		Remove: func(d *ib.Device, data any) {
			h.recordStep("remove, %v", d.State())
			data.(func())()
		},
	}
	must(t, core.RegisterClient(cl))
	t.Cleanup(func() { core.UnregisterClient(cl) })
}

func newSlot(t *testing.T) (*ib.Core, *testHardware, *slot.Slot) {
	core, h := &ib.Core{}, &testHardware{}
	check.On(core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	registerRecorder(t, core, h)
	return core, h, slot.New(core, "lo0", h, t.Logf)
}

func (h *testHardware) wantSteps(t *testing.T, what string, steps ...string) {
	t.Helper()
	if got := h.takeSteps(); !slices.Equal(got, steps) {
		t.Errorf("%s: %q, want %q", what, got, steps)
	}
}

// TestChangeStepsAndOrder checks the steps of each change and their order.
func TestChangeStepsAndOrder(t *testing.T) {
	_, h, s := newSlot(t)
	must(t, s.Plug())
	h.wantSteps(t, "plug", "probe", "add")
	first := s.Device().Handle().Device()
	must(t, s.Reset(t.Context()))
	h.wantSteps(t, "reset", "device fatal error", "reset", "remove, in error", "close", "probe", "add")
	if d := s.Device().Handle().Device(); d == first || d.State() != ib.DeviceActive || first.State() != ib.DeviceGone {
		t.Errorf("device states after the change: got %v for the old device and %v for the new one, want gone and active",
			first.State(), d.State())
	}
	if st := s.Status(); st.State != slot.Running || st.Resets != 1 || st.Recovery <= 0 || st.Err != nil {
		t.Errorf("got status %+v", st)
	}
	must(t, s.Unplug())
	h.wantSteps(t, "unplug", "remove, in error", "close")
	for _, f := range []func() error{s.Unplug, func() error { return s.Reset(t.Context()) },
		func() error { return s.ResetAt(slot.InHandler, nil) }} {
		if err := f(); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("call on an empty slot: got %v, want ENODEV", err)
		}
	}
	must(t, s.Plug())
	if err := s.Plug(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("plug twice: got %v", err)
	}
	must(t, s.Close())
}

// TestSlotCountsEventsOfAllDevices checks that the event counts of a slot include all its devices. The test also checks
// that events of an unknown type are not counted.
func TestSlotCountsEventsOfAllDevices(t *testing.T) {
	_, _, s := newSlot(t)
	must(t, s.Plug())
	s.Device().Handle().DispatchEvent(ib.EventPortErr, 1)
	must(t, s.Reset(t.Context()))
	s.Device().Handle().DispatchEvent(ib.EventPortErr, 1)
	s.Device().Handle().DispatchEvent(ib.EventType(1<<30), 1)
	for range 2 {
		want := ib.EventCounts{ib.EventDeviceFatal: 1, ib.EventPortErr: 2}
		if n := s.Events(); n != want {
			t.Errorf("got events %v, want %v", n, want)
		}
		if s.Device() != nil {
			must(t, s.Unplug())
		}
	}
	must(t, s.Close())
}

// TestResetWaitsForUnreachableHardware checks a reset of unresponsive hardware. Remove of the clients must be called at
// once, and the wait for the hardware has no limit.
func TestResetWaitsForUnreachableHardware(t *testing.T) {
	for _, end := range []string{"back", "unplug", "timeout", "dead", "no probe"} {
		synctest.Test(t, func(t *testing.T) {
			core, h := &ib.Core{}, &testHardware{}
			s := slot.New(core, "lo0", h, t.Logf)
			must(t, s.Plug())
			h.away = make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.Reset(ctx) }()
			synctest.Wait()
			h.wantSteps(t, "unreachable", "probe", "reset", "close", "await")
			if st := s.Status(); st.State != slot.Recovering || len(core.Devices()) != 0 {
				t.Errorf("got status %+v, devices %v", st, core.Devices())
			}
			testutil.AdvanceTime(59 * time.Minute)
			switch end {
			case "dead", "no probe":
				if end == "dead" {
					h.dead = syscall.EIO
				} else {
					h.noProbe = syscall.EIO
				}
				fallthrough
			case "back":
				close(h.away)
			case "unplug":
				must(t, s.Unplug())
			}
			err := <-done
			st := s.Status()
			if end == "back" {
				if err != nil || st.State != slot.Running || st.Recovery != 59*time.Minute {
					t.Errorf("got %v, %+v", err, st)
				}
				must(t, s.Unplug())
				return
			}
			want := map[string]error{"unplug": context.Canceled, "timeout": context.DeadlineExceeded, "dead": syscall.EIO,
				"no probe": syscall.EIO}[end]
			if !errors.Is(err, want) || st.State != slot.Empty || s.Device() != nil || !errors.Is(st.Err, want) {
				t.Errorf("%s: got %v, %+v", end, err, st)
			}
		})
	}
}

// TestResetOccursAtMoment checks that a reset occurs at the requested moment.
func TestResetOccursAtMoment(t *testing.T) {
	t.Run("registration", func(t *testing.T) {
		core, h, s := newSlot(t)
		must(t, s.Plug())
		h.takeSteps()
		with := 0
		must(t, s.ResetAt(slot.DuringRegistration, func() { with++ }))
		if a := s.Status().Armed; a != "registration" {
			t.Errorf("got armed %q", a)
		}
		must(t, s.Reset(t.Context()))
		st, log := s.Status(), h.takeSteps()
		adds, removes := 0, 0
		for _, l := range log {
			if l == "add" {
				adds++
			}
			if l == "remove, in error" {
				removes++
			}
		}
		if st.Resets != 2 || st.Armed != "" || with != 1 || adds != 2 || removes != 2 || len(core.Devices()) != 1 {
			t.Errorf("after the resets: got status %+v, %d calls of with and log %q, want 2 resets, 1 call and no log",
				st, with, log)
		}
		must(t, s.Close())
	})
	t.Run("handler", func(t *testing.T) {
		core, _, s := newSlot(t)
		must(t, s.Plug())
		d := s.Device().Handle().Device()
		var during ib.DeviceState
		called := make(chan bool)
		cq, err := d.CreateCQ(ib.CQInit{Entries: 4, Handler: func(*ib.CQ) {
			during = d.State()
			close(called)
		}})
		must(t, err)
		pd, err := d.AllocPD()
		must(t, err)
		qp, err := pd.CreateQP(ib.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: ib.QPTypeRC, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		must(t, err)
		must(t, qp.Modify(ib.QPAttr{State: ib.QPInit, Port: 1},
			ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
		_, err = qp.PostRecv(ib.RecvWR{})
		must(t, err)
		flushed := make(chan bool) // closed when the Modify in which the reset begins has returned
		cl := &ib.Client{Name: "owner", Add: func(*ib.Device) (any, error) { return nil, nil },
			Remove: func(x *ib.Device, _ any) {
				if x.Same(d) {
					<-flushed
					must(t, errors.Join(qp.Destroy(), cq.Destroy(), pd.Dealloc()))
				}
			}}
		must(t, core.RegisterClient(cl))
		_, err = cq.ReqNotify(ib.NotifyNextComp)
		must(t, err)
		must(t, s.ResetAt(slot.InHandler, nil))
		must(t, qp.Modify(ib.QPAttr{State: ib.QPErr}, ib.QPAttrState)) // flushes the receive
		close(flushed)
		<-called
		if during != ib.DeviceError {
			t.Errorf("device state in the handler: got %v, want DeviceError", during)
		}
		testutil.Eventually(t, "the reset", func() bool { return s.Status().Resets > 0 })
		must(t, s.Close())
		core.UnregisterClient(cl)
	})
	t.Run("work request", func(t *testing.T) {
		_, h, s := newSlot(t)
		must(t, s.Plug())
		must(t, s.ResetAt(slot.AtWorkRequest(7), nil))
		h.hit()
		testutil.Eventually(t, "the reset", func() bool { return s.Status().Resets > 0 })
		must(t, s.Close())
	})
	t.Run("several", func(t *testing.T) {
		_, h, s := newSlot(t)
		must(t, s.Plug())
		armed := func(want string) {
			t.Helper()
			if a := s.Status().Armed; a != want {
				t.Errorf("got armed %q, want %q", a, want)
			}
		}
		arm := func() {
			t.Helper()
			for _, m := range []slot.Moment{slot.AtWorkRequest(7), slot.InHandler, slot.DuringRegistration,
				slot.AtWorkRequest(9)} {
				must(t, s.ResetAt(m, nil))
			}
			armed("work request 9, completion handler, registration")
		}
		arm()
		s.Disarm()
		armed("")
		if h.hit != nil {
			t.Error("hardware after Disarm: still armed to stop, want it disarmed")
		}
		must(t, s.Reset(t.Context()))
		if n := s.Status().Resets; n != 1 {
			t.Errorf("resets: got %d, want 1 and none at the cancelled moment", n)
		}
		arm()
		must(t, s.Unplug())
		armed("registration") // still pending: only the moments of the device were cancelled
		must(t, s.Plug())
		armed("")
		s.Disarm()
		must(t, s.Close())
	})
	t.Run("none", func(t *testing.T) {
		_, _, s := newSlot(t)
		must(t, s.Plug())
		if err := s.ResetAt(slot.Moment{}, nil); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
		must(t, s.Close())
	})
}

// TestUnreachableHardwareCanBeUnplugged checks that hardware which fails during registration can be unplugged, even if
// the hardware does not recover.
func TestUnreachableHardwareCanBeUnplugged(t *testing.T) {
	for _, by := range []string{"reset", "plug", "close", "timeout"} {
		synctest.Test(t, func(t *testing.T) {
			core, h := &ib.Core{}, &testHardware{}
			s := slot.New(core, "lo0", h, t.Logf)
			must(t, s.Plug())
			must(t, s.ResetAt(slot.DuringRegistration, func() { h.away = make(chan struct{}) }))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			bring := func() error { return s.Reset(ctx) }
			if by == "plug" {
				must(t, s.Unplug())
				bring = s.Plug
			}
			done := make(chan error, 1)
			go func() { done <- bring() }()
			synctest.Wait()
			if st := s.Status(); st.State != slot.Recovering || len(core.Devices()) != 0 {
				t.Errorf("%s: got status %+v, devices %v", by, st, core.Devices())
			}
			want := context.Canceled
			switch by {
			case "close":
				must(t, s.Close())
			case "timeout":
				want = context.DeadlineExceeded
			default:
				must(t, s.Unplug())
			}
			if err := <-done; !errors.Is(err, want) || s.Status().State != slot.Empty || s.Device() != nil {
				t.Errorf("%s: got %v, %+v", by, err, s.Status())
			}
			must(t, s.Close())
		})
	}
}

// TestResetWaitsForOtherChanges checks that a reset waits for other changes, but only until its context ends.
func TestResetWaitsForOtherChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &testHardware{}
		s := slot.New(&ib.Core{}, "lo0", h, t.Logf)
		must(t, s.Plug())
		h.away = make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- s.Reset(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Reset(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("second reset: got %v", err)
		}
		close(h.away)
		must(t, <-done)
		must(t, s.Close())
	})
}

// TestMomentEndsWithDevice checks that a pending moment is cancelled together with its device. A moment that occurs
// must reset its own device and not the next device.
func TestMomentEndsWithDevice(t *testing.T) {
	_, h, s := newSlot(t)
	must(t, s.Plug())
	must(t, s.ResetAt(slot.AtWorkRequest(7), nil))
	must(t, s.ResetAt(slot.InHandler, nil))
	if a := s.Status().Armed; a != "work request 7, completion handler" {
		t.Errorf("got armed %q", a)
	}
	must(t, s.Reset(t.Context()))
	if a := s.Status().Armed; a != "" {
		t.Errorf("pending moments of a former device: got %q, want none", a)
	}
	must(t, s.ResetAt(slot.AtWorkRequest(7), nil))
	h.onReset = h.hit // the work request is reached during the reset
	must(t, s.Reset(t.Context()))
	h.onReset = nil
	must(t, s.Reset(t.Context()))
	must(t, s.Close())
	if n := s.Status().Resets; n != 3 {
		t.Errorf("got %d resets", n)
	}
	s = slot.New(&ib.Core{}, "lo0", struct{ slot.Hardware }{h}, nil)
	must(t, s.Plug())
	if err := s.ResetAt(slot.AtWorkRequest(7), nil); !errors.Is(err, syscall.EOPNOTSUPP) || s.Status().Armed != "" {
		t.Errorf("ResetAt on hardware without Stopper: got %v and armed %q, want EOPNOTSUPP and none", err, s.Status().Armed)
	}
	must(t, s.Close())
}

// TestConcurrent runs resets, unplugs and plugs concurrently. The changes must not overlap, and no device may remain.
func TestConcurrent(t *testing.T) {
	core, _, s := newSlot(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				switch i % 4 {
				case 0:
					s.Plug()
				case 1:
					s.Unplug()
				case 2:
					s.Reset(t.Context())
				case 3:
					s.ResetAt(slot.DuringRegistration, nil)
				}
			}
		})
	}
	wg.Wait()
	must(t, s.Close())
	if d := core.Devices(); len(d) != 0 {
		t.Errorf("remaining devices: got %v, want none", d)
	}
}

// TestResetDespiteStuckEventFunction checks an event function that does not return. Such a function may delay a
// hardware reset only for fatalEventTimeout.
func TestResetDespiteStuckEventFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, h := &ib.Core{}, &testHardware{}
		s := slot.New(core, "lo0", h, t.Logf)
		must(t, s.Plug())
		release, reset := make(chan int), make(chan int)
		s.Device().Handle().Device().OnEvent(func(ib.Event) { <-release })
		h.onReset = func() { close(reset) }
		done := make(chan error, 1)
		go func() { done <- s.Reset(t.Context()) }()
		<-reset // in virtual time an endless wait would be a deadlock
		close(release)
		must(t, <-done)
		h.onReset = nil
		must(t, s.Unplug())
	})
}

// TestChangeWaitsForStuckClient checks a client with a function that does not return. The change of the device must
// wait, but each caller waits only until its context ends. The change continues when the function returns.
func TestChangeWaitsForStuckClient(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *slot.Slot, ctx context.Context) error
		after  slot.State
	}{
		{"reset", (*slot.Slot).Reset, slot.Running},
		{"unplug", (*slot.Slot).UnplugContext, slot.Empty},
	} {
		for _, where := range []string{"Remove", "event function"} {
			t.Run(test.name+"/"+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					core, h := &ib.Core{}, &testHardware{}
					s := slot.New(core, "lo0", h, t.Logf)
					release := make(chan int)
					client := &ib.Client{Name: "stuck"}
					client.Add = func(d *ib.Device) (any, error) {
						if where == "Remove" {
							return func() { <-release }, nil
						}
						return d.OnEvent(func(ib.Event) { <-release }), nil
					}
					client.Remove = func(_ *ib.Device, data any) { data.(func())() }
					must(t, core.RegisterClient(client))
					must(t, s.Plug())
					if where != "Remove" {
						s.Device().Handle().DispatchEvent(ib.EventPortActive, 1)
						synctest.Wait()
					}
					within := func(what string, f func(context.Context) error) {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						began := time.Now()
						if err := f(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
							t.Errorf("%s: got %v after %v", what, err, time.Since(began))
						}
					}
					within(test.name, func(ctx context.Context) error { return test.change(s, ctx) })
					within("a reset that waits for its turn", s.Reset)
					within("an unplug that waits for its turn", s.UnplugContext)
					close(release)
					synctest.Wait()
					if got := s.Status().State; got != test.after {
						t.Errorf("state after the change: got %v, want %v", got, test.after)
					}
					must(t, s.Close())
					core.UnregisterClient(client)
					if d := core.Devices(); len(d) != 0 {
						t.Errorf("remaining devices: got %v, want none", d)
					}
				})
			})
		}
	}
}
