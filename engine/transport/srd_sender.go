package transport

import (
	"time"

	"verbena/roce"
)

// SRDState is the state of the sending end of a flow.
//
//	closed ---Push---> opening ---Accepted---> established
//	 ^  ^                | ^                     |  |
//	 |  +-no answer------+ +---forgotten---------+  |   (the requests stay, and are sent again)
//	 +---aborted, no such QP, no answer-------------+   (all requests end)
type SRDState uint8

const (
	SRDClosed SRDState = iota
	SRDOpening
	SRDEstablished
)

const (
	// srdActive is the number of requests from which the next packet is chosen.
	srdActive = 8
	// srdGap is the number of later packets, the last of which is acknowledged, after which a packet counts as lost.
	srdGap = 32
	// srdTimeouts is the number of timeouts in a row, without an acknowledgement in between, after which the peer counts
	// as dead: 4 s.
	srdTimeouts = 14
	// srdEager is the number of timeouts in a row after which SRDSender.ProbeGap applies.
	srdEager = 3
	// srdMaxGap limits SRDSender.ProbeGap: a peer gets at least two probes in the 4 s until it counts as dead.
	srdMaxGap     = int64(2000 * time.Millisecond)
	srdMinTimeout = int64(MinTimeout)
	srdMaxTimeout = int64(512 * time.Millisecond)
	// srdRNRWait is the time before the first probe after a refusal with SRDNotReady. It doubles with each refused
	// probe, up to MaxRNRWait. With a limit of retries, it doubles at most as often as a single message is sent again.
	srdRNRWait = srdMinTimeout / 20 // 200 µs
	// MaxRNRWait is the longest time between two probes of a flow whose peer has no receive: 102.4 ms.
	MaxRNRWait      = srdRNRWait << srdRNRDoublings
	srdRNRDoublings = 9
)

// SRDRequest is a send work request of SRD.
type SRDRequest struct {
	Kind   Kind // Send, Write or Read
	Length int  // bytes of the message
	Imm    bool // RDMA WRITE with immediate data
}

// SRDResult is the end of a request.
type SRDResult struct {
	ID       uint32
	Status   roce.SRDStatus
	Began    int64 // when the first packet was sent; 0: never
	Attempts int   // transmissions of the packet that failed
}

// SRDOp is the kind of a packet that a sender sends.
type SRDOp uint8

const (
	SRDOpOpen SRDOp = iota
	SRDOpSkip       // replaces a packet of a request that fails
	SRDOpData
)

// SRDPacket is a packet to be sent. The fields after PSN are of SRDOpData.
type SRDPacket struct {
	Op     SRDOp
	PSN    roce.PSN
	ID     uint32 // the request
	Offset int    // bytes of the message before it
	Length int    // bytes
	Last   bool   // the last packet of the message
	Again  bool   // a retransmission

	choice int32 // index in order of its message
}

// srdSlotState is the state of a PSN in the window.
//
//	        Sent              Acked, Responded
//	free ---------> in flight ----------------> acked ---> free (when the window advances)
//	                 ^  |  |                      ^
//	            Sent |  |  +--- not ready -> waiting
//	                 |  | lost                   | (probe, or the peer has receives)
//	                 due <-----------------------+
type srdSlotState uint8

const (
	srdFree srdSlotState = iota
	srdInFlight
	srdWaiting
	srdDue
	srdAcked
)

type srdSlot struct {
	at    int64 // time of the transmission
	msg   int32 // index of the message; noMessage: skip
	index int32 // index of the packet in the message
	state srdSlotState
	fast  bool // retransmitted before a timeout
	again bool // retransmitted
}

const noMessage = -1

// srdMessage is a request that has not ended.
type srdMessage struct {
	SRDRequest
	id      uint32
	packets int32
	began   int64 // when the first packet was sent
	next    int32 // the next packet that was never sent
	open    int32 // packets that were sent and are not acknowledged
	rnr     uint8 // probes that are left after a refusal with roce.SRDNotReady

	refusals int  // with roce.SRDNotReady, of its packets, or of a probe while they waited
	held     bool // the last packet waits for the others
	used     bool
	// status is the reason for which the request fails. The request ends when the peer has answered a Skip for each
	// packet without an acknowledgement.
	status roce.SRDStatus
	lacks  bool // a packet was not executed
}

