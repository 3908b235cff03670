package slot

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Moment is a moment at which a reset is to hit, so that a test need not hope for it.
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

// AtWorkRequest is when the hardware is about to carry out the n-th send work request from now: that one, and all that
// come after it, are flushed.
func AtWorkRequest(n uint64) Moment {
	return Moment{atWorkRequest, fmt.Sprintf("work request %d", n), n}
}

var (
	// DuringRegistration is while the device's next registration is not complete: the clients have it, and Register
	// has not returned.
	DuringRegistration = Moment{kind: duringRegistration, what: "registration"}
	// InHandler is when the next completion handler of the device begins.
	InHandler = Moment{kind: inHandler, what: "completion handler"}
)

func (m Moment) String() string { return m.what }

// ResetAt has a reset hit at a moment, once. Right at the moment with is called, which may not sleep and may be nil: it
// makes the hardware unreachable, say. Then the device does nothing more, and the reset goes on in the background, with
// no bound on the wait for the hardware. An earlier ResetAt that is still waiting is replaced if it is for the same kind
// of moment; one for a moment of the device is forgotten when that goes. EOPNOTSUPP from hardware that cannot be stopped
// at a work request, ENODEV if nothing is plugged in. It may not sleep.
func (s *Slot) ResetAt(m Moment, with func()) error {
	dev := s.Device()
	if dev == nil {
		return fmt.Errorf("reset %s at %v: it is not plugged in: %w", s.name, m, syscall.ENODEV)
	}
	hit := func() {
		s.arm(m.kind, "")
		if with != nil {
			with()
		}
	}
	later := func() {
		hit()
		stopped := s.Device()
		s.begun.Go(func() {
			if err := s.reset(context.Background(), stopped); err != nil {
				s.logf("%v", err)
			}
		})
	}
	s.arm(m.kind, m.what)
	var err error
	switch m.kind {
	case atWorkRequest:
		if hw, ok := s.hw.(Stopper); !ok {
			err = fmt.Errorf("its hardware cannot be stopped there: %w", syscall.EOPNOTSUPP)
		} else if !hw.AtWorkRequest(m.n, later) {
			err = fmt.Errorf("it is not plugged in: %w", syscall.ENODEV)
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
		err = fmt.Errorf("no such moment: %w", syscall.EINVAL)
	}
	if err != nil {
		s.arm(m.kind, "")
		return fmt.Errorf("reset %s at %v: %w", s.name, m, err)
	}
	return nil
}

// Disarm takes back every ResetAt whose moment has not come. It may not sleep.
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

// arm notes that a moment is waited for, or with "" that none of its kind is.
func (s *Slot) arm(k momentKind, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed[k] = what
}

// duringRegistration is what the coming registration is to be hit with, nil for nothing.
func (s *Slot) duringRegistration() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.registration
	s.registration = nil
	return f
}

// Close unplugs the device, if there is one, and waits for resets that ResetAt has begun. It may sleep.
func (s *Slot) Close() (err error) {
	for s.occupied() {
		if e := s.Unplug(); !errors.Is(e, syscall.ENODEV) { // somebody else did, or it was given up
			err = errors.Join(err, e)
		}
	}
	s.begun.Wait()
	return err
}

// occupied reports whether there is a device, or soon may be; nothing hits the coming registration any more.
func (s *Slot) occupied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registration, s.armed[duringRegistration] = nil, ""
	return s.dev != nil || s.cancel != nil
}
