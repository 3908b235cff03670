package transport

import (
	"fmt"
	"time"

	"verbena/roce"
)

// SenderConfig holds the queue pair attributes for its sender. They may change between calls.
type SenderConfig struct {
	Reliable bool // RC and XRC: requests are acknowledged
	MTU      int  // path MTU in bytes
	Timeout  roce.AckTimeout
	RetryCnt uint8 // largest number of successive retransmissions without progress
	RNRRetry uint8 // the same, after RNR NAKs; RNRForever: no limit
	MaxReads int   // largest number of outstanding requests with a response (max_rd_atomic)
}

// RNRForever is the RNR retry count for unlimited retries (IBA 9.7.5.2.8).
const RNRForever = 7

// Sender is the requester and the completer of a queue pair (IBA 9.7.5, 9.7.6, 9.8.2, 9.8.3).
//
// The place is the PSN of the next packet. The packets from una to the place are sent and not acknowledged. After a
// loss, the place returns to una, and all packets from there are retransmitted.
//
//	completed |  sent, unacknowledged  |  sent before, to be sent again  |  never sent
//	          una                    place                              sent          next
//
// A sender is in one of these states. It sends in the first two:
//
//	idle       all packets are acknowledged: no deadline
//	in flight  una is unacknowledged: deadline, and probe before it
//	not ready  the peer had no receive: no packet is sent before rnrUntil
type Sender struct {
	SenderConfig
	recovery Recovery

	flight flight
	at     uint32 // number of the request that is being sent; flight.tail if there is none
	pkt    int    // index of its next packet

	una  roce.PSN // oldest unacknowledged PSN; for a READ, the PSN of the next response
	sent roce.PSN // one past the newest PSN ever sent
	next roce.PSN // first PSN of the next request

	out     int // bytes between una and the place
	unasked int // bytes since the last request for an acknowledgement
	reads   int // number of requests with a response between una and the place
	ordered int // number of requests with a response that are in flight; a fence waits for them

	retries    uint8
	rnrRetries uint8
	gap        bool // a response is missing, as gapEnd has shown; all were requested again
	gapEnd     roce.PSN

	deadline  time.Time     // for the acknowledgement of una; zero: none is expected
	rnrUntil  time.Time     // no packet is sent before
	rnrWait   time.Duration // delay until rnrUntil, which Arm sets
	probe     time.Time     // time to send una again, before deadline
	probeWait time.Duration

	since time.Time // start of the wait for the acknowledgement of una; see Attempts

	first     roce.PSN // first PSN ever sent, or maxRemembered before next
	foreign   int      // see Foreign
	foreignAt roce.PSN // the PSN of the last foreign response
	foreignTo roce.PSN // una at that time

	probes     int           // number of probes that may be needless; see Stale
	probeAfter time.Duration // minimum delay of the first probe
}

// Failure is the reason for the failure of a request.
type Failure uint8

const (
	NoFailure       Failure = iota
	RemoteInvalid           // NAK invalid request
	RemoteAccess            // NAK remote access error
	RemoteOperation         // NAK remote operational error, or an undefined code
	RetryExceeded           // no acknowledgement after all retransmissions
	RNRExceeded             // no receive after all retransmissions
	BadResponse             // the response does not fit the request
)

// Result is the outcome of an acknowledgement, a response, or a timeout. The owner completes Done requests
// successfully. If there is a Failure, it then completes the oldest remaining request with this Failure (see
// [Sender.Drop]).
type Result struct {
	Done        int
	Failure     Failure
	Retransmits bool          // all unacknowledged packets are retransmitted; also set with RetryExceeded
	Retries     uint8         // number of remaining retransmissions
	Wait        time.Duration // delay of the retransmission that the peer requests; 0: none
}

// Init prepares a new sender. The sender owns the policy from then on.
func (s *Sender) Init(r Recovery) {
	s.recovery = r
	s.Reset()
}