// SRDSender is the sending end of a flow. Its owner opens it, sends its packets, passes the answers, and takes the
// results. A method does not allocate once the slices have grown.
//
// A flow without progress sends probes only:
//   - After a timeout it sends its oldest packet again, and nothing else until the peer answers. A flow to a peer that
//     does not answer therefore sends, in a time t, at most the packets of its window and 8 + t/512 ms probes.
//   - Packets that the peer has refused with SRDNotReady wait. The oldest is the probe. A flow to a peer without
//     receives sends, in a time t, each packet once and 10 + t/MaxRNRWait probes. When the peer executes a message
//     that takes a receive, two waiting packets follow.
type SRDSender struct {
	MTU        int
	RNRRetry   uint8 // RNRForever: no limit
	MaxRNRWait int64 // the limit of the time between probes in place of the constant MaxRNRWait, if longer

	// ProbeGap is the shortest time between two probes, or two Opens, to a peer that does not answer. It applies after
	// srdEager timeouts, or at once if the peer counted as dead before. It is 2 s at most. Probes that come too early are
	// skipped. Timeouts stay the same.
	ProbeGap int64

	state    SRDState
	opened   int64 // when Open was sent or skipped; 0: it is due
	since    int64 // when the first Open of this attempt was sent
	heard    bool  // the peer has ever answered
	dead     bool  // the peer counted as dead, and has not answered since
	sent     int64 // when a probe or an Open was sent
	skipped  int   // probes and Opens that ProbeGap has prevented, of those after the timeouts in a row
	silent   int   // timeouts in a row; an established flow sends probes unless it is 0
	repeated int64 // when the probe after the last timeout was sent; 0: it is due
	timeout  int64 // ns
	rtt      int64 // smoothed round-trip time, and its deviation (RFC 6298)
	rttvar   int64
	progress bool // since the last timeout
	deadline int64

	aimd  AIMD
	out   int // bytes in flight
	una   roce.PSN
	next  roce.PSN
	slots []srdSlot // by PSN, a power of two
	due   int       // slots in that state

	waiting int      // slots in that state
	retryAt int64    // when the oldest of them becomes the probe; 0: none waits, or the probe is pending
	pending bool     // the probe is due or in flight
	probe   roce.PSN // the PSN of the packet that looks for a receive
	refused uint8    // refused probes in a row

	msgs  []srdMessage
	free  []int32
	order []int32 // messages with packets that were never sent
	head  int     // order[:head] is not used

	random Random
	done   []SRDResult
}

// Init prepares a closed flow. seed determines the order in which packets of different messages are sent.
func (s *SRDSender) Init(mtu int, seed uint32) {
	s.MTU, s.random = mtu, NewRandom(seed)
	s.timeout = srdMinTimeout
	s.aimd.Reset()
}

// State returns the state.
func (s *SRDSender) State() SRDState { return s.state }

// Len returns the number of requests that have not ended.
func (s *SRDSender) Len() int { return len(s.msgs) - len(s.free) }

// Idle reports whether nothing is outstanding, so that the flow may be given up.
func (s *SRDSender) Idle() bool { return s.Len() == 0 && s.una == s.next }

// Trim frees the memory of an idle flow.
func (s *SRDSender) Trim() {
	s.slots, s.msgs, s.free, s.order, s.head, s.done = nil, nil, nil, nil, 0, nil
}

// InFlight returns the bytes in flight, and the size of the window.
func (s *SRDSender) InFlight() (bytes, window int) { return s.out, s.aimd.Window() }

// Waiting returns the number of packets that wait for a receive of the peer.
func (s *SRDSender) Waiting() int { return s.waiting }

// PSNs returns the oldest PSN without an acknowledgement, and the next one.
func (s *SRDSender) PSNs() (una, next roce.PSN) { return s.una, s.next }

// Deadline returns the time at which Expire has work to do; 0: never.
func (s *SRDSender) Deadline() int64 { return s.deadline }

// Results returns the requests that have ended since the last call, valid until the next call of a method.
func (s *SRDSender) Results() []SRDResult {
	r := s.done
	s.done = s.done[:0]
	return r
}

