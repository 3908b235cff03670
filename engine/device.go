package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/clock"
	"verbena/link"
	"verbena/netdev"
	"verbena/roce"
	"verbena/uapi"
)

// Clock and Timer are the time source of a device. Tests replace them by virtual time.
type (
	Clock = clock.Clock
	Timer = clock.Timer
)

// Config is the configuration of a device.
type Config struct {
	// Layout is the form of the queues that programs share with the device.
	Layout queue.Layout
	// Name is the name of the device, "rxe" and a number. User space finds its provider by the name.
	Name string
	// Netdev is the network interface of the device. Its MAC address determines the GUIDs and the default GID, its
	// MTU the path MTU, and its state the state of the port.
	Netdev netdev.Interface
	// Addrs holds the addresses to use, at least one, usually those of Netdev. Link-local addresses have a zone.
	Addrs []netip.Addr
	// Network carries the packets to destinations outside the Fabric.
	Network link.Network
	// Faults holds the fault rules of Network, or is nil. The device itself applies the rules of kind RNR. While
	// there are rules, the device does not use the Fabric.
	Faults *link.Faults
	// Taps receives the packets that take the shortcut through the Fabric; nil: no taps. Network has taps of its own.
	Taps *link.Taps
	// Fabric, if not nil, is the Fabric that the device joins for its lifetime.
	Fabric *Fabric
	// Rand varies keys and queue pair numbers; nil: a generator with a random seed. The device serialises its uses of
	// Rand by a lock.
	Rand *rand.Rand
	// Clock is the source of timeouts; nil: the system clock.
	Clock Clock
	// NoProbe turns off early retransmission: no packet is retransmitted before the Local ACK Timeout (IBA
	// 9.7.6.1.3). Without NoProbe, the oldest unacknowledged packet is retransmitted after 4 ms, 8 ms and so on, if
	// the timeout is longer.
	NoProbe bool
	// QueueMemory is the maximum shared memory, in bytes, for the queues of a program; 0: no maximum. The maximum
	// must be at least [MinQueueMemory]. The device advertises queue sizes of which one queue pair and one completion
	// queue, at all their limits, fit into QueueMemory.
	QueueMemory uint64
	// Probed, if not nil, is called with each new device of the hardware, before its registration. Probed must not
	// call methods of the Hardware.
	Probed func(*Device)
	// Recover resets the device after a panic of the engine. Without Recover, the panic ends the process.
	Recover bool
	// Observer receives the failures of queue pairs; nil: no reports.
	Observer driver.Observer
	// Logf receives rare messages, one line each; nil: messages are dropped.
	Logf func(format string, args ...any)
}

// Device is a software RoCEv2 device with one port. The owner calls the methods of Device, and the midlayer calls the
// methods of ops.
type Device struct {
	name     string
	obj      *ib.DeviceHandle
	logf     func(format string, args ...any)
	observer driver.Observer // nil: no reports
	at       atomic.Pointer[addressing]
	changes  addressChanges
	guid     uint64
	noProbe  bool        // see Config
	silent   atomic.Bool // user contexts get no more completions; see Hardware.Silence
	layout   queue.Layout
	limits   limits
	traits   queue.Traits
	qpBits   numberBits
	gids     *ib.GIDTable
	faults   *link.Faults
	taps     *link.Taps
	fabric   *Fabric
	clock    clock.Clock
	direct   atomic.Bool // the Fabric may be used while there are no fault rules
	counters counters
	groups   groups
	atomics  atomics

	most     [numCounted]uint32 // limits of objects, constant
	shares   userShares         // queue pairs by users
	flows    userShares         // flows and sources of SRD by users
	requests userShares         // fetched requests of SRD by users
	own      objectCounts       // objects of the consumers in this process
	qps      table[QP]          // by the low bits of the number
	mrs      table[mr]          // by key >> 8
	mws      table[mw]          // likewise
	ahs      table[ah]
	srqs     table[srq]      // by the low bits of the number
	keys     *keyGenerations // for mrs and mws; hw has the memory of keys, qpKeys and srqKeys
	qpKeys   *keyGenerations
	srqKeys  *keyGenerations

	hw         *Hardware
	stopped    atomic.Bool // the device executes nothing any more; see Hardware
	failed     atomic.Bool // in the error state
	broken     atomic.Bool // a panic may have left locks behind; see panic.go
	recovers   bool
	breakpoint atomic.Pointer[breakpoint]
	watchpoint atomic.Pointer[breakpoint] // see Hardware.BeforeWorkRequest

	// epoch is a time of the clock, and epochNano is the same time in nanoseconds since 1970. See tick.
	epoch     time.Time
	epochNano int64

	cqs       cqSet // completion queues
	tracedCQs cqSet // those with a log

	contexts struct {
		sync.Mutex
		m map[ib.UserContext]*userContext
	}

	tracing sync.Mutex // held while a trace of a queue pair begins or ends

	passes   sync.Pool // holds *pass
	watchdog watchdog
	workers  crew // finishes long passes in goroutines
	closed   atomic.Bool
}

