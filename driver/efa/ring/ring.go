// Package ring has the places of the queues of EFA in the memory that a program shares with its service, and completes
// requests in them after the service has died.
//
// The region of a queue pair has these parts, each of whole pages:
//
//	doorbells  producer counts, stored by the program
//	send queue, receive queue
//	record     the device's notes for Flush: the taken slots of both queues, and the requests in flight
//
// The device writes the record and never reads it. A request in flight has no slot: the requests of SRD complete in any
// order, and the program reuses their slots in the order of posting.
package ring

import (
	"math/bits"
	"os"
	"sync/atomic"

	"verbena/internal/queuedir"
	"verbena/internal/shm"
	"verbena/uapi"
	"verbena/uapi/efa"
)

// SendDoorbell and RecvDoorbell are offsets in the doorbells, in different cache lines.
const (
	SendDoorbell = 0
	RecvDoorbell = 64
)

// RXDescSize is the size of a descriptor of a receive queue, in bytes.
const RXDescSize = 16

// The record begins with the numbers of slots that the device has taken since RESET, modulo 2^32. At Words, an array
// with a word for each slot of the send queue follows. The low bits of the identifier of a request select its word,
// since a library uses each index once at a time.
const (
	SendTaken = 0
	RecvTaken = 4
	Words     = 64

	// InFlight is the bit of a word of a request in flight, beside the 16 bits of its identifier.
	InFlight = 1 << 16
)

// Region is the sizes of the parts of the region of a queue pair.
type Region struct {
	SendSlots, RecvSlots uint32
	SendWQE              uint32 // bytes of a slot of the send queue
}

// maxSlots is the maximum number of slots of a queue, because counts have 16 bits.
const maxSlots = 1 << 15

// pages rounds a size up to whole pages.
func pages(size int) int {
	page := os.Getpagesize()
	return (size + page - 1) / page * page
}

// Doorbells, Send, Recv and Record return the sizes of the parts, in the order of the parts.
func (r Region) Doorbells() int { return os.Getpagesize() }

// Send returns the size of the send queue.
func (r Region) Send() int { return pages(int(r.SendSlots * r.SendWQE)) }

// Recv returns the size of the receive queue.
func (r Region) Recv() int { return pages(int(r.RecvSlots * RXDescSize)) }

// Record returns the size of the record.
func (r Region) Record() int { return pages(Words + 4*int(r.SendSlots)) }

// Size returns the size of the region.
func (r Region) Size() int { return r.Doorbells() + r.Send() + r.Recv() + r.Record() }

// Word returns the offset in the record of the word of a request.
func (r Region) Word(id uint16) int { return Words + 4*int(uint32(id)&(r.SendSlots-1)) }

// Locations returns the locations of the queues of a region that begins at an offset.
func (r Region) Locations(offset uint64) (sq, rq queuedir.Location) {
	if r.SendSlots > 0 {
		sq = queuedir.Location{Offset: offset, Mask: r.SendSlots - 1, Shift: uint32(bits.Len32(r.SendWQE - 1))}
	}
	if r.RecvSlots > 0 {
		rq = queuedir.Location{Offset: offset, Mask: r.RecvSlots - 1, Shift: uint32(bits.Len32(RXDescSize - 1))}
	}
	return sq, rq
}

// regionOf returns the region with queues at two locations, and its offset. ok is false if there is none.
func regionOf(sq, rq queuedir.Location) (r Region, offset uint64, ok bool) {
	if sq != (queuedir.Location{}) {
		r.SendSlots, r.SendWQE, offset = sq.Mask+1, 1<<(sq.Shift&31), sq.Offset
		if r.SendWQE != efa.TXWQESize && r.SendWQE != efa.TXWQE128Size || !isCount(r.SendSlots) {
			return r, 0, false
		}
	}
	if rq != (queuedir.Location{}) {
		if r.RecvSlots, offset = rq.Mask+1, rq.Offset; !isCount(r.RecvSlots) {
			return r, 0, false
		}
	}
	return r, offset, r.SendSlots+r.RecvSlots > 0
}

// isCount reports whether a queue can have n slots.
func isCount(n uint32) bool { return n > 0 && n <= maxSlots && n&(n-1) == 0 }