// Push adds a request. Results and packets refer to it by id.
func (s *SRDSender) Push(id uint32, q SRDRequest) {
	m := srdMessage{SRDRequest: q, id: id, packets: 1, rnr: s.RNRRetry, used: true}
	if q.Length > s.MTU {
		m.packets = int32((q.Length + s.MTU - 1) / s.MTU)
	}
	var i int32
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
		s.msgs[i] = m
	} else {
		i = int32(len(s.msgs))
		s.msgs = append(s.msgs, m)
	}
	s.list(i)
	if s.state == SRDClosed {
		s.open()
	}
}

// list makes the packets of a message eligible.
func (s *SRDSender) list(i int32) {
	if s.head > 64 && s.head*2 > len(s.order) {
		s.order = append(s.order[:0], s.order[s.head:]...)
		s.head = 0
	}
	s.order = append(s.order, i)
}

// unlist removes the message at an index of order.
func (s *SRDSender) unlist(at int32) {
	s.order[at] = s.order[s.head]
	if s.head++; s.head == len(s.order) {
		s.order, s.head = s.order[:0], 0
	}
}

func (s *SRDSender) open() {
	s.state, s.opened, s.silent, s.skipped, s.progress = SRDOpening, 0, 0, 0, false
	s.timeout, s.deadline = s.firstTimeout(), 0
}

// firstTimeout returns the timeout of a packet after an answer of the peer.
func (s *SRDSender) firstTimeout() int64 {
	return min(max(s.rtt+4*s.rttvar, srdMinTimeout), srdMaxTimeout)
}

// measure notes the time between a packet and its acknowledgement.
func (s *SRDSender) measure(d int64) {
	if s.rtt == 0 {
		s.rtt, s.rttvar = d, d/2
		return
	}
	s.rttvar += (max(d-s.rtt, s.rtt-d) - s.rttvar) / 4
	s.rtt += (d - s.rtt) / 8
}

// answered notes that the peer has answered.
func (s *SRDSender) answered(now int64) {
	s.progress, s.dead, s.silent, s.skipped, s.repeated, s.timeout = true, false, 0, 0, 0, s.firstTimeout()
	if s.deadline != 0 {
		s.arm(now + s.timeout)
	}
}

// NeedsID reports whether the flow needs a new identifier, because an Open is due.
func (s *SRDSender) NeedsID() bool { return s.state == SRDOpening && s.opened == 0 && s.silent == 0 }

func (s *SRDSender) slot(psn roce.PSN) *srdSlot { return &s.slots[uint32(psn)&uint32(len(s.slots)-1)] }

// window returns the number of PSNs between una and next.
func (s *SRDSender) window() int { return s.next.Diff(s.una) }

// cost returns the bytes that a packet counts for in the window.
func (s *SRDSender) cost(k *srdSlot) int {
	if s.skips(k) {
		return PacketCost
	}
	m := &s.msgs[k.msg]
	return PacketCost + s.length(m, k.index)
}

// skips reports whether a Skip replaces the packet of a slot.
func (s *SRDSender) skips(k *srdSlot) bool {
	return k.msg == noMessage || s.msgs[k.msg].status != roce.SRDSuccess
}

// length returns the bytes of a packet of a message.
func (s *SRDSender) length(m *srdMessage, index int32) int {
	return min(s.MTU, m.Length-int(index)*s.MTU)
}

// Next returns the packet that may be sent now; false if there is none. It changes nothing but the choice of the next
// message: the owner calls Sent when it sends the packet.
func (s *SRDSender) Next() (p SRDPacket, ok bool) {
	switch s.state {
	case SRDClosed:
		return p, false
	case SRDOpening:
		return SRDPacket{Op: SRDOpOpen, PSN: s.una}, s.opened == 0
	}
	if s.silent > 0 && s.repeated != 0 {
		return p, false
	}
	if s.due > 0 {
		for psn := s.una; psn != s.next; psn = psn.Next() {
			if k := s.slot(psn); k.state == srdDue {
				s.describe(&p, psn, k)
				p.Again = true
				return p, true
			}
		}
	}
	n := min(len(s.order)-s.head, srdActive)
	if n == 0 || s.silent > 0 || s.window() >= SRDWindow {
		return p, false
	}
	at := s.head
	if n > 1 {
		at += int(s.random.Next() % uint32(n))
	}
	k := srdSlot{msg: s.order[at], index: s.msgs[s.order[at]].next}
	if s.out > 0 && s.out+s.cost(&k) > s.aimd.Window() {
		return p, false
	}
	s.describe(&p, s.next, &k)
	p.choice = int32(at)
	return p, true
}

