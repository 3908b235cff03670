package check_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"verbena/ib"
	"verbena/ib/check"
	"verbena/ib/ibfake"
)

// TestCheckReportsUseAfterRemove checks that checked mode reports a client that uses its device handle after Remove has
// returned. Handles of other clients are not affected.
func TestCheckReportsUseAfterRemove(t *testing.T) {
	for _, c := range []struct {
		name  string
		use   func(d *ib.Device)
		rules []check.Rule
	}{
		{"asks", func(d *ib.Device) { errorOf(d.QueryPort(1)) }, []check.Rule{check.RuleUseAfterRemove}},
		{"makes an object", func(d *ib.Device) {
			if pd, err := d.AllocPD(); err == nil {
				pd.Dealloc()
			}
		}, []check.Rule{check.RuleUseAfterRemove, check.RuleUseAfterRemove}},
		{"listens", func(d *ib.Device) { d.OnEvent(func(ib.Event) {})() }, []check.Rule{check.RuleUseAfterRemove}},
		{"reads the name", func(d *ib.Device) { _ = d.Name() }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, core := &violationRecorder{}, &ib.Core{}
			check.On(core, check.Config{Report: w.recordViolation})
			h, _ := newDevice("fake0")
			dev := h.Device()
			must(t, core.Register(h))
			var a, b *ib.Device
			client := func(name string, d **ib.Device) *ib.Client {
				cl := &ib.Client{Name: name, Remove: func(*ib.Device, any) {}, Add: func(x *ib.Device) (any, error) {
					*d = x
					return nil, nil
				}}
				must(t, core.RegisterClient(cl))
				return cl
			}
			first, other := client("A", &a), client("B", &b)
			if a == b || !a.Same(b) || !a.Same(dev) || !dev.Same(a) || a.Same(nil) {
				t.Error("Same of the clients' handles: got an unexpected result, want two handles of one device")
			}
			core.UnregisterClient(first)
			c.use(b)
			c.use(dev)
			w.expectRules(t)
			var wg sync.WaitGroup
			wg.Go(func() { c.use(a) })
			wg.Wait()
			w.expectRules(t, c.rules...)
			was := a
			must(t, core.RegisterClient(first))
			if a == was {
				t.Error("handle of the second Add: got the handle of the first Add, want a new one")
			}
			c.use(a)
			w.expectRules(t, c.rules...)
			core.UnregisterClient(other)
			must(t, core.Unregister(h))
		})
	}
}

// TestCheckReportsCallDuringRemove checks that a client's thread inside a call when Remove returns is reported: the
// thread uses the device after Remove. A thread for which Remove has waited is not reported.
func TestCheckReportsCallDuringRemove(t *testing.T) {
	for _, waits := range []bool{false, true} {
		w, core := &violationRecorder{}, &ib.Core{}
		check.On(core, check.Config{Report: w.recordViolation})
		h, drv := newDevice("fake0")
		must(t, core.Register(h))
		inside, goOn := make(chan bool), make(chan bool)
		drv.onQuery = func() { inside <- true; <-goOn }
		var wg sync.WaitGroup
		cl := &ib.Client{Name: "A", Add: func(d *ib.Device) (any, error) {
			wg.Go(func() { errorOf(d.QueryDevice()) })
			<-inside
			return nil, nil
		}, Remove: func(*ib.Device, any) {
			if waits {
				close(goOn)
				wg.Wait()
			}
		}}
		must(t, core.RegisterClient(cl))
		core.UnregisterClient(cl)
		if waits {
			w.expectRules(t)
		} else {
			w.expectRules(t, check.RuleUseAfterRemove)
			close(goOn)
			wg.Wait()
		}
		must(t, core.Unregister(h))
	}
}

// TestObjectsBelongToClient checks that objects created by another goroutine of a client belong to the client. The test
// also checks that events of the client name the client's own handle.
func TestObjectsBelongToClient(t *testing.T) {
	w, core := &violationRecorder{}, &ib.Core{}
	check.On(core, check.Config{Report: w.recordViolation})
	dev, _ := newDevice("fake0")
	must(t, core.Register(dev))
	events := make(chan *ib.Device, 1)
	cl := &ib.Client{Name: "A", Remove: func(*ib.Device, any) {}, Add: func(d *ib.Device) (any, error) {
		var wg sync.WaitGroup
		wg.Go(func() {
			pd, err := d.AllocPD()
			must(t, err)
			if pd.Device() != d {
				t.Errorf("device of the object: got %p, want %p", pd.Device(), d)
			}
			stop := d.OnEvent(func(e ib.Event) { events <- e.Device })
			dev.DispatchEvent(ib.EventPortActive, 1)
			if got := <-events; got != d {
				t.Errorf("device of the event: got %p, want %p", got, d)
			}
			stop()
		})
		wg.Wait()
		return nil, nil
	}}
	must(t, core.RegisterClient(cl))
	core.UnregisterClient(cl)
	w.expectRules(t, check.RuleLeftBehind)
	if err := core.Unregister(dev); err == nil {
		t.Error("Unregister with a remaining object: got nil, want an error")
	}
}

// TestCheckReportsIdleAbandoned checks that a client must not abandon objects in Remove, unless a destruction is in
// progress.
func TestCheckReportsIdleAbandoned(t *testing.T) {
	for _, c := range []struct {
		name     string
		destroys bool
		rules    []check.Rule
	}{
		{"idle", false, []check.Rule{check.RuleLeftBehind}},
		{"a destruction goes on", true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, core := &violationRecorder{}, &ib.Core{}
			check.On(core, check.Config{Report: w.recordViolation})
			h, drv := newDevice("fake0")
			must(t, core.Register(h))
			entered, release := drv.HoldMethod(ibfake.DestroyCQ)
			var cq *ib.CQ
			var pd *ib.PD
			cl := &ib.Client{Name: "A", Add: func(d *ib.Device) (_ any, err error) {
				pd, err = d.AllocPD()
				must(t, err)
				cq, err = d.CreateCQ(ib.CQInit{Entries: 4})
				return nil, err
			}, Remove: func(*ib.Device, any) {
				if c.destroys {
					ctx, cancel := context.WithCancel(t.Context())
					go func() {
						<-entered
						cancel()
					}()
					if err := cq.DestroyContext(ctx); !errors.Is(err, context.Canceled) {
						t.Errorf("DestroyContext with a blocked driver: got %v, want %v", err, context.Canceled)
					}
				}
				cq.Abandon()
				pd.Abandon()
			}}
			must(t, core.RegisterClient(cl))
			core.UnregisterClient(cl)
			w.expectRules(t, c.rules...)
			release()
			must(t, core.Unregister(h))
		})
	}
}
