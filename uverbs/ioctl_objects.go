package uverbs

import (
	"fmt"
	"math"
	"slices"
	"syscall"

	"verbena/ib"
	"verbena/uapi"
)

// objectKinds maps the object types of the ioctl form to kinds.
var objectKinds = map[uapi.ObjectID]objectKind{
	uapi.ObjectPD:   kindPD,
	uapi.ObjectCQ:   kindCQ,
	uapi.ObjectQP:   kindQP,
	uapi.ObjectSRQ:  kindSRQ,
	uapi.ObjectAH:   kindAH,
	uapi.ObjectMR:   kindMR,
	uapi.ObjectMW:   kindMW,
	uapi.ObjectXRCD: kindXRCD,
}

// handle returns the handle of an object: a 32-bit number in a 64-bit field.
func (a *attribute) handle() (uint32, error) {
	switch {
	case a.Data > math.MaxInt64:
		return 0, fmt.Errorf("attribute %d: handle %d: %w", a.AttrID, int64(a.Data), syscall.EINVAL)
	case a.Data > math.MaxUint32:
		return 0, fmt.Errorf("attribute %d: no object has the handle %d: %w", a.AttrID, a.Data, syscall.ENOENT)
	}
	return uint32(a.Data), nil
}

// handleOf returns the handle in an attribute. handleOf returns ENOENT if the caller did not pass the attribute.
func (c *ioctlCall) handleOf(id uapi.AttrID) (uint32, error) {
	a := c.attrOf(id)
	if a == nil {
		return 0, fmt.Errorf("attribute %d is missing: %w", id, syscall.ENOENT)
	}
	return a.handle()
}

// descriptorOf returns the descriptor in an attribute, or -1 if the caller did not pass the attribute.
func (c *ioctlCall) descriptorOf(id uapi.AttrID) (int32, error) {
	a := c.attrOf(id)
	if a == nil {
		return -1, nil
	}
	fd := int64(a.Data)
	switch {
	case fd != int64(int32(fd)):
		return -1, fmt.Errorf("attribute %d: descriptor %d: %w", id, fd, syscall.EINVAL)
	case fd < 0:
		return -1, fmt.Errorf("attribute %d: descriptor %d: %w", id, fd, syscall.EBADF)
	}
	return int32(fd), nil
}

// setEventFile records the asynchronous event file for a new object. By default a new object uses the first event file
// of the context. (ib_uverbs_get_async_event)
func (c *ioctlCall) setEventFile(id uapi.AttrID) error {
	fd, err := c.descriptorOf(id)
	if err != nil || fd < 0 {
		return err
	}
	dev, ino, err := c.caller.FileInode(int(fd))
	if err != nil {
		return fmt.Errorf("asynchronous event file %d: %w: %v", fd, syscall.EBADF, err)
	}
	if c.async, err = c.f.events.findAsyncFile(dev, ino); err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return nil
}

// runCreate runs a method that creates an object. The driver-private data are in attributes.
func (c *ioctlCall) runCreate(run func() error) (err error) {
	if c.udata.In, err = c.inputBytes(uapi.AttrUHWIn); err != nil {
		return err
	}
	c.allocDriverResponse(c.bufferLen(uapi.AttrUHWOut))
	return c.runNative(func() error {
		if err := run(); err != nil {
			return err
		}
		c.setOutput(uapi.AttrUHWOut, c.udata.Out[:c.udata.N])
		return nil
	})
}

// ioctlCreateCQ creates a completion queue. (UVERBS_HANDLER(UVERBS_METHOD_CQ_CREATE))
func ioctlCreateCQ(c *ioctlCall) error {
	flags, err := c.flagsOf(uapi.AttrCreateCQFlags, uint32(uapi.CQFlagsTimestampCompletion|uapi.CQFlagsIgnoreOverrun))
	if err != nil {
		return err
	}
	channel, err := c.descriptorOf(uapi.AttrCreateCQCompChannel)
	if err != nil {
		return err
	}
	return c.runCreate(func() error {
		if err := c.setEventFile(uapi.AttrCreateCQEventFD); err != nil {
			return err
		}
		resp, err := c.createCQ(&uapi.ExCreateCQ{
			UserHandle:  c.uint64Of(uapi.AttrCreateCQUserHandle),
			CQE:         c.uint32Of(uapi.AttrCreateCQCQE),
			CompVector:  c.uint32Of(uapi.AttrCreateCQCompVector),
			CompChannel: channel,
			Flags:       uapi.CQFlags(flags),
		})
		if err != nil {
			return err
		}
		c.setNumber(uapi.AttrCreateCQHandle, uint64(resp.CQHandle))
		c.setOutput(uapi.AttrCreateCQRespCQE, uint32Bytes(resp.CQE))
		return nil
	})
}

