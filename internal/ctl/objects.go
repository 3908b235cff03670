package ctl

import (
	"time"

	"verbena/internal/fault"
	"verbena/internal/qpinfo"
)

// LinkSpec describes a device to make.
type LinkSpec struct {
	Name string `json:"name"`
	// Addrs are the device's addresses, in the order of its GID table. All belong to one interface. If Addrs is
	// empty, the device has all addresses of Netdev or, without Netdev, of the host's first usable interface.
	Addrs  []string `json:"addrs,omitempty"`
	Netdev string   `json:"netdev,omitempty"`
	// Wire makes every packet take the UDP path, also between devices of one service.
	Wire bool `json:"wire,omitempty"`
	// NoProbe disables retransmission before the timeout that the program has set.
	NoProbe bool `json:"no_probe,omitempty"`
	// Personality is the type of the driver; empty means the driver by whose type the name begins.
	Personality string `json:"personality,omitempty"`
	// PCI describes the PCI function as which programs see the device, in the form of pci.Parse; empty means none.
	PCI string `json:"pci,omitempty"`
}

// LinkInfo describes a device.
type LinkInfo struct {
	Name   string    `json:"name"`
	Uverbs string    `json:"uverbs"` // name of the device's uverbs file
	Netdev string    `json:"netdev"`
	State  string    `json:"state"`
	MTU    int       `json:"mtu"` // active path MTU in bytes
	GIDs   []GIDInfo `json:"gids"`
	Wire   bool      `json:"wire"` // no shortcut between devices of this service
	// NoProbe is LinkSpec.NoProbe.
	NoProbe bool `json:"no_probe,omitempty"`
	// PCI is the complete description of the device's PCI function; see LinkSpec.PCI.
	PCI string `json:"pci,omitempty"`
	// Link is the state set by LinkSet: up, down, or flap while a flap keeps the link down.
	Link   LinkState    `json:"link"`
	MaxMTU int          `json:"max_mtu,omitempty"` // value of LinkSet.MTU; 0 means no limit
	Shape  *fault.Shape `json:"shape,omitempty"`
	Armed  string       `json:"armed,omitempty"` // moment of the armed change of the link
}

// GIDInfo is a GID and its address.
type GIDInfo struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Addr  string `json:"addr"`
}

// DevReset requests a reset of a device.
type DevReset struct {
	Name string `json:"name"`
	// Unreachable makes the hardware stop responding until the platform has reset it after Outage. If Outage is 0,
	// the hardware stays unreachable until OpDevPlug.
	Unreachable bool          `json:"unreachable,omitempty"`
	Outage      time.Duration `json:"outage,omitempty"`
	// NoFlush suppresses the completions of outstanding requests for programs, like the kernel's Soft-RoCE.
	NoFlush bool `json:"no_flush,omitempty"`
	// AtWR or At is the moment of the reset. If both are zero, the device is reset now.
	AtWR uint64      `json:"at_wr,omitempty"` // just before the device executes the AtWR-th send work request from now
	At   ResetMoment `json:"at,omitempty"`
	// Cancel makes no reset, and cancels the pending moments of earlier requests.
	Cancel bool `json:"cancel,omitempty"`
}

// ResetMoment is a moment for a reset.
type ResetMoment string

const (
	// DevRegistration resets the device now, and again while the recovered device is being registered.
	DevRegistration ResetMoment = "registration"
	// DevCompletion resets the device when one of its completion handlers next begins.
	DevCompletion ResetMoment = "completion"
)

// DevInfo describes a device, its hardware and its resets.
type DevInfo struct {
	Name     string `json:"name"`
	State    string `json:"state"`    // state of the slot: running, recovering or unplugged
	Device   string `json:"device"`   // state for consumers: active, in error or gone
	Hardware string `json:"hardware"` // running, hung or unreachable
	NodeGUID string `json:"node_guid,omitempty"`
	Driver   uint32 `json:"driver"`   // enum rdma_driver_id
	ABI      int    `json:"abi"`      // version of the driver's part of the user ABI
	Contexts int    `json:"contexts"` // number of usable user contexts
	Zombies  int    `json:"zombies"`  // number of user contexts of earlier devices
	Resets   int    `json:"resets"`
	Plugs    int    `json:"plugs"`
	// Recovery is the duration of the last reset, from the fatal event until the device was usable again.
	Recovery time.Duration `json:"recovery_ns"`
	Armed    string        `json:"armed,omitempty"` // armed moments of resets
	Error    string        `json:"error,omitempty"` // error of the last recovery
}

