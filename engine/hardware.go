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

// Hardware represents the adapter, which outlives its devices. A [Device] is one life of the adapter from probe to
// removal, and ends by a reset or an unplug. An adapter can be made to fail. Hardware implements [driver.Hardware].
//
//	             Hang               Reset, Probe
//	running --------------> hung ---------------------+
//	   ^  |                                           |
//	   |  +---Disconnect--> unreachable ---Return-----+
//	   |  +---Die---------> dead, for good            |
//	   +----------------------------------------------+
//
// After Hang, Disconnect, Die and Reset, the present device executes no work request, and processes no packet and no
// timeout. The driver continues with its functions that need no adapter: it accepts work requests and commands, and
// flushes in the error state. A stopped device stays stopped. Only the next device works.
//
// The numbers of queue pairs and keys continue from one device to the next. A number that a peer or a program still
// has from the old device is thus invalid on the new device. A queue pair number returns after 16 million others, and
// the index of a key after 134 million.
type Hardware struct {
	cfg     Config
	guid    uint64 // node GUID
	numbers numbers
	travels atomic.Bool // devices do not use the Fabric

	dev atomic.Pointer[Device] // the present device, or nil; written under mu

	mu      sync.Mutex
	state   driver.State
	changed chan struct{} // closed and replaced when the state changes
}

// numbers is the state of the allocation of numbers, which continues with the next device.
type numbers struct {
	qps, mrs, mws, srqs   uint32 // counts of numbers that the devices so far have used at least once
	qpKeys, keys, srqKeys keyGenerations

	rand struct {
		sync.Mutex
		*rand.Rand
	}
}

// NewHardware returns a working adapter. cfg applies to all its devices.
func NewHardware(cfg Config) *Hardware {
	h := &Hardware{cfg: cfg, guid: nodeGUID(&cfg), changed: make(chan struct{})}
	h.numbers.rand.Rand = cfg.Rand
	if cfg.Rand == nil {
		h.numbers.rand.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return h
}

// OpenHardware returns an adapter with a layout for a service, for use by driver.Driver.Open. The devices of the
// adapter join a Fabric. A panic of the engine resets the device.
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

// nodeGUID returns the GUID of a node. Like the kernel, it derives the GUID from the MAC address of the interface.
// Programs distinguish adapters by the GUID. There may be many interfaces without a MAC address, so for these
// nodeGUID derives the GUID from the first address of the device.
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

// Probe implements slot.Hardware: it creates a device, as New does. A hung adapter counts as plugged in again, and
// works. Probe may sleep.
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

// released removes a closed device from the adapter, and adds its used numbers to h.numbers.
func (h *Hardware) released(d *Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.numbers.qps += d.qps.used()
	h.numbers.mrs += d.mrs.used()
	h.numbers.mws += d.mws.used()
	h.numbers.srqs += d.srqs.used()
	h.dev.CompareAndSwap(d, nil)
}

// follow stores the state of the interface for the next device. It may sleep.
func (h *Hardware) follow(ifi netdev.Interface, addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cfg.Netdev = ifi
	if len(addrs) > 0 {
		h.cfg.Addrs = slices.Clone(addrs)
	}
}

// Device returns the present device, or nil. It may not sleep.
func (h *Hardware) Device() driver.Device {
	if d := h.dev.Load(); d != nil {
		return d
	}
	return nil
}

// State returns the present state of the adapter. It may not sleep.
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

// Hang stops the adapter without any notice. It may not sleep.
func (h *Hardware) Hang() { h.set(driver.Hung) }

// Silence suppresses all further completions of the present device to user contexts, including the flush errors of
// the error state and of disassociation. The kernel's rxe behaves like this towards programs: it destroys their
// contexts without a flush. The next device delivers completions again. Silence may not sleep.
func (h *Hardware) Silence() {
	if d := h.dev.Load(); d != nil {
		d.silent.Store(true)
	}
}

// Disconnect makes the adapter unreachable until Return. It may not sleep.
func (h *Hardware) Disconnect() { h.set(driver.Unreachable) }

// Die makes the adapter unreachable permanently. It may not sleep.
func (h *Hardware) Die() { h.set(driver.Dead) }

// Return ends Disconnect: the platform has reset the adapter, which answers again. In any other state Return does
// nothing. It may not sleep.
func (h *Hardware) Return() {
	if h.State() == driver.Unreachable {
		h.set(driver.Running)
	}
}

// Reset implements slot.Hardware: the present device stops, and the adapter works again. The error is EIO if the
// adapter does not answer. Reset may sleep.
func (h *Hardware) Reset(context.Context) error {
	switch s := h.State(); s {
	case driver.Unreachable, driver.Dead:
		return fmt.Errorf("the adapter is %v: %w", s, syscall.EIO) // the slot adds the device
	}
	h.set(driver.Running)
	return nil
}

// Await implements slot.Hardware: it waits until the adapter answers. The error is EIO if the adapter is dead. Await
// may sleep.
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

// AtWorkRequest implements slot.Stopper: the present device stops before it executes the n-th send work request from
// now, and calls f on an unspecified thread; f must not sleep. AtWorkRequest returns false if there is no device. A
// second call replaces the first, and n 0 removes the breakpoint. AtWorkRequest may not sleep.
func (h *Hardware) AtWorkRequest(n uint64, f func()) bool {
	d := h.dev.Load()
	return d != nil && setBreakpoint(&d.breakpoint, n, f)
}

// BeforeWorkRequest arranges a call of f before the present device executes the n-th send work request from now. The
// call is made on an unspecified thread; f must not sleep. BeforeWorkRequest returns false if there is no device. A
// second call replaces the first, and n 0 removes the breakpoint. BeforeWorkRequest may not sleep.
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
