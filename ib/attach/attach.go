package attach

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"verbena/ib"
)

// Identity identifies a device across registrations. A zero field matches every device. A field that is set must match.
// An Identity with only NodeGUID matches that hardware under any name. An Identity with only Name matches any hardware
// under that name.
type Identity struct {
	Name     string
	NodeGUID uint64 // host byte order
}

// Of returns the full identity of a device. It may sleep.
func Of(d *ib.Device) (Identity, error) {
	attr, err := d.QueryDevice()
	if err != nil {
		return Identity{}, fmt.Errorf("identity of %s: %w", d.Name(), err)
	}
	return Identity{Name: d.Name(), NodeGUID: attr.NodeGUID}, nil
}

// matchesDevice reports whether a device matches. matchesDevice may sleep.
func (id Identity) matchesDevice(d *ib.Device) (bool, error) {
	if id.Name != "" && id.Name != d.Name() {
		return false, nil
	}
	if id.NodeGUID == 0 {
		return true, nil
	}
	is, err := Of(d)
	return is.NodeGUID == id.NodeGUID, err
}

func (id Identity) String() string {
	switch {
	case id == Identity{}:
		return "any device"
	case id.NodeGUID == 0:
		return id.Name
	case id.Name == "":
		return fmt.Sprintf("node GUID %016x", id.NodeGUID)
	}
	return fmt.Sprintf("%s, node GUID %016x", id.Name, id.NodeGUID)
}

// State is the state of an attachment; see the package comment.
type State uint8

const (
	Held State = iota // there is no session; requests wait
	Attached
	Detaching // the session is about to end; requests wait
	Lost      // permanently: requests fail
	Closed
)

