package ib

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/ib/internal/observe"
	"verbena/internal/states"
)

// DeviceState is where a device stands in its life.
//
//	new --Register--> active --SetError--> error
//	                     |                   |
//	                     +---- Unregister ---+--> gone
type DeviceState int32

const (
	DeviceNew    = DeviceState(states.DeviceNew)
	DeviceActive = DeviceState(states.DeviceActive)
	DeviceError  = DeviceState(states.DeviceError)
	DeviceGone   = DeviceState(states.DeviceGone)
)

func (s DeviceState) String() string {
	if n := [...]string{"new", "active", "in error", "gone"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("DeviceState(%d)", int32(s))
}

// Device is a device as one consumer sees it (struct ib_device). Each client gets a Device of its own in its Add, which it may use
// until its Remove returns; others get that of Core.Device. [Device.Same] compares them.
type Device struct {
	*device
	client  *Client         // whose it is; nil: everybody's
	subject observe.Subject // see observed
}

// device is what all who see a device share.
type device struct {
	root   *Device // everybody's
	handle DeviceHandle
	name   string
	drv    Driver
	log    func(format string, args ...any)

	state     atomic.Int32 // DeviceState
	callbacks callbacks
	events    eventHandlers
	objects   [numObjectKinds]atomic.Int64
	atHandler atomic.Pointer[func()] // see AtHandler

	making    atomic.Int32 // calls that make an object and have not returned
	broken    atomic.Bool  // by Fail
	onFailure atomic.Pointer[func(error)]

	observer atomic.Pointer[observer] // nil: none

	core atomic.Pointer[Core] // nil before Register

	// under Core.mu, once registered
	attached []*attachment // in order of Add
	leaving  bool
	going    *ending // set with leaving
}

// NewDevice makes a device that drv serves, and returns the driver's handle of it; Core.Register makes it known. logf, which
// may be nil, gets the midlayer's rare messages, one line each. (ib_alloc_device)
func NewDevice(name string, drv Driver, logf func(format string, args ...any)) *DeviceHandle {
	d := &device{name: name, drv: drv, log: logf}
	d.root = &Device{device: d}
	d.handle.dev = d.root
	d.callbacks.init()
	d.events.idle.L = &d.events.mu
	return &d.handle
}

// Same reports whether d and o are one device. It may not sleep.
func (d *Device) Same(o *Device) bool { return o != nil && d.device == o.device }

// Name is the device's name, such as rxe0.
func (d *Device) Name() string { return d.name }

// State is the device's present state.
func (d *Device) State() DeviceState { return DeviceState(d.state.Load()) }

// SetError moves an active device into the error state, and tells its driver (Driver.EnterError), so that the caller may hold
// no lock that the driver takes then. It may not sleep and may be called from any context.
func (h *DeviceHandle) SetError() {
	d := h.dev
	if !states.Step(&d.state, states.Device.Fail) {
		return
	}
	in, _ := enter(d.observed(), observe.Atomic, "DeviceHandle.SetError", nil)
	defer in.leave()
	d.drv.EnterError()
}

// Fail says that the device must not be relied on any more, such as after a panic that has left its state unknown: its owner,
// if it has one that listens (OnFailure), takes it through a reset, and else it enters the error state. Only the first call
// counts. It may not sleep and may be called from any context.
func (h *DeviceHandle) Fail(why error) {
	d := h.dev
	if d.broken.Swap(true) {
		return
	}
	d.logf("device %s has failed: %v", d.name, why)
	go func() {
		if f := d.onFailure.Load(); f != nil {
			(*f)(why)
			return
		}
		h.DispatchEvent(EventDeviceFatal, 0)
		h.SetError()
	}()
}

// OnFailure has f called when Fail is, by a goroutine of its own. It is for the owner of the device, before it is registered.
func (h *DeviceHandle) OnFailure(f func(why error)) { h.dev.onFailure.Store(&f) }

// AtHandler has f called once, when the next completion handler of the device is about to run, by the thread that will
// run it: so that a test can have something happen at that moment. f may not sleep. A second call replaces the first;
// with nil nothing happens. It may not sleep.
func (h *DeviceHandle) AtHandler(f func()) {
	d := h.dev
	if f == nil {
		d.atHandler.Store(nil)
		return
	}
	d.atHandler.Store(&f)
}

// usable is nil when objects may be made and modified.
func (d *Device) usable() error {
	switch s := states.Device(d.state.Load()); {
	case s.Makes():
		return nil
	case s == states.DeviceError:
		return syscall.EIO
	}
	return syscall.ENODEV
}

// begin is usable for a call that makes an object, which then counts as one until end.
func (d *Device) begin() error {
	d.making.Add(1)
	err := d.usable()
	if err != nil {
		d.making.Add(-1)
	}
	return err
}

func (d *Device) end() { d.making.Add(-1) }

// Dealloc says that the driver is about to free what the device needs: its memory, threads, sockets. The driver
// calls it when Unregister has returned, or instead of Register. EBUSY: the device is still registered; nothing may
// be freed. It may not sleep. (ib_dealloc_device)
func (h *DeviceHandle) Dealloc() error {
	d := h.dev
	if s := d.State(); s == DeviceNew || s == DeviceGone {
		return nil
	}
	note(d.observed(), observe.Freed, nil)
	return fmt.Errorf("dealloc device %s: device is %v: %w", d.name, d.State(), syscall.EBUSY)
}

// QueryDevice reports the device's attributes. It may sleep. (ib_query_device)
func (d *Device) QueryDevice() (DeviceAttr, error) {
	defer d.sleeps("Device.QueryDevice").leave()
	return d.drv.QueryDevice()
}

// QueryPort reports a port's state; the first port is 1. It may sleep. (ib_query_port)
func (d *Device) QueryPort(port int) (PortAttr, error) {
	defer d.sleeps("Device.QueryPort").leave()
	return d.drv.QueryPort(port)
}

// QueryGID reports an entry of a port's GID table. It may sleep. (rdma_query_gid)
func (d *Device) QueryGID(port, index int) (GIDEntry, error) {
	defer d.sleeps("Device.QueryGID").leave()
	return d.drv.QueryGID(port, index)
}

// QueryPKey reports an entry of a port's P_Key table. It may sleep. (ib_query_pkey)
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	defer d.sleeps("Device.QueryPKey").leave()
	return d.drv.QueryPKey(port, index)
}