// Reset discards all requests and the PSNs (RESET state). The configuration stays.
func (s *Sender) Reset() {
	*s = Sender{SenderConfig: s.SenderConfig, recovery: s.recovery, flight: flight{q: s.flight.q}}
	s.recovery.Reset()
}

// Begin sets the first PSN (RTR to RTS).
func (s *Sender) Begin(psn roce.PSN) {
	s.una, s.sent, s.next, s.first = psn, psn, psn, psn
}

// SetRetryCnt changes the limit of retransmissions, and restarts their count.
func (s *Sender) SetRetryCnt(n uint8) { s.RetryCnt, s.retries = n, n }

// SetRNRRetry changes the limit of retransmissions after RNR NAKs, and restarts their count.
func (s *Sender) SetRNRRetry(n uint8) { s.RNRRetry, s.rnrRetries = n, n }

// Len returns the number of requests in flight.
func (s *Sender) Len() int { return s.flight.len() }

// Head returns the number of the oldest request in flight. Numbers count up modulo 2^32.
func (s *Sender) Head() uint32 { return s.flight.head }

// Tail returns the number of the next request to be pushed.
func (s *Sender) Tail() uint32 { return s.flight.tail }

// Ordered returns the number of requests with a response that are in flight. A fenced request must wait for them (IBA
// 10.8.3.3).
func (s *Sender) Ordered() int { return s.ordered }

// Place returns the PSN of the next packet.
func (s *Sender) Place() roce.PSN {
	if s.at == s.flight.tail {
		return s.next
	}
	return s.flight.at(s.at).first.Add(s.pkt)
}

// Open reports whether the sender may send. It may not while the peer has no receive.
func (s *Sender) Open() bool { return s.rnrUntil.IsZero() && s.rnrWait == 0 }

// maxRemembered is the number of PSNs before the next one that count as sent. Four times as many PSNs exist.
const maxRemembered = 1 << 22

// Push adds a request. Its number is the previous result of Tail.
func (s *Sender) Push(q Request) {
	if s.at == s.flight.tail {
		s.pkt = 0
	}
	s.flight.push(entry{Request: q, first: s.next})
	s.next = s.next.Add(q.Packets)
	if s.next.Since(s.first) > maxRemembered {
		s.first = s.next.Add(-maxRemembered)
	}
	if q.Kind.Answered() && q.Packets > 0 {
		s.ordered++
	}
}

// Current returns the number of the request that is being sent. ok is false if all pushed requests have been sent.
func (s *Sender) Current() (n uint32, ok bool) { return s.at, s.at != s.flight.tail }

// Packet is a packet to send, or several consecutive middle packets.
type Packet struct {
	Index   int // index of the first packet in its request
	Packets int // number of PSNs: 1, the number of responses to a READ request, or the number of packets of NextMiddles
	PSN     roce.PSN
	Offset  int // bytes of the request before the packet
	Length  int // bytes of payload, or of the data requested by a READ
	First   bool
	Last    bool
	AckReq  bool

	cost int
}

// Next returns the next packet of the current request. ok is false if there is none, or if the window or the number of
// outstanding answers does not allow it. Next does not change the sender: the owner calls Sent when it sends the
// packet.
func (s *Sender) Next() (p Packet, ok bool) {
	e := s.flight.at(s.at)
	if s.pkt >= e.Packets {
		return p, false
	}
	s.describe(&p, e, s.pkt)
	if !s.Reliable {
		return p, true
	}
	window := s.recovery.Window()
	if s.out > 0 && s.out+p.cost > window || e.Kind.Answered() && s.reads >= s.MaxReads {
		return p, false
	}
	// The window must not fill up without a request for an acknowledgement.
	p.AckReq = p.AckReq || s.unasked+p.cost >= window/2 || s.out+p.cost+s.MTU+PacketCost > window
	return p, true
}

