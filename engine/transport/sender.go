package transport

import (
	"fmt"
	"time"

	"verbena/roce"
)

// SenderConfig holds the attributes of a queue pair that its sender goes by. They may change between calls.
type SenderConfig struct {
	Reliable bool // RC and XRC: requests are acknowledged
	MTU      int  // path MTU in bytes
	Timeout  roce.AckTimeout
	RetryCnt uint8 // retransmissions in a row without progress, at most
	RNRRetry uint8 // the same after RNR NAKs; RNRForever: no limit
	MaxReads int   // requests outstanding that are answered (max_rd_atomic)
}

// RNRForever is the RNR retry count that means no limit (IBA 9.7.5.2.8).
const RNRForever = 7

// Sender is the requester and the completer of a queue pair (IBA 9.7.5, 9.7.6, 9.8.2, 9.8.3).
//
// The PSNs from una to the place have been sent and are not acknowledged. After a loss the place goes back to una, and
// everything from there is sent again.
//
//	completed |  sent, unacknowledged  |  sent before, to be sent again  |  never sent
//	          una                    place                              sent          next
//
// It waits in one of these states, of which only the first two send:
//
//	idle       nothing is unacknowledged: no deadline
//	in flight  una is unacknowledged: deadline, and probe before it
//	not ready  the peer had no receive: nothing is sent before rnrUntil
type Sender struct {
	SenderConfig
	recovery Recovery

	flight flight
	at     uint32 // number of the request whose packets are sent now; flight.tail if there is none
	pkt    int    // next packet of it

	una  roce.PSN // oldest PSN that is not acknowledged; of a READ, whose response has not come
	sent roce.PSN // one past the newest PSN ever sent
	next roce.PSN // first PSN of the next request

	out     int // bytes between una and the place
	unasked int // bytes since the last request for an acknowledgement
	reads   int // requests between una and the place that are answered
	ordered int // requests in flight that are answered, which a fence waits for

	retries    uint8
	rnrRetries uint8
	gap        bool // among the responses, as gapEnd has shown; everything was asked for again
	gapEnd     roce.PSN

	deadline  time.Time     // of the acknowledgement of una; zero: nothing is waited for
	rnrUntil  time.Time     // nothing is sent before
	rnrWait   time.Duration // it is to be set to that from now on; see Arm
	probe     time.Time     // while there is a deadline: una is sent again
	probeWait time.Duration

	since time.Time // the wait for the acknowledgement of una began; see Attempts

	first     roce.PSN // ever sent, or far enough before next
	foreign   int      // see Foreign
	foreignAt roce.PSN // the PSN of the last foreign response
	foreignTo roce.PSN // una at that time

	probes     int           // that may have been needless; see Stale
	probeAfter time.Duration // the first probe waits for so long at least
}

// Failure is why a request ends without success.
type Failure uint8

const (
	NoFailure       Failure = iota
	RemoteInvalid           // NAK invalid request
	RemoteAccess            // NAK remote access error
	RemoteOperation         // NAK remote operational error, and codes that are not defined
	RetryExceeded           // no acknowledgement after all retransmissions
	RNRExceeded             // no receive after all retransmissions
	BadResponse             // the response does not fit the request
)

// Result is the outcome of an acknowledgement, a response, or a timeout. The owner completes Done requests with
// success, then, if there is a Failure, the oldest one that is left with that (see [Sender.Drop]).
type Result struct {
	Done        int
	Failure     Failure
	Retransmits bool          // everything unacknowledged is sent again; also set with RetryExceeded
	Retries     uint8         // how often that may be done again
	Wait        time.Duration // everything unacknowledged is sent again after that, as the peer asks; 0: no
}

// Init prepares a new sender, with the policy that is its own from then on.
func (s *Sender) Init(r Recovery) {
	s.recovery = r
	s.Reset()
}

// Reset forgets all requests and the PSNs (RESET state); the configuration stays.
func (s *Sender) Reset() {
	*s = Sender{SenderConfig: s.SenderConfig, recovery: s.recovery, flight: flight{q: s.flight.q}}
	s.recovery.Reset()
}

