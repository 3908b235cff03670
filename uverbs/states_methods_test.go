package uverbs

import (
	"encoding/binary"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"verbena/uverbs/abi"
)

// The native methods of RDMA_VERBS_IOCTL, as rows of the table. Linux: a handle that is not to be destroyed gives EIO when the
// device has gone (rdma_lookup_get_uobject), and so does making one (alloc_uobj) and asking for the context
// (ib_uverbs_get_ucontext_file).

// ioctlRow is a method, and what it is to do.
type ioctlRow struct {
	object abi.ObjectID
	method abi.MethodID
	want   states
	attrs  func(x *stateProgram) []abi.Attr
}

func (r ioctlRow) name() string { return methods[methodID{r.object, r.method}].name }

func (r ioctlRow) run(x *stateProgram) error {
	call := func() error {
		_, err := x.ioctl(r.object, r.method, r.attrs(x)...)
		return err
	}
	if r.method == abi.MethodGetContext && r.object == abi.ObjectDevice && x.f.state.Load() == contextLive {
		return x.onFreshFile(call)
	}
	return call()
}

// room is an attribute for an answer.
func (x *stateProgram) room(id abi.AttrID, size int) abi.Attr {
	return outAttr(id, x.alloc(size)[:size])
}

// destroyed is a method that destroys an object, of which size bytes are reported.
func destroyed(object abi.ObjectID, method abi.MethodID, handle func(*stateProgram) uint32, size int) ioctlRow {
	return ioctlRow{object, method, destroys, func(x *stateProgram) []abi.Attr {
		attrs := []abi.Attr{handleAttr(0, uint64(handle(x)))}
		if size > 0 {
			attrs = append(attrs, x.room(1, size))
		}
		return attrs
	}}
}

