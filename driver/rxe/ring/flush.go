package ring

import (
	"encoding/binary"

	"verbena/internal/queuedir"
	"verbena/uapi"
)

// Location returns the location of the ring, or zero if the ring is not shared.
func (r *Ring) Location() queuedir.Location {
	if r == nil || !r.shared {
		return queuedir.Location{}
	}
	return queuedir.Location{Offset: r.offset, Mask: r.mask, Shift: uint32(r.shift)}
}

// Flush implements queuedir.Flush for rings. It acts as the consumer of the work queues and as the producer of the
// completion queues.
func Flush(f *queuedir.File, e *queuedir.Entry) {
	flushRing(f, e.SQ, e.SendCQ, uapi.WCSend, e.QPN)
	flushRing(f, e.RQ, e.RecvCQ, uapi.WCRecv, e.QPN)
}

// flushRing completes the outstanding requests in a work queue of a queue pair.
func flushRing(f *queuedir.File, queue, completions queuedir.Location, opcode uapi.WCOpcode, qpn uint32) {
	work := mapRing(f, queue)
	if work == nil {
		return
	}
	defer queuedir.Unmap(work.mem)
	cq := mapRing(f, completions)
	if cq == nil {
		return
	}
	defer queuedir.Unmap(cq.mem)
	cons, ok1 := work.Consumer()
	prod, ok2 := cq.Producer()
	if !ok1 || !ok2 {
		return
	}
	for range work.Capacity() {
		var id [8]byte // the first field of both kinds of work requests
		if filled, ok := work.Peek(cons, id[:]); !filled || !ok {
			return
		}
		if !f.Charge() {
			return
		}
		wr := binary.NativeEndian.Uint64(id[:])
		slot := make([]byte, uapi.RXECQESize)
		uapi.Encode(slot, &uapi.WC{WRID: wr, Status: uapi.WCWRFlushErr, Opcode: opcode, QPNum: qpn})
		if pushed, ok := cq.Push(prod, slot); !pushed || !ok {
			return
		}
		prod, cons = cq.Next(prod), work.Next(cons)
		work.SetConsumer(cons)
	}
}

// mapRing maps the ring at a location in the file; nil if there is none. The caller unmaps its memory.
func mapRing(f *queuedir.File, at queuedir.Location) *Ring {
	slots := uint64(at.Mask) + 1
	if slots&(slots-1) != 0 || slots > MaxSlots || at.Shift < minShift || at.Shift > maxShift {
		return nil
	}
	mem, err := f.Map(at.Offset, uapi.RXEQueueDataOffset+int(slots)<<at.Shift)
	if err != nil {
		return nil
	}
	r := &Ring{mem: mem, shift: uint8(at.Shift), mask: at.Mask, shared: true, offset: at.Offset}
	r.attach()
	return r
}
