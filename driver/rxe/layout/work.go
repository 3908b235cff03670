package layout

import (
	"bytes"
	"sync/atomic"

	"verbena/driver/rxe/ring"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/uapi"
)

// workQueue is the part that send and receive queues share. The engine is the consumer.
type workQueue struct {
	ring *ring.Ring
	next atomic.Uint32 // slot of the next request that is not taken; written by the consumer
	done uint32        // slot that completes next; of the consumer
	buf  []byte        // the consumer's copy of a slot
}

func (q *workQueue) rings() *ring.Ring { return q.ring }

// Capacity implements queue.WorkQueue.
func (q *workQueue) Capacity() int { return q.ring.Capacity() }

// Take implements queue.WorkQueue.
func (q *workQueue) Take() { q.next.Store(q.ring.Next(q.next.Load())) }

// Complete implements queue.WorkQueue.
func (q *workQueue) Complete() (ok bool) {
	q.done = q.ring.Next(q.done)
	return q.ring.SetConsumer(q.done)
}

// Waiting implements queue.WorkQueue.
func (q *workQueue) Waiting() (n uint32, ok bool) {
	prod, ok := q.ring.Producer()
	return q.ring.Between(q.next.Load(), prod), ok
}

// Discard implements queue.WorkQueue.
func (q *workQueue) Discard() (ok bool) {
	prod, ok := q.ring.Producer()
	if !ok || !q.ring.SetConsumer(prod) {
		return false
	}
	q.done = prod
	q.next.Store(prod)
	return true
}

// Free implements queue.WorkQueue.
func (q *workQueue) Free() { q.ring.Free() }

// slot copies the n-th slot behind the taken ones.
func (q *workQueue) slot(n int) (b []byte, found, ok bool) {
	found, ok = q.ring.PeekNth(q.next.Load(), uint32(n), q.buf)
	return q.buf, found, ok
}

// push writes a slot for the producer.
func (q *workQueue) push(b []byte) (pushed, ok bool) {
	prod, ok := q.ring.Producer()
	if !ok {
		return false, false
	}
	return q.ring.Push(prod, b)
}

// sendQueue is a ring of struct rxe_send_wqe.
type sendQueue struct {
	workQueue
	typ  ib.QPType
	sges uint32 // elements that a slot has room for
	room uint32 // bytes of inline data that a slot has room for

	// fresh is true while each slot has held at most one request. Its data are then of that request.
	fresh bool
}

func newSend(typ ib.QPType, c *ib.QPCap, alloc ring.Alloc) (*sendQueue, error) {
	size := uapi.RXESendWQESize + int(c.MaxInlineData)
	r, err := ring.New(int(c.MaxSendWR), size, alloc)
	if err != nil {
		return nil, err
	}
	return &sendQueue{
		workQueue: workQueue{ring: r, buf: make([]byte, size)}, typ: typ,
		sges: c.MaxSendSGE, room: c.MaxInlineData, fresh: true,
	}, nil
}

const atomicLen = 8

// Fetch implements queue.SendQueue. (validate_send_wr)
func (q *sendQueue) Fetch(n int, w *queue.Send) (found, ok bool) {
	b, found, ok := q.slot(n)
	if !found || !ok {
		return false, ok
	}
	h, _ := uapi.Decode[uapi.RXESendWQE](b)
	*w = queue.Send{
		ID: h.WR.WRID, Opcode: h.WR.Opcode, Flags: h.WR.SendFlags, Imm: h.WR.Ex, SRQN: h.WR.Reserved,
		Length: uint64(h.DMA.Length), NumSGE: h.DMA.NumSGE, SGEs: w.SGEs[:0], Inline: w.Inline[:0],
	}
	q.decode(w, &h)
	data := b[uapi.RXESendWQESGEOffset:]
	if !canBeInline(w.Opcode) {
		if w.Opcode == uapi.WRAtomicWrite {
			w.Inline = append(w.Inline, data[:atomicLen]...)
		}
	} else if w.NumSGE == 0 {
		if w.Length != 0 { // ibv_wr_set_inline_data, for which a program gives no flag
			w.Flags |= uapi.SendInline
		} else if n == 0 && q.fresh {
			// wr_set_inline_data_list of rdma-core v34 to v63 writes no length. The last slot is left out: ibv_post_send
			// writes to it when the ring is full, before it finds that out.
			w.LengthLost = q.ring.Next(q.next.Load()) != 0 && len(bytes.Trim(data, "\x00")) > 0
		}
	}
	if w.Flags&uapi.SendInline != 0 && canBeInline(w.Opcode) {
		w.Inline = append(w.Inline, data[:min(h.DMA.Length, q.room)]...)
	} else {
		w.SGEs = decodeSGEs(w.SGEs, data, min(w.NumSGE, q.sges))
	}
	return true, true
}

