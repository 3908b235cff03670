package uverbs

import (
	"encoding/binary"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/uapi"
)

// The next rows of the table are the native methods of RDMA_VERBS_IOCTL. After the removal of the device, Linux returns
// EIO in three cases: for a handle that is not being destroyed (rdma_lookup_get_uobject), for creating a handle
// (alloc_uobj) and for a use of the context (ib_uverbs_get_ucontext_file).

// ioctlRow is a call of a method.
type ioctlRow struct {
	object uapi.ObjectID
	method uapi.MethodID
	attrs  func(x *stateProgram) []uapi.Attr
}

func (r ioctlRow) name() string { return uapi.MethodName(r.object, r.method) }

// expectedOutcomes returns the expected results of a call.
func (r ioctlRow) expectedOutcomes() outcomes {
	// Neither the drivers of this test nor Linux's rxe accept a dma-buf.
	if r.object == uapi.ObjectMR && r.method == uapi.MethodRegDMABufMR {
		return outcomes{syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EIO, never}
	}
	return effectOutcomes[methods[methodID{r.object, r.method}].spec.Effect]
}

func (r ioctlRow) run(x *stateProgram) error {
	call := func() error {
		_, err := x.callMethod(r.object, r.method, r.attrs(x)...)
		return err
	}
	if r.method == uapi.MethodGetContext && r.object == uapi.ObjectDevice && x.f.contextState().CanCreate() {
		return x.runOnFreshFile(call)
	}
	return call()
}

// responseAttr returns an attribute with a buffer for a response.
func (x *stateProgram) responseAttr(id uapi.AttrID, size int) uapi.Attr {
	return outAttr(id, x.allocMem(size)[:size])
}

// destroyRow returns the row of a method that destroys an object and reports size bytes.
func destroyRow(object uapi.ObjectID, method uapi.MethodID, handle func(*stateProgram) uint32, size int) ioctlRow {
	return ioctlRow{object, method, func(x *stateProgram) []uapi.Attr {
		attrs := []uapi.Attr{handleAttr(0, uint64(handle(x)))}
		if size > 0 {
			attrs = append(attrs, x.responseAttr(1, size))
		}
		return attrs
	}}
}