// ContextInfo describes an open device file.
type ContextInfo struct {
	Device  string `json:"device"`
	File    string `json:"file"`
	PID     int    `json:"pid"`
	Process string `json:"process"`
	UID     int    `json:"uid"`
	// Container distinguishes users with the same ID in different containers.
	Container uint64 `json:"container,omitempty"`
	Zombie    bool   `json:"zombie,omitempty"` // the context's device was removed
	// PinnedBytes is the charge of the process, for all its contexts together.
	PinnedBytes uint64    `json:"pinned_bytes"`
	PDs         int       `json:"pds"`
	AHs         int       `json:"ahs"`
	MWs         int       `json:"mws"`
	MRs         []MRInfo  `json:"mrs"`
	CQs         []CQInfo  `json:"cqs"`
	QPs         []QPInfo  `json:"qps"`
	SRQs        []SRQInfo `json:"srqs"`
	XRCDs       int       `json:"xrcds"`
}

// MRInfo describes a memory region.
type MRInfo struct {
	LKey   uint32 `json:"lkey"`
	RKey   uint32 `json:"rkey"`
	IOVA   uint64 `json:"iova"`
	Length uint64 `json:"length"`
}

// CQInfo describes a completion queue.
type CQInfo struct {
	Handle  uint32 `json:"handle"` // number in its context
	Entries int    `json:"entries"`
	Channel bool   `json:"channel"`
}

// QPInfo describes a queue pair.
type QPInfo struct {
	Num   uint32 `json:"num"`
	Type  string `json:"type"`
	State string `json:"state"`
}

// SRQInfo describes a shared receive queue.
type SRQInfo struct {
	Handle uint32 `json:"handle"` // number in its context
	Num    uint32 `json:"num"`
	Type   string `json:"type"` // BASIC or XRC
	MaxWR  uint32 `json:"max_wr"`
}

// UserInfo lists the resources of one user, or of all users together.
type UserInfo struct {
	UID int `json:"uid"` // -1 for all users together
	// Container distinguishes users with the same ID in different containers.
	Container uint64      `json:"container,omitempty"`
	Holds     []UsageInfo `json:"holds"`
}

// UsageInfo is the held amount of one kind of resource.
type UsageInfo struct {
	Kind  string `json:"kind"`
	Held  uint64 `json:"held"`
	Limit uint64 `json:"limit"` // 0 means no limit
}

// StatInfo holds the counters of a device, under the names in its hw_counters. The counters event_* count the
// device's asynchronous events by type.
type StatInfo struct {
	Dev      string            `json:"dev"`
	Counters map[string]uint64 `json:"counters"`
}

// FaultRule is a rule for the packets of a device, or for a verb.
type FaultRule struct {
	Dev string `json:"dev"` // may be empty for a verb, which means any device
	fault.Rule
	Verb *fault.VerbRule `json:"verb_fault,omitempty"` // excludes values in Rule
}

// FaultRuleState is an active fault rule with its counters. For a verb, Seen and Hit count calls.
type FaultRuleState struct {
	Dev string `json:"dev"`
	ID  int    `json:"id"`
	fault.Rule
	Verb *fault.VerbRule `json:"verb_fault,omitempty"`
	fault.RuleCounts
}

// QPStatusInfo is the protocol state of a queue pair.
type QPStatusInfo struct {
	Device string `json:"device"`
	qpinfo.Status
}

// QPTrace requests the trace of a queue pair. The first such request starts the trace.
type QPTrace struct {
	Dev string `json:",omitempty"` // may be omitted if there is only one device
	Num uint32
	End bool `json:",omitempty"` // ends the trace
}

// QPTraceInfo is the trace of a queue pair.
type QPTraceInfo struct {
	Device string `json:"device"`
	Num    uint32 `json:"num"`
	Began  bool   `json:"began"` // the trace began with this request, so it is empty
	qpinfo.Trace
}

// Explain requests the causes of failures. The service answers with causes that the user may see.
type Explain struct {
	Last    int    `json:",omitempty"` // at most so many, the latest; 0 means no limit
	QP      uint32 `json:",omitempty"` // only of this queue pair; 0 means any
	Session string `json:",omitempty"` // only of this session; "" means any
}

// Profile requests a profile of the service's process, in the format of go tool pprof or go tool trace.
type Profile struct {
	Kind     string
	Duration time.Duration `json:",omitempty"` // only for ProfileCPU and ProfileTrace; otherwise 0
}

// The following constants are the kinds of profiles.
const (
	ProfileHeap       = "heap"      // memory in use, after a garbage collection
	ProfileGoroutines = "goroutine" // the stacks of all goroutines
	ProfileCPU        = "profile"   // use of processor time
	ProfileTrace      = "trace"     // an execution trace
)

// MaxProfileTime is the limit of Profile.Duration.
const MaxProfileTime = time.Minute
