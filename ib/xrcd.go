package ib

import (
	"context"
	"fmt"
	"syscall"
)

// XRCD is a domain of extended reliable connections (XRC). A sender reaches every XRC shared receive queue of the
// domain through one target queue pair. The processes on a node can therefore share connections. (struct ib_xrcd; IBA
// annex A14)
type XRCD struct {
	object
	drv DriverXRCD
}

// AllocXRCD creates an XRC domain. AllocXRCD returns EOPNOTSUPP if the driver lacks the method. AllocXRCD may sleep.
// (ib_alloc_xrcd)
func (d *Device) AllocXRCD() (*XRCD, error) {
	defer d.enterSleeping("Device.AllocXRCD").leave()
	return d.allocXRCD(nil)
}

func (d *Device) allocXRCD(u *Udata) (*XRCD, error) {
	fail := func(err error) (*XRCD, error) { return nil, fmt.Errorf("alloc xrcd on %s: %w", d.name, err) }
	if err := d.beginCreate(); err != nil {
		return fail(err)
	}
	defer d.endCreate()
	drv, ok := As[XRCDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	x := &XRCD{}
	x.initObject(d, kindXRCD, x, nil)
	var err error
	if x.drv, err = drv.AllocXRCD(u); err != nil {
		return fail(err)
	}
	if err := x.finishCreate(x.drv.Dealloc); err != nil {
		return fail(err)
	}
	return x, nil
}

// Dealloc frees the domain. Dealloc returns EBUSY while other objects use the domain. Dealloc may sleep.
// (ib_dealloc_xrcd)
func (x *XRCD) Dealloc() error { return x.destroyInContext(context.Background()) }

// DeallocContext is Dealloc with a limit for the wait. When ctx ends, deallocation continues. The domain then rejects
// all calls except another Dealloc, which joins the deallocation. DeallocContext may sleep.
func (x *XRCD) DeallocContext(ctx context.Context) error { return x.destroyInContext(ctx) }

func (x *XRCD) destroyInContext(ctx context.Context) error {
	err := x.destroyObject(ctx, "XRCD.Dealloc", x.drv.Dealloc, func() {})
	if err != nil {
		return fmt.Errorf("dealloc xrcd on %s: %w", x.dev.name, err)
	}
	return nil
}