// FindGID is the port and the place in its table of a GID of a type, ENOENT if no port has it. It may sleep.
// (ib_find_gid)
func (d *Device) FindGID(gid GID, kind GIDType) (port, index int, err error) {
	defer d.sleeps("Device.FindGID").leave()
	a, err := d.drv.QueryDevice()
	for port = 1; err == nil && port <= a.PhysPorts; port++ {
		var p PortAttr
		p, err = d.drv.QueryPort(port)
		for index = 0; err == nil && index < p.GIDTableLen; index++ {
			var e GIDEntry
			if e, err = d.drv.QueryGID(port, index); err == nil && e.GID == gid && e.Type == kind {
				return port, index, nil
			}
		}
	}
	if err == nil {
		err = syscall.ENOENT
	}
	return 0, 0, fmt.Errorf("find gid %v on %s: %w", gid, d.name, err)
}

// FindPKey is the place of a P_Key in a port's table, ENOENT if it is not there. A key with full membership (bit 15)
// is preferred; the membership asked for does not matter. It may sleep. (ib_find_pkey)
func (d *Device) FindPKey(port int, pkey uint16) (index int, err error) {
	defer d.sleeps("Device.FindPKey").leave()
	const member = 0x8000
	found := -1
	p, err := d.drv.QueryPort(port)
	for i := 0; err == nil && i < p.PKeyTableLen; i++ {
		var k uint16
		if k, err = d.drv.QueryPKey(port, i); err != nil || k&^member != pkey&^member {
			continue
		}
		if k&member != 0 {
			return i, nil
		}
		if found < 0 {
			found = i
		}
	}
	if err == nil && found < 0 {
		err = syscall.ENOENT
	}
	if err != nil {
		return 0, fmt.Errorf("find p_key %#x on port %d of %s: %w", pkey, port, d.name, err)
	}
	return found, nil
}

// Attached reports whether the client has been added to the device. It may not sleep.
func (d *Device) Attached(cl *Client) bool {
	core := d.core.Load()
	if core == nil {
		return false
	}
	core.lock()
	defer core.mu.Unlock()
	a := d.attachmentOf(cl)
	return a != nil && a.state == added
}

// ClientData is what the client's Add returned for the device, nil before that and when Remove has been called. It may
// not sleep. (ib_get_client_data)
func (d *Device) ClientData(cl *Client) any {
	core := d.core.Load()
	if core == nil {
		return nil
	}
	core.lock()
	defer core.mu.Unlock()
	if a := d.attachmentOf(cl); a != nil && a.state == added {
		return a.data
	}
	return nil
}

