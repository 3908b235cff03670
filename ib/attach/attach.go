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

// Identity knows a device again after it was registered anew. A field that is zero fits every device; a device must
// fit all others. NodeGUID alone tells hardware that has moved to another name, Name alone whatever is plugged in there.
type Identity struct {
	Name     string
	NodeGUID uint64 // host byte order
}

// Of is the full identity of a device. It may sleep.
func Of(d *ib.Device) (Identity, error) {
	attr, err := d.QueryDevice()
	if err != nil {
		return Identity{}, fmt.Errorf("identity of %s: %w", d.Name(), err)
	}
	return Identity{Name: d.Name(), NodeGUID: attr.NodeGUID}, nil
}

// fits reports whether a device is the one. It may sleep.
func (id Identity) fits(d *ib.Device) (bool, error) {
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

// State is where an attachment stands; see the package comment.
type State uint8

const (
	Held State = iota // no session: requests wait
	Attached
	Detaching // the session is about to end: requests wait
	Lost      // for good: requests fail
	Closed
)

func (s State) String() string {
	if n := [...]string{"held", "attached", "detaching", "lost", "closed"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

var (
	// ErrLost: no session could be made for as long as Config.LossTimeout.
	ErrLost = fmt.Errorf("the device has not come back in time: %w", syscall.EIO)
	// ErrClosed: Close was called.
	ErrClosed = fmt.Errorf("the attachment is closed: %w", syscall.ENODEV)

	errGoes  = fmt.Errorf("the device goes: %w", syscall.ENODEV)
	errFatal = fmt.Errorf("the device reports a fatal error: %w", syscall.EIO)
)

// Config says how to make and end a session S, and when to give up. S is usually a pointer to a struct with the
// session's queue pairs and regions.
type Config[S any] struct {
	// Name is what is attached, for messages.
	Name string
	// Device is the device to follow.
	Device Identity
	// Attach makes a session on d. It may sleep, but not beyond ctx, which is done when the session could not be used
	// any more: the device goes, the time-out has passed, Close was called. After an error it has left nothing on the
	// device, and is tried again after RetryDelay. LossTimeout begins anew with each session: so with requests that wait,
	// return one only when it has carried the first of them, or what fails each time at once is never given up.
	//
	// The session reports by failed that it is of no use although the device is there: a completion with an error, a
	// peer that does not answer. It may be called from any context, a completion handler included, by whatever still
	// refers to the session; when that has ended already, nothing happens. It may not sleep.
	Attach func(ctx context.Context, d *ib.Device, failed func(cause error)) (S, error)
	// Detach destroys all that the session has on the device, soon: a reset waits for it. Nobody has the session by
	// Acquire any more.
	Detach func(d *ib.Device, s S)
	// Lost is called once when the attachment gives up; cause says what was in the way. May be nil. It must not
	// call Close, which waits for it.
	Lost func(cause error)
	// LossTimeout is how long the object is held, from the end of one session to the next one; 0: for ever.
	LossTimeout time.Duration
	// RetryDelay is how long the next attempt on the same device waits after a session, or an attempt, has failed; 0:
	// a second.
	RetryDelay time.Duration
	// Logf gets a line when a session begins and ends, and when an attempt fails for another reason than the one before.
	// May be nil.
	Logf func(format string, args ...any)
}

// Attachment attaches an upper-level protocol's object to a device again and again. All methods are safe for
// concurrent use.
type Attachment[S any] struct {
	cfg    Config[S]
	core   *ib.Core
	client ib.Client
	ended  chan struct{} // closed when work has returned
	logged string        // why the last attempt failed; work's own

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed, and replaced, when the state changes
	kick    chan struct{} // of capacity 1: work is to look again
	closing bool
	present []*ib.Device // those that fit, oldest first
	current *session[S]  // nil: there is none, nor an attempt
	users   int          // between Acquire and Release
	cause   error        // why the last session or attempt ended
}

// session is one session, or the attempt at one.
type session[S any] struct {
	dev   *ib.Device
	ended context.Context         // done when it is to end; the cause says why
	end   context.CancelCauseFunc // has it end
	over  chan struct{}           // closed when nothing of it is left on the device
	s     S                       // when the attachment is in state Attached
}

// New attaches an object. It returns at once; the first session begins in the background as soon as the device is
// there. Close ends it. It may sleep.
func New[S any](core *ib.Core, cfg Config[S]) (*Attachment[S], error) {
	if cfg.Attach == nil || cfg.Detach == nil || cfg.LossTimeout < 0 || cfg.RetryDelay < 0 {
		return nil, fmt.Errorf("attach %s: Attach and Detach are needed, times are not negative: %w", cfg.Name, syscall.EINVAL)
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
	a.client = ib.Client{Name: cfg.Name, Add: a.add, Remove: a.remove}
	if err := core.RegisterClient(&a.client); err != nil {
		return nil, fmt.Errorf("attach %s: %w", cfg.Name, err)
	}
	go a.work()
	return a, nil
}

// Close ends the session and the attachment; who waits in Acquire gets ErrClosed. It may sleep, and must be called
// neither from Config's functions nor from a callback.
func (a *Attachment[S]) Close() {
	a.mu.Lock()
	a.closing = true
	a.endSession(ErrClosed)
	a.mu.Unlock()
	<-a.ended
	a.core.UnregisterClient(&a.client)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set(Closed) // also when it was lost
}

// State is the present state. It may not sleep.
func (a *Attachment[S]) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// Acquire is the present session, which does not end before Release. It waits while the object is held: until there is
// a session, ErrLost, ErrClosed, or the error of ctx. Do not wait for the session's completions before Release: an
// ending session waits for Release, and what is outstanding may be flushed only by its end.
func (a *Attachment[S]) Acquire(ctx context.Context) (s S, err error) {
	for {
		s, changed, err := a.take()
		if changed == nil {
			return s, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s, fmt.Errorf("wait for %s, held: %w", a.cfg.Name, ctx.Err())
		}
	}
}

// TryAcquire is Acquire for those who may not sleep: ok is false unless there is a session.
func (a *Attachment[S]) TryAcquire() (s S, ok bool) {
	s, changed, err := a.take()
	return s, changed == nil && err == nil
}

// take is the session, or an error, or, if neither is there yet, what tells of the next change.
func (a *Attachment[S]) take() (s S, changed <-chan struct{}, err error) {
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

// Release ends an Acquire or a successful TryAcquire. It may not sleep.
func (a *Attachment[S]) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.users--; a.users < 0 {
		panic("attach: Release without Acquire")
	}
	if a.users == 0 && a.state == Detaching {
		a.wake()
	}
}

// wake has work look again. It may not sleep.
//
//verbena:held mu
func (a *Attachment[S]) wake() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// set changes the state.
//
//verbena:held mu
func (a *Attachment[S]) set(s State) {
	a.state = s
	close(a.changed)
	a.changed = make(chan struct{})
}

// endSession has the session, or the attempt, end. It may not sleep.
//
//verbena:held mu
func (a *Attachment[S]) endSession(cause error) {
	if a.current != nil {
		a.current.end(cause)
	}
	a.wake()
}

// add is the client's Add.
func (a *Attachment[S]) add(d *ib.Device) (any, error) {
	if ok, err := a.cfg.Device.fits(d); err != nil || !ok {
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
	a.wake()
	return stop, nil
}

// remove is the client's Remove: it returns when nothing is left on the device.
func (a *Attachment[S]) remove(d *ib.Device, data any) {
	stop, ok := data.(func())
	if !ok {
		return // it does not fit
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

// work makes and ends sessions until the object is lost or closed.
func (a *Attachment[S]) work() {
	defer close(a.ended)
	var tried *ib.Device // where the last session was
	for {
		x := a.hold(tried)
		if x == nil {
			a.giveUp()
			return
		}
		a.finish(x)
		tried = x.dev
	}
}

// hold tries to attach until there is a session; nil when the time is up, or Close was called. The device of the last
// one has to wait for RetryDelay, but not the same hardware that was registered anew.
func (a *Attachment[S]) hold(tried *ib.Device) *session[S] {
	patience, cancel := context.WithCancel(context.Background())
	if a.cfg.LossTimeout > 0 {
		patience, cancel = context.WithTimeout(patience, a.cfg.LossTimeout)
	}
	defer cancel()
	retry := time.NewTimer(a.cfg.RetryDelay)
	defer retry.Stop()
	for {
		x, closing := a.begin(tried)
		if x != nil {
			if a.try(x, patience) {
				return x
			}
			tried = x.dev
			retry.Reset(a.cfg.RetryDelay)
		}
		if closing || patience.Err() != nil {
			return nil
		}
		select {
		case <-a.kick:
		case <-retry.C:
			tried = nil
		case <-patience.Done():
		}
	}
}

// begin begins an attempt on the first device that is there and works, but for one; nil if there is none.
func (a *Attachment[S]) begin(but *ib.Device) (x *session[S], closing bool) {
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

// try makes the session, which is to be in use before patience is done.
func (a *Attachment[S]) try(x *session[S], patience context.Context) bool {
	ctx, cancel := context.WithCancelCause(x.ended)
	defer cancel(nil)
	inTime := context.AfterFunc(patience, func() { cancel(ErrLost) })
	s, err := a.cfg.Attach(ctx, x.dev, func(cause error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		x.end(cause)
		a.wake()
	})
	if err == nil {
		a.mu.Lock()
		if inTime() && x.ended.Err() == nil {
			x.s = s
			a.set(Attached)
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
	a.forget(x, err)
	return false
}

// finish waits for the end of a session and takes it off the device.
func (a *Attachment[S]) finish(x *session[S]) {
	<-x.ended.Done()
	a.mu.Lock()
	a.set(Detaching)
	for a.users > 0 {
		a.mu.Unlock()
		<-a.kick
		a.mu.Lock()
	}
	a.mu.Unlock()
	cause := context.Cause(x.ended)
	a.cfg.Logf("%s: detach from %s: %v", a.cfg.Name, x.dev.Name(), cause)
	a.cfg.Detach(x.dev, x.s)
	a.forget(x, cause)
}

// forget ends a session, or an attempt, of which nothing is left on the device.
func (a *Attachment[S]) forget(x *session[S], cause error) {
	x.end(cause)
	a.mu.Lock()
	a.current, a.cause = nil, cause
	if a.state != Held {
		a.set(Held)
	}
	a.mu.Unlock()
	close(x.over)
}

// giveUp is the end of an attachment that is not held any more.
func (a *Attachment[S]) giveUp() {
	a.mu.Lock()
	if a.closing {
		a.set(Closed)
		a.mu.Unlock()
		return
	}
	cause := a.cause
	if cause == nil {
		cause = fmt.Errorf("no device that is %v: %w", a.cfg.Device, syscall.ENODEV)
	}
	a.set(Lost)
	a.mu.Unlock()
	a.cfg.Logf("%s: lost: %v", a.cfg.Name, cause)
	if a.cfg.Lost != nil {
		a.cfg.Lost(fmt.Errorf("%s: %w; %w", a.cfg.Name, ErrLost, cause))
	}
}