func (s *SRDSender) describe(p *SRDPacket, psn roce.PSN, k *srdSlot) {
	p.PSN, p.Op = psn, SRDOpSkip
	if s.skips(k) {
		return
	}
	m := &s.msgs[k.msg]
	p.Op, p.ID, p.Offset, p.Length = SRDOpData, m.id, int(k.index)*s.MTU, s.length(m, k.index)
	p.Last = k.index == m.packets-1
}

// Sent notes that the packet that Next has returned is going to be sent.
func (s *SRDSender) Sent(p *SRDPacket, now int64) {
	switch {
	case p.Op == SRDOpOpen:
		if s.opened = now; s.silent == 0 {
			s.since = now
		}
		s.sent = now
		s.arm(now + s.timeout)
		return
	case p.Again:
		k := s.slot(p.PSN)
		k.state, k.at, k.again = srdInFlight, now, true
		s.due--
		s.out += s.cost(k)
		if s.silent > 0 {
			s.repeated, s.sent = now, now
		}
	default:
		if n := s.window(); n == len(s.slots) {
			s.grow(n)
		}
		i := s.order[p.choice]
		m := &s.msgs[i]
		k := s.slot(s.next)
		*k = srdSlot{at: now, msg: i, index: m.next, state: srdInFlight}
		s.next = s.next.Next()
		s.out += s.cost(k)
		if m.next == 0 {
			m.began = now
		}
		m.next++
		m.open++
		switch left := m.packets - m.next; {
		case left == 0:
			s.unlist(p.choice)
		case left == 1 && m.Imm:
			m.held = true
			s.unlist(p.choice)
		}
	}
	s.arm(now + s.timeout)
}

func (s *SRDSender) grow(n int) {
	slots := make([]srdSlot, max(16, 2*n))
	for psn := s.una; psn != s.next; psn = psn.Next() {
		slots[uint32(psn)&uint32(len(slots)-1)] = *s.slot(psn)
	}
	s.slots = slots
}

// arm makes the deadline the given time at the latest.
func (s *SRDSender) arm(at int64) {
	if s.deadline == 0 || at < s.deadline {
		s.deadline = at
	}
}

// Accepted notes that the peer has accepted the flow. Packets that wait for a receive go on waiting.
func (s *SRDSender) Accepted() {
	if s.state != SRDOpening {
		return
	}
	s.state, s.heard, s.dead, s.skipped = SRDEstablished, true, false, 0
	s.silent, s.repeated, s.timeout, s.progress, s.deadline = 0, 0, s.firstTimeout(), false, s.retryAt
	s.out, s.due = 0, 0
	for psn := s.una; psn != s.next; psn = psn.Next() { // the peer has none of them
		k := s.slot(psn)
		switch k.state {
		case srdWaiting:
			continue
		case srdAcked:
			k.msg = noMessage
		}
		k.state = srdDue
		s.due++
	}
}

// Acked handles an acknowledgement with the oldest PSN that the peer has not executed, and its bitmap.
func (s *SRDSender) Acked(base roce.PSN, bitmap []byte, now int64) {
	window := s.window()
	n := base.Diff(s.una)
	if s.state != SRDEstablished || n < 0 || n > window {
		return // stale
	}
	for psn := s.una; psn != base; psn = psn.Next() {
		s.settle(psn, false, now)
	}
	highest := base.Add(-1)
	for i := range min(len(bitmap)*8, window-n-1) {
		if bitmap[i/8]&(1<<(i%8)) != 0 {
			highest = base.Add(i + 1)
			s.settle(highest, false, now)
		}
	}
	s.advance()
	s.resendBefore(highest)
}

// resendBefore sends packets again that count as lost because a later one was acknowledged.
func (s *SRDSender) resendBefore(highest roce.PSN) {
	lost := false
	for psn := s.una; psn != s.next && highest.Diff(psn) >= srdGap; psn = psn.Next() {
		if k := s.slot(psn); k.state == srdInFlight && !k.fast {
			k.fast = true
			s.resend(k)
			lost = true
		}
	}
	if lost {
		s.aimd.Lost(s.MTU)
	}
}

// resend makes a packet in flight due again.
func (s *SRDSender) resend(k *srdSlot) {
	s.out -= s.cost(k)
	k.state = srdDue
	s.due++
}

