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

// Hardware is the driver's interface to the hardware in a slot. All methods may sleep.
type Hardware interface {
	// Probe creates a device that is ready for registration. (pci_driver.probe)
	Probe() (Device, error)
	// Reset resets the hardware. Reset returns an error if the hardware does not respond.
	// (pci_error_handlers.slot_reset)
	Reset(ctx context.Context) error
	// Await waits for unresponsive hardware to recover. Await returns an error if the hardware cannot recover or ctx
	// ends. (pci_error_handlers.resume)
	Await(ctx context.Context) error
}

// Device is one device of the hardware. A Device exists from Probe to Close.
type Device interface {
	Handle() *ib.DeviceHandle
	// Close releases the hardware after the device has been unregistered. (pci_driver.remove)
	Close() error
}

// Stopper is implemented by Hardware that can be stopped at a chosen work request, for tests.
type Stopper interface {
	// AtWorkRequest makes the hardware stop before the n-th send work request from now, and then call f. f may not
	// sleep. n 0 cancels an earlier call. AtWorkRequest returns false if the hardware has no device. AtWorkRequest may
	// not sleep.
	AtWorkRequest(n uint64, f func()) bool
}

// State is the state of a slot; see the package comment.
type State uint8

const (
	Empty State = iota // no hardware, or recovery has failed
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
	Resets int // number of completed resets
	Plugs  int
	// Recovery is the duration of the last completed reset, from the fatal event to the registration of the new device.
	Recovery time.Duration
	Armed    string // the pending moments; empty if there are none
	Err      error  // the error of the last recovery or plug, or nil
}

// Slot is a slot for hardware. All methods are safe for concurrent use. Changes of the device do not overlap.
type Slot struct {
	core *ib.Core
	name string
	hw   Hardware
	logf func(format string, args ...any)

	flow       chan struct{} // semaphore: full while a change of the device is in progress
	atHardware atomic.Bool   // the change waits for a method of hw, or ends after an error of hw.Await

	begun sync.WaitGroup // counts the resets started by a moment

	mu           sync.Mutex
	status       Status
	armed        [numMoments]string // the pending moments
	dev          Device             // registered; nil: none
	events       ib.EventCounts     // event counts of former devices
	cancel       context.CancelFunc // ends the wait of a plug or a recovery; nil if none is in progress
	settled      chan struct{}      // closed at the end of the plug or recovery; nil if none is in progress
	unplugs      int                // number of Unplug calls that wait for the lock
	registration func()             // the function of a pending DuringRegistration, or nil
}

// New creates an empty slot for hw. logf is called for each step that fails. logf may be nil.
func New(core *ib.Core, name string, hw Hardware, logf func(format string, args ...any)) *Slot {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Slot{core: core, name: name, hw: hw, logf: logf, flow: make(chan struct{}, 1)}
}

// Hardware returns the hardware of the slot.
func (s *Slot) Hardware() Hardware { return s.hw }

// Status returns the current status. Status may not sleep.
func (s *Slot) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Armed = strings.Join(slices.DeleteFunc(slices.Clone(s.armed[:]), func(m string) bool { return m == "" }), ", ")
	return st
}

// Device returns the device, or nil. Device may not sleep.
func (s *Slot) Device() Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dev
}

// Events returns the event counts of all devices so far; see ib.DeviceHandle.Events. Events may not sleep.
func (s *Slot) Events() ib.EventCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.events
	if s.dev != nil {
		n.Add(s.dev.Handle().Events())
	}
	return n
}

// lock begins a change of the device. lock returns an error if ctx ends first.
func (s *Slot) lock(ctx context.Context) error {
	select {
	case s.flow <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Slot) unlock() { <-s.flow }

// runChange locks the slot and runs f, which changes the device. If ctx ends while a client's function is running,
// runChange returns an error. f then continues, and the slot remains locked until f returns. If ctx ends while f waits
// for the hardware, runChange returns the error of f, because f uses the same ctx.
func (s *Slot) runChange(ctx context.Context, what string, f func() error) error {
	if ctx.Done() == nil {
		defer s.unlock()
		return f()
	}
	done := make(chan error, 1)
	s.atHardware.Store(false)
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
		return fmt.Errorf("%s %s: a client's function has not returned and the change continues: %w", what, s.name,
			context.Cause(ctx))
	}
}

