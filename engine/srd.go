package engine

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"verbena/driver"
	"verbena/engine/transport"
	"verbena/ib"
	"verbena/internal/qpinfo"
	"verbena/roce"
	"verbena/uapi"
)

// srd is the protocol of a queue pair of SRD, in place of the Sender and the Receiver of the other services. Requests
// are independent: each has its own end, and an error costs only the request. A flow (transport.SRDSender) leads to one
// queue pair, and a source (transport.SRDReceiver) comes from one.
//
//	requester                                   responder
//	   |--- Open: PSN, requester's id ------------->|  a source
//	   |<-- Accept: responder's id -----------------|
//	   |--- SEND, WRITE, READ: PSN, both ids ------>|  executed in the order of arrival
//	   |<-- Acknowledge: oldest PSN, bitmap --------|
//	   |<-- READ response: PSN ---------------------|
//	   |<-- Refuse: PSN, status --------------------|  the request fails, or is sent again later
//	   |--- Skip: PSN ----------------------------->|  in place of a packet of a request that fails
//	   |<-- Refuse: PSN, success or skipped --------|  success: the packet came before
//
// A packet with a wrong identifier does nothing. Identifiers are the index of a flow or source and a random number. The
// thread that runs the queue pair owns all fields.
type srd struct {
	qp *QP

	requests []*srdRequest
	free     []uint32 // indices of unused requests
	number   uint32   // the number of the next request

	flows  []*srdFlow // by the index in their identifiers
	byPeer map[srdPeer]*srdFlow
	ready  []*srdFlow // flows with packets to send

	sources  srdSources
	due      []*srdSource // sources with a pending acknowledgement or Accept
	refusals []srdRefusal
	replies  []srdReply

	reading []srdRead   // packets in the open train without their data, which gather will read together
	storing []srdStored // packets with data in scatter

	random   transport.Random // chooses the paths
	more     bool             // the next run fetches further requests
	failures int              // number of calls of unreadable
	charged  int              // number of flows and sources that count against the program and its user
	counted  int              // number of requests that count against the user

	now      int64 // in ticks, when data were stored
	timers   srdTimers
	flowHand int // index at which the search for an idle flow begins
	reply    transport.Reply
	bitmap   [transport.SRDBitmapLen]byte
}

// The next constants bound the memory of a queue pair.
const (
	srdIndexBits = 12
	maxFlows     = 1 << srdIndexBits
	maxRefusals  = 256
	maxReplies   = 1024
	// fetchCost is the cost of a fetched request in pass.spent.
	fetchCost = 64
	// maxFetches is the number of requests that one run of the queue pair fetches. The next run fetches more.
	maxFetches = 128
	// freeRequests is the number of requests that do not count against the user.
	freeRequests = 16
	// fewFlows is the number of flows that keep their memory while they are idle.
	fewFlows = 64
	// probeInterval is the mean time in nanoseconds between two probes of all flows of a user to peers without receives
	// or answers, once the flows have reached their limits.
	probeInterval = 200e3
	// sourceIdle is the time in nanoseconds after which a source may be forgotten. No sender repeats a packet for so long.
	sourceIdle = 60e9
)

// srdRequest is a send work request that was fetched.
type srdRequest struct {
	sendWQE
	used   bool
	sges   []ib.SGE // copy of SGEs for a queue in this process, which reuses its slots in order
	inline []byte
}

// srdPeer is the destination of a flow.
type srdPeer struct {
	addr      netip.Addr
	qpn, qkey uint32
}

type srdFlow struct {
	srdPeer
	snd    transport.SRDSender
	path   *path
	id     uint32
	peerID uint32
	listed bool // in ready

	due int64 // when the timer fires, in ticks, at the latest the deadline of snd
	at  int   // index in srd.timers, plus 1; 0: no timer
}

// srdRefusal is a refusal to be sent.
type srdRefusal struct {
	path    *path
	qpn, id uint32
	psn     roce.PSN
	status  roce.SRDStatus
}

// srdRead is a packet of a flow, or a READ response to a source, without its data.
type srdRead struct {
	mark int // number of packets before it in the train
	psn  roce.PSN
	flow *srdFlow
	to   *srdSource
}

// srdStored is a READ response of a flow, or an RDMA WRITE of a source.
type srdStored struct {
	psn  roce.PSN
	flow *srdFlow
	from *srdSource
}

// srdReply is a READ response to be sent.
type srdReply struct {
	to     *srdSource
	psn    roce.PSN
	addr   uint64
	key    uint32
	length int
}