// leave takes a slot out of its state.
func (s *SRDSender) leave(k *srdSlot) {
	switch k.state {
	case srdInFlight:
		s.out -= s.cost(k)
	case srdDue:
		s.due--
	case srdWaiting:
		s.waiting--
	}
}

// settle handles the acknowledgement of one PSN. Only a response acknowledges a READ, and the packets of a request that
// fails.
func (s *SRDSender) settle(psn roce.PSN, response bool, now int64) {
	k := s.slot(psn)
	if k.state == srdAcked || k.state == srdFree {
		return
	}
	if k.msg != noMessage && (s.msgs[k.msg].Kind == Read || s.skips(k)) && !response {
		return
	}
	if k.state == srdInFlight && !k.again {
		s.measure(now - k.at)
	}
	s.answered(now)
	s.aimd.Acked(s.cost(k))
	s.leave(k)
	k.state = srdAcked
	if s.pending && psn == s.probe {
		s.pending = false
		s.waitOn(now)
	}
	if k.msg == noMessage {
		return
	}
	m := &s.msgs[k.msg]
	if s.waiting > 0 && m.status == roce.SRDSuccess && m.takesReceive(k.index) {
		s.ready(now)
	}
	m.open--
	switch {
	case m.open > 0:
	case m.status != roce.SRDSuccess:
		s.end(k.msg)
	case m.held:
		m.held = false
		s.list(k.msg)
	case m.next == m.packets:
		s.end(k.msg)
	}
}

// end ends a request. A request that has failed succeeds if the peer has executed all its packets nevertheless, by late
// copies.
func (s *SRDSender) end(i int32) {
	m := &s.msgs[i]
	if !m.lacks {
		m.status = roce.SRDSuccess
	}
	s.done = append(s.done, SRDResult{ID: m.id, Status: m.status, Began: m.began, Attempts: m.refusals})
	m.used = false
	s.free = append(s.free, i)
}

// fail makes a request fail. A Skip replaces each of its packets that is not acknowledged. The request ends with the
// last answer.
func (s *SRDSender) fail(i int32, status roce.SRDStatus) {
	m := &s.msgs[i]
	for at := s.head; at < len(s.order); at++ {
		if s.order[at] == i {
			s.unlist(int32(at))
			break
		}
	}
	for psn := s.una; psn != s.next; psn = psn.Next() {
		if k := s.slot(psn); k.msg == i && k.state != srdAcked {
			s.leave(k)
			k.state = srdDue
			s.due++
		}
	}
	m.status, m.lacks = status, m.next < m.packets || m.Kind == Read
}

// advance moves the window behind the packets that are acknowledged.
func (s *SRDSender) advance() {
	for s.una != s.next {
		k := s.slot(s.una)
		if k.state != srdAcked {
			return
		}
		k.state = srdFree
		s.una = s.una.Next()
	}
	s.deadline, s.retryAt, s.refused = 0, 0, 0
}

// Response returns the request and the place in its message of the READ request with a PSN; false if no READ with that
// PSN is outstanding.
func (s *SRDSender) Response(psn roce.PSN) (p SRDPacket, ok bool) {
	if s.state != SRDEstablished || psn.Since(s.una) >= s.window() {
		return p, false
	}
	k := s.slot(psn)
	if k.state == srdAcked || s.skips(k) || s.msgs[k.msg].Kind != Read {
		return p, false
	}
	s.describe(&p, psn, k)
	return p, true
}

// Responded notes that the response to the READ request with a PSN, for which Response has returned true, is stored.
func (s *SRDSender) Responded(psn roce.PSN, now int64) {
	if psn.Since(s.una) >= s.window() { // another copy of the response
		return
	}
	s.settle(psn, true, now)
	s.advance()
	s.resendBefore(psn)
}

// Refused handles the refusal of the packet with a PSN.
func (s *SRDSender) Refused(psn roce.PSN, status roce.SRDStatus, now int64) {
	switch {
	case s.state == SRDClosed:
	case status == roce.SRDAborted || status == roce.SRDBadDestQPN: // all requests end
		s.Fail(status)
	case status == roce.SRDForgotten:
		if s.state == SRDEstablished {
			s.open()
		}
	case status > roce.SRDForgotten, s.state != SRDEstablished, psn.Since(s.una) >= s.window():
	default:
		k := s.slot(psn)
		switch skips := s.skips(k); {
		case k.state == srdAcked:
		case status == roce.SRDSuccess || status == roce.SRDSkipped:
			if skips { // the answer to the Skip
				if k.msg != noMessage && status == roce.SRDSkipped {
					s.msgs[k.msg].lacks = true
				}
				s.settle(psn, true, now)
				s.advance()
				s.resendBefore(psn)
			}
		case skips:
		case status != roce.SRDNotReady:
			s.answered(now)
			s.fail(k.msg, status)
		default:
			s.answered(now)
			if k.state == srdInFlight {
				s.notReady(psn, k, now)
			}
		}
	}
}