// describe fills p with a packet of a request. The last packet of a message requests an acknowledgement, and so does a
// request with a response.
func (s *Sender) describe(p *Packet, e *entry, index int) {
	p.Index, p.Packets, p.PSN, p.Offset, p.First = index, 1, e.first.Add(index), index*s.MTU, index == 0
	p.Length = min(s.MTU, e.Length-p.Offset)
	if e.Kind == Read {
		chunk := s.chunk()
		end := min((index/chunk+1)*chunk, e.Packets)
		p.Packets, p.Length = end-index, min(end*s.MTU, e.Length)-p.Offset
	}
	p.Last = index+p.Packets == e.Packets
	p.AckReq = s.Reliable && (p.Last || e.Kind.Answered())
	p.cost = p.Packets*PacketCost + p.Length
}

// chunk returns the number of responses to a READ request, except for the last READ request of a work request.
func (s *Sender) chunk() int { return ReadChunk / s.MTU }

// NextMiddles returns the next middle packets of the current request, at most most, as one Packet. They are the packets
// that Next would return one by one, up to a packet that requests an acknowledgement. ok is false if there are none.
// NextMiddles does not change the sender: the owner calls Sent when it sends the packets.
func (s *Sender) NextMiddles(most int) (p Packet, ok bool) {
	e := s.flight.at(s.at)
	if s.pkt == 0 || e.Kind != Send && e.Kind != Write {
		return p, false
	}
	n, cost := min(most, e.Packets-1-s.pkt), s.MTU+PacketCost
	if s.Reliable {
		window := s.recovery.Window()
		n = min(n, (window/2-1-s.unasked)/cost, (window-s.out)/cost-1)
	}
	if n <= 0 {
		return p, false
	}
	s.describe(&p, e, s.pkt)
	p.Packets, p.Length, p.cost = n, n*s.MTU, n*cost
	return p, true
}

// Sent records that the packets returned by Next or NextMiddles will be sent.
func (s *Sender) Sent(p *Packet) {
	s.pkt = p.Index + p.Packets
	if !s.Reliable {
		return
	}
	s.out += p.cost
	if s.flight.at(s.at).Kind.Answered() {
		s.reads++
		return
	}
	if s.unasked += p.cost; p.AckReq {
		s.unasked = 0
	}
}

// Unsend undoes Sent for the packets of the current SEND or RDMA WRITE from index on, which will not be sent. The
// earlier packets have been sent.
func (s *Sender) Unsend(index int) {
	e := s.flight.at(s.at)
	if s.Reliable {
		s.out -= e.cost(s.MTU, index, s.pkt)
	}
	s.pkt = index
	if place := e.first.Add(index); s.sent.Less(place) {
		s.sent = place
	}
}

// Advance moves to the next request if all packets of the current one have been sent. next reports whether it has
// moved. done is the number of requests that complete: a request of an unreliable service completes when it is sent,
// since no acknowledgement follows.
func (s *Sender) Advance() (done int, next bool) {
	e := s.flight.at(s.at)
	if place := e.first.Add(s.pkt); s.sent.Less(place) {
		s.sent = place
	}
	if s.pkt < e.Packets {
		return 0, false
	}
	s.at, s.pkt = s.at+1, 0
	if s.Reliable {
		return 0, true
	}
	s.una = e.first.Add(e.Packets)
	return s.flight.pop(), true
}

// LocalDone reports whether the current local request has already been executed, and is only current because of a
// retransmission.
func (s *Sender) LocalDone() bool { return s.flight.at(s.at).done }

// SkipLocal moves past the current local request, which has been executed. It returns the number of requests that
// complete: 0 while older ones are in flight.
func (s *Sender) SkipLocal() (done int) {
	s.flight.at(s.at).done = true
	s.at, s.pkt = s.at+1, 0
	if s.at-1 == s.flight.head {
		return s.flight.pop()
	}
	return 0
}

// Drop removes the oldest request, which fails.
func (s *Sender) Drop() { s.flight.head++ }

// Rewind moves the place back or forward to una.
func (s *Sender) Rewind() {
	s.at, s.pkt = s.flight.head, 0
	if s.at != s.flight.tail {
		s.pkt = s.una.Since(s.flight.at(s.at).first)
	}
	s.out, s.unasked, s.reads = 0, 0, 0
}