// callHardware calls a method of the hardware.
func (s *Slot) callHardware(ctx context.Context, method func(context.Context) error) error {
	s.atHardware.Store(true)
	defer s.atHardware.Store(false)
	return method(ctx)
}

// Plug creates a device for the hardware and registers the device. Plug returns EBUSY if the slot has a device. Plug
// may sleep.
func (s *Slot) Plug() error {
	_ = s.lock(context.Background())
	defer s.unlock()
	if s.Device() != nil {
		return fmt.Errorf("plug %s: already plugged in: %w", s.name, syscall.EBUSY)
	}
	err := s.startDevice(context.Background(), s.probeAndRegister, func(st *Status) { st.Plugs++ })
	if err != nil {
		return fmt.Errorf("plug %s: %w", s.name, err)
	}
	return nil
}

// Unplug removes the device without notice, like a card that is pulled out of the machine. Outstanding requests are
// flushed. Then the clients' Remove functions are called. A recovery that waits for the hardware is cancelled. Unplug
// returns ENODEV if the slot is empty. Unplug may sleep.
func (s *Slot) Unplug() error { return s.UnplugContext(context.Background()) }

// UnplugContext is Unplug with a limit for the wait. If ctx ends while another change is in progress, Unplug has only
// cancelled a recovery that waits for the hardware. If ctx ends later, the call continues, and other changes wait for
// its end. UnplugContext may sleep.
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
		case present: // Unplug has cancelled the recovery
			return nil
		default:
			return fmt.Errorf("unplug %s: not plugged in: %w", s.name, syscall.ENODEV)
		}
		dev.Handle().SetError()
		err := s.unregister(dev)
		s.updateStatus(func(st *Status) { st.State = Empty })
		return err
	})
}

// Reset resets the device; see the package comment. Reset returns when the recovered device is registered. ctx limits
// the wait for other changes and for unresponsive hardware. If the recovery fails, the slot is empty afterwards. If ctx
// ends while a client's function is running, Reset returns an error and the reset continues. Reset may sleep.
func (s *Slot) Reset(ctx context.Context) error { return s.resetDevice(ctx, nil) }

// resetDevice resets the device certain if it is still present. A nil certain means the current device.
func (s *Slot) resetDevice(ctx context.Context, certain Device) error {
	if err := s.lock(ctx); err != nil {
		return fmt.Errorf("reset %s: wait for another change: %w", s.name, err)
	}
	return s.runChange(ctx, "reset", func() error {
		dev := s.Device()
		if certain != nil && dev != certain {
			return nil
		}
		if dev == nil {
			return fmt.Errorf("reset %s: not plugged in: %w", s.name, syscall.ENODEV)
		}
		began := time.Now()
		s.updateStatus(func(st *Status) { st.State = Recovering })
		err := s.startDevice(ctx, func(ctx context.Context) error { return s.recoverDevice(ctx, dev) }, func(st *Status) {
			st.Resets++
			st.Recovery = time.Since(began)
		})
		if err != nil {
			return fmt.Errorf("reset %s: %w", s.name, err)
		}
		return nil
	})
}

