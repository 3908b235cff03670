package layout

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"

	"verbena/driver/efa/ring"
	"verbena/engine/queue"
	"verbena/ib"
	"verbena/internal/queuedir"
	"verbena/uapi"
	"verbena/uapi/efa"
	"verbena/uapi/verb"
)

// The next constants are the limits that programs see. Producer counts, and the library's
// count of read completions, have 16 bits. A queue therefore has at most 2^15 slots.
const (
	maxWR   = 1 << 12
	maxCQE  = 1 << 15
	maxSGE  = efa.IOTXDescNumBufs
	maxDesc = 1 << 15 // descriptors in a receive queue

	subCQs = 1 // arrays in a completion queue
)

// The identity of the adapter. The part is the first generation with RDMA READ and WRITE.
const (
	vendorAmazon = 0x1d0f
	partEFA2     = 0xefa2
	hwVersion    = 0xefa2
)

// maxRDMASize is the longest RDMA READ or WRITE, in bytes.
const maxRDMASize = 1 << 30

// pages rounds a size up to whole pages.
func pages(size int) int {
	page := os.Getpagesize()
	return (size + page - 1) / page * page
}

// Layout is the layout of EFA. It implements queue.Layout.
type Layout struct{}

var _ queue.Layout = Layout{}

// UserABI implements queue.Layout.
func (Layout) UserABI() (driverID, version uint32) { return uint32(uapi.DriverEFA), efa.ABIVersion }

// Limits implements queue.Layout.
func (Layout) Limits() queue.Limits {
	return queue.Limits{WR: maxWR, CQE: maxCQE, UsualCQE: maxCQE, SGE: maxSGE, Inline: efa.IOTXDescInlineMaxSize128}
}

// Memory implements queue.Layout.
func (Layout) Memory(wr uint32, cqe int) (context, work, completions uint64) {
	r := ring.Region{SendSlots: uint32(slotsFor(int(wr))), SendWQE: efa.TXWQE128Size,
		RecvSlots: uint32(slotsFor(int(wr) * maxSGE))}
	return queuedir.PageSize, uint64(r.Size()), uint64(os.Getpagesize() + pages(slotsFor(cqe)*entrySizeEx))
}

