package rxe

import (
	"sync"
	"sync/atomic"

	"verbena/driver/rxe/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
	"verbena/uapi"
)

// train is a link.Train in a pooled buffer, on its way through the egress queue of a queue pair.
//
// The network takes packets of one length at once. One for a device of the same Fabric may be mixed: its packets have any
// length, so that the payload of a message is one copy, whatever headers lie between.
type train struct {
	link.Train
	mixed   bool
	ends    []int // of the packets in Buf, if mixed
	sent    int   // packets of a mixed train that have had to go to the network, and have gone
	path    *path
	to      uint32 // number of the queue pair that all packets are for
	packets int
	pool    *sync.Pool
	from    *QP  // that sent it, while it is an event of another queue pair
	charged bool // to that one's lane
}

// Three sizes of trains: what carries data to the network may grow to its limit; acknowledgements are alone. A mixed train holds
// as much as is copied twice from a core's own cache, beside its headers: smaller ones cost more system calls.
const (
	ackTrain   = 128
	mixedTrain = 4*link.MaxTrain + link.MaxTrain/8
	// maxMixedPackets is the number of packets of a mixed train, and so of elements of a copy, at most.
	maxMixedPackets = maxScatter
)

var trainPool, ackPool, mixedPool sync.Pool

func init() { initTrains() }

func initTrains() {
	trainPool.New = func() any { return newTrain(&trainPool, link.MaxTrain) }
	ackPool.New = func() any { return newTrain(&ackPool, ackTrain) }
	mixedPool.New = func() any { return newTrain(&mixedPool, mixedTrain) }
}

func newTrain(pool *sync.Pool, size int) *train {
	t := &train{pool: pool}
	t.Buf = make([]byte, 0, size)
	return t
}

func getTrain(pool *sync.Pool, p *path) *train {
	t := pool.Get().(*train)
	t.path, t.packets, t.mixed, t.sent = p, 0, false, 0
	t.ends = t.ends[:0]
	t.Dst, t.TOS, t.TTL = p.dst, p.tos, p.ttl
	t.Buf, t.Size = t.Buf[:0], 0
	return t
}

func (t *train) free() {
	t.path = nil
	t.pool.Put(t)
}

// packet returns the i-th packet, with room for the ICRC.
func (t *train) packet(i int) []byte {
	if !t.mixed {
		return t.Packet(i)
	}
	start := 0
	if i > 0 {
		start = t.ends[i-1]
	}
	return t.Buf[start:t.ends[i]:t.ends[i]]
}

// alone returns the i-th packet as a train of its own.
func (t *train) alone(i int) link.Train {
	x := t.Train
	x.Buf = t.packet(i)
	x.Size = len(x.Buf)
	return x
}

// Before more trains of a queue pair wait to be sent, or to be received by queue pairs of the same Fabric, its requester and its
// READ responses pause: enough to fill a socket buffer, and a bound on memory. A mixed train counts twice.
const (
	maxBacklog = 4
	maxHanded  = maxBacklog / 2
)

// egress holds what a queue pair has to send, in order.
type egress struct {
	queue   []*train
	handed  atomic.Int32 // trains that queue pairs of the Fabric have not received yet
	short   bool         // there was no room for more
	blocked bool         // the socket was full; the timer goes on
}

// full reports whether the queue pair has to pause. When a train has been sent, or received, it is run again.
func (e *egress) full() bool {
	n := len(e.queue) + 2*int(e.handed.Load())
	for _, t := range e.queue {
		if t.mixed {
			n++
		}
	}
	if n < maxBacklog {
		return false
	}
	e.short = true
	return true
}

// cut removes the first n trains, which have been sent.
func (e *egress) cut(n int) {
	left := copy(e.queue, e.queue[n:])
	clear(e.queue[left:])
	e.queue = e.queue[:left]
}

func (e *egress) drop() {
	for _, t := range e.queue {
		t.free()
	}
	clear(e.queue)
	e.queue = e.queue[:0]
}

// builder lays packets into trains: as long as one is as long as the one before, to the same queue pair, it goes into the same
// train; a shorter one ends it.
type builder struct {
	t      *train
	closed bool
}

// fits reports whether a packet of size bytes, to a queue pair, can join the open train.
func (b *builder) fits(p *path, to uint32, size int) bool {
	if b.t == nil || b.t.path != p || b.t.to != to || len(b.t.Buf)+size > cap(b.t.Buf) {
		return false
	}
	if b.t.mixed {
		return b.t.packets < maxMixedPackets
	}
	return !b.closed && size <= b.t.Size && b.t.packets < link.MaxTrainPackets
}

