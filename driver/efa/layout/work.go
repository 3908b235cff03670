package layout

import (
	"sync/atomic"

	"verbena/driver/efa/ring"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/uapi"
	"verbena/uapi/efa"
)

// counts are the positions of a work queue. They count without end; the program writes the low 16 bits of its own.
type counts struct {
	page   memory // doorbells
	at     int    // offset of the program's count in page
	slots  uint32
	taken  atomic.Uint32 // slots of requests that were taken; written by the consumer
	done   atomic.Uint32 // slots that are the program's again; written by the consumer
	record memory        // see package ring
	copyAt int           // offset of the copy of taken in record
}

// take takes slots.
func (c *counts) take(n uint32) { c.record.store(c.copyAt, c.taken.Add(n)) }

// posted returns the number of slots that are posted and not taken. ok is false if the memory is gone, or if the
// program announces more than the queue has.
func (c *counts) posted() (n uint32, ok bool) {
	count, ok := c.page.load(c.at)
	if !ok {
		return 0, false
	}
	done, taken := c.done.Load(), c.taken.Load()
	n = uint32(uint16(count - taken))
	if n+taken-done > c.slots { // a count before the taken requests makes n large, too
		return 0, false
	}
	return n, true
}

// discard takes and completes all slots.
func (c *counts) discard() (ok bool) {
	c.taken.Store(0)
	c.done.Store(0)
	c.record.store(c.copyAt, 0)
	return c.page.store(c.at, 0) // a library begins anew after RESET
}

// sendQueue is a ring of struct efa_io_tx_wqe or efa_io_tx_wqe_128. The engine is the consumer.
type sendQueue struct {
	counts
	mem    memory
	size   int    // bytes of a slot
	room   uint32 // bytes of inline data of a SEND
	sges   uint32
	buf    [efa.TXWQE128Size]byte // the consumer's copy of a slot
	next   uint16                 // identifier of the next request that Take takes
	parts  ring.Region
	region *region // memory of both queues, the doorbells and the record
}

var _ queue.Recorder = (*sendQueue)(nil)

// Capacity implements queue.WorkQueue.
func (q *sendQueue) Capacity() int { return int(q.slots) }

// Take implements queue.WorkQueue.
func (q *sendQueue) Take() {
	q.record.store(q.parts.Word(q.next), ring.InFlight|uint32(q.next))
	q.take(1)
}

// Forget implements queue.Recorder.
func (q *sendQueue) Forget(id uint64) { q.record.store(q.parts.Word(uint16(id)), 0) }

// Complete implements queue.WorkQueue.
func (q *sendQueue) Complete() (ok bool) {
	q.done.Add(1)
	return true
}

// Waiting implements queue.WorkQueue.
func (q *sendQueue) Waiting() (n uint32, ok bool) { return q.posted() }

// Discard implements queue.WorkQueue.
func (q *sendQueue) Discard() (ok bool) {
	q.record.clear(ring.Words)
	return q.discard()
}

// Free implements queue.WorkQueue.
func (q *sendQueue) Free() { q.region.shared.Free() }

// Posted implements queue.SendQueue.
func (q *sendQueue) Posted() (at uint32, some bool) {
	count, ok := q.page.load(q.at)
	return count, !ok || uint16(count) != uint16(q.taken.Load())
}

// TakeBack implements queue.SendQueue.
func (q *sendQueue) TakeBack() { q.page.store(q.at, q.taken.Load()&0xffff) }

// Push implements queue.SendQueue. Only programs post to the queue.
func (q *sendQueue) Push(*queue.Send) (pushed, ok bool) { return false, true }

// noOpcode is the opcode of a request that the adapter does not know.
const noOpcode = ^uapi.WROpcode(0)

// Fetch implements queue.SendQueue.
func (q *sendQueue) Fetch(n int, w *queue.Send) (found, ok bool) {
	posted, ok := q.posted()
	if !ok || uint32(n) >= posted {
		return false, ok
	}
	b := q.buf[:q.size]
	if !q.mem.read(int((q.taken.Load()+uint32(n))&(q.slots-1))*q.size, b) {
		return false, false
	}
	if q.decode(w, b); n == 0 {
		q.next = uint16(w.ID)
	}
	return true, true
}

// decode decodes a copy of a slot.
func (q *sendQueue) decode(w *queue.Send, b []byte) {
	m, _ := uapi.Decode[efa.TXMetaDesc](b)
	b = b[efa.TXWQEDataOffset:]
	op := efa.SendOpType(m.Ctrl1 & efa.IOTXMetaDescOpTypeMask)
	*w = queue.Send{
		ID: uint64(m.ReqID), Opcode: opcodeOf(&m), SGEs: w.SGEs[:0], Inline: w.Inline[:0],
		AH: uint32(m.AH), QPN: uint32(m.DestQPNum), QKey: m.QKey,
	}
	if m.Ctrl1&efa.IOTXMetaDescHasImmMask != 0 {
		w.Imm = uapi.ImmData(uapi.NewBE32(m.ImmediateData))
	}
	if m.Ctrl2&efa.IOTXMetaDescCompReqMask != 0 {
		w.Flags = uapi.SendSignaled
	}
	most := uint32(maxSGE)
	if op != efa.IOSend {
		remote, _ := uapi.Decode[efa.RemoteMemAddr](b)
		w.RemoteAddr, w.RKey = uint64(remote.BufAddrHi)<<32|uint64(remote.BufAddrLo), remote.RKey
		b, most = b[uapi.SizeOf[efa.RemoteMemAddr]():], efa.IOTXDescNumRDMABufs
	}
	switch {
	case w.Opcode == noOpcode:
	case m.Ctrl1&efa.IOTXMetaDescInlineMsgMask != 0:
		w.Flags |= uapi.SendInline
		w.Length = uint64(m.Length)
		w.Inline = append(w.Inline, b[:min(uint32(m.Length), q.room)]...)
	default:
		w.NumSGE = uint32(m.Length)
		if op != efa.IOSend && w.NumSGE > most {
			w.Opcode = noOpcode
			return
		}
		for i := range min(w.NumSGE, q.sges, most) {
			s, _ := uapi.Decode[efa.TXBufDesc](b[i*uint32(uapi.SizeOf[efa.TXBufDesc]()):])
			w.SGEs = queue.AppendSGE(w.SGEs, ib.SGE{
				Addr: uint64(s.BufAddrHi)<<32 | uint64(s.BufAddrLo), Length: s.Length, LKey: s.LKey & efa.IOTXBufDescLKeyMask,
			})
		}
		w.Length = uint64(queue.Length(w.SGEs))
	}
}

