package rxe

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"verbena/uapi"
	"verbena/verbs/internal/cmd"
	"verbena/verbs/provider"
)

// qp is a queue pair.
type qp struct {
	d      *cmd.Device
	handle uint32
	sq     *mappedRing
	rq     *mappedRing // nil if the queue pair has a shared receive queue
	ssn    uint32      // number of the next send work request
	sges   int         // maximum number of elements of a send work request
	inline int         // maximum number of inline bytes
	send   [uapi.RXESendWQESize + maxDataLen]byte
	recv   recvSlot
}

// maxDataLen is the maximum length in bytes of the data that follow a send work request.
const maxDataLen = 1 << 10

// recvSlot is a work request in a receive queue.
type recvSlot struct {
	sges int
	b    [uapi.RXERecvWQESize + maxDataLen]byte
}

// CreateQP implements provider.Provider. (rxe_create_qp)
func (Provider) CreateQP(d *cmd.Device, req uapi.CreateQP) (_ provider.QP, _ uapi.CreateQPResp, err error) {
	out := make([]byte, uapi.SizeOf[uapi.RXECreateQPResp]())
	r, err := d.CreateQP(req, nil, out)
	if err != nil {
		return nil, r, err
	}
	own, _ := uapi.Decode[uapi.RXECreateQPResp](out)
	q := &qp{d: d, handle: r.QPHandle, sges: int(min(r.MaxSendSGE, maxDataLen/16)),
		inline: int(min(r.MaxInlineData, maxDataLen))}
	q.recv.sges = int(min(r.MaxRecvSGE, maxDataLen/16))
	defer func() {
		if err != nil {
			_ = q.Close()
			_ = d.DestroyQP(r.QPHandle)
		}
	}()
	if q.sq, err = mapQueue(d, own.SQMI); err != nil {
		return nil, r, err
	}
	if q.sq == nil {
		return nil, r, errNoMmapOffset
	}
	if q.rq, err = mapQueue(d, own.RQMI); err != nil {
		return nil, r, err
	}
	return q, r, nil
}

// Send implements provider.QP. (init_send_wqe, post_one_send)
func (q *qp) Send(wr *provider.SendWR) error {
	h := uapi.RXESendWQE{WR: uapi.RXESendWR{WRID: wr.ID, Opcode: wr.Opcode, SendFlags: wr.Flags}, SSN: q.ssn}
	data := q.send[uapi.RXESendWQESGEOffset:]
	n := 0 // bytes of data
	switch {
	case wr.Inline != nil:
		if len(wr.Inline) > q.inline {
			return fmt.Errorf("%d bytes of inline data exceed the maximum of %d: %w", len(wr.Inline), q.inline, syscall.EINVAL)
		}
		h.WR.SendFlags |= uapi.SendInline
		n = copy(data, wr.Inline)
		h.DMA.Length, h.DMA.Resid = uint32(n), uint32(n)
	default:
		var total uint64
		var err error
		if h.DMA, n, total, err = putSGEs(data, wr.SGE, q.sges); err != nil {
			return err
		}
		if total > maxMessageLen {
			return fmt.Errorf("message of %d bytes exceeds the maximum of 2^31: %w", total, syscall.EINVAL)
		}
	}
	switch wr.Opcode {
	case uapi.WRRDMAWrite, uapi.WRRDMAWriteWithImm, uapi.WRRDMARead, uapi.WRAtomicWrite:
		*h.WR.RDMA() = uapi.RXESendWRRDMA{RemoteAddr: wr.RemoteAddr, RKey: wr.RKey}
		h.IOVA = wr.RemoteAddr
	case uapi.WRAtomicCmpAndSwp, uapi.WRAtomicFetchAndAdd:
		*h.WR.Atomic() = uapi.RXESendWRAtomic{RemoteAddr: wr.RemoteAddr, CompareAdd: wr.CompareAdd, Swap: wr.Swap,
			RKey: wr.RKey}
		h.IOVA = wr.RemoteAddr
	case uapi.WRBindMW:
		*h.WR.MW() = uapi.RXESendWRMW{
			Addr: wr.Bind.Addr, Length: wr.Bind.Length, MRLKey: wr.Bind.LKey, MWRKey: wr.Bind.WindowKey, RKey: wr.Bind.NewKey,
			Access: wr.Bind.Access,
		}
	case uapi.WRFlush:
		*h.WR.Flush() = uapi.RXESendWRFlush{
			RemoteAddr: wr.RemoteAddr, Length: wr.Flush.Length, RKey: wr.RKey, Type: wr.Flush.Placement, Level: wr.Flush.Level,
		}
		h.IOVA = wr.RemoteAddr
	}
	switch wr.Opcode {
	case uapi.WRSendWithImm, uapi.WRRDMAWriteWithImm:
		h.WR.Ex = uapi.ImmData(uapi.NewBE32(wr.Imm))
	case uapi.WRSendWithInv, uapi.WRLocalInv:
		h.WR.Ex = uapi.NewImmRKey(wr.Key)
	}
	if wr.AH.Num != 0 {
		*h.WR.UD() = uapi.RXESendWRUD{RemoteQPN: wr.RemoteQPN, RemoteQKey: wr.RemoteQKey, AHNum: wr.AH.Num}
	}
	uapi.Encode(q.send[:], &h)
	at, _ := q.sq.Producer()
	pushed, _ := q.sq.Push(at, q.send[:uapi.RXESendWQESGEOffset+n])
	if !pushed {
		return provider.ErrFull
	}
	q.ssn++
	return nil
}

