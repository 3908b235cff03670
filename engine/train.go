package engine

import (
	"slices"
	"sync"
	"sync/atomic"

	"verbena/link"
	"verbena/roce"
)

// train is a link.Train in a pooled buffer, on its way through the egress queue of a queue pair.
//
// A train is a list of spans. The network takes packets of one length at once, each a span. A train for a device of
// the same Fabric may be mixed. Its packets have any length, so that the payload of a message is one copy, across the
// headers in between. Middle packets of a message then share a span, which the receiver stores at once if it would
// accept each of them. A splitter extracts the packets of a span for every other use: a capture, the network, a
// receiver that refuses one of them.
type train struct {
	link.Train
	mixed   bool   // the packets have any length
	spans   []span // in order
	sent    int    // packets of a mixed train that have had to go to the network, and have gone
	path    *path
	to      uint32 // number of the queue pair that all packets are for
	packets int
	pool    *sync.Pool // nil: none, it is as small as can be
	from    *QP        // that sent it, while it is an event of another queue pair
	charged bool       // to that one's lane

	writes bool     // all packets are of RDMA WRITEs by one key
	key    uint32   // that one
	held   []*grant // with an access begun, as long as a span refers to memory
}

// span is one packet of a train, or consecutive middle packets of a message, which share the header of the first. They
// differ in their PSNs only, and each is as long as the path MTU. Only a mixed train has spans of several packets.
type span struct {
	start, end int // in Buf
	packets    int
	mem        []byte // the payload, if it is not in Buf yet; see copy.go
}

// alignment is that of the payload of a mixed train to the memory that it comes from. Processors copy several times more slowly where
// the places of source and destination in their pages are a few bytes apart (AMD's Zen 3 and 4, with REP MOVSB).
const alignment = 64

// Three sizes of trains: what carries data to the network may grow to its limit; acknowledgements are alone. A mixed train holds
// as much as is copied twice from a core's own cache, beside its headers: smaller ones cost more system calls.
const (
	ackTrain   = 128
	mixedTrain = 4*link.MaxTrain + link.MaxTrain/8
	// maxSpans is the number of spans of a mixed train, and so of elements of a copy, at most.
	maxSpans = maxScatter
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
	t.path, t.packets, t.mixed, t.sent, t.writes = p, 0, false, 0, false
	t.spans = t.spans[:0]
	t.Dst, t.TOS, t.TTL, t.SL = p.dst, p.tos, p.ttl, p.attr.SL
	t.Buf, t.Size = t.Buf[:0], 0
	return t
}

func (t *train) free() {
	t.path = nil
	t.release()
	if t.pool != nil {
		t.pool.Put(t)
	}
}

// shrink gives the pool back the room that the train does not need.
func (t *train) shrink() {
	if t.pool == nil || cap(t.Buf) <= 2*len(t.Buf) {
		return
	}
	roomy := &train{pool: t.pool, spans: t.spans}
	roomy.Buf = t.Buf
	t.Buf, t.spans, t.pool = slices.Clone(t.Buf), slices.Clone(t.spans), nil
	roomy.free()
}

// span returns the bytes of the i-th span of the train, with room for the ICRC.
func (t *train) span(i int) []byte {
	k := &t.spans[i]
	return t.Buf[k.start:k.end:k.end]
}

// splitter extracts the packets of a span.
type splitter struct {
	header  [roce.BTHLen + roce.XRCETHLen]byte // next header
	len     int                                // length of header
	payload []byte
	size    int // payload of a packet
	first   roce.PSN
	ask     bool // the last packet asks for an acknowledgement
	packets int
}

// set begins a span of several packets. header has the first PSN, and asks for an acknowledgement if the last packet
// does.
func (s *splitter) set(header, payload []byte, packets int) {
	h := roce.BTH(header)
	s.len = copy(s.header[:], header)
	s.payload, s.size = payload, len(payload)/packets
	s.first, s.ask, s.packets = h.PSN(), h.AckReq(), packets
}

// packet returns the header and the payload of the i-th packet. The header is valid until the next call.
func (s *splitter) packet(i int) (header, payload []byte) {
	h := roce.BTH(s.header[:])
	h.SetPSN(s.first.Add(i))
	h.SetAckReq(s.ask && i == s.packets-1)
	return s.header[:s.len], s.payload[i*s.size : (i+1)*s.size]
}

// each calls f with each packet of the train from the n-th on, as a train of its own, until f returns false. The
// argument is valid during the call.
func (t *train) each(n int, f func(x *link.Train) bool) bool {
	t.fill()
	x := t.Train
	var s splitter
	var room []byte
	for i, k := range t.spans {
		if n >= k.packets {
			n -= k.packets
			continue
		}
		b := t.span(i)
		if k.packets > 1 {
			header := roce.BTH(b).Opcode().HeaderLen()
			s.set(b[:header], b[header:len(b)-link.ICRCLen], k.packets)
		}
		for ; n < k.packets; n++ {
			if x.Buf = b; k.packets > 1 {
				h, payload := s.packet(n)
				room = append(append(append(room[:0], h...), payload...), make([]byte, link.ICRCLen)...)
				x.Buf = room
			}
			x.Size = len(x.Buf)
			if !f(&x) {
				return false
			}
		}
		n = 0
	}
	return true
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
	bytes   int          // in queue when sendAll began; a sent train belongs to another thread
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
	middle bool // the last span of a mixed train is of middle packets, which the next one of the message may join
}

