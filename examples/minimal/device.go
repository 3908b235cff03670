// Package minimal is a small driver for study. The driver implements reliable connections with SEND and receive
// between queue pairs of one device, without threads, timers or optional features. Three decisions make it follow
// the contract of package ib. Numbers in brackets are points of docs/contract.md.
//
//   - One mutex, Device.mu, guards everything. No critical section blocks, so the methods that may not sleep can take
//     the mutex, too [1], and all methods are reentrant [2]. It is not held across Register or Unregister [5].
//   - PostSend executes a send at once. A send whose peer is not ready stays in the queue until a call makes the peer
//     ready: PostRecv, Modify or Destroy.
//   - Completions and events are reported with the lock held, because the midlayer calls the consumer later [3].
//
// A driver with its own thread, or with queues in a program's memory, needs more code; see driver/loopback, which
// has a file for each optional feature.
package minimal

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// Limits of the device.
const (
	maxWR      = 1 << 12
	maxSGE     = 8
	maxInline  = 256
	maxCQE     = 1 << 16
	maxMessage = 1 << 20
	maxRegion  = 1 << 40
	maxReads   = 1 // RDMA READs are not supported, but the attributes of a connection allow one
)

var deviceGID = ib.GIDFromAddr(netip.MustParseAddr("fd00::1"))

// Device is a device of this driver. It implements ib.Driver.
type Device struct {
	h *ib.DeviceHandle

	//verbena:program only consumers in this process use the memory, and access to it never blocks
	mu     sync.Mutex
	failed bool // set by EnterError
	qps    map[uint32]*queuePair
	mrs    map[uint32]*memoryRegion // regions by local and remote key
	number uint32                   // the last assigned number or key; none is reused
	retry  bool                     // run all queue pairs before mu is unlocked, because a peer has changed its state
}

// New returns a device for registration. The function logf may be nil.
func New(name string, logf func(format string, args ...any)) *Device {
	d := &Device{qps: map[uint32]*queuePair{}, mrs: map[uint32]*memoryRegion{}, number: 0x10}
	d.h = ib.NewDevice(name, d, logf)
	return d
}

// Handle returns the handle to register.
func (d *Device) Handle() *ib.DeviceHandle { return d.h }

// Close frees the device after Unregister has returned. Before that it returns EBUSY.
func (d *Device) Close() error { return d.h.Dealloc() }

// unlock runs all queue pairs that have work left, and then unlocks mu.
func (d *Device) unlock() {
	for d.retry {
		d.retry = false
		for _, q := range d.qps {
			q.runSends()
		}
	}
	d.mu.Unlock()
}

// nextObjectID returns the number for a new object.
func (d *Device) nextObjectID() uint32 {
	d.number++
	return d.number
}

// QueryDevice implements ib.Driver.
func (d *Device) QueryDevice() (ib.DeviceAttr, error) {
	return ib.DeviceAttr{
		NodeGUID: 0x02, SysImageGUID: 0x02, PhysPorts: 1, MaxPKeys: 1,
		MaxMRSize: maxRegion, PageSizeCap: umem.PageSize,
		MaxQP: 1 << 16, MaxCQ: 1 << 16, MaxMR: 1 << 16, MaxPD: 1 << 16,
		MaxQPWR: maxWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxSGERd: maxSGE, MaxCQE: maxCQE,
		MaxQPRdAtom: maxReads, MaxQPInitRdAtom: maxReads, AtomicCap: ib.AtomicNone,
	}, nil
}

// QueryPort implements ib.Driver.
func (d *Device) QueryPort(port int) (ib.PortAttr, error) {
	if port != 1 {
		return ib.PortAttr{}, fmt.Errorf("port %d, not 1: %w", port, syscall.EINVAL)
	}
	return ib.PortAttr{State: ib.PortActive, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU4096, GIDTableLen: 1, PKeyTableLen: 1,
		MaxMsgSize: maxMessage, ActiveWidth: 1, ActiveSpeed: 1, PhysState: 5, LinkLayer: ib.LinkEthernet}, nil
}

// QueryGID implements ib.Driver.
func (d *Device) QueryGID(port, index int) (ib.GIDEntry, error) {
	if port != 1 || index != 0 {
		return ib.GIDEntry{}, fmt.Errorf("GID %d of port %d: the only GID is 0 of port 1: %w", index, port, syscall.EINVAL)
	}
	return ib.GIDEntry{GID: deviceGID, Type: ib.GIDTypeRoCEv2}, nil
}

// QueryPKey implements ib.Driver.
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	if port != 1 || index != 0 {
		return 0, fmt.Errorf("P_Key %d of port %d: the only P_Key is 0 of port 1: %w", index, port, syscall.EINVAL)
	}
	return 0xffff, nil
}

// EnterError implements ib.Driver: it flushes all work requests [6]. EnterError may not sleep.
func (d *Device) EnterError() {
	d.mu.Lock()
	defer d.unlock()
	d.failed = true
	for _, q := range d.qps {
		if q.attr.State != ib.QPReset {
			q.enterErr()
		}
	}
}

// protectionDomain is a protection domain. The size of a domain is not zero, so that each domain has a different
// address.
type protectionDomain struct{ _ byte }

// AllocPD implements ib.Driver.
func (d *Device) AllocPD(*ib.Udata) (ib.DriverPD, error) { return &protectionDomain{}, nil }

// Dealloc implements ib.DriverPD.
func (*protectionDomain) Dealloc() error { return nil }

// memoryRegion is a memory region.
type memoryRegion struct {
	d      *Device
	key    uint32 // lkey and rkey
	pd     ib.DriverPD
	mem    *umem.Region
	access ib.AccessFlags
}

// RegMR implements ib.Driver.
func (d *Device) RegMR(mr ib.MRHandle, pd ib.DriverPD, mem *umem.Region, access ib.AccessFlags,
	_ *ib.Udata) (ib.DriverMR, error) {
	if mem.OnDemand() {
		return nil, fmt.Errorf("register memory: on-demand registration is not supported: %w", syscall.EOPNOTSUPP)
	}
	if mem.Len() > maxRegion {
		return nil, fmt.Errorf("register memory: %d bytes exceed the limit of %d: %w", mem.Len(), int64(maxRegion),
			syscall.EINVAL)
	}
	d.mu.Lock()
	defer d.unlock()
	r := &memoryRegion{d: d, key: d.nextObjectID(), pd: pd, mem: mem, access: access}
	d.mrs[r.key] = r
	mr.SetKeys(r.key, r.key)
	return r, nil
}

// Dereg implements ib.DriverMR. Accesses hold d.mu, so none is in flight once Dereg has returned.
func (r *memoryRegion) Dereg() error {
	r.d.mu.Lock()
	defer r.d.unlock()
	delete(r.d.mrs, r.key)
	return nil
}