// slotsFor returns the least power of two that is at least n.
func slotsFor(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// Traits implements queue.Layout.
func (Layout) Traits() queue.Traits {
	return queue.Traits{
		QPTypes:      []ib.QPType{ib.QPTypeUD, ib.QPTypeSRD},
		QPNumberBits: 16, QPSlotBits: 12, KeyBits: 24, AHBits: 16,
		AddressGIDs: true, SharesAH: true, StoreDoorbells: true, AllRKeys: true, MaxRDMASize: maxRDMASize,
		MessageCounters: true,
		Attributes:      attributes, Port: port,
		Methods:   []ib.DriverMethod{queryMR},
		RespondPD: func(u *ib.Udata) { respond(u, &efa.AllocPDResp{}) },
		RespondDevice: func(a *ib.DeviceAttr, u *ib.Udata) {
			respond(u, &efa.ExQueryDeviceResp{
				MaxSQWR: uint32(a.MaxQPWR), MaxRQWR: uint32(a.MaxQPWR), MaxSQSGE: maxSGE, MaxRQSGE: maxSGE,
				MaxRDMASize: maxRDMASize,
				DeviceCaps: efa.QueryDeviceCapsCQNotifications | efa.QueryDeviceCapsRNRRetry |
					efa.QueryDeviceCapsRDMARead | efa.QueryDeviceCapsRDMAWrite |
					efa.QueryDeviceCapsUnsolicitedWriteRecv,
			})
		},
	}
}

// attributes removes the capabilities that the adapter lacks. (efa_query_device)
func attributes(a *ib.DeviceAttr) {
	a.VendorID, a.VendorPartID, a.HWVer = vendorAmazon, partEFA2, hwVersion
	a.NodeType = ib.NodeUnspecified
	a.DeviceCapFlags, a.ODP, a.AtomicCap = 0, ib.ODPCaps{}, ib.AtomicNone
	a.MaxSGERd = efa.IOTXDescNumRDMABufs
	a.MaxMW, a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = 0, 0, 0, 0
	a.MaxMcastGrp, a.MaxMcastQPAttach, a.MaxTotalMcastAtch = 0, 0, 0
	a.MaxQPRdAtom, a.MaxResRdAtom, a.MaxQPInitRdAtom, a.LocalCAAckDelay = 0, 0, 0, 0
}

// port makes the port one of a fabric without link layer. The longest message is one packet. The kernel's efa reports
// 100 Gb/s for each adapter, and programs derive thresholds from the rate. (efa_query_port)
func port(a *ib.PortAttr) {
	a.LinkLayer, a.LMC, a.CapFlags = ib.LinkUnspecified, 1, 0
	a.ActiveWidth, a.ActiveSpeed = uint8(uapi.PortWidth4X), uint16(uapi.PortSpeedEDR)
	a.MaxMsgSize = uint32(a.ActiveMTU.Bytes())
}

// respond writes the driver's part of a response.
func respond[R any](u *ib.Udata, r *R) { u.Respond(uapi.AppendTo(nil, r)) }

// request returns the driver's part of a request. A byte beyond it asks for a feature that does not exist here.
func request[R any](u *ib.Udata) (r R, err error) {
	r, excess := uapi.DecodePrefix[R](u.In)
	if excess {
		return r, fmt.Errorf("unknown fields of the driver's request are not zero: %w", syscall.EOPNOTSUPP)
	}
	return r, nil
}

// hasRoom returns EINVAL if the response has no room for an R.
func hasRoom[R any](u *ib.Udata) error {
	if len(u.Out) < uapi.SizeOf[R]() {
		return fmt.Errorf("response of %d bytes has no room for %d: %w", len(u.Out), uapi.SizeOf[R](), syscall.EINVAL)
	}
	return nil
}

// queryMR is the method by which programs learn the interconnects of a region. There are none.
// (UVERBS_METHOD_MR_QUERY of efa)
var queryMR = ib.DriverMethod{
	Name: "efa_mr_query",
	Method: verb.Method{Object: uapi.ObjectMR, Method: efa.IBMethodMRQuery, Attrs: []verb.Attr{
		{ID: efa.IBAttrQueryMRHandle, Kind: verb.Use, Object: uapi.ObjectMR, Mandatory: true},
		{ID: efa.IBAttrQueryMRRespICIDValidity, Kind: verb.Out, Min: 2, Max: 2, Mandatory: true},
		{ID: efa.IBAttrQueryMRRespRecvICID, Kind: verb.Out, Min: 2, Max: 2, Mandatory: true},
		{ID: efa.IBAttrQueryMRRespRDMAReadICID, Kind: verb.Out, Min: 2, Max: 2, Mandatory: true},
		{ID: efa.IBAttrQueryMRRespRDMARecvICID, Kind: verb.Out, Min: 2, Max: 2, Mandatory: true},
	}},
	Effect: verb.Reads,
	Run: func(c ib.MethodCall) error {
		for id := efa.IBAttrQueryMRRespICIDValidity; id <= efa.IBAttrQueryMRRespRDMARecvICID; id++ {
			c.Output(id, binary.NativeEndian.AppendUint16(nil, 0))
		}
		return nil
	},
}

// OpenProgram implements queue.Layout. (efa_alloc_ucontext)
func (Layout) OpenProgram(u *ib.Udata) (queue.Program, error) {
	if _, err := request[efa.AllocUcontextCmd](u); err != nil {
		return nil, err
	}
	respond(u, &efa.AllocUcontextResp{
		CmdsSuppUdataMask: efa.UserCmdsSuppUdataQueryDevice | efa.UserCmdsSuppUdataCreateAH,
		SubCQsPerCQ:       subCQs,
		InlineBufSize:     efa.IOTXDescInlineMaxSize, InlineBufSizeEx: efa.IOTXDescInlineMaxSize128,
		MaxLLQSize: maxWR * efa.TXWQESize,
	})
	p := &program{alloc: u.Context.AllocShared}
	var err error
	if p.dir, err = queuedir.New(queuedir.EFA, func(size int) (queuedir.Memory, error) {
		s, err := p.alloc(size)
		return queuedir.Memory(s), err
	}); err != nil {
		return nil, fmt.Errorf("directory of queue pairs: %w", err)
	}
	return p, nil
}

// program makes the queues of a user context.
type program struct {
	alloc func(size int) (ib.Shared, error)
	dir   *queuedir.Directory

	mu  sync.Mutex
	cqs uint16 // completion queues made so far
}

// CreateQP implements queue.Program. (efa_create_qp)
func (p *program) CreateQP(typ ib.QPType, c *ib.QPCap, hasRecv bool, u *ib.Udata) (queue.SendQueue, queue.RecvQueue,
	error,
) {
	fail := func(format string, args ...any) (queue.SendQueue, queue.RecvQueue, error) {
		return nil, nil, fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)
	}
	if err := hasRoom[efa.CreateQPResp](u); err != nil {
		return nil, nil, err
	}
	cmd, err := request[efa.CreateQP](u)
	if err != nil {
		return nil, nil, err
	}
	slot := uint32(efa.TXWQESize)
	if c.MaxSendWR > 0 && cmd.SQRingSize/c.MaxSendWR > efa.TXWQESize {
		slot = efa.TXWQE128Size
	}
	room := uint32(efa.IOTXDescInlineMaxSize)
	if slot == efa.TXWQE128Size {
		room = efa.IOTXDescInlineMaxSize128
	}
	descs := cmd.RQRingSize / ring.RXDescSize
	switch {
	case !hasRecv:
		return fail("queue pair with a shared receive queue")
	case typ == ib.QPTypeSRD && cmd.DriverQPType != efa.QPDriverTypeSRD:
		return nil, nil, fmt.Errorf("queue pair of the driver's type %d: %w", cmd.DriverQPType, syscall.EOPNOTSUPP)
	case cmd.CompMask != 0 || cmd.Flags&^efa.CreateQPWithUnsolicitedWriteRecv != 0 || cmd.Reserved98 != [5]uint8{},
		cmd.Flags != 0 && typ != ib.QPTypeSRD:
		return nil, nil, fmt.Errorf("queue pair with flags %#x: %w", cmd.Flags, syscall.EOPNOTSUPP)
	case c.MaxSendWR&(c.MaxSendWR-1) != 0 || cmd.SQRingSize != c.MaxSendWR*slot:
		return fail("send queue of %d requests in %d bytes", c.MaxSendWR, cmd.SQRingSize)
	case cmd.RQRingSize != descs*ring.RXDescSize || descs&(descs-1) != 0 || descs > maxDesc || descs < c.MaxRecvWR:
		return fail("receive queue of %d requests in %d bytes", c.MaxRecvWR, cmd.RQRingSize)
	case c.MaxInlineData > room:
		return fail("%d bytes inline in slots of %d", c.MaxInlineData, slot)
	}
	parts := ring.Region{SendSlots: c.MaxSendWR, SendWQE: slot, RecvSlots: descs}
	r := &region{}
	if r.shared, err = p.alloc(parts.Size()); err != nil {
		return nil, nil, fmt.Errorf("queues of %d and %d bytes: %w", cmd.SQRingSize, cmd.RQRingSize, err)
	}
	doorbells, key := r.part(parts.Doorbells())
	sq := &sendQueue{
		counts: counts{page: doorbells, at: ring.SendDoorbell, slots: c.MaxSendWR, copyAt: ring.SendTaken}, size: int(slot),
		room: room, sges: c.MaxSendSGE, parts: parts, region: r,
	}
	rq := &recvQueue{
		counts: counts{page: doorbells, at: ring.RecvDoorbell, slots: descs, copyAt: ring.RecvTaken}, sges: c.MaxRecvSGE,
		notifies: cmd.Flags&efa.CreateQPWithUnsolicitedWriteRecv != 0,
	}
	resp := efa.CreateQPResp{
		RQDBOffset: ring.RecvDoorbell, SQDBOffset: ring.SendDoorbell, RQMmapSize: uint64(parts.Recv()), RQDBMmapKey: key,
		SQDBMmapKey: key,
	}
	sq.mem, resp.LLQDescMmapKey = r.part(parts.Send())
	rq.mem, resp.RQMmapKey = r.part(parts.Recv())
	sq.record, _ = r.part(parts.Record())
	rq.record = sq.record
	respond(u, &resp)
	return sq, rq, nil
}

