package model

import (
	"sort"
	"syscall"

	"verbena/ib"
)

// Span is a contiguous range of memory.
type Span struct{ Addr, Len uint64 }

// Region is a memory region.
//
//	RegMR:   valid --Dereg--> dead
//	AllocMR: free --REG_MR--> valid --LOCAL_INV, SEND with invalidate--> free
type Region struct {
	ID, PD     ID
	Dead       bool
	Valid      bool
	LKey, RKey uint32
	Access     ib.AccessFlags
	IOVA, Len  uint64
	Spans      []Span // in the order of their addresses in the region

	Fast     bool // created by AllocMR
	MaxPages int
	Map      *Mapping // mapping of the next REG_MR; nil: none
	Doubt    bool     // a REG_MR was flushed that a driver may have executed
}

// Mapping is the memory of the last MR.Map.
type Mapping struct {
	Spans     []Span
	IOVA, Len uint64
}

// Window is a memory window.
type Window struct {
	ID, PD  ID
	Dead    bool
	Kind    ib.MWType
	RKey    uint32
	Bound   bool
	Region  ID
	QP      ID // for type 2: the queue pair that bound it
	Access  ib.AccessFlags
	First   uint64 // the range, in the window's own addresses
	Len     uint64
	Shift   uint64 // difference to the region's addresses
	Refused bool   // the last bind was rejected
	Doubt   bool   // a bind was flushed that a driver may have executed
}

// MemoryKeys holds the regions and windows, and checks accesses by their keys.
type MemoryKeys struct {
	device  *DeviceState
	call    *CallRecord
	queues  *WorkQueues
	Regions map[ID]*Region
	Windows map[ID]*Window
}

func rangeContains(first, n, addr, k uint64) bool {
	return addr >= first && addr-first <= n && k <= n-(addr-first)
}

// spansOfRange returns the memory of a range of the region.
func (r *Region) spansOfRange(addr, n uint64) (list []Span) {
	off := addr - r.IOVA
	for _, s := range r.Spans {
		if n == 0 {
			break
		}
		if off >= s.Len {
			off -= s.Len
			continue
		}
		k := min(s.Len-off, n)
		list = append(list, Span{s.Addr + off, k})
		off, n = 0, n-k
	}
	return list
}

// checkedSGL is a checked scatter or gather list.
type checkedSGL struct {
	spans []Span
	n     uint64 // bytes
	reach uint64 // bytes before the first one that is not allowed
	ok    bool
}

// checkSGL checks a scatter or gather list of a domain.
func (k *MemoryKeys) checkSGL(sgl []ib.SGE, pd ID, need ib.AccessFlags) checkedSGL {
	l := checkedSGL{ok: true}
	for _, s := range sgl {
		r := k.regionByLKey(s.LKey)
		if k.call.hazards.ended[s.LKey] {
			k.call.markResultUndefined("a request uses memory whose key an earlier one of the same call ends")
		}
		if s.Length == 0 {
			if r == nil || r.PD != pd || r.Access&need != need || !rangeContains(r.IOVA, r.Len, s.Addr, 0) {
				k.call.markResultUndefined("an element of no bytes with a wrong key")
			}
			continue
		}
		l.n += uint64(s.Length)
		if !l.ok {
			continue
		}
		allowed := uint64(0)
		if r != nil && r.PD == pd && r.Access&need == need && rangeContains(r.IOVA, r.Len, s.Addr, 0) {
			allowed = min(uint64(s.Length), r.Len-(s.Addr-r.IOVA))
			l.spans = append(l.spans, r.spansOfRange(s.Addr, allowed)...)
		}
		l.reach += allowed
		l.ok = allowed == uint64(s.Length)
	}
	return l
}

// flushedInDoubtReason is the reason why some results are undefined: a driver may execute a local request before the
// requests in front of it are complete, so a flushed one may have been executed.
const flushedInDoubtReason = "a region or window whose flushed request may have been executed"

// recordDoubtfulKeys notes the regions and windows of the requests that a queue pair flushes.
func (k *MemoryKeys) recordDoubtfulKeys(q *QP) {
	for i := range q.Sends {
		s := &q.Sends[i]
		switch {
		case s.Op == ib.WRRegMR && k.Regions[s.Reg.MR] != nil:
			k.Regions[s.Reg.MR].Doubt = true
		case s.Op == ib.WRBindMW && k.Windows[s.Bind.MW] != nil:
			k.Windows[s.Bind.MW].Doubt = true
		}
	}
}

