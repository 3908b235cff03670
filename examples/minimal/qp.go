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
	attr    ib.QPAttr
	recvs   []ib.RecvWR
	sends   []ib.SendWR
	begun   bool         // the first send has begun
	waits   bool         // it waits for the peer
	waiting []*queuePair // whose first send waits for this one
}

// CreateQP implements ib.Driver.
func (d *Device) CreateQP(h ib.QPHandle, init *ib.DriverQPInit, _ *ib.Udata) (ib.DriverQP, error) {
	if init.Type != ib.QPTypeRC {
		return nil, fmt.Errorf("create QP of type %v: %w", init.Type, syscall.EOPNOTSUPP)
	}
	if c := init.Cap; max(c.MaxSendWR, c.MaxRecvWR) > maxWR || max(c.MaxSendSGE, c.MaxRecvSGE) > maxSGE ||
		c.MaxInlineData > maxInline {
		return nil, fmt.Errorf("create QP: capacities %+v exceed %d work requests, %d elements or %d bytes inline: %w",
			c, maxWR, maxSGE, maxInline, syscall.EINVAL)
	}
	d.mu.Lock()
	defer d.unlock()
	if d.failed {
		return nil, fmt.Errorf("create QP on a device in error: %w", syscall.EIO)
	}
	q := &queuePair{d: d, h: h, pd: init.PD, cap: init.Cap, sigAll: init.SigAll,
		sendCQ: init.SendCQ.(*completionQueue), recvCQ: init.RecvCQ.(*completionQueue)}
	n := d.next()
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
		return fmt.Errorf("modify QP %d on a device in error: %w", q.h.Num(), syscall.EIO)
	}
	if err := check(attr, mask); err != nil {
		return fmt.Errorf("modify QP %d: %w", q.h.Num(), err)
	}
	switch to {
	case ib.QPReset:
		q.drop()
		return nil
	case ib.QPErr:
		q.enterErr()
		return nil
	}
	set(mask, ib.QPAttrAccessFlags, &q.attr.AccessFlags, attr.AccessFlags)
	set(mask, ib.QPAttrPKeyIndex, &q.attr.PKeyIndex, attr.PKeyIndex)
	set(mask, ib.QPAttrPort, &q.attr.Port, attr.Port)
	set(mask, ib.QPAttrAV, &q.attr.AH, attr.AH)
	set(mask, ib.QPAttrPathMTU, &q.attr.PathMTU, attr.PathMTU)
	set(mask, ib.QPAttrTimeout, &q.attr.Timeout, attr.Timeout)
	set(mask, ib.QPAttrRetryCnt, &q.attr.RetryCnt, attr.RetryCnt)
	set(mask, ib.QPAttrRNRRetry, &q.attr.RNRRetry, attr.RNRRetry)
	set(mask, ib.QPAttrMinRNRTimer, &q.attr.MinRNRTimer, attr.MinRNRTimer)
	set(mask, ib.QPAttrRQPSN, &q.attr.RQPSN, attr.RQPSN)
	set(mask, ib.QPAttrSQPSN, &q.attr.SQPSN, attr.SQPSN)
	set(mask, ib.QPAttrMaxRdAtomic, &q.attr.MaxRdAtomic, attr.MaxRdAtomic)
	set(mask, ib.QPAttrMaxDestRdAtomic, &q.attr.MaxDestRdAtomic, attr.MaxDestRdAtomic)
	set(mask, ib.QPAttrDestQPN, &q.attr.DestQPN, attr.DestQPN)
	from := q.attr.State
	q.attr.State = to
	if to == ib.QPSQD && from != ib.QPSQD {
		q.attr.EnSQDAsyncNotify = mask&ib.QPAttrEnSQDAsyncNotify != 0 && attr.EnSQDAsyncNotify
		q.attr.SQDraining = true
		q.drained()
	}
	q.run()
	q.wake()
	return nil
}

// drop forgets what is outstanding, and all attributes.
func (q *queuePair) drop() {
	q.sends, q.recvs, q.begun, q.waits, q.attr = nil, nil, false, false, ib.QPAttr{}
	q.wake()
}

// set stores an attribute if mask names it.
func set[T any](mask, name ib.QPAttrMask, to *T, v T) {
	if mask&name != 0 {
		*to = v
	}
}

