package reqtrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"verbena/driver"
	"verbena/ib"
	"verbena/rdmacm"
	"verbena/uapi"
)

// The memory of a trace is a header, the table of queues, and the ring of events. Numbers are little-endian.
const (
	// Size is the size of the memory of a trace, in bytes.
	Size = 32 << 20

	headerSize = 4096
	queueSize  = 128
	maxQueues  = 4096
	eventSize  = 64
	ringStart  = headerSize + maxQueues*queueSize
	// MaxEvents is the number of events that a trace holds.
	MaxEvents = (Size - ringStart) / eventSize

	magic = "verbena\x01"

	headerUntraced = 8 // number of queues that had no room in the table
)

// kinds of events that the Recorder itself makes, after those of package driver.
const (
	kindState      = 64 + iota // a queue pair has changed its state
	kindRefused                // a queue pair has refused a request of its peer
	kindDropped                // a queue pair has dropped packets
	kindUnsent                 // packets were not sent
	kindRuled                  // a fault rule has dropped packets
	kindDevice                 // the state of a device has changed
	kindConnection             // an event of the connection manager
)

// Kinds in the table of queues, after those of package driver.
const (
	kindOfManager = 254 // the IDs of a program in the connection manager
	kindOfDevice  = 255 // a device
)

// queueEntry is an entry of the table of queues.
type queueEntry struct {
	kind                uint8
	typ                 ib.QPType
	num, pid, entries   uint32
	sendCQ, recvCQ, srq uint16 // 0: none
	device, program     string
}

const (
	entryDevice  = 24 // offset of the device's name, zero-terminated
	entryProgram = 88 // offset of the program's name, likewise
)

func (q *queueEntry) encode(b []byte) {
	clear(b)
	b[1], b[2] = q.kind, uint8(q.typ)
	binary.LittleEndian.PutUint32(b[4:], q.num)
	binary.LittleEndian.PutUint32(b[8:], q.pid)
	binary.LittleEndian.PutUint32(b[12:], q.entries)
	binary.LittleEndian.PutUint16(b[16:], q.sendCQ)
	binary.LittleEndian.PutUint16(b[18:], q.recvCQ)
	binary.LittleEndian.PutUint16(b[20:], q.srq)
	copy(b[entryDevice:entryProgram-1], q.device)
	copy(b[entryProgram:queueSize-1], q.program)
	b[0] = 1
}

// decode returns false for an unused entry.
func (q *queueEntry) decode(b []byte) bool {
	if b[0] != 1 {
		return false
	}
	*q = queueEntry{
		kind: b[1], typ: ib.QPType(b[2]), num: binary.LittleEndian.Uint32(b[4:]), pid: binary.LittleEndian.Uint32(b[8:]),
		entries: binary.LittleEndian.Uint32(b[12:]), sendCQ: binary.LittleEndian.Uint16(b[16:]),
		recvCQ: binary.LittleEndian.Uint16(b[18:]), srq: binary.LittleEndian.Uint16(b[20:]),
		device: text(b[entryDevice:entryProgram]), program: text(b[entryProgram:queueSize]),
	}
	return true
}

// text returns a zero-terminated name, without control characters: a program chooses its name.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
}

// record is an event in the ring.
type record struct {
	seq    uint64
	time   int64
	queue  uint16
	cq     uint16
	kind   uint8
	flags  uint8
	opcode uint8 // also a RepeatCause
	status uint8 // also the READs in flight of a RequestStarted, at most 255

	// The following fields are not of kindState, kindDevice and kindConnection.
	began         int64
	wrid          uint64
	length, depth uint32
	x             [4]uint32 // see the indices

	// The following fields are of kindState.
	local, peer netip.Addr
	dest        uint32
	from, to    ib.QPState
	reason      uint8

	text string // only kindDevice

	connection ConnectionEvent // only kindConnection
}

// ConnectionEvent is an event of the connection manager (struct rdma_cm_event).
type ConnectionEvent struct {
	Time    time.Time
	Program Program
	ID      uint32 // number of the ID that has the event
	Type    rdmacm.EventType
	Status  int32          // see rdmacm.Event
	Peer    netip.AddrPort // zero if unknown
	// QPN is the number of the program's queue pair. PeerQPN is the number in the peer's message. Each is 0 if unknown.
	QPN, PeerQPN uint32
}

// Indices of record.x. Events of different kinds share the fields.
const (
	xNumber, xPSN, xPackets, xPeer = 0, 1, 2, 3 // RequestStarted
	xPosition, xConsumed           = 2, 3       // RequestDone, and ReceiveDone with xPSN
	xSource                        = 0          // ReceiveDone
	xCount                         = 0          // others
)