// checkDoubtfulKey marks the result of a call as undefined if it depends on such a key.
func (k *MemoryKeys) checkDoubtfulKey(key uint32) {
	for _, r := range k.Regions {
		if r.Doubt && !r.Dead && (r.RKey^key)>>8 == 0 {
			k.call.markResultUndefined(flushedInDoubtReason)
		}
	}
	for _, w := range k.Windows {
		if w.Doubt && !w.Dead && (w.RKey^key)>>8 == 0 {
			k.call.markResultUndefined(flushedInDoubtReason)
		}
	}
}

func (k *MemoryKeys) regionByLKey(key uint32) *Region {
	k.checkDoubtfulKey(key)
	for _, r := range k.Regions {
		if r.Valid && !r.Dead && r.LKey == key {
			return r
		}
	}
	return nil
}

func (k *MemoryKeys) objectByRKey(key uint32) (*Region, *Window) {
	k.checkDoubtfulKey(key)
	for _, r := range k.Regions {
		if r.Valid && !r.Dead && r.RKey == key {
			return r, nil
		}
	}
	for _, w := range k.Windows {
		if w.Bound && !w.Dead && w.RKey == key {
			if w.Refused {
				k.call.markResultUndefined("the key of a window whose last bind was rejected")
			}
			return k.Regions[w.Region], w
		}
	}
	return nil, nil
}

// checkRemoteAccess checks an access by the peer of q. An access to zero bytes needs no key (C9-88).
func (k *MemoryKeys) checkRemoteAccess(q *QP, rkey uint32, addr, n uint64, need ib.AccessFlags) (spans []Span,
	ok bool) {
	if n == 0 {
		return nil, true
	}
	k.call.recordKeyUse(rkey)
	r, w := k.objectByRKey(rkey)
	switch {
	case r == nil:
		return nil, false
	case w != nil:
		if w.PD != k.queues.protectionDomainOfKeys(q) || w.QP != 0 && w.QP != q.ID || w.Access&need != need ||
			!rangeContains(w.First, w.Len,
				addr, n) {
			return nil, false
		}
		return r.spansOfRange(addr+w.Shift, n), true
	case r.PD != k.queues.protectionDomainOfKeys(q) || r.Access&need != need || !rangeContains(r.IOVA, r.Len, addr, n):
		return nil, false
	}
	return r.spansOfRange(addr, n), true
}

// accessiblePrefix returns the longest prefix of n bytes of remote memory that checkRemoteAccess allows.
func (k *MemoryKeys) accessiblePrefix(q *QP, rkey uint32, addr, n uint64, need ib.AccessFlags) []Span {
	allowed := sort.Search(int(n), func(i int) bool {
		_, ok := k.checkRemoteAccess(q, rkey, addr, uint64(i)+1, need)
		return !ok
	})
	spans, _ := k.checkRemoteAccess(q, rkey, addr, uint64(allowed), need)
	return spans
}

// spansLen returns the length of a list of spans.
func spansLen(spans []Span) (n uint64) {
	for _, s := range spans {
		n += s.Len
	}
	return n
}

// countBoundWindows returns the number of windows on a region.
func (k *MemoryKeys) countBoundWindows(id ID) (n int) {
	for _, w := range k.Windows {
		if w.Doubt && !w.Dead {
			k.call.markResultUndefined(flushedInDoubtReason)
		}
		if w.Bound && !w.Dead && w.Region == id {
			if w.Refused {
				k.call.markResultUndefined("the region of a window whose last bind was rejected")
			}
			n++
		}
	}
	return n
}

// invalidateKey ends a registration or a bind, for a request of q or of its peer (10.6.3, o10-37.2.26).
func (k *MemoryKeys) invalidateKey(q *QP, key uint32) bool {
	r, w := k.objectByRKey(key)
	switch {
	case w != nil && w.Kind == ib.MWType2 && w.QP == q.ID:
		k.queues.recordMemoryKeyChange(0, w.RKey)
		w.clearBind()
	case r != nil && w == nil && r.Fast && r.PD == q.PD && k.countBoundWindows(r.ID) == 0:
		k.queues.recordMemoryKeyChange(r.LKey, r.RKey)
		r.Valid = false
	default:
		return false
	}
	return true
}