// newSRD returns the protocol of a queue pair of SRD, nil for another type.
func newSRD(qp *QP) *srd {
	if qp.wire != roce.SRD {
		return nil
	}
	return &srd{
		qp: qp, byPeer: map[srdPeer]*srdFlow{}, sources: newSRDSources(), random: transport.NewRandom(qp.dev.random()),
	}
}

// srdPaths is the number of UDP source ports of SRD. Routers choose the path of a packet by its ports. All queue pairs
// of all devices share the ports, since an address has a limited number of ports (package link).
const srdPaths = 8

// srdPort returns the source port of a path.
func srdPort(path uint32) uint16 { return roce.SourcePortUD(path % srdPaths) }

// sourcePort returns the source port, of a random path, for trains that are sent together. A retransmission can
// therefore avoid a path that loses packets.
func (s *srd) sourcePort() uint16 { return srdPort(s.random.Next()) }

// identifier returns a new identifier with an index.
func (s *srd) identifier(index int) uint32 {
	return s.qp.dev.random()<<srdIndexBits | uint32(index)
}

// inFlight returns the number of requests in flight.
func (s *srd) inFlight() int { return len(s.requests) - len(s.free) }

// window returns the sum of the windows of the flows with packets in flight, in bytes.
func (s *srd) window() (sum int) {
	for _, f := range s.flows {
		if out, n := f.snd.InFlight(); out > 0 {
			sum += n
		}
	}
	return sum
}

// status counts the flows and sources.
func (s *srd) status() *qpinfo.Flows {
	n := qpinfo.Flows{Out: len(s.flows), In: len(s.sources.byOrigin)}
	for _, f := range s.flows {
		if !f.snd.Idle() {
			n.Busy++
		}
		n.Waiting += f.snd.Waiting()
	}
	return &n
}

// run sends the packets that the flows allow.
func (s *srd) run(p *pass) {
	qp := s.qp
	s.more = true
	for range min(qp.sq.Capacity(), maxFetches) { // a program that goes on posting must not keep the thread
		if s.more = s.fetch(); !s.more {
			break
		}
		p.spent += fetchCost
	}
	now, n := int64(0), 0
	for n < len(s.ready) {
		if now == 0 {
			now = qp.dev.tick()
		}
		f := s.ready[n]
		room := s.send(p, f, now)
		s.timers.set(f)
		if !room {
			break
		}
		f.listed = false
		n++
	}
	s.ready = s.ready[:copy(s.ready, s.ready[n:])]
	s.read(p)
	p.build.finish(&qp.egress)
	qp.req.drained(s.inFlight())
}

// fetch takes the next work request out of the queue; false if there is none or it has to wait.
func (s *srd) fetch() bool {
	qp := s.qp
	if qp.state != ib.QPRTS || s.inFlight() >= qp.sq.Capacity() {
		return false
	}
	if len(s.free) == 0 {
		if _, some := qp.sq.Posted(); !some {
			return false
		}
		if !s.chargeRequest() {
			return false // the request stays in the queue until an earlier one has ended
		}
		s.requests = append(s.requests, new(srdRequest))
		s.free = append(s.free, uint32(len(s.requests)-1))
	}
	id := s.free[len(s.free)-1]
	w := s.requests[id]
	found, ok := qp.sq.Fetch(0, &w.Send)
	if !ok {
		qp.ringGone()
		qp.enterError(driver.StateCause{Reason: driver.ByQueueMemory})
	}
	if !ok || !found {
		return false
	}
	qp.req.check(&w.sendWQE)
	if qp.dev.stopAt() {
		return false
	}
	qp.sq.Take()
	w.number, w.used = s.number, true
	s.number++
	s.free = s.free[:len(s.free)-1]
	if w.status != uapi.WCSuccess {
		s.finish(id, w.status)
		return true
	}
	if qp.ctx == nil {
		w.sges, w.inline = append(w.sges[:0], w.SGEs...), append(w.inline[:0], w.Inline...)
		w.SGEs, w.Inline = w.sges, w.inline
	}
	f := s.flowTo(w.path, w.QPN, w.QKey)
	if f == nil { // there are more flows than requests
		s.finish(id, uapi.WCLocQPOpErr)
		return true
	}
	f.snd.Push(id, transport.SRDRequest{Kind: w.kind, Length: w.length, Imm: w.Opcode == uapi.WRRDMAWriteWithImm})
	s.list(f)
	return true
}

