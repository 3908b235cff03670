package ib

import "verbena/uapi"

// Flush is what a work request with WRFlush asks the peer for, beside RemoteAddr and RKey: that what was written to a
// range before is, when it completes, where the placement says. Only of reliable connections. (IBA A19.4)
type Flush struct {
	Placement FlushPlacement
	Level     FlushLevel
	Length    uint32 // bytes; not of FlushRegion
}

// FlushPlacement is a set of places. (enum ib_placement_type)
type FlushPlacement = uapi.FlushPlacement

const (
	FlushGlobal     = uapi.FlushGlobal     // visible to the peer's processors and devices
	FlushPersistent = uapi.FlushPersistent // safe from a loss of power
)

// FlushLevel is what a FLUSH is about. (enum ib_selectivity_level)
type FlushLevel = uapi.FlushSelectivity

const (
	FlushRange  = uapi.FlushRange // Length bytes at RemoteAddr
	FlushRegion = uapi.FlushMR    // the whole region of RKey
)

// DeviceCapFlags are the optional features of a device.
type DeviceCapFlags = uapi.DeviceCapFlags

// Those of this package: [MWDriver], [FastRegDriver], [Flush], WRAtomicWrite.
const (
	DeviceCapMemWindow       = uapi.DeviceMemWindow
	DeviceCapMemExtensions   = uapi.DeviceMemMgtExtensions // registration and invalidation by work requests
	DeviceCapMemWindowType2B = uapi.DeviceMemWindowType2B
	DeviceCapFlushGlobal     = uapi.DeviceFlushGlobal
	DeviceCapFlushPersistent = uapi.DeviceFlushPersistent
	DeviceCapAtomicWrite     = uapi.DeviceAtomicWrite
)