var ioctlRows = []ioctlRow{
	{uapi.ObjectDevice, uapi.MethodGetContext, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{x.responseAttr(uapi.AttrGetContextNumCompVectors, 4),
			x.responseAttr(uapi.AttrGetContextCoreSupport, 8)}
	}},
	{uapi.ObjectDevice, uapi.MethodQueryContext, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{x.responseAttr(uapi.AttrQueryContextNumCompVectors, 4),
			x.responseAttr(uapi.AttrQueryContextCoreSupport, 8)}
	}},
	{uapi.ObjectDevice, uapi.MethodQueryPort, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{inlineAttr(uapi.AttrQueryPortPortNum, 8, 1),
			x.responseAttr(uapi.AttrQueryPortResp, uapi.SizeOf[uapi.QueryPortRespEx]())}
	}},
	{uapi.ObjectDevice, uapi.MethodQueryPortSpeed, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{inlineAttr(uapi.AttrQueryPortSpeedPortNum, 8, 1), x.responseAttr(uapi.AttrQueryPortSpeedResp, 8)}
	}},
	{uapi.ObjectDevice, uapi.MethodQueryGIDTable, func(x *stateProgram) []uapi.Attr {
		size := uapi.SizeOf[uapi.GIDEntry]()
		return []uapi.Attr{
			inlineAttr(uapi.AttrQueryGIDTableEntrySize, 8, uint64(size)), inlineAttr(uapi.AttrQueryGIDTableFlags, 4, 0),
			x.responseAttr(uapi.AttrQueryGIDTableRespEntries, 64*size), x.responseAttr(uapi.AttrQueryGIDTableRespNumEntries, 8),
		}
	}},
	{uapi.ObjectDevice, uapi.MethodQueryGIDEntry, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{
			inlineAttr(uapi.AttrQueryGIDEntryPort, 8, 1), inlineAttr(uapi.AttrQueryGIDEntryGIDIndex, 8, 1),
			inlineAttr(uapi.AttrQueryGIDEntryFlags, 4, 0),
			x.responseAttr(uapi.AttrQueryGIDEntryRespEntry, uapi.SizeOf[uapi.GIDEntry]()),
		}
	}},
	// INFO_HANDLES does not use the device and needs no context. Linux lists the objects of the file, and a zombie has
	// no objects.
	{uapi.ObjectDevice, uapi.MethodInfoHandles, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{
			inlineAttr(uapi.AttrInfoObjectID, 8, uint64(uapi.ObjectPD)), x.responseAttr(uapi.AttrInfoTotalHandles, 4),
			x.responseAttr(uapi.AttrInfoHandlesList, 64),
		}
	}},
	{uapi.ObjectAsyncEvent, uapi.MethodAsyncEventAlloc, func(*stateProgram) []uapi.Attr {
		return []uapi.Attr{handleAttr(uapi.AttrAsyncEventAllocFDHandle, 0)}
	}},
	destroyRow(uapi.ObjectPD, uapi.MethodPDDestroy, func(x *stateProgram) uint32 { return x.spare }, 0),
	{uapi.ObjectMR, uapi.MethodRegMR, func(x *stateProgram) []uapi.Attr {
		return regMRAttrs(x.program, x.pd, x.data,
			4096)
	}},
	{uapi.ObjectMR, uapi.MethodRegDMABufMR, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{
			handleAttr(uapi.AttrRegDMABufMRHandle, 0), handleAttr(uapi.AttrRegDMABufMRPDHandle, uint64(x.pd)),
			inlineAttr(uapi.AttrRegDMABufMROffset, 8, 0), inlineAttr(uapi.AttrRegDMABufMRLength, 8, 4096),
			inlineAttr(uapi.AttrRegDMABufMRIOVA, 8, 0),
			inlineAttr(uapi.AttrRegDMABufMRFD, 4, 0), inlineAttr(uapi.AttrRegDMABufMRAccessFlags, 4,
				uint64(uapi.AccessLocalWrite)),
			x.responseAttr(uapi.AttrRegDMABufMRRespLKey, 4), x.responseAttr(uapi.AttrRegDMABufMRRespRKey, 4),
		}
	}},
	{uapi.ObjectMR, uapi.MethodQueryMR, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{
			handleAttr(uapi.AttrQueryMRHandle, uint64(x.mr)), x.responseAttr(uapi.AttrQueryMRRespLKey, 4),
			x.responseAttr(uapi.AttrQueryMRRespRKey, 4),
			x.responseAttr(uapi.AttrQueryMRRespLength, 8), x.responseAttr(uapi.AttrQueryMRRespIOVA, 8),
		}
	}},
	{uapi.ObjectMR, uapi.MethodAdviseMR, func(x *stateProgram) []uapi.Attr {
		sge := uapi.SGE{Addr: x.data, Length: 8, LKey: x.onDemand}
		return []uapi.Attr{
			handleAttr(uapi.AttrAdviseMRPDHandle, uint64(x.pd)), inlineAttr(uapi.AttrAdviseMRAdvice, 8, 0),
			inlineAttr(uapi.AttrAdviseMRFlags, 4, 0),
			inputAttr(uapi.AttrAdviseMRSGEList, x.storeBytes(uapi.AppendTo(nil, &sge))),
		}
	}},
	destroyRow(uapi.ObjectMR, uapi.MethodMRDestroy, func(x *stateProgram) uint32 { return x.mr }, 0),
	destroyRow(uapi.ObjectMW, uapi.MethodMWDestroy, func(x *stateProgram) uint32 { return x.mw }, 0),
	destroyRow(uapi.ObjectAH, uapi.MethodAHDestroy, func(x *stateProgram) uint32 { return x.ah }, 0),
	{uapi.ObjectCQ, uapi.MethodCQCreate, func(x *stateProgram) []uapi.Attr {
		return withAttrs(x.createCQAttrs(1), handleAttr(uapi.AttrCreateCQCompChannel, uint64(x.channel)))
	}},
	destroyRow(uapi.ObjectCQ, uapi.MethodCQDestroy, func(x *stateProgram) uint32 { return x.spareCQ },
		uapi.SizeOf[uapi.DestroyCQResp]()),
	{uapi.ObjectQP, uapi.MethodQPCreate, func(x *stateProgram) []uapi.Attr {
		return x.createQPAttrs(x.pd, x.cq, 1,
			uapi.QPTRC)
	}},
	destroyRow(uapi.ObjectQP, uapi.MethodQPDestroy, func(x *stateProgram) uint32 { return x.qp },
		uapi.SizeOf[uapi.DestroyQPResp]()),
	{uapi.ObjectSRQ, uapi.MethodSRQCreate, func(x *stateProgram) []uapi.Attr {
		return []uapi.Attr{
			handleAttr(uapi.AttrCreateSRQHandle, 0), handleAttr(uapi.AttrCreateSRQPDHandle, uint64(x.pd)),
			inlineAttr(uapi.AttrCreateSRQType, 8, 0), inlineAttr(uapi.AttrCreateSRQUserHandle, 8, 1),
			inlineAttr(uapi.AttrCreateSRQMaxWR, 4, 4),
			inlineAttr(uapi.AttrCreateSRQMaxSGE, 4, 1), inlineAttr(uapi.AttrCreateSRQLimit, 4, 0),
			x.responseAttr(uapi.AttrCreateSRQRespMaxWR, 4), x.responseAttr(uapi.AttrCreateSRQRespMaxSGE,
				4), x.responseAttr(uapi.AttrUHWOut, 24),
		}
	}},
	destroyRow(uapi.ObjectSRQ, uapi.MethodSRQDestroy, func(x *stateProgram) uint32 { return x.srq },
		uapi.SizeOf[uapi.DestroySRQResp]()),
	destroyRow(uapi.ObjectXRCD, uapi.MethodXRCDDestroy, func(x *stateProgram) uint32 { return x.spareXRCD }, 0),
}

