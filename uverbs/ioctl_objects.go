package uverbs

import (
	"fmt"
	"math"
	"slices"
	"syscall"

	"verbena/ib"
	"verbena/uverbs/abi"
)

// objectKinds are the types of objects that there are, in the numbers of the ioctl form.
var objectKinds = map[abi.ObjectID]kind{
	abi.ObjectPD:   kindPD,
	abi.ObjectCQ:   kindCQ,
	abi.ObjectQP:   kindQP,
	abi.ObjectSRQ:  kindSRQ,
	abi.ObjectAH:   kindAH,
	abi.ObjectMR:   kindMR,
	abi.ObjectMW:   kindMW,
	abi.ObjectXRCD: kindXRCD,
}

// objectMethods are the methods that make objects, destroy them, or act on them. (uverbs_std_types_*.c)
func objectMethods() map[methodID]*method {
	udata := []attrSpec{bytesIn(abi.AttrUHWIn, 0), bytesOut(abi.AttrUHWOut, 0)}
	return map[methodID]*method{
		{abi.ObjectPD, abi.MethodPDDestroy}:     destroyMethod("PD_DESTROY", abi.AttrDestroyPDHandle, kindPD),
		{abi.ObjectAH, abi.MethodAHDestroy}:     destroyMethod("AH_DESTROY", abi.AttrDestroyAHHandle, kindAH),
		{abi.ObjectMR, abi.MethodMRDestroy}:     destroyMethod("MR_DESTROY", abi.AttrDestroyMRHandle, kindMR),
		{abi.ObjectMW, abi.MethodMWDestroy}:     destroyMethod("MW_DESTROY", abi.AttrDestroyMWHandle, kindMW),
		{abi.ObjectXRCD, abi.MethodXRCDDestroy}: destroyMethod("XRCD_DESTROY", abi.AttrDestroyXRCDHandle, kindXRCD),

		{abi.ObjectCQ, abi.MethodCQCreate}: {"CQ_CREATE", append([]attrSpec{
			newHandle(abi.AttrCreateCQHandle), numberIn(abi.AttrCreateCQCQE, 4), numberIn(abi.AttrCreateCQUserHandle, 8),
			fileIn(abi.AttrCreateCQCompChannel), numberIn(abi.AttrCreateCQCompVector, 4), flagsIn(abi.AttrCreateCQFlags),
			valueOut(abi.AttrCreateCQRespCQE, 4).required(), fileIn(abi.AttrCreateCQEventFD),
		}, udata...), ioctlCreateCQ},
		{abi.ObjectCQ, abi.MethodCQDestroy}: {"CQ_DESTROY", []attrSpec{
			destroyHandle(abi.AttrDestroyCQHandle), responseOut[abi.DestroyCQResp](abi.AttrDestroyCQResp),
		}, ioctlDestroyCQ},

		{abi.ObjectQP, abi.MethodQPCreate}: {"QP_CREATE", append([]attrSpec{
			newHandle(abi.AttrCreateQPHandle), useHandle(abi.AttrCreateQPXRCDHandle).optional(),
			useHandle(abi.AttrCreateQPPDHandle).optional(), useHandle(abi.AttrCreateQPSRQHandle).optional(),
			useHandle(abi.AttrCreateQPSendCQHandle).optional(), useHandle(abi.AttrCreateQPRecvCQHandle).optional(),
			numberIn(abi.AttrCreateQPUserHandle, 8), structIn[abi.QPCap](abi.AttrCreateQPCap), constIn(abi.AttrCreateQPType),
			flagsIn(abi.AttrCreateQPFlags), numberIn(abi.AttrCreateQPSourceQPN, 4).optional(), fileIn(abi.AttrCreateQPEventFD),
			structOut[abi.QPCap](abi.AttrCreateQPRespCap), valueOut(abi.AttrCreateQPRespQPNum, 4).required(),
		}, udata...), ioctlCreateQP},
		{abi.ObjectQP, abi.MethodQPDestroy}: {"QP_DESTROY", []attrSpec{
			destroyHandle(abi.AttrDestroyQPHandle), responseOut[abi.DestroyQPResp](abi.AttrDestroyQPResp),
		}, ioctlDestroyQP},

		{abi.ObjectSRQ, abi.MethodSRQCreate}: {"SRQ_CREATE", append([]attrSpec{
			newHandle(abi.AttrCreateSRQHandle), useHandle(abi.AttrCreateSRQPDHandle), constIn(abi.AttrCreateSRQType),
			numberIn(abi.AttrCreateSRQUserHandle, 8), numberIn(abi.AttrCreateSRQMaxWR, 4), numberIn(abi.AttrCreateSRQMaxSGE, 4),
			numberIn(abi.AttrCreateSRQLimit, 4), useHandle(abi.AttrCreateSRQXRCDHandle).optional(),
			useHandle(abi.AttrCreateSRQCQHandle).optional(), numberIn(abi.AttrCreateSRQMaxNumTags, 4).optional(),
			fileIn(abi.AttrCreateSRQEventFD), valueOut(abi.AttrCreateSRQRespMaxWR, 4).required(),
			valueOut(abi.AttrCreateSRQRespMaxSGE, 4).required(), valueOut(abi.AttrCreateSRQRespSRQNum, 4),
		}, udata...), ioctlCreateSRQ},
		{abi.ObjectSRQ, abi.MethodSRQDestroy}: {"SRQ_DESTROY", []attrSpec{
			destroyHandle(abi.AttrDestroySRQHandle), responseOut[abi.DestroySRQResp](abi.AttrDestroySRQResp),
		}, ioctlDestroySRQ},

		{abi.ObjectMR, abi.MethodRegDMABufMR}: {"REG_DMABUF_MR", []attrSpec{
			newHandle(abi.AttrRegDMABufMRHandle), useHandle(abi.AttrRegDMABufMRPDHandle),
			numberIn(abi.AttrRegDMABufMROffset, 8), numberIn(abi.AttrRegDMABufMRLength, 8), numberIn(abi.AttrRegDMABufMRIOVA, 8),
			numberIn(abi.AttrRegDMABufMRFD, 4), flagsIn(abi.AttrRegDMABufMRAccessFlags),
			valueOut(abi.AttrRegDMABufMRRespLKey, 4).required(), valueOut(abi.AttrRegDMABufMRRespRKey, 4).required(),
		}, regDMABufMR},
		{abi.ObjectMR, abi.MethodAdviseMR}: {"ADVISE_MR", []attrSpec{
			useHandle(abi.AttrAdviseMRPDHandle), constIn(abi.AttrAdviseMRAdvice), flagsIn(abi.AttrAdviseMRFlags).required(),
			bytesIn(abi.AttrAdviseMRSGEList, abi.SizeOf[abi.SGE]()).required(),
		}, adviseMR},
		{abi.ObjectMR, abi.MethodQueryMR}: {"QUERY_MR", []attrSpec{
			useHandle(abi.AttrQueryMRHandle), valueOut(abi.AttrQueryMRRespLKey, 4).required(),
			valueOut(abi.AttrQueryMRRespRKey, 4).required(), valueOut(abi.AttrQueryMRRespLength, 8).required(),
			valueOut(abi.AttrQueryMRRespIOVA, 8),
		}, queryMR},
		{abi.ObjectMR, abi.MethodRegMR}: {"REG_MR", []attrSpec{
			newHandle(abi.AttrRegMRHandle), useHandle(abi.AttrRegMRPDHandle), numberIn(abi.AttrRegMRIOVA, 8),
			numberIn(abi.AttrRegMRAddr, 8).optional(), numberIn(abi.AttrRegMRLength, 8), flagsIn(abi.AttrRegMRAccessFlags).required(),
			numberIn(abi.AttrRegMRFD, 4).optional(), numberIn(abi.AttrRegMRFDOffset, 8).optional(),
			valueOut(abi.AttrRegMRRespLKey, 4).required(), valueOut(abi.AttrRegMRRespRKey, 4).required(),
		}, ioctlRegMR},
	}
}

