package skeleton

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"

	"verbena/ib"
)

// qp is a queue pair. Everything but the first fields is under Device.mu.
type qp struct {
	dev            *Device
	obj            ib.QPHandle
	init           ib.DriverQPInit // with the capacities granted
	sendCQ, recvCQ *cq

	state ib.QPState
	attr  ib.QPAttr
	sends []ib.SendWR
	recvs []ib.RecvWR
}

// CreateQP implements ib.Driver.
func (d *Device) CreateQP(obj ib.QPHandle, init *ib.DriverQPInit, u *ib.Udata) (ib.DriverQP, error) {
	c := &init.Cap
	switch {
	case init.Type != ib.QPTypeRC || u != nil:
		return nil, fmt.Errorf("%v queue pair: %w", init.Type, syscall.EOPNOTSUPP)
	case c.MaxSendWR > maxWR || c.MaxRecvWR > maxWR || c.MaxSendSGE > maxSGE || c.MaxRecvSGE > maxSGE || c.MaxInlineData > 256:
		return nil, fmt.Errorf("capacities %+v: %w", *c, syscall.EINVAL)
	}
	q := &qp{dev: d, obj: obj, init: *init}
	q.sendCQ, _ = ib.As[*cq](init.SendCQ) // also where something wraps it
	q.recvCQ, _ = ib.As[*cq](init.RecvCQ)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.qps) == maxQP {
		return nil, syscall.ENOMEM
	}
	d.lastQPN++ // 24 bits are not used up by a skeleton
	obj.SetNum(d.lastQPN)
	d.qps[d.lastQPN] = q
	return q, nil
}

// State implements ib.DriverQP. It may not sleep.
func (q *qp) State() ib.QPState {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	return q.state
}

// Query implements ib.DriverQP.
func (q *qp) Query(ib.QPAttrMask) (ib.QPAttr, error) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	a := q.attr
	a.State, a.CurState, a.Cap = q.state, q.state, q.init.Cap
	return a, nil
}

// Modify implements ib.DriverQP. The transition is checked in the state that is there, under the lock, and then the values,
// before anything changes.
func (q *qp) Modify(a *ib.QPAttr, mask ib.QPAttrMask, u *ib.Udata) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := ib.NextState(q.state, q.init.Type, a, mask); err != nil {
		return err
	}
	has := func(bit ib.QPAttrMask) bool { return mask&bit != 0 }
	switch {
	case has(ib.QPAttrPort) && a.Port != 1,
		has(ib.QPAttrPKeyIndex) && a.PKeyIndex != 0,
		has(ib.QPAttrPathMTU) && (!a.PathMTU.Valid() || a.PathMTU > mtu),
		has(ib.QPAttrMaxRdAtomic) && a.MaxRdAtomic > maxRdAtomic, has(ib.QPAttrMaxDestRdAtomic) && a.MaxDestRdAtomic > maxRdAtomic,
		has(ib.QPAttrTimeout) && a.Timeout > 31, has(ib.QPAttrMinRNRTimer) && a.MinRNRTimer > 31,
		has(ib.QPAttrRetryCnt) && a.RetryCnt > 7, has(ib.QPAttrRNRRetry) && a.RNRRetry > 7,
		has(ib.QPAttrAV) && (!a.AH.HasGRH || a.AH.Port != 1 || a.AH.GRH.SGIDIndex != 0),
		has(ib.QPAttrAltPath), has(ib.QPAttrPathMigState):
		return fmt.Errorf("attributes %+v: %w", *a, syscall.EINVAL)
	}
	defer d.kick() // there may be something to send, or a peer that has to give up
	for bit, take := range map[ib.QPAttrMask]func(){
		ib.QPAttrAccessFlags:     func() { q.attr.AccessFlags = a.AccessFlags },
		ib.QPAttrPort:            func() { q.attr.Port = a.Port },
		ib.QPAttrAV:              func() { q.attr.AH = a.AH },
		ib.QPAttrPathMTU:         func() { q.attr.PathMTU = a.PathMTU },
		ib.QPAttrDestQPN:         func() { q.attr.DestQPN = a.DestQPN },
		ib.QPAttrRQPSN:           func() { q.attr.RQPSN = a.RQPSN },
		ib.QPAttrSQPSN:           func() { q.attr.SQPSN = a.SQPSN },
		ib.QPAttrTimeout:         func() { q.attr.Timeout = a.Timeout },
		ib.QPAttrRetryCnt:        func() { q.attr.RetryCnt = a.RetryCnt },
		ib.QPAttrRNRRetry:        func() { q.attr.RNRRetry = a.RNRRetry },
		ib.QPAttrMinRNRTimer:     func() { q.attr.MinRNRTimer = a.MinRNRTimer },
		ib.QPAttrMaxRdAtomic:     func() { q.attr.MaxRdAtomic = a.MaxRdAtomic },
		ib.QPAttrMaxDestRdAtomic: func() { q.attr.MaxDestRdAtomic = a.MaxDestRdAtomic },
	} {
		if has(bit) {
			take()
		}
	}
	switch {
	case !has(ib.QPAttrState):
	case a.State == ib.QPErr:
		q.toError()
	case a.State == ib.QPReset:
		q.state, q.attr, q.sends, q.recvs = ib.QPReset, ib.QPAttr{}, nil, nil
	default:
		q.state = a.State
		if a.State == ib.QPSQD && has(ib.QPAttrEnSQDAsyncNotify) && a.EnSQDAsyncNotify {
			q.obj.Raise(ib.EventSQDrained) // messages are transmitted whole, so none is under way
		}
	}
	return nil
}

