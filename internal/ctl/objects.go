package ctl

import (
	"time"

	"verbena/internal/fault"
	"verbena/internal/qpinfo"
)

// LinkSpec describes a device to make.
type LinkSpec struct {
	Name string `json:"name"`
	// Addrs are the device's addresses in the order of its GID table, all of one interface; empty: all addresses of
	// Netdev, and if that is empty too, of the host's first usable interface.
	Addrs  []string `json:"addrs,omitempty"`
	Netdev string   `json:"netdev,omitempty"`
	// Wire makes every packet take the UDP path, also between devices of one service.
	Wire bool `json:"wire,omitempty"`
	// NoProbe: nothing is sent again before the timeout that the program has asked for.
	NoProbe bool `json:"no_probe,omitempty"`
}

// LinkInfo describes a device.
type LinkInfo struct {
	Name   string    `json:"name"`
	Uverbs string    `json:"uverbs"` // its device file's name
	Netdev string    `json:"netdev"`
	State  string    `json:"state"`
	MTU    int       `json:"mtu"` // active path MTU, bytes
	GIDs   []GIDInfo `json:"gids"`
	Wire   bool      `json:"wire"` // no shortcut between devices of this service
	// NoProbe is that of LinkSpec.
	NoProbe bool `json:"no_probe,omitempty"`
	// Link is what LinkSet has brought the link to: up, down, or flap while that has it down.
	Link   LinkState    `json:"link"`
	MaxMTU int          `json:"max_mtu,omitempty"` // LinkSet.MTU; 0: none
	Shape  *fault.Shape `json:"shape,omitempty"`
	Armed  string       `json:"armed,omitempty"` // the moment that a change of the link waits for
}

// GIDInfo is a GID and the address that it stands for.
type GIDInfo struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Addr  string `json:"addr"`
}

// DevReset asks for a reset of a device.
type DevReset struct {
	Name string `json:"name"`
	// Unreachable: the hardware does not answer, until the platform has reset it after Outage; 0: until OpDevPlug.
	Unreachable bool          `json:"unreachable,omitempty"`
	Outage      time.Duration `json:"outage,omitempty"`
	// NoFlush: programs get no completions for what is outstanding, as on the kernel's Soft-RoCE.
	NoFlush bool `json:"no_flush,omitempty"`
	// AtWR, or At, is the moment of the reset; both zero: now.
	AtWR uint64    `json:"at_wr,omitempty"` // before the device executes the AtWR-th send work request from now
	At   DevMoment `json:"at,omitempty"`
	// Cancel: no reset; moments of earlier requests that have not come are forgotten.
	Cancel bool `json:"cancel,omitempty"`
}

// DevMoment is a moment that a reset is to hit.
type DevMoment string

const (
	// DevRegistration: the device is reset now, and once more while the recovered one is being registered.
	DevRegistration DevMoment = "registration"
	// DevCompletion: when a completion handler of the device next begins.
	DevCompletion DevMoment = "completion"
)

// DevInfo describes a device, its hardware and its resets.
type DevInfo struct {
	Name     string `json:"name"`
	State    string `json:"state"`    // of the slot: running, recovering, unplugged
	Device   string `json:"device"`   // as consumers see it: active, in error, gone
	Hardware string `json:"hardware"` // running, hung, unreachable
	NodeGUID string `json:"node_guid,omitempty"`
	Driver   uint32 `json:"driver"`   // enum rdma_driver_id
	ABI      int    `json:"abi"`      // the version of the driver's part of the user ABI
	Contexts int    `json:"contexts"` // user contexts that can work
	Zombies  int    `json:"zombies"`  // user contexts of devices that were there before
	Resets   int    `json:"resets"`
	Plugs    int    `json:"plugs"`
	// Recovery is the duration of the last reset, from the fatal event until the device could be used again.
	Recovery time.Duration `json:"recovery_ns"`
	Armed    string        `json:"armed,omitempty"` // the moments that a reset waits for
	Error    string        `json:"error,omitempty"` // why the last recovery failed
}

// ContextInfo describes an open device file.
type ContextInfo struct {
	Device  string `json:"device"`
	File    string `json:"file"`
	PID     int    `json:"pid"`
	Process string `json:"process"`
	UID     int    `json:"uid"`
	// Container tells users of the same id apart, in containers.
	Container uint64 `json:"container,omitempty"`
	Zombie    bool   `json:"zombie,omitempty"` // its device is gone
	// PinnedBytes are charged to the process, for all its contexts together.
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
	Handle  uint32 `json:"handle"` // in its context
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
	Handle uint32 `json:"handle"` // in its context
	Num    uint32 `json:"num"`
	Type   string `json:"type"` // BASIC or XRC
	MaxWR  uint32 `json:"max_wr"`
}

// UserInfo is what one user holds, or all users together.
type UserInfo struct {
	UID int `json:"uid"` // -1: all users
	// Container tells users of the same id apart, in containers.
	Container uint64      `json:"container,omitempty"`
	Holds     []UsageInfo `json:"holds"`
}

// UsageInfo is how much of one kind is held.
type UsageInfo struct {
	Kind  string `json:"kind"`
	Held  uint64 `json:"held"`
	Limit uint64 `json:"limit"` // 0: none
}

// StatInfo are the counters of a device, by the names that programs see in its hw_counters, and event_* of how many
// asynchronous events of a type there were.
type StatInfo struct {
	Dev      string            `json:"dev"`
	Counters map[string]uint64 `json:"counters"`
}

// FaultRule is a rule for the packets of a device, or for a verb.
type FaultRule struct {
	Dev string `json:"dev"` // of a rule for a verb it may be empty: any device
	fault.Rule
	Verb *VerbFault `json:"verb_fault,omitempty"` // then there is nothing in Rule
}

// FaultRuleState is a rule in force and its counters. A rule for a verb counts calls, as Seen and Hit.
type FaultRuleState struct {
	Dev string `json:"dev"`
	ID  int    `json:"id"`
	fault.Rule
	Verb *VerbFault `json:"verb_fault,omitempty"`
	fault.Counts
}

// QPStatusInfo is the protocol state of a queue pair.
type QPStatusInfo struct {
	Device string `json:"device"`
	qpinfo.Status
}

// QPTrace asks for the trace of a queue pair, which begins with the first such request.
type QPTrace struct {
	Dev string `json:",omitempty"` // may be left out where there is one device
	Num uint32
	End bool `json:",omitempty"` // end the trace
}

// QPTraceInfo is the trace of a queue pair.
type QPTraceInfo struct {
	Device string `json:"device"`
	Num    uint32 `json:"num"`
	Began  bool   `json:"began"` // by this request: there is nothing to see yet
	qpinfo.Trace
}

// Profile asks for a profile of the service's process, as go tool pprof, or go tool trace, reads it.
type Profile struct {
	Kind     string
	Duration time.Duration `json:",omitempty"` // of a ProfileCPU or ProfileTrace; 0 for the others
}

// Kinds of profiles.
const (
	ProfileHeap       = "heap"      // memory in use, after a garbage collection
	ProfileGoroutines = "goroutine" // the stacks of all goroutines
	ProfileCPU        = "profile"   // where the processors' time goes
	ProfileTrace      = "trace"     // an execution trace
)

// MaxProfileTime is the limit of Profile.Duration.
const MaxProfileTime = time.Minute