func (w *Window) clearBind() { w.Bound, w.Region, w.QP, w.Refused = false, 0, 0, false }

const remoteWriteRights = ib.AccessRemoteWrite | ib.AccessRemoteAtomic

// executeBind executes BIND_MW (10.6.7.2; C10-70 to C10-75). A device may unbind the window of a bind that it rejects.
func (k *MemoryKeys) executeBind(q *QP, b *BindArgs) bool {
	ok := k.applyBind(q, b)
	if w := k.Windows[b.MW]; w != nil {
		w.Refused = !ok && w.Bound
	}
	return ok
}

func (k *MemoryKeys) applyBind(q *QP, b *BindArgs) bool {
	w := k.Windows[b.MW]
	if w == nil || w.Dead || w.PD != q.PD {
		return false
	}
	if w.Doubt {
		k.call.markResultUndefined(flushedInDoubtReason)
	}
	k.call.recordKeyChange(w.RKey)
	key := w.RKey&^0xff | b.RKey&0xff
	k.call.recordKeyChange(key)
	if k.call.hazards.ended[b.LKey] {
		k.call.markResultUndefined("a bind to a region that an earlier request of the same call invalidates at the peer")
	}
	type2 := w.Kind == ib.MWType2
	switch {
	case type2 && w.Bound:
		return false // it must be invalidated first
	case type2 && (key == w.RKey || b.Len == 0):
		k.call.markResultUndefined("a type 2 bind with the present key, or of no bytes")
	case !type2 && key == w.RKey:
		return false
	case b.Len == 0 && b.Access&ib.AccessZeroBased != 0:
		k.call.markResultUndefined("a window is unbound with an option")
	case b.Access&ib.AccessLocalWrite != 0:
		k.call.markResultUndefined("a window with a local right")
	}
	if b.Len == 0 && !type2 {
		k.queues.recordMemoryKeyChange(0, w.RKey)
		w.clearBind()
		w.RKey = key
		return true
	}
	r := k.regionByLKey(b.LKey)
	switch {
	case r == nil, r.PD != q.PD, r.Access&ib.AccessMWBind == 0,
		b.Access&remoteWriteRights != 0 && r.Access&ib.AccessLocalWrite == 0,
		b.Access&^(remoteWriteRights|ib.AccessRemoteRead|ib.AccessZeroBased|ib.AccessLocalWrite) != 0,
		!type2 && b.Access&ib.AccessZeroBased != 0,
		!rangeContains(r.IOVA, r.Len, b.Addr, b.Len):
		return false
	}
	k.queues.recordMemoryKeyChange(0, w.RKey)
	w.clearBind()
	w.Bound, w.RKey, w.Region, w.Access = true, key, r.ID, b.Access
	w.First, w.Len, w.Shift = b.Addr, b.Len, 0
	if b.Access&ib.AccessZeroBased != 0 {
		w.First, w.Shift = 0, b.Addr
	}
	if type2 {
		w.QP = q.ID
	}
	return true
}

// executeRegMR executes REG_MR (10.6.3).
func (k *MemoryKeys) executeRegMR(q *QP, b *RegMRArgs) bool {
	r := k.Regions[b.MR]
	k.call.recordKeyChange(b.Key)
	if r != nil && r.Doubt {
		k.call.markResultUndefined(flushedInDoubtReason)
	}
	switch {
	case r == nil, r.Dead, !r.Fast, r.Valid, r.Map == nil, r.PD != q.PD, b.Key>>8 != r.RKey>>8,
		b.Access&remoteWriteRights != 0 && b.Access&ib.AccessLocalWrite == 0:
		return false
	case b.Access&ib.AccessZeroBased != 0:
		k.call.markResultUndefined("a fast registration that is zero-based")
	}
	r.LKey, r.RKey = r.LKey&^0xff|b.Key&0xff, b.Key
	r.Valid, r.Access, r.Spans, r.IOVA, r.Len = true, b.Access, r.Map.Spans, r.Map.IOVA, r.Map.Len
	return true
}