// ioctlCreateQP creates a queue pair. (UVERBS_HANDLER(UVERBS_METHOD_QP_CREATE))
func ioctlCreateQP(c *ioctlCall) error {
	b, err := c.inputBytes(uapi.AttrCreateQPCap)
	if err != nil {
		return err
	}
	limits, _ := uapi.DecodePrefix[uapi.QPCap](b)
	typ, err := c.numberUpTo(uapi.AttrCreateQPType, math.MaxUint8)
	if err != nil {
		return err
	}
	return c.runCreate(func() error {
		req := uapi.ExCreateQP{
			UserHandle:    c.uint64Of(uapi.AttrCreateQPUserHandle),
			MaxSendWR:     limits.MaxSendWR,
			MaxRecvWR:     limits.MaxRecvWR,
			MaxSendSGE:    limits.MaxSendSGE,
			MaxRecvSGE:    limits.MaxRecvSGE,
			MaxInlineData: limits.MaxInlineData,
			QPType:        uapi.QPType(typ),
		}
		if err := c.setQPHandles(&req); err != nil {
			return err
		}
		if err := c.setQPFlags(&req); err != nil {
			return err
		}
		if err := c.setEventFile(uapi.AttrCreateQPEventFD); err != nil {
			return err
		}
		resp, err := c.createQP(&req)
		if err != nil {
			return err
		}
		c.setNumber(uapi.AttrCreateQPHandle, uint64(resp.QPHandle))
		granted := uapi.QPCap{
			MaxSendWR:     resp.MaxSendWR,
			MaxRecvWR:     resp.MaxRecvWR,
			MaxSendSGE:    resp.MaxSendSGE,
			MaxRecvSGE:    resp.MaxRecvSGE,
			MaxInlineData: resp.MaxInlineData,
		}
		c.setOutputStruct(uapi.AttrCreateQPRespCap, uapi.AppendTo(nil, &granted))
		c.setOutput(uapi.AttrCreateQPRespQPNum, uint32Bytes(resp.QPN))
		return nil
	})
}

// setQPHandles sets the handles of the objects that a new queue pair uses, depending on its type.
func (c *ioctlCall) setQPHandles(req *uapi.ExCreateQP) (err error) {
	given := func(ids ...uapi.AttrID) bool {
		return slices.ContainsFunc(ids, func(id uapi.AttrID) bool { return c.attrOf(id) != nil })
	}
	misfit := fmt.Errorf("object given that a queue pair of type %d does not use: %w", req.QPType, syscall.EINVAL)
	switch req.QPType {
	case uapi.QPTXRCTgt:
		if given(uapi.AttrCreateQPPDHandle, uapi.AttrCreateQPSendCQHandle, uapi.AttrCreateQPRecvCQHandle) {
			return misfit
		}
		req.PDHandle, err = c.handleOf(uapi.AttrCreateQPXRCDHandle)
		return err
	case uapi.QPTXRCIni:
		if given(uapi.AttrCreateQPXRCDHandle, uapi.AttrCreateQPSRQHandle) {
			return misfit
		}
	case uapi.QPTRC, uapi.QPTUC, uapi.QPTUD, uapi.QPTRawPacket, uapi.QPTDriver:
		if given(uapi.AttrCreateQPXRCDHandle) {
			return misfit
		}
	default:
		return nil // createQP rejects unknown types
	}
	if req.PDHandle, err = c.handleOf(uapi.AttrCreateQPPDHandle); err != nil {
		return err
	}
	if req.SendCQHandle, err = c.handleOf(uapi.AttrCreateQPSendCQHandle); err != nil || req.QPType == uapi.QPTXRCIni {
		return err
	}
	if given(uapi.AttrCreateQPSRQHandle) {
		req.IsSRQ = 1
		if req.SRQHandle, err = c.handleOf(uapi.AttrCreateQPSRQHandle); err != nil {
			return err
		}
	}
	req.RecvCQHandle, err = c.handleOf(uapi.AttrCreateQPRecvCQHandle)
	return err
}

// setQPFlags sets the options of a new queue pair. (check_creation_flags)
func (c *ioctlCall) setQPFlags(req *uapi.ExCreateQP) error {
	v, err := c.flagsOf(uapi.AttrCreateQPFlags, uint32(writeFormQPFlags|uapi.QPCreateSQSigAll))
	if err != nil {
		return err
	}
	flags := uapi.QPCreateFlags(v)
	req.SQSigAll = boolToUint8(flags&uapi.QPCreateSQSigAll != 0)
	req.CreateFlags = flags &^ uapi.QPCreateSQSigAll
	raw := req.QPType == uapi.QPTRawPacket
	switch {
	case req.CreateFlags == 0, req.QPType == uapi.QPTDriver:
	case !raw && req.QPType != uapi.QPTUD,
		!raw && req.CreateFlags&(uapi.QPCreateScatterFCS|uapi.QPCreateCVLANStripping) != 0:
		return fmt.Errorf("flags %#x for type %d: %w", uint32(flags), req.QPType, syscall.EINVAL)
	}
	if c.attrOf(uapi.AttrCreateQPSourceQPN) != nil {
		return fmt.Errorf("a source queue pair number is not supported: %w", syscall.EOPNOTSUPP)
	}
	return nil
}

