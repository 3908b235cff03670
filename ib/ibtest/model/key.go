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
func (m *Model) checkSGL(sgl []ib.SGE, pd ID, need ib.AccessFlags) checkedSGL {
	l := checkedSGL{ok: true}
	for _, s := range sgl {
		r := m.regionByLKey(s.LKey)
		if m.hazards.ended[s.LKey] {
			m.markResultUndefined("a request uses memory whose key an earlier one of the same call ends")
		}
		if s.Length == 0 {
			if r == nil || r.PD != pd || r.Access&need != need || !rangeContains(r.IOVA, r.Len, s.Addr, 0) {
				m.markResultUndefined("an element of no bytes with a wrong key")
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
func (m *Model) recordDoubtfulKeys(q *QP) {
	for i := range q.Sends {
		s := &q.Sends[i]
		switch {
		case s.Op == ib.WRRegMR && m.Regions[s.Reg.MR] != nil:
			m.Regions[s.Reg.MR].Doubt = true
		case s.Op == ib.WRBindMW && m.Windows[s.Bind.MW] != nil:
			m.Windows[s.Bind.MW].Doubt = true
		}
	}
}

// checkDoubtfulKey marks the result of a call as undefined if it depends on such a key.
func (m *Model) checkDoubtfulKey(key uint32) {
	for _, r := range m.Regions {
		if r.Doubt && !r.Dead && (r.RKey^key)>>8 == 0 {
			m.markResultUndefined(flushedInDoubtReason)
		}
	}
	for _, w := range m.Windows {
		if w.Doubt && !w.Dead && (w.RKey^key)>>8 == 0 {
			m.markResultUndefined(flushedInDoubtReason)
		}
	}
}

func (m *Model) regionByLKey(key uint32) *Region {
	m.checkDoubtfulKey(key)
	for _, r := range m.Regions {
		if r.Valid && !r.Dead && r.LKey == key {
			return r
		}
	}
	return nil
}

func (m *Model) objectByRKey(key uint32) (*Region, *Window) {
	m.checkDoubtfulKey(key)
	for _, r := range m.Regions {
		if r.Valid && !r.Dead && r.RKey == key {
			return r, nil
		}
	}
	for _, w := range m.Windows {
		if w.Bound && !w.Dead && w.RKey == key {
			if w.Refused {
				m.markResultUndefined("the key of a window whose last bind was rejected")
			}
			return m.Regions[w.Region], w
		}
	}
	return nil, nil
}

// checkRemoteAccess checks an access by the peer of q. An access to zero bytes needs no key (C9-88).
func (m *Model) checkRemoteAccess(q *QP, rkey uint32, addr, n uint64, need ib.AccessFlags) (spans []Span, ok bool) {
	if n == 0 {
		return nil, true
	}
	m.recordKeyUse(rkey)
	r, w := m.objectByRKey(rkey)
	switch {
	case r == nil:
		return nil, false
	case w != nil:
		if w.PD != m.protectionDomainOfKeys(q) || w.QP != 0 && w.QP != q.ID || w.Access&need != need ||
			!rangeContains(w.First, w.Len,
				addr, n) {
			return nil, false
		}
		return r.spansOfRange(addr+w.Shift, n), true
	case r.PD != m.protectionDomainOfKeys(q) || r.Access&need != need || !rangeContains(r.IOVA, r.Len, addr, n):
		return nil, false
	}
	return r.spansOfRange(addr, n), true
}

// protectionDomainOfKeys returns the protection domain of the keys in requests to a queue pair. For an XRC target it is
// that of the shared receive queue that the request specifies (A14).
func (m *Model) protectionDomainOfKeys(q *QP) ID {
	if s := m.SRQs[q.named]; s != nil {
		return s.PD
	}
	return q.PD
}

// accessiblePrefix returns the longest prefix of n bytes of remote memory that checkRemoteAccess allows.
func (m *Model) accessiblePrefix(q *QP, rkey uint32, addr, n uint64, need ib.AccessFlags) []Span {
	allowed := sort.Search(int(n), func(i int) bool {
		_, ok := m.checkRemoteAccess(q, rkey, addr, uint64(i)+1, need)
		return !ok
	})
	spans, _ := m.checkRemoteAccess(q, rkey, addr, uint64(allowed), need)
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
func (m *Model) countBoundWindows(id ID) (n int) {
	for _, w := range m.Windows {
		if w.Doubt && !w.Dead {
			m.markResultUndefined(flushedInDoubtReason)
		}
		if w.Bound && !w.Dead && w.Region == id {
			if w.Refused {
				m.markResultUndefined("the region of a window whose last bind was rejected")
			}
			n++
		}
	}
	return n
}

// invalidateKey ends a registration or a bind, for a request of q or of its peer (10.6.3, o10-37.2.26).
func (m *Model) invalidateKey(q *QP, key uint32) bool {
	r, w := m.objectByRKey(key)
	switch {
	case w != nil && w.Kind == ib.MWType2 && w.QP == q.ID:
		m.recordMemoryKeyChange(0, w.RKey)
		w.clearBind()
	case r != nil && w == nil && r.Fast && r.PD == q.PD && m.countBoundWindows(r.ID) == 0:
		m.recordMemoryKeyChange(r.LKey, r.RKey)
		r.Valid = false
	default:
		return false
	}
	return true
}

func (w *Window) clearBind() { w.Bound, w.Region, w.QP, w.Refused = false, 0, 0, false }

const remoteWriteRights = ib.AccessRemoteWrite | ib.AccessRemoteAtomic

// executeBind executes BIND_MW (10.6.7.2; C10-70 to C10-75). A device may unbind the window of a bind that it rejects.
func (m *Model) executeBind(q *QP, b *BindArgs) bool {
	ok := m.applyBind(q, b)
	if w := m.Windows[b.MW]; w != nil {
		w.Refused = !ok && w.Bound
	}
	return ok
}

func (m *Model) applyBind(q *QP, b *BindArgs) bool {
	w := m.Windows[b.MW]
	if w == nil || w.Dead || w.PD != q.PD {
		return false
	}
	if w.Doubt {
		m.markResultUndefined(flushedInDoubtReason)
	}
	m.recordKeyChange(w.RKey)
	key := w.RKey&^0xff | b.RKey&0xff
	m.recordKeyChange(key)
	if m.hazards.ended[b.LKey] {
		m.markResultUndefined("a bind to a region that an earlier request of the same call invalidates at the peer")
	}
	type2 := w.Kind == ib.MWType2
	switch {
	case type2 && w.Bound:
		return false // it must be invalidated first
	case type2 && (key == w.RKey || b.Len == 0):
		m.markResultUndefined("a type 2 bind with the present key, or of no bytes")
	case !type2 && key == w.RKey:
		return false
	case b.Len == 0 && b.Access&ib.AccessZeroBased != 0:
		m.markResultUndefined("a window is unbound with an option")
	case b.Access&ib.AccessLocalWrite != 0:
		m.markResultUndefined("a window with a local right")
	}
	if b.Len == 0 && !type2 {
		m.recordMemoryKeyChange(0, w.RKey)
		w.clearBind()
		w.RKey = key
		return true
	}
	r := m.regionByLKey(b.LKey)
	switch {
	case r == nil, r.PD != q.PD, r.Access&ib.AccessMWBind == 0,
		b.Access&remoteWriteRights != 0 && r.Access&ib.AccessLocalWrite == 0,
		b.Access&^(remoteWriteRights|ib.AccessRemoteRead|ib.AccessZeroBased|ib.AccessLocalWrite) != 0,
		!type2 && b.Access&ib.AccessZeroBased != 0,
		!rangeContains(r.IOVA, r.Len, b.Addr, b.Len):
		return false
	}
	m.recordMemoryKeyChange(0, w.RKey)
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
func (m *Model) executeRegMR(q *QP, b *RegMRArgs) bool {
	r := m.Regions[b.MR]
	m.recordKeyChange(b.Key)
	if r != nil && r.Doubt {
		m.markResultUndefined(flushedInDoubtReason)
	}
	switch {
	case r == nil, r.Dead, !r.Fast, r.Valid, r.Map == nil, r.PD != q.PD, b.Key>>8 != r.RKey>>8,
		b.Access&remoteWriteRights != 0 && b.Access&ib.AccessLocalWrite == 0:
		return false
	case b.Access&ib.AccessZeroBased != 0:
		m.markResultUndefined("a fast registration that is zero-based")
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