// Unarmed reports whether a wait must begin: for an acknowledgement, or for a peer that is not ready. The owner must
// then call Arm, after it has sent all allowed packets.
func (s *Sender) Unarmed() bool {
	if s.rnrWait != 0 {
		return true
	}
	return s.Reliable && s.deadline.IsZero() && s.rnrUntil.IsZero() && s.una != s.Place()
}

// Arm begins the wait reported by Unarmed. The duration is the one that the peer has requested, or the local ACK
// timeout of the consumer (IBA 9.7.5.2.8, 9.7.6.1.3).
func (s *Sender) Arm(now time.Time) {
	if s.rnrWait != 0 {
		s.rnrUntil, s.rnrWait = now.Add(s.rnrWait), 0
		return
	}
	if s.retries == s.RetryCnt && s.rnrRetries == s.RNRRetry {
		s.since = now
	}
	timeout, probe := s.recovery.Timeout(s.Timeout)
	if timeout == 0 {
		return
	}
	s.deadline, s.probe, s.probeWait = now.Add(timeout), time.Time{}, max(probe, s.probeAfter)
	if probe != 0 && s.probeWait <= timeout/2 {
		s.probe = now.Add(s.probeWait)
	}
}

// Stale records a response to psn that Expects does not allow. A response to a probe means that the packet had arrived
// before the probe: no packet was lost, but an acknowledgement takes longer than the delay of the probe. Probes cost
// time on a slow link, so the delay of the next probe doubles. Each acknowledgement shortens the delay again.
func (s *Sender) Stale(psn roce.PSN) {
	if psn.Since(s.first) >= s.sent.Since(s.first) {
		if s.foreignTo != s.una {
			s.foreign, s.foreignTo = 0, s.una
		}
		s.foreign, s.foreignAt = s.foreign+1, psn
	}
	if s.probes > 0 {
		s.probes--
		s.probeAfter = min(2*max(s.probeAfter, ProbeAfter), maxProbeAfter)
	}
}

// Expects reports whether a response with this PSN belongs to a sent and unacknowledged packet. Other responses are
// ghosts or stale, and must be dropped (IBA 9.7.5.1.2).
func (s *Sender) Expects(psn roce.PSN) bool {
	return s.flight.len() > 0 && !psn.Less(s.una) && psn.Less(s.sent)
}

// Ack handles an acknowledgement that Expects allows (IBA 9.7.5.1.2). A NAK acknowledges all packets before its PSN. An
// acknowledgement with a reserved syndrome is ignored.
func (s *Sender) Ack(psn roce.PSN, syndrome roce.Syndrome) (res Result) {
	upTo := psn
	switch {
	case syndrome.IsACK():
		upTo = psn.Next()
	case !syndrome.IsRNR() && !syndrome.IsNAK():
		return res
	}
	if !s.acknowledge(upTo, &res) {
		s.responseLost(s.una, &res)
		return res
	}
	waiting := !s.Open()
	switch {
	case syndrome.IsACK():
	case syndrome.IsRNR():
		if !waiting {
			s.notReady(syndrome.RNRTimer().Duration(), &res)
		}
	case syndrome == roce.NAKPSNSequenceError:
		if !waiting {
			s.retransmit(&res)
		}
	case syndrome == roce.NAKInvalidRequest:
		res.Failure = RemoteInvalid
	case syndrome == roce.NAKRemoteAccessError:
		res.Failure = RemoteAccess
	default:
		res.Failure = RemoteOperation
	}
	return res
}

// acknowledge records that all requests before psn have been executed, and counts the completed ones. It stops and
// returns false at a request that still lacks its response.
func (s *Sender) acknowledge(psn roce.PSN, res *Result) bool {
	bytes := 0
	for s.una != psn && s.flight.len() > 0 {
		e := s.flight.at(s.flight.head)
		if e.Kind.Answered() {
			break
		}
		from, to := s.una.Since(e.first), min(psn.Since(e.first), e.Packets)
		bytes += e.cost(s.MTU, from, to)
		s.una = e.first.Add(to)
		if to == e.Packets {
			res.Done += s.flight.pop()
		}
	}
	if bytes > 0 {
		s.progress(bytes)
	}
	return s.una == psn
}