// Begin sets the first PSN (RTR to RTS).
func (s *Sender) Begin(psn roce.PSN) {
	s.una, s.sent, s.next, s.first = psn, psn, psn, psn
}

// SetRetryCnt changes the limit of retransmissions, and begins to count anew.
func (s *Sender) SetRetryCnt(n uint8) { s.RetryCnt, s.retries = n, n }

// SetRNRRetry changes the limit of retransmissions after RNR NAKs, and begins to count anew.
func (s *Sender) SetRNRRetry(n uint8) { s.RNRRetry, s.rnrRetries = n, n }

// Len returns the number of requests in flight.
func (s *Sender) Len() int { return s.flight.len() }

// Head and Tail return the numbers of the oldest request in flight and of the next to be pushed. They count up modulo
// 2^32.
func (s *Sender) Head() uint32 { return s.flight.head }

// Tail returns the number that the next request will have.
func (s *Sender) Tail() uint32 { return s.flight.tail }

// Ordered returns the number of requests in flight that are answered, which a fenced request has to wait for (IBA
// 10.8.3.3).
func (s *Sender) Ordered() int { return s.ordered }

// Place returns the PSN of the next packet.
func (s *Sender) Place() roce.PSN {
	if s.at == s.flight.tail {
		return s.next
	}
	return s.flight.at(s.at).first.Add(s.pkt)
}

// Open reports whether something may be sent at all: not while the peer has no receive.
func (s *Sender) Open() bool { return s.rnrUntil.IsZero() && s.rnrWait == 0 }

// maxRemembered is the number of PSNs before the next one that count as sent. Four times as many PSNs exist.
const maxRemembered = 1 << 22

// Push takes a request, whose number is the one that Tail has returned.
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

// Current returns the number of the request whose packets are sent now; false if all that were pushed have been sent.
func (s *Sender) Current() (n uint32, ok bool) { return s.at, s.at != s.flight.tail }

// Packet is a packet to be sent.
type Packet struct {
	Index   int // of the first packet within its request
	Packets int // PSNs that it stands for: one, those of the response to a READ request, or those of NextMiddles
	PSN     roce.PSN
	Offset  int // bytes of the request before it
	Length  int // bytes of its payload, or that it asks for
	First   bool
	Last    bool
	AckReq  bool

	cost int
}

// Next returns the packet of the current request that may be sent now; false if there is none, or the window, or the
// number of answers outstanding, does not allow it. It changes nothing: the owner calls Sent when it sends the packet.
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
	// The window must not fill up without an acknowledgement on its way.
	p.AckReq = p.AckReq || s.unasked+p.cost >= window/2 || s.out+p.cost+s.MTU+PacketCost > window
	return p, true
}

// describe fills p with a packet of a request. The last of a message asks for an acknowledgement, and so does a request
// that is answered.
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

// chunk returns the number of responses to a READ request that is not the last of its work request.
func (s *Sender) chunk() int { return ReadChunk / s.MTU }

// NextMiddles returns middle packets of the current request as one, of which there are most at most: those that Next would
// return one after the other, up to one that asks for an acknowledgement. False if there are none. It changes nothing: the
// owner calls Sent when it sends them.
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

// Sent notes that the packet that Next has returned, or those of NextMiddles, are going to be sent.
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

// Unsend takes back the packets of the current SEND or RDMA WRITE from index on, which will not be sent after all.
// Those before it have been.
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

// Advance goes on to the next request when all packets of the current one have been sent, which next reports. It
// returns how many requests are complete by that: of an unreliable service they are, since no acknowledgement follows.
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

// LocalDone reports whether the current request, a local one, has been carried out before, and has only come up again
// by a retransmission.
func (s *Sender) LocalDone() bool { return s.flight.at(s.at).done }

// SkipLocal goes on after the current request, a local one that has been carried out. It returns how many requests are
// complete by that: none while older ones are in flight.
func (s *Sender) SkipLocal() (done int) {
	s.flight.at(s.at).done = true
	s.at, s.pkt = s.at+1, 0
	if s.at-1 == s.flight.head {
		return s.flight.pop()
	}
	return 0
}

// Drop takes the oldest request out, which ends without success.
func (s *Sender) Drop() { s.flight.head++ }

