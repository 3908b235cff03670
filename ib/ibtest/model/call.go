package model

import "verbena/ib"

// CallRecord records the effects of the current call, and whether its result is defined.
type CallRecord struct {
	// Open is the reason why the result of the call is undefined, or "".
	Open string

	calls    int // calls so far
	listed   int // number of requests that the call posts
	served   int // number of queue pairs with requests that the call has executed
	servedBy map[ID]bool
	done     map[ID]int // requests that the call has completed, by queue pair
	hazards  callHazards
	posted   map[ID]map[completionSource]bool // sources of the completions of the call, by completion queue
}

// begin begins a call.
func (r *CallRecord) begin() {
	*r = CallRecord{calls: r.calls + 1, done: map[ID]int{}, posted: map[ID]map[completionSource]bool{}}
}

// markResultUndefined marks the result of the call as undefined.
func (r *CallRecord) markResultUndefined(reason string) {
	if r.Open == "" {
		r.Open = reason
	}
}

// callHazards holds the memory accesses of one call. The responder executes requests that are posted together in order.
// But the requester may read the data of a request before earlier requests are executed (10.8.3.3), and may repeat a
// READ.
type callHazards struct {
	stored  []Span // by requests, at the responder
	fetched []Span // results of READs and atomics
	read    []Span // sources of READs
	keys    map[uint32]bool
	to      *ib.GID         // destination of the datagrams
	got     map[ID][]Span   // memory of the datagrams, by destination
	claims  map[ID][]uint64 // requests of SRD that need a receive, by destination
	ended   map[uint32]bool // local keys that a SEND with invalidate has ended
}

// recordKeyUse records that a request uses remote memory through a key.
func (r *CallRecord) recordKeyUse(key uint32) {
	if r.hazards.keys == nil {
		r.hazards.keys = map[uint32]bool{}
	}
	r.hazards.keys[key] = true
}

// recordKeyChange records that a request changes the memory of a key, while others of the same call may use it.
func (r *CallRecord) recordKeyChange(key uint32) {
	if r.hazards.keys[key] {
		r.markResultUndefined("a request takes away the key of an earlier one of the same call")
	}
}

// recordGather records that a request reads the memory of its gather list.
func (r *CallRecord) recordGather(s *Send, spans []Span) {
	fence := s.Flags&ib.SendFence != 0
	if spansOverlap(r.hazards.stored, spans) || !fence && spansOverlap(r.hazards.fetched, spans) {
		r.markResultUndefined("a request sends what an earlier one of the same call stores")
	}
}

// recordStore records that a request changes memory at the responder.
func (r *CallRecord) recordStore(s *Send, spans []Span) {
	if s.Flags&ib.SendFence == 0 && (spansOverlap(r.hazards.read, spans) || spansOverlap(r.hazards.fetched, spans)) {
		r.markResultUndefined("a request stores where an earlier READ of the same call reads")
	}
	r.hazards.stored = append(r.hazards.stored, spans...)
}

// recordDatagram records that a queue pair stores a datagram. Different queue pairs store their datagrams in any order.
func (r *CallRecord) recordDatagram(p ID, spans []Span) {
	if r.hazards.got == nil {
		r.hazards.got = map[ID][]Span{}
	}
	for other, got := range r.hazards.got {
		if other != p && spansOverlap(got, spans) {
			r.markResultUndefined("different queue pairs receive datagrams of one call in the same memory")
		}
	}
	r.hazards.got[p] = append(r.hazards.got[p], spans...)
}

// recordFetch records that a request reads memory at the responder and stores it at the requester.
func (r *CallRecord) recordFetch(s *Send, from, to []Span) {
	h := &r.hazards
	if s.Flags&ib.SendFence == 0 && (spansOverlap(h.fetched, from) || spansOverlap(h.fetched, to) || spansOverlap(h.read,
		to)) {
		r.markResultUndefined("a READ reads what an earlier one of the same call stores")
	}
	r.hazards.read = append(r.hazards.read, from...)
	r.hazards.fetched = append(r.hazards.fetched, to...)
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

// countServedQP counts the queue pairs with requests that one call executes. The order between them is undefined.
func (r *CallRecord) countServedQP(q *QP) {
	if r.servedBy == nil {
		r.servedBy = map[ID]bool{}
	}
	r.servedBy[q.ID] = true
	r.served = len(r.servedBy)
}

// recordExchange records that packets pass between two queue pairs. If one of them has been reconnected, the packet
// sequence numbers do not match.
func (r *CallRecord) recordExchange(q, p *QP) {
	if q.partner != 0 && q.partner != p.epoch || p.partner != 0 && p.partner != q.epoch {
		r.markResultUndefined("a connection of which one end has been connected anew")
	}
	q.partner, p.partner = p.epoch, q.epoch
}

// recordKeptReceive records that a message is lost after a driver has fetched its receive. A receive of a shared queue
// may stay reserved for the same queue pair.
func (r *CallRecord) recordKeptReceive(p *QP) {
	if p.SRQ != 0 {
		r.markResultUndefined("a message is lost that is too long for a shared receive")
	}
}

// bytesOverlap reports whether two lists share bytes, or one list overlaps itself.
func bytesOverlap(a, b []Span) bool {
	for i, s := range a {
		for j, t := range b {
			if (&a[0] != &b[0] || i != j) && s.Addr < t.Addr+t.Len && t.Addr < s.Addr+s.Len {
				return true
			}
		}
	}
	return false
}

// recordOverlap records that the order in which bytes are copied affects the result.
func (r *CallRecord) recordOverlap(dst, src []Span) {
	if len(dst) > 0 && (bytesOverlap(dst, dst) || len(src) > 0 && bytesOverlap(dst, src)) {
		r.markResultUndefined("source and target overlap")
	}
}

// hasCompletedRecv reports whether a queue pair has completed a receive in this call.
func (r *CallRecord) hasCompletedRecv(q *QP) bool {
	for _, from := range r.posted {
		if from[completionSource{q.ID, recvSide}] {
			return true
		}
	}
	return false
}