// ring is the memory of a trace that is being recorded.
type ring struct {
	mem  []byte
	next atomic.Uint64 // number of events so far
	off  atomic.Bool
	// queues and untraced are guarded by the Recorder's lock.
	queues   int
	untraced uint32
	others   map[otherKey]uint16
}

// otherKey identifies an entry of the table that is not a queue: a device, or a process in the connection manager.
type otherKey struct {
	device string
	pid    uint32
}

func newRing(mem []byte) *ring {
	r := &ring{mem: mem, others: map[otherKey]uint16{}}
	copy(mem, magic)
	return r
}

// addQueue adds an entry to the table. It returns 0 if the table is full.
func (r *ring) addQueue(q *queueEntry) uint16 {
	if r.queues == maxQueues-1 {
		r.untraced++
		binary.LittleEndian.PutUint32(r.mem[headerUntraced:], r.untraced)
		return 0
	}
	r.queues++
	q.encode(r.mem[headerSize+r.queues*queueSize:][:queueSize])
	return uint16(r.queues)
}

// addOther adds an entry that is not a queue, if the table does not have it. It returns 0 if the table is full.
func (r *ring) addOther(q *queueEntry) uint16 {
	k := otherKey{q.device, q.pid}
	id := r.others[k]
	if id == 0 {
		if id = r.addQueue(q); id != 0 {
			r.others[k] = id
		}
	}
	return id
}

// slot returns the memory for the next event, and its sequence number, which finish stores. It returns nil after the
// end of the trace.
func (r *ring) slot() (b []byte, seq uint64) {
	if r.off.Load() {
		return nil, 0
	}
	n := r.next.Add(1)
	at := ringStart + int((n-1)%MaxEvents)*eventSize
	return r.mem[at : at+eventSize : at+eventSize], n
}

// head stores the fields that all kinds have.
func head(b []byte, seq uint64, time int64, queue, cq uint16, kind, flags, opcode, status uint8) {
	_ = b[eventSize-1]
	binary.LittleEndian.PutUint64(b[8:], uint64(time))
	binary.LittleEndian.PutUint64(b[16:], uint64(queue)|uint64(cq)<<16|uint64(kind)<<32|uint64(flags)<<40|
		uint64(opcode)<<48|uint64(status)<<56)
	binary.LittleEndian.PutUint64(b[0:], seq)
}

// body stores the fields of a request.
func body(b []byte, began int64, wrid uint64, length, depth uint32, x [4]uint32) {
	_ = b[eventSize-1]
	binary.LittleEndian.PutUint64(b[24:], uint64(began))
	binary.LittleEndian.PutUint64(b[32:], wrid)
	binary.LittleEndian.PutUint64(b[40:], uint64(length)|uint64(depth)<<32)
	binary.LittleEndian.PutUint64(b[48:], uint64(x[0])|uint64(x[1])<<32)
	binary.LittleEndian.PutUint64(b[56:], uint64(x[2])|uint64(x[3])<<32)
}

// add adds an event of the engine.
func (r *ring) add(queue, cq uint16, e *driver.RequestEvent) {
	b, seq := r.slot()
	if b == nil {
		return
	}
	var x [4]uint32
	opcode, status := uint8(e.Opcode), uint8(e.Status)
	switch e.Kind {
	case driver.RequestStarted:
		x[xNumber], x[xPSN], x[xPackets], x[xPeer] = e.Number, e.PSN, e.Packets, e.Peer
		status = uint8(min(e.Reads, 255))
	case driver.RequestDone:
		x[xNumber], x[xPosition], x[xConsumed] = e.Number, e.Position, e.Consumed
	case driver.ReceiveDone:
		x[xSource], x[xPSN], x[xPosition], x[xConsumed] = e.Peer, e.PSN, e.Position, e.Consumed
	case driver.RequestsWait:
		x[xNumber] = e.Number
	case driver.QueueArmed, driver.QueuePolled:
		x[xConsumed] = e.Consumed
	default:
		x[xCount], x[xPSN] = e.Count, e.PSN
		opcode = uint8(e.Cause)
	}
	body(b, e.Began, e.WRID, e.Length, e.Depth, x)
	head(b, seq, e.Time, queue, cq, uint8(e.Kind), e.Flags, opcode, status)
}