// flowTo returns the flow to a queue pair.
func (s *srd) flowTo(to *path, qpn, qkey uint32) *srdFlow {
	k := srdPeer{to.dst, qpn, qkey}
	f := s.byPeer[k]
	if f == nil {
		if f = s.newFlow(); f == nil {
			return nil
		}
		f.srdPeer = k
		s.byPeer[k] = f
	}
	f.path = to
	if f.snd.Idle() {
		f.snd.MTU, f.snd.RNRRetry = s.qp.mtu, s.qp.attr.RNRRetry
	}
	return f
}

// newFlow returns a new flow, or an idle one to be used again.
func (s *srd) newFlow() *srdFlow {
	if i := len(s.flows); i < maxFlows && s.charge() {
		f := &srdFlow{id: s.identifier(i)}
		f.snd.Init(s.qp.mtu, s.qp.dev.random())
		s.flows = append(s.flows, f)
		return f
	}
	for range s.flows {
		s.flowHand = (s.flowHand + 1) % len(s.flows)
		if f := s.flows[s.flowHand]; f.snd.Idle() && !f.listed {
			delete(s.byPeer, f.srdPeer)
			s.timers.stop(f)
			*f = srdFlow{id: s.identifier(s.flowHand)}
			f.snd.Init(s.qp.mtu, s.qp.dev.random())
			return f
		}
	}
	return nil
}

// charge counts a flow or a source against the program and its user. It returns false at a limit.
func (s *srd) charge() bool {
	qp := s.qp
	if qp.counts.add(countFlow) != nil {
		return false
	}
	if qp.dev.flows.add(qp.owner) != nil {
		qp.counts.remove(countFlow)
		return false
	}
	s.charged++
	return true
}

// chargeRequest counts one more request against the user. It returns false at the limit. The first requests of a queue
// pair do not count, so a user at the limit can still send on each queue pair.
func (s *srd) chargeRequest() bool {
	if len(s.requests) < freeRequests {
		return true
	}
	if s.qp.dev.requests.add(s.qp.owner) != nil {
		return false
	}
	s.counted++
	return true
}

// release forgets all flows, sources and requests. No request is in use.
func (s *srd) release() {
	qp := s.qp
	for ; s.charged > 0; s.charged-- {
		qp.counts.remove(countFlow)
		qp.dev.flows.remove(qp.owner)
	}
	for ; s.counted > 0; s.counted-- {
		qp.dev.requests.remove(qp.owner)
	}
	s.requests, s.free = nil, nil
	s.flows, s.timers, s.sources = nil, nil, newSRDSources()
	clear(s.byPeer)
}

// list notes that a flow may have packets to send.
func (s *srd) list(f *srdFlow) {
	if !f.listed {
		f.listed = true
		s.ready = append(s.ready, f)
	}
}

// send sends packets of a flow. It returns false if the egress queue is full.
func (s *srd) send(p *pass, f *srdFlow, now int64) (room bool) {
	qp := s.qp
	for {
		k, ok := f.snd.Next()
		if !ok {
			return true
		}
		if f.snd.NeedsID() {
			f.id, f.peerID = s.identifier(int(f.id&(maxFlows-1))), 0
		}
		op, n := roce.FlowOpen, 0
		var w *srdRequest
		switch k.Op {
		case transport.SRDOpSkip:
			op = roce.FlowSkip
		case transport.SRDOpData:
			w = s.requests[k.ID]
			op = w.packetOperation(k.Last)
			if n = k.Length; w.kind == transport.Read {
				n = 0
			}
		}
		whole := false // the data are in one element
		var at uint64
		failures := s.failures // k is out of date after another one, which ends requests
		if w != nil && n > 0 && w.Flags&uapi.SendInline == 0 {
			i, off := sgeAt(w.SGEs, k.Offset)
			e := &w.SGEs[i]
			at, whole = e.Addr+uint64(off), off+n <= int(e.Length)
			if !whole || len(s.reading) > 0 && !p.gather.continues(e.LKey, at, uint64(n)) {
				s.read(p)
			}
		}
		if s.failures != failures {
			continue
		}
		b, mark := s.add(p, &trainPool, f.path, f.qpn, op, k.PSN, n, f.peerID, f.id, at)
		if b.Data == nil {
			return false
		}
		if s.failures != failures {
			p.build.cut(mark)
			continue
		}
		b.DETH().Encode(f.qkey, qp.num)
		if k.Again {
			qp.req.retransmits++
			qp.dev.countMessage(cntRetransPkts, 1)
			qp.dev.countMessage(cntRetransBytes, n)
		}
		f.snd.Sent(&k, now)
		if w != nil && s.fill(w, &k, &b) {
			s.reading = append(s.reading, srdRead{mark: mark, psn: k.PSN, flow: f})
			if p.gather.fill(qp, w.SGEs, k.Offset, b.Payload) {
				if !whole {
					s.read(p)
				}
			} else {
				s.unreadable(p)
			}
		}
	}
}

