package slot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/ib"
)

// Hardware is what is plugged in, as its driver sees it. All methods may sleep.
type Hardware interface {
	// Probe makes a device, ready to be registered. (pci_driver.probe)
	Probe() (Device, error)
	// Reset resets hardware that answers, and fails if it does not. (pci_error_handlers.slot_reset)
	Reset(ctx context.Context) error
	// Await returns when hardware that did not answer does so again, or with an error if it never will, or ctx is
	// done. (pci_error_handlers.resume)
	Await(ctx context.Context) error
}

// Device is one life of the hardware, from Probe to Close.
type Device interface {
	Handle() *ib.DeviceHandle
	// Close gives the hardware back, after the device was unregistered. (pci_driver.remove)
	Close() error
}

// Stopper is implemented by Hardware that can be stopped at a chosen work request, for tests.
type Stopper interface {
	// AtWorkRequest has the hardware stop in front of the n-th send work request from now, and call f, which does not
	// sleep. It reports false when there is no device. With n 0 it stops nowhere. It may not sleep.
	AtWorkRequest(n uint64, f func()) bool
}

// State is where a slot stands; see the package comment.
type State uint8

const (
	Empty State = iota // nothing is plugged in, or recovery has failed
	Running
	Recovering
)

func (s State) String() string {
	if n := [...]string{"unplugged", "running", "recovering"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Status describes a slot.
type Status struct {
	State  State
	Resets int // completed
	Plugs  int
	// Recovery is how long the last completed reset took, from the fatal event until the new device was registered.
	Recovery time.Duration
	Armed    string // the moments that are waited for; empty: none
	Err      error  // why the last recovery or plug failed; nil after one that did not
}

// Slot is a place for hardware. All methods are safe for concurrent use; what changes the slot is done one after the
// other.
type Slot struct {
	core *ib.Core
	name string
	hw   Hardware
	logf func(format string, args ...any)

	flow       chan struct{} // full while the device is being changed
	atHardware atomic.Bool   // the change waits for a method of hw

	begun sync.WaitGroup // resets that a moment has begun

	mu           sync.Mutex
	status       Status
	armed        [numMoments]string // the moments that are waited for
	dev          Device             // registered; nil: none
	events       ib.EventCounts     // of devices that have gone
	cancel       context.CancelFunc // ends the wait of a plug or a recovery; nil: there is none
	settled      chan struct{}      // closed at the end of that; nil: there is none
	unplugs      int                // that have been called
	registration func()             // of DuringRegistration; nil: not armed
}

// New makes an empty slot for hw. logf, which may be nil, gets a line for each step that fails.
func New(core *ib.Core, name string, hw Hardware, logf func(format string, args ...any)) *Slot {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Slot{core: core, name: name, hw: hw, logf: logf, flow: make(chan struct{}, 1)}
}

// Hardware is what the slot is for.
func (s *Slot) Hardware() Hardware { return s.hw }

// Status is the present status. It may not sleep.
func (s *Slot) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Armed = strings.Join(slices.DeleteFunc(slices.Clone(s.armed[:]), func(m string) bool { return m == "" }), ", ")
	return st
}

// Device is the device, nil while there is none. It may not sleep.
func (s *Slot) Device() Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dev
}

// Events are the events of all devices that there have been; see ib.DeviceHandle.Events. It may not sleep.
func (s *Slot) Events() ib.EventCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.events
	if s.dev != nil {
		n.Add(s.dev.Handle().Events())
	}
	return n
}

