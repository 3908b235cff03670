package model

import (
	"maps"
	"slices"
	"syscall"

	"verbena/ib"
)

// ID identifies an object by the number of the call that created it. 0 means no object.
type ID int

// Limits holds the attributes of a device that affect results.
type Limits struct {
	Purges      bool // the destruction of a queue pair removes its completions
	MaxMsgSize  uint64
	MTU         int // MTU of the port, in bytes
	GID         ib.GID
	Flush       bool
	AtomicWrite bool
	Atomics     bool
	// Maximum number of outstanding READs and atomics of a queue pair, as requester and as responder.
	InitReads, Reads int
	// RDMASGE is the number of elements that each driver of SRD accepts in an RDMA request.
	RDMASGE int
	// Lossy reports whether the network may lose the negative acknowledgement of a request, which is sent once.
	Lossy bool
	// Roomy reports whether completion queues may hold more completions than they report.
	Roomy bool
	// Blind reports whether the test can only tell from results when a device is idle.
	Blind bool
}

// DeviceState holds the limits and the state of the device.
type DeviceState struct {
	Limits
	Dead     bool // the device is in error
	deferred bool // see SetDeferredExecution
}

// Model is the state of a device and of its objects.
type Model struct {
	Device      *DeviceState
	Call        *CallRecord
	Mem         *Memory
	Keys        *MemoryKeys
	Queues      *WorkQueues
	Completions *CompletionQueues
	PDs         map[ID]*PD
	AHs         map[ID]*AH
	XRCDs       map[ID]*XRCD
	requests    *requestExecutor
	epochs      int // connections so far
}

// PD is a protection domain.
type PD struct{ ID ID }

// XRCD is an XRC domain.
type XRCD struct{ ID ID }

// AH is an address handle.
type AH struct {
	ID, PD ID
	Dead   bool
	Attr   ib.AHAttr
}

// New returns the model of a device without objects.
func New(l Limits) *Model { return newModel(l, NewMemory()) }

// newModel returns the model of a device without objects that accesses mem.
func newModel(l Limits, mem *Memory) *Model {
	m := &Model{
		Device: &DeviceState{Limits: l}, Call: &CallRecord{}, Mem: mem,
		Keys:        &MemoryKeys{Regions: map[ID]*Region{}, Windows: map[ID]*Window{}},
		Queues:      &WorkQueues{QPs: map[ID]*QP{}, SRQs: map[ID]*SRQ{}, Groups: map[ib.GID][]ID{}},
		Completions: &CompletionQueues{CQs: map[ID]*CQ{}},
		PDs:         map[ID]*PD{}, AHs: map[ID]*AH{}, XRCDs: map[ID]*XRCD{},
	}
	m.connectParts()
	return m
}

// connectParts sets the references between the parts of the model.
func (m *Model) connectParts() {
	m.Queues.device, m.Queues.call = m.Device, m.Call
	m.Keys.device, m.Keys.call, m.Keys.queues = m.Device, m.Call, m.Queues
	m.Completions.device, m.Completions.call, m.Completions.queues = m.Device, m.Call, m.Queues
	m.requests = &requestExecutor{
		device: m.Device, call: m.Call, mem: m.Mem, keys: m.Keys, queues: m.Queues, cqs: m.Completions,
	}
}

// Clone returns a copy; see [Memory.clone].
func (m *Model) Clone() *Model {
	device, call := *m.Device, *m.Call
	c := &Model{
		Device: &device, Call: &call, Mem: m.Mem.clone(), Queues: m.Queues.clone(), Completions: m.Completions.clone(),
		Keys: &MemoryKeys{Regions: cloneObjects(m.Keys.Regions), Windows: cloneObjects(m.Keys.Windows)},
		PDs:  maps.Clone(m.PDs), AHs: cloneObjects(m.AHs), XRCDs: maps.Clone(m.XRCDs), epochs: m.epochs,
	}
	c.connectParts()
	return c
}

