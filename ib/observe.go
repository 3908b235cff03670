package ib

import "verbena/ib/internal/observe"

// observer sees what the consumers and the drivers of a core do. It is the subject of the core itself, for what clients do there. Calls
// without an observer cost one comparison, and those of the data path nothing.
type observer interface {
	observe.Calls
	// Device begins to observe a device as cl sees it; root is the subject of everybody's Device. For that one both are nil.
	Device(d *Device, root observe.Subject, cl *Client) observe.Subject
	// Object begins to observe an object, or a function for events. by is the device's subject, of the subject of the object that it is
	// made of, or nil.
	Object(o any, kind string, by, of observe.Subject) observe.Subject
	// Queue returns what is to stand before the driver's side of a queue, in the type of drv. s is the queue's subject.
	Queue(s observe.Subject, drv any, m observe.Made) any
}

func init() {
	observe.Set = func(core, o any) {
		c, _ := o.(observer)
		core.(*Core).observe(c)
	}
	observe.Of = func(o any) observe.Subject { return o.(interface{ observed() observe.Subject }).observed() }
}

func (c *Core) observe(o observer) {
	c.lock()
	defer c.mu.Unlock()
	c.observer = o
}

// observing returns the observer, nil if there is none.
func (c *Core) observing() observer {
	c.lock()
	defer c.mu.Unlock()
	return c.observer
}

// observed returns the device's subject, nil if it is not observed.
func (d *Device) observed() observe.Subject {
	if d.observer.Load() == nil {
		return nil
	}
	return d.subject
}

// startObserving comes when the device, everybody's, is being registered. Packets may arrive before: then the observer has not seen the
// beginning of some holds.
func (d *Device) startObserving(o observer, s observe.Subject) {
	d.subject = s
	d.observer.Store(&o)
	c := &d.callbacks
	s.Note(observe.Started, observe.Start{Holds: int(c.holds.Load()), Drop: func() {
		c.mu.Lock()
		c.leave(false)
	}})
}

// observeFor begins to observe the client's device, if everybody's is observed.
func (d *Device) observeFor(cl *Client) {
	if o := d.observer.Load(); o != nil {
		d.subject = (*o).Device(d, d.root.subject, cl)
	}
}

func (o *object) observed() observe.Subject { return o.subject }

// inside is a call that is observed. The zero inside is one that is not.
type inside struct {
	s observe.Calls
	c *observe.Call
}

func (i inside) leave() {
	if i.s != nil {
		i.s.Leave(i.c)
	}
}

// enter begins a call on a subject, which may be nil.
func enter(s observe.Calls, kind observe.Kind, what string, arg any) (inside, error) {
	if s == nil {
		return inside{}, nil
	}
	i := inside{s, &observe.Call{Kind: kind, What: what, Arg: arg}}
	return i, s.Enter(i.c)
}

// note reports an event of a subject, which may be nil.
func note(s observe.Subject, e observe.Event, arg any) error {
	if s == nil {
		return nil
	}
	return s.Note(e, arg)
}

// sleeps is called by functions of a device that may sleep.
func (d *Device) sleeps(what string) inside {
	i, _ := enter(d.observed(), observe.Method, what, nil)
	return i
}

// sleeps is the same for functions of an object.
func (o *object) sleeps(what string) inside {
	i, _ := enter(o.subject, observe.Method, what, nil)
	return i
}

// changes is sleeps for functions that change a region's memory.
func (mr *MR) changes(what string) inside {
	i, _ := enter(mr.subject, observe.Change, what, nil)
	return i
}

// destroys is called by functions that destroy the object, which do not go on with an error.
func (o *object) destroys(what string) (inside, error) {
	return enter(o.subject, observe.Destroy, what, nil)
}

// atomically is called by functions that may not sleep, which do not go on with an error.
func (o *object) atomically(what string) (inside, error) {
	return enter(o.subject, observe.Atomic, what, nil)
}

// registers is called by functions that register or unregister. cl is their client, if they are of one.
func registers(s observe.Calls, what string, cl any) (inside, error) {
	return enter(s, observe.Register, what, cl)
}

// callBack runs a consumer's function. arg is the event type, if it is for events.
func callBack(s observe.Subject, kind observe.Kind, what string, arg any, f func()) {
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

// before returns what is to stand before the driver's side of a queue.
func before[D any](o *object, drv D, m observe.Made) D {
	if o.subject == nil {
		return drv
	}
	return (*o.dev.observer.Load()).Queue(o.subject, drv, m).(D)
}