// packetOperation returns the operation of a packet of the request.
func (w *srdRequest) packetOperation(last bool) roce.Operation {
	switch {
	case w.kind == transport.Read:
		return roce.RDMAReadRequest
	case w.kind == transport.Write && w.Opcode == uapi.WRRDMAWriteWithImm && last:
		return roce.RDMAWriteOnlyWithImmediate
	case w.kind == transport.Write:
		return roce.RDMAWriteOnly
	case w.Opcode == uapi.WRSendWithImm:
		return roce.SendOnlyWithImmediate
	}
	return roce.SendOnly
}

// continues reports whether n bytes from an address on follow the gathered data. Data beyond the region do not, so
// they cannot make the requests of the others fail.
func (g *gather) continues(key uint32, addr, n uint64) bool {
	return g.from != nil && g.from.key == key && g.addr+g.n == addr && len(g.vec) < maxScatter &&
		g.from.contains(g.addr, g.n+n)
}

// read reads the data of the packets in the open train that have none.
func (s *srd) read(p *pass) {
	if len(s.reading) > 0 && !p.gather.flush(s.qp) {
		s.unreadable(p)
	}
	s.reading = s.reading[:0]
}

// unreadable takes the packets without data out of the open train. Other packets behind the first of them count as
// lost.
func (s *srd) unreadable(p *pass) {
	s.failures++
	p.build.cut(s.reading[0].mark)
	p.gather.reset()
	for i := range s.reading {
		x := &s.reading[i]
		if x.to != nil {
			s.refuse(x.to.refusal(x.psn, roce.SRDBadAddress))
		} else {
			x.flow.snd.FailPacket(x.psn)
			s.list(x.flow)
		}
	}
	s.reading = s.reading[:0]
}

// fill writes the headers and the inline data of a packet of a request. It returns true if the packet has other data.
func (s *srd) fill(w *srdRequest, k *transport.SRDPacket, b *roce.Packet) bool {
	qp := s.qp
	if h := b.RETH(); h != nil {
		n := w.length
		if w.kind == transport.Read {
			n = k.Length
		}
		h.Encode(w.RemoteAddr+uint64(k.Offset), w.RKey, uint32(n))
	}
	if h := b.ImmDt(); h != nil {
		copy(h, w.Imm[:])
	}
	if w.kind != transport.Read && k.Last && w.Flags&uapi.SendSolicited != 0 {
		b.BTH().SetSolicitedEvent()
	}
	if t := qp.trace.requestLog(); t != nil && k.Offset == 0 && !k.Again {
		t.started(&w.sendWQE, &transport.Packet{PSN: k.PSN, First: true}, w.QPN)
	}
	if w.Flags&uapi.SendInline != 0 {
		copy(b.Payload, w.Inline[k.Offset:])
		return false
	}
	return len(b.Payload) > 0
}

// add adds a packet with n bytes of payload from an address to the open train, or to a new one. Without room in the
// egress queue the packet is empty. mark is the number of packets before it in the train.
func (s *srd) add(
	p *pass, pool *sync.Pool, to *path, qpn uint32, o roce.Operation, psn roce.PSN, n int, id, value uint32, at uint64,
) (b roce.Packet, mark int) {
	qp := s.qp
	op := roce.SRD.Opcode(o)
	size := op.PacketLen(n)
	if !p.build.fits(to, qpn, size) {
		s.read(p)
		p.build.finish(&qp.egress)
		if qp.egress.full() || qp.egress.blocked {
			return b, 0
		}
		p.build.start(pool, to, qpn, size)
	}
	mark = p.build.t.packets
	b = roce.NewPacket(p.build.add(size, op.HeaderLen(), at), &roce.BTHFields{
		Opcode: op, MigReq: true, PKey: roce.DefaultPKey, DestQPN: qpn, PSN: psn,
	}, n)
	b.DETH().Encode(0, qp.num)
	b.SRDETH().Encode(id, value)
	return b, mark
}

