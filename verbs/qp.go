package verbs

import (
	"fmt"
	"sync"

	"verbena/uapi"
	"verbena/verbs/provider"
)

// QPType is the transport service of a queue pair (enum ibv_qp_type).
type QPType = uapi.QPType

// The next constants are the transport services.
const (
	RC = uapi.QPTRC // reliable connection; the default of QPInit.Type
	UC = uapi.QPTUC // unreliable connection
	UD = uapi.QPTUD // unreliable datagram
	// SRD is the scalable reliable datagram of EFA. A queue pair sends to any number of peers, and each request names
	// its destination. Messages arrive once, in any order.
	SRD = uapi.QPTDriver
)

// QPState is a state of a queue pair (enum ibv_qp_state).
type QPState = uapi.QPState

// The next constants are the states of a queue pair.
const (
	Reset = uapi.QPSReset
	Init  = uapi.QPSInit
	RTR   = uapi.QPSRTR // ready to receive
	RTS   = uapi.QPSRTS // ready to send
	SQD   = uapi.QPSSQD // the send queue is drained
	SQE   = uapi.QPSSQE // the send queue is in error
	Error = uapi.QPSErr
)

// QPInit holds the parameters of a new queue pair. Only SendCQ must be set. (struct ibv_qp_init_attr)
type QPInit struct {
	Type   QPType // 0: RC
	SendCQ *CQ
	RecvCQ *CQ  // nil: SendCQ
	SRQ    *SRQ // source of the receives; nil means the queue pair's own queue
	// The next fields are capacities: work requests, and elements of each request. 0 means 64 work requests, and one
	// element.
	SendWRs, RecvWRs   int
	SendSGEs, RecvSGEs int
	// Inline is the maximum number of bytes of inline data. 0 means no inline data.
	Inline int
	// SignalAll makes every send work request generate a completion, even without Signaled.
	SignalAll bool
}

// hasNoPeer reports whether each request names its destination.
func (i *QPInit) hasNoPeer() bool { return i.Type == UD || i.Type == SRD }

const defaultMaxWR = 64

// QP is a queue pair. (struct ibv_qp)
type QP struct {
	pd     *PD
	init   QPInit
	handle uint32
	num    uint32
	id     uint64
	life   useCount

	//verbena:program those of one program who post sends
	send sync.Mutex
	recv sync.Mutex // held while receives are posted
	q    provider.QP
	dead bool            // set when the queue pair has been closed; written under both locks
	now  QPState         // state after the last Modify; written under both locks
	wr   provider.SendWR // scratch; under send
	in   provider.RecvWR // scratch; under recv
	sges [2][]provider.SGE

	kept struct { // chosen by Local
		sync.Mutex
		psn  uint32
		have bool
	}
}

// CreateQP creates a queue pair. CreateQP may sleep. (ibv_create_qp)
func (p *PD) CreateQP(init QPInit) (*QP, error) {
	fail := func(err error) (*QP, error) { return nil, wrapOpError("create a QP", p.d.name, err) }
	if init.SendCQ == nil || init.SRQ != nil && init.SRQ.pd.d != p.d || init.SendCQ.d != p.d || init.RecvCQ != nil &&
		init.RecvCQ.d != p.d {
		return fail(fmt.Errorf("the CQs and the SRQ must belong to the same device: %w", errInvalid))
	}
	if init.RecvCQ == nil {
		init.RecvCQ = init.SendCQ
	}
	if init.Type == 0 {
		init.Type = RC
	}
	for _, f := range []struct {
		v        *int
		standard int
	}{{&init.SendWRs, defaultMaxWR}, {&init.RecvWRs, defaultMaxWR}, {&init.SendSGEs, 1}, {&init.RecvSGEs, 1},
		{&init.Inline, 0}} {
		if *f.v < 0 || int64(*f.v) > 1<<31-1 {
			return fail(fmt.Errorf("size %d: %w", *f.v, errInvalid))
		}
		if *f.v == 0 {
			*f.v = f.standard
		}
	}
	users := []*useCount{&p.life, &init.SendCQ.life, &init.RecvCQ.life}
	req := uapi.CreateQP{
		PDHandle: p.handle, SendCQHandle: init.SendCQ.handle, RecvCQHandle: init.RecvCQ.handle,
		MaxSendWR: uint32(init.SendWRs),
		MaxRecvWR: uint32(init.RecvWRs), MaxSendSGE: uint32(init.SendSGEs), MaxRecvSGE: uint32(init.RecvSGEs),
		MaxInlineData: uint32(init.Inline), QPType: init.Type,
	}
	if init.SignalAll {
		req.SQSigAll = 1
	}
	if init.SRQ != nil {
		req.SRQHandle, req.IsSRQ, req.MaxRecvWR, req.MaxRecvSGE = init.SRQ.handle, 1, 0, 0
		users = append(users, &init.SRQ.life)
	}
	if err := addUses(users); err != nil {
		return fail(err)
	}
	qp := &QP{pd: p, init: init, id: p.d.nextObjectID()}
	req.UserHandle = qp.id
	q, r, err := p.d.p.CreateQP(p.d.cmd, req)
	if err != nil {
		dropUses(users)
		return fail(err)
	}
	qp.q, qp.handle, qp.num = q, r.QPHandle, r.QPN
	qp.init.SendWRs, qp.init.RecvWRs, qp.init.SendSGEs = int(r.MaxSendWR), int(r.MaxRecvWR), int(r.MaxSendSGE)
	qp.init.RecvSGEs, qp.init.Inline = int(r.MaxRecvSGE), int(r.MaxInlineData)
	if err := p.d.addObject(qp.id, qp); err != nil {
		qp.abandon()
		dropUses(users)
		return fail(err)
	}
	return qp, nil
}

