package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// cmdPostSend posts send work requests. A command without work requests is the doorbell of a queue that the program
// shares with the driver. The response of a doorbell contains no data and is not written. (ib_uverbs_post_send)
func cmdPostSend(c *call) error {
	req, _ := uapi.Decode[uapi.PostSend](c.in) // the length was checked against the table of commands
	list, err := parseWRs(c.in[uapi.SizeOf[uapi.PostSend]():], req.WRCount, req.WQESize, req.SGECount,
		uapi.SizeOf[uapi.SendWR]())
	if err != nil {
		return err
	}
	c.noteQP(req.QPHandle)
	qp, err := lookup[*qpObject](c.f, req.QPHandle)
	if err != nil {
		return err
	}
	defer qp.releaseUse()
	if req.WRCount == 0 {
		c.room = 0
		if qp.res.user != nil {
			// A rejected work request must not be enqueued (IBA 10.8.3.1), but the program's library has already added
			// it to the queue.
			if s := qp.res.State(); s < ib.QPRTS {
				qp.res.user.TakeBack()
				return fmt.Errorf("queue pair %d cannot send in state %v: %w", qp.res.Num(), s, syscall.EINVAL)
			}
			c.holdCallbacks()
			qp.res.user.Doorbell(&c.callbacks)
		}
		return nil
	}

	wrs := make([]ib.SendWR, 0, req.WRCount)
	for i := range int(req.WRCount) {
		w, _ := uapi.Decode[uapi.SendWR](list.wqe(i))
		wr, ah, err := c.convertSendWR(&w, qp.res.Type())
		if err != nil {
			return fmt.Errorf("work request %d: %w", i, err)
		}
		defer ah.releaseUse()
		if wr.SGList, err = list.nextSGEs(w.NumSGE); err != nil {
			return fmt.Errorf("work request %d: %w", i, err)
		}
		wrs = append(wrs, wr)
	}
	c.holdCallbacks()
	n, err := qp.res.PostSend(wrs...)
	return c.writePostResponse(n, err)
}

// writePostResponse responds to a list of work requests. n is the number of accepted requests. The response is written
// even after an error.
func (c *call) writePostResponse(n int, err error) error {
	var resp uapi.PostSendResp // the response for the receive queue has the same layout
	if err != nil {
		resp.BadWR = uint32(n) + 1
	}
	setResponse(c, resp)
	c.failed = err
	return nil
}

// convertSendWR converts a work request. convertSendWR also returns the address handle that the request uses.
func (c *call) convertSendWR(w *uapi.SendWR, t ib.QPType) (wr ib.SendWR, ah objectUse[*ahObject], err error) {
	wr = ib.SendWR{ID: w.WRID, Opcode: w.Opcode, Flags: w.SendFlags}
	invalid := func(format string, args ...any) (ib.SendWR, objectUse[*ahObject], error) {
		return wr, ah, fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)
	}
	if w.SendFlags&uapi.SendInline != 0 {
		return invalid("inline data needs a shared queue")
	}
	switch w.Opcode {
	case uapi.WRSendWithImm, uapi.WRRDMAWriteWithImm:
		wr.Imm = w.Ex.Imm().Uint32()
	case uapi.WRSendWithInv:
		wr.InvalidateRKey = w.Ex.InvalidateRKey()
	}
	switch {
	case t == ib.QPTypeUD:
		if w.Opcode != uapi.WRSend && w.Opcode != uapi.WRSendWithImm {
			return invalid("%v on a datagram queue pair", w.Opcode)
		}
		ud := w.UD()
		if ah, err = lookup[*ahObject](c.f, ud.AH); err != nil {
			return wr, ah, err
		}
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.res.AH, ud.RemoteQPN, ud.RemoteQKey
		return wr, ah, nil
	case w.Opcode == uapi.WRSend, w.Opcode == uapi.WRSendWithImm, w.Opcode == uapi.WRSendWithInv:
	case w.Opcode == uapi.WRRDMAWrite, w.Opcode == uapi.WRRDMAWriteWithImm, w.Opcode == uapi.WRRDMARead:
		rdma := w.RDMA()
		wr.RemoteAddr, wr.RKey = rdma.RemoteAddr, rdma.RKey
	case w.Opcode == uapi.WRAtomicCmpAndSwp, w.Opcode == uapi.WRAtomicFetchAndAdd:
		atomic := w.Atomic()
		wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap = atomic.RemoteAddr, atomic.RKey, atomic.CompareAdd, atomic.Swap
	default:
		return invalid("operation %v", w.Opcode)
	}
	return wr, ah, nil
}

