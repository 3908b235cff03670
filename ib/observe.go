package ib

import "verbena/ib/internal/observe"

// observer observes the calls of the consumers and the drivers of a core. The core itself is also a subject: it reports
// the calls of clients. Without an observer, calls cost one comparison, and calls of the data path cost nothing extra.
type observer interface {
	observe.CallObserver
	// ObserveDevice begins to observe a device. cl is the client of this handle, and root is the subject of the shared
	// handle. Both are nil if this handle is the shared one.
	ObserveDevice(d *Device, root observe.Subject, cl *Client) observe.Subject
	// ObserveObject begins to observe an object or an event function. by is the subject of the device. The argument of is
	// the subject of the parent object, or nil.
	ObserveObject(o any, kind string, by, of observe.Subject) observe.Subject
	// WrapQueue returns a wrapper for drv, the driver's side of a queue. The wrapper has the type of drv. s is the subject
	// of the queue.
	WrapQueue(s observe.Subject, drv any, m observe.QueueInfo) any
}

func init() {
	observe.Set = func(core, o any) {
		c, _ := o.(observer)
		core.(*Core).setObserver(c)
	}
	observe.Of = func(o any) observe.Subject {
		return o.(interface{ observedSubject() observe.Subject }).observedSubject()
	}
}

func (c *Core) setObserver(o observer) {
	c.lock()
	defer c.mu.Unlock()
	c.observer, c.observerChosen = o, true
}

// currentObserver returns the observer, or nil.
func (c *Core) currentObserver() observer {
	c.lock()
	defer c.mu.Unlock()
	if !c.observerChosen && observe.Default != nil {
		c.observer, _ = observe.Default().(observer)
	}
	c.observerChosen = true
	return c.observer
}

// observedSubject returns the subject of the device, or nil if the device is not observed.
func (d *Device) observedSubject() observe.Subject {
	if d.observer.Load() == nil {
		return nil
	}
	return d.subject
}

// startObserving begins to observe a device during Register. Packets may arrive before that. Holds may therefore exist
// whose start the observer has not seen.
func (d *Device) startObserving(o observer, s observe.Subject) {
	d.subject = s
	d.observer.Store(&o)
	c := &d.callbacks
	s.RecordEvent(observe.Started, observe.ObservationStart{Holds: int(c.holds.Load()), Drop: func() {
		c.mu.Lock()
		c.endRunnerAndUnlock(false)
	}})
}

// observeClientHandle begins to observe the client's handle if the shared handle is observed.
func (d *Device) observeClientHandle(cl *Client) {
	if o := d.observer.Load(); o != nil {
		d.subject = (*o).ObserveDevice(d, d.root.subject, cl)
	}
}

func (o *object) observedSubject() observe.Subject { return o.subject }

// observedCall is an observed call in progress. The zero observedCall stands for a call that is not observed.
type observedCall struct {
	s observe.CallObserver
	c *observe.Call
}

func (i observedCall) leave() {
	if i.s != nil {
		i.s.Leave(i.c)
	}
}

// enterCall reports the start of a call on subject s. s may be nil.
func enterCall(s observe.CallObserver, kind observe.CallKind, what string, arg any) (observedCall, error) {
	if s == nil {
		return observedCall{}, nil
	}
	i := observedCall{s, &observe.Call{Kind: kind, What: what, Arg: arg}}
	return i, s.Enter(i.c)
}

// reportEvent reports an event of subject s. s may be nil.
func reportEvent(s observe.Subject, e observe.SubjectEvent, arg any) error {
	if s == nil {
		return nil
	}
	return s.RecordEvent(e, arg)
}

// A function of a device that may sleep calls enterSleeping at its start.
func (d *Device) enterSleeping(what string) observedCall {
	i, _ := enterCall(d.observedSubject(), observe.Method, what, nil)
	return i
}

// A function of an object that may sleep calls enterSleeping at its start.
func (o *object) enterSleeping(what string) observedCall {
	i, _ := enterCall(o.subject, observe.Method, what, nil)
	return i
}

// enterMemoryChange is the equivalent of enterSleeping for functions that change the memory of a region.
func (mr *MR) enterMemoryChange(what string) observedCall {
	i, _ := enterCall(mr.subject, observe.Change, what, nil)
	return i
}

// A function that destroys the object calls enterDestroyCall at its start. If enterDestroyCall fails, the function must
// return.
func (o *object) enterDestroyCall(what string) (observedCall, error) {
	return enterCall(o.subject, observe.Destroy, what, nil)
}

// A function that may not sleep calls atomically at its start. If atomically fails, the function must return.
func (o *object) enterAtomicCall(what string) (observedCall, error) {
	return enterCall(o.subject, observe.Atomic, what, nil)
}

// A function that registers or unregisters a device or a client calls registers at its start. cl is the client, or nil.
func enterRegisterCall(s observe.CallObserver, what string, cl any) (observedCall, error) {
	return enterCall(s, observe.Register, what, cl)
}

// runObservedCall runs a consumer's function. arg is the event type of an event function.
func runObservedCall(s observe.Subject, kind observe.CallKind, what string, arg any, f func()) {
	if s == nil {
		f()
		return
	}
	c := &observe.Call{Kind: kind, What: what, Arg: arg}
	s.Enter(c)
	defer s.Leave(c)
	f()
	c.Returned = true
}

// wrapDriver returns the observer's wrapper for the driver's side of a queue, or drv itself.
func wrapDriver[D any](o *object, drv D, m observe.QueueInfo) D {
	if o.subject == nil {
		return drv
	}
	return (*o.dev.observer.Load()).WrapQueue(o.subject, drv, m).(D)
}