// ioctlCreateSRQ creates a shared receive queue. (UVERBS_HANDLER(UVERBS_METHOD_SRQ_CREATE))
func ioctlCreateSRQ(c *ioctlCall) error {
	typ, err := c.numberUpTo(uapi.AttrCreateSRQType, math.MaxUint32)
	if err != nil {
		return err
	}
	return c.runCreate(func() error {
		req := uapi.CreateXSRQ{
			UserHandle: c.uint64Of(uapi.AttrCreateSRQUserHandle),
			SRQType:    uapi.SRQType(typ),
			MaxWR:      c.uint32Of(uapi.AttrCreateSRQMaxWR),
			MaxSGE:     c.uint32Of(uapi.AttrCreateSRQMaxSGE),
			SRQLimit:   c.uint32Of(uapi.AttrCreateSRQLimit),
		}
		var err error
		if req.PDHandle, err = c.handleOf(uapi.AttrCreateSRQPDHandle); err != nil {
			return err
		}
		if req.SRQType == uapi.SRQTXRC || req.SRQType == uapi.SRQTTM {
			if req.CQHandle, err = c.handleOf(uapi.AttrCreateSRQCQHandle); err != nil {
				return err
			}
		}
		if req.SRQType == uapi.SRQTXRC {
			if req.XRCDHandle, err = c.handleOf(uapi.AttrCreateSRQXRCDHandle); err != nil {
				return err
			}
		}
		if err := c.setEventFile(uapi.AttrCreateSRQEventFD); err != nil {
			return err
		}
		resp, err := c.createSRQ(&req)
		if err != nil {
			return err
		}
		c.setNumber(uapi.AttrCreateSRQHandle, uint64(resp.SRQHandle))
		c.setOutput(uapi.AttrCreateSRQRespMaxWR, uint32Bytes(resp.MaxWR))
		c.setOutput(uapi.AttrCreateSRQRespMaxSGE, uint32Bytes(resp.MaxSGE))
		if req.SRQType == uapi.SRQTXRC {
			c.setOutput(uapi.AttrCreateSRQRespSRQNum, uint32Bytes(resp.SRQN))
		}
		return nil
	})
}

// ioctlRegMR registers memory of the process by address. (UVERBS_HANDLER(UVERBS_METHOD_REG_MR))
func ioctlRegMR(c *ioctlCall) error {
	byAddr, byFD := c.attrOf(uapi.AttrRegMRAddr) != nil, c.attrOf(uapi.AttrRegMRFD) != nil
	if byFD != (c.attrOf(uapi.AttrRegMRFDOffset) != nil) || byFD == byAddr {
		return fmt.Errorf("want either an address, or a descriptor and an offset: %w", syscall.EINVAL)
	}
	access, err := c.flagsOf(uapi.AttrRegMRAccessFlags, uint32(knownAccessFlags))
	if err != nil {
		return err
	}
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		if byFD {
			return fmt.Errorf("a dma-buf: %w", syscall.EOPNOTSUPP)
		}
		pd, err := c.handleOf(uapi.AttrRegMRPDHandle)
		if err != nil {
			return err
		}
		resp, err := c.regMR(&uapi.RegMR{
			Start: c.uint64Of(uapi.AttrRegMRAddr), Length: c.uint64Of(uapi.AttrRegMRLength),
			HCAVA:    c.uint64Of(uapi.AttrRegMRIOVA),
			PDHandle: pd, AccessFlags: uapi.AccessFlags(access),
		})
		if err != nil {
			return err
		}
		c.setNumber(uapi.AttrRegMRHandle, uint64(resp.MRHandle))
		c.setOutput(uapi.AttrRegMRRespLKey, uint32Bytes(resp.LKey))
		c.setOutput(uapi.AttrRegMRRespRKey, uint32Bytes(resp.RKey))
		return nil
	})
}