// lock begins a change of the device, unless ctx is done before it is its turn.
func (s *Slot) lock(ctx context.Context) error {
	select {
	case s.flow <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Slot) unlock() { <-s.flow }

// runChange runs f, which changes the device, with the slot locked. If ctx ends while a client's function has not returned,
// runChange returns and f continues, with the slot locked until it ends. A wait for the hardware has the same context, so that f
// itself returns the error of that.
func (s *Slot) runChange(ctx context.Context, what string, f func() error) error {
	if ctx.Done() == nil {
		defer s.unlock()
		return f()
	}
	done := make(chan error, 1)
	go func() {
		defer s.unlock()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	if s.atHardware.Load() {
		return <-done
	}
	select {
	case err := <-done:
		return err
	default:
		return fmt.Errorf("%s %s: a client has not returned; still going on: %w", what, s.name, context.Cause(ctx))
	}
}

// hardware calls a method of the hardware.
func (s *Slot) hardware(ctx context.Context, method func(context.Context) error) error {
	s.atHardware.Store(true)
	defer s.atHardware.Store(false)
	return method(ctx)
}

// Plug makes a device of the hardware and registers it. EBUSY if there is one. It may sleep.
func (s *Slot) Plug() error {
	_ = s.lock(context.Background())
	defer s.unlock()
	if s.Device() != nil {
		return fmt.Errorf("plug %s: it is plugged in: %w", s.name, syscall.EBUSY)
	}
	err := s.change(context.Background(), s.bring, func(st *Status) { st.Plugs++ })
	if err != nil {
		return fmt.Errorf("plug %s: %w", s.name, err)
	}
	return nil
}

// Unplug takes the device away without notice, as by pulling it out: what is outstanding is flushed, then the clients
// hear of it. A recovery that waits for the hardware is given up. ENODEV if nothing is plugged in. It may sleep.
func (s *Slot) Unplug() error { return s.UnplugContext(context.Background()) }

// UnplugContext is Unplug with a bound for the wait. When ctx ends before it is the call's turn nothing has been done but that
// a recovery was given up; when it ends later the call goes on, and others wait for their turn. It may sleep.
func (s *Slot) UnplugContext(ctx context.Context) error {
	s.mu.Lock()
	present := s.dev != nil || s.cancel != nil
	if s.cancel != nil {
		s.cancel()
	}
	s.unplugs++
	s.mu.Unlock()
	err := s.lock(ctx)
	s.mu.Lock()
	s.unplugs--
	dev := s.dev
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("unplug %s: wait for another change: %w", s.name, err)
	}
	return s.runChange(ctx, "unplug", func() error {
		switch {
		case dev != nil:
		case present: // what was there has been given up
			return nil
		default:
			return fmt.Errorf("unplug %s: it is not plugged in: %w", s.name, syscall.ENODEV)
		}
		dev.Handle().SetError()
		err := s.take(dev)
		s.update(func(st *Status) { st.State = Empty })
		return err
	})
}

// Reset takes the device through a reset; see the package comment. It returns when the recovered device is registered:
// ctx bounds the wait for its turn, and for hardware that does not answer. When that fails the slot is empty, and the
// error says why. When ctx ends while a client has not returned from a function of its own, Reset returns and the reset goes
// on. It may sleep.
func (s *Slot) Reset(ctx context.Context) error { return s.reset(ctx, nil) }

// reset resets a certain device, if it is still there, or with nil the one that is.
func (s *Slot) reset(ctx context.Context, certain Device) error {
	if err := s.lock(ctx); err != nil {
		return fmt.Errorf("reset %s: wait for another change: %w", s.name, err)
	}
	return s.runChange(ctx, "reset", func() error {
		dev := s.Device()
		if certain != nil && dev != certain {
			return nil
		}
		if dev == nil {
			return fmt.Errorf("reset %s: it is not plugged in: %w", s.name, syscall.ENODEV)
		}
		began := time.Now()
		s.update(func(st *Status) { st.State = Recovering })
		err := s.change(ctx, func(ctx context.Context) error { return s.recover(ctx, dev) }, func(st *Status) {
			st.Resets++
			st.Recovery = time.Since(began)
		})
		if err != nil {
			return fmt.Errorf("reset %s: %w", s.name, err)
		}
		return nil
	})
}

// change has f bring a device. An Unplug ends the wait for hardware that does not answer, also one that was called before.
func (s *Slot) change(ctx context.Context, f func(context.Context) error, done func(*Status)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.cancel, s.settled = cancel, make(chan struct{})
	if s.unplugs > 0 {
		cancel()
	}
	s.mu.Unlock()
	err := f(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.settled)
	s.cancel, s.settled = nil, nil
	s.status.Err = err
	if err != nil {
		s.status.State = Empty
		return err
	}
	s.status.State = Running
	done(&s.status)
	return nil
}

func (s *Slot) recover(ctx context.Context, dev Device) error {
	if err := tellFatal(ctx, dev.Handle()); err != nil {
		s.logf("reset %s: %v", s.name, err)
	}
	unanswered := s.hardware(ctx, s.hw.Reset)
	dev.Handle().SetError()
	if err := s.take(dev); err != nil {
		s.logf("%v", err) // what a client has left behind is its own trouble
	}
	if err := s.await(ctx, unanswered); err != nil {
		return err
	}
	return s.bring(ctx)
}

// await waits for hardware that has not answered its reset, if there was an error.
func (s *Slot) await(ctx context.Context, unanswered error) error {
	if unanswered == nil {
		return nil
	}
	s.logf("reset %s: %v; waiting for the platform to reset it", s.name, unanswered)
	s.update(func(st *Status) { st.State = Recovering })
	return s.hardware(ctx, s.hw.Await)
}

// fatalWait bounds the wait for consumers that have an event function which does not return.
const fatalWait = time.Second

// tellFatal dispatches the fatal event and waits until the consumers have heard of it: functions are called in the order in
// which they began to listen, and this one listens last. It gives up after fatalWait, or when ctx is done.
func tellFatal(ctx context.Context, h *ib.DeviceHandle) error {
	told := make(chan struct{})
	var once sync.Once
	stop := h.Device().OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			once.Do(func() { close(told) })
		}
	})
	defer stop()
	h.DispatchEvent(ib.EventDeviceFatal, 0)
	t := time.NewTimer(fatalWait)
	defer t.Stop()
	select {
	case <-told:
		return nil
	case <-t.C:
		return fmt.Errorf("a consumer's event function has not returned for %v", fatalWait)
	case <-ctx.Done():
		return fmt.Errorf("a consumer's event function has not returned: %w", context.Cause(ctx))
	}
}

