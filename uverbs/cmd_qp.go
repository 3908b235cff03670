package uverbs

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// qpObject is a queue pair and its events. (struct ib_uqp_object)
type qpObject struct {
	*ib.QP
	f        *File
	handle   uint32
	pd       uint32    // handle
	srq      uint32    // handle; 0: none
	uid      uint64    // the program's handle, which events report
	user     ib.UserQP // nil if no queue is shared with the program
	doorbell doorbell
	port     *atomic.Uint32
	groups   memberships
	xrcd     *xrcdObject // for an XRC target
	target   *xrcTarget  // for an XRC target; other programs may also have opened the target

	asyncEvents *eventFile // may be nil
	async       eventSource

	reported uint32 // valid after destruction: number of events that the program has read
}

func (*qpObject) kind() objectKind { return kindQP }

func (o *qpObject) destroy() error {
	end := o.Destroy
	if o.target != nil {
		end = o.closeXRCTarget
	}
	o.f.doorbells.remove(o)
	if err := end(); err != nil {
		o.f.doorbells.add(o)
		return err
	}
	o.f.dev.queuePairs.CompareAndDelete(o.Num(), o)
	o.reported = o.asyncEvents.removeObjectEvents(&o.async)
	o.xrcd.dropUse()
	return nil
}

// cmdCreateQP creates a queue pair. (ib_uverbs_create_qp)
func cmdCreateQP(c *call) error {
	req, err := decodeRequest[uapi.CreateQP](c)
	if err != nil {
		return err
	}
	resp, err := c.createQP(&uapi.ExCreateQP{
		UserHandle:    req.UserHandle,
		PDHandle:      req.PDHandle,
		SendCQHandle:  req.SendCQHandle,
		RecvCQHandle:  req.RecvCQHandle,
		SRQHandle:     req.SRQHandle,
		MaxSendWR:     req.MaxSendWR,
		MaxRecvWR:     req.MaxRecvWR,
		MaxSendSGE:    req.MaxSendSGE,
		MaxRecvSGE:    req.MaxRecvSGE,
		MaxInlineData: req.MaxInlineData,
		SQSigAll:      req.SQSigAll,
		QPType:        req.QPType,
		IsSRQ:         req.IsSRQ,
	})
	if err != nil {
		return err
	}
	setResponse(c, resp)
	return nil
}

// cmdExCreateQP creates a queue pair with options. (ib_uverbs_ex_create_qp)
func cmdExCreateQP(c *call) error {
	req, err := decodeRequest[uapi.ExCreateQP](c)
	if err != nil {
		return err
	}
	if req.CompMask&^uapi.CreateQPSupCompMask != 0 || req.Reserved != 0 {
		return fmt.Errorf("unknown or reserved fields are set: %w", syscall.EINVAL)
	}
	resp, err := c.createQP(&req)
	if err != nil {
		return err
	}
	setResponse(c, uapi.ExCreateQPResp{Base: resp, ResponseLength: responseLength[uapi.ExCreateQPResp](c)})
	return nil
}

// writeFormQPFlags is the set of flags that the write form defines.
const writeFormQPFlags = uapi.QPCreateBlockMulticastLoopback | uapi.QPCreateScatterFCS | uapi.QPCreateCVLANStripping |
	uapi.QPCreatePCIWriteEndPadding

// checkQPParameters checks for unsupported parameters. A handle of an indirection table is always invalid, because no
// such tables exist. (create_qp)
func checkQPParameters(req *uapi.ExCreateQP) error {
	switch req.QPType {
	case uapi.QPTRC, uapi.QPTUC, uapi.QPTUD, uapi.QPTRawPacket, uapi.QPTXRCIni, uapi.QPTXRCTgt, uapi.QPTDriver:
	default:
		return fmt.Errorf("queue pair type %d is not supported: %w", req.QPType, syscall.EINVAL)
	}
	switch {
	case req.CompMask&uapi.CreateQPMaskIndTable != 0:
		return fmt.Errorf("no indirection table has the handle %d: %w", req.RWQIndTblHandle, syscall.EINVAL)
	case req.CreateFlags&^writeFormQPFlags != 0:
		return fmt.Errorf("unknown flags %#x: %w", uint32(req.CreateFlags), syscall.EINVAL)
	case req.CreateFlags != 0:
		return fmt.Errorf("flags %#x: %w", uint32(req.CreateFlags), syscall.EOPNOTSUPP)
	}
	return nil
}

