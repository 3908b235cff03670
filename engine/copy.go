package engine

import (
	"sync"
	"sync/atomic"

	"verbena/engine/transport"
	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
	"verbena/umem"
)

// A payload is copied twice: from the memory of the sender into a train (gather), and from the train into the memory
// of the receiver (scatter). Each copies many packets in one call.
//
// An RDMA WRITE between memory that this process has mapped at both ends (umem.Region.Direct) is copied once. The
// requester builds the packets as for other trains, with room in the train for each payload. But a span may refer to
// the payload in memory instead of a copy in the train. The thread that sends the train also runs the receiver, which
// copies the payload from memory to memory. Then the thread continues with the sender:
//
//	advance      the train is built and refers to memory, to which an access has begun
//	   |
//	sendAll      if the receiver rests, the thread takes it, and it stores the payload (pass.deliver); otherwise the
//	   |         payload is copied to its place first (train.fill)
//	   |
//	endDelivery  no train refers to memory; the receiver is in the run queue
//
// A train refers to memory only while the thread that has built it runs its queue pair. Meanwhile
//   - no work request of the queue pair completes, and its state does not change: pass.fill precedes such a change;
//   - a thread that revokes a key (grant.revoke) waits only for these copies: pass.fill precedes a copy that may block,
//     and the receiver stores only into direct memory (scatter.flush).

// gather collects places in packets for data from consecutive addresses, and reads the data with one call.
type gather struct {
	p    *pass
	from *grant // an access is in progress; nil when empty
	addr uint64
	n    uint64
	vec  [][]byte

	ahead ahead
}

// fill adds buf as the place for the bytes from off on of a list of elements. It returns false if the memory cannot
// be read.
func (g *gather) fill(qp *QP, list []ib.SGE, off int, buf []byte) bool {
	i, at := sgeAt(list, off)
	for len(buf) > 0 {
		if i >= len(list) {
			return false
		}
		s := &list[i]
		n := min(len(buf), int(s.Length)-at)
		if !g.add(qp, s.LKey, s.Addr+uint64(at), buf[:n]) {
			return false
		}
		buf = buf[n:]
		i, at = i+1, 0
	}
	return true
}

// add adds dst as the place for the data at addr, by the key of a region. It returns false if the memory cannot be
// read.
func (g *gather) add(qp *QP, key uint32, addr uint64, dst []byte) bool {
	if g.from != nil && (g.from.key != key || g.addr+g.n != addr) && !g.flush(qp) {
		return false
	}
	if g.from == nil {
		if g.from = qp.memory(qp.pd, key, localRead); g.from == nil {
			return false
		}
		g.addr = addr
	}
	g.vec = appendPlace(g.vec, dst)
	g.n += uint64(len(dst))
	return true
}

// appendPlace appends a place to a vector. A place that directly follows the last one extends it instead.
func appendPlace(vec [][]byte, b []byte) [][]byte {
	if i := len(vec) - 1; i >= 0 && len(b) > 0 {
		if a := vec[i]; cap(a)-len(a) >= len(b) && &a[:len(a)+1][len(a)] == &b[0] {
			vec[i] = a[:len(a)+len(b)]
			return vec
		}
	}
	return append(vec, b)
}

// addRemote adds dst as the place for the data of a reply. It returns false if the peer may no longer read the
// memory.
func (g *gather) addRemote(qp *QP, y *transport.Reply, dst []byte) bool {
	if g.from == nil {
		if g.from = qp.memory(y.Domain.(*pd), y.Key, ib.AccessRemoteRead); g.from == nil {
			return false
		}
		g.addr = y.Addr
	}
	g.vec = appendPlace(g.vec, dst)
	g.n += uint64(len(dst))
	return true
}

// spans reports whether the data for the next train may be read together with the data for this one. One system call
// for both costs less than two. A mixed train holds as much as is worth reading at a time, and memory of this process
// needs no call.
func (g *gather) spans(t *train) bool {
	return g.from != nil && !t.mixed && g.from.direct(g.addr, g.n) == nil
}

// flush reads the gathered data for a queue pair. It returns false if the memory cannot be read.
func (g *gather) flush(qp *QP) (ok bool) {
	if g.from == nil {
		return true
	}
	g.p.storeHeldFor(qp, g.from, g.addr, g.n)
	switch mem := g.from.direct(g.addr, g.n); {
	case mem == nil:
		g.p.fill(qp) // the copy may block
	case g.p.refer(g, mem):
		return true
	}
	g.p.enter(qp)
	ok = g.from.read(g.vec, g.addr, g.n) == nil
	g.p.leave()
	g.reset()
	return ok
}

