package slot

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Moment is a time at which a reset occurs. Tests use it.
type Moment struct {
	kind momentKind
	what string
	n    uint64
}

type momentKind uint8

const (
	never momentKind = iota
	atWorkRequest
	inHandler
	duringRegistration
	numMoments
)

// AtWorkRequest is the time just before the hardware executes the n-th send work request from now. The n-th request and
// all later requests are flushed.
func AtWorkRequest(n uint64) Moment {
	return Moment{atWorkRequest, fmt.Sprintf("work request %d", n), n}
}

var (
	// DuringRegistration is a time during the next registration of the device. The clients already have the device, and
	// Register has not returned.
	DuringRegistration = Moment{kind: duringRegistration, what: "registration"}
	// InHandler is the start of the next completion handler of the device.
	InHandler = Moment{kind: inHandler, what: "completion handler"}
)

func (m Moment) String() string { return m.what }

// ResetAt schedules one reset at the time m. At that time it calls with, for example to make the hardware unreachable.
// with may not sleep, and may be nil. The device stops, and the reset continues in the background. The wait for the
// hardware has no limit. ResetAt replaces a pending ResetAt of the same kind. A pending ResetAt for a time of the
// device is cancelled when the device is unplugged or reset. ResetAt returns EOPNOTSUPP if the hardware cannot stop at
// a work request, and ENODEV if the slot is empty. ResetAt may not sleep.
func (s *Slot) ResetAt(m Moment, with func()) error {
	dev := s.Device()
	if dev == nil {
		return fmt.Errorf("reset %s at %v: the device is not plugged in: %w", s.name, m, syscall.ENODEV)
	}
	hit := func() {
		s.setPendingMoment(m.kind, "")
		if with != nil {
			with()
		}
	}
	later := func() {
		hit()
		stopped := s.Device()
		s.begun.Go(func() {
			if err := s.resetDevice(context.Background(), stopped); err != nil {
				s.logf("%v", err)
			}
		})
	}
	s.setPendingMoment(m.kind, m.what)
	var err error
	switch m.kind {
	case atWorkRequest:
		if hw, ok := s.hw.(Stopper); !ok {
			err = fmt.Errorf("the hardware cannot stop at a work request: %w", syscall.EOPNOTSUPP)
		} else if !hw.AtWorkRequest(m.n, later) {
			err = fmt.Errorf("the device is not plugged in: %w", syscall.ENODEV)
		}
	case inHandler:
		h := dev.Handle()
		h.AtHandler(func() {
			h.SetError()
			later()
		})
	case duringRegistration:
		s.mu.Lock()
		s.registration = hit
		s.mu.Unlock()
	default:
		err = fmt.Errorf("unknown moment: %w", syscall.EINVAL)
	}
	if err != nil {
		s.setPendingMoment(m.kind, "")
		return fmt.Errorf("reset %s at %v: %w", s.name, m, err)
	}
	return nil
}

// Disarm cancels every pending ResetAt. Disarm may not sleep.
func (s *Slot) Disarm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev != nil {
		if hw, ok := s.hw.(Stopper); ok {
			hw.AtWorkRequest(0, nil)
		}
		s.dev.Handle().AtHandler(nil)
	}
	s.registration = nil
	clear(s.armed[:])
}

// setPendingMoment records the pending moment of a kind. An empty string removes the record.
func (s *Slot) setPendingMoment(k momentKind, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed[k] = what
}

// takeRegistrationReset returns the function for the next registration, or nil.
func (s *Slot) takeRegistrationReset() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.registration
	s.registration = nil
	return f
}

// Close unplugs the device, if any, and waits for resets that ResetAt has started. Close may sleep.
func (s *Slot) Close() (err error) {
	for s.disarmAndCheckOccupied() {
		// another call has unplugged the device, or recovery has failed
		if e := s.Unplug(); !errors.Is(e, syscall.ENODEV) {
			err = errors.Join(err, e)
		}
	}
	s.begun.Wait()
	return err
}

// disarmAndCheckOccupied reports whether the slot has a device or may soon have a device. disarmAndCheckOccupied
// cancels a pending DuringRegistration.
func (s *Slot) disarmAndCheckOccupied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registration, s.armed[duringRegistration] = nil, ""
	return s.dev != nil || s.cancel != nil
}
