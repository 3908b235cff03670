package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/driver"
	"verbena/engine/queue"
	"verbena/ib/slot"
	"verbena/netdev"
	"verbena/roce"
)

// Hardware is what stands for the adapter: it stays when a [Device], one life of it from probe to removal, ends by a
// reset or an unplug, and it can be made to fail. It implements [driver.Hardware].
//
//	             Hang               Reset, Probe
//	running --------------> hung ---------------------+
//	   ^  |                                           |
//	   |  +---Disconnect--> unreachable ---Return-----+
//	   |  +---Die---------> dead, for good            |
//	   +----------------------------------------------+
//
// From Hang, Disconnect, Die and Reset on the present device carries nothing out any more: no work request, no packet
// that arrives, no timeout. What the driver does without the adapter goes on: it accepts work requests and commands,
// and flushes in the error state. A device that was stopped stays so; only the next one works.
//
// The numbers that the adapter gives out, those of queue pairs and keys, go on from one device to the next, so that what
// a peer or a program still knows of the old one means nothing to the new one: a queue pair's number comes back after
// 16 million others, a key's index after 134 million.
type Hardware struct {
	cfg     Config
	guid    uint64 // of the node
	numbers numbers
	travels atomic.Bool // devices do not use the Fabric

	dev atomic.Pointer[Device] // the present one, nil if there is none; written under mu

	mu      sync.Mutex
	state   driver.State
	changed chan struct{} // closed, and replaced, when the state changes
}

// numbers is where the next device begins to give out numbers.
type numbers struct {
	qps, mrs, mws, srqs   uint32 // numbers used fresh by the devices so far
	qpKeys, keys, srqKeys keyGenerations

	rand struct {
		sync.Mutex
		*rand.Rand
	}
}

