package loopback

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"verbena/ib"
)

// The next constants are the limits of a device.
const (
	maxSGE       = 16
	maxInline    = 512     // bytes
	maxWR        = 1 << 14 // per queue
	maxCQE       = 1 << 16
	maxRdAtom    = 128
	maxMsgSize   = 1 << 30
	maxMRSize    = 1 << 40
	mtu          = ib.MTU4096
	firstQPN     = 16 // lower numbers are reserved
	maxQP        = 1 << 16
	grhLen       = 40 // number of bytes before the data of a datagram
	multicastQPN = 0xffffff

	maxMcastGroups  = 1 << 10
	maxMcastMembers = 1 << 10 // per group
)

// Device is a loopback device. It implements ib.Driver.
type Device struct {
	obj *ib.DeviceHandle
	gid ib.GID

	// Lock order: mu, then the locks of CQs. Memory is copied with mu held. A process that blocks accesses to its pages
	// therefore blocks the device. Such a block is acceptable for tests. A driver for untrusted programs copies without
	// locks, as package rxe does.
	//verbena:program a device for tests, whose consumers' memory answers
	mu      sync.Mutex
	qps     map[uint32]*QP
	nextQPN uint32
	reuse   bool            // a new queue pair receives the lowest free number
	srqs    map[uint32]*SRQ // for XRC
	nextSRQ uint32
	keys    map[uint32]*memoryKey // by the upper 24 bits of their numbers
	nextKey uint32
	groups  map[ib.GID][]*QP
	blocked []*QP // queue pairs with a first send that waits for a receive
	failed  bool  // a queue pair has entered ERR, and its peers may have to stop waiting
	dead    bool  // the device is in the error state
	copier  messageCopier
}

// New returns a device that is ready for registration. logf may be nil, as in ib.NewDevice. The only GID of the device,
// at index 0 of port 1, is fd00::1.
func New(name string, logf func(format string, args ...any)) *Device {
	d := &Device{
		gid:     ib.GIDFromAddr(netip.MustParseAddr("fd00::1")),
		qps:     map[uint32]*QP{},
		nextQPN: firstQPN,
		srqs:    map[uint32]*SRQ{},
		nextSRQ: 1,
		keys:    map[uint32]*memoryKey{},
		nextKey: 1,
		groups:  map[ib.GID][]*QP{},
	}
	d.obj = ib.NewDevice(name, d, logf)
	return d
}

// ReuseNumbers implements ib.NumberReuser.
func (d *Device) ReuseNumbers() { d.reuse = true }

// Handle returns the driver's handle of the device, for registration.
func (d *Device) Handle() *ib.DeviceHandle { return d.obj }

// IB returns the device for consumers.
func (d *Device) IB() *ib.Device { return d.obj.Device() }

// QueryDevice implements ib.Driver.
func (d *Device) QueryDevice() (ib.DeviceAttr, error) {
	return ib.DeviceAttr{
		NodeGUID: 0x0200_0000_0000_0001, SysImageGUID: 0x0200_0000_0000_0001,
		MaxMRSize: maxMRSize, PageSizeCap: 4096,
		MaxQP: maxQP, MaxQPWR: maxWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxSGERd: maxSGE,
		MaxCQ: maxQP, MaxCQE: maxCQE, MaxMR: 1 << 20, MaxPD: maxQP, MaxMW: 1 << 20, MaxAH: maxQP,
		MaxQPRdAtom: maxRdAtom, MaxQPInitRdAtom: maxRdAtom, MaxResRdAtom: maxRdAtom * maxQP, AtomicCap: ib.AtomicHCA,
		MaxMcastGrp: maxMcastGroups, MaxMcastQPAttach: maxMcastMembers,
		MaxTotalMcastAtch: maxMcastGroups * maxMcastMembers,
		MaxSRQ:            maxQP, MaxSRQWR: maxWR, MaxSRQSGE: maxSGE,
		MaxPKeys: 1, PhysPorts: 1,
		DeviceCapFlags: ib.DeviceCapMemWindow | ib.DeviceCapMemWindowType2B | ib.DeviceCapMemExtensions |
			ib.DeviceCapFlushGlobal | ib.DeviceCapAtomicWrite,
	}, nil
}

