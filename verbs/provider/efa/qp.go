package efa

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/internal/shm"
	"verbena/uapi"
	"verbena/uapi/efa"
	"verbena/verbs/internal/cmd"
	"verbena/verbs/provider"
)

const recvSize = 16 // bytes of an efa.RXDesc

// qp is a queue pair.
type qp struct {
	dev       *device
	t         interface{ Doorbell(qp uint32) error }
	handle    uint32
	num       uint16
	datagrams bool // type UD

	sends, recvs  requests
	sq, rq        mapping
	sendBell      mapping
	recvBell      mapping
	sendCount     *atomic.Uint32 // doorbells
	recvCount     *atomic.Uint32
	sent          uint32 // requests, including those before the doorbell
	received      uint32 // descriptors
	slot          int    // bytes of a send request
	sqMask        uint32
	rqMask        uint32
	inline        int
	sges, recvSGE int
	buf           [efa.TXWQE128Size]byte
}

// CreateQP implements provider.Provider. (create_qp of providers/efa)
func (d *device) CreateQP(c *cmd.Device, req uapi.CreateQP) (_ provider.QP, r uapi.CreateQPResp, err error) {
	if req.IsSRQ != 0 {
		return nil, r, fmt.Errorf("EFA has no shared receive queues: %w", syscall.EOPNOTSUPP)
	}
	if req.MaxSendWR > maxRequests || req.MaxRecvWR > maxRequests || req.MaxRecvSGE > maxRequests {
		return nil, r, fmt.Errorf("queues of %d and %d requests exceed %d: %w", req.MaxSendWR, req.MaxRecvWR, maxRequests,
			syscall.EINVAL)
	}
	q := &qp{dev: d, t: c.T, datagrams: req.QPType == uapi.QPTUD, slot: efa.TXWQESize, inline: int(req.MaxInlineData)}
	if q.inline > efa.IOTXDescInlineMaxSize {
		q.slot = efa.TXWQE128Size
	}
	req.MaxSendWR, req.MaxRecvWR = slotsFor(req.MaxSendWR), slotsFor(req.MaxRecvWR)
	q.sges, q.recvSGE = int(req.MaxSendSGE), int(max(req.MaxRecvSGE, 1))
	descs := slotsFor(req.MaxRecvWR * uint32(q.recvSGE))
	in := efa.CreateQP{SQRingSize: req.MaxSendWR * uint32(q.slot), RQRingSize: descs * recvSize,
		DriverQPType: efa.QPDriverTypeSRD}
	out := make([]byte, uapi.SizeOf[efa.CreateQPResp]())
	if r, err = c.CreateQP(req, uapi.AppendTo(nil, &in), out); err != nil {
		return nil, r, err
	}
	own, _ := uapi.Decode[efa.CreateQPResp](out)
	q.handle, q.num = r.QPHandle, uint16(r.QPN)
	q.sqMask, q.rqMask = req.MaxSendWR-1, descs-1
	r.MaxSendWR, r.MaxRecvWR = req.MaxSendWR, req.MaxRecvWR
	q.sends.init(req.MaxSendWR)
	q.recvs.init(req.MaxRecvWR)
	if err = q.mapQueues(c, &in, &own); err != nil {
		_ = q.Close()
		_ = c.DestroyQP(r.QPHandle)
		return nil, r, err
	}
	d.setQP(q.num, q)
	return q, r, nil
}

// maxRequests is the maximum number of requests in a queue. The rest of the 16 bits of an identifier is the number of
// times that the queue pair was reset.
const maxRequests = 1 << indexBits

const indexBits = 12

