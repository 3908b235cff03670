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

// DeviceState is the state of a device.
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

// Device is one consumer's handle of a device (struct ib_device). Each client receives its own Device in Add. This
// Device is valid until the client's Remove returns. Core.Device returns a Device for consumers that are not clients.
// [Device.Same] compares two handles.
type Device struct {
	*device
	client  *Client         // owner; nil if the handle is shared by all consumers that are not clients
	subject observe.Subject // see observed
}

// device is the state that all handles of a device share.
type device struct {
	root   *Device // the shared handle
	handle DeviceHandle
	name   string
	drv    Driver
	log    func(format string, args ...any)

	state     atomic.Int32 // DeviceState
	callbacks callbackQueue
	events    eventHandlers
	objects   [numObjectKinds]atomic.Int64
	atHandler atomic.Pointer[func()] // see AtHandler

	making    atomic.Int32 // number of create calls in progress
	broken    atomic.Bool  // set by Fail
	onFailure atomic.Pointer[func(error)]

	observer atomic.Pointer[observer] // nil: none

	core atomic.Pointer[Core] // nil before Register

	// attached is protected by Core.mu once the device is registered.
	attached []*attachment // in order of Add
	leaving  bool
	going    *pendingEnd // set with leaving
}

// NewDevice creates a device with the driver drv, and returns the driver's handle. Core.Register makes the device
// available to clients. logf receives the rare messages of the midlayer, one line each. logf may be nil.
// NewDevice may not sleep. (ib_alloc_device)
func NewDevice(name string, drv Driver, logf func(format string, args ...any)) *DeviceHandle {
	d := &device{name: name, drv: drv, log: logf}
	d.root = &Device{device: d}
	d.handle.dev = d.root
	d.callbacks.init()
	d.events.idle.L = &d.events.mu
	if observe.NewDevice != nil {
		observe.NewDevice(&d.handle)
	}
	return &d.handle
}

// Same reports whether d and o refer to the same device. Same may not sleep.
func (d *Device) Same(o *Device) bool { return o != nil && d.device == o.device }

// Name returns the name of the device, such as rxe0.
func (d *Device) Name() string { return d.name }

// State returns the current state of the device.
func (d *Device) State() DeviceState { return DeviceState(d.state.Load()) }

// SetError moves an active device to the error state and calls Driver.EnterError. The caller must not hold a lock that
// EnterError takes. SetError may not sleep and may be called from any context.
func (h *DeviceHandle) SetError() {
	d := h.dev
	if !states.ApplyTransition(&d.state, states.Device.Fail) {
		return
	}
	in, _ := enterCall(d.observedSubject(), observe.Atomic, "DeviceHandle.SetError", nil)
	defer in.leave()
	d.drv.EnterError()
}

// Fail reports that the state of the device is unreliable, for example after a panic. Fail calls the function set by
// OnFailure, which resets the device. Without this function the device enters the error state. Later calls have no
// effect. Fail may not sleep and may be called from any context.
func (h *DeviceHandle) Fail(why error) {
	d := h.dev
	if d.broken.Swap(true) {
		return
	}
	d.logf("device %s failed: %v", d.name, why)
	go func() {
		if f := d.onFailure.Load(); f != nil {
			(*f)(why)
			return
		}
		h.DispatchEvent(EventDeviceFatal, 0)
		h.SetError()
	}()
}

// OnFailure sets the function that Fail calls, on its own goroutine. The owner of the device calls OnFailure before
// Register.
func (h *DeviceHandle) OnFailure(f func(why error)) { h.dev.onFailure.Store(&f) }

// AtHandler makes the device call f once, directly before the next completion handler and on the same thread. AtHandler
// is for tests that act at that moment. f may not sleep. A second call replaces f; nil removes it. AtHandler may not
// sleep.
func (h *DeviceHandle) AtHandler(f func()) {
	d := h.dev
	if f == nil {
		d.atHandler.Store(nil)
		return
	}
	d.atHandler.Store(&f)
}

// checkActive returns nil if objects may be created and modified.
func (d *Device) checkActive() error {
	switch s := states.Device(d.state.Load()); {
	case s.CanCreate():
		return nil
	case s == states.DeviceError:
		return syscall.EIO
	}
	return syscall.ENODEV
}