func (g *gather) reset() {
	if g.from != nil {
		g.from.put()
		g.from = nil
	}
	clear(g.vec)
	g.vec, g.n = g.vec[:0], 0
}

// minRefer is the minimum number of bytes for a reference. Fewer bytes are cheaper to copy than to account for.
const minRefer = 16 << 10

// refer makes the open train refer to the gathered data in mem. It returns false if the train needs a copy.
func (p *pass) refer(g *gather, mem []byte) bool {
	t := p.build.t
	if !t.writes || g.n < minRefer {
		return false
	}
	for _, place := range g.vec {
		n := len(place)
		if k := t.spanOf(place); k != nil {
			k.mem = mem[:n]
		} else {
			copy(place, mem) // part of a packet
		}
		mem = mem[n:]
	}
	t.held = append(t.held, g.from)
	g.from = nil
	g.reset()
	p.build.middle = false // the last span is complete
	return true
}

// fill replaces the references to memory in the queue pair's trains by copies. The pass runs the queue pair.
func (p *pass) fill(qp *QP) {
	if p.build.t != nil {
		p.build.t.fill()
	}
	qp.egress.fill()
}

// ahead holds data that was read for later work requests, together with the data of an earlier one. It is valid in
// one run of the requester.
//
// The data of work requests that were posted together is often adjacent: a program sends pieces of one buffer, or
// reuses the slots of a buffer. A system call for each piece takes longer than the other work for a short message. So
// the data of the next requests is read with the first, if it follows in the same page. These requests have been
// posted, so the device owns their memory, and the data does not change in between.
type ahead struct {
	from *grant // the rights to the region, which may have been revoked since; nil: no data
	addr uint64
	n    int
	buf  [aheadBytes]byte
}

const (
	// maxAhead is the maximum length of a message that is read together with others.
	maxAhead = 512
	// aheadBytes is the maximum size of a read. A read stays within an aligned block of this size, and so within a
	// page.
	aheadBytes = 4096
	// aheadCount is the maximum number of later work requests for one read.
	aheadCount = 32
)

// read reads the data of a work request into the gathered places.
func (r *requester) read(p *pass) bool {
	g, a := &p.gather, &p.gather.ahead
	if g.from == nil || g.n > maxAhead || len(g.vec) != 1 || g.from.direct(g.addr, g.n) != nil {
		return g.flush(r.qp)
	}
	if a.from != g.from || g.addr < a.addr || g.addr+g.n > a.addr+uint64(a.n) {
		n := r.follow(g.from.key, g.addr, g.n)
		if n == g.n {
			return g.flush(r.qp)
		}
		a.from = nil
		p.storeHeldFor(r.qp, g.from, g.addr, n)
		p.enter(r.qp)
		err := g.from.read([][]byte{a.buf[:n]}, g.addr, n)
		p.leave()
		if err != nil { // the failure may concern a later request
			return g.flush(r.qp)
		}
		a.from, a.addr, a.n = g.from, g.addr, int(n)
	}
	copy(g.vec[0], a.buf[g.addr-a.addr:])
	g.reset()
	return true
}

// follow returns the number of bytes to read from an address: the n bytes of the present work request, and the
// adjacent data of the requests posted behind it.
func (r *requester) follow(key uint32, addr, n uint64) uint64 {
	qp, w := r.qp, &r.scratch
	most := aheadBytes - addr%aheadBytes
	for i := range aheadCount {
		if found, ok := qp.sq.Fetch(i, &w.Send); !found || !ok {
			break
		}
		if k := kindOf(qp.typ, w.Opcode); k != transport.Send && k != transport.Write ||
			w.Flags&(uapi.SendInline|uapi.SendFence) != 0 || w.NumSGE != 1 || len(w.SGEs) != 1 {
			break
		}
		s := &w.SGEs[0]
		if s.LKey != key || s.Addr != addr+n || s.Length > maxAhead || n+uint64(s.Length) > most {
			break
		}
		n += uint64(s.Length)
	}
	return n
}

// scatterKind is the kind of data that a scatter stores. It determines the consequences of a failure.
type scatterKind uint8

const (
	scatterNone scatterKind = iota
	scatterSend
	scatterWrite
	scatterRead // responses
)

// scatter collects payloads for consecutive addresses, and writes them with one call.
type scatter struct {
	to   *grant // an access is in progress; nil when empty
	kind scatterKind
	psn  roce.PSN // PSN of the first packet
	addr uint64
	n    uint64
	vec  [][]byte
}

// maxScatter is the maximum number of payloads in one call.
const maxScatter = 256