// progress records that una has advanced by a number of window bytes.
func (s *Sender) progress(bytes int) {
	if int32(s.at-s.flight.head) < 0 || s.Place().Less(s.una) {
		s.Rewind() // forward: packets to be retransmitted had arrived after all
	} else {
		s.out -= bytes
	}
	s.recovery.Acked(bytes)
	s.probeAfter -= s.probeAfter / 32
	s.retries, s.rnrRetries = s.RetryCnt, s.RNRRetry
	s.gap = s.gap && !s.gapEnd.Less(s.una)
	s.deadline = time.Time{}
}

// Response is the header of a packet of a response.
type Response struct {
	PSN      roce.PSN
	Op       roce.Operation // an RDMA READ response, or an atomic acknowledgement
	Syndrome roce.Syndrome  // if the packet has one
	Length   int            // bytes of payload
}

// Store describes the place of the payload of a response: Offset bytes into the memory of the oldest request. Last is
// set for the last payload of the response.
type Store struct {
	Offset int
	Last   bool
}

// Response handles a response that Expects allows. A response with a wrong length or position is a bad response (IBA
// 9.9.2.1). A response to another kind of request is ignored: it may be forged, and the genuine one is still to come.
// If ok is set, the owner must store the payload and then call Stored. If the owner cannot store it, the request fails.
func (s *Sender) Response(r *Response) (res Result, to Store, ok bool) {
	if !s.acknowledge(r.PSN, &res) {
		s.responseLost(r.PSN, &res)
		return res, to, false
	}
	e := s.flight.at(s.flight.head)
	index := r.PSN.Since(e.first)
	acks := r.Op == roce.RDMAReadResponseMiddle || r.Syndrome.IsACK()
	switch {
	case (r.Op == roce.AtomicAcknowledge) != (e.Kind == Atomic):
		return res, to, false
	case e.Kind == Atomic:
		return res, Store{Last: true}, acks
	case e.Kind == Flush, e.Kind == AtomicWrite:
		ok, to.Last = acks && r.Op == roce.RDMAReadResponseOnly && r.Length == 0, true
	case e.Kind == Read:
		to = Store{Offset: index * s.MTU, Last: index+1 == e.Packets}
		ends := to.Last || (index+1)%s.chunk() == 0
		ok = acks && r.ends() == ends && r.Length == min(s.MTU, e.Length-to.Offset)
	default:
		return res, to, false
	}
	if !ok {
		res.Failure = BadResponse
	}
	return res, to, ok
}

// ends reports whether the response is the last packet of the answer to a READ request. There is no such rule for the
// first packet: the READ request may have been repeated from the middle.
func (r *Response) ends() bool {
	return r.Op == roce.RDMAReadResponseLast || r.Op == roce.RDMAReadResponseOnly
}

// Stored records that the payload of the response with the PSN una is in memory.
func (s *Sender) Stored() (res Result) {
	e := s.flight.at(s.flight.head)
	index := s.una.Since(e.first)
	bytes, last := e.cost(s.MTU, index, index+1), index+1 == e.Packets
	if last || (index+1)%s.chunk() == 0 {
		s.reads--
	}
	s.una = s.una.Next()
	if last {
		s.ordered--
		res.Done = s.flight.pop()
	}
	s.progress(bytes)
	return res
}

