package rxe

import (
	"fmt"
	"syscall"

	"verbena/driver/rxe/transport"
	"verbena/ib"
	"verbena/roce"
	"verbena/uapi"
)

// wrRegMR is ib.WRRegMR, which no user process can ask for.
const wrRegMR = ib.WRRegMR

// kinds are the work requests of the connected services; datagrams take only transport.Send. (rxe_wr_opcode_info)
var kinds = [...]transport.Kind{
	uapi.WRRDMAWrite:         transport.Write,
	uapi.WRRDMAWriteWithImm:  transport.Write,
	uapi.WRSend:              transport.Send,
	uapi.WRSendWithImm:       transport.Send,
	uapi.WRRDMARead:          transport.Read,
	uapi.WRAtomicCmpAndSwp:   transport.Atomic,
	uapi.WRAtomicFetchAndAdd: transport.Atomic,
	uapi.WRLocalInv:          transport.Local,
	uapi.WRBindMW:            transport.Local,
	uapi.WRSendWithInv:       transport.Send,
	uapi.WRFlush:             transport.Flush,
	uapi.WRAtomicWrite:       transport.AtomicWrite,
	wrRegMR:                  transport.Local,
}

// kindOf is transport.None for what a queue pair of type t does not do.
func kindOf(t ib.QPType, op uapi.WROpcode) transport.Kind {
	if int(op) >= len(kinds) {
		return transport.None
	}
	k := kinds[op]
	switch {
	case t == ib.QPTypeRC, t == ib.QPTypeXRCInit,
		t == ib.QPTypeUC && (k == transport.Send && op != uapi.WRSendWithInv || k == transport.Write || k == transport.Local),
		(t == ib.QPTypeUD || t == ib.QPTypeGSI) && k == transport.Send && op != uapi.WRSendWithInv:
		return k
	}
	return transport.None
}

// wcOpcodes are the completions of the work requests (wr_to_wc_opcode).
var wcOpcodes = [...]uapi.WCOpcode{
	uapi.WRRDMAWrite:         uapi.WCRDMAWrite,
	uapi.WRRDMAWriteWithImm:  uapi.WCRDMAWrite,
	uapi.WRSend:              uapi.WCSend,
	uapi.WRSendWithImm:       uapi.WCSend,
	uapi.WRRDMARead:          uapi.WCRDMARead,
	uapi.WRAtomicCmpAndSwp:   uapi.WCCompSwap,
	uapi.WRAtomicFetchAndAdd: uapi.WCFetchAdd,
	uapi.WRLocalInv:          uapi.WCLocalInv,
	uapi.WRBindMW:            uapi.WCBindMW,
	uapi.WRSendWithInv:       uapi.WCSend,
	uapi.WRFlush:             uapi.WCFlush,
	uapi.WRAtomicWrite:       uapi.WCAtomicWrite,
	wrRegMR:                  ib.WCRegMR,
}

// sendWQE is a send work request that the requester has taken out of the ring, checked, and given its PSNs.
type sendWQE struct {
	id     uint64
	opcode uapi.WROpcode
	flags  uapi.SendFlags
	kind   transport.Kind
	imm    uapi.ImmData
	status uapi.WCStatus // not success: the request cannot be done, and will be completed with this

	length  int
	packets int // PSNs that it takes
	sges    []uapi.RXESGE
	inline  []byte

	remote uint64
	rkey   uint32
	a, b   uint64 // of atomics: compare or add; swap
	mw     uapi.RXESendWRMW
	flush  struct {
		placement roce.FlushType
		level     roce.FlushLevel
		length    uint32
	}

	path      *path  // of datagrams
	srqn      uint32 // XRC
	qpn, qkey uint32
}

const (
	atomicLen      = 8
	maxSendWQESize = uapi.RXESendWQESize + maxInline
	maxRecvWQESize = uapi.RXERecvWQESize + maxSGE*16
)

