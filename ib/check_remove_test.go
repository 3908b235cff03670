package ib

import (
	"sync"
	"testing"
)

// A client has a device of its own, which it does not use when its Remove has returned. Those of others are theirs.
func TestCheckUseAfterRemove(t *testing.T) {
	for _, c := range []struct {
		name  string
		use   func(d *Device)
		rules []Rule
	}{
		{"asks", func(d *Device) { second(d.QueryPort(1)) }, []Rule{RuleUseAfterRemove}},
		{"makes an object", func(d *Device) {
			if pd, err := d.AllocPD(); err == nil {
				pd.Dealloc()
			}
		}, []Rule{RuleUseAfterRemove, RuleUseAfterRemove}},
		{"listens", func(d *Device) { d.OnEvent(func(Event) {})() }, []Rule{RuleUseAfterRemove}},
		{"names it", func(d *Device) { _ = d.Name() }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, core := &witness{}, &Core{}
			core.Check(CheckConfig{Report: w.report})
			dev, _ := newDevice("fake0")
			must(t, core.Register(&dev.handle))
			var a, b *Device
			client := func(name string, d **Device) *Client {
				cl := &Client{Name: name, Remove: func(*Device, any) {}, Add: func(x *Device) (any, error) {
					*d = x
					return nil, nil
				}}
				must(t, core.RegisterClient(cl))
				return cl
			}
			first, other := client("A", &a), client("B", &b)
			if a == b || !a.Same(b) || !a.Same(dev) || !dev.Same(a) || a.Same(nil) {
				t.Error("the clients' devices are not two of one")
			}
			core.UnregisterClient(first)
			c.use(b)
			c.use(dev)
			w.expect(t)
			var wg sync.WaitGroup
			wg.Go(func() { c.use(a) })
			wg.Wait()
			w.expect(t, c.rules...)
			was := a
			must(t, core.RegisterClient(first))
			if a == was {
				t.Error("the client got the device that was taken from it")
			}
			c.use(a)
			w.expect(t, c.rules...)
			core.UnregisterClient(other)
			must(t, core.Unregister(&dev.handle))
		})
	}
}

// Objects made by another goroutine of a client belong to the client, and its events name its own Device.
func TestClientsDevice(t *testing.T) {
	w, core := &witness{}, &Core{}
	core.Check(CheckConfig{Report: w.report})
	dev, _ := newDevice("fake0")
	must(t, core.Register(&dev.handle))
	events := make(chan *Device, 1)
	cl := &Client{Name: "A", Remove: func(*Device, any) {}, Add: func(d *Device) (any, error) {
		var wg sync.WaitGroup
		wg.Go(func() {
			pd, err := d.AllocPD()
			must(t, err)
			if pd.Device() != d {
				t.Errorf("device of the object: got %p, want %p", pd.Device(), d)
			}
			stop := d.OnEvent(func(e Event) { events <- e.Device })
			dev.handle.DispatchEvent(EventPortActive, 1)
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
	w.expect(t, RuleLeftBehind)
	if err := core.Unregister(&dev.handle); err == nil {
		t.Error("unregister with an object left: got nil")
	}
}