// beginCreate checks usable for a call that creates an object. The call counts as in progress until end.
func (d *Device) beginCreate() error {
	d.making.Add(1)
	err := d.checkActive()
	if err != nil {
		d.making.Add(-1)
	}
	return err
}

func (d *Device) endCreate() { d.making.Add(-1) }

// Dealloc announces that the driver is about to free the resources of the device, such as memory, threads and sockets.
// The driver calls Dealloc after Unregister has returned, or without Unregister if it has not called Register. Dealloc
// returns EBUSY while the device is registered. In that case the driver must not free anything. Dealloc may not sleep.
// (ib_dealloc_device)
func (h *DeviceHandle) Dealloc() error {
	d := h.dev
	if s := d.State(); s == DeviceNew || s == DeviceGone {
		return nil
	}
	reportEvent(d.observedSubject(), observe.Freed, nil)
	return fmt.Errorf("dealloc device %s: device is %v, unregister the device first: %w",
		d.name, d.State(), syscall.EBUSY)
}

// QueryDevice returns the attributes of the device. QueryDevice may sleep. (ib_query_device)
func (d *Device) QueryDevice() (DeviceAttr, error) {
	defer d.enterSleeping("Device.QueryDevice").leave()
	return d.drv.QueryDevice()
}

// QueryPort returns the state of a port; ports are numbered from 1. QueryPort may sleep. (ib_query_port)
func (d *Device) QueryPort(port int) (PortAttr, error) {
	defer d.enterSleeping("Device.QueryPort").leave()
	return d.drv.QueryPort(port)
}

// QueryPortSpeed returns the effective speed of a port in units of 100 Mb/s. Width and speed of PortAttr cannot express
// every speed. QueryPortSpeed returns EOPNOTSUPP if the driver does not report the speed. QueryPortSpeed may sleep.
// (struct ib_device_ops.query_port_speed)
func (d *Device) QueryPortSpeed(port int) (uint64, error) {
	defer d.enterSleeping("Device.QueryPortSpeed").leave()
	drv, ok := As[PortSpeeder](d.drv)
	if !ok {
		return 0, fmt.Errorf("query the speed of port %d of %s: %w", port, d.name, syscall.EOPNOTSUPP)
	}
	return drv.PortSpeed(port)
}

// QueryGID reports an entry of a port's GID table. QueryGID may sleep. (rdma_query_gid)
func (d *Device) QueryGID(port, index int) (GIDEntry, error) {
	defer d.enterSleeping("Device.QueryGID").leave()
	return d.drv.QueryGID(port, index)
}

// QueryPKey returns an entry of a port's P_Key table. QueryPKey may sleep. (ib_query_pkey)
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	defer d.enterSleeping("Device.QueryPKey").leave()
	return d.drv.QueryPKey(port, index)
}