// NewHardware makes an adapter that works. What cfg says is true of all its devices.
func NewHardware(cfg Config) *Hardware {
	h := &Hardware{cfg: cfg, guid: nodeGUID(&cfg), changed: make(chan struct{})}
	h.numbers.rand.Rand = cfg.Rand
	if cfg.Rand == nil {
		h.numbers.rand.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return h
}

// OpenHardware makes an adapter with a layout for a service, as driver.Driver.Open does. Its devices join a Fabric. A
// panic of the engine resets the device.
func OpenHardware(q queue.Layout, f *Fabric, c driver.Config) *Hardware {
	return NewHardware(Config{
		Layout:      q,
		Name:        c.Name,
		Netdev:      c.Netdev,
		Addrs:       c.Addrs,
		Network:     c.Network,
		Faults:      c.Faults,
		Taps:        c.Taps,
		Fabric:      f,
		Rand:        c.Rand,
		NoProbe:     c.NoProbe,
		QueueMemory: c.QueueMemory,
		Recover:     true,
		Observer:    c.Observer,
		Logf:        c.Logf,
		Probed: func(dev *Device) {
			dev.SetShortcut(!c.Wire)
			c.Probed(dev)
		},
	})
}

// nodeGUID returns the GUID of a node: of the interface's MAC address, as the kernel has it. Programs tell adapters apart by it, so
// that devices of an interface without a MAC address, of which there may be many, have it of their first address.
func nodeGUID(cfg *Config) uint64 {
	var mac [6]byte
	copy(mac[:], cfg.Netdev.MAC)
	if mac == [6]byte{} && len(cfg.Addrs) > 0 {
		b := cfg.Addrs[0].AsSlice()
		copy(mac[2:], b[max(len(b)-4, 0):])
	}
	id := roce.EUI64(mac)
	return binary.BigEndian.Uint64(id[:])
}

// Probe implements slot.Hardware: it makes a device, as New does. An adapter that was hung has been plugged in anew, and
// works. It may sleep.
func (h *Hardware) Probe() (slot.Device, error) {
	d, err := h.probe()
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (h *Hardware) probe() (*Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == driver.Hung {
		h.state = driver.Running
	}
	if h.state != driver.Running {
		return nil, fmt.Errorf("device %s: the adapter is %v: %w", h.cfg.Name, h.state, syscall.EIO)
	}
	if h.dev.Load() != nil {
		return nil, fmt.Errorf("device %s: the adapter has a device already: %w", h.cfg.Name, syscall.EBUSY)
	}
	d, err := newDevice(h)
	if err != nil {
		return nil, err
	}
	h.dev.Store(d)
	return d, nil
}

// released is called when the device gives the adapter back.
func (h *Hardware) released(d *Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers.qps += d.qps.used()
	h.numbers.mrs += d.mrs.used()
	h.numbers.mws += d.mws.used()
	h.numbers.srqs += d.srqs.used()
	h.dev.CompareAndSwap(d, nil)
}

// follow notes what the interface is like, for the next device. It may sleep.
func (h *Hardware) follow(ifi netdev.Interface, addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cfg.Netdev = ifi
	if len(addrs) > 0 {
		h.cfg.Addrs = slices.Clone(addrs)
	}
}

// Device returns the present device, nil if there is none. It may not sleep.
func (h *Hardware) Device() driver.Device {
	if d := h.dev.Load(); d != nil {
		return d
	}
	return nil
}

// State is the present state. It may not sleep.
func (h *Hardware) State() driver.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// set stops the present device, and changes the state unless the adapter is dead. It may not sleep.
func (h *Hardware) set(s driver.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.dev.Load(); d != nil {
		d.stopped.Store(true)
	}
	if h.state == driver.Dead {
		return
	}
	h.state = s
	close(h.changed)
	h.changed = make(chan struct{})
}

// Hang has the adapter stop working; nobody is told. It may not sleep.
func (h *Hardware) Hang() { h.set(driver.Hung) }

// Silence has the present device give user contexts no more completions, not even flush errors when it enters the error state or
// they are cut off: this is what programs see of the kernel's rxe, whose contexts are destroyed without a flush. The next device is
// an ordinary one. It may not sleep.
func (h *Hardware) Silence() {
	if d := h.dev.Load(); d != nil {
		d.silent.Store(true)
	}
}

// Disconnect has the adapter not answer until Return. It may not sleep.
func (h *Hardware) Disconnect() { h.set(driver.Unreachable) }

// Die has the adapter not answer for good. It may not sleep.
func (h *Hardware) Die() { h.set(driver.Dead) }

// Return ends what Disconnect began: the platform has reset the adapter, and it answers. Otherwise nothing happens. It
// may not sleep.
func (h *Hardware) Return() {
	if h.State() == driver.Unreachable {
		h.set(driver.Running)
	}
}

// Reset implements slot.Hardware: the present device stops, and the adapter works again. EIO when it does not answer. It
// may sleep.
func (h *Hardware) Reset(context.Context) error {
	switch s := h.State(); s {
	case driver.Unreachable, driver.Dead:
		return fmt.Errorf("the adapter is %v: %w", s, syscall.EIO) // the slot says whose it is
	}
	h.set(driver.Running)
	return nil
}

// Await implements slot.Hardware: it waits until the adapter answers. EIO when it is dead. It may sleep.
func (h *Hardware) Await(ctx context.Context) error {
	for {
		h.mu.Lock()
		state, changed := h.state, h.changed
		h.mu.Unlock()
		switch state {
		case driver.Running, driver.Hung:
			return nil
		case driver.Dead:
			return fmt.Errorf("wait for %s: the adapter is dead: %w", h.cfg.Name, syscall.EIO)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", h.cfg.Name, context.Cause(ctx))
		}
	}
}

// AtWorkRequest implements slot.Stopper: the present device stops when it is about to carry out the n-th send work
// request from now, and f is called, without sleeping, from where that cannot be told. It reports false when there is no
// device. A second call replaces the first; n 0: nowhere. It may not sleep.
func (h *Hardware) AtWorkRequest(n uint64, f func()) bool {
	d := h.dev.Load()
	return d != nil && setBreakpoint(&d.breakpoint, n, f)
}

// BeforeWorkRequest has f called, without sleeping, from an unspecified thread, when the present device is about to execute
// the n-th send work request from now. It reports false when there is no device. A second call replaces the first; n 0:
// nowhere. It may not sleep.
func (h *Hardware) BeforeWorkRequest(n uint64, f func()) bool {
	d := h.dev.Load()
	return d != nil && setBreakpoint(&d.watchpoint, n, f)
}

// setBreakpoint sets a breakpoint before the n-th work request from now, or removes it if n is 0. It returns true.
func setBreakpoint(at *atomic.Pointer[breakpoint], n uint64, f func()) bool {
	if n == 0 {
		at.Store(nil)
		return true
	}
	b := &breakpoint{hit: f}
	b.left.Store(n)
	at.Store(b)
	return true
}