// ops implements ib.Driver, and the optional interfaces of package ib that the device supports. The midlayer calls
// its methods. (struct ib_device_ops, rxe_dev_ops)
type ops struct{ dev *Device }

// New creates a device on hardware of its own, and binds its addresses. The device is ready for ib.Core.Register. The
// error is EADDRINUSE if another program, or the kernel's rxe, has bound one of the addresses. New may sleep.
func New(cfg Config) (*Device, error) { return NewHardware(cfg).probe() }

//verbena:held hw.mu
func newDevice(hw *Hardware) (_ *Device, err error) {
	cfg := hw.cfg
	fail := func(err error) (*Device, error) { return nil, fmt.Errorf("device %s: %w", cfg.Name, err) }
	if len(cfg.Addrs) == 0 {
		return fail(fmt.Errorf("no address: %w", syscall.EADDRNOTAVAIL))
	}
	if cfg.Network == nil {
		return fail(fmt.Errorf("no network: %w", syscall.EINVAL))
	}
	if cfg.Layout == nil {
		return fail(fmt.Errorf("no layout of queues: %w", syscall.EINVAL))
	}
	sizes, err := limitsIn(cfg.Layout, cfg.QueueMemory)
	if err != nil {
		return fail(err)
	}
	d := &Device{
		name: cfg.Name,
		logf: cfg.Logf,

		observer: cfg.Observer,

		guid:   hw.guid,
		faults: cfg.Faults,
		taps:   cfg.Taps,
		fabric: cfg.Fabric,
		clock:  cfg.Clock,
		layout: cfg.Layout,
		limits: sizes,
		traits: cfg.Layout.Traits(),

		recovers: cfg.Recover,
		noProbe:  cfg.NoProbe,

		keys:    &hw.numbers.keys,
		qpKeys:  &hw.numbers.qpKeys,
		srqKeys: &hw.numbers.srqKeys,
	}
	d.gids, d.qpBits = newGIDTable(&d.traits), qpBitsOf(&d.traits)
	d.passes.New = func() any { return newPass(d) }
	if d.clock == nil {
		d.clock = clock.System
	}
	if d.logf == nil {
		d.logf = func(string, ...any) {}
	}
	d.changes.network, d.changes.ends, d.changes.warned = cfg.Network, map[netip.Addr]*endpoint{}, map[netip.Addr]string{}
	d.obj = ib.NewDevice(cfg.Name, ops{d}, cfg.Logf)
	d.contexts.m = map[ib.UserContext]*userContext{}
	d.cqs.m, d.tracedCQs.m = map[*cq]struct{}{}, map[*cq]struct{}{}
	d.epoch = d.clock.Now()
	d.epochNano = d.epoch.UnixNano()
	d.direct.Store(!hw.travels.Load())
	for k, l := range countLimits {
		d.most[k] = l.most
	}
	d.limitCounts()
	d.own.most = &d.most
	d.qps.init(minQPSlot, 1<<d.qpBits.slot)
	d.mrs.init(1, 1<<min(keyIndexBits(&d.traits), firstMWBits))
	d.mws.init(firstMW, tableMax)
	d.ahs.init(1, uint32(min(tableMax, 1<<cmp.Or(d.traits.AHBits, 32)-1)))
	d.srqs.init(1, maxQPSlot)
	d.qps.skip(hw.numbers.qps)
	d.mrs.skip(hw.numbers.mrs)
	d.mws.skip(hw.numbers.mws)
	d.srqs.skip(hw.numbers.srqs)
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	d.at.Store(&addressing{netdev: cfg.Netdev}) // for packets that arrive from now on
	at := &addressing{netdev: cfg.Netdev}
	for _, a := range cfg.Addrs {
		e, err := d.bind(a) //verbena:allow held no other thread has the device yet
		if err != nil {
			return fail(err)
		}
		if slices.Contains(at.endpoints, e) {
			return fail(fmt.Errorf("address %v is named twice: %w", a, syscall.EADDRINUSE))
		}
		at.endpoints = append(at.endpoints, e)
	}
	d.gids.Update(cfg.Netdev, at.addrs())
	at.gids = d.gids.Entries()
	d.at.Store(at)
	if err := d.fabric.join(d); err != nil {
		return fail(err)
	}
	d.hw = hw
	if cfg.Probed != nil {
		cfg.Probed(d)
	}
	return d, nil
}