// Destroy implements ib.DriverQP.
func (q *qp) Destroy() error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.kick()
	q.state, q.sends, q.recvs = ib.QPReset, nil, nil
	q.sendCQ.forget(q.obj.QP())
	q.recvCQ.forget(q.obj.QP())
	delete(d.qps, q.obj.Num())
	return nil
}

// PostSend implements ib.DriverQP. It may not sleep: it copies the list, which is the caller's again when it returns, and
// wakes the engine.
func (q *qp) PostSend(wrs []ib.SendWR) (n int, err error) {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.state < ib.QPRTS {
		return 0, fmt.Errorf("post send in state %v: %w", q.state, syscall.EINVAL)
	}
	for ; n < len(wrs); n++ {
		wr := wrs[n]
		switch {
		case wr.Opcode != ib.WRSend && wr.Opcode != ib.WRSendWithImm && wr.Opcode != ib.WRRDMAWrite && wr.Opcode != ib.WRRDMAWriteWithImm:
			err = fmt.Errorf("opcode %d: %w", wr.Opcode, syscall.EOPNOTSUPP)
		case len(wr.SGList) > int(q.init.Cap.MaxSendSGE) || wr.Flags&ib.SendInline != 0 && len(wr.Inline) > int(q.init.Cap.MaxInlineData):
			err = fmt.Errorf("%d gather elements, %d bytes inline: %w", len(wr.SGList), len(wr.Inline), syscall.EINVAL)
		case length(wr.SGList) > maxMsgSize:
			err = fmt.Errorf("a message of %d bytes, at most %d: %w", length(wr.SGList), maxMsgSize, syscall.EINVAL)
		case len(q.sends) == int(q.init.Cap.MaxSendWR):
			err = fmt.Errorf("the send queue is full: %w", syscall.ENOMEM)
		}
		if err != nil {
			break
		}
		wr.SGList, wr.Inline = slices.Clone(wr.SGList), bytes.Clone(wr.Inline)
		q.sends = append(q.sends, wr)
	}
	d.kick()
	return n, err
}

func length(sgl []ib.SGE) (n uint64) {
	for _, s := range sgl {
		n += uint64(s.Length)
	}
	return n
}

// PostRecv implements ib.DriverQP. It may not sleep.
func (q *qp) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.state == ib.QPReset {
		return 0, fmt.Errorf("post receive in state %v: %w", q.state, syscall.EINVAL)
	}
	for ; n < len(wrs); n++ {
		switch {
		case len(wrs[n].SGList) > int(q.init.Cap.MaxRecvSGE):
			err = fmt.Errorf("%d scatter elements: %w", len(wrs[n].SGList), syscall.EINVAL)
		case len(q.recvs) == int(q.init.Cap.MaxRecvWR):
			err = fmt.Errorf("the receive queue is full: %w", syscall.ENOMEM)
		}
		if err != nil {
			break
		}
		q.recvs = append(q.recvs, ib.RecvWR{ID: wrs[n].ID, SGList: slices.Clone(wrs[n].SGList)})
	}
	d.kick()
	return n, err
}

// work does what the engine can do for the queue pair now, and reports whether that was anything.
//
//verbena:held q.dev.mu
func (q *qp) work() (busy bool) {
	switch {
	case q.state == ib.QPErr || q.dev.failed && q.state != ib.QPReset:
		busy = len(q.sends)+len(q.recvs) > 0
		q.toError()
	case q.state == ib.QPRTS && len(q.sends) > 0:
		status, wait := q.transmit(&q.sends[0])
		if wait {
			return false
		}
		busy = true
		if len(q.sends) > 0 { // unless the failure of the peer, which is q itself, has flushed it
			wr := q.sends[0]
			q.sends = slices.Delete(q.sends, 0, 1)
			q.completeSend(&wr, status)
		}
	}
	return busy
}