func addUses(l []*useCount) error {
	for i, u := range l {
		if err := u.addUse(); err != nil {
			dropUses(l[:i])
			return err
		}
	}
	return nil
}

func dropUses(l []*useCount) {
	for _, u := range l {
		u.dropUse()
	}
}

// Device returns the device of the queue pair.
func (q *QP) Device() *Device { return q.pd.d }

// Num returns the number of the queue pair, 24 bits.
func (q *QP) Num() uint32 { return q.num }

// Init returns the parameters of the queue pair, with the actual capacities.
func (q *QP) Init() QPInit { return q.init }

// SendFlags are the flags of a send work request (enum ibv_send_flags).
type SendFlags = uapi.SendFlags

// The next constants are the flags of a send work request.
const (
	Fence     = uapi.SendFence     // waits for earlier READs and atomic operations
	Signaled  = uapi.SendSignaled  // generates a completion
	Solicited = uapi.SendSolicited // raises an event at the peer if its CQ is armed for solicited completions
)

// Opcode is the operation of a send work request (enum ibv_wr_opcode). The zero value is not Send.
type Opcode = uapi.WROpcode

// The next constants are the opcodes.
const (
	Write           = uapi.WRRDMAWrite
	WriteWithImm    = uapi.WRRDMAWriteWithImm
	Send            = uapi.WRSend
	SendWithImm     = uapi.WRSendWithImm
	SendInvalidate  = uapi.WRSendWithInv
	Read            = uapi.WRRDMARead
	CompareSwap     = uapi.WRAtomicCmpAndSwp
	FetchAdd        = uapi.WRAtomicFetchAndAdd
	LocalInvalidate = uapi.WRLocalInv
	BindWindow      = uapi.WRBindMW
	FlushMemory     = uapi.WRFlush
	AtomicWrite     = uapi.WRAtomicWrite
)

// SendWR is a send work request. (struct ibv_send_wr)
type SendWR struct {
	ID     uint64 // ID of the completion
	Opcode Opcode
	Flags  SendFlags
	// Local is the memory to send from, or to read into. List is used for several ranges. Inline is sent in place of
	// Local and List. PostSend copies Inline. The device owns the memory of Local and List until the completion.
	Local  SGE
	List   []SGE
	Inline []byte

	Remote Remote // for WRITE, READ and atomic operations

	Imm           uint32 // for opcodes with immediate data
	InvalidateKey uint32 // for SendInvalidate and LocalInvalidate
	// CompareAdd and Swap are the operands of atomic operations. Atomic operations operate on 8 bytes in the byte order
	// of their host, at an address that is a multiple of 8. The former value is stored in Local.
	CompareAdd, Swap uint64

	To     Datagram // for queue pairs of type UD and SRD
	Window Bind     // for BindWindow
	Flush  Flush    // for FlushMemory
}

// Remote is memory of a peer.
type Remote struct {
	Addr uint64
	RKey uint32
}

// Datagram is the destination of a request on a queue pair of type UD or SRD.
type Datagram struct {
	AH   *AH
	QPN  uint32
	QKey uint32
}

// Flush holds the parameters of a FLUSH: range and placement.
type Flush = provider.Flush

