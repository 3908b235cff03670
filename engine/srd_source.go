package engine

import (
	"net/netip"

	"verbena/engine/transport"
	"verbena/roce"
)

// srdSources is the table of the sources of a queue pair. A full table replaces sources: of a host that has more than
// others, so that a host cannot take the room of other hosts by invented queue pair numbers.
type srdSources struct {
	list     []*srdSource // by the index in their identifiers
	byOrigin map[srdOrigin]*srdSource
	latest   map[srdPair]*srdSource // the source that a requester has used last
	byAddr   map[netip.Addr]*srdHost
	hosts    []*srdHost
	hand     int // index in hosts at which the next search begins
}

// maxHostScan limits the hosts that a search for a replaceable source considers. With more hosts each one has few
// sources.
const maxHostScan = 512

// srdOrigin is the origin of a source.
type srdOrigin struct {
	addr    netip.Addr
	qpn, id uint32 // the requester and its identifier
}

// srdPair is a requester, and the address at which it reaches this queue pair. It uses one source at a time.
type srdPair struct {
	addr  netip.Addr
	qpn   uint32
	local netip.Addr
}

func (src *srdSource) pair() srdPair { return srdPair{src.addr, src.qpn, src.path.from.addr} }

type srdSource struct {
	srdOrigin
	rcv     transport.SRDReceiver
	path    *path // back
	own     uint32
	evicted uint32 // identifier of the source that this one has replaced too early; 0: none
	last    int64  // when a packet came, in ticks
	used    bool   // a packet with the identifier has come, and the requester has used no other source since
	over    bool   // the requester has used another source since; packets are late copies
	due     bool   // in srd.due
	accepts bool   // an Accept is due

	host         *srdHost
	older, newer *srdSource // neighbours in the list of host
}

// srdHost is an address with sources. Unused sources come first, and the least recently used ones follow.
type srdHost struct {
	addr           netip.Addr
	index          int // in srdSources.hosts
	count          int
	oldest, newest *srdSource
}

func (h *srdHost) unlink(src *srdSource) {
	if src.older != nil {
		src.older.newer = src.newer
	} else {
		h.oldest = src.newer
	}
	if src.newer != nil {
		src.newer.older = src.older
	} else {
		h.newest = src.older
	}
	src.older, src.newer = nil, nil
}

func (h *srdHost) linkNewest(src *srdSource) {
	if src.older = h.newest; src.older != nil {
		src.older.newer = src
	} else {
		h.oldest = src
	}
	h.newest = src
}

func (h *srdHost) linkOldest(src *srdSource) {
	if src.newer = h.oldest; src.newer != nil {
		src.newer.older = src
	} else {
		h.newest = src
	}
	h.oldest = src
}

func newSRDSources() srdSources {
	return srdSources{byOrigin: map[srdOrigin]*srdSource{}, latest: map[srdPair]*srdSource{},
		byAddr: map[netip.Addr]*srdHost{}}
}

// touch notes that a packet of a source has come.
func (t *srdSources) touch(src *srdSource, now int64) {
	if src.last = now; src.host.newest != src {
		src.host.unlink(src)
		src.host.linkNewest(src)
	}
	if src.used {
		return
	}
	// The requester has given up the former identifier.
	pair := src.pair()
	if old := t.latest[pair]; old != nil {
		old.used, old.over = false, true
		old.host.unlink(old)
		old.host.linkOldest(old)
	}
	src.used, t.latest[pair] = true, src
}

// put adds a source. Its index is at most the length of the list.
func (t *srdSources) put(index int, src *srdSource) {
	if index == len(t.list) {
		t.list = append(t.list, nil)
	}
	t.list[index] = src
	t.byOrigin[src.srdOrigin] = src
	h := t.byAddr[src.addr]
	if h == nil {
		h = &srdHost{addr: src.addr, index: len(t.hosts)}
		t.byAddr[src.addr] = h
		t.hosts = append(t.hosts, h)
	}
	h.count++
	src.host = h
	h.linkNewest(src)
}

// remove takes a source out of all tables but the list. Replies may still refer to it.
func (t *srdSources) remove(src *srdSource) {
	delete(t.byOrigin, src.srdOrigin)
	if pair := src.pair(); t.latest[pair] == src {
		delete(t.latest, pair)
	}
	h := src.host
	h.unlink(src)
	if h.count--; h.count == 0 {
		last := t.hosts[len(t.hosts)-1]
		t.hosts[h.index], last.index = last, h.index
		t.hosts = t.hosts[:len(t.hosts)-1]
		delete(t.byAddr, h.addr)
	}
}

// idle reports whether a source may be forgotten without harm.
func (src *srdSource) idle(now int64) bool { return !src.used || now-src.last > sourceIdle }

// replaceable returns the source that a new source of a host replaces, nil if there is none. It is the oldest source of
// the host with the most, or an idle one.
func (t *srdSources) replaceable(addr netip.Addr, now int64) *srdSource {
	own := 0
	if h := t.byAddr[addr]; h != nil {
		own = h.count
		if h.oldest.idle(now) {
			return h.oldest
		}
	}
	var idle *srdSource
	most := &srdHost{}
	for range min(len(t.hosts), maxHostScan) {
		t.hand = (t.hand + 1) % len(t.hosts)
		h := t.hosts[t.hand]
		if h.count > most.count {
			most = h
		}
		if h.oldest.idle(now) && (idle == nil || h.oldest.last < idle.last) {
			idle = h.oldest
		}
	}
	switch {
	case most.count > own+1:
		return most.oldest
	case own == 0:
		return idle
	}
	return nil
}

// newSource returns a new source of an origin; nil if there is no room.
func (s *srd) newSource(from srdOrigin, back *path, now int64) *srdSource {
	t := &s.sources
	index := len(t.list)
	src := &srdSource{srdOrigin: from, path: back, last: now}
	if index == maxFlows || !s.charge() {
		old := t.replaceable(from.addr, now)
		if old == nil {
			return nil
		}
		if !old.idle(now) {
			src.evicted = old.own
		}
		index = int(old.own & (maxFlows - 1))
		t.remove(old)
	}
	src.own = s.identifier(index)
	t.put(index, src)
	return src
}

// sourceOf returns the source that a packet belongs to; nil if there is none, with the status that the requester gets.
func (s *srd) sourceOf(k *packet) (*srdSource, roce.SRDStatus) {
	h := k.SRDETH()
	i := int(h.To() & (maxFlows - 1))
	if i >= len(s.sources.list) {
		return nil, roce.SRDForgotten
	}
	src := s.sources.list[i]
	switch {
	case src.evicted != 0 && h.To() == src.evicted: // the requester must not repeat packets that may have been executed
		return nil, roce.SRDAborted
	case src.own != h.To() || src.over || src.srdOrigin != (srdOrigin{k.src, k.DETH().SrcQPN(), h.Value()}):
		return nil, roce.SRDForgotten
	}
	return src, roce.SRDSuccess
}