// take takes the device out of the midlayer.
func (s *Slot) take(dev Device) error {
	err := errors.Join(s.core.Unregister(dev.Handle()), dev.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dev = nil
	s.events.Add(dev.Handle().Events())
	s.armed[atWorkRequest], s.armed[inHandler] = "", "" // of that device
	return err
}

// bring brings a new device into the midlayer, and again if it is to be lost while it is registered.
func (s *Slot) bring(ctx context.Context) error {
	for {
		dev, err := s.hw.Probe()
		if err != nil {
			return err
		}
		dev.Handle().OnFailure(func(error) { s.failed(dev) })
		hit := s.duringRegistration()
		if hit == nil {
			if err := s.core.Register(dev.Handle()); err != nil {
				return errors.Join(err, dev.Close())
			}
			s.mu.Lock()
			s.dev = dev
			s.mu.Unlock()
			return nil
		}
		if err := s.lose(ctx, dev, hit); err != nil {
			return err
		}
	}
}

// failed takes a device that has failed through a reset.
func (s *Slot) failed(dev Device) {
	s.begun.Go(func() {
		if err := s.reset(context.Background(), dev); err != nil {
			s.logf("%v", err)
		}
	})
}

// lose has the device fail while it is being registered: the last of its clients is in its Add when it enters the error
// state, and Unregister is called before Register has returned.
func (s *Slot) lose(ctx context.Context, dev Device, hit func()) error {
	gone := make(chan error, 1)
	cl := &ib.Client{Name: "slot " + s.name, Remove: func(*ib.Device, any) {}}
	cl.Add = func(d *ib.Device) (any, error) {
		if h := dev.Handle(); d.Same(h.Device()) {
			hit()
			h.DispatchEvent(ib.EventDeviceFatal, 0)
			h.SetError()
			go func() { gone <- s.core.Unregister(h) }()
		}
		return nil, nil
	}
	if err := s.core.RegisterClient(cl); err != nil {
		return errors.Join(err, dev.Close())
	}
	err := s.core.Register(dev.Handle())
	s.core.UnregisterClient(cl)
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	if err := errors.Join(<-gone, dev.Close()); err != nil {
		s.logf("%v", err)
	}
	s.mu.Lock()
	s.events.Add(dev.Handle().Events())
	s.mu.Unlock()
	if err := s.await(ctx, s.hardware(ctx, s.hw.Reset)); err != nil {
		return err
	}
	s.update(func(st *Status) { st.Resets++ })
	return nil
}

// Settle waits until no plug or reset is going on. It may sleep.
func (s *Slot) Settle(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed := s.settled
		s.mu.Unlock()
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the recovery of %s: %w", s.name, ctx.Err())
		}
	}
}

func (s *Slot) update(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}