func cloneObjects[T any](objects map[ID]*T) map[ID]*T {
	c := make(map[ID]*T, len(objects))
	for id, o := range objects {
		x := *o
		c[id] = &x
	}
	return c
}

// BeginCall begins a call.
func (m *Model) BeginCall() {
	m.Call.begin()
	if !m.Device.deferred {
		m.Mem.clearAlternatives()
	}
	for _, s := range m.Queues.SRQs {
		s.taker = 0
	}
}

// checkCreationAllowed returns the error of a call that creates or changes an object.
func (d *DeviceState) checkCreationAllowed() syscall.Errno {
	if d.Dead {
		return syscall.EIO
	}
	return 0
}

// AllocPD creates a protection domain.
func (m *Model) AllocPD(id ID) syscall.Errno {
	if e := m.Device.checkCreationAllowed(); e != 0 {
		return e
	}
	m.PDs[id] = &PD{id}
	return 0
}

// DeallocPD frees an unused domain.
func (m *Model) DeallocPD(id ID) syscall.Errno {
	for _, r := range m.Keys.Regions {
		if r.PD == id && !r.Dead {
			return syscall.EBUSY
		}
	}
	for _, w := range m.Keys.Windows {
		if w.PD == id && !w.Dead {
			return syscall.EBUSY
		}
	}
	for _, a := range m.AHs {
		if a.PD == id && !a.Dead {
			return syscall.EBUSY
		}
	}
	for _, s := range m.Queues.SRQs {
		if s.PD == id {
			return syscall.EBUSY
		}
	}
	for _, q := range m.Queues.QPs {
		if q.PD == id {
			return syscall.EBUSY
		}
	}
	delete(m.PDs, id)
	return 0
}

// AllocXRCD creates an XRC domain.
func (m *Model) AllocXRCD(id ID) syscall.Errno {
	if e := m.Device.checkCreationAllowed(); e != 0 {
		return e
	}
	m.XRCDs[id] = &XRCD{id}
	return 0
}

// DeallocXRCD frees an unused domain.
func (m *Model) DeallocXRCD(id ID) syscall.Errno {
	for _, s := range m.Queues.SRQs {
		if s.XRCD == id {
			return syscall.EBUSY
		}
	}
	for _, q := range m.Queues.QPs {
		if q.XRCD == id {
			return syscall.EBUSY
		}
	}
	delete(m.XRCDs, id)
	return 0
}

// CreateAH creates an address handle.
func (m *Model) CreateAH(a AH) syscall.Errno {
	if e := m.Device.checkCreationAllowed(); e != 0 {
		return e
	}
	m.AHs[a.ID] = &a
	return 0
}

// ModifyAH changes the address of a handle.
func (m *Model) ModifyAH(id ID, a ib.AHAttr) syscall.Errno {
	if e := m.Device.checkCreationAllowed(); e != 0 {
		return e
	}
	m.AHs[id].Attr = a
	return 0
}

// DestroyAH frees an address handle.
func (m *Model) DestroyAH(id ID) syscall.Errno {
	m.AHs[id].Dead = true
	return 0
}

// StoreMemory writes memory as its owner.
func (m *Model) StoreMemory(addr uint64, b []byte) {
	for _, q := range m.Queues.QPs {
		if q.waiting {
			m.Call.markResultUndefined("memory is changed while a request waits")
		}
	}
	m.Mem.Write(addr, b)
}

func usesLKey(sgl []ib.SGE, key uint32) bool {
	return slices.ContainsFunc(sgl, func(s ib.SGE) bool { return s.LKey == key })
}

// SetError moves the device to the error state: all queue pairs outside RESET move to ERR.
func (m *Model) SetError() {
	m.Device.Dead = true
	for _, q := range m.Queues.sortedQPs() {
		if q.State != ib.QPReset {
			m.requests.moveToError(q)
		}
	}
}

// ReplaceDevice replaces the device with one without objects. Memory does not change.
func (m *Model) ReplaceDevice(l Limits) {
	n := newModel(l, m.Mem)
	n.epochs = m.epochs
	*m = *n
	m.BeginCall()
}
