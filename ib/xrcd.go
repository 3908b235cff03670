package ib

import (
	"context"
	"fmt"
	"syscall"
)

// XRCD is a domain of extended reliable connections (XRC): a sender reaches every XRC shared receive queue of the
// domain through one target queue pair, so that processes on a node need not all have connections of their own.
// (struct ib_xrcd; IBA annex A14)
type XRCD struct {
	object
	drv DriverXRCD
}

// AllocXRCD makes an XRC domain. It may sleep. EOPNOTSUPP from a driver without. (ib_alloc_xrcd)
func (d *Device) AllocXRCD() (*XRCD, error) {
	defer d.sleeps("Device.AllocXRCD").leave()
	return d.allocXRCD(nil)
}

func (d *Device) allocXRCD(u *Udata) (*XRCD, error) {
	fail := func(err error) (*XRCD, error) { return nil, fmt.Errorf("alloc xrcd on %s: %w", d.name, err) }
	if err := d.begin(); err != nil {
		return fail(err)
	}
	defer d.end()
	drv, ok := As[XRCDriver](d.drv)
	if !ok {
		return fail(syscall.EOPNOTSUPP)
	}
	x := &XRCD{}
	x.bind(d, kindXRCD, x, nil)
	var err error
	if x.drv, err = drv.AllocXRCD(u); err != nil {
		return fail(err)
	}
	if err := x.born(x.drv.Dealloc); err != nil {
		return fail(err)
	}
	return x, nil
}

// Dealloc frees the domain, EBUSY while something uses it. It may sleep. (ib_dealloc_xrcd)
func (x *XRCD) Dealloc() error { return x.destroyIn(context.Background()) }

// DeallocContext is Dealloc with a bound for the wait. When ctx ends, the call goes on: the domain is refused to all others, and
// another Dealloc joins it. It may sleep.
func (x *XRCD) DeallocContext(ctx context.Context) error { return x.destroyIn(ctx) }

func (x *XRCD) destroyIn(ctx context.Context) error {
	f, err := x.destroys("XRCD.Dealloc")
	defer f.leave()
	if err == nil {
		err = x.end(ctx, "XRCD.Dealloc", x.drv.Dealloc, func() {})
	}
	if err != nil {
		return fmt.Errorf("dealloc xrcd on %s: %w", x.dev.name, err)
	}
	return nil
}