// canBeInline reports whether requests with an opcode carry data to the peer.
func canBeInline(op uapi.WROpcode) bool {
	switch op {
	case uapi.WRSend, uapi.WRSendWithImm, uapi.WRSendWithInv, uapi.WRRDMAWrite, uapi.WRRDMAWriteWithImm:
		return true
	}
	return false
}

// decode decodes the variant of the request that its opcode selects.
func (q *sendQueue) decode(w *queue.Send, h *uapi.RXESendWQE) {
	if q.typ == ib.QPTypeUD || q.typ == ib.QPTypeGSI {
		u := h.WR.UD()
		w.QPN, w.QKey, w.AH = u.RemoteQPN, u.RemoteQKey, u.AHNum
		if w.AH == 0 { // the provider of rdma-core before v39 writes the vector into each request
			w.Vector = vectorOf(&u.AV)
		}
		return
	}
	switch w.Opcode {
	case uapi.WRBindMW, ib.WRRegMR:
		b := h.WR.MW()
		w.Bind = queue.Bind{
			Addr: b.Addr, Length: b.Length, MRLKey: b.MRLKey, MWRKey: b.MWRKey, RKey: b.RKey, Access: b.Access,
		}
	case uapi.WRFlush:
		f := h.WR.Flush()
		w.RemoteAddr, w.RKey, w.Flush = f.RemoteAddr, f.RKey, queue.Flush{Length: f.Length, Type: f.Type, Level: f.Level}
	case uapi.WRAtomicCmpAndSwp, uapi.WRAtomicFetchAndAdd:
		a := h.WR.Atomic()
		w.RemoteAddr, w.RKey, w.CompareAdd, w.Swap = a.RemoteAddr, a.RKey, a.CompareAdd, a.Swap
	default:
		r := h.WR.RDMA()
		w.RemoteAddr, w.RKey = r.RemoteAddr, r.RKey
	}
}

// vectorOf returns the address vector in a request without the addresses, which the program may have chosen freely.
func vectorOf(av *uapi.RXEAV) ib.AHAttr {
	g := &av.GRH
	return ib.AHAttr{Port: av.PortNum, HasGRH: true, GRH: ib.GlobalRoute{
		DGID: ib.GID(g.DGID), FlowLabel: g.FlowLabel, SGIDIndex: g.SGIDIndex, HopLimit: g.HopLimit,
		TrafficClass: g.TrafficClass,
	}}
}

// Push implements queue.SendQueue. It writes what the library would write.
func (q *sendQueue) Push(w *queue.Send) (pushed, ok bool) {
	var b [maxSendWQESize]byte
	h := uapi.RXESendWQE{WR: uapi.RXESendWR{WRID: w.ID, Reserved: w.SRQN, Opcode: w.Opcode, SendFlags: w.Flags, Ex: w.Imm}}
	h.DMA.Length, h.DMA.NumSGE = uint32(w.Length), uint32(len(w.SGEs))
	h.DMA.Resid = h.DMA.Length
	q.encode(w, &h)
	uapi.Encode(b[:], &h)
	n := uapi.RXESendWQESGEOffset
	n = encodeSGEs(b[:], n, w.SGEs)
	n += copy(b[n:], w.Inline)
	return q.push(b[:n])
}

