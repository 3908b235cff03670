package ib

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"verbena/ib/internal/observe"
	"verbena/internal/states"
)

// Core is a registry of devices and clients. The zero Core is ready for use. The kernel has one registry. A Go program
// may have several independent Cores.
type Core struct {
	mu       sync.Mutex
	cond     sync.Cond // on mu; signalled when an attachment changes its state
	devices  []*Device
	clients  []*Client
	observer observer // for devices registered later; may be nil
	// observerChosen reports whether the default observer is no longer used.
	observerChosen bool
}

// Client is a consumer that is attached to every device (struct ib_client). The fields of a Client must not change
// after RegisterClient.
type Client struct {
	Name string
	// Add is called for each present and future device. d belongs to this client until Remove returns. The client may
	// use the device at once. Remove receives the data that Add returned. If Add fails, Remove is not called for this
	// device. Add may sleep.
	Add func(d *Device) (data any, err error)
	// Remove is called when the device or the client is unregistered. Before Remove returns, it must free every object
	// that the client has created on the device. Remove may sleep.
	Remove func(d *Device, data any)

	// The next fields are protected by Core.mu.
	leaving bool
	going   *pendingEnd // set with leaving
}

// attachState is the state of a client on a device.
//
//	adding -> added -> removing -> (deleted)
//	   +--- Add failed ----------> (deleted)
type attachState uint8

const (
	adding attachState = iota
	present
	removing
)

type attachment struct {
	client *Client
	dev    *Device // the client's own handle of the device
	state  attachState
	data   any
}

func (c *Core) lock() {
	c.mu.Lock()
	if c.cond.L == nil {
		c.cond.L = &c.mu
	}
}

// Register adds the device to the registry. Before Register returns, it calls Add of every client, in the order of
// client registration. If Add fails, Register logs the error (with the logf of NewDevice) and skips the client. The
// device must be ready for use. Register may sleep. (ib_register_device)
func (c *Core) Register(h *DeviceHandle) error {
	d := h.dev
	o, s := c.currentObserver(), observe.Subject(nil)
	if o != nil {
		s = o.ObserveDevice(d, nil, nil)
	}
	in, _ := enterRegisterCall(s, "Core.Register", nil)
	defer in.leave()
	c.lock()
	defer c.mu.Unlock()
	active, ok := states.Device(d.state.Load()).Register()
	if !ok {
		return fmt.Errorf("register device %s: device is %v: %w", d.name, d.State(), syscall.EINVAL)
	}
	for _, o := range c.devices {
		if o.name == d.name {
			return fmt.Errorf("register device %s: a device of this name is already registered: %w",
				d.name, syscall.EEXIST)
		}
	}
	d.core.Store(c)
	if o != nil {
		d.startObserving(o, s)
	}
	d.state.Store(int32(active))
	c.devices = append(c.devices, d)
	for _, cl := range slices.Clone(c.clients) {
		c.attachClient(d, cl)
	}
	return nil
}

// Unregister removes the device. Unregister calls Remove of every client in the reverse order of Add. After Unregister
// has returned, no client uses the device. If clients have not destroyed their objects, Unregister returns an error
// that names the objects. The device is unregistered nevertheless. A second call waits for the first one and returns
// the same result. Unregister may sleep, and must not be called from Add, Remove or a callback. (ib_unregister_device)
func (c *Core) Unregister(h *DeviceHandle) error {
	return c.unregisterInContext(context.Background(), h)
}

// UnregisterContext is Unregister with a limit for the wait. When ctx ends, unregistration continues. The next call
// waits for its end and returns the result. UnregisterContext may sleep.
func (c *Core) UnregisterContext(ctx context.Context, h *DeviceHandle) error {
	return c.unregisterInContext(ctx, h)
}