// transmit sends one message to the other end, with its answer. This is where the wire goes. wait tells that the peer
// is in INIT, or that the receiver is not ready (RNR); a skeleton waits as long as it takes, unless RNRRetry is 0.
//
//verbena:held q.dev.mu
func (q *qp) transmit(wr *ib.SendWR) (status ib.WCStatus, wait bool) {
	d := q.dev
	data, ok := wr.Inline, true
	if wr.Flags&ib.SendInline == 0 {
		data, ok = d.read(wr.SGList, q.init.PD)
	}
	if !ok {
		return ib.WCLocProtErr, false
	}
	peer := d.qps[q.attr.DestQPN]
	if peer != nil && peer.state == ib.QPInit {
		return 0, true // its owner may be about to connect it: retries would wait for that
	}
	if peer == nil || peer.attr.DestQPN != q.obj.Num() || peer.state < ib.QPRTR || peer.state == ib.QPErr {
		return ib.WCRetryExcErr, false
	}
	wc := ib.WC{ByteLen: uint32(len(data)), SrcQP: q.obj.Num(), Opcode: ib.WCRecv}
	receives, writes := wr.Opcode != ib.WRRDMAWrite, wr.Opcode == ib.WRRDMAWrite || wr.Opcode == ib.WRRDMAWriteWithImm
	if writes { // a request that is refused does not reach a receive (IBA 9.9.3)
		if status, event := peer.admits(wr, uint64(len(data))); status != ib.WCSuccess {
			peer.obj.Raise(event)
			peer.toError()
			return status, false
		}
	}
	if receives && len(peer.recvs) == 0 {
		if q.attr.RNRRetry == 0 {
			return ib.WCRNRRetryExcErr, false
		}
		return 0, true
	}
	if writes {
		if !peer.store(wr, data) {
			peer.obj.Raise(ib.EventQPAccessErr)
			peer.toError()
			return ib.WCRemAccessErr, false
		}
		wc.Opcode = ib.WCRecvRDMAWithImm
	} else if wc.Status = d.write(peer.recvs[0].SGList, peer.init.PD, data); wc.Status == ib.WCLocLenErr {
		status = ib.WCRemInvReqErr
	} else if wc.Status != ib.WCSuccess {
		status = ib.WCRemOpErr
	}
	if wr.Opcode == ib.WRSendWithImm || wr.Opcode == ib.WRRDMAWriteWithImm {
		wc.Imm, wc.Flags = wr.Imm, ib.WCWithImm
	}
	if receives {
		peer.completeRecv(wc, wr.Flags&ib.SendSolicited != 0)
	}
	if status != ib.WCSuccess {
		peer.toError()
	}
	return status, false
}

// admits checks what an RDMA WRITE of n bytes needs: the right of the queue pair, and that of the memory, unless there is none.
//
//verbena:held q.dev.mu
func (q *qp) admits(wr *ib.SendWR, n uint64) (ib.WCStatus, ib.EventType) {
	switch {
	case q.attr.AccessFlags&ib.AccessRemoteWrite == 0:
		return ib.WCRemInvReqErr, ib.EventQPReqErr
	case n > 0 && q.dev.region(wr.RKey, q.init.PD, ib.AccessRemoteWrite, wr.RemoteAddr, n) == nil:
		return ib.WCRemAccessErr, ib.EventQPAccessErr
	}
	return ib.WCSuccess, 0
}

// store carries out an RDMA WRITE at its target.
//
//verbena:held q.dev.mu
func (q *qp) store(wr *ib.SendWR, data []byte) bool {
	if len(data) == 0 {
		return true
	}
	r := q.dev.region(wr.RKey, q.init.PD, ib.AccessRemoteWrite, wr.RemoteAddr, uint64(len(data)))
	return r != nil && r.WriteV([][]byte{data}, wr.RemoteAddr) == nil
}

// sent is the completion of a send work request.
func (q *qp) sent(wr *ib.SendWR, status ib.WCStatus) ib.WC {
	op := ib.WCSend
	if wr.Opcode == ib.WRRDMAWrite || wr.Opcode == ib.WRRDMAWriteWithImm {
		op = ib.WCRDMAWrite
	}
	return ib.WC{ID: wr.ID, Status: status, Opcode: op, QPNum: q.obj.Num(), QP: q.obj.QP(), Port: 1}
}

// completeSend ends a work request.
//
//verbena:held q.dev.mu
func (q *qp) completeSend(wr *ib.SendWR, status ib.WCStatus) {
	posted := true
	if status != ib.WCSuccess || q.init.SigAll || wr.Flags&ib.SendSignaled != 0 {
		posted = q.sendCQ.post(q.sent(wr, status), false)
	}
	if status != ib.WCSuccess || !posted {
		q.toError()
	}
}

// completeRecv ends the first receive.
//
//verbena:held q.dev.mu
func (q *qp) completeRecv(wc ib.WC, solicited bool) {
	wc.ID, wc.QPNum, wc.QP, wc.Port = q.recvs[0].ID, q.obj.Num(), q.obj.QP(), 1
	q.recvs = slices.Delete(q.recvs, 0, 1)
	if !q.recvCQ.post(wc, solicited) && q.state != ib.QPErr {
		q.toError()
	}
}

// toError flushes both queues, in order.
//
//verbena:held q.dev.mu
func (q *qp) toError() {
	q.state = ib.QPErr
	for len(q.sends) > 0 {
		wr := q.sends[0]
		q.sends = slices.Delete(q.sends, 0, 1)
		q.sendCQ.post(q.sent(&wr, ib.WCWRFlushErr), false)
	}
	for len(q.recvs) > 0 {
		q.completeRecv(ib.WC{Status: ib.WCWRFlushErr, Opcode: ib.WCRecv}, false)
	}
}