// joins reports whether a payload of n bytes can be stored together with the collected ones. A payload beyond the
// region does not join, so it cannot make the others fail.
func (s *scatter) joins(kind scatterKind, key uint32, addr, n uint64) bool {
	return s.to != nil && s.kind == kind && s.to.key == key && s.addr+s.n == addr && len(s.vec) < maxScatter &&
		s.to.contains(s.addr, s.n+n)
}

func (s *scatter) start(to *grant, kind scatterKind, psn roce.PSN, addr uint64) {
	s.to, s.kind, s.psn, s.addr = to, kind, psn, addr
}

func (s *scatter) add(b []byte) {
	s.vec = appendPlace(s.vec, b)
	s.n += uint64(len(b))
}

// flush writes the collected payloads, at least one. With direct it fails if the memory is not direct.
func (s *scatter) flush(direct bool) (ok bool) {
	if direct {
		mem := s.to.direct(s.addr, s.n)
		for _, b := range s.vec {
			mem = mem[copy(mem, b):]
		}
		ok = mem != nil
	} else {
		ok = s.to.write(s.vec, s.addr, s.n) == nil
	}
	s.end()
	return ok
}

// hold passes the collected payloads of RDMA WRITEs to a holder. It returns false if they must be written.
func (s *scatter) hold(h ib.WriteHolder) bool {
	g := s.to
	if s.kind != scatterWrite || !g.contains(s.addr, s.n) ||
		!h.HoldWrite(g.region, g.mr.grant.Load().access, s.addr+g.shift, s.vec) {
		return false
	}
	s.end()
	return true
}

// end ends the access.
func (s *scatter) end() {
	s.to.put()
	s.to = nil
	clear(s.vec)
	s.vec, s.n = s.vec[:0], 0
}

// storeHeld stores the data that the holder of a queue pair has from its peer.
func (p *pass) storeHeld(qp *QP) {
	if qp.writes == nil {
		return
	}
	p.fill(qp) // the store may block
	p.enter(qp)
	qp.writes.StoreWrites()
	p.leave()
}

// storeHeldFor stores the held data for a range that is about to be read or changed.
func (p *pass) storeHeldFor(qp *QP, g *grant, addr, n uint64) {
	if qp.writes == nil || !g.contains(addr, n) {
		return
	}
	p.fill(qp)
	p.enter(qp)
	qp.writes.StoreRange(g.region, addr+g.shift, n)
	p.leave()
}

// storeHeldByKeys stores all held data of the program's queue pairs after a key has ended: the memory may be the
// program's again. It may wait for the program.
func (qp *QP) storeHeldByKeys() {
	if qp.writes != nil {
		qp.writes.StoreRange(nil, 0, 0)
	}
}

// store collects data for the memory of a list of elements, from the off-th byte on. The data may be written later,
// together with the following data. store returns false after a failure, which it has handled.
func (p *pass) store(qp *QP, kind scatterKind, psn roce.PSN, list []ib.SGE, off int, data []byte) bool {
	i, at := sgeAt(list, off)
	for len(data) > 0 {
		if i >= len(list) {
			unstorable(qp, kind, psn)
			return false
		}
		s := &list[i]
		n := min(len(data), int(s.Length)-at)
		if !p.storeAt(qp, kind, psn, s.LKey, ib.AccessLocalWrite, s.Addr+uint64(at), data[:n]) {
			return false
		}
		data = data[n:]
		i, at = i+1, 0
	}
	return true
}

// storeAt is store for one range of a region.
func (p *pass) storeAt(
	qp *QP, kind scatterKind, psn roce.PSN, key uint32, right ib.AccessFlags, addr uint64, data []byte,
) bool {
	s := &p.scatter
	if !s.joins(kind, key, addr, uint64(len(data))) {
		if !p.settle(qp) {
			return false
		}
		in := qp.pd
		switch kind {
		case scatterSend:
			in = qp.resp.wqe.pd
		case scatterWrite:
			in = qp.resp.domain()
		}
		m := qp.memory(in, key, right)
		if m == nil {
			unstorable(qp, kind, psn)
			return false
		}
		s.start(m, kind, psn, addr)
	}
	s.add(data)
	return true
}

// settle writes the collected data. It is called before a completion that promises the data, and before the packets
// with the data are freed. It returns false after a failure, which it has handled.
func (p *pass) settle(qp *QP) bool {
	s := &p.scatter
	if s.to == nil {
		return true
	}
	kind, psn := s.kind, s.psn
	p.enter(qp)
	if qp.writes != nil && kind == scatterSend {
		qp.writes.StoreWrites()
	}
	ok := qp.writes != nil && s.hold(qp.writes) || s.flush(p.inline)
	p.leave()
	if ok {
		return true
	}
	unstorable(qp, kind, psn)
	return false
}