// check checks the values of the attributes that mask names.
func check(a *ib.QPAttr, mask ib.QPAttrMask) error {
	for _, c := range []struct {
		name ib.QPAttrMask
		ok   bool
		what string
		v    any
	}{
		{ib.QPAttrPKeyIndex, a.PKeyIndex == 0, "P_Key index", a.PKeyIndex},
		{ib.QPAttrPort, a.Port == 1, "port", a.Port},
		{ib.QPAttrAV, a.AH.HasGRH && a.AH.GRH.SGIDIndex == 0 && a.AH.Port <= 1, "address", a.AH},
		{ib.QPAttrPathMTU, a.PathMTU >= ib.MTU256 && a.PathMTU <= ib.MTU4096, "path MTU", a.PathMTU},
		{ib.QPAttrTimeout, a.Timeout < 32, "timeout", a.Timeout},
		{ib.QPAttrRetryCnt, a.RetryCnt < 8, "retry count", a.RetryCnt},
		{ib.QPAttrRNRRetry, a.RNRRetry < 8, "RNR retry count", a.RNRRetry},
		{ib.QPAttrMinRNRTimer, a.MinRNRTimer < 32, "RNR timer", a.MinRNRTimer},
		{ib.QPAttrRQPSN, a.RQPSN < 1<<24, "RQ PSN", a.RQPSN},
		{ib.QPAttrSQPSN, a.SQPSN < 1<<24, "SQ PSN", a.SQPSN},
		{ib.QPAttrMaxRdAtomic, a.MaxRdAtomic <= maxReads, "max_rd_atomic", a.MaxRdAtomic},
		{ib.QPAttrMaxDestRdAtomic, a.MaxDestRdAtomic <= maxReads, "max_dest_rd_atomic", a.MaxDestRdAtomic},
		{ib.QPAttrDestQPN, a.DestQPN < 1<<24, "destination", a.DestQPN},
		{ib.QPAttrAltPath | ib.QPAttrCap | ib.QPAttrRateLimit, false, "mask", mask},
	} {
		if mask&c.name != 0 && !c.ok {
			return fmt.Errorf("%s %v is out of range: %w", c.what, c.v, syscall.EINVAL)
		}
	}
	return nil
}

// State implements ib.DriverQP. It may not sleep.
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
	q.drop()
	q.sendCQ.forget(q.h.QP())
	q.recvCQ.forget(q.h.QP())
	return nil
}

// PostSend implements ib.DriverQP. It may not sleep.
func (q *queuePair) PostSend(wrs []ib.SendWR) (n int, err error) {
	q.d.mu.Lock()
	defer q.d.unlock()
	for i := range wrs {
		wr := wrs[i] // a copy, also of what it refers to
		switch inline := wr.Flags&ib.SendInline != 0; {
		case q.attr.State != ib.QPRTS && q.attr.State != ib.QPSQD && q.attr.State != ib.QPErr:
			return i, fmt.Errorf("post send to QP %d in state %v: %w", q.h.Num(), q.attr.State, syscall.EINVAL)
		case wr.Opcode != ib.WRSend && wr.Opcode != ib.WRSendWithImm:
			return i, fmt.Errorf("post send: opcode %v: %w", wr.Opcode, syscall.EOPNOTSUPP)
		case inline && len(wr.Inline) > int(q.cap.MaxInlineData):
			return i, fmt.Errorf("post send: %d bytes inline exceed %d: %w",
				len(wr.Inline), q.cap.MaxInlineData, syscall.EINVAL)
		case !inline && len(wr.SGList) > int(q.cap.MaxSendSGE):
			return i, fmt.Errorf("post send: %d elements exceed %d: %w",
				len(wr.SGList), q.cap.MaxSendSGE, syscall.EINVAL)
		case len(q.sends) >= int(q.cap.MaxSendWR):
			return i, fmt.Errorf("post send: all %d entries are in use: %w", q.cap.MaxSendWR, syscall.ENOMEM)
		case inline:
			wr.SGList, wr.Inline = nil, slices.Clone(wr.Inline)
		default:
			wr.SGList, wr.Inline = slices.Clone(wr.SGList), nil
		}
		q.sends = append(q.sends, wr)
		q.run()
	}
	return len(wrs), nil
}

// PostRecv implements ib.DriverQP. It may not sleep.
func (q *queuePair) PostRecv(wrs []ib.RecvWR) (n int, err error) {
	q.d.mu.Lock()
	defer q.d.unlock()
	for i, wr := range wrs {
		switch {
		case q.attr.State == ib.QPReset:
			return i, fmt.Errorf("post receive to QP %d in state RESET: %w", q.h.Num(), syscall.EINVAL)
		case len(wr.SGList) > int(q.cap.MaxRecvSGE):
			return i, fmt.Errorf("post receive: %d elements exceed %d: %w",
				len(wr.SGList), q.cap.MaxRecvSGE, syscall.EINVAL)
		case len(q.recvs) >= int(q.cap.MaxRecvWR):
			return i, fmt.Errorf("post receive: all %d entries are in use: %w", q.cap.MaxRecvWR, syscall.ENOMEM)
		}
		wr.SGList = slices.Clone(wr.SGList)
		q.recvs = append(q.recvs, wr)
		q.run()
		q.wake()
	}
	return len(wrs), nil
}