// startDevice calls f to start a device. A concurrent Unplug cancels the wait for unresponsive hardware, even if Unplug
// was called first and still waits.
func (s *Slot) startDevice(ctx context.Context, f func(context.Context) error, done func(*Status)) error {
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

func (s *Slot) recoverDevice(ctx context.Context, dev Device) error {
	if err := dispatchFatal(ctx, dev.Handle()); err != nil {
		s.logf("reset %s: %v", s.name, err)
	}
	unanswered := s.callHardware(ctx, s.hw.Reset)
	dev.Handle().SetError()
	if err := s.unregister(dev); err != nil {
		s.logf("%v", err) // objects that a client has left do not stop the reset
	}
	if err := s.awaitHardware(ctx, unanswered); err != nil {
		return err
	}
	return s.probeAndRegister(ctx)
}

// awaitHardware waits for hardware that has not responded to its reset. unanswered is the error of the reset.
func (s *Slot) awaitHardware(ctx context.Context, unanswered error) error {
	if unanswered == nil {
		return nil
	}
	s.logf("reset %s: %v; waiting for the platform to reset it", s.name, unanswered)
	s.updateStatus(func(st *Status) { st.State = Recovering })
	err := s.callHardware(ctx, s.hw.Await)
	s.atHardware.Store(err != nil) // no function of a client follows the error
	return err
}

// fatalEventTimeout limits the wait for event functions of consumers.
const fatalEventTimeout = time.Second

// dispatchFatal dispatches the fatal event and waits until the consumers have received the event. Event functions are
// called in the order of registration. The event function of dispatchFatal is the last one. The wait ends after
// fatalEventTimeout, or when ctx ends.
func dispatchFatal(ctx context.Context, h *ib.DeviceHandle) error {
	told := make(chan struct{})
	var once sync.Once
	stop := h.Device().OnEvent(func(e ib.Event) {
		if e.Type == ib.EventDeviceFatal {
			once.Do(func() { close(told) })
		}
	})
	defer stop()
	h.DispatchEvent(ib.EventDeviceFatal, 0)
	t := time.NewTimer(fatalEventTimeout)
	defer t.Stop()
	select {
	case <-told:
		return nil
	case <-t.C:
		return fmt.Errorf("a consumer's event function has not returned within %v", fatalEventTimeout)
	case <-ctx.Done():
		return fmt.Errorf("a consumer's event function has not returned: %w", context.Cause(ctx))
	}
}

// unregister unregisters the device and closes it.
func (s *Slot) unregister(dev Device) error {
	err := errors.Join(s.core.Unregister(dev.Handle()), dev.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dev = nil
	s.events.Add(dev.Handle().Events())
	s.armed[atWorkRequest], s.armed[inHandler] = "", "" // these moments belong to the device
	return err
}

// probeAndRegister probes and registers a device. probeAndRegister starts again if a pending moment makes the device
// fail during registration.
func (s *Slot) probeAndRegister(ctx context.Context) error {
	for {
		dev, err := s.hw.Probe()
		if err != nil {
			return err
		}
		dev.Handle().OnFailure(func(error) { s.resetFailedDevice(dev) })
		hit := s.takeRegistrationReset()
		if hit == nil {
			if err := s.core.Register(dev.Handle()); err != nil {
				return errors.Join(err, dev.Close())
			}
			s.mu.Lock()
			s.dev = dev
			s.mu.Unlock()
			return nil
		}
		if err := s.failDuringRegistration(ctx, dev, hit); err != nil {
			return err
		}
	}
}

// resetFailedDevice resets a device that has reported its own failure.
func (s *Slot) resetFailedDevice(dev Device) {
	s.begun.Go(func() {
		if err := s.resetDevice(context.Background(), dev); err != nil {
			s.logf("%v", err)
		}
	})
}

// failDuringRegistration makes the device fail during registration. The device enters the error state in the Add of its
// last client. Unregister is called before Register has returned.
func (s *Slot) failDuringRegistration(ctx context.Context, dev Device, hit func()) error {
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
	if err := s.awaitHardware(ctx, s.callHardware(ctx, s.hw.Reset)); err != nil {
		return err
	}
	s.updateStatus(func(st *Status) { st.Resets++ })
	return nil
}

// Settle waits until no plug or reset is in progress. It may sleep.
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

func (s *Slot) updateStatus(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}