// runOnFreshFile opens the device again and creates a context on it.
func (x *stateProgram) runOnFreshFile(run func() error) error {
	f, err := x.srv.Open("uverbs0", x.program, &unmappedMemory{})
	if err != nil {
		return err
	}
	old := x.f
	x.f = f
	err = run()
	f.Close()
	x.f = old
	return err
}

// openXRCDomain opens a private domain.
func (x *stateProgram) openXRCDomain() uint32 {
	x.t.Helper()
	resp, err := sendPlain[uapi.OpenXRCDResp](x.program, uapi.CmdOpenXRCD, uapi.OpenXRCD{FD: ^uint32(0),
		OFlags: unix.O_CREAT})
	must(x.t, err)
	return resp.XRCDHandle
}

// TestInfoHandlesOfZombie checks that a zombie lists no objects although it has handles that can be destroyed.
func TestInfoHandlesOfZombie(t *testing.T) {
	x := newStateProgram(t)
	list := func() uint32 {
		total := x.allocMem(4)
		_, err := x.callMethod(uapi.ObjectDevice, uapi.MethodInfoHandles, inlineAttr(uapi.AttrInfoObjectID, 8,
			uint64(uapi.ObjectPD)),
			outAttr(uapi.AttrInfoTotalHandles, total[:4]), x.responseAttr(uapi.AttrInfoHandlesList, 64))
		must(t, err)
		return binary.NativeEndian.Uint32(total)
	}
	if n := list(); n != 2 {
		t.Errorf("handles of protection domains: got %d, want 2", n)
	}
	x.moveToState(2)
	if n := list(); n != 0 {
		t.Errorf("handles of protection domains in a zombie: got %d, want 0", n)
	}
}
