package ibtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"verbena/ib"
)

// Devices that are plugged and unplugged within one test.

// cleanupScope is a testing.TB whose clean-ups run when one device is freed, not at the end of the test.
type cleanupScope struct {
	testing.TB
	cleanups []func()
}

func (s *cleanupScope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

// runCleanups runs the clean-ups, the last one first. They may add others.
func (s *cleanupScope) runCleanups() {
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = slices.Delete(s.cleanups, last, last+1)
		f()
	}
}

// deviceSlot holds the current device of a test.
type deviceSlot struct {
	e    *testEnv
	core ib.Core
	cl   *ib.Client
	make func(t testing.TB) *ib.DeviceHandle

	scope  *cleanupScope // scope of the device
	handle *ib.DeviceHandle
	dev    *ib.Device // the device as the client sees it
	lossy  bool

	remove    func() error // the client's shutdown
	removeErr error
}

// plugDevice creates a device and registers it.
func (s *deviceSlot) plugDevice() error {
	s.remove = func() error { return nil }
	s.scope = &cleanupScope{TB: s.e.TB}
	s.handle = s.make(s.scope)
	return s.e.cfg.plug(&s.core, s.handle)
}

// unplugDevice unregisters the device and frees it.
func (s *deviceSlot) unplugDevice() error {
	err := s.e.cfg.unplug(&s.core, s.handle)
	s.scope.runCleanups()
	return err
}

// resetDevice resets the device in the order of package ib/slot: the fatal event, the error state, the client's
// shutdown, and the recovered device.
func (s *deviceSlot) resetDevice(remove func() error) error {
	if err := s.dispatchFatal(); err != nil {
		return err
	}
	s.handle.SetError()
	s.remove = remove
	old := s.handle
	if err := errors.Join(s.unplugDevice(), s.removeErr); err != nil {
		return fmt.Errorf("shut down a device in error: %w", err)
	}
	if _, err := old.Device().AllocPD(); !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("alloc pd on the device before its reset: got error %v, want %w", err, syscall.ENODEV)
	}
	if err := s.plugDevice(); err != nil {
		return fmt.Errorf("register the recovered device: %w", err)
	}
	return nil
}

// dispatchFatal dispatches the fatal event, and waits until a consumer has received it.
func (s *deviceSlot) dispatchFatal() error {
	told := make(chan struct{})
	var once sync.Once
	stop := s.dev.OnEvent(func(ev ib.Event) {
		if ev.Type == ib.EventDeviceFatal {
			once.Do(func() { close(told) })
		}
	})
	defer stop()
	s.handle.DispatchEvent(ib.EventDeviceFatal, 0)
	select {
	case <-told:
		return nil
	case <-time.After(s.e.cfg.timeout):
		return fmt.Errorf("waited %v for %v", s.e.cfg.timeout, ib.EventDeviceFatal)
	}
}
