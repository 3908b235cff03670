package rxe

import "verbena/ib"

// xrcd is an XRC domain. Its identity is all that matters.
type xrcd struct{ dev *Device }

// AllocXRCD implements ib.XRCDriver.
func (d *Device) AllocXRCD(*ib.XRCD, *ib.Udata) (ib.DriverXRCD, error) { return &xrcd{dev: d}, nil }

// Dealloc implements ib.DriverXRCD.
func (*xrcd) Dealloc() error { return nil }
