package engine

import (
	"fmt"
	"syscall"

	"verbena/driver"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/link"
	"verbena/roce"
)

// checkAttr checks the values of attributes (rxe_qp_chk_attr).
func checkAttr(a *ib.QPAttr, mask ib.QPAttrMask) error {
	for _, c := range []struct {
		bit ib.QPAttrMask
		bad bool
		is  string
	}{
		{ib.QPAttrPort, a.Port != 1, "port"},
		{ib.QPAttrPKeyIndex, a.PKeyIndex != 0, "P_Key index"},
		{ib.QPAttrPathMTU, !a.PathMTU.Valid(), "path MTU"},
		{ib.QPAttrMaxRdAtomic, a.MaxRdAtomic > maxRdAtomic, "number of outgoing reads"},
		{ib.QPAttrMaxDestRdAtomic, a.MaxDestRdAtomic > maxRdAtomic, "number of incoming reads"},
		{ib.QPAttrTimeout, a.Timeout > 31, "timeout code"},
		{ib.QPAttrRetryCnt, a.RetryCnt > 7, "retry count"},
		{ib.QPAttrRNRRetry, a.RNRRetry > 7, "RNR retry count"},
		{ib.QPAttrMinRNRTimer, a.MinRNRTimer > 31, "RNR timer code"},
		{ib.QPAttrDestQPN, a.DestQPN > roce.PSNMask, "destination queue pair number"},
		{ib.QPAttrAltPath, a.AltPort > 1 || a.AltTimeout > 31, "alternate path"},
	} {
		if mask&c.bit != 0 && c.bad {
			return fmt.Errorf("the %s is out of range: %w", c.is, syscall.EINVAL)
		}
	}
	const known = ib.QPAttrState | ib.QPAttrCurState | ib.QPAttrEnSQDAsyncNotify | ib.QPAttrAccessFlags |
		ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrTimeout |
		ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrRQPSN | ib.QPAttrMaxRdAtomic | ib.QPAttrAltPath |
		ib.QPAttrMinRNRTimer | ib.QPAttrSQPSN | ib.QPAttrMaxDestRdAtomic | ib.QPAttrPathMigState | ib.QPAttrDestQPN
	if mask&^known != 0 {
		return fmt.Errorf("attributes %v cannot be changed: %w", mask&^known, syscall.EOPNOTSUPP)
	}
	return nil
}

// Modify implements ib.DriverQP. Modify checks the transition first, because the error of a wrong transition precedes
// that of a wrong value. change checks the transition again, when the state is stable.
func (qp *QP) Modify(a *ib.QPAttr, mask ib.QPAttrMask, _ *ib.Udata) (err error) {
	if _, err := ib.NextState(qp.State(), qp.typ, a, mask); err != nil {
		return err
	}
	if err := checkAttr(a, mask); err != nil {
		return err
	}
	var to *path
	if mask&ib.QPAttrAV != 0 {
		if to, err = resolve(qp.dev, &a.AH); err != nil {
			return err
		}
	}
	if !qp.exclusively(func(*pass) {
		err = qp.change(a, mask, to)
		qp.publish()
	}) {
		return errBroken
	}
	if err == nil && mask&ib.QPAttrState != 0 && a.State == ib.QPReset {
		qp.forgetPort()
	}
	return err
}

// sourcePort returns the UDP source port that Linux would use for a connection of queue pair num. (rdma_get_udp_sport)
func sourcePort(num uint32, a *ib.QPAttr) uint16 {
	if label := a.AH.GRH.FlowLabel; label != 0 {
		return roce.SourcePortFlowLabel(label)
	}
	return roce.SourcePortRC(num, a.DestQPN)
}

// forgetPort reports to the endpoints that the queue pair no longer uses its UDP source port. If another queue pair
// uses the port, the endpoints find it again.
func (qp *QP) forgetPort() {
	port := uint16(0)
	if !qp.exclusively(func(*pass) { port = qp.sport }) {
		return
	}
	for _, e := range qp.dev.Endpoints() {
		link.ForgetPort(e, port)
	}
}

// setMTU sets the path MTU of both directions.
func (qp *QP) setMTU(m roce.MTU) {
	qp.attr.PathMTU, qp.pathMTU, qp.mtu = m, m, m.Bytes()
	qp.req.snd.MTU = qp.mtu
	qp.resp.rcv.SetMTU(qp.mtu)
}

