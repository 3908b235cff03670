// Package skeleton is a driver to begin with: reliable connections with SEND, RDMA WRITE and receive, nothing optional, and
// an engine on a thread of its own, as most drivers have. What belongs to the wire is in one function, transmit, which
// delivers within the device; put yours there. The test is the contract's (docs/contract.md, package ibtest); abilities
// that are missing here are in driver/loopback, a file each.
package skeleton

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"verbena/ib"
	"verbena/umem"
)

// Limits of the device.
const (
	maxQP  = 1 << 10
	maxWR  = 1 << 10
	maxSGE = 8
	maxCQE = 1 << 14
	mtu    = ib.MTU1024

	maxRdAtomic = 1
	maxMRSize   = 1 << 32
	maxMsgSize  = 1 << 30
)

// Device is a device of this driver. It implements ib.Driver.
type Device struct {
	obj  *ib.DeviceHandle
	gid  ib.GID
	wake chan struct{} // has one element: there may be work
	done chan struct{} // the engine has ended

	// mu guards everything below and all queue pairs and regions. Its critical sections copy memory and wait for nothing,
	// so it may be taken where sleeping is not allowed (point 1). It is never held while callbacks run (point 3), nor
	// across Register and Unregister (point 5). The locks of CQs nest inside. A driver with user contexts copies under no lock:
	// a program may have its memory not answer.
	//verbena:program the consumers in this process, whose memory answers: there are no user contexts
	mu      sync.Mutex
	closed  bool
	failed  bool // the device is in error
	qps     map[uint32]*qp
	lastQPN uint32
	keys    map[uint32]*mr
	lastKey uint32
}

// New starts a device. It is ready when New returns (point 5): register it, and when Unregister has returned, Close it.
func New(name string, logf func(format string, args ...any)) *Device {
	d := &Device{
		gid: ib.GIDFromAddr(netip.MustParseAddr("fd00::2")), wake: make(chan struct{}, 1), done: make(chan struct{}),
		qps: map[uint32]*qp{}, keys: map[uint32]*mr{},
	}
	d.obj = ib.NewDevice(name, d, logf)
	go d.engine()
	return d
}

// Handle is the device to register.
func (d *Device) Handle() *ib.DeviceHandle { return d.obj }

// Close frees the device. EBUSY while it is registered.
func (d *Device) Close() error {
	if err := d.obj.Dealloc(); err != nil { // point 5: not before Unregister has returned
		return err
	}
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.kick()
	<-d.done
	return nil
}