// add returns the place of a packet of size bytes in the open train, which it fits.
func (b *builder) add(size int) []byte {
	n := len(b.t.Buf)
	b.t.Buf = b.t.Buf[:n+size]
	b.t.packets++
	b.closed = size < b.t.Size
	if b.t.mixed {
		b.t.ends = append(b.t.ends, n+size)
	}
	return b.t.Buf[n : n+size : n+size]
}

// start opens a train whose packets have size bytes, or any number if it is likely to stay in the Fabric, and are for a queue pair.
func (b *builder) start(pool *sync.Pool, p *path, to uint32, size int) {
	mixed := pool == &trainPool && p.direct()
	if mixed {
		pool = &mixedPool
	}
	b.t, b.closed = getTrain(pool, p), false
	b.t.to, b.t.Size, b.t.mixed = to, size, mixed
}

// finish puts the open train into the egress queue.
func (b *builder) finish(e *egress) {
	if b.t == nil {
		return
	}
	if b.t.packets == 0 {
		b.t.free()
	} else {
		e.queue = append(e.queue, b.t)
	}
	b.t = nil
}

// cut takes the packets from the n-th on out of the open train.
func (b *builder) cut(n int) {
	if b.t != nil && n < b.t.packets {
		end := n * b.t.Size
		if b.t.mixed {
			end = 0
			if n > 0 {
				end = b.t.ends[n-1]
			}
			b.t.ends = b.t.ends[:n]
		}
		b.t.packets = n
		b.t.Buf = b.t.Buf[:end]
		b.closed = false
	}
}

// gather collects places in packets that are to be filled from consecutive addresses, so that they are read with
// one call.
type gather struct {
	p    *pass
	from *grant // with an access begun; nil when empty
	addr uint64
	n    uint64
	vec  [][]byte
}

// add has dst filled from addr of the region with the key. It reports false where that cannot be.
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
	g.vec = append(g.vec, dst)
	g.n += uint64(len(dst))
	return true
}

// addRemote has dst filled from the memory that a reply is about. It reports false where the peer may not read it any
// more.
func (g *gather) addRemote(qp *QP, y *transport.Reply, dst []byte) bool {
	if g.from == nil {
		if g.from = qp.memory(y.Domain.(*pd), y.Key, ib.AccessRemoteRead); g.from == nil {
			return false
		}
		g.addr = y.Addr
	}
	g.vec = append(g.vec, dst)
	g.n += uint64(len(dst))
	return true
}

// flush reads, for a queue pair.
func (g *gather) flush(qp *QP) (ok bool) {
	if g.from == nil {
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

// fill has buf filled with the bytes from off on of a list of elements.
func (g *gather) fill(qp *QP, list []uapi.RXESGE, off int, buf []byte) bool {
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

// scatterKind is whose data a scatter stores, and so who is told of a failure.
type scatterKind uint8

const (
	scatterNone scatterKind = iota
	scatterSend
	scatterWrite
	scatterRead // responses
)

// scatter collects payloads that are to be stored at consecutive addresses, so that they are written with one
// call.
type scatter struct {
	to   *grant // with an access begun; nil when empty
	kind scatterKind
	psn  roce.PSN // of the first packet
	addr uint64
	n    uint64
	vec  [][]byte
}

// maxScatter bounds the number of payloads in one call.
const maxScatter = 256

// joins reports whether a payload can be stored together with what is collected.
func (s *scatter) joins(kind scatterKind, key uint32, addr uint64) bool {
	return s.to != nil && s.kind == kind && s.to.key == key && s.addr+s.n == addr && len(s.vec) < maxScatter
}

func (s *scatter) start(to *grant, kind scatterKind, psn roce.PSN, addr uint64) {
	s.to, s.kind, s.psn, s.addr = to, kind, psn, addr
}

func (s *scatter) add(b []byte) {
	s.vec = append(s.vec, b)
	s.n += uint64(len(b))
}

// flush writes what was collected, which is not nothing.
func (s *scatter) flush() (ok bool) {
	ok = s.to.write(s.vec, s.addr, s.n) == nil
	s.to.put()
	s.to = nil
	clear(s.vec)
	s.vec, s.n = s.vec[:0], 0
	return ok
}