// cmdPostRecv posts receive work requests. (ib_uverbs_post_recv)
func cmdPostRecv(c *call) error {
	req, _ := uapi.Decode[uapi.PostRecv](c.in) // the length was checked against the table of commands
	wrs, err := convertRecvWRs(c.in[uapi.SizeOf[uapi.PostRecv]():], req.WRCount, req.WQESize, req.SGECount)
	if err != nil {
		return err
	}
	c.noteQP(req.QPHandle)
	qp, err := lookup[*qpObject](c.f, req.QPHandle)
	if err != nil {
		return err
	}
	defer qp.releaseUse()
	c.holdCallbacks()
	n, err := qp.res.PostRecv(wrs...)
	return c.writePostResponse(n, err)
}

// convertRecvWRs converts a list of receive work requests. (ib_uverbs_unmarshall_recv)
func convertRecvWRs(b []byte, count, size, sges uint32) ([]ib.RecvWR, error) {
	list, err := parseWRs(b, count, size, sges, uapi.SizeOf[uapi.RecvWR]())
	if err != nil {
		return nil, err
	}
	wrs := make([]ib.RecvWR, 0, count)
	for i := range int(count) {
		w, _ := uapi.Decode[uapi.RecvWR](list.wqe(i))
		sges, err := list.nextSGEs(w.NumSGE)
		if err != nil {
			return nil, fmt.Errorf("work request %d: %w", i, err)
		}
		wrs = append(wrs, ib.RecvWR{ID: w.WRID, SGList: sges})
	}
	return wrs, nil
}

// wrList is the list of work requests in a command: count requests of size bytes each, followed by the scatter/gather
// elements of all requests.
type wrList struct {
	wqes []byte
	size int
	sge  []ib.SGE
}

// parseWRs parses the list. parseWRs returns ENOSPC if the list exceeds the command, and EOPNOTSUPP if unknown data
// follow the list.
func parseWRs(b []byte, count, size, sges uint32, least int) (*wrList, error) {
	if count > 0 && size < uint32(least) {
		return nil, fmt.Errorf("work requests have %d bytes, want at least %d: %w", size, least, syscall.EINVAL)
	}
	sgeSize := uapi.SizeOf[uapi.SGE]()
	wqeBytes, sgeBytes := uint64(count)*uint64(size), uint64(sges)*uint64(sgeSize)
	if wqeBytes > uint64(len(b)) || sgeBytes > uint64(len(b))-wqeBytes {
		return nil, fmt.Errorf("%d work requests with %d elements exceed the command: %w", count, sges, syscall.ENOSPC)
	}
	l := &wrList{wqes: b[:wqeBytes], size: int(size)}
	b = b[wqeBytes:]
	for range sges {
		s, _ := uapi.Decode[uapi.SGE](b)
		l.sge = append(l.sge, ib.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
		b = b[sgeSize:]
	}
	for _, x := range b {
		if x != 0 {
			return nil, fmt.Errorf("unknown data at the end of the command are not zero: %w", syscall.EOPNOTSUPP)
		}
	}
	return l, nil
}

func (l *wrList) wqe(i int) []byte { return l.wqes[i*l.size:] }

var errTooFewSGEs = errors.New("work requests need more elements than the command has")

// nextSGEs consumes the next n elements.
func (l *wrList) nextSGEs(n uint32) ([]ib.SGE, error) {
	if uint64(n) > uint64(len(l.sge)) {
		return nil, fmt.Errorf("%w: %w", errTooFewSGEs, syscall.EINVAL)
	}
	s := l.sge[:n:n]
	l.sge = l.sge[n:]
	return s, nil
}
