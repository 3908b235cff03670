package page

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"verbena/driver/loopback"
	"verbena/ib"
	"verbena/ib/check"
)

func TestTicketsAreUnique(t *testing.T) {
	var core ib.Core
	check.On(&core, check.Config{Report: func(v check.Violation) { t.Error(v) }})
	var tickets Tickets
	client := tickets.Client()
	if err := core.RegisterClient(client); err != nil {
		t.Fatal(err)
	}
	const name = "loop0"
	var seen sync.Map // all drawn tickets
	var drawn atomic.Int64
	draw := func() error {
		v, err := tickets.Next(name)
		if err != nil {
			return err
		}
		if _, twice := seen.LoadOrStore(v, true); twice {
			t.Errorf("Next: got %d twice", v)
		}
		drawn.Add(1)
		return nil
	}
	if err := draw(); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Next before the device was registered: got %v, want ENODEV", err)
	}

	// life registers a device, draws tickets on four threads, and meanwhile unregisters the device, with or without
	// the error state.
	life := func(fail bool) {
		t.Helper()
		h := loopback.New(name, t.Logf).Handle()
		if err := core.Register(h); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var ending atomic.Bool
		busy := drawn.Load() + 100
		reached := make(chan struct{})
		var once sync.Once
		for range 4 {
			wg.Go(func() {
				for {
					if err := draw(); err != nil {
						if !ending.Load() {
							t.Errorf("Next on a working device: %v", err)
						}
						once.Do(func() { close(reached) })
						return
					}
					if drawn.Load() >= busy {
						once.Do(func() { close(reached) })
					}
				}
			})
		}
		<-reached
		ending.Store(true)
		if fail {
			h.SetError()
			if err := draw(); err == nil {
				t.Error("Next on a device in error: got a ticket, want an error")
			}
		}
		if err := core.Unregister(h); err != nil {
			t.Errorf("Unregister: %v", err)
		}
		wg.Wait()
		if n := h.Device().Objects(); n != (ib.ObjectCounts{}) {
			t.Errorf("objects left: %v", n)
		}
		if err := h.Dealloc(); err != nil {
			t.Errorf("Dealloc: %v", err)
		}
	}
	life(false)
	life(true)
	life(false)
	core.UnregisterClient(client)
	if err := draw(); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Next after the device was unregistered: got %v, want ENODEV", err)
	}
	// A failing device may lose a number, but a working device may not.
	last := tickets.counter(name).mem
	if n := int64(binary.NativeEndian.Uint64(last)); n < drawn.Load() || n > drawn.Load()+3 {
		t.Errorf("counter: got %d, want %d drawn tickets, plus at most one lost ticket per device life", n, drawn.Load())
	}
}
