package model

import "verbena/ib"

// hazards holds the memory accesses of one call. The responder executes requests that are posted together in order. But
// the requester may read the data of a request before earlier requests are executed (10.8.3.3), and may repeat a READ.
type hazards struct {
	stored  []Span // by requests, at the responder
	fetched []Span // results of READs and atomics
	read    []Span // sources of READs
	keys    map[uint32]bool
	to      *ib.GID         // destination of the datagrams
	ended   map[uint32]bool // local keys that a SEND with invalidate has ended
}

// ends records that a message invalidates a key at the responder, which the requester of the same call may use as well.
func (m *Model) ends(rkey uint32) {
	for _, r := range m.Regions {
		if r.RKey == rkey && r.Fast {
			if m.hazards.ended == nil {
				m.hazards.ended = map[uint32]bool{}
			}
			m.hazards.ended[r.LKey] = true
		}
	}
}

// uses records that a request uses remote memory through a key.
func (m *Model) uses(key uint32) {
	if m.hazards.keys == nil {
		m.hazards.keys = map[uint32]bool{}
	}
	m.hazards.keys[key] = true
}

// usesLocal records that a message uses the regions of a receive.
func (m *Model) usesLocal(sgl []ib.SGE) {
	for _, r := range m.Regions {
		if r.Fast && usesLKey(sgl, r.LKey) {
			m.uses(r.RKey)
		}
	}
}

// changesKey records that a request changes the memory of a key, while others of the same call may use it.
func (m *Model) changesKey(key uint32) {
	if m.hazards.keys[key] {
		m.open("a request takes away the key of an earlier one of the same call")
	}
}

// noteGather records that a request reads the memory of its gather list.
func (m *Model) noteGather(s *Send, spans []Span) {
	fence := s.Flags&ib.SendFence != 0
	if meet(m.hazards.stored, spans) || !fence && meet(m.hazards.fetched, spans) {
		m.open("a request sends what an earlier one of the same call stores")
	}
}

// stores records that a request changes memory at the responder.
func (m *Model) stores(s *Send, spans []Span) {
	if s.Flags&ib.SendFence == 0 && (meet(m.hazards.read, spans) || meet(m.hazards.fetched, spans)) {
		m.open("a request stores where an earlier READ of the same call reads")
	}
	m.hazards.stored = append(m.hazards.stored, spans...)
}

// fetches records that a request reads memory at the responder and stores it at the requester.
func (m *Model) fetches(s *Send, from, to []Span) {
	h := &m.hazards
	if s.Flags&ib.SendFence == 0 && (meet(h.fetched, from) || meet(h.fetched, to) || meet(h.read, to)) {
		m.open("a READ reads what an earlier one of the same call stores")
	}
	m.hazards.read = append(m.hazards.read, from...)
	m.hazards.fetched = append(m.hazards.fetched, to...)
}

// meet reports whether two lists have bytes in common.
func meet(a, b []Span) bool {
	for _, s := range a {
		for _, t := range b {
			if s.Addr < t.Addr+t.Len && t.Addr < s.Addr+s.Len {
				return true
			}
		}
	}
	return false
}