func (c *Core) unregisterInContext(ctx context.Context, h *DeviceHandle) error {
	d := h.dev
	in, err := enterRegisterCall(d.observedSubject(), "Core.Unregister", nil)
	defer in.leave()
	if err != nil {
		return fmt.Errorf("unregister device %s: called from a callback that it would wait for: %w", d.name, err)
	}
	c.lock()
	if e := d.going; e != nil && (!e.isDone() || e.abandoned) {
		c.mu.Unlock()
		return c.awaitUnregistration(ctx, d, e)
	}
	if !slices.Contains(c.devices, d) {
		c.mu.Unlock()
		return fmt.Errorf("unregister device %s: not registered: %w", d.name, syscall.ENODEV)
	}
	e := newPendingEnd()
	d.leaving, d.going = true, e
	c.mu.Unlock()
	if ctx.Done() == nil {
		defer close(e.done)
		e.err = c.detachAndUnregister(d)
		return e.err
	}
	go func() {
		defer close(e.done)
		in, _ := enterRegisterCall(d.observedSubject(), "Core.Unregister", nil)
		defer in.leave()
		e.err = c.detachAndUnregister(d)
	}()
	return c.awaitUnregistration(ctx, d, e)
}

// awaitUnregistration waits for the end of an unregistration. If ctx ends first, the next call of unregisterInContext
// returns the result.
func (c *Core) awaitUnregistration(ctx context.Context, d *Device, e *pendingEnd) error {
	err := e.wait(ctx)
	c.lock()
	defer c.mu.Unlock()
	if e.abandoned = !e.isDone(); e.abandoned {
		return fmt.Errorf("unregister device %s: %w", d.name, err)
	}
	return e.err
}

// detachAndUnregister implements Unregister.
func (c *Core) detachAndUnregister(d *Device) error {
	c.lock()
	c.detachAllAndUnlock(d)
	d.callbacks.drainCallbacks()
	reportEvent(d.observedSubject(), observe.Unregistered, nil)
	states.ApplyTransition(&d.state, states.Device.Unregister)
	if n := d.making.Load(); n > 0 {
		d.logf("unregister device %s: %d calls to create objects have not returned; they will fail", d.name, n)
	}
	if left := d.Objects().String(); left != "" {
		return fmt.Errorf("unregister device %s: left behind by clients: %s: %w", d.name, left, syscall.EBUSY)
	}
	return nil
}

// detachAllAndUnlock detaches every client, and releases c.mu.
//
//verbena:held c.mu
func (c *Core) detachAllAndUnlock(d *Device) {
	defer c.mu.Unlock()
	for len(d.attached) > 0 {
		c.detachClient(d, d.attached[len(d.attached)-1])
	}
	c.devices = slices.DeleteFunc(c.devices, func(o *Device) bool { return o == d })
}

// RegisterClient adds the client to the registry. RegisterClient calls Add for every registered device before it
// returns. RegisterClient may sleep. (ib_register_client)
func (c *Core) RegisterClient(cl *Client) error {
	in, _ := enterRegisterCall(c.currentObserver(), "Core.RegisterClient", cl)
	defer in.leave()
	c.lock()
	defer c.mu.Unlock()
	if slices.Contains(c.clients, cl) {
		return fmt.Errorf("register client %s: registered already: %w", cl.Name, syscall.EEXIST)
	}
	cl.leaving, cl.going = false, nil
	c.clients = append(c.clients, cl)
	for _, d := range slices.Clone(c.devices) {
		c.attachClient(d, cl)
	}
	return nil
}

// UnregisterClient removes the client. UnregisterClient calls Remove for every device to which the client was added, in
// reverse order. A second call waits for the first one. UnregisterClient may sleep. (ib_unregister_client)
func (c *Core) UnregisterClient(cl *Client) {
	_ = c.unregisterClientInContext(context.Background(), cl)
}

// UnregisterClientContext is UnregisterClient with a limit for the wait. When ctx ends, it returns an error.
// Unregistration then continues, and another call can join it. UnregisterClientContext may sleep.
func (c *Core) UnregisterClientContext(ctx context.Context, cl *Client) error {
	return c.unregisterClientInContext(ctx, cl)
}

