package minimal

import (
	"fmt"
	"slices"
	"syscall"

	"verbena/ib"
)

// queuePair is a reliable connection.
type queuePair struct {
	d              *Device
	h              ib.QPHandle
	pd             ib.DriverPD
	cap            ib.QPCap
	sigAll         bool
	sendCQ, recvCQ *completionQueue

	// guarded by Device.mu
	attr  ib.QPAttr
	recvs []ib.RecvWR
	sends []ib.SendWR
}

// CreateQP implements ib.Driver.
func (d *Device) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	if init.Type != ib.QPTypeRC {
		return nil, fmt.Errorf("create queue pair: unsupported type %v: %w", init.Type, syscall.EOPNOTSUPP)
	}
	c := init.Cap
	if max(c.MaxSendWR, c.MaxRecvWR) > maxWR || max(c.MaxSendSGE, c.MaxRecvSGE) > maxSGE || c.MaxInlineData > maxInline {
		return nil, fmt.Errorf("create queue pair: capacities %+v exceed %d work requests, %d elements or %d inline bytes: %w",
			c, maxWR, maxSGE, maxInline, syscall.EINVAL)
	}
	d.mu.Lock()
	defer d.unlock()
	q := &queuePair{d: d, h: h, pd: init.PD, cap: c, sigAll: init.SigAll,
		sendCQ: init.SendCQ.(*completionQueue), recvCQ: init.RecvCQ.(*completionQueue)}
	n := d.nextObjectID()
	h.SetNum(n)
	d.qps[n] = q
	return q, nil
}

// Modify implements ib.DriverQP.
func (q *queuePair) Modify(attr *ib.QPAttr, mask ib.QPAttrMask, _ *ib.Udata) error {
	q.d.mu.Lock()
	defer q.d.unlock()
	to, err := ib.NextState(q.attr.State, ib.QPTypeRC, attr, mask)
	if err != nil {
		return err
	}
	if q.d.failed && to != ib.QPErr && to != ib.QPReset {
		return fmt.Errorf("modify queue pair: the device is in error: %w", syscall.EIO)
	}
	if err := checkAttr(attr, mask); err != nil {
		return err
	}
	switch to {
	case ib.QPReset:
		q.discardRequests()
		return nil
	case ib.QPErr:
		q.enterErr()
		return nil
	}
	q.attr.Set(attr, mask)
	if to == ib.QPSQD && q.attr.State != ib.QPSQD && mask&ib.QPAttrEnSQDAsyncNotify != 0 && attr.EnSQDAsyncNotify {
		q.h.Raise(ib.EventSQDrained) // sends are never in flight, because each executes as a whole
	}
	q.attr.State, q.d.retry = to, true
	return nil
}

// discardRequests discards all work requests and attributes.
func (q *queuePair) discardRequests() {
	q.sends, q.recvs, q.attr, q.d.retry = nil, nil, ib.QPAttr{}, true
}

// checkAttr validates the values of the attributes named by mask.
func checkAttr(a *ib.QPAttr, mask ib.QPAttrMask) error {
	has := func(bit ib.QPAttrMask) bool { return mask&bit != 0 }
	switch {
	case has(ib.QPAttrPort) && a.Port != 1, has(ib.QPAttrPKeyIndex) && a.PKeyIndex != 0,
		has(ib.QPAttrAV) && (!a.AH.HasGRH || a.AH.GRH.SGIDIndex != 0 || a.AH.Port != 1),
		has(ib.QPAttrMaxRdAtomic) && a.MaxRdAtomic > maxReads, has(ib.QPAttrMaxDestRdAtomic) && a.MaxDestRdAtomic > maxReads,
		has(ib.QPAttrAltPath | ib.QPAttrCap | ib.QPAttrRateLimit):
		return fmt.Errorf("attributes %+v with mask %#x: %w", *a, uint32(mask), syscall.EINVAL)
	}
	return a.Fits(mask)
}

// State implements ib.DriverQP. State may not sleep.
func (q *queuePair) State() ib.QPState {
	q.d.mu.Lock()
	defer q.d.unlock()
	return q.attr.State
}

// Query implements ib.DriverQP.
func (q *queuePair) Query(ib.QPAttrMask) (ib.QPAttr, error) {
	q.d.mu.Lock()
	defer q.d.unlock()
	attr := q.attr
	attr.CurState, attr.Cap = attr.State, q.cap
	return attr, nil
}

// Destroy implements ib.DriverQP.
func (q *queuePair) Destroy() error {
	q.d.mu.Lock()
	defer q.d.unlock()
	delete(q.d.qps, q.h.Num())
	q.discardRequests()
	q.sendCQ.forgetQP(q.h.QP())
	q.recvCQ.forgetQP(q.h.QP())
	return nil
}

// PostSend implements ib.DriverQP. PostSend may not sleep.
func (q *queuePair) PostSend(wrs []ib.SendWR) (n int, err error) {
	q.d.mu.Lock()
	defer q.d.unlock()
	if s := q.attr.State; s != ib.QPRTS && s != ib.QPSQD && s != ib.QPErr {
		return 0, fmt.Errorf("post send in state %v: %w", s, syscall.EINVAL)
	}
	for n, wr := range wrs { // a copy, including the inline data
		inline := wr.Flags&ib.SendInline != 0
		switch {
		case wr.Opcode != ib.WRSend && wr.Opcode != ib.WRSendWithImm:
			return n, fmt.Errorf("post send: opcode %v: %w", wr.Opcode, syscall.EOPNOTSUPP)
		case inline && len(wr.Inline) > int(q.cap.MaxInlineData):
			return n, fmt.Errorf("post send: %d inline bytes exceed %d: %w", len(wr.Inline), q.cap.MaxInlineData,
				syscall.EINVAL)
		case !inline && len(wr.SGList) > int(q.cap.MaxSendSGE):
			return n, fmt.Errorf("post send: %d elements exceed %d: %w", len(wr.SGList), q.cap.MaxSendSGE, syscall.EINVAL)
		case len(q.sends) >= int(q.cap.MaxSendWR):
			return n, fmt.Errorf("post send: all %d entries of the queue are in use: %w", q.cap.MaxSendWR, syscall.ENOMEM)
		}
		wr.SGList, wr.Inline = slices.Clone(wr.SGList), slices.Clone(wr.Inline)
		q.sends = append(q.sends, wr)
		q.runSends()
	}
	return len(wrs), nil
}

// PostRecv implements ib.DriverQP. PostRecv may not sleep.
func (q *queuePair) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	q.d.mu.Lock()
	defer q.d.unlock()
	if q.attr.State == ib.QPReset {
		return 0, fmt.Errorf("post receive in state %v: %w", q.attr.State, syscall.EINVAL)
	}
	for n, wr := range wrs {
		switch {
		case len(wr.SGList) > int(q.cap.MaxRecvSGE):
			return n, fmt.Errorf("post receive: %d elements exceed %d: %w", len(wr.SGList), q.cap.MaxRecvSGE, syscall.EINVAL)
		case len(q.recvs) >= int(q.cap.MaxRecvWR):
			return n, fmt.Errorf("post receive: all %d entries of the queue are in use: %w", q.cap.MaxRecvWR, syscall.ENOMEM)
		}
		wr.SGList = slices.Clone(wr.SGList)
		q.recvs = append(q.recvs, wr)
		q.runSends()
		if peer := q.d.qps[q.attr.DestQPN]; peer != nil {
			peer.runSends()
		}
	}
	return len(wrs), nil
}