// unstorable handles a failed store. It ends the queue pair. On SRD, and for an RDMA WRITE on an unreliable
// connection, it ends only the message.
func unstorable(qp *QP, kind scatterKind, psn roce.PSN) {
	switch kind {
	case scatterSend:
		qp.resp.refuse(psn, roce.NAKRemoteOperationalError, uapi.WCLocProtErr)
	case scatterWrite:
		qp.resp.refuse(psn, roce.NAKRemoteAccessError, uapi.WCRemAccessErr)
	case scatterRead:
		if qp.srd == nil {
			qp.req.fail(uapi.WCLocProtErr)
		}
	}
}

// sgeAt returns the index of the element with byte n of a list, and the offset in the element. Past the end, it
// returns len(list) and 0.
func sgeAt(list []ib.SGE, n int) (i, off int) {
	for i = range list {
		if n < int(list[i].Length) {
			return i, n
		}
		n -= int(list[i].Length)
	}
	return len(list), 0
}

// copying shows the watchdog whether a pass is in a copy from or to the memory of a program.
type copying struct {
	copies      atomic.Uint32 // odd during a copy
	at          *QP           // a queue pair of that program
	reassigning sync.Mutex    // held while the watchdog takes todo
	seen        uint32        // copies at the watchdog's last look; under watchdog.mu
}

// reassigned is set in pass.copies when the watchdog has taken the run queue of the pass.
const reassigned = 1 << 31

// enter records that the pass begins a copy from or to the memory of a queue pair's program, or a wait for a thread
// in such a copy. leave ends it.
func (p *pass) enter(qp *QP) {
	p.at = qp
	p.copies.Store((p.copies.Load() + 1) &^ reassigned)
	if w := &p.dev.watchdog; !w.on.Load() {
		w.start(p.dev)
	}
}

func (p *pass) leave() {
	n := p.copies.Load() &^ reassigned
	if p.copies.CompareAndSwap(n, (n+1)&^reassigned) {
		return
	}
	p.reassigning.Lock() // wait for reassign
	p.copies.Store((n + 1) &^ reassigned)
	p.reassigning.Unlock()
	p.at.lane.resume()
}

// grant returns the present rights of a key, or nil.
func (d *Device) grant(key uint32) *grant {
	var g *grant
	if key>>8 < firstMW {
		if m := d.mrs.get(key >> 8); m != nil {
			g = m.grant.Load()
		}
	} else if w := d.mws.get(key >> 8); w != nil {
		g = w.grant.Load()
	}
	if g == nil || g.key != key {
		return nil
	}
	return g
}

// memory returns the rights of a key and begins an access, if the key gives a right within a domain. Otherwise memory
// returns nil. (lookup_mr)
func (d *Device) memory(in *pd, key uint32, right ib.AccessFlags) *grant {
	g := d.grant(key)
	if g == nil || g.pd != in || g.access&right != right || !g.inUse.TryRLock() {
		return nil
	}
	return g
}

// memory is Device.memory for the keys that the queue pair and its peer may use. (rxe_lookup_mw)
func (qp *QP) memory(in *pd, key uint32, right ib.AccessFlags) *grant {
	g := qp.dev.memory(in, key, right)
	if g != nil && g.qp != nil && g.qp != qp {
		g.put()
		return nil
	}
	return g
}

// put ends an access.
func (g *grant) put() { g.inUse.RUnlock() }

// contains reports whether a range is within the memory of the key.
func (g *grant) contains(addr, n uint64) bool {
	return addr >= g.first && addr-g.first <= g.length && n <= g.length-(addr-g.first)
}

// read fills buffers with the n bytes from addr on.
func (g *grant) read(dst [][]byte, addr, n uint64) error {
	if !g.contains(addr, n) {
		return umem.ErrRange
	}
	return g.region.ReadV(dst, addr+g.shift)
}

// write stores buffers of n bytes from addr on.
func (g *grant) write(src [][]byte, addr, n uint64) error {
	if !g.contains(addr, n) {
		return umem.ErrRange
	}
	return g.region.WriteV(src, addr+g.shift)
}

// direct returns the memory of a range, or nil if a copy may wait for a program. See umem.Region.Direct.
func (g *grant) direct(addr, n uint64) []byte {
	if !g.contains(addr, n) {
		return nil
	}
	return g.region.Direct(addr+g.shift, n)
}