// Responses handles n consecutive middle responses to an RDMA READ at once. They begin at psn and have size bytes each.
// If they are the next expected ones, ok is true, and the offset of their payload in the memory of the oldest request
// is returned in bytes. The owner must then store the payload and call StoredAll. If ok is false, the owner must handle
// the responses one by one.
func (s *Sender) Responses(psn roce.PSN, n, size int) (offset int, ok bool) {
	if s.flight.len() == 0 || psn != s.una || s.sent.Less(psn.Add(n)) {
		return 0, false
	}
	e := s.flight.at(s.flight.head)
	index := psn.Since(e.first)
	ok = e.Kind == Read && size == s.MTU && index+n < e.Packets && index/s.chunk() == (index+n)/s.chunk()
	return index * s.MTU, ok
}

// StoredAll records that the payload of n responses is in memory. None of them may end a request.
func (s *Sender) StoredAll(n int) {
	e := s.flight.at(s.flight.head)
	index := s.una.Since(e.first)
	s.una = s.una.Add(n)
	s.progress(e.cost(s.MTU, index, index+n))
}

// responseLost handles a response, to psn, that is newer than the expected one: an earlier response is lost (an implied
// NAK, IBA 9.7.5.2.1). Until the lost response arrives, further early responses are ignored.
func (s *Sender) responseLost(psn roce.PSN, res *Result) {
	if !s.gap && s.Open() {
		s.retransmit(res)
		s.gap, s.gapEnd = true, psn
	}
}

// retransmit retransmits all unacknowledged packets, or reports that the retries are exhausted.
func (s *Sender) retransmit(res *Result) {
	res.Retransmits = true
	if s.retries == 0 {
		res.Failure = RetryExceeded
		return
	}
	s.retries--
	res.Retries = s.retries
	s.probes = 0
	s.recovery.Lost(s.MTU)
	s.Rewind()
	s.deadline = time.Time{}
}

// notReady waits as requested by the peer and then retransmits from una on, or reports that the RNR retries are
// exhausted (IBA 9.7.5.2.8).
func (s *Sender) notReady(wait time.Duration, res *Result) {
	if s.flight.len() == 0 {
		return
	}
	if s.RNRRetry != RNRForever {
		if s.rnrRetries == 0 {
			res.Failure = RNRExceeded
			return
		}
		s.rnrRetries--
	}
	s.Rewind()
	s.deadline = time.Time{}
	s.rnrWait, res.Wait = wait, wait
}

// Deadline returns the latest time for the next call of Tick, or zero if no wait is in progress.
func (s *Sender) Deadline() time.Time {
	at := s.deadline
	if !at.IsZero() && !s.probe.IsZero() && s.probe.Before(at) {
		at = s.probe
	}
	if at.IsZero() || !s.rnrUntil.IsZero() && s.rnrUntil.Before(at) {
		return s.rnrUntil
	}
	return at
}

// Expiry is the outcome of Tick.
type Expiry uint8

const (
	NothingExpired Expiry = iota
	AckTimeout            // no acknowledgement in time; see TimedOut
	ProbeDue              // see Probe
)

// Tick checks the deadlines. It ends an expired wait for a peer that was not ready.
func (s *Sender) Tick(now time.Time) Expiry {
	due := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = time.Time{}
		return true
	}
	due(&s.rnrUntil)
	switch {
	case due(&s.deadline):
		return AckTimeout
	case due(&s.probe):
		return ProbeDue
	}
	return NothingExpired
}

// TimedOut handles a timeout, after Tick has returned AckTimeout (IBA 9.7.6.1.3). It returns false if no packet is
// unacknowledged.
func (s *Sender) TimedOut() (res Result, ok bool) {
	if s.flight.len() == 0 || s.una == s.Place() {
		return res, false
	}
	s.gap = false
	s.retransmit(&res)
	return res, true
}

