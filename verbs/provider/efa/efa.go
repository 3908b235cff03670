// Package efa is the provider for EFA devices of Verbena. It corresponds to providers/efa of rdma-core. Programs post
// by stores to a doorbell page, and find completions by a phase bit. Queue pairs have the types UD and SRD. There are
// no shared receive queues.
//
// The provider has not been tested with the real adapter, whose send queue is memory of the device.
package efa

import (
	"fmt"
	"maps"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"

	"verbena/internal/shm"
	"verbena/uapi"
	"verbena/uapi/efa"
	"verbena/verbs/internal/cmd"
	"verbena/verbs/internal/transport"
	"verbena/verbs/provider"
)

// Provider implements provider.Provider and provider.Opener.
type Provider struct{}

var _ provider.Opener = Provider{}

// Name implements provider.Provider.
func (Provider) Name() string { return "efa" }

// Matches implements provider.Provider.
func (Provider) Matches(i provider.Info) bool {
	return i.Driver == uapi.DriverEFA && i.ABI == efa.ABIVersion
}

// DriverID implements provider.Provider.
func (Provider) DriverID() uapi.DriverID { return uapi.DriverEFA }

var errNotOpen = fmt.Errorf("the device is not open: %w", syscall.EINVAL)

// CreateCQ implements provider.Provider. Only an open device creates queues.
func (Provider) CreateCQ(*cmd.Device, uapi.CreateCQ) (provider.CQ, uapi.CreateCQResp, error) {
	return nil, uapi.CreateCQResp{}, errNotOpen
}

// CreateQP implements provider.Provider.
func (Provider) CreateQP(*cmd.Device, uapi.CreateQP) (provider.QP, uapi.CreateQPResp, error) {
	return nil, uapi.CreateQPResp{}, errNotOpen
}

// CreateSRQ implements provider.Provider.
func (Provider) CreateSRQ(*cmd.Device, uapi.CreateSRQ) (provider.SRQ, uapi.CreateSRQResp, error) {
	return nil, uapi.CreateSRQResp{}, fmt.Errorf("EFA has no shared receive queues: %w", syscall.EOPNOTSUPP)
}

// CreateAH implements provider.Provider. (efa_create_ah)
func (Provider) CreateAH(d *cmd.Device, pd uint32, attr uapi.AHAttr) (provider.AH, error) {
	out := make([]byte, uapi.SizeOf[efa.CreateAHResp]())
	h, err := d.CreateAH(pd, attr, out)
	if err != nil {
		return provider.AH{}, err
	}
	own, _ := uapi.Decode[efa.CreateAHResp](out)
	return provider.AH{Handle: h, Num: uint32(own.EFAAddressHandle)}, nil
}

// device is the provider of an open device.
type device struct {
	Provider
	polled bool // the service polls the doorbells

	mu  sync.Mutex // held while qps changes
	qps atomic.Pointer[map[uint16]*qp]
}

// Open implements provider.Opener. (efa_alloc_context)
func (p Provider) Open(d *cmd.Device, resp []byte) (provider.Provider, error) {
	r, _ := uapi.Decode[efa.AllocUcontextResp](resp)
	if r.SubCQsPerCQ != subCQs {
		return nil, fmt.Errorf("completion queues with %d arrays: %w", r.SubCQsPerCQ, syscall.EOPNOTSUPP)
	}
	dev := &device{polled: transport.IsKernelFile(d.T)}
	dev.qps.Store(&map[uint16]*qp{})
	return dev, nil
}

// subCQs is the number of arrays in a completion queue.
const subCQs = 1

// setQP sets the queue pair with a number, or removes it.
func (d *device) setQP(num uint16, q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := maps.Clone(*d.qps.Load()) // polls read the map without a lock
	if m[num] = q; q == nil {
		delete(m, num)
	}
	d.qps.Store(&m)
}

// slotsFor returns the least power of two that is at least n.
func slotsFor(n uint32) uint32 { return 1 << bits.Len32(max(n, 1)-1) }

// mapping is mapped memory of a queue.
type mapping struct {
	t   transport.Transport
	mem []byte
}

// mapMemory maps size bytes at an offset.
func mapMemory(d *cmd.Device, key, size uint64) (m mapping, err error) {
	if size > 1<<30 {
		return m, fmt.Errorf("a queue of %d bytes: %w", size, syscall.EPROTO)
	}
	mem, err := d.T.Map(key, int(size))
	return mapping{d.T, mem}, err
}

func (m *mapping) unmap() error {
	if m.mem == nil {
		return nil
	}
	return m.t.Unmap(m.mem)
}