// FindGID returns the port and the table index of a GID with the given type. FindGID returns ENOENT if no port has the
// GID. FindGID may sleep. (ib_find_gid)
func (d *Device) FindGID(gid GID, kind GIDType) (port, index int, err error) {
	defer d.enterSleeping("Device.FindGID").leave()
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

// FindPKey returns the table index of a P_Key. FindPKey returns ENOENT if the table does not contain the P_Key.
// FindPKey ignores the membership bit (15) of pkey. FindPKey prefers an entry with full membership. FindPKey may sleep.
// (ib_find_pkey)
func (d *Device) FindPKey(port int, pkey uint16) (index int, err error) {
	defer d.enterSleeping("Device.FindPKey").leave()
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

// Attached reports whether the client has been added to the device. Attached may not sleep.
func (d *Device) Attached(cl *Client) bool {
	core := d.core.Load()
	if core == nil {
		return false
	}
	core.lock()
	defer core.mu.Unlock()
	a := d.attachmentOf(cl)
	return a != nil && a.state == present
}

// ClientData returns the data that the client's Add returned for the device. ClientData returns nil before Add has
// returned and after Remove was called. ClientData may not sleep. (ib_get_client_data)
func (d *Device) ClientData(cl *Client) any {
	core := d.core.Load()
	if core == nil {
		return nil
	}
	core.lock()
	defer core.mu.Unlock()
	if a := d.attachmentOf(cl); a != nil && a.state == present {
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

func (d *Device) removeAttachment(a *attachment) {
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

var objectKindNames = [numObjectKinds]string{"PD", "MR", "CQ", "QP", "AH", "MW", "SRQ", "XRCD", "GID"}

func (k objectKind) String() string { return objectKindNames[k] }

// ObjectCounts holds the number of existing objects of a device by kind. GID counts the references of consumers to
// GIDs.
type ObjectCounts struct{ PD, MR, CQ, QP, AH, MW, SRQ, XRCD, GID int64 }

// Objects returns the number of objects of the device by kind.
func (d *Device) Objects() ObjectCounts {
	n := func(k objectKind) int64 { return d.objects[k].Load() }
	return ObjectCounts{
		PD: n(kindPD), MR: n(kindMR), CQ: n(kindCQ), QP: n(kindQP), AH: n(kindAH),
		MW: n(kindMW), SRQ: n(kindSRQ), XRCD: n(kindXRCD), GID: n(kindGID),
	}
}

// String lists the kinds with a count above 0. The result is empty if there are none.
func (o ObjectCounts) String() string {
	var s []string
	for k, n := range [numObjectKinds]int64{o.PD, o.MR, o.CQ, o.QP, o.AH, o.MW, o.SRQ, o.XRCD, o.GID} {
		if n != 0 {
			s = append(s, fmt.Sprintf("%d %v", n, objectKind(k)))
		}
	}
	return strings.Join(s, ", ")
}

// object is the common part of all objects: the device and the use count.
type object struct {
	dev     *Device
	kind    objectKind
	uses    atomic.Int32    // number of objects that refer to this object, or the object's state: see ending.go
	ends    sync.Mutex      // held at the start and at the end of destruction
	ending  *pendingEnd     // under ends; nil if no destruction that another call can join is in progress
	counted atomic.Bool     // counted in dev.objects
	subject observe.Subject // nil: not observed
}

// Device returns the device of the object.
func (o *object) Device() *Device { return o.dev }

// Uses returns the number of objects that refer to o. Uses may not sleep. (usecnt of struct ib_pd, ib_cq and others)
func (o *object) Uses() int { return int(max(o.uses.Load(), 0)) }

// initObject initialises o before the driver's create method is called, because this method may report events of the
// object at once. The object self embeds o. The object of is the parent of o, or nil.
func (o *object) initObject(d *Device, kind objectKind, self any, of *object) {
	o.dev, o.kind = d, kind
	if s := d.observedSubject(); s != nil {
		var parent observe.Subject
		if of != nil {
			parent = of.subject
		}
		o.subject = (*d.observer.Load()).ObserveObject(self, kind.String(), s, parent)
	}
}

// finishCreate completes the creation of the object. If the device has been unregistered meanwhile, finishCreate
// destroys the object and returns ENODEV.
func (o *object) finishCreate(unmake func() error) error {
	o.counted.Store(true)
	o.dev.objects[o.kind].Add(1)
	reportEvent(o.subject, observe.Born, nil)
	if o.dev.State() != DeviceGone { // Unregister sets the state before it reads the counter making
		return nil
	}
	return errors.Join(syscall.ENODEV, o.destroyWithoutSleep(unmake))
}

// addUse adds a use of the object by another object on device d.
func (o *object) addUse(d *Device) error {
	if !o.dev.Same(d) {
		return fmt.Errorf("object of device %s used on device %s: %w", o.dev.name, d.name, syscall.EINVAL)
	}
	for !states.ApplyTransition(&o.uses, states.Object.Get) {
		if err := o.checkNotDestroyed(); err != nil {
			return err
		}
	}
	return nil
}

func (o *object) dropUse() { states.ApplyTransition(&o.uses, states.Object.Put) }

// Abandon excludes the object from the device's counts. Unregister then does not report the object. Abandon is for a
// consumer that cannot destroy the object before its Remove returns: a call on the object is blocked on the memory of
// an unresponsive process. The consumer must still destroy the object when the call has returned, possibly after
// Unregister. Until then the driver keeps the resources of the object. Abandon may not sleep.
func (o *object) Abandon() {
	if o.counted.Swap(false) {
		o.dev.objects[o.kind].Add(-1)
	}
	reportEvent(o.subject, observe.Abandoned, nil)
}