// kick wakes the engine. It does not wait for it, so it may be called where sleeping is not allowed.
func (d *Device) kick() {
	select {
	case d.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// engine carries out what has been posted. Since it holds callbacks while it works, handlers run right here, after the
// lock is released and before it sleeps (point 3).
func (d *Device) engine() {
	defer close(d.done)
	for range d.wake {
		d.obj.HoldCallbacks()
		d.mu.Lock()
		closed := d.closed
		for busy := true; busy; { // until nothing moves any more
			busy = false
			for _, q := range d.qps {
				busy = q.work() || busy
			}
		}
		d.mu.Unlock()
		d.obj.RunCallbacks()
		if closed {
			return
		}
	}
}

// EnterError implements ib.Driver (point 6).
func (d *Device) EnterError() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = true
	for _, q := range d.qps {
		if q.state != ib.QPReset {
			q.toError()
		}
	}
}

// QueryDevice implements ib.Driver.
func (d *Device) QueryDevice() (ib.DeviceAttr, error) {
	return ib.DeviceAttr{
		NodeGUID: 0x0200_0000_0000_0002, SysImageGUID: 0x0200_0000_0000_0002, MaxMRSize: maxMRSize, PageSizeCap: 4096,
		MaxQP: maxQP, MaxQPWR: maxWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxCQ: maxQP, MaxCQE: maxCQE, MaxMR: 1 << 20,
		MaxPD: maxQP, MaxQPRdAtom: maxRdAtomic, MaxQPInitRdAtom: maxRdAtomic, AtomicCap: ib.AtomicNone, MaxPKeys: 1, PhysPorts: 1,
	}, nil
}

// QueryPort implements ib.Driver.
func (d *Device) QueryPort(port int) (ib.PortAttr, error) {
	if port != 1 {
		return ib.PortAttr{}, syscall.EINVAL
	}
	return ib.PortAttr{
		State: ib.PortActive, MaxMTU: mtu, ActiveMTU: mtu, GIDTableLen: 1, PKeyTableLen: 1, MaxMsgSize: maxMsgSize,
		ActiveWidth: 1, ActiveSpeed: 1, PhysState: 5, LinkLayer: ib.LinkEthernet,
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

type pd struct{ dev *Device }

func (*pd) Dealloc() error { return nil }

// AllocPD implements ib.Driver. The midlayer counts what uses the domain, so there is nothing to do.
func (d *Device) AllocPD(*ib.Udata) (ib.DriverPD, error) { return &pd{d}, nil }

// mr is a memory region, found by its key in Device.keys.
type mr struct {
	dev    *Device
	pd     ib.DriverPD
	region *umem.Region
	access ib.AccessFlags
	key    uint32
}

// RegMR implements ib.Driver.
func (d *Device) RegMR(obj ib.MRHandle, pd ib.DriverPD, r *umem.Region, access ib.AccessFlags, u *ib.Udata) (ib.DriverMR, error) {
	if access&^(ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead) != 0 {
		return nil, fmt.Errorf("access flags %#x: %w", uint32(access), syscall.EOPNOTSUPP)
	}
	if r.Len() > maxMRSize {
		return nil, fmt.Errorf("%d bytes, at most %d: %w", r.Len(), uint64(maxMRSize), syscall.EINVAL)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastKey += 0x100
	m := &mr{dev: d, pd: pd, region: r, access: access, key: d.lastKey}
	d.keys[m.key] = m
	obj.SetKeys(m.key, m.key)
	return m, nil
}

// Dereg implements ib.DriverMR. Memory is accessed under the lock, so nobody does when it returns.
func (m *mr) Dereg() error {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	delete(m.dev.keys, m.key)
	return nil
}

// region finds the memory of a key, nil if the domain, the rights or the range are wrong.
//
//verbena:held mu
func (d *Device) region(key uint32, pd ib.DriverPD, need ib.AccessFlags, addr, n uint64) *umem.Region {
	m := d.keys[key]
	if m == nil || m.pd != pd || m.access&need != need || !m.region.Contains(addr, n) {
		return nil
	}
	return m.region
}

// read gathers a list into one piece; ok is false if it may not.
//
//verbena:held mu
func (d *Device) read(sgl []ib.SGE, pd ib.DriverPD) (data []byte, ok bool) {
	for _, s := range sgl {
		if s.Length == 0 {
			continue
		}
		r := d.region(s.LKey, pd, 0, s.Addr, uint64(s.Length))
		part := make([]byte, s.Length) // a real driver has the hardware do this, or a buffer for it
		if r == nil || r.ReadV([][]byte{part}, s.Addr) != nil {
			return nil, false
		}
		data = append(data, part...)
	}
	return data, true
}

// write scatters data.
//
//verbena:held mu
func (d *Device) write(sgl []ib.SGE, pd ib.DriverPD, data []byte) ib.WCStatus {
	for _, s := range sgl {
		n := min(len(data), int(s.Length))
		if s.Length == 0 {
			continue
		}
		r := d.region(s.LKey, pd, ib.AccessLocalWrite, s.Addr, uint64(s.Length))
		if r == nil || r.WriteV([][]byte{data[:n]}, s.Addr) != nil {
			return ib.WCLocProtErr
		}
		data = data[n:]
	}
	if len(data) > 0 {
		return ib.WCLocLenErr
	}
	return ib.WCSuccess
}

// cq is a completion queue.
type cq struct {
	obj ib.CQHandle

	mu      sync.Mutex
	entries int
	wcs     []ib.WC
	armed   ib.NotifyFlags // 0: not
	full    bool           // one did not fit
}

// CreateCQ implements ib.Driver.
func (d *Device) CreateCQ(obj ib.CQHandle, attr ib.CQAttr, u *ib.Udata) (ib.DriverCQ, error) {
	if attr.Entries > maxCQE || u != nil {
		return nil, fmt.Errorf("%d entries, at most %d, for consumers in this process: %w", attr.Entries, maxCQE, syscall.EINVAL)
	}
	return &cq{obj: obj, entries: attr.Entries}, nil
}

// post adds a completion, and reports it once if the queue is armed for it. Completed may be called under the lock: the
// midlayer calls the handler later. It returns false if there is no room: the queue pair goes to ERR.
func (c *cq) post(wc ib.WC, solicited bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wcs) == c.entries {
		if !c.full {
			c.obj.Raise(ib.EventCQErr)
		}
		c.full = true
		return false
	}
	c.wcs = append(c.wcs, wc)
	if c.armed&ib.NotifyNextComp != 0 || c.armed != 0 && (solicited || wc.Status != ib.WCSuccess) {
		c.armed = 0
		c.obj.Completed()
	}
	return true
}

// forget takes the queue pair, which is being destroyed, out of its completions, which keep its number.
func (c *cq) forget(qp *ib.QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.wcs {
		if c.wcs[i].QP == qp {
			c.wcs[i].QP = nil
		}
	}
}

// Poll implements ib.DriverCQ. It may not sleep.
func (c *cq) Poll(wc []ib.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = slices.Delete(c.wcs, 0, n)
	return n, nil
}

// ReqNotify implements ib.DriverCQ. It may not sleep.
func (c *cq) ReqNotify(flags ib.NotifyFlags) (missed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed |= flags & ib.NotifySolicited; flags&ib.NotifyNextComp != 0 {
		c.armed |= ib.NotifyNextComp
	}
	return flags&ib.NotifyReportMissed != 0 && len(c.wcs) > 0, nil
}

// Destroy implements ib.DriverCQ. No queue pair uses it any more, so nothing can come.
func (c *cq) Destroy() error { return nil }
