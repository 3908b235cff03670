package slot

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// sameKind reports whether m and o replace each other.
func (m Moment) sameKind(o Moment) bool { return m == o || m.n > 0 && o.n > 0 }

// ofDevice reports whether the moment is one of the present device, and never comes once that is gone.
func (m Moment) ofDevice() bool { return m != DuringRegistration }

// arming is a moment that is waited for.
type arming struct {
	Moment
	hit func()
}

// ResetAt has a reset hit at a moment, once. Right at the moment with is called, which may not sleep and may be nil: it
// makes the hardware unreachable, say. Then the device does nothing more, and the reset goes on in the background, with
// no bound on the wait for the hardware. An earlier ResetAt that is still waiting is replaced if it is for the same kind
// of moment; Disarm takes all back. A moment of the device is forgotten when that is reset or unplugged before it comes.
// EOPNOTSUPP from hardware that cannot be stopped at a work request, ENODEV if nothing is plugged in. It may not sleep.
func (s *Slot) ResetAt(m Moment, with func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	absent := fmt.Errorf("reset %s at %v: it is not plugged in: %w", s.name, m, syscall.ENODEV)
	if s.dev == nil {
		return absent
	}
	a := &arming{Moment: m}
	a.hit = func() {
		s.mu.Lock()
		s.waiting = slices.DeleteFunc(s.waiting, func(o *arming) bool { return o == a })
		s.mu.Unlock()
		if with != nil {
			with()
		}
	}
	later := func() {
		a.hit()
		s.armed.Add(1)
		go func() {
			defer s.armed.Done()
			if err := s.Reset(context.Background()); err != nil {
				s.logf("%v", err)
			}
		}()
	}
	s.forgetLocked(m.sameKind)
	s.waiting = append(s.waiting, a)
	fail := func(err error) error {
		s.forgetLocked(m.sameKind)
		return err
	}
	switch {
	case m.n > 0:
		hw, ok := s.hw.(Stopper)
		if !ok {
			return fail(fmt.Errorf("reset %s at %v: its hardware cannot be stopped there: %w", s.name, m, syscall.EOPNOTSUPP))
		}
		if !hw.AtWorkRequest(m.n, later) {
			return fail(absent)
		}
	case m == InHandler:
		ibdev := s.dev.IB()
		ibdev.AtHandler(func() {
			ibdev.SetError()
			later()
		})
	case m == DuringRegistration:
	default:
		return fail(fmt.Errorf("reset %s: no such moment: %w", s.name, syscall.EINVAL))
	}
	return nil
}

// Disarm takes back every ResetAt whose moment has not come. It may not sleep.
func (s *Slot) Disarm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.waiting {
		switch hw, ok := s.hw.(Stopper); {
		case s.dev == nil:
		case a.n > 0 && ok:
			hw.AtWorkRequest(0, nil)
		case a.Moment == InHandler:
			s.dev.IB().AtHandler(nil)
		}
	}
	s.waiting = nil
}

// armedLocked lists the moments that are waited for.
func (s *Slot) armedLocked() string {
	var names []string
	for _, a := range s.waiting {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// forgetLocked strikes the moments of which drop is true off the list.
func (s *Slot) forgetLocked(drop func(Moment) bool) {
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arming) bool { return drop(a.Moment) })
}

// duringRegistration is what the coming registration is to be hit with, nil for nothing.
func (s *Slot) duringRegistration() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.waiting {
		if a.Moment == DuringRegistration {
			return a.hit
		}
	}
	return nil
}

// Close unplugs the device, if there is one, and waits for resets that ResetAt has begun. It may sleep.
func (s *Slot) Close() error {
	for {
		s.mu.Lock()
		s.waiting = nil
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
