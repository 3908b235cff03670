// Package driver is the interface between a service and the low-level drivers of its devices.
//
// A driver whose adapters a service can own implements [Driver], [Hardware] and [Device]; rxe.Driver is the first. The program
// that makes a service passes the drivers to it. Package service imports none of them.
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

// Driver makes the adapters of one service. They may share state, such as a path from one to another that skips the network.
// All methods are safe for concurrent use.
type Driver interface {
	// Type returns the link type, as in `rdma link add NAME type TYPE`. The name of each device begins with it:
	// libibverbs finds its provider by that name.
	Type() string
	// Open makes an adapter that works. It has no device before Probe.
	Open(Config) Hardware
	// MinQueueMemory returns the least Config.QueueMemory, in bytes, with which a device can be made.
	MinQueueMemory() uint64
	// QueueLimits returns the longest work queue and completion queue, in entries, of a device with that
	// Config.QueueMemory. It returns ENOMEM below MinQueueMemory.
	QueueLimits(memory uint64) (work, completions int, err error)
}

// Config describes an adapter.
type Config struct {
	Name   string // of its devices
	Netdev netdev.Interface
	Addrs  []netip.Addr // at least one; link-local ones with their zone

	// Network carries packets through Faults, and shows them to Taps.
	Network link.Network
	// Faults are the rules for packets. The driver executes the kinds of rules that Network does not. It sends every packet
	// through Network while there are rules.
	Faults *link.Faults
	// Taps record packets that skip Network.
	Taps *link.Taps

	Wire        bool       // every packet goes through Network
	NoProbe     bool       // no retransmission before the local ACK timeout
	QueueMemory uint64     // limit of the shared memory of a program's queues, in bytes; 0: none
	Rand        *rand.Rand // the driver serialises its use

	// Probed is called with each device of the adapter, before its registration. It must not call the Hardware.
	Probed func(Device)
	// QPFailed, if not nil, is called when a queue pair enters ERR, with its number and the reason in words. The driver
	// holds locks: QPFailed must not sleep, nor call the device.
	QPFailed func(num uint32, why string)
	// Logf logs one line.
	Logf func(format string, args ...any)
}

// Hardware is an adapter. It survives its devices, and can be made to fail. Its own methods may not sleep; those of
// slot.Hardware may.
type Hardware interface {
	slot.Hardware
	slot.Stopper
	// Device returns the present device, or nil.
	Device() Device
	State() State
	// BeforeWorkRequest calls f when the device is about to execute the n-th send work request from now. f must not sleep. A
	// second call replaces the first; n 0 cancels it. It reports false if there is no device.
	BeforeWorkRequest(n uint64, f func()) bool
	// Hang stops the adapter until its next reset or probe.
	Hang()
	// Silence suppresses all further completions of the present device, flush errors included, in user contexts.
	Silence()
	// Disconnect makes the adapter unreachable until Return.
	Disconnect()
	Return()
}

// State is the state of a Hardware.
type State uint8

const (
	Running     State = iota
	Hung              // it does not work, but can be reset
	Unreachable       // it does not answer
	Dead              // it will not answer again
)

func (s State) String() string {
	if n := [...]string{"running", "hung", "unreachable", "dead"}; int(s) < len(n) {
		return n[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Device is one life of a Hardware. Its methods do not fail after Close, but have no effect.
type Device interface {
	slot.Device
	// SetInterface updates the device, and the later ones of its adapter, to the state of its interface and to the addresses to
	// use. It reports whether anything changed. It may sleep.
	SetInterface(ifi netdev.Interface, addrs []netip.Addr) (changed bool)
	// Endpoints returns the device's endpoints in the network.
	Endpoints() []link.Endpoint
	// Stats returns the counters by name. It may sleep.
	Stats() map[string]uint64

	// QPStatuses lists the queue pairs. It does not wait for memory of a program. It may sleep.
	QPStatuses() []qpinfo.Status
	// QPTrace returns the latest protocol events of a queue pair, the oldest first. It returns ENOENT if there is no such
	// queue pair. It may sleep.
	QPTrace(num uint32) (qpinfo.Trace, error)
	// TraceQP begins or ends the trace of a queue pair. It returns ENOENT if there is no such queue pair, ENOSPC if too
	// many are traced, EAGAIN if memory of its program does not answer. It may sleep.
	TraceQP(num uint32, on bool) error

	// RaiseQP raises an event of a queue pair without changing its state. It reports false if there is no such queue pair.
	// It may not sleep.
	RaiseQP(num uint32, e ib.EventType) bool
	// RaiseCQ and RaiseSRQ do the same with a queue, which must not be destroyed meanwhile.
	RaiseCQ(cq *ib.CQ, e ib.EventType) bool
	RaiseSRQ(srq *ib.SRQ, e ib.EventType) bool
}