// Rewind takes the place back, or forward, to una.
func (s *Sender) Rewind() {
	s.at, s.pkt = s.flight.head, 0
	if s.at != s.flight.tail {
		s.pkt = s.una.Since(s.flight.at(s.at).first)
	}
	s.out, s.unasked, s.reads = 0, 0, 0
}

// Unarmed reports whether a wait has to begin, for an acknowledgement or for a peer that was not ready: Arm is to be
// called, after everything that may be sent now has been.
func (s *Sender) Unarmed() bool {
	if s.rnrWait != 0 {
		return true
	}
	return s.Reliable && s.deadline.IsZero() && s.rnrUntil.IsZero() && s.una != s.Place()
}

// Arm begins the wait that Unarmed speaks of: for as long as the peer, or for an acknowledgement the consumer, has
// asked for (IBA 9.7.5.2.8, 9.7.6.1.3).
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

// Stale notes a response to psn, which Expects does not allow. A response to a probe means that the packet had arrived
// before the probe: nothing was lost, but an acknowledgement takes longer than the probe waits. Probes cost time on a
// slow link, so the next probe waits twice as long. Each acknowledgement makes the time shorter again.
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

// Expects reports whether a response with this PSN belongs to a packet that was sent and is not acknowledged. Any other
// is a ghost or stale, and to be dropped (IBA 9.7.5.1.2).
func (s *Sender) Expects(psn roce.PSN) bool {
	return s.flight.len() > 0 && !psn.Less(s.una) && psn.Less(s.sent)
}

// Ack handles an acknowledgement that Expects allows (IBA 9.7.5.1.2). A NAK acknowledges everything before its PSN. One
// with a reserved syndrome is ignored.
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

// acknowledge notes that everything before psn has been done, and counts the requests that end there. It returns false,
// and stops, at a request whose response has not come.
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

// progress notes that una has moved over so many bytes.
func (s *Sender) progress(bytes int) {
	if int32(s.at-s.flight.head) < 0 || s.Place().Less(s.una) {
		s.Rewind() // forward: packets that were to be sent again had arrived after all
	} else {
		s.out -= bytes
	}
	s.recovery.Acked(bytes)
	s.probeAfter -= s.probeAfter / 32
	s.retries, s.rnrRetries = s.RetryCnt, s.RNRRetry
	s.gap = s.gap && !s.gapEnd.Less(s.una)
	s.deadline = time.Time{}
}

// Response is the header of a response to a request that is answered.
type Response struct {
	PSN      roce.PSN
	Op       roce.Operation // an RDMA READ response, or an atomic acknowledgement
	Syndrome roce.Syndrome  // where the packet has one
	Length   int            // bytes of payload
}

// Store says where the payload of a response belongs: Offset bytes into the memory of the oldest request. Last ends the
// response.
type Store struct {
	Offset int
	Last   bool
}

// Response handles a response that Expects allows. One of the wrong length or place is a bad response (IBA 9.9.2.1);
// one that belongs to another kind of request is ignored, since it may be forged, and the true one is still to come.
// With ok its payload is to be stored, and then Stored to be called; where that is impossible the request fails.
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

// ends reports whether the response is the last packet that answers a READ request. Where it is the first depends on
// where the request began, which may have been a repeated one.
func (r *Response) ends() bool {
	return r.Op == roce.RDMAReadResponseLast || r.Op == roce.RDMAReadResponseOnly
}

// Stored notes that the payload of the response that is due, the one with the PSN una, is in memory.
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

// Responses handles n middle responses to an RDMA READ at once, which begin at psn and have size bytes each: if they are
// those that are waited for, and no other belongs between them, it returns where their payload belongs, bytes into the
// memory of the oldest request, and StoredAll is to be called then. False: they are to be handled one by one.
func (s *Sender) Responses(psn roce.PSN, n, size int) (offset int, ok bool) {
	if s.flight.len() == 0 || psn != s.una || s.sent.Less(psn.Add(n)) {
		return 0, false
	}
	e := s.flight.at(s.flight.head)
	index := psn.Since(e.first)
	ok = e.Kind == Read && size == s.MTU && index+n < e.Packets && index/s.chunk() == (index+n)/s.chunk()
	return index * s.MTU, ok
}