// Flush implements queuedir.Flush for queue pairs of EFA. A completion queue of a correct program has room for all its
// requests; the device does not know the number of unread completions.
func Flush(f *queuedir.File, e *queuedir.Entry) {
	r, offset, ok := regionOf(e.SQ, e.RQ)
	if !ok {
		return
	}
	mem, err := f.Map(offset, r.Size())
	if err != nil {
		return
	}
	defer queuedir.Unmap(mem)
	doorbells := mem
	send := doorbells[r.Doorbells():]
	recv := send[r.Send():]
	record := recv[r.Recv():]
	if r.SendSlots > 0 {
		if cq := mapCompletions(f, e.SendCQ, e.QPN); cq != nil {
			defer queuedir.Unmap(cq.mem)
			flushSends(f, cq, r, word(doorbells, SendDoorbell), record, send)
		}
	}
	if r.RecvSlots > 0 {
		if cq := mapCompletions(f, e.RecvCQ, e.QPN); cq != nil {
			defer queuedir.Unmap(cq.mem)
			flushRecvs(f, cq, r, word(doorbells, RecvDoorbell), word(record, RecvTaken), recv)
		}
	}
}

func word(mem []byte, at int) *atomic.Uint32 { return shm.FirstWord(mem[at:]) }

// flushSends completes the send requests in flight, and then the requests that the device has not taken.
func flushSends(f *queuedir.File, cq *completions, r Region, doorbell *atomic.Uint32, record, queue []byte) {
	flying := map[uint16]bool{}
	for i := range r.SendSlots {
		w := word(record, Words+4*int(i))
		if v := w.Load(); v&InFlight != 0 {
			if !f.Charge() {
				return
			}
			flying[uint16(v)] = true
			cq.push(efa.IOSendQueue, uint16(v))
			w.Store(0)
		}
	}
	taken := word(record, SendTaken)
	for range posted(doorbell, taken, r.SendSlots) {
		m, _ := uapi.Decode[efa.TXMetaDesc](queue[taken.Load()&(r.SendSlots-1)*r.SendWQE:])
		if !flying[m.ReqID] { // the service has died while it took the request
			if !f.Charge() {
				return
			}
			cq.push(efa.IOSendQueue, m.ReqID)
		}
		taken.Add(1)
	}
}

// flushRecvs completes the receives that the device has not taken.
func flushRecvs(f *queuedir.File, cq *completions, r Region, doorbell, taken *atomic.Uint32, queue []byte) {
	for range posted(doorbell, taken, r.RecvSlots) {
		d, _ := uapi.Decode[efa.RXDesc](queue[taken.Load()&(r.RecvSlots-1)*RXDescSize:])
		if d.LKeyCtrl&efa.IORXDescFirstMask != 0 {
			if !f.Charge() {
				return
			}
			cq.push(efa.IORecvQueue, d.ReqID)
		}
		taken.Add(1)
	}
}

// posted returns the number of posted slots that the device has not taken.
func posted(doorbell, taken *atomic.Uint32, slots uint32) uint32 {
	if n := uint32(uint16(doorbell.Load() - taken.Load())); n <= slots {
		return n
	}
	return 0
}

// completions is a completion queue. next is the index of the entry to write.
type completions struct {
	mem         []byte
	size, slots int
	next        int
	phase       uint8 // for the next entry
	qpn         uint32
}

// mapCompletions maps the completion queue at a location; nil if there is none. The phase bit of the next entry differs
// from that of its predecessors.
func mapCompletions(f *queuedir.File, at queuedir.Location, qpn uint32) *completions {
	c := &completions{slots: int(at.Mask) + 1, size: 1 << (at.Shift & 31), qpn: qpn}
	if c.size != uapi.SizeOf[efa.RXCDesc]() && c.size != uapi.SizeOf[efa.RXCDescEx]() || !isCount(at.Mask+1) {
		return nil
	}
	var err error
	if c.mem, err = f.Map(at.Offset, c.slots*c.size); err != nil {
		return nil
	}
	first := c.phaseOf(0)
	low, high := 1, c.slots
	for low < high {
		if mid := (low + high) / 2; c.phaseOf(mid) == first {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if c.next, c.phase = low, first; low == c.slots { // all entries belong to one round
		c.next, c.phase = 0, 1-first
	}
	return c
}

func (c *completions) phaseOf(i int) uint8 {
	h, _ := uapi.Decode[efa.CDescCommon](c.mem[i*c.size:])
	return h.Flags & efa.IOCDescCommonPhaseMask
}

// push adds a completion with a flush error. The first word makes the entry valid, and is written last.
func (c *completions) push(queue uint8, id uint16) {
	e := c.mem[c.next*c.size:][:c.size]
	h := efa.CDescCommon{
		ReqID: id, Status: efa.IOCompStatusFlushed, Flags: c.phase | queue<<1, QPNum: uint16(c.qpn),
	}
	b := uapi.AppendTo(nil, &h)
	clear(e[4:])
	copy(e[4:], b[4:])
	first, _ := uapi.Decode[uint32](b)
	word(e, 0).Store(first)
	if c.next++; c.next == c.slots {
		c.next, c.phase = 0, 1-c.phase
	}
}
