package uverbs

import (
	"fmt"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// cqObject is a completion queue and its events. (struct ib_ucq_object)
type cqObject struct {
	*ib.CQ
	f    *File
	user uint64 // the program's handle, which events report

	channel     *eventFile // for completion events; may be nil
	comp        eventSource
	asyncEvents *eventFile // may be nil
	async       eventSource

	compReported, asyncReported uint32 // valid after destruction: number of events that the program has read
}

func (*cqObject) kind() objectKind { return kindCQ }

func (o *cqObject) destroy() error {
	if err := o.Destroy(); err != nil {
		return err
	}
	o.compReported = o.channel.removeObjectEvents(&o.comp)
	o.asyncReported = o.asyncEvents.removeObjectEvents(&o.async)
	o.f.events.releaseChannel(o.channel)
	return nil
}

// cmdCreateCompChannel creates a completion channel. (ib_uverbs_create_comp_channel)
func cmdCreateCompChannel(c *call) error {
	if _, err := decodeRequest[uapi.CreateCompChannel](c); err != nil {
		return err
	}
	if err := c.f.checkContext(); err != nil {
		return err
	}
	e, reader, err := c.f.events.newChannel()
	if err != nil {
		return err
	}
	c.reader = reader
	c.abort = func() { c.f.events.undoNewFile(e) }
	setResponse(c, uapi.CreateCompChannelResp{})
	return nil
}

// cmdCreateCQ creates a completion queue. (ib_uverbs_create_cq)
func cmdCreateCQ(c *call) error {
	req, err := decodeRequest[uapi.CreateCQ](c)
	if err != nil {
		return err
	}
	resp, err := c.createCQ(&uapi.ExCreateCQ{
		UserHandle:  req.UserHandle,
		CQE:         req.CQE,
		CompVector:  req.CompVector,
		CompChannel: req.CompChannel,
	})
	if err != nil {
		return err
	}
	setResponse(c, resp)
	return nil
}

// cmdExCreateCQ creates a completion queue with options. (ib_uverbs_ex_create_cq)
func cmdExCreateCQ(c *call) error {
	req, err := decodeRequest[uapi.ExCreateCQ](c)
	if err != nil {
		return err
	}
	if req.CompMask != 0 || req.Reserved != 0 {
		return fmt.Errorf("reserved fields are not zero: %w", syscall.EINVAL)
	}
	resp, err := c.createCQ(&req)
	if err != nil {
		return err
	}
	setResponse(c, uapi.ExCreateCQResp{Base: resp, ResponseLength: responseLength[uapi.ExCreateCQResp](c)})
	return nil
}

func (c *call) createCQ(req *uapi.ExCreateCQ) (uapi.CreateCQResp, error) {
	fail := func(err error) (uapi.CreateCQResp, error) { return uapi.CreateCQResp{}, err }
	f := c.f
	if req.CompVector >= uint32(f.dev.srv.opts.CompVectors) {
		return fail(fmt.Errorf("no completion vector %d: %w", req.CompVector, syscall.EINVAL))
	}
	if err := f.checkContext(); err != nil {
		return fail(err)
	}
	o := &cqObject{f: f, user: req.UserHandle, asyncEvents: c.asyncEventFile()}
	var completed func(*ib.CQ)
	if req.CompChannel >= 0 {
		dev, ino, err := c.caller.FileInode(int(req.CompChannel))
		if err != nil {
			return fail(fmt.Errorf("completion channel %d: %w: %v", req.CompChannel, syscall.EBADF, err))
		}
		if o.channel, err = f.events.findChannel(dev, ino); err != nil {
			return fail(fmt.Errorf("descriptor %d: %w", req.CompChannel, err))
		}
		completed = func(cq *ib.CQ) { o.channel.raiseCompletion(cq, &o.comp, o.user) }
	}
	failed := func(_ *ib.CQ, e ib.EventType) { o.asyncEvents.raiseAsync(&o.async, o.user, e) }
	init := ib.CQInit{
		Entries: int(req.CQE), Vector: int(req.CompVector), Flags: req.Flags, Handler: completed, Event: failed,
	}
	err := f.createChargedObject(kindCQ, func() (err error) {
		o.CQ, err = userOps.CreateCQ(f.dev.ib, init, &c.udata)
		return err
	})
	if err != nil {
		f.events.releaseChannel(o.channel)
		return fail(err)
	}
	obj := f.objects.add(o)
	c.publishCreatedObject(obj)
	return uapi.CreateCQResp{CQHandle: obj.handle, CQE: uint32(o.Entries())}, nil
}

// cmdResizeCQ changes the capacity of a completion queue. (ib_uverbs_resize_cq)
func cmdResizeCQ(c *call) error {
	req, err := decodeRequest[uapi.ResizeCQ](c)
	if err != nil {
		return err
	}
	cq, err := lookup[*cqObject](c.f, req.CQHandle)
	if err != nil {
		return err
	}
	defer cq.releaseUse()
	if err := userOps.ResizeCQ(cq.res.CQ, int(req.CQE), &c.udata); err != nil {
		return err
	}
	setResponse(c, uapi.ResizeCQResp{CQE: uint32(cq.res.Entries())})
	return nil
}

// cmdPollCQ polls as many completions as fit into the caller's buffer. (ib_uverbs_poll_cq)
func cmdPollCQ(c *call) error {
	req, err := decodeRequest[uapi.PollCQ](c)
	if err != nil {
		return err
	}
	cq, err := lookup[*cqObject](c.f, req.CQHandle)
	if err != nil {
		return err
	}
	defer cq.releaseUse()
	most := min(int64(req.NE), int64(c.room-uapi.SizeOf[uapi.PollCQResp]())/int64(uapi.SizeOf[uapi.WC]()))
	var wc [16]ib.WC
	var resp uapi.PollCQResp
	setResponse(c, resp)
	for int64(resp.Count) < most {
		n, err := cq.res.Poll(wc[:min(int64(len(wc)), most-int64(resp.Count))])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		for i := range wc[:n] {
			w := toUserWC(&wc[i])
			c.resp = uapi.AppendTo(c.resp, &w)
		}
		resp.Count += uint32(n)
	}
	uapi.Encode(c.resp, &resp)
	c.exact = true
	return nil
}

// toUserWC converts a completion to the user ABI. (copy_wc_to_user)
func toUserWC(w *ib.WC) uapi.WC {
	r := uapi.WC{
		WRID:      w.ID,
		Status:    w.Status,
		Opcode:    w.Opcode,
		VendorErr: w.VendorErr,
		ByteLen:   w.ByteLen,
		QPNum:     w.QPNum,
		SrcQP:     w.SrcQP,
		WCFlags:   w.Flags,
		PKeyIndex: w.PKeyIndex,
		SLID:      w.SLID,
		SL:        w.SL,
		PortNum:   w.Port,
	}
	switch {
	case w.Flags&ib.WCWithInvalidate != 0:
		r.Ex = uapi.NewImmRKey(w.InvalidateRKey)
	case w.Flags&ib.WCWithImm != 0:
		r.Ex = uapi.ImmData(uapi.NewBE32(w.Imm))
	}
	return r
}

// cmdReqNotifyCQ arms a queue for one event. (ib_uverbs_req_notify_cq)
func cmdReqNotifyCQ(c *call) error {
	req, err := decodeRequest[uapi.ReqNotifyCQ](c)
	if err != nil {
		return err
	}
	cq, err := lookup[*cqObject](c.f, req.CQHandle)
	if err != nil {
		return err
	}
	defer cq.releaseUse()
	c.holdCallbacks()
	_, err = cq.res.ReqNotify(notifyFlags(req))
	return err
}

// cmdDestroyCQ frees a queue and reports the number of its events that the program has read. (ib_uverbs_destroy_cq)
func cmdDestroyCQ(c *call) error {
	req, err := decodeRequest[uapi.DestroyCQ](c)
	if err != nil {
		return err
	}
	res, err := c.f.destroyObject(req.CQHandle, kindCQ)
	if err != nil {
		return err
	}
	cq := res.(*cqObject)
	setResponse(c, uapi.DestroyCQResp{CompEventsReported: cq.compReported, AsyncEventsReported: cq.asyncReported})
	return nil
}