var ioctlRows = []ioctlRow{
	{abi.ObjectDevice, abi.MethodGetContext, makes, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{x.room(abi.AttrGetContextNumCompVectors, 4), x.room(abi.AttrGetContextCoreSupport, 8)}
	}},
	{abi.ObjectDevice, abi.MethodQueryContext, asks, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{x.room(abi.AttrQueryContextNumCompVectors, 4), x.room(abi.AttrQueryContextCoreSupport, 8)}
	}},
	{abi.ObjectDevice, abi.MethodQueryPort, asks, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{inline(abi.AttrQueryPortPortNum, 8, 1), x.room(abi.AttrQueryPortResp, abi.SizeOf[abi.QueryPortRespEx]())}
	}},
	{abi.ObjectDevice, abi.MethodQueryGIDTable, asks, func(x *stateProgram) []abi.Attr {
		size := abi.SizeOf[abi.GIDEntry]()
		return []abi.Attr{
			inline(abi.AttrQueryGIDTableEntrySize, 8, uint64(size)), inline(abi.AttrQueryGIDTableFlags, 4, 0),
			x.room(abi.AttrQueryGIDTableRespEntries, 64*size), x.room(abi.AttrQueryGIDTableRespNumEntries, 8),
		}
	}},
	{abi.ObjectDevice, abi.MethodQueryGIDEntry, asks, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{
			inline(abi.AttrQueryGIDEntryPort, 8, 1), inline(abi.AttrQueryGIDEntryGIDIndex, 8, 1), inline(abi.AttrQueryGIDEntryFlags, 4, 0),
			x.room(abi.AttrQueryGIDEntryRespEntry, abi.SizeOf[abi.GIDEntry]()),
		}
	}},
	// It asks no device and needs no context: Linux lists what the file has, which in a zombie is nothing any more.
	{abi.ObjectDevice, abi.MethodInfoHandles, states{works, works, works, never}, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{
			inline(abi.AttrInfoObjectID, 8, uint64(abi.ObjectPD)), x.room(abi.AttrInfoTotalHandles, 4), x.room(abi.AttrInfoHandlesList, 64),
		}
	}},
	{abi.ObjectAsyncEvent, abi.MethodAsyncEventAlloc, asks, func(*stateProgram) []abi.Attr {
		return []abi.Attr{handleAttr(abi.AttrAsyncEventAllocFDHandle, 0)}
	}},
	destroyed(abi.ObjectPD, abi.MethodPDDestroy, func(x *stateProgram) uint32 { return x.spare }, 0),
	{abi.ObjectMR, abi.MethodRegMR, makes, func(x *stateProgram) []abi.Attr { return mrAttrs(x.program, x.pd, x.data, 4096) }},
	// No driver here takes a dma-buf; Linux's rxe neither.
	{abi.ObjectMR, abi.MethodRegDMABufMR, states{syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EIO, never}, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{
			handleAttr(abi.AttrRegDMABufMRHandle, 0), handleAttr(abi.AttrRegDMABufMRPDHandle, uint64(x.pd)),
			inline(abi.AttrRegDMABufMROffset, 8, 0), inline(abi.AttrRegDMABufMRLength, 8, 4096), inline(abi.AttrRegDMABufMRIOVA, 8, 0),
			inline(abi.AttrRegDMABufMRFD, 4, 0), inline(abi.AttrRegDMABufMRAccessFlags, 4, uint64(abi.AccessLocalWrite)),
			x.room(abi.AttrRegDMABufMRRespLKey, 4), x.room(abi.AttrRegDMABufMRRespRKey, 4),
		}
	}},
	{abi.ObjectMR, abi.MethodQueryMR, asks, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{
			handleAttr(abi.AttrQueryMRHandle, uint64(x.mr)), x.room(abi.AttrQueryMRRespLKey, 4), x.room(abi.AttrQueryMRRespRKey, 4),
			x.room(abi.AttrQueryMRRespLength, 8), x.room(abi.AttrQueryMRRespIOVA, 8),
		}
	}},
	{abi.ObjectMR, abi.MethodAdviseMR, makes, func(x *stateProgram) []abi.Attr {
		sge := abi.SGE{Addr: x.data, Length: 8, LKey: x.onDemand}
		return []abi.Attr{
			handleAttr(abi.AttrAdviseMRPDHandle, uint64(x.pd)), inline(abi.AttrAdviseMRAdvice, 8, 0), inline(abi.AttrAdviseMRFlags, 4, 0),
			input(abi.AttrAdviseMRSGEList, x.store(abi.AppendTo(nil, &sge))),
		}
	}},
	destroyed(abi.ObjectMR, abi.MethodMRDestroy, func(x *stateProgram) uint32 { return x.mr }, 0),
	destroyed(abi.ObjectMW, abi.MethodMWDestroy, func(x *stateProgram) uint32 { return x.mw }, 0),
	destroyed(abi.ObjectAH, abi.MethodAHDestroy, func(x *stateProgram) uint32 { return x.ah }, 0),
	{abi.ObjectCQ, abi.MethodCQCreate, makes, func(x *stateProgram) []abi.Attr {
		return with(x.cqAttrs(1), handleAttr(abi.AttrCreateCQCompChannel, uint64(x.channel)))
	}},
	destroyed(abi.ObjectCQ, abi.MethodCQDestroy, func(x *stateProgram) uint32 { return x.spareCQ }, abi.SizeOf[abi.DestroyCQResp]()),
	{abi.ObjectQP, abi.MethodQPCreate, makes, func(x *stateProgram) []abi.Attr { return x.qpAttrs(x.pd, x.cq, 1, abi.QPTRC) }},
	destroyed(abi.ObjectQP, abi.MethodQPDestroy, func(x *stateProgram) uint32 { return x.qp }, abi.SizeOf[abi.DestroyQPResp]()),
	{abi.ObjectSRQ, abi.MethodSRQCreate, makes, func(x *stateProgram) []abi.Attr {
		return []abi.Attr{
			handleAttr(abi.AttrCreateSRQHandle, 0), handleAttr(abi.AttrCreateSRQPDHandle, uint64(x.pd)),
			inline(abi.AttrCreateSRQType, 8, 0), inline(abi.AttrCreateSRQUserHandle, 8, 1), inline(abi.AttrCreateSRQMaxWR, 4, 4),
			inline(abi.AttrCreateSRQMaxSGE, 4, 1), inline(abi.AttrCreateSRQLimit, 4, 0),
			x.room(abi.AttrCreateSRQRespMaxWR, 4), x.room(abi.AttrCreateSRQRespMaxSGE, 4), x.room(abi.AttrUHWOut, 24),
		}
	}},
	destroyed(abi.ObjectSRQ, abi.MethodSRQDestroy, func(x *stateProgram) uint32 { return x.srq }, abi.SizeOf[abi.DestroySRQResp]()),
	destroyed(abi.ObjectXRCD, abi.MethodXRCDDestroy, func(x *stateProgram) uint32 { return x.spareXRCD }, 0),
}

// onFreshFile opens the device once more, for a context to be made on.
func (x *stateProgram) onFreshFile(run func() error) error {
	f, err := x.srv.Open("uverbs0", x.program, &memory{})
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

// openXRCDomain opens a domain of the program's own.
func (x *stateProgram) openXRCDomain() uint32 {
	x.t.Helper()
	resp, err := do[abi.OpenXRCDResp](x.program, abi.CmdOpenXRCD, abi.OpenXRCD{FD: ^uint32(0), OFlags: unix.O_CREAT})
	must(x.t, err)
	return resp.XRCDHandle
}

// A zombie has handles to destroy, but no objects to list.
func TestInfoHandlesOfZombie(t *testing.T) {
	x := newStateProgram(t)
	list := func() uint32 {
		total := x.alloc(4)
		_, err := x.ioctl(abi.ObjectDevice, abi.MethodInfoHandles, inline(abi.AttrInfoObjectID, 8, uint64(abi.ObjectPD)),
			outAttr(abi.AttrInfoTotalHandles, total[:4]), x.room(abi.AttrInfoHandlesList, 64))
		must(t, err)
		return binary.NativeEndian.Uint32(total)
	}
	if n := list(); n != 2 {
		t.Errorf("%d handles of protection domains, want 2", n)
	}
	x.to(2)
	if n := list(); n != 0 {
		t.Errorf("%d handles of protection domains in a zombie", n)
	}
}