// QueryPort implements ib.Driver.
func (d *Device) QueryPort(port int) (ib.PortAttr, error) {
	if port != 1 {
		return ib.PortAttr{}, syscall.EINVAL
	}
	return ib.PortAttr{
		State: ib.PortActive, MaxMTU: mtu, ActiveMTU: mtu, GIDTableLen: 1, PKeyTableLen: 1, MaxMsgSize: maxMsgSize,
		ActiveWidth: 1, ActiveSpeed: 1, PhysState: 5, LinkLayer: ib.LinkEthernet, // 1x, 2.5 Gb/s, link up
	}, nil
}

// QueryGID implements ib.Driver.
func (d *Device) QueryGID(port, index int) (ib.GIDEntry, error) {
	if port != 1 || index != 0 {
		return ib.GIDEntry{}, syscall.EINVAL
	}
	return ib.GIDEntry{GID: d.gid, Type: ib.GIDTypeRoCEv2}, nil
}

// QueryPKey implements ib.Driver.
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	if port != 1 || index != 0 {
		return 0, syscall.EINVAL
	}
	return 0xffff, nil
}

// EnterError implements ib.Driver. From then on no requests are processed.
func (d *Device) EnterError() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	for _, q := range d.qps {
		if q.state != ib.QPReset {
			q.moveToError()
		}
	}
}

// Disassociate implements ib.Disassociator. A driver that shares queues or doorbells with the process must stop reading
// them here. The loopback driver shares neither queues nor doorbells.
func (d *Device) Disassociate(c ib.UserContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.qps {
		if q.user == c && q.state != ib.QPReset {
			q.moveToError()
		}
	}
	d.resumeWaitingQPs() // peers may wait for these queue pairs
}

// pd is a protection domain. The only property of a pd is its identity.
type pd struct{ dev *Device }

func (*pd) Dealloc() error { return nil }

// AllocPD implements ib.Driver.
func (d *Device) AllocPD(*ib.Udata) (ib.DriverPD, error) { return &pd{d}, nil }

// nextFreeNumber returns the next unused number from 1 to 0xfffffe and wraps around. mu must be held.
func nextFreeNumber[T any](taken map[uint32]T, next *uint32, first uint32) uint32 {
	for {
		n := *next
		if *next++; *next >= 0xffffff {
			*next = first
		}
		if _, ok := taken[n]; !ok {
			return n
		}
	}
}

// checkDestinationAddress rejects an address that cannot belong to this device.
func (d *Device) checkDestinationAddress(a *ib.AHAttr) error {
	if a.Port != 1 || !a.HasGRH || a.GRH.SGIDIndex != 0 {
		return fmt.Errorf("invalid address: port %d, GRH %v, GID index %d: %w",
			a.Port, a.HasGRH, a.GRH.SGIDIndex, syscall.EINVAL)
	}
	return nil
}

// ring is a queue with a fixed number of slots, which are reused.
type ring[T any] struct {
	slots   []T
	head, n int
}

func newRing[T any](size int) ring[T] { return ring[T]{slots: make([]T, size)} }

// push returns the slot that the caller must fill, or nil if all slots are in use.
func (r *ring[T]) push() *T {
	if r.n == len(r.slots) {
		return nil
	}
	s := &r.slots[(r.head+r.n)%len(r.slots)]
	r.n++
	return s
}

func (r *ring[T]) front() *T { return &r.slots[r.head] }

// unpop puts the last popped slot back at the front.
func (r *ring[T]) unpop() {
	r.head = (r.head + len(r.slots) - 1) % len(r.slots)
	r.n++
}

// pop removes and returns the front slot. The contents of the slot remain valid until the slot is pushed again.
func (r *ring[T]) pop() *T {
	s := r.front()
	r.head = (r.head + 1) % len(r.slots)
	r.n--
	return s
}