// RecvWR is a receive work request. (struct ibv_recv_wr)
type RecvWR struct {
	ID    uint64 // ID of the completion
	Local SGE    // the memory for a message
	List  []SGE  // for several ranges
}

// PostSend queues a work request and rings the doorbell. PostSend returns ErrQueueFull if the queue is full, and EINVAL
// for a request that the queue pair does not support. PostSend does not sleep, and does not retain wr. (ibv_post_send)
func (q *QP) PostSend(wr *SendWR) error {
	q.send.Lock()
	defer q.send.Unlock()
	if err := q.queueSend(wr); err != nil {
		return err
	}
	return q.ringDoorbell()
}

// PostSends queues work requests, rings the doorbell once, and returns the number of queued requests. If not all
// requests were queued, the error is the reason for the next one. PostSends does not sleep, and does not retain wrs.
func (q *QP) PostSends(wrs []SendWR) (n int, err error) {
	q.send.Lock()
	defer q.send.Unlock()
	for ; n < len(wrs); n++ {
		if err = q.queueSend(&wrs[n]); err != nil {
			break
		}
	}
	if n > 0 {
		if e := q.ringDoorbell(); e != nil && err == nil {
			err = e
		}
	}
	return n, err
}

//verbena:held send
func (q *QP) ringDoorbell() error {
	if err := q.q.Ring(); err != nil {
		return wrapOpError(fmt.Sprintf("post to QP %d", q.num), q.pd.d.name, err)
	}
	return nil
}

//verbena:held send
func (q *QP) queueSend(wr *SendWR) error {
	if q.dead {
		return ErrClosed
	}
	// The device would reject the request too. But at that time the request is already in the queue, and would be sent
	// later.
	if q.now < RTS {
		return q.wrapPostError(fmt.Errorf("cannot send in state %v: %w", q.now, errInvalid))
	}
	w := &q.wr
	*w = provider.SendWR{
		ID: wr.ID, Opcode: wr.Opcode, Flags: wr.Flags, SGE: gatherSGL(&q.sges[0], wr.Local, wr.List), Inline: wr.Inline,
		Imm: wr.Imm,
		Key: wr.InvalidateKey, RemoteAddr: wr.Remote.Addr, RKey: wr.Remote.RKey, CompareAdd: wr.CompareAdd, Swap: wr.Swap,
		Flush: wr.Flush,
	}
	if q.init.hasNoPeer() {
		if wr.To.AH == nil {
			return q.wrapPostError(fmt.Errorf("a datagram needs an address handle: %w", errInvalid))
		}
		h, err := wr.To.AH.deviceHandle(q.pd)
		if err != nil {
			return q.wrapPostError(err)
		}
		w.AH, w.RemoteQPN, w.RemoteQKey = h, wr.To.QPN, wr.To.QKey
	}
	if wr.Opcode == BindWindow {
		b, err := wr.Window.providerBind()
		if err != nil {
			return q.wrapPostError(err)
		}
		w.Bind = b
	}
	if err := q.q.Send(w); err != nil {
		if err == ErrQueueFull {
			return err
		}
		return q.wrapPostError(err)
	}
	return nil
}

func (q *QP) wrapPostError(err error) error {
	return wrapOpError(fmt.Sprintf("post to QP %d", q.num), q.pd.d.name, err)
}

// gatherSGL returns the list of elements in a buffer that is reused.
func gatherSGL(scratch *[]provider.SGE, one SGE, more []SGE) []provider.SGE {
	l := (*scratch)[:0]
	if one != (SGE{}) {
		l = append(l, provider.SGE(one))
	}
	for _, e := range more {
		l = append(l, provider.SGE(e))
	}
	*scratch = l
	return l
}

// PostRecv queues a receive work request. PostRecv returns ErrQueueFull if the queue is full, and EINVAL in state
// RESET. PostRecv does not sleep, and does not retain wr. (ibv_post_recv)
func (q *QP) PostRecv(wr *RecvWR) error {
	q.recv.Lock()
	defer q.recv.Unlock()
	if q.dead {
		return ErrClosed
	}
	if q.now == Reset { // the device would drop the receive without a completion
		return q.wrapPostError(fmt.Errorf("cannot receive in state %v: %w", q.now, errInvalid))
	}
	q.in = provider.RecvWR{ID: wr.ID, SGE: gatherSGL(&q.sges[1], wr.Local, wr.List)}
	if err := q.q.Recv(&q.in); err != nil {
		if err == ErrQueueFull {
			return err
		}
		return q.wrapPostError(err)
	}
	return nil
}