// responseOut is a response of one length.
func responseOut[T any](id abi.AttrID) attrSpec { return valueOut(id, abi.SizeOf[T]()).required() }

// handle is that of an object: a number of 32 bits in a field of 64.
func (a *attribute) handle() (uint32, error) {
	switch {
	case a.Data > math.MaxInt64:
		return 0, fmt.Errorf("attribute %d: handle %d: %w", a.AttrID, int64(a.Data), syscall.EINVAL)
	case a.Data > math.MaxUint32:
		return 0, fmt.Errorf("attribute %d: handle %d: no such object: %w", a.AttrID, a.Data, syscall.ENOENT)
	}
	return uint32(a.Data), nil
}

// handleOf is the handle in an attribute, ENOENT if it was not given.
func (c *ioctlCall) handleOf(id abi.AttrID) (uint32, error) {
	a := c.has(id)
	if a == nil {
		return 0, fmt.Errorf("attribute %d is missing: %w", id, syscall.ENOENT)
	}
	return a.handle()
}

// file is the descriptor in an attribute, -1 if it was not given.
func (c *ioctlCall) file(id abi.AttrID) (int32, error) {
	a := c.has(id)
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

// eventFile notes the asynchronous event file that a new object is to use instead of the context's first.
// (ib_uverbs_get_async_event)
func (c *ioctlCall) eventFile(id abi.AttrID) error {
	fd, err := c.file(id)
	if err != nil || fd < 0 {
		return err
	}
	dev, ino, err := c.caller.SameFile(int(fd))
	if err != nil {
		return fmt.Errorf("asynchronous event file %d: %w: %v", fd, syscall.EBADF, err)
	}
	if c.async, err = c.f.events.asyncFile(dev, ino); err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return nil
}

// create runs a method that makes an object, whose driver's data are attributes.
func (c *ioctlCall) create(run func() error) (err error) {
	if c.udata.In, err = c.input(abi.AttrUHWIn); err != nil {
		return err
	}
	c.driverRoom(c.room(abi.AttrUHWOut))
	return c.native(func() error {
		if err := run(); err != nil {
			return err
		}
		c.output(abi.AttrUHWOut, c.udata.Out[:c.udata.N])
		return nil
	})
}

// ioctlCreateCQ makes a completion queue. (UVERBS_HANDLER(UVERBS_METHOD_CQ_CREATE))
func ioctlCreateCQ(c *ioctlCall) error {
	flags, err := c.flags(abi.AttrCreateCQFlags, uint32(abi.CQFlagsTimestampCompletion|abi.CQFlagsIgnoreOverrun))
	if err != nil {
		return err
	}
	channel, err := c.file(abi.AttrCreateCQCompChannel)
	if err != nil {
		return err
	}
	return c.create(func() error {
		if err := c.eventFile(abi.AttrCreateCQEventFD); err != nil {
			return err
		}
		resp, err := c.createCQ(&abi.ExCreateCQ{
			UserHandle:  c.uint64(abi.AttrCreateCQUserHandle),
			CQE:         c.uint32(abi.AttrCreateCQCQE),
			CompVector:  c.uint32(abi.AttrCreateCQCompVector),
			CompChannel: channel,
			Flags:       abi.CQFlags(flags),
		})
		if err != nil {
			return err
		}
		c.give(abi.AttrCreateCQHandle, uint64(resp.CQHandle))
		c.output(abi.AttrCreateCQRespCQE, uint32Bytes(resp.CQE))
		return nil
	})
}

// ioctlCreateQP makes a queue pair. (UVERBS_HANDLER(UVERBS_METHOD_QP_CREATE))
func ioctlCreateQP(c *ioctlCall) error {
	b, err := c.input(abi.AttrCreateQPCap)
	if err != nil {
		return err
	}
	limits, _ := abi.DecodePrefix[abi.QPCap](b)
	typ, err := c.value(abi.AttrCreateQPType, math.MaxUint32)
	if err != nil {
		return err
	}
	if typ > math.MaxUint8 {
		return fmt.Errorf("no queue pair of type %d: %w", typ, syscall.EINVAL)
	}
	return c.create(func() error {
		req := abi.ExCreateQP{
			UserHandle:    c.uint64(abi.AttrCreateQPUserHandle),
			MaxSendWR:     limits.MaxSendWR,
			MaxRecvWR:     limits.MaxRecvWR,
			MaxSendSGE:    limits.MaxSendSGE,
			MaxRecvSGE:    limits.MaxRecvSGE,
			MaxInlineData: limits.MaxInlineData,
			QPType:        abi.QPType(typ),
		}
		if err := c.qpHandles(&req); err != nil {
			return err
		}
		if err := c.qpFlags(&req); err != nil {
			return err
		}
		if err := c.eventFile(abi.AttrCreateQPEventFD); err != nil {
			return err
		}
		resp, err := c.createQP(&req)
		if err != nil {
			return err
		}
		c.give(abi.AttrCreateQPHandle, uint64(resp.QPHandle))
		granted := abi.QPCap{
			MaxSendWR:     resp.MaxSendWR,
			MaxRecvWR:     resp.MaxRecvWR,
			MaxSendSGE:    resp.MaxSendSGE,
			MaxRecvSGE:    resp.MaxRecvSGE,
			MaxInlineData: resp.MaxInlineData,
		}
		c.outputStruct(abi.AttrCreateQPRespCap, abi.AppendTo(nil, &granted))
		c.output(abi.AttrCreateQPRespQPNum, uint32Bytes(resp.QPN))
		return nil
	})
}

// qpHandles fills in the objects that a new queue pair uses, which depend on its type.
func (c *ioctlCall) qpHandles(req *abi.ExCreateQP) (err error) {
	given := func(ids ...abi.AttrID) bool {
		return slices.ContainsFunc(ids, func(id abi.AttrID) bool { return c.has(id) != nil })
	}
	misfit := fmt.Errorf("an object that a queue pair of type %d does not use: %w", req.QPType, syscall.EINVAL)
	switch req.QPType {
	case abi.QPTXRCTgt:
		if given(abi.AttrCreateQPPDHandle, abi.AttrCreateQPSendCQHandle, abi.AttrCreateQPRecvCQHandle) {
			return misfit
		}
		req.PDHandle, err = c.handleOf(abi.AttrCreateQPXRCDHandle)
		return err
	case abi.QPTXRCIni:
		if given(abi.AttrCreateQPXRCDHandle, abi.AttrCreateQPSRQHandle) {
			return misfit
		}
	case abi.QPTRC, abi.QPTUC, abi.QPTUD, abi.QPTRawPacket, abi.QPTDriver:
		if given(abi.AttrCreateQPXRCDHandle) {
			return misfit
		}
	default:
		return nil // createQP says that there is no such type
	}
	if req.PDHandle, err = c.handleOf(abi.AttrCreateQPPDHandle); err != nil {
		return err
	}
	if req.SendCQHandle, err = c.handleOf(abi.AttrCreateQPSendCQHandle); err != nil || req.QPType == abi.QPTXRCIni {
		return err
	}
	if given(abi.AttrCreateQPSRQHandle) {
		req.IsSRQ = 1
		if req.SRQHandle, err = c.handleOf(abi.AttrCreateQPSRQHandle); err != nil {
			return err
		}
	}
	req.RecvCQHandle, err = c.handleOf(abi.AttrCreateQPRecvCQHandle)
	return err
}

// qpFlags fills in the options of a new queue pair. (check_creation_flags)
func (c *ioctlCall) qpFlags(req *abi.ExCreateQP) error {
	v, err := c.flags(abi.AttrCreateQPFlags, uint32(qpCreateFlags|abi.QPCreateSQSigAll))
	if err != nil {
		return err
	}
	flags := abi.QPCreateFlags(v)
	req.SQSigAll = flag(flags&abi.QPCreateSQSigAll != 0)
	req.CreateFlags = flags &^ abi.QPCreateSQSigAll
	raw := req.QPType == abi.QPTRawPacket
	switch {
	case req.CreateFlags == 0, req.QPType == abi.QPTDriver:
	case !raw && req.QPType != abi.QPTUD,
		!raw && req.CreateFlags&(abi.QPCreateScatterFCS|abi.QPCreateCVLANStripping) != 0:
		return fmt.Errorf("flags %#x for type %d: %w", uint32(flags), req.QPType, syscall.EINVAL)
	}
	if c.has(abi.AttrCreateQPSourceQPN) != nil {
		return fmt.Errorf("a source queue pair number: %w", syscall.EOPNOTSUPP)
	}
	return nil
}

// ioctlCreateSRQ makes a shared receive queue. (UVERBS_HANDLER(UVERBS_METHOD_SRQ_CREATE))
func ioctlCreateSRQ(c *ioctlCall) error {
	typ, err := c.value(abi.AttrCreateSRQType, math.MaxUint32)
	if err != nil {
		return err
	}
	return c.create(func() error {
		req := abi.CreateXSRQ{
			UserHandle: c.uint64(abi.AttrCreateSRQUserHandle),
			SRQType:    abi.SRQType(typ),
			MaxWR:      c.uint32(abi.AttrCreateSRQMaxWR),
			MaxSGE:     c.uint32(abi.AttrCreateSRQMaxSGE),
			SRQLimit:   c.uint32(abi.AttrCreateSRQLimit),
		}
		var err error
		if req.PDHandle, err = c.handleOf(abi.AttrCreateSRQPDHandle); err != nil {
			return err
		}
		if req.SRQType == abi.SRQTXRC || req.SRQType == abi.SRQTTM {
			if req.CQHandle, err = c.handleOf(abi.AttrCreateSRQCQHandle); err != nil {
				return err
			}
		}
		if req.SRQType == abi.SRQTXRC {
			if req.XRCDHandle, err = c.handleOf(abi.AttrCreateSRQXRCDHandle); err != nil {
				return err
			}
		}
		if err := c.eventFile(abi.AttrCreateSRQEventFD); err != nil {
			return err
		}
		resp, err := c.createSRQ(&req)
		if err != nil {
			return err
		}
		c.give(abi.AttrCreateSRQHandle, uint64(resp.SRQHandle))
		c.output(abi.AttrCreateSRQRespMaxWR, uint32Bytes(resp.MaxWR))
		c.output(abi.AttrCreateSRQRespMaxSGE, uint32Bytes(resp.MaxSGE))
		if req.SRQType == abi.SRQTXRC {
			c.output(abi.AttrCreateSRQRespSRQNum, uint32Bytes(resp.SRQN))
		}
		return nil
	})
}

// ioctlRegMR registers memory of the process, by its address. (UVERBS_HANDLER(UVERBS_METHOD_REG_MR))
func ioctlRegMR(c *ioctlCall) error {
	byAddr, byFD := c.has(abi.AttrRegMRAddr) != nil, c.has(abi.AttrRegMRFD) != nil
	if byFD != (c.has(abi.AttrRegMRFDOffset) != nil) || byFD == byAddr {
		return fmt.Errorf("neither an address nor a descriptor with an offset: %w", syscall.EINVAL)
	}
	access, err := c.flags(abi.AttrRegMRAccessFlags, uint32(accessKnown))
	if err != nil {
		return err
	}
	return c.native(func() error {
		if err := c.f.context(); err != nil {
			return err
		}
		if byFD {
			return fmt.Errorf("a dma-buf: %w", syscall.EOPNOTSUPP)
		}
		pd, err := c.handleOf(abi.AttrRegMRPDHandle)
		if err != nil {
			return err
		}
		resp, err := c.regMR(&abi.RegMR{
			Start: c.uint64(abi.AttrRegMRAddr), Length: c.uint64(abi.AttrRegMRLength), HCAVA: c.uint64(abi.AttrRegMRIOVA),
			PDHandle: pd, AccessFlags: abi.AccessFlags(access),
		})
		if err != nil {
			return err
		}
		c.give(abi.AttrRegMRHandle, uint64(resp.MRHandle))
		c.output(abi.AttrRegMRRespLKey, uint32Bytes(resp.LKey))
		c.output(abi.AttrRegMRRespRKey, uint32Bytes(resp.RKey))
		return nil
	})
}

// adviseMR tells what is soon to be done with memory. (UVERBS_HANDLER(UVERBS_METHOD_ADVISE_MR))
func adviseMR(c *ioctlCall) error {
	advice, err := c.value(abi.AttrAdviseMRAdvice, math.MaxUint32)
	if err != nil {
		return err
	}
	flags, err := c.flags(abi.AttrAdviseMRFlags, uint32(ib.AdviceFlush))
	if err != nil {
		return err
	}
	b, err := c.input(abi.AttrAdviseMRSGEList)
	if err != nil {
		return err
	}
	size := abi.SizeOf[abi.SGE]()
	if len(b)%size != 0 {
		return fmt.Errorf("list of %d bytes: %w", len(b), syscall.EINVAL)
	}
	var sgl []ib.SGE
	for ; len(b) > 0; b = b[size:] {
		s, _ := abi.Decode[abi.SGE](b)
		sgl = append(sgl, ib.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey})
	}
	return c.native(func() error {
		handle, err := c.handleOf(abi.AttrAdviseMRPDHandle)
		if err != nil {
			return err
		}
		pd, err := lookup[*pdObject](c.f, handle)
		if err != nil {
			return err
		}
		defer pd.done()
		return pd.res.AdviseMR(ib.MRAdvice(advice), ib.MRAdviceFlags(flags), sgl)
	})
}

