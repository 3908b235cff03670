package layout

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"

	"verbena/engine/queue"
	"verbena/ib"
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

	rxDescSize = 16

	// sendDoorbell and recvDoorbell are offsets in the page of a queue pair, in different cache lines.
	sendDoorbell, recvDoorbell = 0, 64
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
	slots := slotsFor(int(wr))
	page := os.Getpagesize()
	work = uint64(page + pages(slots*efa.TXWQE128Size) + pages(slotsFor(int(wr)*maxSGE)*rxDescSize))
	return 0, work, uint64(page + pages(slotsFor(cqe)*entrySizeEx))
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
					efa.QueryDeviceCapsRDMARead | efa.QueryDeviceCapsRDMAWrite,
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

// port makes the port one of a fabric without link layer. The longest message is one packet. (efa_query_port)
func port(a *ib.PortAttr) {
	a.LinkLayer, a.LMC, a.CapFlags = ib.LinkUnspecified, 1, 0
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
	return &program{alloc: u.Context.AllocShared}, nil
}

// program makes the queues of a user context.
type program struct {
	alloc func(size int) (ib.Shared, error)

	mu   sync.Mutex
	cqs  uint16 // completion queues made so far
	free []int  // indices of queue pairs
	next int
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
	descs := cmd.RQRingSize / rxDescSize
	switch {
	case !hasRecv:
		return fail("queue pair with a shared receive queue")
	case typ == ib.QPTypeSRD && cmd.DriverQPType != efa.QPDriverTypeSRD:
		return nil, nil, fmt.Errorf("queue pair of the driver's type %d: %w", cmd.DriverQPType, syscall.EOPNOTSUPP)
	case cmd.CompMask != 0 || cmd.Flags != 0 || cmd.Reserved98 != [5]uint8{}:
		return nil, nil, fmt.Errorf("queue pair with flags %#x: %w", cmd.Flags, syscall.EOPNOTSUPP)
	case c.MaxSendWR&(c.MaxSendWR-1) != 0 || cmd.SQRingSize != c.MaxSendWR*slot:
		return fail("send queue of %d requests in %d bytes", c.MaxSendWR, cmd.SQRingSize)
	case cmd.RQRingSize != descs*rxDescSize || descs&(descs-1) != 0 || descs > maxDesc || descs < c.MaxRecvWR:
		return fail("receive queue of %d requests in %d bytes", c.MaxRecvWR, cmd.RQRingSize)
	case c.MaxInlineData > room:
		return fail("%d bytes inline in slots of %d", c.MaxInlineData, slot)
	}
	page, sendBytes, recvBytes := os.Getpagesize(), pages(int(cmd.SQRingSize)), pages(int(cmd.RQRingSize))
	r := &region{}
	if r.shared, err = p.alloc(page + sendBytes + recvBytes); err != nil {
		return nil, nil, fmt.Errorf("queues of %d and %d bytes: %w", cmd.SQRingSize, cmd.RQRingSize, err)
	}
	doorbells, key := r.part(page)
	sq := &sendQueue{
		counts: counts{page: doorbells, at: sendDoorbell, slots: c.MaxSendWR}, size: int(slot), room: room,
		sges: c.MaxSendSGE, region: r,
	}
	rq := &recvQueue{counts: counts{page: doorbells, at: recvDoorbell, slots: descs}, sges: c.MaxRecvSGE}
	resp := efa.CreateQPResp{
		RQDBOffset: recvDoorbell, SQDBOffset: sendDoorbell, RQMmapSize: uint64(recvBytes), RQDBMmapKey: key,
		SQDBMmapKey: key,
	}
	sq.mem, resp.LLQDescMmapKey = r.part(sendBytes)
	rq.mem, resp.RQMmapKey = r.part(recvBytes)
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

// List implements queue.Program. There is no list in the memory of the program: requests do not complete after the
// service's death.
func (p *program) List(*queue.Queues) (index int, err error) {
	if n := len(p.free); n > 0 {
		index, p.free = p.free[n-1], p.free[:n-1]
		return index, nil
	}
	p.next++
	return p.next - 1, nil
}

// Update implements queue.Program.
func (p *program) Update(int, *queue.Queues) {}

// Unlist implements queue.Program.
func (p *program) Unlist(index int) { p.free = append(p.free, index) }

// Close implements queue.Program.
func (p *program) Close() {}