// encode is the inverse of decode.
func (q *sendQueue) encode(w *queue.Send, h *uapi.RXESendWQE) {
	if q.typ == ib.QPTypeUD || q.typ == ib.QPTypeGSI {
		*h.WR.UD() = uapi.RXESendWRUD{RemoteQPN: w.QPN, RemoteQKey: w.QKey, AHNum: w.AH}
		return
	}
	switch w.Opcode {
	case uapi.WRBindMW, ib.WRRegMR:
		b := &w.Bind
		*h.WR.MW() = uapi.RXESendWRMW{
			Addr: b.Addr, Length: b.Length, MRLKey: b.MRLKey, MWRKey: b.MWRKey, RKey: b.RKey, Access: b.Access,
		}
	case uapi.WRFlush:
		*h.WR.Flush() = uapi.RXESendWRFlush{
			RemoteAddr: w.RemoteAddr, RKey: w.RKey, Length: w.Flush.Length, Type: w.Flush.Type, Level: w.Flush.Level,
		}
	case uapi.WRAtomicCmpAndSwp, uapi.WRAtomicFetchAndAdd:
		*h.WR.Atomic() = uapi.RXESendWRAtomic{RemoteAddr: w.RemoteAddr, RKey: w.RKey, CompareAdd: w.CompareAdd, Swap: w.Swap}
		h.IOVA = w.RemoteAddr
	default:
		*h.WR.RDMA() = uapi.RXESendWRRDMA{RemoteAddr: w.RemoteAddr, RKey: w.RKey}
		h.IOVA = w.RemoteAddr
	}
}

// Take implements queue.WorkQueue.
func (q *sendQueue) Take() {
	q.workQueue.Take()
	if q.next.Load() == 0 {
		q.fresh = false
	}
}

// Discard implements queue.WorkQueue.
func (q *sendQueue) Discard() (ok bool) {
	q.fresh = false
	return q.workQueue.Discard()
}

// Posted implements queue.SendQueue.
func (q *sendQueue) Posted() (at uint32, some bool) {
	at, ok := q.ring.Producer()
	return at, !ok || at != q.next.Load()
}

// TakeBack implements queue.SendQueue.
func (q *sendQueue) TakeBack() {
	q.fresh = false
	q.ring.TakeBack(q.next.Load())
}

// recvQueue is a ring of struct rxe_recv_wqe.
type recvQueue struct {
	workQueue
	sges uint32 // elements that a slot has room for
}

func newRecv(entries int, sges uint32, alloc ring.Alloc) (*recvQueue, error) {
	size := uapi.RXERecvWQESize + int(sges)*sgeSize
	r, err := ring.New(entries, size, alloc)
	if err != nil {
		return nil, err
	}
	return &recvQueue{workQueue{ring: r, buf: make([]byte, size)}, sges}, nil
}

// Fetch implements queue.RecvQueue.
func (q *recvQueue) Fetch(n int, w *queue.Recv) (found, ok bool) {
	b, found, ok := q.slot(n)
	if !found || !ok {
		return false, ok
	}
	h, _ := uapi.Decode[uapi.RXERecvWQE](b)
	*w = queue.Recv{ID: h.WRID, NumSGE: h.DMA.NumSGE, SGEs: w.SGEs[:0]}
	w.SGEs = decodeSGEs(w.SGEs, b[uapi.RXERecvWQESGEOffset:], min(w.NumSGE, q.sges))
	w.Length = queue.Length(w.SGEs)
	return true, true
}

// Push implements queue.RecvQueue.
func (q *recvQueue) Push(w *queue.Recv) (pushed, ok bool) {
	var b [maxRecvWQESize]byte
	h := uapi.RXERecvWQE{WRID: w.ID}
	h.DMA.Length, h.DMA.NumSGE = uint32(w.Length), uint32(len(w.SGEs))
	h.DMA.Resid = h.DMA.Length
	uapi.Encode(b[:], &h)
	return q.push(b[:encodeSGEs(b[:], uapi.RXERecvWQESGEOffset, w.SGEs)])
}

// MoveTo implements queue.RecvQueue.
func (q *recvQueue) MoveTo(to queue.RecvQueue) (ok bool) {
	left, ok := q.Waiting()
	if !ok {
		return false
	}
	t := to.(*recvQueue)
	for n := range min(int(left), t.Capacity()) { // the program writes the index that left comes from
		b, _, ok := q.slot(n)
		if !ok {
			return false
		}
		if _, ok := t.push(b); !ok {
			return false
		}
	}
	return true
}

// decodeSGEs appends n elements in b to list, without the empty ones.
func decodeSGEs(list []ib.SGE, b []byte, n uint32) []ib.SGE {
	for range n {
		s, _ := uapi.Decode[uapi.RXESGE](b)
		b = b[sgeSize:]
		list = queue.AppendSGE(list, ib.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return list
}

// encodeSGEs writes elements to b and returns the offset behind them.
func encodeSGEs(b []byte, at int, list []ib.SGE) (end int) {
	for _, s := range list {
		at += uapi.Encode(b[at:], &uapi.RXESGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return at
}