// maxMessageLen is the maximum length of a message in bytes. A receive may be longer.
const maxMessageLen = 1 << 31

// putSGEs writes elements to b. putSGEs returns their description and the number of bytes written. most is the maximum
// number of elements.
func putSGEs(b []byte, sges []provider.SGE, most int) (dma uapi.RXEDMAInfo, n int, total uint64, err error) {
	if len(sges) > most {
		return dma, 0, 0, fmt.Errorf("%d elements, at most %d: %w", len(sges), most, syscall.EINVAL)
	}
	for i, e := range sges {
		binary.NativeEndian.PutUint64(b[16*i:], e.Addr)
		binary.NativeEndian.PutUint32(b[16*i+8:], e.Length)
		binary.NativeEndian.PutUint32(b[16*i+12:], e.LKey)
		total += uint64(e.Length)
	}
	length := uint32(min(total, 1<<32-1))
	return uapi.RXEDMAInfo{Length: length, Resid: length, NumSGE: uint32(len(sges))}, 16 * len(sges), total, nil
}

// Ring implements provider.QP.
func (q *qp) Ring() error { return q.d.T.Doorbell(q.handle) }

// Recv implements provider.QP. The device reads the receive queue when a message arrives. Receives therefore need no
// doorbell. (rxe_post_one_recv)
func (q *qp) Recv(wr *provider.RecvWR) error {
	if q.rq == nil {
		return fmt.Errorf("the queue pair has a shared receive queue: %w", syscall.EINVAL)
	}
	return q.recv.postRecv(q.rq, wr)
}

func (s *recvSlot) postRecv(q *mappedRing, wr *provider.RecvWR) error {
	dma, n, _, err := putSGEs(s.b[uapi.RXERecvWQESGEOffset:], wr.SGE, s.sges)
	if err != nil {
		return err
	}
	h := uapi.RXERecvWQE{WRID: wr.ID, DMA: dma}
	uapi.Encode(s.b[:], &h)
	at, _ := q.Producer()
	if pushed, _ := q.Push(at, s.b[:uapi.RXERecvWQESGEOffset+n]); !pushed {
		return provider.ErrFull
	}
	return nil
}

// Reset implements provider.QP. The driver has already emptied the queues.
func (q *qp) Reset() { q.ssn = 0 }

// Close implements provider.QP.
func (q *qp) Close() error {
	err := q.sq.unmap()
	if e := q.rq.unmap(); err == nil {
		err = e
	}
	return err
}

// srq is a shared receive queue.
type srq struct {
	d    *cmd.Device
	q    *mappedRing
	recv recvSlot
}

// CreateSRQ implements provider.Provider. (rxe_create_srq)
func (Provider) CreateSRQ(d *cmd.Device, req uapi.CreateSRQ) (provider.SRQ, uapi.CreateSRQResp, error) {
	out := make([]byte, uapi.SizeOf[uapi.RXECreateSRQResp]())
	r, err := d.CreateSRQ(req, out)
	if err != nil {
		return nil, r, err
	}
	own, _ := uapi.Decode[uapi.RXECreateSRQResp](out)
	q, err := mapQueue(d, own.MI)
	if err == nil && q == nil {
		err = errNoMmapOffset
	}
	if err != nil {
		_ = d.DestroySRQ(r.SRQHandle)
		return nil, r, err
	}
	s := &srq{d: d, q: q}
	s.recv.sges = int(min(r.MaxSGE, maxDataLen/16))
	return s, r, nil
}

// Recv implements provider.SRQ.
func (s *srq) Recv(wr *provider.RecvWR) error { return s.recv.postRecv(s.q, wr) }

// Modify implements provider.SRQ. The driver writes the mmap offset of the resized queue. (rxe_modify_srq)
func (s *srq) Modify(req uapi.ModifySRQ) error {
	place := s.d.T.Scratch()
	defer place.Free()
	n := uapi.SizeOf[uapi.MMInfo]()
	clear(place.Mem[:n])
	own := uapi.RXEModifySRQCmd{MMapInfoAddr: place.Addr}
	if err := s.d.ModifySRQ(req, uapi.AppendTo(nil, &own)); err != nil {
		return err
	}
	if req.AttrMask&uapi.SRQAttrMaxWR == 0 {
		return nil
	}
	mi, _ := uapi.Decode[uapi.MMInfo](place.Mem)
	q, err := mapQueue(s.d, mi)
	if err == nil && q == nil {
		err = errNoMmapOffset
	}
	if err != nil {
		return err
	}
	_ = s.q.unmap()
	s.q = q
	return nil
}

// Close implements provider.SRQ.
func (s *srq) Close() error { return s.q.unmap() }