func (q *qp) mapQueues(c *cmd.Device, in *efa.CreateQP, own *efa.CreateQPResp) (err error) {
	page := uint64(doorbellPage)
	if q.sq, err = mapMemory(c, own.LLQDescMmapKey, uint64(in.SQRingSize)); err != nil {
		return err
	}
	if q.rq, err = mapMemory(c, own.RQMmapKey, own.RQMmapSize); err != nil {
		return err
	}
	if q.sendBell, err = mapMemory(c, own.SQDBMmapKey, page); err != nil {
		return err
	}
	if q.recvBell, err = mapMemory(c, own.RQDBMmapKey, page); err != nil {
		return err
	}
	if own.LLQDescOffset != 0 || uint64(in.RQRingSize) > own.RQMmapSize || (own.SQDBOffset|own.RQDBOffset)%4 != 0 ||
		uint64(own.SQDBOffset)+4 > page || uint64(own.RQDBOffset)+4 > page {
		return errTooSmall
	}
	q.sendCount = shm.FirstWord(q.sendBell.mem[own.SQDBOffset:])
	q.recvCount = shm.FirstWord(q.recvBell.mem[own.RQDBOffset:])
	return nil
}

// doorbellPage is the size of the mapping of a doorbell, in bytes.
const doorbellPage = 4096

// Send implements provider.QP. (efa_post_send)
func (q *qp) Send(wr *provider.SendWR) error {
	m := efa.TXMetaDesc{
		Ctrl1: efa.IOTXMetaDescMetaDescMask,
		Ctrl2: efa.IOTXMetaDescFirstMask | efa.IOTXMetaDescLastMask | efa.IOTXMetaDescCompReqMask,
		AH:    uint16(wr.AH.Num), DestQPNum: uint16(wr.RemoteQPN), QKey: wr.RemoteQKey,
	}
	rdma, sges := false, q.sges
	switch wr.Opcode {
	case uapi.WRSend, uapi.WRSendWithImm:
	case uapi.WRRDMAWrite, uapi.WRRDMAWriteWithImm:
		rdma = true
		m.Ctrl1 |= uint8(efa.IORDMAWrite)
	case uapi.WRRDMARead:
		rdma = true
		m.Ctrl1 |= uint8(efa.IORDMARead)
	default:
		return fmt.Errorf("opcode %v is not an operation of EFA: %w", wr.Opcode, syscall.EINVAL)
	}
	if wr.Opcode == uapi.WRSendWithImm || wr.Opcode == uapi.WRRDMAWriteWithImm {
		m.Ctrl1 |= efa.IOTXMetaDescHasImmMask
		m.ImmediateData = wr.Imm
	}
	b := q.buf[:q.slot]
	clear(b)
	data := b[efa.TXWQEDataOffset:]
	if rdma {
		sges = min(sges, efa.IOTXDescNumRDMABufs)
		remote := efa.RemoteMemAddr{RKey: wr.RKey, BufAddrLo: uint32(wr.RemoteAddr), BufAddrHi: uint32(wr.RemoteAddr >> 32)}
		if len(wr.SGE) > 0 {
			remote.Length = wr.SGE[0].Length
		}
		data = data[uapi.Encode(data, &remote):]
	}
	switch {
	case wr.Inline != nil && rdma:
		return fmt.Errorf("opcode %v with inline data: %w", wr.Opcode, syscall.EINVAL)
	case len(wr.Inline) > q.inline:
		return fmt.Errorf("%d bytes of inline data exceed the maximum of %d: %w", len(wr.Inline), q.inline, syscall.EINVAL)
	case len(wr.SGE) > sges && wr.Inline == nil:
		return fmt.Errorf("%d elements of opcode %v, at most %d: %w", len(wr.SGE), wr.Opcode, sges, syscall.EINVAL)
	case wr.Inline != nil:
		m.Ctrl1 |= efa.IOTXMetaDescInlineMsgMask
		m.Length = uint16(copy(data, wr.Inline))
	default:
		m.Length = uint16(len(wr.SGE))
		for _, s := range wr.SGE {
			data = data[uapi.Encode(data, &efa.TXBufDesc{Length: s.Length, LKey: s.LKey & efa.IOTXBufDescLKeyMask,
				BufAddrLo: uint32(s.Addr), BufAddrHi: uint32(s.Addr >> 32)}):]
		}
	}
	id, ok := q.sends.put(wr.ID, wr.Flags&uapi.SendSignaled != 0)
	if !ok {
		return provider.ErrFull
	}
	m.ReqID = id
	uapi.Encode(b, &m)
	copy(q.sq.mem[int(q.sent&q.sqMask)*q.slot:], b)
	q.sent++
	return nil
}

