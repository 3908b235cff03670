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
	sent    int    // packets of a mixed train that were sent to the network
	path    *path
	to      uint32 // number of the destination queue pair of all packets
	packets int
	pool    *sync.Pool // nil: the buffer has the minimum size, and no pool
	from    *QP        // the sender, while the train is an event of another queue pair
	charged bool       // to QP.lane of that other queue pair

	writes bool     // all packets are RDMA WRITEs by one key
	key    uint32   // the key of these WRITEs
	held   []*grant // accesses in progress while a span refers to memory
}

// span is one packet of a train, or consecutive middle packets of a message, which share the header of the first.
// They differ only in their PSNs, and each is as long as the path MTU. Only a mixed train has spans of several
// packets.
type span struct {
	start, end int // in Buf
	packets    int
	mem        []byte // the payload, if it is not in Buf yet; see copy.go
}

// alignment is the alignment of payload in a mixed train relative to its source memory. Processors copy several times
// more slowly if source and destination have page offsets a few bytes apart (AMD's Zen 3 and 4, with REP MOVSB).
const alignment = 64

// Trains have three sizes. A train with data for the network may grow to the network's limit, and an acknowledgement
// has a train of its own. A mixed train has room for headers, and for as much data as a core copies twice from its
// own cache. Smaller trains cost more system calls.
const (
	ackTrain   = 128
	mixedTrain = 4*link.MaxTrain + link.MaxTrain/8
	// maxSpans is the maximum number of spans of a mixed train, and so of elements of a copy.
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

// shrink returns a buffer that is too large to the pool, and gives the train a buffer of its own size.
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
	size    int // payload length of a packet
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

// The requester and the READ responses of a queue pair pause at maxBacklog trains that wait to be sent, or to be
// received by queue pairs of the same Fabric. The limit is enough to fill a socket buffer, and bounds memory. A mixed
// train counts twice.
const (
	maxBacklog = 4
	maxHanded  = maxBacklog / 2
)

// egress holds the unsent trains of a queue pair, in order.
type egress struct {
	queue   []*train
	bytes   int          // size of queue when sendAll began; a sent train belongs to another thread
	handed  atomic.Int32 // trains that queue pairs of the Fabric have not received yet
	short   bool         // there was no room for further trains
	blocked bool         // the socket was full; the timer continues
}

// full reports whether the queue pair must pause. It runs again when a train has been sent or received.
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

// builder adds packets to trains. A packet joins the open train if it has the same destination, and the length of the
// packet before. A shorter packet is the last one of its train. A mixed train has no such rule for the length.
type builder struct {
	t      *train
	closed bool
	middle bool // the last span of a mixed train is of middle packets; the next middle packet may join it
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

// add returns the place of a packet of size bytes in the open train, which has room for the packet. headers is the
// length of its headers, and addr is the address of its payload in memory.
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

// added records that the last packet is a middle one. No packet joins it if it asks for an acknowledgement.
func (b *builder) added(asks bool) { b.middle = b.t.mixed && !asks }

// stretches returns the number of middle packets, each with size bytes of payload, for which stretch has room.
func (b *builder) stretches(size int) int {
	if !b.middle {
		return 0
	}
	return (cap(b.t.Buf) - len(b.t.Buf)) / size
}

// stretch adds middle packets, with size bytes of payload together, to the last span of the open train, if possible.
// It returns the place of their payload.
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

// start opens a train to a queue pair. The packets have size bytes. If the train will probably stay in the Fabric, it
// is mixed, and the packets have any length.
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

// mark is the position of the first packet without payload in a work request. If the memory cannot be read, the
// packets from the mark on are removed.
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

// cutBack removes the packets from a mark on from the egress queue and the open train. Then the train of the mark is
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

// cut removes the packets from the n-th on from the open train. The n-th packet begins a message or the train.
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

// refers reports whether a span refers to memory. If so, an access to that memory is in progress.
func (t *train) refers() bool { return len(t.held) > 0 }

// spanOf returns the span that has all of its payload at a place in Buf, or nil.
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