func (c *call) createQP(req *uapi.ExCreateQP) (resp uapi.CreateQPResp, err error) {
	f := c.f
	if err := f.checkContext(); err != nil {
		return resp, err
	}
	if err := checkQPParameters(req); err != nil {
		return resp, err
	}
	if req.QPType == uapi.QPTXRCTgt {
		return c.createXRCTarget(req)
	}
	pd, err := lookup[*pdObject](f, req.PDHandle)
	if err != nil {
		return resp, fmt.Errorf("protection domain: %w", err)
	}
	defer pd.releaseUse()
	scq, err := lookup[*cqObject](f, req.SendCQHandle)
	if err != nil {
		return resp, fmt.Errorf("send completion queue: %w", err)
	}
	defer scq.releaseUse()
	o := &qpObject{f: f, pd: req.PDHandle, uid: req.UserHandle, port: new(atomic.Uint32), asyncEvents: c.asyncEventFile()}
	init := ib.QPInitAttr{
		SendCQ: scq.res.CQ,
		Cap: ib.QPCap{
			MaxSendWR:     req.MaxSendWR,
			MaxRecvWR:     req.MaxRecvWR,
			MaxSendSGE:    req.MaxSendSGE,
			MaxRecvSGE:    req.MaxRecvSGE,
			MaxInlineData: req.MaxInlineData,
		},
		SigAll: req.SQSigAll != 0,
		Type:   req.QPType,
		Event:  func(_ *ib.QP, e ib.EventType) { o.asyncEvents.raiseAsync(&o.async, o.uid, e) },
	}
	if req.QPType == uapi.QPTXRCIni { // an XRC initiator cannot receive
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
	} else {
		rcq, err := lookup[*cqObject](f, req.RecvCQHandle)
		if err != nil {
			return resp, fmt.Errorf("receive completion queue: %w", err)
		}
		defer rcq.releaseUse()
		init.RecvCQ = rcq.res.CQ
		if req.IsSRQ != 0 {
			srq, err := lookup[*srqObject](f, req.SRQHandle)
			if err != nil {
				return resp, fmt.Errorf("shared receive queue: %w", err)
			}
			defer srq.releaseUse()
			o.srq, init.SRQ = req.SRQHandle, srq.res.SRQ
		}
	}
	err = f.createChargedObject(kindQP, func() (err error) {
		o.QP, err = userOps.CreateQP(pd.res.PD, init, &c.udata)
		return err
	})
	if err != nil {
		return resp, err
	}
	o.user, _ = userOps.Queue(o.QP)
	obj := f.objects.add(o)
	o.handle = obj.handle
	f.dev.queuePairs.Store(o.Num(), o)
	f.doorbells.add(o)
	c.publishCreatedObject(obj)
	granted := o.Init().Cap
	return uapi.CreateQPResp{
		QPHandle:      obj.handle,
		QPN:           o.Num(),
		MaxSendWR:     granted.MaxSendWR,
		MaxRecvWR:     granted.MaxRecvWR,
		MaxSendSGE:    granted.MaxSendSGE,
		MaxRecvSGE:    granted.MaxRecvSGE,
		MaxInlineData: granted.MaxInlineData,
	}, nil
}

// cmdQueryQP returns the attributes of a queue pair. (ib_uverbs_query_qp)
func cmdQueryQP(c *call) error {
	req, err := decodeRequest[uapi.QueryQP](c)
	if err != nil {
		return err
	}
	c.noteQP(req.QPHandle)
	qp, err := lookup[*qpObject](c.f, req.QPHandle)
	if err != nil {
		return err
	}
	defer qp.releaseUse()
	a, init, err := qp.res.Query(req.AttrMask)
	if err != nil {
		return err
	}
	setResponse(c, uapi.QueryQPResp{
		Dest:            toUserDest(&a.AH),
		AltDest:         toUserDest(&a.AltAH),
		MaxSendWR:       init.Cap.MaxSendWR,
		MaxRecvWR:       init.Cap.MaxRecvWR,
		MaxSendSGE:      init.Cap.MaxSendSGE,
		MaxRecvSGE:      init.Cap.MaxRecvSGE,
		MaxInlineData:   init.Cap.MaxInlineData,
		QKey:            a.QKey,
		RQPSN:           a.RQPSN,
		SQPSN:           a.SQPSN,
		DestQPNum:       a.DestQPN,
		QPAccessFlags:   a.AccessFlags,
		PKeyIndex:       a.PKeyIndex,
		AltPKeyIndex:    a.AltPKeyIndex,
		QPState:         a.State,
		CurQPState:      a.CurState,
		PathMTU:         uint8(a.PathMTU),
		PathMigState:    uapi.MigState(a.PathMigState),
		SQDraining:      boolToUint8(a.SQDraining),
		MaxRDAtomic:     a.MaxRdAtomic,
		MaxDestRDAtomic: a.MaxDestRdAtomic,
		MinRNRTimer:     a.MinRNRTimer,
		PortNum:         a.Port,
		Timeout:         a.Timeout,
		RetryCnt:        a.RetryCnt,
		RNRRetry:        a.RNRRetry,
		AltPortNum:      a.AltPort,
		AltTimeout:      a.AltTimeout,
		SQSigAll:        boolToUint8(init.SigAll),
	})
	return nil
}