// change applies the attributes. (rxe_qp_from_attr)
func (qp *QP) change(a *ib.QPAttr, mask ib.QPAttrMask, to *path) error {
	moves := mask&ib.QPAttrState != 0
	if qp.dev.failed.Load() && (!moves || a.State != ib.QPErr && a.State != ib.QPReset) {
		return fmt.Errorf("the device is in error: %w", syscall.EIO)
	}
	if _, err := ib.NextState(qp.state, qp.typ, a, mask); err != nil {
		return err
	}
	if moves && qp.req.drain == draining && a.State != ib.QPErr && a.State != ib.QPReset {
		return fmt.Errorf("send queue is being drained: %w", syscall.EINVAL)
	}
	if to != nil {
		qp.path, qp.attr.AH = to, a.AH
	}
	for _, c := range []struct {
		bit ib.QPAttrMask
		set func()
	}{
		{ib.QPAttrAccessFlags, func() { qp.attr.AccessFlags = a.AccessFlags }},
		{ib.QPAttrPKeyIndex, func() { qp.attr.PKeyIndex = a.PKeyIndex }},
		{ib.QPAttrPort, func() { qp.attr.Port = a.Port }},
		{ib.QPAttrQKey, func() {
			qp.attr.QKey = a.QKey
			qp.qkey.Store(uint64(qkeyOf(qp)))
		}},
		{ib.QPAttrPathMTU, func() {
			qp.setMTU(a.PathMTU)
		}},
		{ib.QPAttrTimeout, func() {
			qp.attr.Timeout = a.Timeout
			qp.req.snd.Timeout = roce.AckTimeout(a.Timeout)
		}},
		{ib.QPAttrRetryCnt, func() {
			qp.attr.RetryCnt = a.RetryCnt
			qp.req.snd.SetRetryCnt(a.RetryCnt)
		}},
		{ib.QPAttrRNRRetry, func() {
			qp.attr.RNRRetry = a.RNRRetry
			qp.req.snd.SetRNRRetry(a.RNRRetry)
		}},
		{ib.QPAttrMinRNRTimer, func() { qp.attr.MinRNRTimer = a.MinRNRTimer }},
		{ib.QPAttrMaxRdAtomic, func() {
			qp.attr.MaxRdAtomic = a.MaxRdAtomic
			qp.req.snd.MaxReads = int(a.MaxRdAtomic)
		}},
		{ib.QPAttrMaxDestRdAtomic, func() {
			qp.attr.MaxDestRdAtomic = a.MaxDestRdAtomic
			qp.resp.rcv.SetDepth(int(a.MaxDestRdAtomic))
		}},
		{ib.QPAttrDestQPN, func() {
			qp.attr.DestQPN = a.DestQPN
			qp.peer.Store(a.DestQPN)
		}},
		{ib.QPAttrRQPSN, func() { qp.resp.rcv.Begin(roce.MakePSN(a.RQPSN)) }},
		{ib.QPAttrSQPSN, func() { qp.req.snd.Begin(roce.MakePSN(a.SQPSN)) }},
		{ib.QPAttrAltPath, func() {
			qp.attr.AltAH, qp.attr.AltPort = a.AltAH, a.AltPort
			qp.attr.AltPKeyIndex, qp.attr.AltTimeout = a.AltPKeyIndex, a.AltTimeout
		}},
		{ib.QPAttrPathMigState, func() { qp.attr.PathMigState = a.PathMigState }},
	} {
		if mask&c.bit != 0 {
			c.set()
		}
	}
	if mask&(ib.QPAttrAV|ib.QPAttrDestQPN) != 0 && !qp.datagram {
		qp.sport = sourcePort(qp.num, &qp.attr)
	}
	if !moves {
		return nil
	}
	switch a.State {
	case ib.QPReset:
		qp.reset()
	case ib.QPErr:
		qp.enterError(driver.StateCause{Reason: driver.ByProgram})
	case ib.QPSQD:
		if qp.state != ib.QPSQD {
			qp.req.drain = draining
			qp.attr.EnSQDAsyncNotify = mask&ib.QPAttrEnSQDAsyncNotify != 0 && a.EnSQDAsyncNotify // this transition
		}
		qp.setState(a.State, driver.StateCause{Reason: driver.ByProgram})
	default:
		qp.setState(a.State, driver.StateCause{Reason: driver.ByProgram})
	}
	return nil
}

// initAttrs sets the attributes of a new queue pair, which RESET restores (IBA 10.3.1).
func (qp *QP) initAttrs() {
	mtu := roce.MTU256
	if qp.datagram {
		mtu = qp.dev.activeMTU()
	}
	qp.attr = ib.QPAttr{}
	qp.setMTU(mtu)
	if qp.srd != nil {
		qp.attr.RNRRetry = transport.RNRForever
	}
	qp.peer.Store(0)
	qp.qkey.Store(noQKey)
}

// reset discards all outstanding work, without completions, and the attributes. rxe_qp_reset keeps the attributes,
// which adapters do not.
func (qp *QP) reset() {
	qp.sending.Lock()
	defer qp.sending.Unlock()
	qp.posting.Lock()
	defer qp.posting.Unlock()
	qp.setState(ib.QPReset, driver.StateCause{Reason: driver.ByProgram})
	qp.req.snd.Reset()
	qp.resp.reset()
	if qp.srd != nil {
		qp.srd.reset()
	}
	qp.egress.drop()
	qp.timer.unblock, qp.egress.blocked = noTime, false
	qp.path = nil
	qp.initAttrs()
	if !qp.sq.Discard() || !qp.rq.Discard() {
		qp.ringGone()
	}
}

// Query implements ib.DriverQP. (rxe_qp_to_attr)
func (qp *QP) Query(ib.QPAttrMask) (ib.QPAttr, error) {
	var a ib.QPAttr
	if !qp.exclusively(func(*pass) {
		a = qp.attr
		a.State, a.CurState = qp.state, qp.state
		a.Cap = qp.cap
		a.RQPSN, a.SQPSN = uint32(qp.resp.rcv.PSN()), uint32(qp.req.snd.Place())
		a.SQDraining = qp.req.drain == draining
	}) {
		return ib.QPAttr{}, errBroken
	}
	return a, nil
}