// opcodeOf returns the opcode of a request, or noOpcode for one that is malformed.
func opcodeOf(m *efa.TXMetaDesc) uapi.WROpcode {
	const whole = efa.IOTXMetaDescFirstMask | efa.IOTXMetaDescLastMask
	if m.Ctrl1&efa.IOTXMetaDescMetaDescMask == 0 || m.Ctrl1&efa.IOTXMetaDescMetaExtensionMask != 0 ||
		m.Ctrl2&whole != whole {
		return noOpcode
	}
	imm, inline := m.Ctrl1&efa.IOTXMetaDescHasImmMask != 0, m.Ctrl1&efa.IOTXMetaDescInlineMsgMask != 0
	switch op := efa.SendOpType(m.Ctrl1 & efa.IOTXMetaDescOpTypeMask); {
	case op == efa.IOSend && imm:
		return uapi.WRSendWithImm
	case op == efa.IOSend:
		return uapi.WRSend
	case op == efa.IORDMAWrite && imm && !inline:
		return uapi.WRRDMAWriteWithImm
	case op == efa.IORDMAWrite && !inline:
		return uapi.WRRDMAWrite
	case op == efa.IORDMARead && !imm && !inline:
		return uapi.WRRDMARead
	}
	return noOpcode
}

// recvQueue is a ring of struct efa_io_rx_desc. A request is one descriptor or several. The engine is the consumer.
type recvQueue struct {
	counts
	mem     memory
	sges    uint32
	buf     [ring.RXDescSize]byte
	fetched uint32 // descriptors of the next request

	notifies bool // RDMA WRITEs with immediate data take no request
}

var _ queue.WriteNotifier = (*recvQueue)(nil)

// NotifiesWrites implements queue.WriteNotifier.
func (q *recvQueue) NotifiesWrites() bool { return q.notifies }

// Capacity implements queue.WorkQueue.
func (q *recvQueue) Capacity() int { return int(q.slots) }

// Take implements queue.WorkQueue.
func (q *recvQueue) Take() { q.take(q.fetched) }

// Complete implements queue.WorkQueue. The engine completes a receive before it takes the next one.
func (q *recvQueue) Complete() (ok bool) {
	q.done.Store(q.taken.Load())
	return true
}

// Waiting implements queue.WorkQueue.
func (q *recvQueue) Waiting() (n uint32, ok bool) { return q.posted() }

// Discard implements queue.WorkQueue.
func (q *recvQueue) Discard() (ok bool) { return q.discard() }

// Free implements queue.WorkQueue. The send queue frees the memory.
func (q *recvQueue) Free() {}

// Push implements queue.RecvQueue. Only programs post to the queue.
func (q *recvQueue) Push(*queue.Recv) (pushed, ok bool) { return false, true }

// MoveTo implements queue.RecvQueue. Only shared receive queues move.
func (q *recvQueue) MoveTo(queue.RecvQueue) (ok bool) { return true }

// Fetch implements queue.RecvQueue. A request that does not begin with the first bit, or has more descriptors than the
// queue was made for, is one descriptor with too many elements.
func (q *recvQueue) Fetch(n int, w *queue.Recv) (found, ok bool) {
	posted, ok := q.posted()
	if !ok {
		return false, false
	}
	for at := uint32(0); at < posted; {
		used, ok := q.decode(w, at, posted-at)
		if !ok {
			return false, false
		}
		if n == 0 {
			if at == 0 {
				q.fetched = used
			}
			return true, true
		}
		n--
		at += used
	}
	return false, true
}

// decode decodes the request at the slot at behind the taken ones, of most descriptors, and returns their number.
func (q *recvQueue) decode(w *queue.Recv, at, most uint32) (used uint32, ok bool) {
	*w = queue.Recv{SGEs: w.SGEs[:0]}
	for used < min(most, max(q.sges, 1)) {
		if !q.mem.read(int((q.taken.Load()+at+used)&(q.slots-1))*ring.RXDescSize, q.buf[:]) {
			return 0, false
		}
		d, _ := uapi.Decode[efa.RXDesc](q.buf[:])
		first := d.LKeyCtrl&efa.IORXDescFirstMask != 0
		if used == 0 {
			w.ID = uint64(d.ReqID)
		}
		if first != (used == 0) {
			break
		}
		used++
		w.SGEs = queue.AppendSGE(w.SGEs, ib.SGE{
			Addr: uint64(d.BufAddrHi)<<32 | uint64(d.BufAddrLo), Length: uint32(d.Length),
			LKey: d.LKeyCtrl & efa.IORXDescLKeyMask,
		})
		if d.LKeyCtrl&efa.IORXDescLastMask != 0 {
			w.NumSGE, w.Length = used, queue.Length(w.SGEs)
			return used, true
		}
	}
	w.SGEs, w.NumSGE = w.SGEs[:0], ^uint32(0)
	return 1, true
}