func boolToUint8(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// toUserDest converts an address to the user ABI. (copy_ah_attr_to_uverbs)
func toUserDest(a *ib.AHAttr) uapi.QPDest {
	d := uapi.QPDest{
		DLID:        a.DLID,
		SL:          a.SL,
		SrcPathBits: a.SrcPathBits,
		StaticRate:  a.StaticRate,
		IsGlobal:    boolToUint8(a.HasGRH),
		PortNum:     a.Port,
	}
	if a.HasGRH {
		d.DGID = a.GRH.DGID
		d.FlowLabel = a.GRH.FlowLabel
		d.SGIDIndex = a.GRH.SGIDIndex
		d.HopLimit = a.GRH.HopLimit
		d.TrafficClass = a.GRH.TrafficClass
	}
	return d
}

// toAHAttr converts an address from the user ABI. (copy_ah_attr_from_uverbs)
func toAHAttr(d *uapi.QPDest) ib.AHAttr {
	a := ib.AHAttr{DLID: d.DLID, SL: d.SL, SrcPathBits: d.SrcPathBits, StaticRate: d.StaticRate, Port: d.PortNum}
	if d.IsGlobal != 0 {
		a.HasGRH = true
		a.GRH = ib.GlobalRoute{
			DGID:         d.DGID,
			FlowLabel:    d.FlowLabel,
			SGIDIndex:    d.SGIDIndex,
			HopLimit:     d.HopLimit,
			TrafficClass: d.TrafficClass,
		}
	}
	return a
}

// The next constants are the attributes that MODIFY_QP and its extended form accept (IB_QP_ATTR_STANDARD_BITS).
const (
	modifyStandard = uapi.QPAttrDestQPN<<1 - 1
	modifyExtended = modifyStandard | uapi.QPAttrRateLimit
)

// NetRaw is implemented by a Caller that may have CAP_NET_RAW. A Caller without NetRaw does not have the capability.
type NetRaw interface {
	// NetRaw reports whether the caller has CAP_NET_RAW. NetRaw may sleep.
	NetRaw() bool
}

// maySetControlledQKey reports whether the caller may set a controlled Q_Key, which is a Q_Key with the highest bit
// set. With the Q_Key of connection managers, the caller could impersonate other programs of its host.
// (rdma_uattrs_has_raw_cap; IBA 3.5.3)
func maySetControlledQKey(c Caller) bool {
	n, ok := c.(NetRaw)
	return ok && n.NetRaw()
}

// cmdModifyQP changes a queue pair. (ib_uverbs_modify_qp)
func cmdModifyQP(c *call) error {
	req, err := decodeRequest[uapi.ModifyQP](c)
	if err != nil {
		return err
	}
	return c.modifyQP(&uapi.ExModifyQP{Base: req}, modifyStandard)
}

// cmdExModifyQP changes a queue pair, including its rate limit. (ib_uverbs_ex_modify_qp)
func cmdExModifyQP(c *call) error {
	req, err := decodeRequest[uapi.ExModifyQP](c)
	if err != nil {
		return err
	}
	if err := c.modifyQP(&req, modifyExtended); err != nil {
		return err
	}
	setResponse(c, uapi.ExModifyQPResp{ResponseLength: responseLength[uapi.ExModifyQPResp](c)})
	return nil
}

func (c *call) modifyQP(req *uapi.ExModifyQP, known uapi.QPAttrMask) error {
	r := &req.Base
	c.noteQP(r.QPHandle)
	if bad := r.AttrMask &^ known; bad != 0 {
		return fmt.Errorf("unknown attributes %#x: %w", uint32(bad), syscall.EOPNOTSUPP)
	}
	if r.AttrMask&uapi.QPAttrQKey != 0 && r.QKey>>31 != 0 && !maySetControlledQKey(c.caller) {
		return fmt.Errorf("setting the controlled Q_Key %#x requires CAP_NET_RAW: %w", r.QKey, syscall.EPERM)
	}
	qp, err := lookup[*qpObject](c.f, r.QPHandle)
	if err != nil {
		return err
	}
	defer qp.releaseUse()
	if err := c.f.dev.checkModify(r, uint8(qp.res.port.Load())); err != nil {
		return err
	}
	attr := ib.QPAttr{
		State:            r.QPState,
		CurState:         r.CurQPState,
		PathMTU:          ib.MTU(r.PathMTU),
		PathMigState:     uint8(r.PathMigState),
		QKey:             r.QKey,
		RQPSN:            r.RQPSN,
		SQPSN:            r.SQPSN,
		DestQPN:          r.DestQPNum,
		AccessFlags:      r.QPAccessFlags,
		AH:               toAHAttr(&r.Dest),
		AltAH:            toAHAttr(&r.AltDest),
		PKeyIndex:        r.PKeyIndex,
		AltPKeyIndex:     r.AltPKeyIndex,
		EnSQDAsyncNotify: r.EnSQDAsyncNotify != 0,
		MaxRdAtomic:      r.MaxRDAtomic,
		MaxDestRdAtomic:  r.MaxDestRDAtomic,
		MinRNRTimer:      r.MinRNRTimer,
		Port:             r.PortNum,
		AltPort:          r.AltPortNum,
		Timeout:          r.Timeout,
		AltTimeout:       r.AltTimeout,
		RetryCnt:         r.RetryCnt,
		RNRRetry:         r.RNRRetry,
		RateLimit:        req.RateLimit,
	}
	c.hintAtModify(qp.res.Type(), &attr, r.AttrMask)
	if err := userOps.ModifyQP(qp.res.QP, attr, r.AttrMask, &c.udata); err != nil {
		return err
	}
	if r.AttrMask&uapi.QPAttrPort != 0 {
		qp.res.port.Store(uint32(r.PortNum))
	}
	return nil
}

// checkModify checks the states and ports. port is the current port of the queue pair. The transition to RTR cannot set
// the port, and the address must name the current port. In SQD a new address also sets the port. (modify_qp)
func (d *Device) checkModify(r *uapi.ModifyQP, port uint8) error {
	has := func(bit uapi.QPAttrMask) bool { return r.AttrMask&bit != 0 }
	badPort := func(what string, p uint8) error {
		return fmt.Errorf("%s names port %d: %w", what, p, syscall.EINVAL)
	}
	if has(uapi.QPAttrPort) && !d.isValidPort(int(r.PortNum)) {
		return badPort("attribute", r.PortNum)
	}
	if has(uapi.QPAttrAV) {
		p := r.Dest.PortNum
		toRTR := has(uapi.QPAttrState) && r.QPState == uapi.QPSRTR
		switch {
		case !d.isValidPort(int(p)), toRTR && p != port, !toRTR && has(uapi.QPAttrPort) && p != r.PortNum:
			return badPort("address", p)
		case !toRTR:
			r.AttrMask |= uapi.QPAttrPort
			r.PortNum = p
		}
	}
	if has(uapi.QPAttrAltPath) && (!d.isValidPort(int(r.AltPortNum)) || r.AltDest.PortNum != r.AltPortNum) {
		return badPort("alternate path", r.AltPortNum)
	}
	if has(uapi.QPAttrCurState) && r.CurQPState > uapi.QPSErr || has(uapi.QPAttrState) && r.QPState > uapi.QPSErr {
		return fmt.Errorf("no such state: %w", syscall.EINVAL)
	}
	return nil
}

// cmdDestroyQP frees a queue pair and reports the number of its events that the program has read.
// (ib_uverbs_destroy_qp)
func cmdDestroyQP(c *call) error {
	req, err := decodeRequest[uapi.DestroyQP](c)
	if err != nil {
		return err
	}
	c.noteQP(req.QPHandle)
	res, err := c.f.destroyObject(req.QPHandle, kindQP)
	if err != nil {
		return err
	}
	setResponse(c, uapi.DestroyQPResp{EventsReported: res.(*qpObject).reported})
	return nil
}