func (s State) String() string {
	if n := [...]string{"held", "attached", "detaching", "lost", "closed"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

var (
	// ErrLost reports that no session was created within Config.LossTimeout.
	ErrLost = fmt.Errorf("the device did not return within the loss timeout: %w", syscall.EIO)
	// ErrClosed reports that Close was called.
	ErrClosed = fmt.Errorf("the attachment is closed: %w", syscall.ENODEV)

	errGoes  = fmt.Errorf("the device is being removed: %w", syscall.ENODEV)
	errFatal = fmt.Errorf("the device reports a fatal error: %w", syscall.EIO)
)

// Config holds the functions that create and end a session S, and the timeouts. S is usually a pointer to a struct with
// the session's queue pairs and regions.
type Config[S any] struct {
	// Name is the name of the attached object, for messages.
	Name string
	// Device is the device to follow.
	Device Identity
	// Attach creates a session on d and may sleep until ctx ends. ctx ends when the device is being removed, the
	// timeout has passed, or Close was called. If Attach fails, it must destroy the objects that it has created on the
	// device. The attachment calls Attach again after RetryDelay. LossTimeout restarts with each session. If requests
	// are waiting, Attach should therefore execute the first of them before it returns the session. Otherwise a session
	// that always fails at once is retried without limit.
	//
	//
	// The session calls failed if it has become unusable although the device is present. Examples are a completion with
	// an error and a peer that does not respond. failed may be called from any context, including completion handlers.
	// A call after the end of the session has no effect. failed may not sleep.
	Attach func(ctx context.Context, d *ib.Device, failed func(cause error)) (S, error)
	// Detach destroys all objects of the session on the device. Detach must be quick, because a reset waits for its
	// return. When Detach is called, every Acquire of the session has been released.
	Detach func(d *ib.Device, s S)
	// Lost is called once, when the loss timeout has ended the attachment; cause is the reason. Lost may be nil. Lost
	// must not call Close, because Close waits for the return of Lost.
	Lost func(cause error)
	// LossTimeout limits the time between the end of one session and the start of the next one; 0 means no limit.
	LossTimeout time.Duration
	// RetryDelay is the delay between a failed session, or a failed Attach, and the next Attach on the same device; 0
	// means 1 s.
	RetryDelay time.Duration
	// Logf is called when a session begins or ends. Logf is also called when Attach fails for a different reason than
	// before. Logf may be nil.
	Logf func(format string, args ...any)
}

// Attachment attaches an object of an upper-level protocol to a device, and attaches the object again after each reset.
// All methods are safe for concurrent use.
type Attachment[S any] struct {
	cfg    Config[S]
	core   *ib.Core
	client ib.Client
	ended  chan struct{} // closed when work returns
	logged string        // the reason of the last failed Attach; used by work only

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and replaced when the state changes
	kick    chan struct{} // wakes work; capacity 1
	closing bool
	present []*ib.Device // devices that match, oldest first
	current *session[S]  // nil: there is no session and no Attach in progress
	users   int          // number of Acquires without a Release
	cause   error        // the reason for the end of the last session or attempt
}

// session is a session, or an attempt to create a session.
type session[S any] struct {
	dev   *ib.Device
	ended context.Context         // done when the session must end; its cause is the reason
	end   context.CancelCauseFunc // ends the session
	over  chan struct{}           // closed when the objects of the session have been destroyed
	s     S                       // valid in state Attached
}

// New creates an attachment. New does not wait for the device: a goroutine creates the first session when the device is
// present. The caller ends the attachment with Close. New may sleep.
func New[S any](core *ib.Core, cfg Config[S]) (*Attachment[S], error) {
	if cfg.Attach == nil || cfg.Detach == nil || cfg.LossTimeout < 0 || cfg.RetryDelay < 0 {
		return nil, fmt.Errorf("attach %s: Attach and Detach must not be nil and timeouts must not be negative: %w",
			cfg.Name,
			syscall.EINVAL)
	}
	if cfg.RetryDelay == 0 {
		cfg.RetryDelay = time.Second
	}
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	a := &Attachment[S]{
		cfg: cfg, core: core, ended: make(chan struct{}), changed: make(chan struct{}), kick: make(chan struct{}, 1),
	}
	a.client = ib.Client{Name: cfg.Name, Add: a.addDevice, Remove: a.removeDevice}
	if err := core.RegisterClient(&a.client); err != nil {
		return nil, fmt.Errorf("attach %s: %w", cfg.Name, err)
	}
	go a.runSessions()
	return a, nil
}

// Close ends the session and the attachment. Callers that wait in Acquire receive ErrClosed. Close may sleep, and must
// not be called from functions of Config or from a callback.
func (a *Attachment[S]) Close() {
	a.mu.Lock()
	a.closing = true
	a.endSession(ErrClosed)
	a.mu.Unlock()
	<-a.ended
	a.core.UnregisterClient(&a.client)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setState(Closed) // also if the attachment was lost
}

// State returns the current state. State may not sleep.
func (a *Attachment[S]) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// Acquire returns the current session. The session does not end before Release. If there is no session, Acquire waits
// for the next one. Acquire fails with ErrLost, ErrClosed or the error of ctx. The caller must not wait for completions
// of the session before Release. The end of the session waits for Release, and only that end may flush the outstanding
// requests.
func (a *Attachment[S]) Acquire(ctx context.Context) (s S, err error) {
	for {
		s, changed, err := a.currentSession()
		if changed == nil {
			return s, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s, fmt.Errorf("wait for a device for %s: %w", a.cfg.Name, ctx.Err())
		}
	}
}

// TryAcquire is Acquire for callers that may not sleep: ok is false if there is no session.
func (a *Attachment[S]) TryAcquire() (s S, ok bool) {
	s, changed, err := a.currentSession()
	return s, changed == nil && err == nil
}

// currentSession returns the session, or the error of a lost or closed attachment. If there is neither a session nor an
// error, currentSession returns a channel that is closed at the next state change.
func (a *Attachment[S]) currentSession() (s S, changed <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.state {
	case Attached:
		a.users++
		return a.current.s, nil, nil
	case Lost:
		return s, nil, fmt.Errorf("%s: %w", a.cfg.Name, ErrLost)
	case Closed:
		return s, nil, fmt.Errorf("%s: %w", a.cfg.Name, ErrClosed)
	}
	return s, a.changed, nil
}

// Release ends the use of a session by an Acquire or a successful TryAcquire. Release may not sleep.
func (a *Attachment[S]) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.users--; a.users < 0 {
		panic("attach: Release without Acquire")
	}
	if a.users == 0 && a.state == Detaching {
		a.wakeWorker()
	}
}

// wakeWorker wakes work. wakeWorker may not sleep.
//
//verbena:held mu
func (a *Attachment[S]) wakeWorker() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// setState changes the state.
//
//verbena:held mu
func (a *Attachment[S]) setState(s State) {
	a.state = s
	close(a.changed)
	a.changed = make(chan struct{})
}

// endSession ends the session or the attempt. endSession may not sleep.
//
//verbena:held mu
func (a *Attachment[S]) endSession(cause error) {
	if a.current != nil {
		a.current.end(cause)
	}
	a.wakeWorker()
}

// addDevice implements Client.Add.
func (a *Attachment[S]) addDevice(d *ib.Device) (any, error) {
	if ok, err := a.cfg.Device.matchesDevice(d); err != nil || !ok {
		return nil, err
	}
	stop := d.OnEvent(func(e ib.Event) {
		if e.Type != ib.EventDeviceFatal {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.current != nil && a.current.dev == d {
			a.endSession(errFatal)
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.present = append(a.present, d)
	a.wakeWorker()
	return stop, nil
}

// removeDevice implements Client.Remove. removeDevice returns after all objects of the session have been destroyed.
func (a *Attachment[S]) removeDevice(d *ib.Device, data any) {
	stop, ok := data.(func())
	if !ok {
		return // the device does not match
	}
	stop()
	a.mu.Lock()
	a.present = slices.DeleteFunc(a.present, func(o *ib.Device) bool { return o == d })
	x := a.current
	if x == nil || x.dev != d {
		a.mu.Unlock()
		return
	}
	a.endSession(errGoes)
	a.mu.Unlock()
	<-x.over
}

// runSessions creates and ends sessions until the attachment is lost or closed.
func (a *Attachment[S]) runSessions() {
	defer close(a.ended)
	var tried *ib.Device // the device of the last session
	for {
		x := a.awaitSession(tried)
		if x == nil {
			a.endLostAttachment()
			return
		}
		a.finishSession(x)
		tried = x.dev
	}
}

// awaitSession calls Attach until there is a session. awaitSession returns nil after the timeout or Close. awaitSession
// waits RetryDelay before it retries the device of the last session. awaitSession retries at once if the same hardware
// has been registered again.
func (a *Attachment[S]) awaitSession(tried *ib.Device) *session[S] {
	timeout, cancel := context.WithCancel(context.Background())
	if a.cfg.LossTimeout > 0 {
		timeout, cancel = context.WithTimeout(timeout, a.cfg.LossTimeout)
	}
	defer cancel()
	retry := time.NewTimer(a.cfg.RetryDelay)
	defer retry.Stop()
	for {
		x, closing := a.beginSessionAttempt(tried)
		if x != nil {
			if a.createSession(x, timeout) {
				return x
			}
			tried = x.dev
			retry.Reset(a.cfg.RetryDelay)
		}
		if closing || timeout.Err() != nil {
			return nil
		}
		select {
		case <-a.kick:
		case <-retry.C:
			tried = nil
		case <-timeout.Done():
		}
	}
}

// beginSessionAttempt starts an attempt on the first device, other than but, that is present and active.
// beginSessionAttempt returns nil if there is no such device.
func (a *Attachment[S]) beginSessionAttempt(but *ib.Device) (x *session[S], closing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return nil, true
	}
	for _, d := range a.present {
		if d != but && d.State() == ib.DeviceActive {
			x := &session[S]{dev: d, over: make(chan struct{})}
			x.ended, x.end = context.WithCancelCause(context.Background())
			a.current = x
			return x, false
		}
	}
	return nil, false
}

// createSession creates the session. The session must be usable before the context timeout ends.
func (a *Attachment[S]) createSession(x *session[S], timeout context.Context) bool {
	ctx, cancel := context.WithCancelCause(x.ended)
	defer cancel(nil)
	inTime := context.AfterFunc(timeout, func() { cancel(ErrLost) })
	s, err := a.cfg.Attach(ctx, x.dev, func(cause error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		x.end(cause)
		a.wakeWorker()
	})
	if err == nil {
		a.mu.Lock()
		if inTime() && x.ended.Err() == nil {
			x.s = s
			a.setState(Attached)
			a.mu.Unlock()
			a.logged = ""
			a.cfg.Logf("%s: attached to %s", a.cfg.Name, x.dev.Name())
			return true
		}
		a.mu.Unlock()
		err = context.Cause(ctx)
		a.cfg.Detach(x.dev, s)
	}
	inTime()
	if why := fmt.Sprintf("attach to %s: %v", x.dev.Name(), err); why != a.logged {
		a.logged = why
		a.cfg.Logf("%s: %s", a.cfg.Name, why)
	}
	a.endSessionAttempt(x, err)
	return false
}

// finishSession waits for the end of a session and destroys the objects of the session.
func (a *Attachment[S]) finishSession(x *session[S]) {
	<-x.ended.Done()
	a.mu.Lock()
	a.setState(Detaching)
	for a.users > 0 {
		a.mu.Unlock()
		<-a.kick
		a.mu.Lock()
	}
	a.mu.Unlock()
	cause := context.Cause(x.ended)
	a.cfg.Logf("%s: detach from %s: %v", a.cfg.Name, x.dev.Name(), cause)
	a.cfg.Detach(x.dev, x.s)
	a.endSessionAttempt(x, cause)
}

// endSessionAttempt ends a session, or an attempt, that has no objects on the device.
func (a *Attachment[S]) endSessionAttempt(x *session[S], cause error) {
	x.end(cause)
	a.mu.Lock()
	a.current, a.cause = nil, cause
	if a.state != Held {
		a.setState(Held)
	}
	a.mu.Unlock()
	close(x.over)
}

// endLostAttachment ends an attachment that is in state Held.
func (a *Attachment[S]) endLostAttachment() {
	a.mu.Lock()
	if a.closing {
		a.setState(Closed)
		a.mu.Unlock()
		return
	}
	cause := a.cause
	if cause == nil {
		cause = fmt.Errorf("no device that is %v: %w", a.cfg.Device, syscall.ENODEV)
	}
	a.setState(Lost)
	a.mu.Unlock()
	a.cfg.Logf("%s: lost: %v", a.cfg.Name, cause)
	if a.cfg.Lost != nil {
		a.cfg.Lost(fmt.Errorf("%s: %w; %w", a.cfg.Name, ErrLost, cause))
	}
}
