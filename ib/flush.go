package ib

// Flush is what a work request with WRFlush asks the peer for, beside RemoteAddr and RKey: that what was written to a
// range before is, when it completes, where the placement says. Only of reliable connections. (IBA A19.4)
type Flush struct {
	Placement FlushPlacement
	Level     FlushLevel
	Length    uint32 // bytes; not of FlushRegion
}

// FlushPlacement is a set of places. (enum ib_placement_type)
type FlushPlacement uint8

const (
	FlushGlobal     FlushPlacement = 1 << 0 // visible to the peer's processors and devices
	FlushPersistent FlushPlacement = 1 << 1 // safe from a loss of power
)

// FlushLevel is what a FLUSH is about. (enum ib_selectivity_level)
type FlushLevel uint8

const (
	FlushRange  FlushLevel = iota // Length bytes at RemoteAddr
	FlushRegion                   // the whole region of RKey
)

// Bits of DeviceAttr.DeviceCapFlags that tell of what is here and in [MWDriver] and [FastRegDriver]. (enum
// ib_device_cap_flags)
const (
	DeviceCapMemWindow       uint64 = 1 << 17
	DeviceCapMemExtensions   uint64 = 1 << 21 // registration and invalidation by work requests
	DeviceCapMemWindowType2B uint64 = 1 << 24
	DeviceCapFlushGlobal     uint64 = 1 << 38
	DeviceCapFlushPersistent uint64 = 1 << 39
	DeviceCapAtomicWrite     uint64 = 1 << 40
)
