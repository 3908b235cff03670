package ib

import "verbena/uapi"

// Flush holds the parameters of WRFlush other than RemoteAddr and RKey. When the request completes, earlier writes to
// the range have reached the placement. Only reliable connections support FLUSH. (IBA A19.4)
type Flush struct {
	Placement FlushPlacement
	Level     FlushLevel
	Length    uint32 // bytes; unused for FlushRegion
}

// FlushPlacement is a set of placements. (enum ib_placement_type)
type FlushPlacement = uapi.FlushPlacement

const (
	FlushGlobal     = uapi.FlushGlobal     // visible to the peer's processors and devices
	FlushPersistent = uapi.FlushPersistent // preserved across a loss of power
)

// FlushLevel selects the memory that a FLUSH covers. (enum ib_selectivity_level)
type FlushLevel = uapi.FlushSelectivity

const (
	FlushRange  = uapi.FlushRange // Length bytes at RemoteAddr
	FlushRegion = uapi.FlushMR    // the whole region of RKey
)

// DeviceCapFlags are the optional features of a device.
type DeviceCapFlags = uapi.DeviceCapFlags

// Package ib uses these features: [MWDriver], [FastRegDriver], [Flush], WRAtomicWrite.
const (
	DeviceCapMemWindow       = uapi.DeviceMemWindow
	DeviceCapMemExtensions   = uapi.DeviceMemMgtExtensions // registration and invalidation by work requests
	DeviceCapMemWindowType2B = uapi.DeviceMemWindowType2B
	DeviceCapFlushGlobal     = uapi.DeviceFlushGlobal
	DeviceCapFlushPersistent = uapi.DeviceFlushPersistent
	DeviceCapAtomicWrite     = uapi.DeviceAtomicWrite
)