func (d *Device) attachmentOf(cl *Client) *attachment {
	for _, a := range d.attached {
		if a.client == cl {
			return a
		}
	}
	return nil
}

func (d *Device) remove(a *attachment) {
	d.attached = slices.DeleteFunc(d.attached, func(o *attachment) bool { return o == a })
}

func (d *Device) logf(format string, args ...any) {
	if d.log != nil {
		d.log(format, args...)
	}
}

type objectKind uint8

const (
	kindPD objectKind = iota
	kindMR
	kindCQ
	kindQP
	kindAH
	kindMW
	kindSRQ
	kindXRCD
	kindGID // a reference
	numObjectKinds
)

var kindNames = [numObjectKinds]string{"PD", "MR", "CQ", "QP", "AH", "MW", "SRQ", "XRCD", "GID"}

func (k objectKind) String() string { return kindNames[k] }

// ObjectCounts are the objects that exist on a device, the references of consumers to GIDs among them.
type ObjectCounts struct{ PD, MR, CQ, QP, AH, MW, SRQ, XRCD, GID int64 }

// Objects counts the objects of the device.
func (d *Device) Objects() ObjectCounts {
	n := func(k objectKind) int64 { return d.objects[k].Load() }
	return ObjectCounts{
		PD: n(kindPD), MR: n(kindMR), CQ: n(kindCQ), QP: n(kindQP), AH: n(kindAH),
		MW: n(kindMW), SRQ: n(kindSRQ), XRCD: n(kindXRCD), GID: n(kindGID),
	}
}

// String lists the kinds of which there are any, empty if there are none.
func (o ObjectCounts) String() string {
	var s []string
	for k, n := range [numObjectKinds]int64{o.PD, o.MR, o.CQ, o.QP, o.AH, o.MW, o.SRQ, o.XRCD, o.GID} {
		if n != 0 {
			s = append(s, fmt.Sprintf("%d %v", n, objectKind(k)))
		}
	}
	return strings.Join(s, ", ")
}

// object is what all objects of a device share: the device and the use count.
type object struct {
	dev     *Device
	kind    objectKind
	uses    atomic.Int32    // objects that refer to this one, or its state: see ending.go
	ends    sync.Mutex      // held while the object begins or ceases to be destroyed
	ending  *ending         // under ends; nil: it is not being destroyed, or cannot be joined
	counted atomic.Bool     // in dev.objects
	subject observe.Subject // nil: not observed
}

// Device is the device that the object is of.
func (o *object) Device() *Device { return o.dev }

// Uses tells how many objects refer to this one. It may not sleep. (usecnt of struct ib_pd, ib_cq and others)
func (o *object) Uses() int { return int(max(o.uses.Load(), 0)) }

// bind comes before the driver's create, which may report on the object at once. self has o in it; of is what it is made of, or nil.
func (o *object) bind(d *Device, kind objectKind, self any, of *object) {
	o.dev, o.kind = d, kind
	if s := d.observed(); s != nil {
		var parent observe.Subject
		if of != nil {
			parent = of.subject
		}
		o.subject = (*d.observer.Load()).Object(self, kind.String(), s, parent)
	}
}

// born comes when the object has been made. Unregister may have returned meanwhile: then the object is unmade, and the error is
// ENODEV.
func (o *object) born(unmake func() error) error {
	o.counted.Store(true)
	o.dev.objects[o.kind].Add(1)
	note(o.subject, observe.Born, nil)
	if o.dev.State() != DeviceGone { // Unregister looks at the count after it has set the state
		return nil
	}
	return errors.Join(syscall.ENODEV, o.kill(unmake))
}

// get takes a use count for another object on device d.
func (o *object) get(d *Device) error {
	if !o.dev.Same(d) {
		return fmt.Errorf("object of device %s used on %s: %w", o.dev.name, d.name, syscall.EINVAL)
	}
	for !states.Step(&o.uses, states.Object.Get) {
		if err := o.live(); err != nil {
			return err
		}
	}
	return nil
}

func (o *object) put() { states.Step(&o.uses, states.Object.Put) }

// Abandon is for a consumer that cannot destroy the object before its Remove returns, because a call on it is stopped in the
// memory of a process that does not answer. The object counts no longer as one of the device's, and Unregister does not
// report it. The consumer still destroys it when the call has returned, which may be after the device has gone: the driver
// keeps what that takes. It may not sleep.
func (o *object) Abandon() {
	if o.counted.Swap(false) {
		o.dev.objects[o.kind].Add(-1)
	}
	note(o.subject, observe.Abandoned, nil)
}