// receive handles a packet that check has accepted.
func (s *srd) receive(p *pass, k *packet) {
	if k.Flags&roce.FlagResponse != 0 {
		s.receiveResponse(p, k)
	} else {
		s.qp.req.waits.heard = true
		s.receiveRequest(p, k)
	}
}

// receiveResponse handles a packet of the responder of a flow.
func (s *srd) receiveResponse(p *pass, k *packet) {
	qp, h := s.qp, k.SRDETH()
	i := int(h.To() & (maxFlows - 1))
	if i >= len(s.flows) || s.flows[i].id != h.To() || s.flows[i].addr != k.src || s.flows[i].qpn != k.DETH().SrcQPN() {
		qp.dev.counters.add(cntDropResponse, 1)
		return
	}
	f := s.flows[i]
	switch k.Opcode.Operation() {
	case roce.FlowAccept:
		if f.snd.State() == transport.SRDOpening {
			f.peerID = h.Value()
			f.snd.Accepted()
		}
	case roce.Acknowledge:
		f.snd.Acked(k.psn, k.Payload, qp.dev.tick())
	case roce.FlowRefuse:
		status := roce.SRDForgotten
		if v := h.Value(); v < uint32(status) {
			status = roce.SRDStatus(v)
		}
		if status == roce.SRDNotReady {
			qp.dev.counters.add(cntRcvRNR, 1)
		}
		s.settle(p) // the same packet may have been answered before
		if status == roce.SRDNotReady {
			f.snd.MaxRNRWait = s.probeGap()
		}
		f.snd.Refused(k.psn, status, qp.dev.tick())
	case roce.RDMAReadResponseOnly:
		s.receiveData(p, f, k)
	}
	s.conclude(f)
}

// receiveData stores a READ response.
func (s *srd) receiveData(p *pass, f *srdFlow, k *packet) {
	at, ok := f.snd.Response(k.psn)
	if !ok || at.Length != len(k.Payload) {
		s.qp.dev.counters.add(cntDropResponse, 1)
		return
	}
	x := srdStored{psn: k.psn, flow: f}
	if at.Length == 0 { // the fate of other data does not matter
		s.now = s.qp.dev.tick()
		s.stored(&x, true)
		return
	}
	w := s.requests[at.ID]
	whole := false
	if i, off := sgeAt(w.SGEs, at.Offset); i < len(w.SGEs) {
		e := &w.SGEs[i]
		whole = off+at.Length <= int(e.Length)
		s.settleUnless(p, whole && p.scatter.joins(scatterRead, e.LKey, e.Addr+uint64(off), uint64(at.Length)))
	}
	if _, ok := f.snd.Response(k.psn); !ok { // another copy has just been stored, and the request may be complete
		s.qp.dev.counters.add(cntDropResponse, 1)
		return
	}
	if !p.store(s.qp, scatterRead, k.psn, w.SGEs, at.Offset, k.Payload) {
		s.stored(&x, false)
		return
	}
	s.storing = append(s.storing, x)
	if !whole {
		s.settle(p)
	}
}

// settleUnless stores the collected data, unless the next data join.
func (s *srd) settleUnless(p *pass, join bool) {
	if !join {
		s.settle(p)
	}
}

// settle writes the data that scatter has, and handles the packets that have brought them.
func (s *srd) settle(p *pass) {
	ok := p.settle(s.qp)
	if len(s.storing) > 0 {
		s.now = s.qp.dev.tick()
	}
	for i := range s.storing {
		s.stored(&s.storing[i], ok)
	}
	s.storing = s.storing[:0]
}

// stored handles a packet with data that are stored, or could not be.
func (s *srd) stored(x *srdStored, ok bool) {
	switch {
	case x.flow != nil && ok:
		x.flow.snd.Responded(x.psn, s.now)
		s.conclude(x.flow)
	case x.flow != nil:
		x.flow.snd.FailPacket(x.psn)
		s.list(x.flow)
	case ok:
		s.complete(x.from, x.psn)
	default:
		s.refuse(x.from.refusal(x.psn, roce.SRDBadAddress))
	}
}