// StoredAll notes that the payload of n responses, none of which ends a request, is in memory.
func (s *Sender) StoredAll(n int) {
	e := s.flight.at(s.flight.head)
	index := s.una.Since(e.first)
	s.una = s.una.Add(n)
	s.progress(e.cost(s.MTU, index, index+n))
}

// responseLost handles a response, to psn, that is newer than the one that is waited for: a response before it is lost
// (an implied NAK, IBA 9.7.5.2.1). Until that has come, others that arrive too early tell nothing new.
func (s *Sender) responseLost(psn roce.PSN, res *Result) {
	if !s.gap && s.Open() {
		s.retransmit(res)
		s.gap, s.gapEnd = true, psn
	}
}

// retransmit sends everything that is not acknowledged again, or gives up.
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

// notReady waits as the peer asks, then sends everything from una on again, or gives up (IBA 9.7.5.2.8).
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

// Deadline returns when Tick is to be called at the latest; zero: not before something else has happened.
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

// Expiry is what time has brought.
type Expiry uint8

const (
	NothingExpired Expiry = iota
	AckTimeout            // no acknowledgement in time: see TimedOut
	ProbeDue              // see Probe
)

// Tick looks at the deadlines. It ends the wait for a peer that was not ready.
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

// TimedOut is to be called after Tick has returned AckTimeout (IBA 9.7.6.1.3). It returns false if nothing was
// outstanding any more.
func (s *Sender) TimedOut() (res Result, ok bool) {
	if s.flight.len() == 0 || s.una == s.Place() {
		return res, false
	}
	s.gap = false
	s.retransmit(&res)
	return res, true
}

// Probe is to be called after Tick has returned ProbeDue. It returns the oldest packet without an acknowledgement, to
// be sent again with a request for one, long before the timeout, which may be a second: if the packet, or the NAK for
// it, was lost, that gets things going; if an acknowledgement was, the peer repeats it, as for any duplicate (IBA
// 9.7.5.1.1). It is no retransmission: nothing else is sent again, and the timeout runs on. False: there is nothing to
// be probed for.
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

// Stop ends all waiting: the queue pair is in the error state.
func (s *Sender) Stop() { s.deadline, s.rnrUntil, s.rnrWait = time.Time{}, time.Time{}, 0 }

// senderStatus is the state of a sender, to be shown.
type senderStatus struct {
	Unacknowledged roce.PSN // the oldest PSN that is
	Place          roce.PSN // of the next packet
	InFlight       int      // requests
	Window         int      // bytes
	Retries        uint8    // left
	RNRRetries     uint8    // left
}

// Status returns the state.
func (s *Sender) Status() senderStatus {
	return senderStatus{
		Unacknowledged: s.una, Place: s.Place(), InFlight: s.Len(), Window: s.recovery.Window(),
		Retries: s.retries, RNRRetries: s.rnrRetries,
	}
}

// Attempts describes the transmissions of the oldest PSN without an acknowledgement: their number, without probes, and
// the time of the first. rnr is the number of them that the peer answered with an RNR NAK; it is not counted with
// [RNRForever]. n is 0 if no packet is unacknowledged. After the last retransmission they describe the failed request.
func (s *Sender) Attempts() (psn roce.PSN, n, rnr int, since time.Time) {
	if !s.una.Less(s.sent) {
		return s.una, 0, 0, time.Time{}
	}
	rnr = int(s.RNRRetry - s.rnrRetries)
	return s.una, 1 + int(s.RetryCnt-s.retries) + rnr, rnr, s.since
}

// Foreign returns the number of responses to PSNs that were never sent, since the oldest PSN without an acknowledgement
// is waited for, and the PSN of the last of them. A responder that expects other PSNs sends them.
func (s *Sender) Foreign() (psn roce.PSN, n int) {
	if s.foreignTo != s.una {
		return 0, 0
	}
	return s.foreignAt, s.foreign
}

// Progressed reports whether the peer has acknowledged a packet since Begin.
func (s *Sender) Progressed() bool { return s.una != s.first }

// Verify compares what the sender counts with its requests in flight, and returns a contradiction. It is for tests.
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