var errNoSRQ = fmt.Errorf("the adapter has no shared receive queues: %w", syscall.EOPNOTSUPP)

// CreateRecv implements queue.Program.
func (p *program) CreateRecv(int, uint32) (queue.RecvQueue, error) { return nil, errNoSRQ }

// RespondSRQ implements queue.Program.
func (p *program) RespondSRQ(queue.RecvQueue, uint32, *ib.Udata) {}

// HasRoomForSRQ implements queue.Program.
func (p *program) HasRoomForSRQ(*ib.Udata) error { return errNoSRQ }

// ResizedSRQ implements queue.Program.
func (p *program) ResizedSRQ(*ib.Udata) (addr uint64, err error) { return 0, errNoSRQ }

// LocationOf implements queue.Program.
func (p *program) LocationOf(queue.RecvQueue) []byte { return nil }

// CreateCQ implements queue.Program. (efa_create_user_cq)
func (p *program) CreateCQ(entries int, u *ib.Udata) (queue.CompletionQueue, error) {
	if err := hasRoom[efa.CreateCQResp](u); err != nil {
		return nil, err
	}
	cmd, err := request[efa.CreateCQ](u)
	if err != nil {
		return nil, err
	}
	size := int(cmd.CQEntrySize)
	switch {
	case cmd.CompMask != 0 || cmd.Flags&^efa.CreateCQWithCompletionChannel != 0 || cmd.Reserved58 != [5]uint8{}:
		return nil, fmt.Errorf("completion queue with flags %#x: %w", cmd.Flags, syscall.EOPNOTSUPP)
	case cmd.NumSubCQs != subCQs || size != entrySize && size != entrySizeEx:
		return nil, fmt.Errorf("completion queue of %d arrays with entries of %d bytes: %w", cmd.NumSubCQs, size,
			syscall.EINVAL)
	}
	q := &completionQueue{size: size, slots: uint32(slotsFor(entries)), region: &region{}}
	n, page := pages(int(q.slots)*size), os.Getpagesize()
	channel := cmd.Flags&efa.CreateCQWithCompletionChannel != 0
	if !channel {
		page = 0
	}
	if q.region.shared, err = p.alloc(n + page); err != nil {
		return nil, fmt.Errorf("completion queue of %d entries: %w", q.slots, err)
	}
	resp := efa.CreateCQResp{QMmapSize: uint64(n), CQIdx: p.numberCQ()}
	q.mem, resp.QMmapKey = q.region.part(n)
	if channel {
		resp.CompMask = efa.CreateCQRespDBOff
		q.doorbell, resp.DBMmapKey = q.region.part(page)
	}
	respond(u, &resp)
	return q, nil
}