// srdStatuses are the completions of the requests that fail.
var srdStatuses = [...]uapi.WCStatus{
	roce.SRDSuccess:      uapi.WCSuccess,
	roce.SRDBadAddress:   uapi.WCRemAccessErr,
	roce.SRDAborted:      uapi.WCRemAbortErr,
	roce.SRDBadDestQPN:   uapi.WCRemInvRDReqErr,
	roce.SRDNotReady:     uapi.WCRNRRetryExcErr,
	roce.SRDBadLength:    uapi.WCRemInvReqErr,
	roce.SRDUnknownPeer:  uapi.WCRemOpErr,
	roce.SRDBadStatus:    uapi.WCBadRespErr,
	roce.SRDSkipped:      uapi.WCBadRespErr,
	roce.SRDForgotten:    uapi.WCBadRespErr,
	roce.SRDUnresponsive: uapi.WCRespTimeoutErr,
	roce.SRDUnreachable:  uapi.WCRetryExcErr,
	roce.SRDBadLocal:     uapi.WCLocProtErr,
}

// conclude completes the requests of a flow that have ended, and lists the flow.
func (s *srd) conclude(f *srdFlow) {
	for _, r := range f.snd.Results() {
		switch r.Status {
		case roce.SRDNotReady:
			s.qp.dev.counters.add(cntRNRRetryExceeded, 1)
		case roce.SRDUnresponsive, roce.SRDUnreachable:
			s.qp.dev.counters.add(cntRetryExceeded, 1)
		}
		w := s.requests[r.ID]
		w.began, w.attempts = r.Began, r.Attempts
		s.finish(r.ID, srdStatuses[r.Status])
	}
	switch {
	case !f.snd.Idle():
		s.list(f)
	case len(s.flows) > fewFlows:
		f.snd.Trim()
	}
}

// finish completes a request.
func (s *srd) finish(id uint32, status uapi.WCStatus) {
	w := s.requests[id]
	w.used = false
	s.free = append(s.free, id)
	s.qp.req.complete(&w.sendWQE, status)
}

// unknown handles a train for a queue pair that does not exist.
func (s *srd) unknown(t *train) {
	for i := range t.spans {
		b := t.span(i)
		k, err := roce.ParsePacket(b)
		if err != nil || k.SRDETH() == nil || k.Flags&roce.FlagResponse != 0 {
			continue
		}
		id := k.SRDETH().Value()
		if at := int(id & (maxFlows - 1)); at < len(s.flows) && s.flows[at].id == id {
			s.flows[at].snd.Refused(k.BTH().PSN(), roce.SRDBadDestQPN, 0)
			s.conclude(s.flows[at])
		}
	}
}

// probeGap returns the time between two probes of each flow of the user, in nanoseconds, that probeInterval allows.
func (s *srd) probeGap() int64 { return int64(s.qp.dev.flows.count(s.qp.owner)) * probeInterval }

// expire does the work that is due.
func (s *srd) expire(now int64) {
	gap := int64(-1)
	for len(s.timers) > 0 && now >= s.timers[0].due {
		f := s.timers[0]
		s.timers.stop(f)
		if d := f.snd.Deadline(); d != 0 && now >= d {
			if gap < 0 {
				gap = s.probeGap()
			}
			f.snd.ProbeGap = gap
			if f.snd.Expire(now) {
				s.qp.dev.countMessage(cntRetransTimeouts, 1)
				if f.snd.State() == transport.SRDClosed {
					s.qp.dev.countMessage(cntUnresponsive, 1)
				}
			}
			s.conclude(f)
		}
		s.timers.set(f)
	}
}

// flush completes all requests in flight with a flush error, in the order of posting, and closes the flows.
func (s *srd) flush() {
	s.closeFlows()
	var list []uint32
	for id, w := range s.requests {
		if w.used {
			list = append(list, uint32(id))
		}
	}
	slices.SortFunc(list, func(a, b uint32) int {
		return cmp.Compare(int32(s.requests[a].number-s.requests[b].number), 0)
	})
	for _, id := range list {
		s.finish(id, uapi.WCWRFlushErr)
	}
}

// closeFlows ends all flows without completions.
func (s *srd) closeFlows() {
	for _, f := range s.flows {
		f.snd.Fail(roce.SRDAborted)
		f.snd.Results()
		f.listed, f.at = false, 0
	}
	clear(s.ready)
	s.ready = s.ready[:0]
	clear(s.timers)
	s.timers = s.timers[:0]
	clear(s.replies)
	s.replies = s.replies[:0]
}

// reset forgets everything.
func (s *srd) reset() {
	s.closeFlows()
	s.due, s.refusals, s.reading, s.storing = nil, nil, nil, nil
	s.release()
}
