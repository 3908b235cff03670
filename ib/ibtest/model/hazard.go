package model

import "verbena/ib"

// callHazards holds the memory accesses of one call. The responder executes requests that are posted together in order.
// But the requester may read the data of a request before earlier requests are executed (10.8.3.3), and may repeat a
// READ.
type callHazards struct {
	stored  []Span // by requests, at the responder
	fetched []Span // results of READs and atomics
	read    []Span // sources of READs
	keys    map[uint32]bool
	to      *ib.GID         // destination of the datagrams
	ended   map[uint32]bool // local keys that a SEND with invalidate has ended
}

// recordInvalidate records that a message invalidates a key at the responder, which the requester of the same call may
// use as well.
func (m *Model) recordInvalidate(rkey uint32) {
	for _, r := range m.Regions {
		if r.RKey == rkey && r.Fast {
			if m.hazards.ended == nil {
				m.hazards.ended = map[uint32]bool{}
			}
			m.hazards.ended[r.LKey] = true
		}
	}
}

// recordKeyUse records that a request uses remote memory through a key.
func (m *Model) recordKeyUse(key uint32) {
	if m.hazards.keys == nil {
		m.hazards.keys = map[uint32]bool{}
	}
	m.hazards.keys[key] = true
}

// recordLocalUse records that a message uses the regions of a receive.
func (m *Model) recordLocalUse(sgl []ib.SGE) {
	for _, r := range m.Regions {
		if r.Fast && usesLKey(sgl, r.LKey) {
			m.recordKeyUse(r.RKey)
		}
	}
}

// recordKeyChange records that a request changes the memory of a key, while others of the same call may use it.
func (m *Model) recordKeyChange(key uint32) {
	if m.hazards.keys[key] {
		m.markResultUndefined("a request takes away the key of an earlier one of the same call")
	}
}

// recordGather records that a request reads the memory of its gather list.
func (m *Model) recordGather(s *Send, spans []Span) {
	fence := s.Flags&ib.SendFence != 0
	if spansOverlap(m.hazards.stored, spans) || !fence && spansOverlap(m.hazards.fetched, spans) {
		m.markResultUndefined("a request sends what an earlier one of the same call stores")
	}
}

// recordStore records that a request changes memory at the responder.
func (m *Model) recordStore(s *Send, spans []Span) {
	if s.Flags&ib.SendFence == 0 && (spansOverlap(m.hazards.read, spans) || spansOverlap(m.hazards.fetched, spans)) {
		m.markResultUndefined("a request stores where an earlier READ of the same call reads")
	}
	m.hazards.stored = append(m.hazards.stored, spans...)
}

// recordFetch records that a request reads memory at the responder and stores it at the requester.
func (m *Model) recordFetch(s *Send, from, to []Span) {
	h := &m.hazards
	if s.Flags&ib.SendFence == 0 && (spansOverlap(h.fetched, from) || spansOverlap(h.fetched, to) || spansOverlap(h.read,
		to)) {
		m.markResultUndefined("a READ reads what an earlier one of the same call stores")
	}
	m.hazards.read = append(m.hazards.read, from...)
	m.hazards.fetched = append(m.hazards.fetched, to...)
}

// spansOverlap reports whether two lists have bytes in common.
func spansOverlap(a, b []Span) bool {
	for _, s := range a {
		for _, t := range b {
			if s.Addr < t.Addr+t.Len && t.Addr < s.Addr+s.Len {
				return true
			}
		}
	}
	return false
}