// Handle returns the device for ib.Core.Register.
func (d *Device) Handle() *ib.DeviceHandle { return d.obj }

// IB returns the device for consumers.
func (d *Device) IB() *ib.Device { return d.obj.Device() }

// Endpoints returns the bound endpoints of the device, for statistics.
func (d *Device) Endpoints() []link.Endpoint {
	var w []link.Endpoint
	for _, e := range d.at.Load().endpoints {
		if b := e.wire.Load(); b != nil {
			w = append(w, b.Endpoint)
		}
	}
	return w
}

// closeGrace is the maximum time for which Close waits for threads that are blocked in the memory of a program.
const closeGrace = 100 * time.Millisecond

// Close releases the addresses. Close waits at most closeGrace for threads that are blocked in the memory of a
// process; such a thread ends when the process answers. The device must not be registered, or must be unregistered
// already. Close may sleep, and must not be called from a callback.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	var errs []error
	d.changes.Lock()
	d.changes.closed = true // first: a later SetInterface must not enter the device into the Fabric again
	d.fabric.leave(d)
	for _, e := range d.changes.ends {
		errs = append(errs, d.unbind(e))
	}
	d.changes.Unlock()
	if n := d.workers.wait(closeGrace); n > 0 {
		d.logf("close device %s: %d threads are stopped in the memory of a process that does not answer", d.name, n)
	}
	if d.hw != nil {
		d.hw.released(d)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close device %s: %w", d.name, err)
	}
	return nil
}

// Hardware returns the adapter of the device.
func (d *Device) Hardware() *Hardware { return d.hw }

// random returns a random number. It may not sleep.
func (d *Device) random() uint32 {
	r := &d.hw.numbers.rand
	r.Lock()
	defer r.Unlock()
	return r.Uint32()
}

// Limits and attributes with the values of the kernel's rxe (rxe_param.h).
const (
	maxRdAtomic  = 128
	maxMsgSize   = 1 << 31
	vendorID     = 0xffffff
	ackDelayCode = 15

	// Attributes of the port.
	portCapCM        = 1 << 16 // enum ib_port_cap_flags
	portPhysPolling  = 2       // enum ib_port_phys_state
	portPhysDisabled = 3
	portPhysLinkUp   = 5
)

// UserABI implements ib.Driver.
func (o ops) UserABI() (driverID, version uint32) { return o.dev.layout.UserABI() }

// CallsRefill implements ib.Refiller.
func (o ops) CallsRefill() {}

// Personality returns the layout of the queues. The package of the layout identifies the driver.
func (o ops) Personality() any { return o.dev.layout }

// QueryDevice implements ib.Driver.
func (o ops) QueryDevice() (ib.DeviceAttr, error) {
	d := o.dev
	a := ib.DeviceAttr{
		NodeGUID:     d.guid,
		SysImageGUID: d.guid,
		MaxMRSize:    ^uint64(0),
		PageSizeCap:  0xfffff000,
		VendorID:     vendorID,
		MaxQP:        int(d.most[countQP]),
		MaxQPWR:      int(d.limits.wr),
		DeviceCapFlags: uapi.DeviceBadPKeyCntr | uapi.DeviceBadQKeyCntr | uapi.DeviceUDAVPortEnforce | uapi.DevicePortActiveEvent |
			uapi.DeviceSysImageGUID | uapi.DeviceRCRNRNAKGen | uapi.DeviceSRQResize | ib.DeviceCapMemWindow |
			ib.DeviceCapMemWindowType2B | ib.DeviceCapMemExtensions | ib.DeviceCapFlushGlobal | ib.DeviceCapAtomicWrite,
		MaxSendSGE:        int(d.limits.sge),
		MaxRecvSGE:        int(d.limits.sge),
		MaxSGERd:          int(d.limits.sge),
		MaxCQ:             int(d.most[countCQ]),
		MaxCQE:            d.limits.cqe,
		MaxMR:             int(d.mrs.limit) - 1,
		MaxMW:             maxMW,
		MaxPD:             int(d.most[countPD]),
		MaxQPRdAtom:       maxRdAtomic,
		MaxResRdAtom:      maxRdAtomic * maxQP,
		MaxQPInitRdAtom:   maxRdAtomic,
		AtomicCap:         ib.AtomicHCA,
		MaxAH:             int(d.most[countAH]),
		MaxMcastGrp:       maxMcastGrp,
		MaxMcastQPAttach:  maxMcastQPAttach,
		MaxTotalMcastAtch: maxTotMcastQP,
		MaxSRQ:            int(d.most[countSRQ]),
		MaxSRQWR:          int(d.limits.wr),
		MaxSRQSGE:         int(d.limits.sge),
		MaxPKeys:          1,
		LocalCAAckDelay:   ackDelayCode,
		PhysPorts:         1,
		// The kernel copies memory, and faults in missing pages, so no page needs to be pinned.
		ODP: ib.ODPCaps{
			General: ib.ODPSupport | ib.ODPImplicit,
			RC: ib.ODPSend | ib.ODPRecv | ib.ODPWrite | ib.ODPRead | ib.ODPAtomic | ib.ODPSRQRecv | ib.ODPFlush |
				ib.ODPAtomicWrite,
			UC: ib.ODPSend | ib.ODPRecv | ib.ODPWrite | ib.ODPSRQRecv,
			UD: ib.ODPSend | ib.ODPRecv | ib.ODPSRQRecv,
		},
	}
	if f := d.traits.Attributes; f != nil {
		f(&a)
	}
	return a, nil
}

