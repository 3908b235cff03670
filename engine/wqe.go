package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
	"verbena/engine/transport"
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

// sendWQE is a send work request that the requester has taken out of the queue, checked, and given its PSNs.
type sendWQE struct {
	queue.Send
	kind    transport.Kind
	status  uapi.WCStatus // not success: the request cannot be done, and will be completed with this
	length  int           // bytes of its message
	packets int           // PSNs that it takes
	path    *path         // of datagrams
}

const atomicLen = 8

// check validates a fetched work request, which a program may have written, and sets its kind, length, packets and path.
// An invalid request gets the status of its completion. (validate_send_wr)
func (r *requester) check(w *sendWQE) {
	qp := r.qp
	w.kind, w.status, w.length, w.packets, w.path = kindOf(qp.typ, w.Opcode), uapi.WCSuccess, 0, 1, nil
	if w.kind == transport.None || w.Opcode == wrRegMR && qp.ctx != nil {
		w.kind, w.status = transport.None, uapi.WCLocQPOpErr
		return
	}
	if w.kind == transport.Local {
		w.packets = 0
		return
	}
	if w.kind == transport.Flush || w.kind == transport.AtomicWrite {
		w.status = r.checkSingle(w)
		return
	}
	if w.Flags&uapi.SendInline != 0 {
		if w.kind == transport.Read || w.kind == transport.Atomic { // the slot holds data, where its elements belong
			w.status = uapi.WCLocQPOpErr
			return
		}
		if w.Length > uint64(qp.cap.MaxInlineData) {
			w.status = uapi.WCLocLenErr
			return
		}
		w.length = int(w.Length)
	} else {
		w.length = queue.Length(w.SGEs)
		if w.NumSGE > qp.cap.MaxSendSGE {
			w.status = uapi.WCLocQPOpErr
		} else if w.length > maxMsgSize {
			w.status = uapi.WCLocLenErr
		}
		if w.status != uapi.WCSuccess {
			w.SGEs, w.length = w.SGEs[:0], 0
			return
		}
	}
	if w.kind == transport.Atomic {
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
	if qp.datagram {
		w.status = r.checkUD(w)
		return
	}
	if w.kind != transport.Atomic {
		w.packets = qp.pathMTU.Packets(uint32(w.length))
	}
}

// checkUD finds the way of a datagram.
func (r *requester) checkUD(w *sendWQE) uapi.WCStatus {
	qp := r.qp
	if qp.ctx == nil {
		w.path, _ = w.To.(*path)
	} else if w.AH == 0 {
		w.path = r.vector.path(qp.dev, &w.Vector)
	} else if h := qp.dev.ahs.get(w.AH); h != nil {
		w.path = h.pathFor(qp)
	}
	if w.path == nil {
		return uapi.WCLocQPOpErr
	}
	if w.length > qp.mtu {
		return uapi.WCLocLenErr
	}
	w.QPN &= roce.PSNMask
	if w.QKey>>31 != 0 || qp.typ == ib.QPTypeGSI {
		w.QKey = qkeyOf(qp) // a controlled key: the queue pair's own goes (IBA 10.2.5)
	}
	return uapi.WCSuccess
}

// describe describes a work request of a consumer in w, whose slices it uses. EINVAL for what the queue pair cannot do.
func (r *requester) describe(w *queue.Send, wr *ib.SendWR) error {
	qp := r.qp
	*w = queue.Send{ID: wr.ID, Opcode: wr.Opcode, Flags: wr.Flags, SGEs: w.SGEs[:0], Inline: w.Inline[:0]}
	if qp.typ == ib.QPTypeXRCInit {
		w.SRQN = wr.RemoteSRQN
	}
	kind := kindOf(qp.typ, wr.Opcode)
	switch wr.Opcode {
	case ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
		w.Imm = uapi.ImmData(uapi.NewBE32(wr.Imm))
	case ib.WRSendWithInv, ib.WRLocalInv:
		w.Imm = uapi.NewImmRKey(wr.InvalidateRKey)
	}
	inline := wr.Flags&ib.SendInline != 0
	switch {
	case kind == transport.Local, kind == transport.Flush, kind == transport.AtomicWrite:
		return r.describeMemory(w, wr)
	case kind == transport.None:
		return fmt.Errorf("work request opcode %d on a %v queue pair: %w", wr.Opcode, qp.typ, syscall.EINVAL)
	case inline && kind != transport.Send && kind != transport.Write:
		return fmt.Errorf("work request opcode %d cannot be inline: %w", wr.Opcode, syscall.EINVAL)
	case inline && len(wr.Inline) > int(qp.cap.MaxInlineData):
		return fmt.Errorf("%d bytes inline, at most %d: %w", len(wr.Inline), qp.cap.MaxInlineData, syscall.EINVAL)
	case !inline && len(wr.SGList) > int(qp.cap.MaxSendSGE):
		return fmt.Errorf("%d gather elements, at most %d: %w", len(wr.SGList), qp.cap.MaxSendSGE, syscall.EINVAL)
	}
	switch {
	case qp.datagram:
		if wr.AH == nil {
			return fmt.Errorf("datagram without address handle: %w", syscall.EINVAL)
		}
		to, ok := ib.As[*ah](qp.obj.AH(wr.AH))
		if !ok {
			return fmt.Errorf("the address handle is destroyed or of another device: %w", syscall.EINVAL)
		}
		w.QPN, w.QKey, w.AH = wr.RemoteQPN, wr.RemoteQKey, to.num
		w.To = to.pathFor(qp) // as the handle is now
	case kind == transport.Atomic:
		w.CompareAdd, w.Swap = wr.CompareAdd, wr.Swap
		fallthrough
	default:
		w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
	}
	if inline {
		w.Inline, w.Length = append(w.Inline, wr.Inline...), uint64(len(wr.Inline))
		return nil
	}
	w.NumSGE = uint32(len(wr.SGList))
	for _, s := range wr.SGList {
		w.SGEs = queue.AppendSGE(w.SGEs, s)
		w.Length += uint64(s.Length)
	}
	return nil
}

// recvWQE is a receive work request that the responder has taken out of the queue and checked.
type recvWQE struct {
	queue.Recv
	filled int // bytes that have come
	taken  bool
	pd     *pd  // of the memory
	from   *srq // where it was taken, nil: from the queue pair's own queue
}

// fetch fetches the next receive of a queue whose receives have at most limit elements. status is not success for a receive with more.
func (w *recvWQE) fetch(q queue.RecvQueue, limit uint32) (status uapi.WCStatus, found, ok bool) {
	if found, ok = q.Fetch(0, &w.Recv); !found || !ok {
		return uapi.WCSuccess, false, ok
	}
	w.filled, w.taken, w.pd, w.from = 0, true, nil, nil
	if w.NumSGE > limit {
		w.SGEs, w.Length, status = w.SGEs[:0], 0, uapi.WCLocQPOpErr
	}
	return status, true, true
}