// checkAccessFlags checks the rights of a registration.
func checkAccessFlags(a ib.AccessFlags) syscall.Errno {
	if a&remoteWriteRights != 0 && a&ib.AccessLocalWrite == 0 {
		return syscall.EINVAL
	}
	return 0
}

// recordInvalidate records that a message invalidates a key at the responder, which the requester of the same call may
// use as well.
func (k *MemoryKeys) recordInvalidate(rkey uint32) {
	for _, r := range k.Regions {
		if r.RKey == rkey && r.Fast {
			if k.call.hazards.ended == nil {
				k.call.hazards.ended = map[uint32]bool{}
			}
			k.call.hazards.ended[r.LKey] = true
		}
	}
}

// recordLocalUse records that a message uses the regions of a receive.
func (k *MemoryKeys) recordLocalUse(sgl []ib.SGE) {
	for _, r := range k.Regions {
		if r.Fast && usesLKey(sgl, r.LKey) {
			k.call.recordKeyUse(r.RKey)
		}
	}
}

// markSelfInvalidation records an invalidation of the memory of the message itself.
func (k *MemoryKeys) markSelfInvalidation(key uint32, r *recvQueue) {
	for _, g := range k.Regions {
		if g.RKey == key && usesLKey(r.recvs[0].SGL, g.LKey) {
			k.call.markResultUndefined("a message invalidates the memory of its receive")
		}
	}
}

// RegMR creates region r, whose keys the driver has chosen.
func (k *MemoryKeys) RegMR(r Region) syscall.Errno {
	if e := k.device.checkCreationAllowed(); e != 0 {
		return e
	}
	if e := checkAccessFlags(r.Access); e != 0 {
		return e
	}
	if r.Access&ib.AccessZeroBased != 0 {
		r.IOVA = 0
	}
	r.Valid = true
	k.Regions[r.ID] = &r
	return 0
}

// RegionChange is a change of a region. Fields that are nil or 0 do not change it.
type RegionChange struct {
	Map    *Mapping
	PD     ID
	Access *ib.AccessFlags
}

// ReregMR changes a region. lkey and rkey are the keys after the change.
func (k *MemoryKeys) ReregMR(id ID, c RegionChange, lkey, rkey uint32) syscall.Errno {
	r := k.Regions[id]
	if e := k.device.checkCreationAllowed(); e != 0 {
		return e
	}
	k.queues.recordMemoryKeyChange(r.LKey, r.RKey)
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
	case k.countBoundWindows(id) > 0:
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
func (k *MemoryKeys) DeregMR(id ID) syscall.Errno {
	r := k.Regions[id]
	if k.countBoundWindows(id) > 0 {
		return syscall.EBUSY
	}
	k.queues.recordMemoryKeyChange(r.LKey, r.RKey)
	r.Dead = true
	return 0
}

// AllocMR creates a region for fast registration.
func (k *MemoryKeys) AllocMR(r Region) syscall.Errno {
	if e := k.device.checkCreationAllowed(); e != 0 {
		return e
	}
	r.Fast = true
	k.Regions[r.ID] = &r
	return 0
}

// MapMR sets the memory of the next registration.
func (k *MemoryKeys) MapMR(id ID, to Mapping) syscall.Errno {
	r := k.Regions[id]
	if e := k.device.checkCreationAllowed(); e != 0 {
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
		k.call.markResultUndefined(flushedInDoubtReason)
	case r.Valid:
		return syscall.EBUSY
	}
	r.Map = &to
	return 0
}

// UpdateMRKey sets the variable part of a region's keys.
func (k *MemoryKeys) UpdateMRKey(id ID, variant uint8) {
	r := k.Regions[id]
	r.LKey = r.LKey&^0xff | uint32(variant)
	r.RKey = r.RKey&^0xff | uint32(variant)
}

// AllocMW creates a window.
func (k *MemoryKeys) AllocMW(w Window) syscall.Errno {
	if e := k.device.checkCreationAllowed(); e != 0 {
		return e
	}
	k.Windows[w.ID] = &w
	return 0
}

// DeallocMW frees a window.
func (k *MemoryKeys) DeallocMW(id ID) syscall.Errno {
	w := k.Windows[id]
	k.queues.recordMemoryKeyChange(0, w.RKey)
	w.clearBind()
	w.Dead = true
	return 0
}