// RespondDevice writes the driver-private attributes for a program.
func (o ops) RespondDevice(a *ib.DeviceAttr, u *ib.Udata) {
	if f := o.dev.traits.RespondDevice; f != nil {
		f(a, u)
	}
}

// StoreDoorbells reports whether programs ring doorbells by stores, without a system call.
func (o ops) StoreDoorbells() bool { return o.dev.traits.StoreDoorbells }

// Methods implements ib.MethodDriver.
func (o ops) Methods() []ib.DriverMethod { return o.dev.traits.Methods }

// QueryPort implements ib.Driver.
func (o ops) QueryPort(port int) (ib.PortAttr, error) {
	d := o.dev
	if port != 1 {
		return ib.PortAttr{}, fmt.Errorf("port %d: a device has port 1 only: %w", port, syscall.EINVAL)
	}
	at := d.at.Load()
	rate := portRateOf(at.netdev.Speed)
	a := ib.PortAttr{
		State:          ib.PortActive,
		PhysState:      portPhysLinkUp,
		MaxMTU:         ib.MTU4096,
		ActiveMTU:      d.activeMTU(),
		GIDTableLen:    d.gids.Len(),
		PKeyTableLen:   1,
		CapFlags:       portCapCM,
		MaxMsgSize:     maxMsgSize,
		MaxVLNum:       1,
		BadPKeyCounter: d.counters.violations(cntDropPKey),
		QKeyViolations: d.counters.violations(cntDropQKey),
		ActiveWidth:    uint8(rate.width),
		ActiveSpeed:    uint16(rate.speed),
		Netdev:         at.netdev.Name,
		LinkLayer:      ib.LinkEthernet,
	}
	switch {
	case at.up():
	case at.netdev.Up:
		a.State, a.PhysState = ib.PortDown, portPhysPolling
	default:
		a.State, a.PhysState = ib.PortDown, portPhysDisabled
	}
	if f := d.traits.Port; f != nil {
		f(&a)
	}
	return a, nil
}

// activeMTU returns the largest path MTU that fits the interface, or 256 if none fits, as in rxe_set_mtu.
func (d *Device) activeMTU() ib.MTU {
	return max(roce.MTUFromLink(d.at.Load().netdev.MTU), ib.MTU256)
}

// userContext is the state of an open device file.
type userContext struct {
	ib.UserContext
	queues  queue.Program
	dir     directory
	atomics atomics
	lane    lane
	counts  objectCounts
}

// libraryFault reports a fault of the program's library to the user context. It may not sleep.
func (c *userContext) libraryFault(fault ib.LibraryFault) {
	if l, ok := c.UserContext.(ib.LibraryFaulter); ok {
		l.LibraryFault(fault)
	}
}

// AllocUserContext implements ib.UserContexter.
func (o ops) AllocUserContext(u *ib.Udata) error {
	d := o.dev
	c := &userContext{UserContext: u.Context}
	c.counts.most = &d.most
	var err error
	if c.queues, err = d.layout.OpenProgram(u); err != nil {
		return err
	}
	d.contexts.Lock()
	defer d.contexts.Unlock()
	d.contexts.m[u.Context] = c
	return nil
}

// DeallocUserContext implements ib.UserContexter.
func (o ops) DeallocUserContext(u ib.UserContext) {
	d := o.dev
	d.contexts.Lock()
	c := d.contexts.m[u]
	delete(d.contexts.m, u)
	d.contexts.Unlock()
	if c != nil {
		c.dir.mu.Lock()
		defer c.dir.mu.Unlock()
		c.queues.Close()
	}
}

// context returns the user context of a command, or nil for a command of a consumer in this process.
func (d *Device) context(u *ib.Udata) *userContext {
	if u == nil || u.Context == nil {
		return nil
	}
	d.contexts.Lock()
	defer d.contexts.Unlock()
	return d.contexts.m[u.Context]
}