// Close destroys the queue pair and drops outstanding requests without completions. Close may be called again, and may
// sleep. (ibv_destroy_qp)
func (q *QP) Close() error {
	return wrapOpError(fmt.Sprintf("close QP %d", q.num), q.pd.d.name, q.life.closeOnce(q.pd.d, func() error {
		if err := ignoreRemovedError(q.pd.d.cmd.DestroyQP(q.handle)); err != nil {
			return err
		}
		q.pd.d.removeObject(q.id)
		q.abandon()
		dropUses([]*useCount{&q.pd.life, &q.init.SendCQ.life, &q.init.RecvCQ.life})
		if q.init.SRQ != nil {
			q.init.SRQ.life.dropUse()
		}
		return nil
	}))
}

func (q *QP) abandon() {
	q.send.Lock()
	defer q.send.Unlock()
	q.recv.Lock()
	defer q.recv.Unlock()
	if !q.dead {
		q.dead = true
		_ = q.q.Close()
	}
}

// Attach adds a UD queue pair to a multicast group. Attach may sleep. (ibv_attach_mcast)
func (q *QP) Attach(group GID) error {
	return wrapOpError(fmt.Sprintf("attach QP %d to %v", q.num, group), q.pd.d.name,
		q.life.callWhileOpen(func() error { return q.pd.d.cmd.Attach(q.handle, group) }))
}

// Detach removes a UD queue pair from a multicast group. Detach may sleep. (ibv_detach_mcast)
func (q *QP) Detach(group GID) error {
	return wrapOpError(fmt.Sprintf("detach QP %d from %v", q.num, group), q.pd.d.name,
		q.life.callWhileOpen(func() error { return q.pd.d.cmd.Detach(q.handle, group) }))
}

// SRQ is a shared receive queue. (struct ibv_srq)
type SRQ struct {
	pd     *PD
	handle uint32
	id     uint64
	life   useCount

	//verbena:program those of one program who use the queue
	mu   sync.Mutex
	q    provider.SRQ
	dead bool
	in   provider.RecvWR
	sges []provider.SGE
}

// CreateSRQ creates a shared receive queue. wrs is the capacity in work requests, and 0 means 64. sges is the capacity
// in elements per request, and 0 means 1. CreateSRQ may sleep. (ibv_create_srq)
func (p *PD) CreateSRQ(wrs, sges int) (*SRQ, error) {
	fail := func(err error) (*SRQ, error) { return nil, wrapOpError("create an SRQ", p.d.name, err) }
	if wrs < 0 || sges < 0 || int64(max(wrs, sges)) > 1<<31-1 {
		return fail(errInvalid)
	}
	if wrs == 0 {
		wrs = defaultMaxWR
	}
	if err := p.life.addUse(); err != nil {
		return fail(err)
	}
	s := &SRQ{pd: p, id: p.d.nextObjectID()}
	q, r, err := p.d.p.CreateSRQ(p.d.cmd, uapi.CreateSRQ{UserHandle: s.id, PDHandle: p.handle, MaxWR: uint32(wrs),
		MaxSGE: uint32(max(sges, 1))})
	if err != nil {
		p.life.dropUse()
		return fail(err)
	}
	s.q, s.handle = q, r.SRQHandle
	if err := p.d.addObject(s.id, s); err != nil {
		s.abandon()
		p.life.dropUse()
		return fail(err)
	}
	return s, nil
}

// PostRecv queues a receive work request. PostRecv returns ErrQueueFull if the queue is full. PostRecv does not sleep.
// (ibv_post_srq_recv)
func (s *SRQ) PostRecv(wr *RecvWR) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return ErrClosed
	}
	s.in = provider.RecvWR{ID: wr.ID, SGE: gatherSGL(&s.sges, wr.Local, wr.List)}
	if err := s.q.Recv(&s.in); err != nil {
		if err == ErrQueueFull {
			return err
		}
		return wrapOpError("post to an SRQ", s.pd.d.name, err)
	}
	return nil
}

// SetLimit arms EventSRQLimit. The event is raised when fewer work requests than limit remain. SetLimit may sleep.
// (ibv_modify_srq)
func (s *SRQ) SetLimit(limit int) error {
	if limit < 0 || int64(limit) > 1<<31-1 {
		return wrapOpError(fmt.Sprintf("set the limit of an SRQ to %d", limit), s.pd.d.name, errInvalid)
	}
	return s.modifySRQ("set the limit of an SRQ", uapi.ModifySRQ{AttrMask: uapi.SRQAttrLimit, SRQLimit: uint32(limit)})
}