// Ring implements provider.QP.
func (q *qp) Ring() error {
	q.sendCount.Store(q.sent & 0xffff)
	if q.dev.polled {
		return nil
	}
	return q.t.Doorbell(q.handle)
}

// Recv implements provider.QP. (efa_post_recv)
func (q *qp) Recv(wr *provider.RecvWR) error {
	if len(wr.SGE) > q.recvSGE {
		return fmt.Errorf("%d elements, at most %d: %w", len(wr.SGE), q.recvSGE, syscall.EINVAL)
	}
	for _, s := range wr.SGE {
		if s.Length > 1<<16-1 {
			return fmt.Errorf("element of %d bytes, at most 65,535: %w", s.Length, syscall.EINVAL)
		}
	}
	id, ok := q.recvs.put(wr.ID, true)
	if !ok {
		return provider.ErrFull
	}
	none := [1]provider.SGE{}
	list := wr.SGE
	if len(list) == 0 {
		list = none[:]
	}
	for i, s := range list {
		d := efa.RXDesc{ReqID: id, Length: uint16(s.Length), LKeyCtrl: s.LKey & efa.IORXDescLKeyMask,
			BufAddrLo: uint32(s.Addr), BufAddrHi: uint32(s.Addr >> 32)}
		if i == 0 {
			d.LKeyCtrl |= efa.IORXDescFirstMask
		}
		if i == len(list)-1 {
			d.LKeyCtrl |= efa.IORXDescLastMask
		}
		uapi.Encode(q.rq.mem[int(q.received&q.rqMask)*recvSize:], &d)
		q.received++
	}
	q.recvCount.Store(q.received & 0xffff)
	return nil
}

// Reset implements provider.QP. The device has set the doorbells to 0.
func (q *qp) Reset() {
	q.sent, q.received = 0, 0
	q.sends.reset()
	q.recvs.reset()
}

// Close implements provider.QP.
func (q *qp) Close() error {
	q.dev.setQP(q.num, nil)
	return errors.Join(q.sq.unmap(), q.rq.unmap(), q.sendBell.unmap(), q.recvBell.unmap())
}

// request is a posted request.
type request struct {
	id       uint64
	posted   bool
	signaled bool
}

// requests are the requests of a queue, which complete in any order. The 16 bits of an identifier are an index and a
// number that differs after RESET.
type requests struct {
	mu   sync.Mutex // post and poll are different threads
	life uint16
	all  []request
	free []uint16
}

func (r *requests) init(n uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all, r.free = make([]request, n), make([]uint16, 0, n)
	r.fill()
}

// fill makes all identifiers free.
//
//verbena:held mu
func (r *requests) fill() {
	r.free = r.free[:0]
	for i := range r.all {
		r.all[i] = request{}
		r.free = append(r.free, uint16(len(r.all)-1-i))
	}
}

// put adds a request. It returns false if the queue is full.
func (r *requests) put(id uint64, signaled bool) (num uint16, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.free)
	if n == 0 {
		return 0, false
	}
	i := r.free[n-1]
	r.free = r.free[:n-1]
	r.all[i] = request{id: id, posted: true, signaled: signaled}
	return r.life<<indexBits | i, true
}

// take removes the request of a completion. It returns false if there is none, as after RESET.
func (r *requests) take(num uint16) (q request, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := num & (1<<indexBits - 1)
	if int(i) >= len(r.all) || num>>indexBits != r.life || !r.all[i].posted {
		return q, false
	}
	q, r.all[i].posted = r.all[i], false
	r.free = append(r.free, i)
	return q, true
}

func (r *requests) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.life = (r.life + 1) & (1<<(16-indexBits) - 1)
	r.fill()
}