// numberCQ returns a number for a completion queue, which programs use for messages only.
func (p *program) numberCQ() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cqs++
	return p.cqs
}

// RespondAH implements queue.Program.
func (p *program) RespondAH(num uint32, u *ib.Udata) {
	respond(u, &efa.CreateAHResp{EFAAddressHandle: uint16(num)})
}

// List implements queue.Program.
func (p *program) List(q *queue.Queues) (index int, err error) {
	if index, err = p.dir.Add(entry(q)); err != nil {
		return 0, fmt.Errorf("directory of queue pairs: %w", err)
	}
	return index, nil
}

// Update implements queue.Program.
func (p *program) Update(index int, q *queue.Queues) { p.dir.Set(index, entry(q)) }

// Unlist implements queue.Program.
func (p *program) Unlist(index int) { p.dir.Remove(index) }

// Close implements queue.Program.
func (p *program) Close() { p.dir.Free() }

// entry returns the present locations of the queues.
func entry(q *queue.Queues) queuedir.Entry {
	e := queuedir.Entry{QPN: q.QPN, SendCQ: locationOf(q.SendCQ), RecvCQ: locationOf(q.RecvCQ)}
	if sq, ok := q.Send.(*sendQueue); ok {
		e.SQ, e.RQ = sq.parts.Locations(sq.region.shared.Offset)
	}
	return e
}

// locationOf returns the location of a completion queue; zero for a queue of another layout or none.
func locationOf(q queue.CompletionQueue) (at queuedir.Location) {
	if q, ok := q.(*completionQueue); ok {
		at = queuedir.Location{Offset: q.region.shared.Offset, Mask: q.slots - 1, Shift: uint32(bits.Len(uint(q.size) - 1))}
	}
	return at
}