// Probe handles a due probe, after Tick has returned ProbeDue. It returns the oldest unacknowledged packet, with a
// request for an acknowledgement. The probe precedes the timeout, which can be a second. If the packet or its NAK was
// lost, the probe restarts the transfer. If an acknowledgement was lost, the peer repeats it, as for any duplicate (IBA
// 9.7.5.1.1). A probe is not a retransmission: no other packet is sent again, and the timeout continues. ok is false if
// there is no packet to probe with.
func (s *Sender) Probe(now time.Time) (p Packet, ok bool) {
	if s.deadline.IsZero() || !s.rnrUntil.IsZero() || s.una == s.Place() || s.flight.len() == 0 {
		return p, false
	}
	s.probeWait *= 2
	s.probe = now.Add(s.probeWait)
	e := s.flight.at(s.flight.head)
	if e.Kind != Send && e.Kind != Write {
		return p, false
	}
	s.describe(&p, e, s.una.Diff(e.first))
	p.AckReq = true
	s.probes++
	return p, true
}

// Stop ends all waits when the queue pair enters the error state.
func (s *Sender) Stop() { s.deadline, s.rnrUntil, s.rnrWait = time.Time{}, time.Time{}, 0 }

// senderStatus is the state of a sender, for reports.
type senderStatus struct {
	Unacknowledged roce.PSN // the oldest unacknowledged PSN
	Place          roce.PSN // PSN of the next packet
	InFlight       int      // number of requests
	Window         int      // in bytes
	Retries        uint8    // remaining
	RNRRetries     uint8    // remaining
}

// Status returns the state.
func (s *Sender) Status() senderStatus {
	return senderStatus{
		Unacknowledged: s.una, Place: s.Place(), InFlight: s.Len(), Window: s.recovery.Window(),
		Retries: s.retries, RNRRetries: s.rnrRetries,
	}
}

// Attempts describes the transmissions of the oldest unacknowledged PSN. n is their number without probes, and since is
// the time of the first. rnr is the number of transmissions that the peer answered with an RNR NAK; it is not counted
// with [RNRForever]. n is 0 if no packet is unacknowledged. After the last retransmission, the results describe the
// failed request.
func (s *Sender) Attempts() (psn roce.PSN, n, rnr int, since time.Time) {
	if !s.una.Less(s.sent) {
		return s.una, 0, 0, time.Time{}
	}
	rnr = int(s.RNRRetry - s.rnrRetries)
	return s.una, 1 + int(s.RetryCnt-s.retries) + rnr, rnr, s.since
}

// Foreign returns the number of responses to PSNs that were never sent, since una last changed, and the PSN of the last
// such response. A responder that expects other PSNs sends them.
func (s *Sender) Foreign() (psn roce.PSN, n int) {
	if s.foreignTo != s.una {
		return 0, 0
	}
	return s.foreignAt, s.foreign
}

// Progressed reports whether the peer has acknowledged a packet since Begin.
func (s *Sender) Progressed() bool { return s.una != s.first }

// Verify compares the counts of the sender with its requests in flight, and returns an error if they differ. It is for
// tests.
func (s *Sender) Verify() error {
	f, place := &s.flight, s.Place()
	if int32(s.at-f.head) < 0 || int32(f.tail-s.at) < 0 || place.Less(s.una) || s.sent.Less(place) || s.next.Less(s.sent) {
		return fmt.Errorf("sender: una %d, place %d, sent %d, next %d; at request %d of %d to %d",
			s.una, place, s.sent, s.next, s.at, f.head, f.tail)
	}
	out, reads, ordered := 0, 0, 0
	for n := f.head; n != f.tail; n++ {
		e := f.at(n)
		if e.Kind.Answered() && e.Packets > 0 {
			ordered++
		}
		from, to := max(s.una.Diff(e.first), 0), min(place.Diff(e.first), e.Packets)
		if from >= to {
			continue
		}
		out += e.cost(s.MTU, from, to)
		switch {
		case e.Kind == Read:
			reads += (to-1)/s.chunk() - from/s.chunk() + 1
		case e.Kind.Answered():
			reads++
		}
	}
	if out != s.out || reads != s.reads || ordered != s.ordered || s.reads > s.MaxReads {
		return fmt.Errorf("sender: counts %d bytes out, %d reads of %d, %d ordered; the requests say %d, %d, %d",
			s.out, s.reads, s.MaxReads, s.ordered, out, reads, ordered)
	}
	return nil
}