// addState adds a change of a queue pair's state.
func (r *ring) addState(queue uint16, s *driver.StateChange) {
	b, seq := r.slot()
	if b == nil {
		return
	}
	local, peer := s.QP.Local.As16(), s.QP.Peer.As16()
	copy(b[24:40], local[:])
	copy(b[40:56], peer[:])
	binary.LittleEndian.PutUint32(b[56:], s.QP.DestQPN)
	b[60], b[61], b[62], b[63] = uint8(s.From), uint8(s.To), uint8(s.Cause.Reason), 0
	head(b, seq, s.Time.UnixNano(), queue, 0, kindState, 0, 0, uint8(s.Cause.Status))
}

// addText adds a change of a device.
func (r *ring) addText(queue uint16, time int64, text string) {
	b, seq := r.slot()
	if b == nil {
		return
	}
	clear(b[24:])
	copy(b[24:], text)
	head(b, seq, time, queue, 0, kindDevice, 0, 0, 0)
}

// addConnection adds an event of the connection manager.
func (r *ring) addConnection(queue uint16, c *ConnectionEvent) {
	b, seq := r.slot()
	if b == nil {
		return
	}
	peer := c.Peer.Addr().As16()
	copy(b[24:40], peer[:])
	binary.LittleEndian.PutUint32(b[40:], uint32(c.Peer.Port()))
	binary.LittleEndian.PutUint32(b[44:], c.ID)
	binary.LittleEndian.PutUint32(b[48:], uint32(c.Type))
	binary.LittleEndian.PutUint32(b[52:], uint32(c.Status))
	binary.LittleEndian.PutUint32(b[56:], c.QPN)
	binary.LittleEndian.PutUint32(b[60:], c.PeerQPN)
	head(b, seq, c.Time.UnixNano(), queue, 0, kindConnection, 0, 0, 0)
}

// addFailure adds an event of a queue pair of the Recorder's own kinds.
func (r *ring) addFailure(queue uint16, time int64, kind, what uint8, count, psn uint32) {
	b, seq := r.slot()
	if b == nil {
		return
	}
	body(b, 0, 0, 0, 0, [4]uint32{xCount: count, xPSN: psn})
	head(b, seq, time, queue, 0, kind, 0, what, 0)
}

// timeOf decodes a time, which is not negative.
func timeOf(b []byte) int64 { return max(int64(binary.LittleEndian.Uint64(b)), 0) }

func (x *record) decode(b []byte) {
	h := binary.LittleEndian.Uint64(b[16:])
	*x = record{seq: binary.LittleEndian.Uint64(b), time: timeOf(b[8:]), queue: uint16(h), cq: uint16(h >> 16),
		kind: uint8(h >> 32), flags: uint8(h >> 40), opcode: uint8(h >> 48), status: uint8(h >> 56)}
	switch x.kind {
	case kindState:
		x.local, x.peer = netip.AddrFrom16([16]byte(b[24:40])).Unmap(), netip.AddrFrom16([16]byte(b[40:56])).Unmap()
		x.dest, x.from, x.to, x.reason = binary.LittleEndian.Uint32(b[56:]), ib.QPState(b[60]), ib.QPState(b[61]), b[62]
	case kindDevice:
		x.text = text(b[24:])
	case kindConnection:
		x.connection = ConnectionEvent{
			Peer: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:40])).Unmap(), binary.LittleEndian.Uint16(b[40:])),
			ID:   binary.LittleEndian.Uint32(b[44:]), Type: rdmacm.EventType(binary.LittleEndian.Uint32(b[48:])),
			Status: int32(binary.LittleEndian.Uint32(b[52:])), QPN: binary.LittleEndian.Uint32(b[56:]),
			PeerQPN: binary.LittleEndian.Uint32(b[60:]),
		}
	default:
		x.began, x.wrid = timeOf(b[24:]), binary.LittleEndian.Uint64(b[32:])
		x.length, x.depth = binary.LittleEndian.Uint32(b[40:]), binary.LittleEndian.Uint32(b[44:])
		for i := range x.x {
			x.x[i] = binary.LittleEndian.Uint32(b[48+4*i:])
		}
	}
}

// memory is a trace as its client reads it.
type memory struct {
	queues   []queueEntry // by number; the first one is unused
	events   []record     // in order of their time
	lost     uint64       // older events that were replaced
	untraced uint32       // queues that had no room
}

// errNoTrace is the error for memory that is not of a trace.
var errNoTrace = errors.New("this is not the memory of a trace")

// wcStatus returns the status of a completion.
func (x *record) wcStatus() uapi.WCStatus { return uapi.WCStatus(x.status) }