// decodeSend takes the work request that lies in b, a private copy of its slot. What is wrong with it goes into
// w.status. (validate_send_wr, for what a user process wrote past its library)
func (r *requester) decodeSend(w *sendWQE, b []byte) {
	qp := r.qp
	h, _ := uapi.Decode[uapi.RXESendWQE](b)
	data := b[uapi.RXESendWQESGEOffset:]
	*w = sendWQE{
		id: h.WR.WRID, opcode: h.WR.Opcode, flags: h.WR.SendFlags, imm: h.WR.Ex, srqn: h.WR.Reserved,
		kind: kindOf(qp.typ, h.WR.Opcode), packets: 1,
		sges: w.sges[:0], inline: w.inline[:0],
	}
	if w.kind == transport.None || w.opcode == wrRegMR && qp.ctx != nil {
		w.kind, w.status = transport.None, uapi.WCLocQPOpErr
		return
	}
	if w.kind == transport.Local {
		w.packets, w.rkey, w.mw = 0, h.WR.Ex.InvalidateRKey(), *h.WR.MW()
		return
	}
	if w.kind == transport.Flush || w.kind == transport.AtomicWrite {
		w.status = r.decodeSingle(w, &h, data)
		return
	}
	if h.DMA.NumSGE == 0 && h.DMA.Length != 0 && (w.kind == transport.Send || w.kind == transport.Write) {
		w.flags |= uapi.SendInline // ibv_wr_set_inline_data, for which a program gives no flag
	}
	if w.flags&uapi.SendInline != 0 {
		if w.kind == transport.Read || w.kind == transport.Atomic { // the slot holds data, where its elements belong
			w.status = uapi.WCLocQPOpErr
			return
		}
		if h.DMA.Length > qp.cap.MaxInlineData {
			w.status = uapi.WCLocLenErr
			return
		}
		w.length = int(h.DMA.Length)
		w.inline = append(w.inline, data[:w.length]...)
	} else if w.sges, w.length, w.status = decodeSGEs(w.sges, data, h.DMA.NumSGE, qp.cap.MaxSendSGE); w.status != 0 {
		return
	} else if w.length > maxMsgSize {
		w.sges, w.length, w.status = w.sges[:0], 0, uapi.WCLocLenErr
		return
	}
	switch w.kind {
	case transport.Write, transport.Read:
		r := h.WR.RDMA()
		w.remote, w.rkey = r.RemoteAddr, r.RKey
	case transport.Atomic:
		a := h.WR.Atomic()
		w.remote, w.rkey, w.a, w.b = a.RemoteAddr, a.RKey, a.CompareAdd, a.Swap
		if w.length < atomicLen {
			w.status = uapi.WCLocLenErr
			return
		}
		w.length = atomicLen
	}
	if (w.kind == transport.Read || w.kind == transport.Atomic) && qp.attr.MaxRdAtomic == 0 {
		w.status = uapi.WCLocQPOpErr
		return
	}
	if datagram(qp.typ) {
		w.status = r.decodeUD(w, h.WR.UD())
		return
	}
	if w.kind != transport.Atomic {
		w.packets = qp.pathMTU.Packets(uint32(w.length))
	}
}

// decodeUD finds the way of a datagram.
func (r *requester) decodeUD(w *sendWQE, u *uapi.RXESendWRUD) uapi.WCStatus {
	qp := r.qp
	if qp.paths != nil {
		w.path = qp.paths[u.AHNum]
	} else if u.AHNum == 0 {
		w.path = r.vector.path(qp.dev, &u.AV)
	} else if h := qp.dev.ahs.get(u.AHNum); h != nil {
		w.path = h.pathFor(qp)
	}
	if w.path == nil {
		return uapi.WCLocQPOpErr
	}
	if w.length > qp.mtu {
		return uapi.WCLocLenErr
	}
	w.qpn, w.qkey = u.RemoteQPN&roce.PSNMask, u.RemoteQKey
	if w.qkey>>31 != 0 || qp.typ == ib.QPTypeGSI {
		w.qkey = qkeyOf(qp) // a controlled key: the queue pair's own goes (IBA 10.2.5)
	}
	return uapi.WCSuccess
}

// decodeSGEs appends n elements that lie in b to list and sums their lengths.
func decodeSGEs(list []uapi.RXESGE, b []byte, n, limit uint32) ([]uapi.RXESGE, int, uapi.WCStatus) {
	if n > limit {
		return list, 0, uapi.WCLocQPOpErr
	}
	sum := 0
	for range n {
		s, _ := uapi.Decode[uapi.RXESGE](b)
		b = b[uapi.SizeOf[uapi.RXESGE]():]
		if s.Length == 0 {
			continue
		}
		sum += int(s.Length)
		list = append(list, s)
	}
	return list, sum, uapi.WCSuccess
}

