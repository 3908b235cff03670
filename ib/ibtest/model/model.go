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
	MaxMsgSize  uint64
	MTU         int // MTU of the port, in bytes
	GID         ib.GID
	Flush       bool
	AtomicWrite bool
	Atomics     bool
	// Maximum number of outstanding READs and atomics of a queue pair, as requester and as responder.
	InitReads, Reads int
	// Lossy reports whether the network may lose the negative acknowledgement of a request, which is sent once.
	Lossy bool
	// Blind reports whether the test can only tell from results when a device is idle.
	Blind bool
}

// Model is the state of a device.
type Model struct {
	Limits
	Mem     *Memory
	PDs     map[ID]*PD
	Regions map[ID]*Region
	Windows map[ID]*Window
	CQs     map[ID]*CQ
	SRQs    map[ID]*SRQ
	AHs     map[ID]*AH
	QPs     map[ID]*QP
	XRCDs   map[ID]*XRCD
	Groups  map[ib.GID][]ID // multicast groups and their members
	Dead    bool            // the device is in error

	// Open is the reason why the result of a call is undefined, or "".
	Open     string
	deferred bool // see SetDeferredExecution
	calls    int  // calls so far
	epochs   int
	listed   int // number of requests that the current call posts
	served   int // number of queue pairs with requests that the current call has executed
	servedBy map[ID]bool
	done     map[ID]int // requests that the current call has completed, by queue pair
	hazards  callHazards
	posted   map[ID]map[completionSource]bool // sources of the completions of the current call, by completion queue
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
func New(l Limits) *Model {
	return &Model{
		Limits: l, Mem: NewMemory(), PDs: map[ID]*PD{}, Regions: map[ID]*Region{}, Windows: map[ID]*Window{},
		CQs: map[ID]*CQ{}, SRQs: map[ID]*SRQ{}, AHs: map[ID]*AH{}, QPs: map[ID]*QP{},
		XRCDs: map[ID]*XRCD{}, Groups: map[ib.GID][]ID{},
	}
}

// Clone returns a copy; see [Memory.Clone].
func (m *Model) Clone() *Model {
	c := *m
	c.Mem = m.Mem.Clone()
	c.PDs, c.XRCDs, c.Groups = maps.Clone(m.PDs), maps.Clone(m.XRCDs), maps.Clone(m.Groups)
	c.Regions = cloneObjects(m.Regions)
	c.Windows = cloneObjects(m.Windows)
	c.AHs = cloneObjects(m.AHs)
	c.CQs = cloneObjects(m.CQs)
	for _, q := range c.CQs {
		q.Wants, q.Events = slices.Clone(q.Wants), slices.Clone(q.Events)
	}
	c.SRQs = cloneObjects(m.SRQs)
	for _, s := range c.SRQs {
		s.queue = s.queue.clone()
		s.Events = slices.Clone(s.Events)
	}
	c.QPs = cloneObjects(m.QPs)
	for _, q := range c.QPs {
		q.own = q.own.clone()
		q.Sends, q.unproved = slices.Clone(q.Sends), slices.Clone(q.unproved)
		q.Events = slices.Clone(q.Events)
	}
	return &c
}

func cloneObjects[T any](objects map[ID]*T) map[ID]*T {
	c := make(map[ID]*T, len(objects))
	for id, o := range objects {
		x := *o
		c[id] = &x
	}
	return c
}

// markResultUndefined marks the result of the call as undefined.
func (m *Model) markResultUndefined(reason string) {
	if m.Open == "" {
		m.Open = reason
	}
}

// BeginCall begins a call.
func (m *Model) BeginCall() {
	m.listed = 0
	m.calls++
	m.Open, m.served, m.servedBy, m.hazards, m.done = "", 0, nil, callHazards{}, map[ID]int{}
	m.posted = map[ID]map[completionSource]bool{}
	if !m.deferred {
		m.Mem.ClearAlternatives()
	}
	for _, s := range m.SRQs {
		s.taker = 0
	}
}

// checkCreationAllowed returns the error of a call that creates or changes an object.
func (m *Model) checkCreationAllowed() syscall.Errno {
	if m.Dead {
		return syscall.EIO
	}
	return 0
}

// AllocPD creates a protection domain.
func (m *Model) AllocPD(id ID) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	m.PDs[id] = &PD{id}
	return 0
}

// DeallocPD frees an unused domain.
func (m *Model) DeallocPD(id ID) syscall.Errno {
	for _, r := range m.Regions {
		if r.PD == id && !r.Dead {
			return syscall.EBUSY
		}
	}
	for _, w := range m.Windows {
		if w.PD == id && !w.Dead {
			return syscall.EBUSY
		}
	}
	for _, a := range m.AHs {
		if a.PD == id && !a.Dead {
			return syscall.EBUSY
		}
	}
	for _, s := range m.SRQs {
		if s.PD == id {
			return syscall.EBUSY
		}
	}
	for _, q := range m.QPs {
		if q.PD == id {
			return syscall.EBUSY
		}
	}
	delete(m.PDs, id)
	return 0
}

// AllocXRCD creates an XRC domain.
func (m *Model) AllocXRCD(id ID) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	m.XRCDs[id] = &XRCD{id}
	return 0
}

// DeallocXRCD frees an unused domain.
func (m *Model) DeallocXRCD(id ID) syscall.Errno {
	for _, s := range m.SRQs {
		if s.XRCD == id {
			return syscall.EBUSY
		}
	}
	for _, q := range m.QPs {
		if q.XRCD == id {
			return syscall.EBUSY
		}
	}
	delete(m.XRCDs, id)
	return 0
}