// Resize changes the capacity to at least the given number of work requests. Resize may sleep. (ibv_modify_srq)
func (s *SRQ) Resize(wrs int) error {
	if wrs < 1 || int64(wrs) > 1<<31-1 {
		return wrapOpError(fmt.Sprintf("resize an SRQ to %d work requests", wrs), s.pd.d.name, errInvalid)
	}
	return s.modifySRQ("resize an SRQ", uapi.ModifySRQ{AttrMask: uapi.SRQAttrMaxWR, MaxWR: uint32(wrs)})
}

func (s *SRQ) modifySRQ(what string, req uapi.ModifySRQ) error {
	return wrapOpError(what, s.pd.d.name, s.life.callWhileOpen(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.dead {
			return ErrClosed
		}
		req.SRQHandle = s.handle
		return s.q.Modify(req)
	}))
}

// SRQAttr is the state of a shared receive queue. (struct ibv_srq_attr)
type SRQAttr struct{ MaxWR, MaxSGE, Limit int }

// Query returns the state of the queue. Query may sleep. (ibv_query_srq)
func (s *SRQ) Query() (SRQAttr, error) {
	var r uapi.QuerySRQResp
	err := s.life.callWhileOpen(func() (err error) {
		r, err = s.pd.d.cmd.QuerySRQ(s.handle)
		return err
	})
	return SRQAttr{int(r.MaxWR), int(r.MaxSGE), int(r.SRQLimit)}, wrapOpError("query an SRQ", s.pd.d.name, err)
}

// Close destroys the queue. Close returns EBUSY while queue pairs use the queue. Close may sleep. (ibv_destroy_srq)
func (s *SRQ) Close() error {
	return wrapOpError("close an SRQ", s.pd.d.name, s.life.closeOnce(s.pd.d, func() error {
		if err := ignoreRemovedError(s.pd.d.cmd.DestroySRQ(s.handle)); err != nil {
			return err
		}
		s.pd.d.removeObject(s.id)
		s.abandon()
		s.pd.life.dropUse()
		return nil
	}))
}

func (s *SRQ) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead {
		s.dead = true
		_ = s.q.Close()
	}
}

// AHAttr is the address of a peer, with the local source. (struct ibv_ah_attr)
type AHAttr struct {
	GID          GID // GID of the peer
	SGIDIndex    int // local index in the GID table; unlike in a Path, 0 is the first entry: see Device.DefaultGID
	Port         int // 0: 1
	HopLimit     int // 0: 64
	TrafficClass uint8
	FlowLabel    uint32
	SL           uint8
}

// checkRange returns an error for a number that exceeds its field.
func (a *AHAttr) checkRange() error {
	for _, f := range []struct {
		name string
		v    int
	}{{"GID index", a.SGIDIndex}, {"port", a.Port}, {"hop limit", a.HopLimit}} {
		if f.v < 0 || f.v > 255 {
			return fmt.Errorf("%s %d is not within 0 to 255: %w", f.name, f.v, errInvalid)
		}
	}
	return nil
}

func (a *AHAttr) portNumber() uint8 { return uint8(max(a.Port, 1)) }

func (a *AHAttr) hopLimit() uint8 {
	if a.HopLimit == 0 {
		return 64
	}
	return uint8(a.HopLimit)
}

// AH is an address handle for datagrams. (struct ibv_ah)
type AH struct {
	pd   *PD
	h    provider.AH
	life useCount
}

// CreateAH creates an address handle. CreateAH may sleep. (ibv_create_ah)
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	fail := func(err error) (*AH, error) {
		return nil, wrapOpError(fmt.Sprintf("create an address handle for %v", a.GID), p.d.name, err)
	}
	if err := a.checkRange(); err != nil {
		return fail(err)
	}
	if err := p.life.addUse(); err != nil {
		return fail(err)
	}
	h, err := p.d.p.CreateAH(p.d.cmd, p.handle, uapi.AHAttr{
		GRH: uapi.GlobalRoute{DGID: a.GID, FlowLabel: a.FlowLabel, SGIDIndex: uint8(a.SGIDIndex), HopLimit: a.hopLimit(),
			TrafficClass: a.TrafficClass},
		SL: a.SL, IsGlobal: 1, PortNum: a.portNumber(),
	})
	if err != nil {
		p.life.dropUse()
		return fail(err)
	}
	return &AH{pd: p, h: h}, nil
}