// adviseMR announces the use of memory. (UVERBS_HANDLER(UVERBS_METHOD_ADVISE_MR))
func adviseMR(c *ioctlCall) error {
	advice, err := c.numberUpTo(uapi.AttrAdviseMRAdvice, math.MaxUint32)
	if err != nil {
		return err
	}
	flags, err := c.flagsOf(uapi.AttrAdviseMRFlags, uint32(ib.AdviceFlush))
	if err != nil {
		return err
	}
	b, err := c.inputBytes(uapi.AttrAdviseMRSGEList)
	if err != nil {
		return err
	}
	size := uapi.SizeOf[uapi.SGE]()
	if len(b)%size != 0 {
		return fmt.Errorf("list of %d bytes: %w", len(b), syscall.EINVAL)
	}
	var sgl []ib.SGE
	for ; len(b) > 0; b = b[size:] {
		s, _ := uapi.Decode[uapi.SGE](b)
		sgl = append(sgl, ib.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return c.runNative(func() error {
		handle, err := c.handleOf(uapi.AttrAdviseMRPDHandle)
		if err != nil {
			return err
		}
		pd, err := lookup[*pdObject](c.f, handle)
		if err != nil {
			return err
		}
		defer pd.releaseUse()
		return pd.res.AdviseMR(ib.MRAdvice(advice), ib.MRAdviceFlags(flags), sgl)
	})
}

// queryMR returns the attributes of a region to a process that imports it. (UVERBS_HANDLER(UVERBS_METHOD_QUERY_MR))
func queryMR(c *ioctlCall) error {
	return c.runNative(func() error {
		handle, err := c.handleOf(uapi.AttrQueryMRHandle)
		if err != nil {
			return err
		}
		mr, err := lookup[*mrObject](c.f, handle)
		if err != nil {
			return err
		}
		defer mr.releaseUse()
		c.setOutput(uapi.AttrQueryMRRespLKey, uint32Bytes(mr.res.LKey()))
		c.setOutput(uapi.AttrQueryMRRespRKey, uint32Bytes(mr.res.RKey()))
		c.setOutput(uapi.AttrQueryMRRespLength, uint64Bytes(mr.res.Region().Len()))
		c.setOutput(uapi.AttrQueryMRRespIOVA, uint64Bytes(mr.res.Region().IOVA()))
		return nil
	})
}

// regDMABufMR rejects the registration of a dma-buf. The memory of a dma-buf belongs to a kernel driver.
// (UVERBS_HANDLER(UVERBS_METHOD_REG_DMABUF_MR))
func regDMABufMR(c *ioctlCall) error {
	return c.runNative(func() error {
		if err := c.f.checkContext(); err != nil {
			return err
		}
		return fmt.Errorf("a dma-buf: %w", syscall.EOPNOTSUPP)
	})
}

// destroyMethod returns a method that destroys an object and returns no data.
func destroyMethod(id uapi.AttrID, k objectKind) func(*ioctlCall) error {
	return func(c *ioctlCall) error {
		return c.runNative(func() error {
			_, err := c.destroy(id, k)
			return err
		})
	}
}

func (c *ioctlCall) destroy(id uapi.AttrID, k objectKind) (resource, error) {
	handle, err := c.handleOf(id)
	if err != nil {
		return nil, err
	}
	c.noteQP(handle)
	return c.f.destroyObject(handle, k)
}

// ioctlDestroyCQ destroys a queue and returns the number of its events that the program has read.
// (UVERBS_HANDLER(UVERBS_METHOD_CQ_DESTROY))
func ioctlDestroyCQ(c *ioctlCall) error {
	return c.runNative(func() error {
		res, err := c.destroy(uapi.AttrDestroyCQHandle, kindCQ)
		if err != nil {
			return err
		}
		cq := res.(*cqObject)
		resp := uapi.DestroyCQResp{CompEventsReported: cq.compReported, AsyncEventsReported: cq.asyncReported}
		c.setOutput(uapi.AttrDestroyCQResp, uapi.AppendTo(nil, &resp))
		return nil
	})
}

// ioctlDestroyQP destroys a queue pair and returns the number of its events that the program has read.
// (UVERBS_HANDLER(UVERBS_METHOD_QP_DESTROY))
func ioctlDestroyQP(c *ioctlCall) error {
	return c.runNative(func() error {
		res, err := c.destroy(uapi.AttrDestroyQPHandle, kindQP)
		if err != nil {
			return err
		}
		resp := uapi.DestroyQPResp{EventsReported: res.(*qpObject).reported}
		c.setOutput(uapi.AttrDestroyQPResp, uapi.AppendTo(nil, &resp))
		return nil
	})
}

// ioctlDestroySRQ destroys a queue and returns the number of its events that the program has read.
// (UVERBS_HANDLER(UVERBS_METHOD_SRQ_DESTROY))
func ioctlDestroySRQ(c *ioctlCall) error {
	return c.runNative(func() error {
		res, err := c.destroy(uapi.AttrDestroySRQHandle, kindSRQ)
		if err != nil {
			return err
		}
		resp := uapi.DestroySRQResp{EventsReported: res.(*srqObject).reported}
		c.setOutput(uapi.AttrDestroySRQResp, uapi.AppendTo(nil, &resp))
		return nil
	})
}