// fits reports whether a packet of size bytes, to a queue pair, can join the open train.
func (b *builder) fits(p *path, to uint32, size int) bool {
	if b.t == nil || b.t.path != p || b.t.to != to || len(b.t.Buf)+size > cap(b.t.Buf) {
		return false
	}
	if b.t.mixed {
		return len(b.t.spans) < maxSpans
	}
	return !b.closed && size <= b.t.Size && b.t.packets < link.MaxTrainPackets
}

// add returns the place of a packet of size bytes in the open train, which it fits. After its headers comes what is to be read from
// an address.
func (b *builder) add(size, headers int, addr uint64) []byte {
	n := len(b.t.Buf)
	if b.t.mixed { // the buffer begins at a page
		if pad := int((addr - uint64(n+headers)) % alignment); n+pad+size <= cap(b.t.Buf) {
			n += pad
		}
	}
	b.t.Buf = b.t.Buf[:n+size]
	b.t.packets++
	b.closed = size < b.t.Size
	b.middle = false
	b.t.spans = append(b.t.spans, span{start: n, end: n + size, packets: 1})
	return b.t.Buf[n : n+size]
}

// added notes that the packet just added is a middle one. If it asks for an acknowledgement, nothing joins it.
func (b *builder) added(asks bool) { b.middle = b.t.mixed && !asks }

// stretches returns how many middle packets, with size bytes of payload each, stretch has room for.
func (b *builder) stretches(size int) int {
	if !b.middle {
		return 0
	}
	return (cap(b.t.Buf) - len(b.t.Buf)) / size
}

// stretch adds middle packets with size bytes of payload together to the span that is last in the open train, if that is possible,
// and returns the place of their payload.
func (b *builder) stretch(packets, size int, asks bool) (payload []byte, ok bool) {
	if !b.middle || len(b.t.Buf)+size > cap(b.t.Buf) {
		return nil, false
	}
	last := &b.t.spans[len(b.t.spans)-1]
	last.packets += packets
	last.end += size
	b.t.packets += packets
	n := len(b.t.Buf) - link.ICRCLen
	b.t.Buf = b.t.Buf[:last.end]
	if asks {
		roce.BTH(b.t.Buf[last.start:]).SetAckReq(true)
		b.middle = false
	}
	return b.t.Buf[n : n+size], true
}

// start opens a train whose packets have size bytes, or any number if it is likely to stay in the Fabric, and are for a queue pair.
func (b *builder) start(pool *sync.Pool, p *path, to uint32, size int) {
	mixed := pool == &trainPool && p.direct()
	if mixed {
		pool = &mixedPool
	}
	b.t, b.closed, b.middle = getTrain(pool, p), false, false
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
	b.t, b.middle = nil, false
}

// mark is the place of the first packet without its payload of a work request. If the memory cannot be read, the
// packets from there on are taken back.
type mark struct {
	trains  int // in the egress queue before the packet's train
	packets int // in the train before the packet
	index   int // place of the packet in its message
}

// mark returns the end of the last packet. The next packet has the given index in its message.
func (b *builder) mark(e *egress, index int) mark {
	m := mark{trains: len(e.queue), index: index}
	if b.t != nil {
		m.packets = b.t.packets
	}
	return m
}

// cutBack takes the packets from a mark on out of the egress queue and the open train. Afterwards the mark's train is
// open.
func (b *builder) cutBack(e *egress, m mark) {
	if len(e.queue) > m.trains {
		if b.t != nil {
			b.t.free()
		}
		for _, t := range e.queue[m.trains+1:] {
			t.free()
		}
		b.t = e.queue[m.trains]
		clear(e.queue[m.trains:])
		e.queue = e.queue[:m.trains]
	}
	b.cut(m.packets)
}

// cut takes the packets from the n-th on, which begins a message or the train, out of the open train.
func (b *builder) cut(n int) {
	if b.t == nil || n >= b.t.packets {
		return
	}
	i, end := 0, 0
	for left := n; left > 0; i++ {
		left -= b.t.spans[i].packets
		end = b.t.spans[i].end
	}
	clear(b.t.spans[i:])
	b.t.spans = b.t.spans[:i]
	b.t.packets = n
	b.t.Buf = b.t.Buf[:end]
	b.closed, b.middle = false, false
}

// refers reports whether a span refers to memory, to which an access has begun then.
func (t *train) refers() bool { return len(t.held) > 0 }

// spanOf returns the span of a train that has all of its payload at a place in Buf, nil if there is none.
func (t *train) spanOf(place []byte) *span {
	start := cap(t.Buf) - cap(place)
	for i := len(t.spans) - 1; i >= 0; i-- {
		if k := &t.spans[i]; k.start < start {
			if t.payload(k) == start && start+len(place)+roce.BTH(t.Buf[k.start:]).PadCount()+link.ICRCLen == k.end {
				return k
			}
			break
		}
	}
	return nil
}

// payload returns the offset in Buf of the payload of a span.
func (t *train) payload(k *span) int { return k.start + roce.BTH(t.Buf[k.start:]).Opcode().HeaderLen() }

// fill copies referenced payloads to their places in the train.
func (t *train) fill() {
	if !t.refers() {
		return
	}
	for i := range t.spans {
		if k := &t.spans[i]; k.mem != nil {
			copy(t.Buf[t.payload(k):], k.mem)
		}
	}
	t.release()
}

// release ends the accesses to memory.
func (t *train) release() {
	if !t.refers() {
		return
	}
	for i := range t.spans {
		t.spans[i].mem = nil
	}
	for _, g := range t.held {
		g.put()
	}
	clear(t.held)
	t.held = t.held[:0]
}

func (e *egress) fill() {
	for _, t := range e.queue {
		t.fill()
	}
}
