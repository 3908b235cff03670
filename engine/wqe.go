package engine

import (
	"fmt"
	"syscall"

	"verbena/engine/queue"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/uapi"
)

// wrRegMR is ib.WRRegMR, which a user process cannot post.
const wrRegMR = ib.WRRegMR

// kinds maps the work requests of the connected services to their kinds. Datagrams use only transport.Send.
// (rxe_wr_opcode_info)
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

// wcOpcodes maps the work requests to the opcodes of their completions (wr_to_wc_opcode).
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

// sendWQE is a send work request that the requester has taken out of the queue and checked. Its PSNs are assigned.
type sendWQE struct {
	queue.Send
	kind    transport.Kind
	status  uapi.WCStatus // not success: the request cannot be executed, and completes with this status
	length  int           // bytes of the message
	packets int           // count of PSNs
	path    *path         // only datagrams
	number  uint32        // number in transport.Sender
	began   int64         // transmission time of the first packet, in nanoseconds; only with a trace or for SRD
	// attempts is the number of failed transmissions of the packet; only for SRD.
	attempts int
}

const atomicLen = 8

// describe converts a work request of a consumer to w, and uses the slices of w. The error is EINVAL for a request
// that the queue pair does not support.
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
		w.To = to.pathFor(qp) // the present path of the handle
		w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
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