// takesReceive reports whether a packet of the message takes a receive of the peer.
func (m *srdMessage) takesReceive(index int32) bool {
	return m.Kind == Send || m.Kind == Write && m.Imm && index == m.packets-1
}

// FailPacket makes the request of a packet that was sent fail with SRDBadLocal, unless the request has ended.
func (s *SRDSender) FailPacket(psn roce.PSN) {
	if psn.Since(s.una) >= s.window() {
		return
	}
	if k := s.slot(psn); k.state != srdAcked && !s.skips(k) {
		s.fail(k.msg, roce.SRDBadLocal)
	}
}

// Fail ends all requests, and closes the flow.
func (s *SRDSender) Fail(status roce.SRDStatus) {
	for i := range s.msgs {
		if s.msgs[i].used {
			m := &s.msgs[i]
			if m.began == 0 {
				m.began = s.since
			}
			r := SRDResult{ID: m.id, Status: status, Began: m.began, Attempts: s.silent - s.skipped}
			if m.status != roce.SRDSuccess { // the peer has not answered all Skips
				r.Status, r.Attempts = m.status, m.refusals
			}
			s.done = append(s.done, r)
		}
	}
	clear(s.slots)
	s.msgs, s.free, s.order, s.head = s.msgs[:0], s.free[:0], s.order[:0], 0
	s.state, s.una, s.out, s.due, s.deadline = SRDClosed, s.next, 0, 0, 0
	s.silent, s.skipped, s.repeated, s.waiting, s.retryAt, s.pending, s.refused = 0, 0, 0, 0, 0, false, 0
	s.aimd.Reset()
}

// Expire does the work that is due at a time that is not before the deadline. It reports whether a packet has timed
// out.
func (s *SRDSender) Expire(now int64) (timeout bool) {
	if s.deadline == 0 || now < s.deadline {
		return false
	}
	s.deadline = 0
	if s.state == SRDOpening {
		if timeout = s.opened != 0; timeout && s.timedOut() {
			if s.opened = 0; s.skipProbe(now) {
				s.opened = now
				s.arm(now + s.timeout)
			}
		}
		return timeout
	}
	lost, next := false, int64(0)
	earliest := func(at int64) {
		if next == 0 || at < next {
			next = at
		}
	}
	for psn := s.una; psn != s.next; psn = psn.Next() {
		switch k := s.slot(psn); {
		case k.state != srdInFlight:
		case now >= k.at+s.timeout:
			lost = true
			s.resend(k)
		default:
			earliest(k.at + s.timeout)
		}
	}
	if s.retryAt != 0 && now >= s.retryAt {
		s.retryAt = 0
		s.probe, s.pending = s.release()
		s.waitOn(now)
	}
	if s.retryAt != 0 {
		earliest(s.retryAt)
	}
	if s.silent > 0 { // only a lost probe counts as a timeout
		if lost = s.repeated != 0 && now >= s.repeated+s.timeout; !lost && s.repeated != 0 {
			earliest(s.repeated + s.timeout)
		}
	}
	s.deadline = next
	if lost && s.timedOut() {
		s.aimd.Lost(s.MTU)
		if s.skipProbe(now) {
			s.repeated = now
			s.arm(now + s.timeout)
		}
	}
	return lost
}

// timedOut counts a timeout. It returns false if it was the last one, and all requests have ended.
func (s *SRDSender) timedOut() bool {
	if s.progress {
		s.silent, s.skipped, s.timeout, s.progress = 0, 0, s.firstTimeout(), false
	}
	if s.silent++; s.silent > srdTimeouts {
		if s.heard {
			s.Fail(roce.SRDUnresponsive)
		} else {
			s.Fail(roce.SRDUnreachable)
		}
		s.dead = true
		return false
	}
	s.timeout, s.repeated = min(2*s.timeout, srdMaxTimeout), 0
	return true
}