// RegMR creates region r, whose keys the driver has chosen.
func (m *Model) RegMR(r Region) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	if e := checkAccessFlags(r.Access); e != 0 {
		return e
	}
	if r.Access&ib.AccessZeroBased != 0 {
		r.IOVA = 0
	}
	r.Valid = true
	m.Regions[r.ID] = &r
	return 0
}

// RegionChange is a change of a region. Fields that are nil or 0 do not change it.
type RegionChange struct {
	Map    *Mapping
	PD     ID
	Access *ib.AccessFlags
}

// ReregMR changes a region. lkey and rkey are the keys after the change.
func (m *Model) ReregMR(id ID, c RegionChange, lkey, rkey uint32) syscall.Errno {
	r := m.Regions[id]
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	m.recordMemoryKeyChange(r.LKey, r.RKey)
	access := r.Access
	if c.Access != nil {
		access = *c.Access
	}
	switch {
	case r.Fast:
		return syscall.EINVAL
	case checkAccessFlags(access) != 0:
		return syscall.EINVAL
	case c.Map == nil && (access^r.Access)&ib.AccessZeroBased != 0:
		return syscall.EINVAL
	case m.countBoundWindows(id) > 0:
		return syscall.EBUSY
	}
	r.Access, r.LKey, r.RKey = access, lkey, rkey
	if c.Map != nil {
		r.Spans, r.IOVA, r.Len = c.Map.Spans, c.Map.IOVA, c.Map.Len
		if access&ib.AccessZeroBased != 0 {
			r.IOVA = 0
		}
	}
	if c.PD != 0 {
		r.PD = c.PD
	}
	return 0
}

// DeregMR deregisters a region.
func (m *Model) DeregMR(id ID) syscall.Errno {
	r := m.Regions[id]
	if m.countBoundWindows(id) > 0 {
		return syscall.EBUSY
	}
	m.recordMemoryKeyChange(r.LKey, r.RKey)
	r.Dead = true
	return 0
}

// AllocMR creates a region for fast registration.
func (m *Model) AllocMR(r Region) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	r.Fast = true
	m.Regions[r.ID] = &r
	return 0
}

// MapMR sets the memory of the next registration.
func (m *Model) MapMR(id ID, to Mapping) syscall.Errno {
	r := m.Regions[id]
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	pages := uint64(0)
	for _, s := range to.Spans {
		if s.Len > 0 {
			pages += (s.Addr+s.Len-1)/PageSize - s.Addr/PageSize + 1
		}
	}
	switch {
	case !r.Fast, pages > uint64(r.MaxPages):
		return syscall.EINVAL
	case r.Doubt:
		m.markResultUndefined(flushedInDoubtReason)
	case r.Valid:
		return syscall.EBUSY
	}
	r.Map = &to
	return 0
}

// UpdateMRKey sets the variable part of a region's keys.
func (m *Model) UpdateMRKey(id ID, variant uint8) {
	r := m.Regions[id]
	r.LKey = r.LKey&^0xff | uint32(variant)
	r.RKey = r.RKey&^0xff | uint32(variant)
}

// AllocMW creates a window.
func (m *Model) AllocMW(w Window) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	m.Windows[w.ID] = &w
	return 0
}

// DeallocMW frees a window.
func (m *Model) DeallocMW(id ID) syscall.Errno {
	w := m.Windows[id]
	m.recordMemoryKeyChange(0, w.RKey)
	w.clearBind()
	w.Dead = true
	return 0
}

// CreateAH creates an address handle.
func (m *Model) CreateAH(a AH) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
		return e
	}
	m.AHs[a.ID] = &a
	return 0
}

// ModifyAH changes the address of a handle.
func (m *Model) ModifyAH(id ID, a ib.AHAttr) syscall.Errno {
	if e := m.checkCreationAllowed(); e != 0 {
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

// recordMemoryKeyChange records an imminent change of the memory of keys. A waiting request must not name them, because
// a driver may read them at any time.
func (m *Model) recordMemoryKeyChange(lkey, rkey uint32) {
	for _, q := range m.QPs {
		for i := range q.Sends {
			s := &q.Sends[i]
			if s.RKey == rkey || s.InvalidateRKey == rkey || usesLKey(s.SGL, lkey) ||
				s.Bind != nil && s.Bind.LKey == lkey {
				m.markResultUndefined("memory of a request that waits is changed")
			}
		}
	}
}

// StoreMemory writes memory as its owner.
func (m *Model) StoreMemory(addr uint64, b []byte) {
	for _, q := range m.QPs {
		if q.waiting {
			m.markResultUndefined("memory is changed while a request waits")
		}
	}
	m.Mem.Write(addr, b)
}

func usesLKey(sgl []ib.SGE, key uint32) bool {
	return slices.ContainsFunc(sgl, func(s ib.SGE) bool { return s.LKey == key })
}

// SetError moves the device to the error state: all queue pairs outside RESET move to ERR.
func (m *Model) SetError() {
	m.Dead = true
	for _, q := range m.sortedQPs() {
		if q.State != ib.QPReset {
			m.moveToError(q)
		}
	}
}

// ReplaceDevice replaces the device with one without objects. Memory does not change.
func (m *Model) ReplaceDevice(l Limits) {
	n := New(l)
	n.Mem, n.epochs = m.Mem, m.epochs
	*m = *n
	m.BeginCall()
}

// sortedQPs returns the queue pairs in creation order.
func (m *Model) sortedQPs() []*QP {
	return slices.SortedFunc(maps.Values(m.QPs), func(a, b *QP) int { return int(a.ID - b.ID) })
}