func (c *Core) unregisterClientInContext(ctx context.Context, cl *Client) error {
	in, err := enterRegisterCall(c.currentObserver(), "Core.UnregisterClient", cl)
	defer in.leave()
	if err != nil {
		return fmt.Errorf("unregister client %s: called from a callback that it would wait for: %w", cl.Name, err)
	}
	c.lock()
	e := cl.going
	if e == nil && !slices.Contains(c.clients, cl) {
		c.mu.Unlock()
		return nil
	}
	begins := e == nil
	if begins {
		e = newPendingEnd()
		e.err = nil
		cl.leaving, cl.going = true, e
	}
	c.mu.Unlock()
	if begins && ctx.Done() == nil {
		c.removeClient(cl, e)
		return nil
	}
	if begins {
		go func() {
			in, _ := enterRegisterCall(c.currentObserver(), "Core.UnregisterClient", cl)
			defer in.leave()
			c.removeClient(cl, e)
		}()
	}
	if err := e.wait(ctx); err != nil {
		return fmt.Errorf("unregister client %s: %w", cl.Name, err)
	}
	return nil
}

// removeClient implements UnregisterClient.
func (c *Core) removeClient(cl *Client, e *pendingEnd) {
	defer close(e.done)
	c.lock()
	defer c.mu.Unlock()
	for _, d := range slices.Backward(slices.Clone(c.devices)) {
		for {
			a := d.attachmentOf(cl)
			if a == nil {
				break
			}
			c.detachClient(d, a)
		}
	}
	c.clients = slices.DeleteFunc(c.clients, func(o *Client) bool { return o == cl })
}

// Devices returns the registered devices in the order of registration. Devices may not sleep.
func (c *Core) Devices() []*Device {
	c.lock()
	defer c.mu.Unlock()
	return slices.Clone(c.devices)
}

// Device returns the registered device with this name, or nil. Device may not sleep.
func (c *Core) Device(name string) *Device {
	c.lock()
	defer c.mu.Unlock()
	for _, d := range c.devices {
		if d.name == name {
			return d
		}
	}
	return nil
}

// attachClient calls Add without c.mu. If another call is adding the client, attachClient waits for that call.
func (c *Core) attachClient(d *Device, cl *Client) {
	if a := d.attachmentOf(cl); a != nil {
		for a.state == adding {
			c.cond.Wait()
		}
		return
	}
	if d.leaving || cl.leaving {
		return
	}
	a := &attachment{client: cl, dev: &Device{device: d.device, client: cl}, state: adding}
	a.dev.observeClientHandle(cl)
	d.attached = append(d.attached, a)
	defer c.cond.Broadcast()
	defer func() {
		if a.state == adding { // Add failed or did not return
			d.removeAttachment(a)
		}
	}()
	data, err := c.callClientAdd(a)
	if err != nil {
		d.logf("client %s: add failed: %v", cl.Name, err)
		return
	}
	a.data, a.state = data, present
}

// detachClient calls Remove without c.mu. If another call is removing the client, detachClient waits for that call.
func (c *Core) detachClient(d *Device, a *attachment) {
	for a.state == adding {
		c.cond.Wait()
	}
	if a.state == removing {
		for slices.Contains(d.attached, a) {
			c.cond.Wait()
		}
		return
	}
	if !slices.Contains(d.attached, a) {
		return // Add failed
	}
	a.state = removing
	defer c.cond.Broadcast()
	defer d.removeAttachment(a)
	c.callClientRemove(a)
}

// callClientAdd calls the client's Add with c.mu released, because Add may panic or call runtime.Goexit.
func (c *Core) callClientAdd(a *attachment) (any, error) {
	c.mu.Unlock()
	defer c.mu.Lock()
	defer a.enterClientCall("Add").leave()
	data, err := a.client.Add(a.dev)
	if err != nil {
		reportEvent(a.dev.observedSubject(), observe.Removed, "the failing Add")
	}
	return data, err
}

// callClientRemove calls the client's Remove in the same way.
func (c *Core) callClientRemove(a *attachment) {
	c.mu.Unlock()
	defer c.mu.Lock()
	defer a.enterClientCall("Remove").leave()
	a.client.Remove(a.dev, a.data)
	reportEvent(a.dev.observedSubject(), observe.Removed, "Remove")
}

// enterClientCall records the start of the client's Add or Remove.
func (a *attachment) enterClientCall(what string) observedCall {
	in, _ := enterCall(a.dev.observedSubject(), observe.Client, what, nil)
	return in
}
