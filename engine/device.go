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

// Clock and Timer are the source of time of a device, for tests on virtual time.
type (
	Clock = clock.Clock
	Timer = clock.Timer
)

// Config says what a device is made of.
type Config struct {
	// Layout is the form of the queues that programs share with the device.
	Layout queue.Layout
	// Name is the device's name. User space finds its provider by it: "rxe" and a number.
	Name string
	// Netdev is the interface that the device stands on: its MAC address gives the GUIDs and the default GID, its
	// MTU the path MTU, its state the port's state.
	Netdev netdev.Interface
	// Addrs are the addresses to use, at least one, usually those of Netdev; link-local ones with their zone.
	Addrs []netip.Addr
	// Network carries packets to where the Fabric does not reach.
	Network link.Network
	// Faults, if not nil, are the rules of which the device itself carries out RNR, and which keep it off the Fabric
	// while there are any. Network leads through them.
	Faults *link.Faults
	// Taps see what takes the shortcut through the Fabric; Network has its own. nil: nobody does.
	Taps *link.Taps
	// Fabric, if not nil, is joined for as long as the device exists.
	Fabric *Fabric
	// Rand varies keys and queue pair numbers; nil: a generator with a random seed. The device uses it under a
	// lock of its own.
	Rand *rand.Rand
	// Clock is the source of timeouts; nil: that of the system.
	Clock Clock
	// NoProbe: nothing is sent again before the Local ACK Timeout (IBA 9.7.6.1.3). Otherwise the oldest packet without an
	// acknowledgement is, after 4 ms, 8 ms and so on, where the timeout is longer.
	NoProbe bool
	// QueueMemory is the shared memory, in bytes, that a program can have for its queues; 0: there is no bound. The
	// sizes of queues that the device advertises are within it, all together for one queue pair. It is at least
	// [MinQueueMemory].
	QueueMemory uint64
	// Probed, if not nil, is called with each device that is made of the hardware, before it is registered. It must not
	// call methods of the Hardware.
	Probed func(*Device)
	// Recover has a panic of the engine reset the device, rather than end the process.
	Recover bool
	// Observer receives the failures of queue pairs; nil: no reports.
	Observer driver.Observer
	// Logf gets rare messages, one line each; nil: nobody.
	Logf func(format string, args ...any)
}

// Device is a software RoCEv2 device with one port. Its methods are for its owner; the midlayer calls those of ops.
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
	direct   atomic.Bool // the Fabric may be used, as long as there are no faults
	counters counters
	groups   groups
	atomics  atomics

	most    [numCounted]uint32 // limits of objects, constant
	shares  userShares         // queue pairs by users
	own     objectCounts       // objects of the consumers in this process
	qps     table[QP]          // by the low bits of the number
	mrs     table[mr]          // by key >> 8
	mws     table[mw]          // likewise
	ahs     table[ah]
	srqs    table[srq]      // by the low bits of the number
	keys    *keyGenerations // of mrs and mws; the hardware's, as are the next two
	qpKeys  *keyGenerations
	srqKeys *keyGenerations

	hw         *Hardware
	stopped    atomic.Bool // the hardware carries nothing out any more
	failed     atomic.Bool // in the error state
	broken     atomic.Bool // a panic may have left locks behind; see panic.go
	recovers   bool
	breakpoint atomic.Pointer[breakpoint]
	watchpoint atomic.Pointer[breakpoint] // see Hardware.BeforeWorkRequest

	// epoch is a time of the clock, and epochNano the same in nanoseconds since 1970. See tick.
	epoch     time.Time
	epochNano int64

	cqs struct { // all completion queues
		sync.Mutex
		m map[*cq]struct{}
	}

	contexts struct {
		sync.Mutex
		m map[ib.UserContext]*userContext
	}

	tracing sync.Mutex // held while a queue pair's trace begins or ends

	passes   sync.Pool // of *pass
	watchdog watchdog
	workers  crew // passes that a goroutine of the device finishes
	closed   atomic.Bool
}

// ops are the methods that the midlayer calls: ib.Driver and what else of package ib the device supports. (struct
// ib_device_ops, rxe_dev_ops)
type ops struct{ dev *Device }

// New makes a device, ready for ib.Core.Register, on hardware of its own, and binds its addresses. EADDRINUSE when one
// of them is taken, by another program or by the kernel's own rxe. It may sleep.
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
	d.cqs.m = map[*cq]struct{}{}
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
	d.at.Store(&addressing{netdev: cfg.Netdev}) // for what arrives from now on
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

// Handle is the device for ib.Core.Register.
func (d *Device) Handle() *ib.DeviceHandle { return d.obj }

// IB is the device as consumers see it.
func (d *Device) IB() *ib.Device { return d.obj.Device() }

// Endpoints are the device's places in the network, for statistics.
func (d *Device) Endpoints() []link.Endpoint {
	var w []link.Endpoint
	for _, e := range d.at.Load().endpoints {
		if b := e.wire.Load(); b != nil {
			w = append(w, b.Endpoint)
		}
	}
	return w
}

// closeGrace is how long Close waits for threads that are stopped in the memory of a program.
const closeGrace = 100 * time.Millisecond

// Close frees the addresses. It does not wait for threads that are stopped in the memory of a process which does not
// answer: they end when it does. The device must not be registered, or be unregistered already. It may sleep, and must
// not be called from a callback.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	var errs []error
	d.changes.Lock()
	d.changes.closed = true // first: a change of addresses that is under way would make the device known again
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

// Hardware is what the device is a life of.
func (d *Device) Hardware() *Hardware { return d.hw }

// random may not sleep.
func (d *Device) random() uint32 {
	r := &d.hw.numbers.rand
	r.Lock()
	defer r.Unlock()
	return r.Uint32()
}

// Limits, as the kernel's rxe has them (rxe_param.h), where this driver does not have its own.
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

// Personality returns the layout of the queues. Its package distinguishes the drivers on this engine.
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
		// Memory is copied by the kernel, which brings in what is not there: nothing has to be pinned.
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

// RespondDevice writes the driver's part of the attributes for a program.
func (o ops) RespondDevice(a *ib.DeviceAttr, u *ib.Udata) {
	if f := o.dev.traits.RespondDevice; f != nil {
		f(a, u)
	}
}

// StoreDoorbells reports whether programs post without a call.
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

// activeMTU is the largest path MTU that fits the interface; 256 where none does, as in rxe_set_mtu.
func (d *Device) activeMTU() ib.MTU {
	return max(roce.MTUFromLink(d.at.Load().netdev.MTU), ib.MTU256)
}

// userContext is what the driver keeps for an open device file.
type userContext struct {
	ib.UserContext
	queues  queue.Program
	dir     directory
	atomics atomics
	lane    lane
	counts  objectCounts
}

// libraryFault reports a fault of the program's library. It may not sleep.
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

// context finds the context that a command came from, nil if from a consumer in this process.
func (d *Device) context(u *ib.Udata) *userContext {
	if u == nil || u.Context == nil {
		return nil
	}
	d.contexts.Lock()
	defer d.contexts.Unlock()
	return d.contexts.m[u.Context]
}