// queryMR tells what there is to know of a region, to a process that imports it.
// (UVERBS_HANDLER(UVERBS_METHOD_QUERY_MR))
func queryMR(c *ioctlCall) error {
	return c.native(func() error {
		handle, err := c.handleOf(abi.AttrQueryMRHandle)
		if err != nil {
			return err
		}
		mr, err := lookup[*mrObject](c.f, handle)
		if err != nil {
			return err
		}
		defer mr.done()
		c.output(abi.AttrQueryMRRespLKey, uint32Bytes(mr.res.LKey()))
		c.output(abi.AttrQueryMRRespRKey, uint32Bytes(mr.res.RKey()))
		c.output(abi.AttrQueryMRRespLength, uint64Bytes(mr.res.Region().Len()))
		c.output(abi.AttrQueryMRRespIOVA, uint64Bytes(mr.res.Region().IOVA()))
		return nil
	})
}

// regDMABufMR would register a dma-buf, but its memory belongs to a kernel driver.
// (UVERBS_HANDLER(UVERBS_METHOD_REG_DMABUF_MR))
func regDMABufMR(c *ioctlCall) error {
	return c.native(func() error {
		if err := c.f.context(); err != nil {
			return err
		}
		return fmt.Errorf("a dma-buf: %w", syscall.EOPNOTSUPP)
	})
}