// AddressOf creates an address handle for replies to a datagram. wc is the completion of the datagram, with WithGRH.
// header is the first 40 bytes of the receive memory. AddressOf may sleep. (ibv_create_ah_from_wc)
func (p *PD) AddressOf(wc *WC, header []byte, sgidIndex int) (*AH, error) {
	if wc.Flags&WithGRH == 0 || len(header) < 40 {
		return nil, wrapOpError("create an address handle of a datagram", p.d.name,
			fmt.Errorf("the completion has no global route header: %w", errInvalid))
	}
	var g GID
	if header[0]>>4 == 6 {
		copy(g[:], header[8:24])
	} else { // an IPv4 header is at the end of the 40 bytes
		g[10], g[11] = 0xff, 0xff
		copy(g[12:], header[20+12:20+16])
	}
	return p.CreateAH(AHAttr{GID: g, SGIDIndex: sgidIndex})
}

func (a *AH) deviceHandle(p *PD) (provider.AH, error) {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	if a.life.closed {
		return provider.AH{}, ErrClosed
	}
	if a.pd != p {
		return provider.AH{}, fmt.Errorf("the address handle belongs to another PD: %w", errInvalid)
	}
	return a.h, nil
}

// Close destroys the address handle. Datagrams that use the address handle must have completed. Close may sleep.
// (ibv_destroy_ah)
func (a *AH) Close() error {
	return wrapOpError("close an address handle", a.pd.d.name, a.life.closeOnce(a.pd.d, func() error {
		if err := ignoreRemovedError(a.pd.d.cmd.DestroyAH(a.h.Handle)); err != nil {
			return err
		}
		a.pd.life.dropUse()
		return nil
	}))
}

// MW is a memory window of type 2. A window gives access to a part of registered memory. Work requests bind and
// invalidate the window. (struct ibv_mw)
type MW struct {
	pd     *PD
	handle uint32
	life   useCount

	mu   sync.Mutex
	rkey uint32
}

// AllocMW allocates a memory window. AllocMW may sleep. (ibv_alloc_mw)
func (p *PD) AllocMW() (*MW, error) {
	if err := p.life.addUse(); err != nil {
		return nil, wrapOpError("allocate a memory window", p.d.name, err)
	}
	r, err := p.d.cmd.AllocMW(p.handle, uapi.MWType2)
	if err != nil {
		p.life.dropUse()
		return nil, wrapOpError("allocate a memory window", p.d.name, err)
	}
	return &MW{pd: p, handle: r.MWHandle, rkey: r.RKey}, nil
}

// Bind holds the parameters of a bind of a memory window. (struct ibv_bind_mw)
type Bind struct {
	MW     *MW
	MR     *MR // registered with BindWindows
	Offset int // offset in bytes of the part in the region
	Length int
	Access Access // remote rights
	// NewKey is the result of the window's NextKey.
	NewKey uint32
}

func (b *Bind) providerBind() (provider.Bind, error) {
	if b.MW == nil || b.MR == nil {
		return provider.Bind{}, fmt.Errorf("a bind needs a window and a region: %w", errInvalid)
	}
	if b.Offset < 0 || b.Length < 0 || b.Offset > b.MR.Len() || b.Length > b.MR.Len()-b.Offset {
		return provider.Bind{}, fmt.Errorf("%d bytes from offset %d exceed the region of %d bytes: %w",
			b.Length, b.Offset, b.MR.Len(),
			errInvalid)
	}
	return provider.Bind{
		WindowKey: b.MW.RKey(), NewKey: b.NewKey, LKey: b.MR.lkey, Addr: b.MR.iova + uint64(b.Offset),
		Length: uint64(b.Length), Access: b.Access,
	}, nil
}

// RKey returns the key of the last bind.
func (w *MW) RKey() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rkey
}

// NextKey returns the key for the next bind. The low eight bits differ from those of the last key. (ibv_inc_rkey)
func (w *MW) NextKey() uint32 {
	k := w.RKey()
	return k&^0xff | (k+1)&0xff
}

// Bound records that a bind with the key has completed.
func (w *MW) Bound(key uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rkey = key
}

// Close frees the window. Close may sleep. (ibv_dealloc_mw)
func (w *MW) Close() error {
	return wrapOpError("close a memory window", w.pd.d.name, w.life.closeOnce(w.pd.d, func() error {
		if err := ignoreRemovedError(w.pd.d.cmd.DeallocMW(w.handle)); err != nil {
			return err
		}
		w.pd.life.dropUse()
		return nil
	}))
}
