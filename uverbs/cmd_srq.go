package uverbs

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// srqObject is a shared receive queue and its events. (struct ib_usrq_object)
type srqObject struct {
	*ib.SRQ
	pd   uint32      // handle
	cq   uint32      // handle of the completion queue; for an XRC queue
	uid  uint64      // the program's handle, which events report
	xrcd *xrcdObject // the XRC domain of an XRC queue

	asyncEvents *eventFile // may be nil
	async       eventSource

	reported uint32 // valid after destruction: number of events that the program has read
}

func (*srqObject) kind() objectKind { return kindSRQ }

func (o *srqObject) destroy() error {
	if err := o.Destroy(); err != nil {
		return err
	}
	o.reported = o.asyncEvents.removeObjectEvents(&o.async)
	o.xrcd.dropUse()
	return nil
}

// cmdCreateSRQ creates a basic shared receive queue. (ib_uverbs_create_srq)
func cmdCreateSRQ(c *call) error {
	req, err := decodeRequest[uapi.CreateSRQ](c)
	if err != nil {
		return err
	}
	resp, err := c.createSRQ(&uapi.CreateXSRQ{
		UserHandle: req.UserHandle,
		SRQType:    uapi.SRQTBasic,
		PDHandle:   req.PDHandle,
		MaxWR:      req.MaxWR,
		MaxSGE:     req.MaxSGE,
		SRQLimit:   req.SRQLimit,
	})
	if err != nil {
		return err
	}
	setResponse(c, resp)
	return nil
}

// cmdCreateXSRQ creates a shared receive queue of any type. (ib_uverbs_create_xsrq)
func cmdCreateXSRQ(c *call) error {
	req, err := decodeRequest[uapi.CreateXSRQ](c)
	if err != nil {
		return err
	}
	resp, err := c.createSRQ(&req)
	if err != nil {
		return err
	}
	setResponse(c, resp)
	return nil
}

func (c *call) createSRQ(req *uapi.CreateXSRQ) (resp uapi.CreateSRQResp, err error) {
	f := c.f
	if err := f.checkContext(); err != nil {
		return resp, err
	}
	o := &srqObject{pd: req.PDHandle, uid: req.UserHandle, asyncEvents: c.asyncEventFile()}
	init := ib.SRQInitAttr{
		Type:  req.SRQType,
		Attr:  ib.SRQAttr{MaxWR: req.MaxWR, MaxSGE: req.MaxSGE, Limit: req.SRQLimit},
		Event: func(_ *ib.SRQ, e ib.EventType) { o.asyncEvents.raiseAsync(&o.async, o.uid, e) },
	}
	switch req.SRQType {
	case uapi.SRQTBasic:
	case uapi.SRQTXRC:
		x, err := lookupXRCDomain(c.f, req.XRCDHandle)
		if err != nil {
			return resp, err
		}
		defer x.releaseUse()
		cq, err := lookup[*cqObject](f, req.CQHandle)
		if err != nil {
			return resp, fmt.Errorf("completion queue: %w", err)
		}
		defer cq.releaseUse()
		o.cq = req.CQHandle
		o.xrcd, init.XRCD, init.CQ = x.res, x.res.domain.XRCD, cq.res.CQ
	case uapi.SRQTTM:
		return resp, fmt.Errorf("tag matching: %w", syscall.EOPNOTSUPP)
	default:
		return resp, fmt.Errorf("shared receive queue type %d is not supported: %w", req.SRQType, syscall.EINVAL)
	}
	pd, err := lookup[*pdObject](f, req.PDHandle)
	if err != nil {
		return resp, fmt.Errorf("protection domain: %w", err)
	}
	defer pd.releaseUse()
	err = f.createChargedObject(kindSRQ, func() (err error) {
		o.SRQ, err = userOps.CreateSRQ(pd.res.PD, init, &c.udata)
		return err
	})
	if err != nil {
		return resp, err
	}
	o.xrcd.addUse()
	obj := f.objects.add(o)
	c.publishCreatedObject(obj)
	granted := o.Init().Attr
	resp = uapi.CreateSRQResp{SRQHandle: obj.handle, MaxWR: granted.MaxWR, MaxSGE: granted.MaxSGE}
	if req.SRQType == uapi.SRQTXRC {
		resp.SRQN = o.Num()
	}
	return resp, nil
}

// cmdModifySRQ changes the capacity or the limit of a queue. (ib_uverbs_modify_srq)
func cmdModifySRQ(c *call) error {
	req, err := decodeRequest[uapi.ModifySRQ](c)
	if err != nil {
		return err
	}
	srq, err := lookup[*srqObject](c.f, req.SRQHandle)
	if err != nil {
		return err
	}
	defer srq.releaseUse()
	c.holdCallbacks()
	return userOps.ModifySRQ(srq.res.SRQ, ib.SRQAttr{MaxWR: req.MaxWR, Limit: req.SRQLimit}, req.AttrMask, &c.udata)
}

// cmdQuerySRQ returns the attributes of a queue. (ib_uverbs_query_srq)
func cmdQuerySRQ(c *call) error {
	req, err := decodeRequest[uapi.QuerySRQ](c)
	if err != nil {
		return err
	}
	srq, err := lookup[*srqObject](c.f, req.SRQHandle)
	if err != nil {
		return err
	}
	defer srq.releaseUse()
	a, err := srq.res.Query()
	if err != nil {
		return err
	}
	setResponse(c, uapi.QuerySRQResp{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, SRQLimit: a.Limit})
	return nil
}

// cmdPostSRQRecv posts receive work requests to a queue. (ib_uverbs_post_srq_recv)
func cmdPostSRQRecv(c *call) error {
	req, _ := uapi.Decode[uapi.PostSRQRecv](c.in) // the length was checked against the table of commands
	wrs, err := convertRecvWRs(c.in[uapi.SizeOf[uapi.PostSRQRecv]():], req.WRCount, req.WQESize, req.SGECount)
	if err != nil {
		return err
	}
	srq, err := lookup[*srqObject](c.f, req.SRQHandle)
	if err != nil {
		return err
	}
	defer srq.releaseUse()
	c.holdCallbacks()
	n, err := srq.res.PostRecv(wrs...)
	return c.writePostResponse(n, err)
}

// cmdDestroySRQ frees a queue and reports the number of its events that the program has read. (ib_uverbs_destroy_srq)
func cmdDestroySRQ(c *call) error {
	req, err := decodeRequest[uapi.DestroySRQ](c)
	if err != nil {
		return err
	}
	res, err := c.f.destroyObject(req.SRQHandle, kindSRQ)
	if err != nil {
		return err
	}
	setResponse(c, uapi.DestroySRQResp{EventsReported: res.(*srqObject).reported})
	return nil
}