// encodeSend writes a work request of a consumer in this process to b, as a library would into the slot, and
// returns the number of bytes. EINVAL for what the queue pair cannot do.
func (r *requester) encodeSend(b []byte, slot uint32, wr *ib.SendWR) (int, error) {
	qp := r.qp
	h := uapi.RXESendWQE{WR: uapi.RXESendWR{WRID: wr.ID, Opcode: wr.Opcode, SendFlags: wr.Flags}}
	if qp.typ == ib.QPTypeXRCInit {
		h.WR.Reserved = wr.RemoteSRQN // Linux's rxe has no XRC, and so no place of its own for it
	}
	kind := kindOf(qp.typ, h.WR.Opcode)
	switch wr.Opcode {
	case ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
		h.WR.Ex = uapi.ImmData(uapi.NewBE32(wr.Imm))
	case ib.WRSendWithInv, ib.WRLocalInv:
		h.WR.Ex = uapi.NewImmRKey(wr.InvalidateRKey)
	}
	inline := wr.Flags&ib.SendInline != 0
	switch {
	case kind == transport.Local, kind == transport.Flush, kind == transport.AtomicWrite:
		return r.encodeMemory(b, wr, &h)
	case kind == transport.None:
		return 0, fmt.Errorf("work request opcode %d on a %v queue pair: %w", wr.Opcode, qp.typ, syscall.EINVAL)
	case inline && kind != transport.Send && kind != transport.Write:
		return 0, fmt.Errorf("work request opcode %d cannot be inline: %w", wr.Opcode, syscall.EINVAL)
	case inline && len(wr.Inline) > int(qp.cap.MaxInlineData):
		return 0, fmt.Errorf("%d bytes inline, at most %d: %w", len(wr.Inline), qp.cap.MaxInlineData, syscall.EINVAL)
	case !inline && len(wr.SGList) > int(qp.cap.MaxSendSGE):
		return 0, fmt.Errorf("%d gather elements, at most %d: %w", len(wr.SGList), qp.cap.MaxSendSGE, syscall.EINVAL)
	}
	switch {
	case datagram(qp.typ):
		if wr.AH == nil {
			return 0, fmt.Errorf("datagram without address handle: %w", syscall.EINVAL)
		}
		to, ok := ib.As[*ah](qp.obj.AH(wr.AH))
		if !ok {
			return 0, fmt.Errorf("the address handle is destroyed or of another device: %w", syscall.EINVAL)
		}
		num := to.num
		if qp.paths != nil {
			num, qp.paths[slot] = slot, to.pathFor(qp)
		}
		*h.WR.UD() = uapi.RXESendWRUD{RemoteQPN: wr.RemoteQPN, RemoteQKey: wr.RemoteQKey, AHNum: num}
	case kind == transport.Write, kind == transport.Read:
		*h.WR.RDMA() = uapi.RXESendWRRDMA{RemoteAddr: wr.RemoteAddr, RKey: wr.RKey}
		h.IOVA = wr.RemoteAddr
	case kind == transport.Atomic:
		*h.WR.Atomic() = uapi.RXESendWRAtomic{RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, CompareAdd: wr.CompareAdd, Swap: wr.Swap}
		h.IOVA = wr.RemoteAddr
	}
	n := uapi.RXESendWQESGEOffset
	if inline {
		h.DMA.Length = uint32(len(wr.Inline))
		n += copy(b[n:], wr.Inline)
	} else {
		n, h.DMA.Length = encodeSGEs(b, n, wr.SGList)
		h.DMA.NumSGE = uint32(len(wr.SGList))
	}
	h.DMA.Resid = h.DMA.Length
	uapi.Encode(b, &h)
	return n, nil
}

// recvWQESize is the length of a receive with that many elements.
func recvWQESize(sges uint32) int { return uapi.RXERecvWQESize + int(sges)*16 }

// encodeRecv does the same for a receive in a queue that takes so many elements.
func encodeRecv(b []byte, wr *ib.RecvWR, limit uint32) (int, error) {
	if len(wr.SGList) > int(limit) {
		return 0, fmt.Errorf("%d scatter elements, at most %d: %w", len(wr.SGList), limit, syscall.EINVAL)
	}
	h := uapi.RXERecvWQE{WRID: wr.ID}
	n := uapi.RXERecvWQESGEOffset
	n, h.DMA.Length = encodeSGEs(b, n, wr.SGList)
	h.DMA.Resid, h.DMA.NumSGE = h.DMA.Length, uint32(len(wr.SGList))
	uapi.Encode(b, &h)
	return n, nil
}

func encodeSGEs(b []byte, at int, list []ib.SGE) (end int, length uint32) {
	for _, s := range list {
		at += uapi.Encode(b[at:], &uapi.RXESGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
		length += s.Length
	}
	return at, length
}

// recvWQE is a receive work request that the responder has taken out of the ring and checked.
type recvWQE struct {
	id     uint64
	sges   []uapi.RXESGE
	length int
	filled int // bytes that have come
	taken  bool
	pd     *pd  // of the memory
	from   *srq // where it was taken, nil: from the queue pair's own queue
}

// decodeRecv takes the receive that lies in b, a private copy of its slot in a queue that takes so many elements.
func decodeRecv(w *recvWQE, b []byte, limit uint32) (status uapi.WCStatus) {
	h, _ := uapi.Decode[uapi.RXERecvWQE](b)
	*w = recvWQE{id: h.WRID, sges: w.sges[:0], taken: true}
	w.sges, w.length, status = decodeSGEs(w.sges, b[uapi.RXERecvWQESGEOffset:], h.DMA.NumSGE, limit)
	return status
}

// sgeAt finds the element that holds byte n of a list, and the offset in it. Past the end: len(list), 0.
func sgeAt(list []uapi.RXESGE, n int) (i, off int) {
	for i = range list {
		if n < int(list[i].Length) {
			return i, n
		}
		n -= int(list[i].Length)
	}
	return len(list), 0
}
