// Package driver is the interface between a service and the low-level drivers of its devices.
//
// A driver implements [Driver], [Hardware] and [Device] if a service can own its adapters. rxe.Driver is the first such
// driver. The program that creates a service passes the drivers to the service. Package service imports no driver.
package driver

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"verbena/ib"
	"verbena/ib/slot"
	"verbena/internal/qpinfo"
	"verbena/link"
	"verbena/netdev"
)

// Driver creates the adapters of one service. These adapters may share state, such as a path between two adapters that
// skips the network. All methods are safe for concurrent use.
type Driver interface {
	// Type returns the link type, as in `rdma link add NAME type TYPE`. The name of each device begins with the type,
	// because libibverbs finds its provider by the name. PCIDriver is the exception.
	Type() string
	// Open creates a working adapter. The adapter has no device before Probe.
	Open(Config) Hardware
	// MinQueueMemory returns the minimum Config.QueueMemory, in bytes, with which a device can be created.
	MinQueueMemory() uint64
	// QueueLimits returns the maximum lengths, in entries, of a work queue and a completion queue. The lengths apply to
	// a device with the given Config.QueueMemory. QueueLimits returns ENOMEM if memory is below MinQueueMemory.
	QueueLimits(memory uint64) (work, completions int, err error)
}

// PCIDriver is a Driver of devices that always look like PCI functions. libibverbs finds its provider by the driver's
// number or by the identifiers, so that a device can have any name.
type PCIDriver interface {
	Driver
	// PCI returns the function, in the form of pci.Parse. A link can change each property.
	PCI() string
}

// Config describes an adapter.
type Config struct {
	Name   string // of its devices
	Netdev netdev.Interface
	Addrs  []netip.Addr // at least one address; link-local addresses have a zone

	// Network transmits packets through Faults, and passes them to Taps.
	Network link.Network
	// Faults contains the rules for packets. The driver executes the kinds of rules that Network does not execute.
	// While there are rules, the driver sends every packet through Network.
	Faults *link.Faults
	// Taps record packets that skip Network.
	Taps *link.Taps

	Wire        bool       // sends every packet through Network
	NoProbe     bool       // disables retransmission before the local ACK timeout
	QueueMemory uint64     // limit of the shared memory of a program's queues, in bytes; 0 means no limit
	Rand        *rand.Rand // the driver serialises its own use of Rand

	// Probed is called with each device of the adapter before the device is registered. Probed must not call the
	// Hardware.
	Probed func(Device)
	// Observer receives the failures of the adapter's queue pairs; nil means no reports.
	Observer Observer
	// Logf logs one line.
	Logf func(format string, args ...any)
}

// Hardware is an adapter. An adapter exists longer than its devices, and can be made to fail. The methods declared here
// may not sleep. The methods of slot.Hardware may sleep.
type Hardware interface {
	slot.Hardware
	slot.Stopper
	// Device returns the present device, or nil.
	Device() Device
	State() State
	// BeforeWorkRequest calls f just before the device executes the n-th send work request from now. f must not sleep.
	// A second call replaces the first one. n 0 cancels it. BeforeWorkRequest returns false if there is no device.
	BeforeWorkRequest(n uint64, f func()) bool
	// Hang stops the adapter until its next reset or probe.
	Hang()
	// Silence suppresses all further completions of the present device in user contexts, including flush errors.
	Silence()
	// Disconnect makes the adapter unreachable until Return.
	Disconnect()
	Return()
}

// State is the state of a Hardware.
type State uint8

const (
	Running     State = iota
	Hung              // the adapter does not work, but can be reset
	Unreachable       // the adapter does not respond
	Dead              // the adapter will never respond again
)

func (s State) String() string {
	if n := [...]string{"running", "hung", "unreachable", "dead"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Device is one device of a Hardware. A Device exists from Probe to Close. After Close, methods succeed but have no
// effect.
type Device interface {
	slot.Device
	// SetInterface updates the device to the state of its interface, and to the addresses to use. The update also
	// applies to later devices of the adapter. SetInterface reports whether anything has changed. SetInterface may
	// sleep.
	SetInterface(ifi netdev.Interface, addrs []netip.Addr) (changed bool)
	// Endpoints returns the device's endpoints in the network.
	Endpoints() []link.Endpoint
	// Stats returns the counters by name. Stats may sleep.
	Stats() map[string]uint64

	// QPStatuses lists the queue pairs. QPStatuses does not wait for the memory of a program. QPStatuses may sleep.
	QPStatuses() []qpinfo.Status
	// QPTrace returns the latest protocol events of a queue pair, oldest first. QPTrace returns ENOENT if the queue
	// pair does not exist. QPTrace may sleep.
	QPTrace(num uint32) (qpinfo.Trace, error)
	// TraceQP starts or ends the trace of a queue pair. TraceQP returns ENOENT if the queue pair does not exist, ENOSPC
	// if too many queue pairs are traced, and EAGAIN if the memory of the queue pair's program does not respond.
	// TraceQP may sleep.
	TraceQP(num uint32, on bool) error

	// RefreshTraces calls Observer.TraceQueue for each existing queue, and replaces the queue's log by the result.
	// RefreshTraces returns false if the memory of a program does not respond: its queue pairs are omitted. It may
	// sleep.
	RefreshTraces() bool
	// LookAtTraces reports the completions that were consumed since the last event of each traced completion queue. It
	// may not sleep.
	LookAtTraces()

	// RaiseQP raises an event of a queue pair. RaiseQP does not change the state of the queue pair. RaiseQP returns
	// false if the queue pair does not exist. RaiseQP may not sleep.
	RaiseQP(num uint32, e ib.EventType) bool
	// RaiseCQ and RaiseSRQ are the equivalents of RaiseQP for queues. The queue must not be destroyed during the call.
	RaiseCQ(cq *ib.CQ, e ib.EventType) bool
	RaiseSRQ(srq *ib.SRQ, e ib.EventType) bool
}