// destroyMethod destroys an object, of which there is nothing to report.
func destroyMethod(name string, id abi.AttrID, k kind) *method {
	return &method{name, []attrSpec{destroyHandle(id)}, func(c *ioctlCall) error {
		return c.native(func() error {
			_, err := c.destroy(id, k)
			return err
		})
	}}
}

func (c *ioctlCall) destroy(id abi.AttrID, k kind) (resource, error) {
	handle, err := c.handleOf(id)
	if err != nil {
		return nil, err
	}
	return c.f.destroyObject(handle, k)
}

// ioctlDestroyCQ reports how many events of the queue have been read. (UVERBS_HANDLER(UVERBS_METHOD_CQ_DESTROY))
func ioctlDestroyCQ(c *ioctlCall) error {
	return c.native(func() error {
		res, err := c.destroy(abi.AttrDestroyCQHandle, kindCQ)
		if err != nil {
			return err
		}
		cq := res.(*cqObject)
		resp := abi.DestroyCQResp{CompEventsReported: cq.compReported, AsyncEventsReported: cq.asyncReported}
		c.output(abi.AttrDestroyCQResp, abi.AppendTo(nil, &resp))
		return nil
	})
}

// ioctlDestroyQP reports how many events of the queue pair have been read. (UVERBS_HANDLER(UVERBS_METHOD_QP_DESTROY))
func ioctlDestroyQP(c *ioctlCall) error {
	return c.native(func() error {
		res, err := c.destroy(abi.AttrDestroyQPHandle, kindQP)
		if err != nil {
			return err
		}
		resp := abi.DestroyQPResp{EventsReported: res.(*qpObject).reported}
		c.output(abi.AttrDestroyQPResp, abi.AppendTo(nil, &resp))
		return nil
	})
}

// ioctlDestroySRQ reports how many events of the queue have been read. (UVERBS_HANDLER(UVERBS_METHOD_SRQ_DESTROY))
func ioctlDestroySRQ(c *ioctlCall) error {
	return c.native(func() error {
		res, err := c.destroy(abi.AttrDestroySRQHandle, kindSRQ)
		if err != nil {
			return err
		}
		resp := abi.DestroySRQResp{EventsReported: res.(*srqObject).reported}
		c.output(abi.AttrDestroySRQResp, abi.AppendTo(nil, &resp))
		return nil
	})
}
