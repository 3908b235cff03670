// Package consumer has two wrong consumers. Without the modes of package ib/ibtest/strict, their tests pass.
package consumer

import (
	"testing"

	"verbena/driver/loopback"
	"verbena/ib"
)

func newDevice(t *testing.T) *ib.DeviceHandle {
	core := &ib.Core{}
	d := loopback.New("loop0", t.Logf)
	if err := core.Register(d.Handle()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = core.Unregister(d.Handle()) })
	return d.Handle()
}

// TestOneKey relies on equal keys of a region, which a weak device does not have.
func TestOneKey(t *testing.T) {
	pd, err := newDevice(t).Device().AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Dealloc()
	mr, err := pd.RegBytes(make([]byte, 8), ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	if mr.LKey() != mr.RKey() {
		t.Error("keys of a region: got different keys, want equal keys")
	}
}

// TestSleepingEventFunction calls a function that may sleep in an event function. Checked mode reports the call.
func TestSleepingEventFunction(t *testing.T) {
	h := newDevice(t)
	called := make(chan struct{})
	stop := h.Device().OnEvent(func(ib.Event) {
		_, _ = h.Device().QueryPort(1)
		close(called)
	})
	defer stop()
	h.DispatchEvent(ib.EventGIDChange, 1)
	<-called
}