// cq is a completion queue. The device changes the phase bit of an entry each time that it goes through the array.
type cq struct {
	dev   *device
	m     mapping
	slots uint32
	next  uint32 // number of polled completions
	entry [entrySize]byte
}

const entrySize = 32

// CreateCQ implements provider.Provider. (create_cq of providers/efa)
func (d *device) CreateCQ(c *cmd.Device, req uapi.CreateCQ) (provider.CQ, uapi.CreateCQResp, error) {
	q := &cq{dev: d, slots: slotsFor(req.CQE)}
	req.CQE = q.slots
	in := efa.CreateCQ{CQEntrySize: entrySize, NumSubCQs: subCQs}
	out := make([]byte, uapi.SizeOf[efa.CreateCQResp]())
	r, err := c.CreateCQ(req, uapi.AppendTo(nil, &in), out)
	if err != nil {
		return nil, r, err
	}
	own, _ := uapi.Decode[efa.CreateCQResp](out)
	if own.QMmapSize < uint64(q.slots)*entrySize {
		err = errTooSmall
	} else {
		q.m, err = mapMemory(c, own.QMmapKey, own.QMmapSize)
	}
	if err != nil {
		_ = c.DestroyCQ(r.CQHandle)
		return nil, r, err
	}
	return q, r, nil
}

var errTooSmall = fmt.Errorf("the memory of the queue is smaller than the queue: %w", syscall.EPROTO)

// Poll implements provider.CQ. (efa_poll_cqs)
func (c *cq) Poll(wc []provider.WC) (n int) {
	for n < len(wc) {
		at := int(c.next&(c.slots-1)) * entrySize
		first := shm.FirstWord(c.m.mem[at:]).Load()
		uapi.Encode(c.entry[:], &first)
		phase := 1 - uint8(c.next/c.slots)&1
		if c.entry[flagsOffset]&efa.IOCDescCommonPhaseMask != phase {
			break
		}
		copy(c.entry[4:], c.m.mem[at+4:])
		c.next++
		if c.decode(&wc[n]) {
			n++
		}
	}
	return n
}

// flagsOffset is the offset of efa.CDescCommon.Flags.
const flagsOffset = 3

// decode decodes the completion in entry. It returns false for a completion that the program does not see.
func (c *cq) decode(wc *provider.WC) bool {
	e, _ := uapi.Decode[efa.RXCDescEx](c.entry[:])
	x := &e.Base.Common
	q := (*c.dev.qps.Load())[x.QPNum]
	if q == nil { // destroyed
		return false
	}
	*wc = provider.WC{Status: provider.Status(x.Status.Verbs()), VendorErr: uint32(x.Status), QPN: uint32(x.QPNum)}
	op := efa.SendOpType(x.Flags & efa.IOCDescCommonOpTypeMask >> 4)
	if x.Flags&efa.IOCDescCommonQTypeMask>>1 == efa.IOSendQueue {
		r, ok := q.sends.take(x.ReqID)
		wc.ID, wc.Opcode = r.id, sendOpcodes[min(int(op), len(sendOpcodes)-1)]
		return ok && (r.signaled || x.Status != efa.IOCompStatusOK)
	}
	r, ok := q.recvs.take(x.ReqID)
	wc.ID, wc.Opcode = r.id, uapi.WCRecv
	wc.ByteLen, wc.SrcQPN = uint32(e.Base.Length), uint32(e.Base.SrcQPNum)
	if op == efa.IORDMAWrite {
		high, _ := uapi.Decode[uint16](e.U[:])
		wc.Opcode, wc.ByteLen = uapi.WCRecvRDMAWithImm, wc.ByteLen|uint32(high)<<16
	}
	if q.datagrams {
		wc.Flags = uapi.WCFlagGRH
	}
	if x.Flags&efa.IOCDescCommonHasImmMask != 0 {
		wc.Flags, wc.Imm = wc.Flags|uapi.WCFlagWithImm, e.Base.Imm
	}
	return ok
}

// sendOpcodes are the opcodes of completions, by efa.SendOpType.
var sendOpcodes = [...]uapi.WCOpcode{
	efa.IOSend: uapi.WCSend, efa.IORDMARead: uapi.WCRDMARead, efa.IORDMAWrite: uapi.WCRDMAWrite,
}

// Resize implements provider.CQ.
func (c *cq) Resize(int) (int, error) {
	return 0, fmt.Errorf("EFA cannot resize completion queues: %w", syscall.EOPNOTSUPP)
}

// Close implements provider.CQ.
func (c *cq) Close() error { return c.m.unmap() }
