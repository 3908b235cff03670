package slot

import (
	"context"
	"fmt"
	"syscall"
)

// Moment is a moment at which a reset is to hit, so that a test need not hope for it.
type Moment struct {
	what string
	n    uint64
}

// AtWorkRequest is when the hardware is about to carry out the n-th send work request from now: that one, and all that
// come after it, are flushed.
func AtWorkRequest(n uint64) Moment { return Moment{fmt.Sprintf("work request %d", n), n} }

var (
	// DuringRegistration is while the device's next registration is not complete: the clients have it, and Register
	// has not returned.
	DuringRegistration = Moment{what: "registration"}
	// InHandler is when the next completion handler of the device begins.
	InHandler = Moment{what: "completion handler"}
)

func (m Moment) String() string { return m.what }

// ResetAt has a reset hit at a moment, once. Right at the moment with is called, which may not sleep and may be nil: it
// makes the hardware unreachable, say. Then the device does nothing more, and the reset goes on in the background, with
// no bound on the wait for the hardware. An earlier ResetAt that is still waiting is replaced if it is for the same kind
// of moment. EOPNOTSUPP from hardware that cannot be stopped at a work request, ENODEV if nothing is plugged in. It may
// not sleep.
func (s *Slot) ResetAt(m Moment, with func()) error {
	dev := s.Device()
	if dev == nil {
		return fmt.Errorf("reset %s at %v: it is not plugged in: %w", s.name, m, syscall.ENODEV)
	}
	hit := func() {
		s.update(func(st *Status) { st.Armed = "" })
		if with != nil {
			with()
		}
	}
	later := func() {
		hit()
		s.armed.Add(1)
		go func() {
			defer s.armed.Done()
			if err := s.Reset(context.Background()); err != nil {
				s.logf("%v", err)
			}
		}()
	}
	s.update(func(st *Status) { st.Armed = m.String() })
	switch {
	case m.n > 0:
		hw, ok := s.hw.(Stopper)
		if ok && !hw.AtWorkRequest(m.n, later) {
			return fmt.Errorf("reset %s at %v: it is not plugged in: %w", s.name, m, syscall.ENODEV)
		}
		if !ok {
			return fmt.Errorf("reset %s at %v: its hardware cannot be stopped there: %w", s.name, m, syscall.EOPNOTSUPP)
		}
	case m == InHandler:
		ibdev := dev.IB()
		ibdev.AtHandler(func() {
			ibdev.SetError()
			later()
		})
	case m == DuringRegistration:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.registration = hit
	default:
		return fmt.Errorf("reset %s: no such moment: %w", s.name, syscall.EINVAL)
	}
	return nil
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
func (s *Slot) Close() error {
	for {
		s.mu.Lock()
		s.registration = nil
		busy := s.dev != nil || s.cancel != nil
		s.mu.Unlock()
		if !busy {
			break
		}
		if err := s.Unplug(); err != nil {
			return err
		}
	}
	s.armed.Wait()
	return nil
}
